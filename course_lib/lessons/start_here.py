"""Exercises of notebook 00: one step of PGD, and the first wrong iterate of a walk."""

from course_lib.attacks import project
from course_lib.lessons.lesson import Exercise, noise

# dark and bright pixels, iterates inside the ball and at its edge, gradients of any size
X, U, V = noise(1, 3, 3, 1, 4, 4)
X = (1.4 * X - 0.2).clamp(0, 1)
PICTURES = [((X + eps * (2 * U - 1)).clamp(0, 1), X, 4 * V - 2, a, eps)
            for eps, a in ((8 / 255, 2 / 255), (0.3, 0.2))]
STEP = Exercise(lambda z, x, g, a, eps: project(z + a * g.sign(), x, eps),
                cases=PICTURES, mistakes={
    "You walk down the loss. An attack wants a larger loss, so the step is added.":
        lambda z, x, g, a, eps: project(z - a * g.sign(), x, eps),
    "PGD steps along the gradient's sign.": lambda z, x, g, a, eps: project(z + a * g, x, eps),
    "The result can leave the ball. No pixel may end further than eps from x.":
        lambda z, x, g, a, eps: (z + a * g.sign()).clamp(0, 1),
    "The result can leave the box. No image has a pixel below 0 or above 1.":
        lambda z, x, g, a, eps: (z + a * g.sign()).clamp(x - eps, x + eps),
    "Each of your steps starts from x. It should start from z, where the last one ended.":
        lambda z, x, g, a, eps: project(x + a * g.sign(), x, eps),
})


def _first_wrong(right: list[bool]) -> int:
    return right.index(False) if False in right else len(right) - 1


WALKS = [([c == "1" for c in walk],) for walk in (
    "1110000", "1111111", "0000000", "1101000", "1111110", "0111111")]
CROSSING = Exercise(_first_wrong, cases=WALKS, mistakes={
    "This counts the right iterates. A walk can become right again after it went wrong.": sum,
    "This is the last right iterate. The next one is wrong.": lambda r: _first_wrong(r) - 1,
    "For a walk that never crosses, this is one too many. The last index is len(right) - 1.":
        lambda r: r.index(False) if False in r else len(r),
    "If the walk never crosses, this is an error. Return K then.": lambda r: r.index(False),
})
