"""Make course_lib/datasets/embedded/ from the full data sets in the course's cache: python
tools/embed_data.py"""

from __future__ import annotations

import gzip
import hashlib
import json
import struct

import numpy as np

from course_lib.data import EMBEDDED, TRAIN_SHARE, stratified
from course_lib.datasets.fashion_mnist import FASHION_MD5, read_idx, training_folder

N = 6000


def idx(array: np.ndarray) -> bytes:
    """The bytes of an IDX file, compressed without a time stamp so that they are the same each
    time."""
    header = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes(), 9, mtime=0)


def main() -> None:
    import torch

    place, out = training_folder(), EMBEDDED / "fashion-mnist"
    arrays = {name: read_idx(place, name) for name in FASHION_MD5}
    order = stratified(torch.from_numpy(arrays["train-labels-idx1-ubyte"].astype(np.int64)),
                       0).numpy()
    cut, n_train = round(TRAIN_SHARE * len(order)), round(TRAIN_SHARE * N)
    keep = np.concatenate([order[:cut][:n_train], order[cut:][: N - n_train]])
    hashes = {}
    for name, array in arrays.items():
        body = idx(array[keep] if name.startswith("train") else array)
        (out / f"{name}.gz").write_bytes(body)
        hashes[f"{name}.gz"] = hashlib.sha256(body).hexdigest()
    contents = {"training_images": N, "training_indices":
                "the beginning of both halves of stratified(labels, 0)", "sha256": hashes}
    (out / "contents.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
