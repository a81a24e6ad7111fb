"""AutoAttack on one LeNet-5: how long, beside torchattacks' AutoAttack, on two cores?
 torchattacks gives its APGD and FAB 10 steps where AutoAttack's authors take 100; it is measured as
it comes, and with the authors' 100. It runs on two threads; ours as `python -m course_lib examine`
runs it, in two processes of one thread each.
"""

from __future__ import annotations

from typing import Any

import joblib
import torch
from torch import Tensor, nn

from benchmarks.harness import EPS, compare, images, main, model, part, usual_model
from course_lib.autoattack import AutoAttack
from course_lib.inference import predict

N, ROUNDS = 128, 1
AS_IT_COMES, EQUAL = ("torchattacks as it comes (10 steps)",
                      "torchattacks with the standard 100 steps")


def subset() -> tuple[Tensor, Tensor]:
    """Images that are right when clean: the others are attacked by nobody."""
    x, y = images(400)
    right = predict(model(), x, y) == y
    return x[right][:N], y[right][:N]


def _half(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    torch.set_num_threads(1)
    return AutoAttack(EPS)(net, x, y)


def ours(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    halves = zip(x.chunk(2), y.chunk(2), strict=True)
    return torch.cat(joblib.Parallel(n_jobs=2)(joblib.delayed(_half)(net, a.clone(), b.clone())
                                               for a, b in halves))


def peer(steps: int | None) -> Any:
    import torchattacks

    attack = torchattacks.AutoAttack(usual_model(model()), eps=EPS, seed=0)
    for one in attack._autoattack.attacks:
        if steps and hasattr(one, "steps"):
            one.steps = steps
    return attack


def times() -> dict[str, Any]:
    x, y = subset()
    robust: dict[str, float] = {}

    def noted(side: str, z: Tensor) -> None:
        robust[side] = float((predict(model(), z, y) == y).float().mean())

    sides = {"this course": lambda: noted("this course", ours(model(), x, y)),
             AS_IT_COMES: lambda: noted(AS_IT_COMES, peer(None)(x, y)),
             EQUAL: lambda: noted(EQUAL, peer(100)(x, y))}
    return {"seconds": compare(sides, ROUNDS), "robust": robust, "images": len(x)}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    raw = part("autoattack", "equal", "times")
    s, n = raw["seconds"], raw["images"]
    rows = [[side, s[side] / n, s[EQUAL] / s[side], s[AS_IT_COMES] / s[side],
             f"{raw['robust'][side]:.1%}"] for side in s]
    head = ["AutoAttack by", "s an image", "times as fast as torchattacks, 100 steps",
            "as it comes, 10 steps"]
    return [*head, "robust of those right when clean"], rows, raw


if __name__ == "__main__":
    main("autoattack", "AutoAttack on LeNet-5, two cores", whole, {"times": times})
