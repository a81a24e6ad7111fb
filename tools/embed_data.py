"""Make course_lib/datasets/embedded/ from the full data sets in the course's cache: python
tools/embed_data.py"""

from __future__ import annotations

import gzip
import hashlib
import json
import struct

import numpy as np

from course_lib.data import EMBEDDED
from course_lib.datasets.fashion_mnist import SHA256, read_idx, training_folder
from course_lib.datasets.sources import TRAIN_SHARE, stratified

N = 6000


def idx(array: np.ndarray) -> bytes:
    """The bytes of an IDX file."""
    header = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def main() -> None:
    import torch

    place, out = training_folder(), EMBEDDED / "fashion-mnist"
    arrays = {name: read_idx(place / name, sha256) for name, sha256 in SHA256.items()}
    order = stratified(torch.from_numpy(arrays["train-labels-idx1-ubyte.gz"].astype(np.int64)),
                       0).numpy()
    cut, n_train = round(TRAIN_SHARE * len(order)), round(TRAIN_SHARE * N)
    keep = np.concatenate([order[:cut][:n_train], order[cut:][: N - n_train]])
    hashes = {}
    for name, array in arrays.items():
        body = idx(array[keep] if name.startswith("train") else array)
        # without a time stamp, so that the files are the same each time
        (out / name).write_bytes(gzip.compress(body, 9, mtime=0))
        hashes[name] = hashlib.sha256(body).hexdigest()
    contents = {"training_images": N, "training_indices":
                "the beginning of both halves of stratified(labels, 0)", "sha256": hashes}
    (out / "contents.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
