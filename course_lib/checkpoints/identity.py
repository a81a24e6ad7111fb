"""What a training is: all that its weights depend on, as plain data with a name for each part.

A checkpoint belongs to a training of equal identity, and new records keep it. Nothing is made from
`repr`, which is for people. Objects are read field by field; a class or function by its source and
by the constants and helpers that the source names.
"""

import ast
import dis
import hashlib
import inspect
import json
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data import Dataset, Split

FORMAT = 2  # counts up when the meaning of a training's state changes
LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "numpy"}  # their source is not read
CONSTANT = (type(None), bool, int, float, str, tuple, frozenset, Tensor, type, FunctionType)
ATOMS = (torch.dtype, torch.device, torch.memory_format, BuiltinFunctionType, ModuleType, PurePath,
         bytes, complex)
HIDDEN = ("func", "args", "keywords", "__func__", "__self__")  # fields of partials and methods


def identity(t: Any) -> dict[str, Any]:
    """What must be equal for a checkpoint to belong to the training `t`, which has not begun."""
    reader, parameters = _Reader(), dict(t.model.named_parameters())
    words = {
        "format": FORMAT, "seed": t.seed, "classes": ", ".join(t.train.classes),
        "the training data": t.train.digest(), "the initial weights": weights(t.model.state_dict()),
        "the frozen parameters": [k for k, p in parameters.items() if not p.requires_grad],
        "channels last": any(p.ndim == 4 and not p.is_contiguous() for p in parameters.values()),
        "autocast": torch.is_autocast_enabled(t.device.type), "model": reader.layers(t.model),
        **{word: reader.plain(getattr(t, word)) for word in ("method", "optim", "validate")}}
    if "epochs" in reader.names:  # otherwise a training can go on for more epochs
        words["epochs"] = t.epochs
    return {**dict(_flat("", words)), **reader.sources, **t.group.identity()}


def sources(thing: Any) -> dict[str, str]:
    """The hash of the source of each class and function that an object consists of."""
    reader = _Reader()
    reader.plain(thing)
    return reader.sources


def layers(model: nn.Module) -> dict[str, Any]:
    """A network module by module, without its weights."""
    return _Reader().layers(model)


def weights(state: Mapping[str, Any]) -> str:
    """sha256 of the tensors of a state_dict, with their names, types and shapes."""
    return _hash([(name, _digest(v)) for name, v in state.items() if isinstance(v, Tensor)])


class _Reader:
    """Turns objects into plain data, and keeps the hash of each source that it comes across."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.names: set[str] = set()  # that the sources use, such as the attribute `epochs`
        self.met: dict[int, Any] = {}  # read classes and functions, and objects being read

    def plain(self, thing: Any, home: str = "") -> Any:
        """`thing` as JSON; `home` is the module of the function that names it, if one does."""
        match thing:
            case None | bool() | int() | str():
                return thing
            case float():
                return float(thing) if math.isfinite(thing) else str(thing)
            case list() | tuple():
                return [self.plain(v, home) for v in thing]
            case set() | frozenset():
                return sorted((self.plain(v, home) for v in thing), key=json.dumps)
            case Mapping():
                return {str(self.plain(k)): self.plain(v, home) for k, v in thing.items()}
            case type() | FunctionType():
                return self.source(thing, home)
        return self.object(thing)

    def object(self, thing: Any) -> Any:
        """An object by its class and fields; data by its hash; a network by layers and weights."""
        match thing:
            case Split():
                return thing.digest()
            case Dataset():
                return [split.digest() for split in (thing.train, thing.val, thing.test)]
            case CodeType():
                return [thing.co_code.hex(), *thing.co_names, *map(self.plain, thing.co_consts)]
            case nn.Module():
                return {**self.layers(thing), "weights": weights(thing.state_dict())}
        if isinstance(thing, Tensor) or hasattr(thing, "tobytes"):  # NumPy's
            return _digest(torch.as_tensor(thing))
        if isinstance(thing, ATOMS):
            return getattr(thing, "__name__", None) or str(thing)
        if id(thing) in self.met:  # a ring
            return type(thing).__name__
        self.met[id(thing)] = thing
        names = {*getattr(thing, "__dataclass_fields__", ()), *getattr(thing, "__dict__", ()),
                 *HIDDEN}
        held = {n: self.plain(getattr(thing, n)) for n in sorted(names) if hasattr(thing, n)}
        del self.met[id(thing)]
        return {"": getattr(thing, "__qualname__", None) or self.source(type(thing)), **held}

    def layers(self, model: nn.Module) -> dict[str, Any]:
        """A network module by module: its class and its settings, such as a dropout's p."""
        return {name: self.source(type(m)) + json.dumps(
            {k: self.plain(v) for k, v in vars(m).items() if k[0] != "_" and k != "training"})
            for name, m in model.named_modules()}

    def source(self, thing: Any, home: str = "") -> str:
        """The name of a class or function. Its source is read if it is no library's, and of this
        library's only what an object is made of, or what the same file holds."""
        module, name = str(thing.__module__), thing.__name__
        library = module.partition(".")[0] in LIBRARIES | {"course_lib" if home else ""}
        if id(thing) not in self.met and (module == home or not library):
            self.met[id(thing)] = thing
            read = self.members if isinstance(thing, type) else self.function
            word = f"the source of {name}"
            self.sources[word] = _hash([self.sources.get(word), read(thing)])
        return name

    def members(self, cls: type) -> list[Any]:
        """A class by its bases, methods and constants; what __init__ does shows in the fields."""
        own = {n: getattr(v, "__func__", getattr(v, "fget", getattr(v, "func", v)))
               for n, v in vars(cls).items() if n == "__call__" or not n.startswith("__")}
        return [[self.plain(base) for base in cls.__bases__], *(
            [n, self.function(v) if isinstance(v, FunctionType) else self.plain(v, cls.__module__)]
            for n, v in own.items() if _constant(n, v))]

    def function(self, f: FunctionType) -> list[Any]:
        """A function by its source without comments, and by what this names and closes over."""
        code = f.__code__
        try:
            text = ast.unparse(_tree(code))
        except (OSError, TypeError, SyntaxError, ValueError, LookupError):  # nobody has its source
            text = self.plain(code)
        self.names |= _names(code)
        used = {n: f.__globals__[n] for n in _names(code, "LOAD_GLOBAL") if n in f.__globals__}
        used |= {"defaults": f.__defaults__, "kwdefaults": f.__kwdefaults__ or None}
        used |= inspect.getclosurevars(f).nonlocals
        return [text, *([n, self.plain(v, f.__module__)] for n, v in sorted(used.items())
                        if _constant(n, v))]


def _tree(code: CodeType) -> ast.AST:
    """A function's source. A lambda's line holds other things, too: it is the innermost lambda in
    whose body all its instructions stand."""
    if code.co_name != "<lambda>":
        return ast.parse(textwrap.dedent(inspect.getsource(code)))
    found = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    begin, end = min((p[0], p[2]) for p in found), max((p[1], p[3]) for p in found)
    return [n for n in ast.walk(ast.parse("".join(inspect.findsource(code)[0])))
            if isinstance(n, ast.Lambda) and (n.body.lineno, n.body.col_offset) <= begin
            and end <= (n.body.end_lineno, n.body.end_col_offset)][-1]


def _constant(name: str, value: Any) -> bool:
    """A list that a function names may be its notebook: only what cannot change is read."""
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    return name.isupper() or frozen or isinstance(value, CONSTANT)


def _names(code: CodeType, operation: str = "") -> set[str]:
    """The names that some code uses: all of them, or those in one kind of operation."""
    inner = [_names(c, operation) for c in code.co_consts if isinstance(c, CodeType)]
    return {str(i.argval) for i in dis.get_instructions(code)
            if i.opname.startswith(operation)}.union(*inner)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Nested settings under one name each.

    >>> dict(_flat("optim", {"lr": 0.1, "drops": []}))
    {'optim.lr': 0.1}
    """
    if isinstance(value, dict):
        for word, inner in value.items():
            yield from _flat(".".join(filter(None, (name, word))), inner)
    elif value is not None and value is not False and value != []:
        yield name, value


def _digest(t: Tensor) -> str:
    raw = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _hash([str(t.dtype), list(t.shape), hashlib.sha256(raw.tobytes()).hexdigest()])


def _hash(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
