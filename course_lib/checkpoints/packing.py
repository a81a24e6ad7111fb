"""A training state as bytes, and back, without pickle.

The bytes are one safetensors file. Each tensor is stored under its path in the state, such as
`['model']['fc1.weight']`; everything else is one JSON text in the header. What reads a file has
checked its sha256, but trusts nothing else: a file may have been made wrongly, or on purpose.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from course_lib.checkpoints.disk import Damaged, Key
from course_lib.errors import CourseError

FORMAT = 2  # 1 was torch.save with a marker file
MAX_HEADER = 8 << 20  # bytes of everything but the tensors' values: 200,000 numbers of a history
PLAIN = (int, float, str, bool, type(None))  # and nothing derived: numpy's float64 is a float, too
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool)


class SaveError(CourseError, OSError):
    """A checkpoint could not be saved. Earlier ones are unchanged, and training may continue."""


def pack(step: int, identity: dict[str, Any], state: dict[str, Any]) -> tuple[Key, bytes]:
    """A state as bytes, and the name that they hash to.

    CourseError when the state could not be loaded again; SaveError when its weights diverged.
    """
    tensors: dict[str, Tensor] = {}
    content = {"format": FORMAT, "step": step, "identity": identity,
               "state": _encode(state, tensors)}
    if bad := _not_finite(tensors):
        raise SaveError(f"{bad} is NaN or infinite")
    text = json.dumps(content, separators=(",", ":"))
    data = safetensors.torch.save(tensors, {"checkpoint": text})
    if _header_size(data) > MAX_HEADER:
        raise CourseError(f"The state holds more than {MAX_HEADER:,} bytes beside its tensors. "
                          "Keep a long list of numbers as one tensor: torch.tensor(the_list).")
    return Key(step, hashlib.sha256(data).hexdigest()), data


def unpack(data: bytes, key: Key) -> tuple[dict[str, Any], dict[str, Any]]:
    """(identity, state) from bytes whose sha256 has been checked; Damaged gives the reason."""
    try:
        content = _content(data)
        if (content["format"], content["step"]) != (FORMAT, key.step):
            raise Damaged(f"its name says step {key.step}, inside it says {content['step']!r} "
                          f"(format {content['format']!r})")
        tensors = safetensors.torch.load(data)
        if bad := _not_finite(tensors):
            raise Damaged(f"{bad} is NaN or infinite")
        identity, state = {**content["identity"]}, {**_decode(content["state"], tensors)}
        if tensors:
            raise ValueError("a tensor that the text does not list")
    except Damaged:
        raise
    except Exception as error:  # safetensors, and nonsense in its header, fail in a dozen ways
        raise Damaged(f"it does not hold a training state ({type(error).__name__})") from None
    return identity, state


def _header_size(data: bytes) -> int:
    """A safetensors file is 8 bytes with the length of its header, the header, and the values."""
    return int.from_bytes(data[:8], "little")


def _content(data: bytes) -> Any:
    """The JSON text in the header, which safetensors would read from a file only."""
    if (size := _header_size(data)) > MAX_HEADER:
        raise Damaged(f"its header is longer than {MAX_HEADER:,} bytes")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["checkpoint"])


def _encode(node: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """A state as JSON. Its tensors are copied into `tensors`, so that training may go on.

    Plain values and lists stay as they are. An object is one of {"tensor": [dtype, shape, axes]},
    {"tuple": [...]} and {"dict": [[key, value], ...]}, since keys need not be strings.
    """
    if isinstance(node, Tensor) and node.layout == torch.strided and node.dtype in DTYPES:
        copy = node.detach().cpu().clone()
        # optimisers count on channels_last moments beside channels_last weights: keep the order
        axes = sorted(range(copy.dim()), key=lambda axis: -copy.stride()[axis])
        tensors[path] = copy.permute(axes).contiguous()
        return {"tensor": [str(copy.dtype), list(copy.shape), axes]}
    if isinstance(node, dict):
        return {"dict": [[_plain(key, path), _encode(value, tensors, f"{path}[{key!r}]")]
                         for key, value in node.items()]}
    if isinstance(node, list | tuple):
        items = [_encode(value, tensors, f"{path}[{i}]") for i, value in enumerate(node)]
        return {"tuple": items} if isinstance(node, tuple) else items
    return _plain(node, path)


def _plain(value: Any, path: str) -> Any:
    if type(value) not in PLAIN:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise CourseError(
            f"state{path} holds a {kind}; a state holds dense tensors of real numbers, numbers, "
            "strings, None, and dicts, lists and tuples of them. Turn it into one of these, with "
            "float(..), .tolist() or torch.from_numpy(..).")
    return value


def _decode(node: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The state that `_encode` was given; its tensors are taken out of `tensors`."""
    if isinstance(node, list):
        return [_decode(value, tensors, f"{path}[{i}]") for i, value in enumerate(node)]
    if not isinstance(node, dict):
        return node
    ((kind, inside),) = node.items()
    if kind == "dict":
        return {key: _decode(value, tensors, f"{path}[{key!r}]") for key, value in inside}
    if kind == "tuple":
        return tuple(_decode(inside, tensors, path))
    if kind != "tensor":
        raise ValueError(kind)
    stored, (dtype, shape, axes) = tensors.pop(path), inside
    tensor = stored.permute([axes.index(axis) for axis in range(stored.dim())])
    if [str(tensor.dtype), list(tensor.shape), len(axes)] != [dtype, shape, tensor.dim()]:
        raise Damaged(f"the tensor {path[:80]} is not as its header lists it")
    return tensor


def _not_finite(tensors: dict[str, Tensor]) -> str | None:
    """The path of a model weight that is NaN or infinite. Other tensors may be: an unset best loss
    is infinite."""
    for path, tensor in tensors.items():
        if path.startswith("['model']") and not torch.isfinite(tensor).all():
            return path
    return None
