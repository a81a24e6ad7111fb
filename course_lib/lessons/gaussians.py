"""Two Gaussian classes and a linear classifier: robust fairness, solved by hand.

    y uniform on {-1, +1},  x | -1 ~ N(-eta 1, sigma^2 I),  x | +1 ~ N(+eta 1, K^2 sigma^2 I)

The model is that of Xu et al. (ICML 2021). K > 1: class -1 is easy, class +1 is hard. While
eps < eta the best weights are equal (Cauchy-Schwarz), so a classifier is one threshold: it predicts
+1 where t = sum(x) / (sqrt(d) sigma) > theta. In these units the signal is m = sqrt(d) eta / sigma
and the budget r = sqrt(d) eps / sigma. The closed forms were derived for this course and are tested
against brute force. Pairs are in the order (easy, hard); numbers may be arrays.
"""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, ndtr, ndtri

from course_lib.errors import CourseError, pick

Numbers = float | np.ndarray
Budget = Any  # one number for both classes, or a tuple (easy, hard)
LOSSES = {  # of the margin z: loss, its derivative
    "logistic": (lambda z: np.logaddexp(0, -z), lambda z: -expit(-z)),
    "ramp": (lambda z: expit(-z), lambda z: -expit(-z) * expit(z)),
}
# a threshold theta; its training errors are Phi(u) and Phi(v), and S is the root in both
Optimum = namedtuple("Optimum", ("theta", "u", "v", "S"))


@dataclass(frozen=True)
class Gaussians:
    """The model. Its methods answer for any class weight, budget per class and threshold."""

    d: Numbers = 10
    eta: Numbers = 0.5
    sigma: Numbers = 1.0
    K: Numbers = 2.0

    def __post_init__(self) -> None:
        if np.min(self.K) <= 1 or min(map(np.min, (self.d, self.eta, self.sigma))) <= 0:
            raise CourseError(f"d is {self.d}, eta {self.eta}, sigma {self.sigma} and K {self.K}; "
                              "K must be above 1 (class +1 is the wide one), the others above 0.")

    @property
    def m(self) -> Numbers:
        return self.budget(self.eta)

    def budget(self, eps: Numbers) -> Numbers:
        """eps in the units of t."""
        return np.sqrt(self.d) * eps / self.sigma

    def errors(self, theta: Numbers, r: Budget = 0.0) -> np.ndarray:
        """Both classes' errors under attacks of budget r; standard errors for r = 0.

        >>> Gaussians().errors(theta=0).round(3).tolist()
        [0.057, 0.215]
        """
        easy, hard = both(r)
        # e_-(theta; r) = Phi(-theta - m + r),  e_+(theta; r) = Phi((theta - m + r) / K)
        return np.array([ndtr(easy - theta - self.m), ndtr((theta - self.m + hard) / self.K)])

    def conserved(self, errors: Any) -> Numbers:
        """-2 (m - r), whatever the threshold: the conservation law.

        >>> model = Gaussians(d=4)
        >>> [round(model.conserved(model.errors(theta)), 6).item() for theta in (0, 1)]
        [-2.0, -2.0]
        """
        # Phi^-1(e_-) + K Phi^-1(e_+)
        return ndtri(errors[0]) + self.K * ndtri(errors[1])

    def optimum(self, omega: Numbers = 1.0, s: Budget = 0.0) -> Optimum:
        """Where e_-(theta; s_-) + omega e_+(theta; s_+) has its local minimum; NaN if nowhere."""
        (easy, hard), K = both(s), self.K
        # M = m - (s_- + s_+)/2,  B = 2M / (K^2 - 1),  S^2 = B^2 + 2 log(K / omega) / (K^2 - 1)
        B = 2 * (self.m - (easy + hard) / 2) / (K**2 - 1)
        square = B**2 + 2 * np.log(K / omega) / (K**2 - 1)
        S = np.sqrt(np.where(square > 0, square, np.nan))
        # u = B - K S,  v = S - K B,  theta = s_- - m - u
        u, v = B - K * S, S - K * B
        return Optimum(easy - self.m - u, u, v, S)

    def threshold(self, omega: float = 1.0, s: Budget = 0.0) -> float:
        """The global minimiser: minus or plus infinity where one answer for all x is better.

        >>> [round(Gaussians().threshold(omega), 3) for omega in (1, 2)]
        [-0.127, -0.527]
        """
        theta, u, v, _ = self.optimum(omega, s)
        risks = {theta: ndtr(u) + omega * ndtr(v), -np.inf: 1.0, np.inf: omega}
        return float(min(risks, key=lambda t: np.nan_to_num(risks[t], nan=np.inf)))

    def equal(self, r: Numbers = 0.0) -> Numbers:
        """The threshold at which both classes have the same error under budget r.

        >>> Gaussians().errors(Gaussians().equal()).round(3).tolist()
        [0.146, 0.146]
        """
        # -theta - m + r = (theta - m + r) / K
        return -(self.m - r) * (self.K - 1) / (self.K + 1)

    def price(self, r: Numbers = 0.0) -> Numbers:
        """What equal robust errors cost on average.

        >>> round(float(Gaussians().price()), 3)
        0.011
        """
        _, u, v, _ = self.optimum(s=r)
        # Phi(-2M / (K + 1)) - (Phi(u) + Phi(v)) / 2
        return ndtr(-2 * (self.m - r) / (self.K + 1)) - (ndtr(u) + ndtr(v)) / 2

    def logistic(self, omega: float = 1.0, s: Budget = 0.0) -> float:
        """The threshold of the adversarial logistic loss on infinitely many examples. It has no
        closed form: Gauss-Hermite quadrature, minimised over a classifier a (t - theta)."""
        nodes, mass = np.polynomial.hermite_e.hermegauss(80)
        mass, (easy, hard) = mass / mass.sum(), both(s)

        def loss(point: np.ndarray) -> float:
            a, theta = np.exp(point[0]), point[1]
            margins = (-(nodes - self.m - theta) - easy, self.K * nodes + self.m - theta - hard)
            first, second = (mass @ np.logaddexp(0, -a * z) for z in margins)
            return float(first + omega * second)

        return float(minimize(loss, np.zeros(2), options={"gtol": 1e-10}).x[1])

    def sample(self, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """n examples x [n, d] and their classes y, -1 or +1 in turn.

        >>> [part.shape for part in Gaussians().sample(4)]
        [(4, 10), (4,)]
        """
        y = np.where(np.arange(n) % 2, 1.0, -1.0)
        noise = np.random.default_rng(seed).standard_normal((n, int(self.d)))
        return y[:, None] * self.eta + self.sigma * np.where(y > 0, self.K, 1)[:, None] * noise, y


def both(r: Budget) -> tuple[Any, Any]:
    return r if isinstance(r, tuple) else (r, r)


def attacked(x: np.ndarray, y: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    """The worst x' with |x' - x| <= eps in each coordinate, for a linear classifier."""
    return x - eps * y[:, None] * np.sign(w)


def train(x: np.ndarray, y: np.ndarray, eps: float = 0.0,
          loss: str = "logistic") -> tuple[np.ndarray, float]:
    """Adversarial training of sign(w.x + b). The ramp loss, with |w| = 1, nears the 0-1 loss."""
    value, slope = pick(LOSSES, loss, "loss")
    ramp = loss == "ramp"

    def risk(point: np.ndarray, T: float) -> tuple[float, np.ndarray]:
        w, b = point[:-1], point[-1]
        size = np.linalg.norm(w) if ramp else 1.0
        w = w / size
        # the inner maximum: max_x' loss(y (w.x' + b)) = loss(y (w.x + b) - eps |w|_1)
        z = (y * (x @ w + b) - eps * np.abs(w).sum()) / T
        g = slope(z) / (T * len(y))
        by_w = (g * y) @ x - g.sum() * eps * np.sign(w)
        by_w = (by_w - ramp * (by_w @ w) * w) / size  # |w| = 1: only turns of w count
        return float(value(z).mean()), np.append(by_w, g @ y)

    point = np.append(np.full(x.shape[1], x.shape[1] ** -0.5), 0.0)
    for T in (1.0, 0.3, 0.1) if ramp else (1.0,):
        point = minimize(risk, point, args=(T,), jac=True, method="L-BFGS-B").x
    return point[:-1], float(point[-1])


def two_features(eps: float) -> tuple[float, float, float]:
    """A robust feature (mean 1, equal widths) and twenty others (mean 0.25, K = 2), trained with
    budget eps: both standard errors, and the weight a in w = (1, a, ..., a)."""
    def errors(point: np.ndarray, eps: float) -> np.ndarray:
        a, b = point
        signal = (1 - eps) + 20 * a * (0.25 - eps)
        return ndtr(np.array([b - signal, -b - signal]) / np.sqrt(1 + 20 * a**2 * np.array([1, 4])))

    best = minimize(lambda p: errors(p, eps).sum(), [0.2, 0.0], bounds=[(0, None), (None, None)]).x
    return (*errors(best, 0.0), best[0])
