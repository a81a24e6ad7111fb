"""A training state as bytes, and back, without pickle.

The bytes are one safetensors file. Each tensor is stored under its path in the state, such as
`['model']['fc1.weight']`; everything else is one JSON text in the header. What reads a file has
checked its sha256, but trusts nothing else: a file may have been made wrongly, or on purpose.
"""

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from course_lib.checkpoints.disk import Damaged
from course_lib.errors import CourseError
from course_lib.files import sha256_of

FORMAT = 2  # 1 was torch.save with a marker file
PLAIN = (int, float, str, bool, type(None))  # and nothing derived: numpy's float64 is a float, too


class SaveError(CourseError, OSError):
    """A checkpoint could not be saved. Earlier ones are unchanged, and training may continue."""


def pack(step: int, about: dict[str, Any], state: dict[str, Any]) -> tuple[str, bytes]:
    """The name of a checkpoint and its bytes. `about` has the run's identity and environment.

    CourseError when the state could not be loaded again; SaveError when its weights diverged.
    """
    tensors: dict[str, Tensor] = {}
    content = {"format": FORMAT, "step": step, "identity": {}, **about,
               "state": _encode(state, tensors)}
    # an unset best loss may be infinite
    for path, tensor in tensors.items():
        if path.startswith("['model']") and not tensor.isfinite().all():
            raise SaveError(f"{path} is NaN or infinite")
    data = safetensors.torch.save(tensors, {"checkpoint": json.dumps(content)})
    return f"ckpt-{step}-{sha256_of(data)}", data


def unpack(data: bytes, step: int) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """(step, about, state) from bytes whose sha256 has been checked; Damaged gives the reason."""
    try:
        tensors = safetensors.torch.load(data)
        # 8 bytes with its length, then the header, which safetensors gives from a file only
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        content = json.loads(header["__metadata__"]["checkpoint"])
        if (content["format"], content["step"]) != (FORMAT, step):
            raise Damaged(f"its name says step {step}, inside it says {content['step']!r} "
                          f"(format {content['format']!r})")
        about = {word: {**content[word]} for word in ("identity", "environment") if word in content}
        state = {**_decode(content["state"], tensors)}
        if tensors or "identity" not in about:
            raise ValueError
    except Damaged:
        raise
    except Exception as error:  # safetensors, and nonsense in its header, fail in a dozen ways
        raise Damaged(f"it does not hold a training state ({type(error).__name__})") from None
    return step, about, state


def load_weights(model: nn.Module, raw: bytes, name: str) -> None:
    """Put safetensors bytes into a model whose tensors have these names, shapes and types."""
    if not isinstance(model, nn.Module):
        raise CourseError(f"model is {model!r:.100}; give a network, such as my_network.")
    try:
        tensors = safetensors.torch.load(raw)
    except Exception as e:  # the parser's errors have no common family
        raise CourseError(f"{name}: the weights cannot be read ({type(e).__name__}: "
                          f"{str(e)[:100]}). Restore the file or make it again.") from None
    given, expected = ({k: (v.shape, v.dtype) for k, v in state.items()}
                       for state in (tensors, model.state_dict()))
    odd = [k for k in sorted(given | expected) if given.get(k) != expected.get(k)
           or not tensors[k].isfinite().all()]
    if odd:
        raise CourseError(f"{name}: the weights do not fit {type(model).__name__}: "
                          f"{', '.join(odd[:5])} differ in name, shape or type, or hold NaN or "
                          "infinity. Restore the file or make it again.")
    model.load_state_dict(tensors)


def _encode(node: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """A state as JSON. Its tensors are copied into `tensors`, so that training may go on.

    Plain values and lists stay as they are. An object is one of {"tensor": [dtype, shape, axes]},
    {"tuple": [...]} and {"dict": [[key, value], ...]}, since keys need not be strings.
    """
    if isinstance(node, Tensor) and node.layout == torch.strided and not node.is_complex():
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
        raise CourseError(
            f"state{path} holds a {type(value).__module__}.{type(value).__name__}; a state holds "
            "dense tensors of real numbers, numbers, strings, None, and dicts, lists and tuples of "
            "them. Turn it into one of these, with float(..), .tolist() or torch.from_numpy(..).")
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
    if [str(tensor.dtype), list(tensor.shape)] != [dtype, shape]:
        raise Damaged(f"the tensor {path[:80]} is not as its header lists it")
    return tensor
