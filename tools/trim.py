"""python -m tools.trim: of these recipes the weights of seed 0 stay in serialized_models/, those of
the other seeds go.
 So the bundled weights stay below 25 MB. Records, reports and scores of all seeds stay; `python -m
course_lib train RECIPE --seed N` makes the weights again, in runs/.
"""

from __future__ import annotations

from course_lib.zoo import drop_weights, manifest

SEED_0_ONLY = (
    "exp2/control", "exp2/reweight-07", "exp3/remargin-05", "exp3/remargin-07", "exp4/fat",
    "exp4/gairat", "exp4/trades-1",
    "scores/cifar10-standard", "scores/cifar10-robust", "scores/cifar10-static",
)


def main() -> None:
    known = manifest()
    for name in SEED_0_ONLY:
        for seed in sorted(known.get(name, {}).keys() - {"0"}, key=int):
            drop_weights(name, int(seed))


if __name__ == "__main__":
    main()
