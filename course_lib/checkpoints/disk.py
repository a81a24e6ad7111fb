"""A checkpoint as bytes, and its folders: one on this machine, and the mirror, such as in Drive.

A checkpoint is one file of safetensors, `ckpt-<step>-<sha256>`, and holds no pickle. Each tensor is
stored under its path in the state, such as `['model']['fc1.weight']`; everything else is one JSON
text in the header. The name gives the hash of the bytes, so a file that was cut short or damaged is
recognised and never loaded. What reads a file trusts nothing else: it may have been made wrongly,
or on purpose. The newest checkpoint has the most steps, whatever the clock says.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Container
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn

from course_lib.errors import CourseError
from course_lib.files import sha256_of, within, write_new, write_together

FORMAT = 2  # 1 was torch.save with a marker file
PLAIN = (int, float, str, bool, type(None))  # and nothing derived: numpy's float64 is a float, too
RECORD = "store.json"  # what the checkpoints are of, for people
KEEP = 3  # this many verified ones; older ones are deleted
NAME = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})-([0-9a-f]{64})(?: \([0-9]{1,3}\))?")
T = TypeVar("T")


class Damaged(CourseError):
    """A checkpoint that must not be loaded; the text is the reason."""


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


class Folder:
    """A folder of checkpoints on this machine."""

    patience = 0.0  # seconds without an answer, until training goes on without it; 0 is forever
    bin = False  # does what is deleted fill the quota?

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk: Any = os  # the system calls; tests put a disk here that fails, lies or stops
        self.verified: set[str] = set()  # what this process wrote, or read whole
        self._pending: list[Any] = []  # the call that has had no answer yet

    def answer(self, call: Callable[[], T]) -> T:
        """What a call returns. TimeoutError where the disk is silent; the call may end later, and
        until then every other one is refused at once."""
        return within(self.patience, call, pending=self._pending) if self.patience else call()

    def write(self, name: str, data: bytes) -> None:
        """Write a file so that even after a power cut the old or the new one is complete."""
        write_together({self.path / name: data}, self.disk)
        if os.name != "nt":  # Windows cannot open a folder
            file = self.disk.open(self.path, os.O_RDONLY)
            try:
                self.disk.fsync(file)  # without it a power cut can undo the rename
            finally:
                self.disk.close(file)
        self.verified.add(name)

    def has(self, path: str) -> bool:
        """Is there such a file? Not, as far as is known, where the disk is silent."""
        with suppress(OSError):
            return bool(self.answer(lambda: self.disk.stat(path)))
        return False

    def checkpoints(self) -> list[tuple[int, str]]:
        """The step and name of each checkpoint. Drive may have second copies, "name (1)"."""
        try:
            matches = map(NAME.fullmatch, self.disk.listdir(self.path))
        except FileNotFoundError:
            return []
        return [(int(match[1]), match[0]) for match in matches if match]

    def read(self, name: str) -> bytes:
        """The bytes of a checkpoint; Damaged if they do not hash to its name."""
        with open(self.path / name, "rb", opener=self.disk.open) as file:
            data = file.read()
        if sha256_of(data) not in name:
            raise Damaged(f"its {len(data):,} bytes do not hash to its name: it is damaged")
        self.verified.add(name)
        return data

    def prune(self, mine: Container[str]) -> None:
        """Delete of `mine` what is older than the newest `KEEP` that this process has verified."""
        good: set[str] = set()
        for _, name in sorted(self.checkpoints(), reverse=True):
            if name.partition(" ")[0] not in mine:
                continue
            if len(good) == KEEP:
                with suppress(FileNotFoundError):  # another writer was quicker
                    if self.bin and not os.path.islink(self.path / name):
                        self.disk.truncate(self.path / name, 0)
                    self.disk.unlink(self.path / name)
            elif name in self.verified:
                good.add(name.partition(" ")[0])


class Mirror(Folder):
    """A second folder, slower and less reliable. In Colab it is in Google Drive.

    There a write reaches this machine first and Drive later, a rename proves nothing, a name can
    exist twice, deleted files fill the quota, and at any moment the folder may be full, unreachable
    or gone. So a copy never overwrites a file, is read back, and only then older ones are deleted;
    and training does not wait for a disk that gives no sign of life.
    """

    patience, bin = 60.0, True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with suppress(OSError):  # found when something is written
            self.answer(lambda: self.home)

    @cached_property
    def home(self) -> tuple[Path, int]:
        """A folder that Drive made, and its disk."""
        home = next(parent for parent in self.path.absolute().parents if parent.is_dir())
        return home, home.stat().st_dev

    def write(self, name: str, data: bytes) -> None:
        """Write a file without overwriting any, and read it back. OSError when it differs.

        Every step may be repeated. A damaged file that has the name stays; the bytes go beside it.
        """
        home, its_disk = self.home
        if os.stat(home).st_dev != its_disk:  # an unmounted Drive is a local folder
            raise OSError(errno.ENOTCONN, f"{home} is not there any more")
        self.disk.makedirs(self.path, exist_ok=True)
        for copy in (name, f"{name} (1)", f"{name} (2)"):
            with suppress(FileExistsError):  # from an earlier try, perhaps a good one
                write_new(self.path / copy, data, self.disk)
            with suppress(Damaged):
                self.read(copy)
                return
        raise OSError(errno.EIO, "a file does not read back as it was written")
