"""A training state to bytes and back, trusting nothing that the bytes say.
 The bytes are torch.save's. What reads them has been handed the right bytes (their sha256 matched),
so what is left to fear is a file that was made wrongly, or on purpose: a header of 200,000 entries,
a tensor of four bytes that claims a terabyte, a storage that is declared longer than its record
(torch.load would read past its end), weights that are NaN.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checkpoints.disk import Damaged, Key
from course_lib.errors import CourseError

FORMAT = 1
MAX_RECORDS = 20_000  # tensors in a checkpoint; the largest network of the course has some hundreds
MAX_HEADER = 2 << 20  # everything but the tensors' values: 200,000 numbers of a history fit
MAX_DEPTH = 50
# the opcodes of a storage's five words
ATOMS = ("BINUNICODE", "GLOBAL", "BININT", "BININT1", "BININT2", "LONG1")
ITEM_SIZES = {"Byte": 1, "Char": 1, "Bool": 1, "Untyped": 1, "Short": 2, "Half": 2, "BFloat16": 2,
              "Int": 4, "Float": 4}
ITEM_SIZES |= {"Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16}
PLAIN = (int, float, str, type(None))  # and bool, which is an int


class SaveError(CourseError, OSError):
    """A checkpoint could not be saved. The ones before it are as they were, and training may go
    on."""


class Packed(NamedTuple):
    """A checkpoint ready for a disk."""

    key: Key
    data: bytes
    marker: bytes


def pack(step: int, identity: dict[str, Any], state: dict[str, Any]) -> Packed:
    """Bytes, their name and their marker. CourseError for a state that could not be loaded again,
    SaveError for a diverged one."""
    copy = _snapshot(state)
    if bad := not_finite(copy):
        raise SaveError(f"{bad} is NaN or infinite")
    file = io.BytesIO()
    torch.save({"format": FORMAT, "step": step, "identity": identity, "state": copy}, file)
    data = file.getvalue()
    if (extra := len(data) - sum(tensor.nbytes for _, tensor in _tensors(copy))) > MAX_HEADER:
        raise CourseError(
            f"Beside its tensors the state takes {extra:,} bytes, and at most {MAX_HEADER:,} are "
            "loaded again. "
            "Keep long lists of numbers as one tensor each: torch.tensor(the_list)."
        )
    key = Key(step, hashlib.sha256(data).hexdigest())
    marker = {"step": step, "sha256": key.sha, "bytes": len(data), "tensors": spec(copy)}
    return Packed(key, data, json.dumps(marker).encode())


def unpack(data: bytes, key: Key, marker: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(identity, state) from bytes whose sha256 has been checked. Damaged, with the reason, for
    anything odd."""
    _check_zip(data)
    try:
        whole = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # torch.load raises a dozen kinds on bad bytes
        raise Damaged(f"torch cannot read it ({type(error).__name__})") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("state"),
                                                     dict) or not isinstance(whole.get("identity"),
                                                             dict):
        raise Damaged("it holds something else than a training state")
    if (whole.get("format"), whole.get("step")) != (FORMAT, key.step):
        raise Damaged(f"its name says step {key.step}, inside it says {whole.get('step')!r} "
                      f"(format {whole.get('format')!r})")
    state = whole["state"]
    for path, tensor in _tensors(state):
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            raise Damaged(f"{path} claims {tensor.nbytes:,} bytes and has "
                          f"{tensor.untyped_storage().nbytes():,}")
    if spec(state) != marker["tensors"]:
        raise Damaged("its tensors are not those its marker lists")
    if bad := not_finite(state):
        raise Damaged(f"{bad} is NaN or infinite")
    return whole["identity"], state


def spec(state: dict[str, Any]) -> dict[str, list[Any]]:
    """Path to [dtype, shape] for every tensor of a state.

    >>> spec({"model": {"w": torch.zeros(2, 3)}, "epoch": 4})
    {"['model']['w']": ['torch.float32', [2, 3]]}
    """
    return {path: [str(tensor.dtype), list(tensor.shape)] for path, tensor in _tensors(state)}


def not_finite(state: dict[str, Any]) -> str | None:
    """The path of a model weight that is NaN or infinite. Other tensors may be: an unset best loss
    is infinite."""
    for path, tensor in _tensors(state.get("model"), "['model']"):
        if (tensor.is_floating_point() or tensor.is_complex()) and not torch.isfinite(tensor).all():
            return path
    return None


def _tensors(node: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    return ((where, leaf) for where, leaf in _leaves(node, path, 0) if isinstance(leaf, Tensor))


def _leaves(node: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    if depth > MAX_DEPTH:
        raise Damaged(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}[{key!r}]", depth + 1)
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from _leaves(value, f"{path}[{i}]", depth + 1)
    else:
        yield path, node


def _snapshot(node: Any, path: str = "state", depth: int = 0) -> Any:
    """A copy of plain values and of CPU tensors that own their memory, so that the training may go
    on."""
    if depth > MAX_DEPTH:
        raise CourseError(f"The state is nested more than {MAX_DEPTH} deep, at {path[:80]}... Does "
                          "it contain itself?")
    if isinstance(node, Tensor) and node.layout == torch.strided:
        return node.detach().cpu().clone()
    if isinstance(node, dict):
        for key in node:
            _check_plain(key, path)
        return {key: _snapshot(value, f"{path}[{key!r}]", depth + 1) for key, value in node.items()}
    if isinstance(node, list | tuple):
        copy = [_snapshot(value, f"{path}[{i}]", depth + 1) for i, value in enumerate(node)]
        return tuple(copy) if isinstance(node, tuple) else copy
    return _check_plain(node, path)


def _check_plain(value: object, path: str) -> object:
    # not isinstance: numpy's float64 is a float, and cannot be loaded again
    if type(value) not in (*PLAIN, bool):
        raise CourseError(
            f"{path} holds a {type(value).__module__}.{type(value).__name__}; a state holds "
            "tensors, numbers, strings, None, "
            "and dicts, lists and tuples of them. Turn it into one of these, with float(..), "
            ".tolist() or torch.from_numpy(..)."
        )
    return value


def _check_zip(data: bytes) -> None:
    """Look at the directory before torch does: how many records, none compressed, no storage longer
    than its record."""
    # each record's entry begins so: counted before anything is parsed
    if data.count(b"PK\x01\x02") > MAX_RECORDS:
        raise Damaged(f"its header has more than {MAX_RECORDS:,} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            records = {entry.filename: entry for entry in archive.infolist()}
            if len(records) != len(archive.infolist()):
                raise Damaged("two of its records have one name")
            if any(e.compress_type or e.compress_size != e.file_size or e.file_size > len(data)
                   for e in records.values()):
                raise Damaged("its records are compressed, which torch.save never does")
            pickles = [name for name in records if name.endswith("/data.pkl")]
            if len(pickles) != 1 or records[pickles[0]].file_size > MAX_HEADER:
                raise Damaged(f"its header is missing, double, or longer than {MAX_HEADER:,} bytes")
            header = archive.read(pickles[0])
    except Damaged:
        raise
    except Exception as error:  # zipfile, too, has many kinds
        raise Damaged(f"it is not an archive of torch.save ({type(error).__name__})") from None
    prefix = pickles[0].removesuffix("data.pkl")
    for name, size in _declared(header):
        record = records.get(f"{prefix}data/{name}")
        if record is None or record.file_size != size:
            raise Damaged(f"it declares a storage of {size:,} bytes whose record has "
                          f"{record.file_size if record else 0:,}")


def _declared(header: bytes) -> list[tuple[object, int]]:
    """(record, bytes) of every storage the header asks for, read off its opcodes; nothing in it is
    run.

    torch.save writes each as MARK 'storage' type record device elements TUPLE BINPERSID, and what
    is written otherwise is refused.
    """
    found: list[tuple[object, int]] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an opcode that Python warns of is none of torch.save's
            for kind, record, elements in _storages(header):
                found.append((record, elements * _item_size(kind)))
                if len(found) > MAX_RECORDS:
                    break
    except Exception as error:  # nonsense fails in many ways
        raise Damaged(f"its header is not one of torch.save ({type(error).__name__})") from None
    if len(found) > MAX_RECORDS:
        raise Damaged(f"its header has more than {MAX_RECORDS:,} entries")
    return found


def _storages(header: bytes) -> Iterator[tuple[str, object, int]]:
    recent: list[Any] = []  # what stands since the last MARK
    memo: dict[Any, Any] = {}
    for opcode, arg, _ in pickletools.genops(header):
        if opcode.name in ("BINPUT", "LONG_BINPUT"):
            memo[arg] = recent[-1] if recent else None
        elif opcode.name == "BINPERSID":
            word, kind, record, _, elements, end = recent
            if (word, end, type(elements)) != ("storage", "TUPLE", int):
                raise ValueError(word)
            yield kind, record, elements
        elif opcode.name == "MARK":
            recent = []
        elif len(recent) < 7:
            recent.append(memo[arg] if opcode.name in ("BINGET", "LONG_BINGET") else arg
                          if opcode.name in ATOMS else opcode.name)


def _item_size(kind: str) -> int:
    """'torch FloatStorage' to 4"""
    module, _, name = kind.partition(" ")
    if module not in ("torch", "torch.storage"):
        raise ValueError(kind)
    return ITEM_SIZES[name.removesuffix("Storage")]
