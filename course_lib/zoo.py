"""Names to verified models and their reports.

serialized_models/manifest.json names, for every recipe and seed, a weights file and a record with their sha256.
Bytes are read, hashed, and only then parsed; names, shapes, dtypes and finiteness are checked against the network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from course_lib.errors import CourseError, pick
from course_lib.fairness import Report
from course_lib.models import build

FORMAT = 1
LARGEST = 500_000_000  # bytes: no file of the course comes near


def models_dir() -> Path:
    """$COURSE_MODELS, or serialized_models/ beside the package."""
    return Path(os.environ.get("COURSE_MODELS") or Path(__file__).parent.parent / "serialized_models")


def manifest(root: Path | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """recipe -> seed (as text) -> {"weights": {file, sha256}, "record": {file, sha256}}"""
    path = (root or models_dir()) / "manifest.json"
    if not path.is_file():
        raise CourseError(f"{path} is not there. Clone the repository whole, name its folder by COURSE_MODELS, or run `make models`.")
    content = parse_json(path.read_bytes(), path)
    if content.get("format") != FORMAT or not isinstance(content.get("models"), dict):
        raise CourseError(f"{path} has format {content.get('format')!r}; this library reads {FORMAT}. Update whichever is older.")
    if not all(isinstance(seeds, dict) and all(_seed_row(*row) for row in seeds.items()) for seeds in content["models"].values()):
        raise CourseError(f"{path} is damaged: a recipe's seeds do not name files. Restore it: git checkout {path.name}.")
    return content["models"]


def _seed_row(seed: str, what: Any) -> bool:
    return seed.isdecimal() and isinstance(what, dict) and all(isinstance(file, dict) for file in what.values())


def parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise CourseError(f"{path} is damaged ({type(e).__name__}: {str(e)[:100]}). Restore it: git checkout {path.name}.") from None
    if not isinstance(content, dict):
        raise CourseError(f"{path} holds a {type(content).__name__}, not an object. Restore it: git checkout {path.name}.")
    return content


def entry(name: str, seed: int, root: Path | None = None) -> dict[str, Any]:
    seeds = pick(manifest(root), name, "model")
    if str(seed) not in seeds:
        raise CourseError(
            f"{name} is stored for seeds {', '.join(sorted(seeds))}, not for {seed!r}. Train it: "
            f"python -m course_lib train {name} --seed {seed}"
        )
    return seeds[str(seed)]


def verified(what: Mapping[str, Any], root: Path | None = None) -> bytes:
    """The bytes of a file the manifest names, when they are the bytes it names."""
    root = (root or models_dir()).resolve()
    file, want = what.get("file"), what.get("sha256")
    if not isinstance(file, str) or "\0" in file or not isinstance(want, str) or not (root / file).resolve().is_relative_to(root):
        raise CourseError(
            f"The manifest names {file!r} with sha256 {want!r}; it must be a file inside {root} with its hash. "
            "Restore manifest.json."
        )
    path = root / file
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise CourseError(f"{path} is missing or too large. Restore it (git checkout) or make it again (make models).")
    raw = path.read_bytes()
    if (have := hashlib.sha256(raw).hexdigest()) != want:
        raise CourseError(
            f"{path} is damaged: its sha256 is {have[:12]}…, the manifest says {want[:12]}…. "
            "Restore it (git checkout) or run `make models`."
        )
    return raw


def load_record(name: str, *, seed: int = 0, root: Path | None = None) -> dict[str, Any]:
    """Everything stored of one training: recipe, circumstances, history and reports."""
    what = entry(name, seed, root).get("record", {})
    return parse_json(verified(what, root), Path(str(what["file"])))


def load_model(name: str, *, seed: int = 0, root: Path | None = None) -> nn.Module:
    """A trained model by its recipe's name, verified, in eval mode.

    >>> load_model("exp1/natural").training
    False
    """
    record, raw = load_record(name, seed=seed, root=root), verified(entry(name, seed, root).get("weights", {}), root)
    made = record.get("made_from", {})
    model = build(made.get("model"), classes=len(made.get("classes", ())))
    load_weights(model, raw, name)
    return model.eval()


def load_weights(model: nn.Module, raw: bytes, name: str) -> None:
    """Parse safetensors bytes into a model, refusing what does not fit it."""
    try:
        tensors = safetensors.torch.load(raw)
    except Exception as e:  # the parser's errors have no common family
        raise CourseError(
            f"{name}: the weights cannot be read ({type(e).__name__}: {str(e)[:100]}). "
            "Restore the file or make it again."
        ) from None
    wanted = model.state_dict()
    odd = sorted(set(tensors) ^ set(wanted)) or [k for k, v in wanted.items() if (v.shape, v.dtype) != (tensors[k].shape, tensors[k].dtype)]
    if odd:
        raise CourseError(f"{name}: the weights do not fit {type(model).__name__}: {', '.join(odd[:5])} differ in name, shape or type.")
    if bad := [k for k, v in tensors.items() if v.is_floating_point() and not torch.isfinite(v).all()]:
        raise CourseError(f"{name}: {', '.join(bad[:5])} holds NaN or infinity. Restore the file or make it again.")
    model.load_state_dict(tensors)


def load_report(name: str, *, seed: int = 0, attack: str = "pgd20", eps: float = 8 / 255, root: Path | None = None) -> Report:
    """One stored report of one model on the test set."""
    rows = load_record(name, seed=seed, root=root).get("reports", [])
    for row in rows:
        if row.get("attack") == attack and abs(row.get("eps", -1) - eps) < 1e-6:
            return Report.from_json(row)
    there = ", ".join(f"{r.get('attack')} at {255 * r.get('eps', 0):.3g}/255" for r in rows)
    raise CourseError(f"No report of {name} under {attack} at {255 * eps:.3g}/255 is stored. There is: {there}.")


def load_reports(name: str, *, attack: str = "pgd20", eps: float = 8 / 255, root: Path | None = None) -> list[Report]:
    """The reports of every seed of a recipe."""
    return [load_report(name, seed=int(s), attack=attack, eps=eps, root=root) for s in sorted(pick(manifest(root), name, "model"), key=int)]


def list_models(root: Path | None = None) -> list[dict[str, Any]]:
    """One row a stored model: recipe, seed, file, bytes on disk."""
    base, rows = root or models_dir(), []
    for name, seeds in sorted(manifest(root).items()):
        for seed, what in sorted(seeds.items(), key=lambda kv: int(kv[0])):
            file = what.get("weights", {}).get("file")
            size = (base / file).stat().st_size if file and (base / file).is_file() else 0
            rows.append({"recipe": name, "seed": int(seed), "file": file, "bytes": size})
    return rows


def publish(name: str, seed: int, model: nn.Module | None, record: Mapping[str, Any], root: Path | None = None) -> None:
    """Store weights (if any) and record, then name them in the manifest: a reader sees all of it or none."""
    root = root or models_dir()
    tensors: dict[str, Tensor] = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()} if model else {}
    files = {"record": (f"{name}/seed{seed}.json", (json.dumps(record, indent=1) + "\n").encode())}
    if tensors:
        files["weights"] = (f"{name}/seed{seed}.safetensors", safetensors.torch.save(tensors))
    what = {kind: {"file": file, "sha256": hashlib.sha256(raw).hexdigest()} for kind, (file, raw) in files.items()}
    with locked(root):
        known = manifest(root) if (root / "manifest.json").exists() else {}
        known.setdefault(name, {})[str(seed)] = what
        content = {"format": FORMAT, "models": {n: dict(sorted(s.items())) for n, s in sorted(known.items())}}
        files["manifest"] = ("manifest.json", (json.dumps(content, indent=1) + "\n").encode())
        write_together({root / file: raw for file, raw in files.values()})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write each file beside its place, and only when all are safe rename them in order: a full disk changes nothing."""
    parts: dict[Path, Path] = {}
    path = Path()
    try:
        for path, raw in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as f:
                parts[path] = Path(f.name)
                f.write(raw)
                f.flush()
                os.fsync(f.fileno())
            os.chmod(parts[path], 0o644)
        for path, part in parts.items():
            os.replace(part, path)
    except OSError as e:
        raise _cannot_write(path, e) from None
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _cannot_write(path: Path, e: OSError) -> CourseError:
    return CourseError(f"Cannot write {path} ({e.strerror or e}). Free some space or choose a folder you may write to.")


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """One writer at a time for the manifest."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        f = (root / ".lock").open("w")
    except OSError as e:
        raise _cannot_write(root, e) from None
    with f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
