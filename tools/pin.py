"""Write constraints.txt: the versions, in this environment, of all that the course, its extras and
its tests install.

    python -m tools.pin > constraints.txt
"""

from __future__ import annotations

import re
from importlib import metadata

EXTRAS = frozenset({"test", "lab", "autoattack", "cluster"})
HEAD = """\
# The exact versions that `make` and CI use (requirements.txt has the bounds a reader needs).
# Made by: python -m tools.pin
# torch and torchvision stand here together so that one pip call chooses a pair that fits."""


Wanted = tuple[str, frozenset[str]]  # a package and the extras asked of it


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(name: str, extras: frozenset[str] = frozenset()) -> set[Wanted]:
    """What `name` asks for directly, with extras. Markers are not weighed: what is not installed is
    left out later."""
    wanted = set()
    for line in metadata.requires(name) or []:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        found = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?", line)
        if found and (not extra or extra[1] in extras):
            wanted.add((canonical(found[1]), frozenset(re.findall(r"[\w-]+", found[2] or ""))))
    return wanted


def closure(installed: dict[str, str]) -> set[str]:
    """Everything that course-lib with all its extras brings, and the peers that are
    installed by themselves."""
    todo: set[Wanted] = needs("course-lib", EXTRAS) | {
        (name, frozenset()) for name in (
            "torchattacks", "foolbox", "eagerpy", "gitpython", "gitdb", "smmap")}
    seen: set[Wanted] = set()
    while todo:
        wanted = todo.pop()
        if wanted[0] in installed and wanted not in seen:
            seen.add(wanted)
            todo |= needs(*wanted)
    return {name for name, _ in seen}


def main() -> None:
    installed = {canonical(d.name): d.version.split("+")[0] for d in metadata.distributions()
                 if d.name}
    print(HEAD, *(f"{name}=={installed[name]}"
                  for name in sorted(closure(installed) - {"course-lib"})), sep="\n")


if __name__ == "__main__":
    main()
