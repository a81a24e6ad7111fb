"""Make datasets/embedded/cifar10/ from the full data set in the cache:

    python -m tools.embed_cifar10
"""

from __future__ import annotations

import hashlib
import io
import json

import torch
from PIL import Image

from course_lib.data import EMBEDDED, load
from course_lib.datasets.cifar10 import CIFAR10, full
from course_lib.datasets.sources import TRAIN_SHARE, stratified

N, ACROSS = 2000, 50


def main() -> None:
    out = EMBEDDED / "cifar10"
    out.mkdir(parents=True, exist_ok=True)
    all_of = {part: full(None, part) for part in ("train", "test")}
    order = stratified(all_of["train"].y, 0)
    cut, n_train = round(TRAIN_SHARE * len(order)), round(TRAIN_SHARE * N)
    train = torch.cat([order[:cut][:n_train], order[cut:][: N - n_train]])
    keep = {"train": train, "test": stratified(all_of["test"].y, 0)[:N].sort().values}
    hashes = {}
    for part, places in keep.items():
        x = all_of[part].x[places].reshape(N // ACROSS, ACROSS, 3, 32, 32).permute(0, 3, 1, 4, 2)
        sheet = io.BytesIO()
        picture = Image.fromarray(x.reshape(N // ACROSS * 32, ACROSS * 32, 3).numpy())
        picture.save(sheet, "WEBP", lossless=True, quality=100, method=6, exact=True)
        for name, raw in ((f"{part}.webp", sheet.getvalue()),
                          (f"{part}-labels", all_of[part].y[places].to(
                              torch.uint8).numpy().tobytes())):
            (out / name).write_bytes(raw)
            hashes[name] = hashlib.sha256(raw).hexdigest()
    words = {"training_indices": "the beginning of both halves of stratified(labels, 0)",
             "test_indices": "its first 2,000, sorted"}
    (out / "contents.json").write_text(json.dumps({"training_images": N, **words, "sha256": hashes},
                                                  indent=1) + "\n")
    small, whole = load("cifar10", limit=N), load("cifar10")
    assert (small.train.x == whole.train.x[: len(small.train)]).all() and (small.val.x
        == whole.val.x[: len(small.val)]).all()
    assert len(small.classes) == len(CIFAR10) and (
        small.test.y.bincount() == N // len(CIFAR10)).all()


if __name__ == "__main__":
    main()
