"""Prints what ``scripts/test --changed`` runs: the tests that a change against main can reach.

A file of the package is reached by the tests of its own part of the room, of the parts beside and
above it, and of the rooms above (the order is that of tests/test_layers.py); a file of the tests by
itself, or by those that import it. What looks at all files, tests/test_*.py, is always printed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.places import ROOT, TESTS
from tests.test_layers import PARTS, ROOMS, imports, row

ABOVE = ("conformance", "fuzzing")
"""Folders of tests that look at more than one room."""


def changed_files(base: str) -> list[str]:
    """Returns what differs from where this branch left ``base``, and what git does not have yet."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    start = git("merge-base", base, "HEAD").strip()
    listed = git("diff", "--name-only", start), git("ls-files", "--others", "--exclude-standard")
    return sorted({line for text in listed for line in text.splitlines()})


def reached(files: Iterable[str]) -> list[str]:
    """Returns the folders and files of tests that these files can reach."""
    files, found = list(files), set(TESTS.glob("test_*.py"))
    for file in files:
        match Path(file).with_suffix("").parts:
            case _ if file.endswith(".md"):
                pass
            case ("qdqbridge", room, *inner) if room in ROOMS:
                found |= set(_at_or_above(room, inner[0] if inner else "__init__"))
            case ("qdqbridge", *_):  # below all rooms, or the face of them all
                return ["tests"]
            case ("models", *_) | ("pyproject",) | ("tests", "conftest"):
                return ["tests"]
            case _:
                pass
    found |= _tests_that_import({ROOT / file for file in files if file.startswith("tests/")})
    # pytest runs twice what stands in a list as itself and in its folder.
    paths = sorted(path for path in found if not any(p in found for p in path.parents))
    return [str(path.relative_to(ROOT)) for path in paths if path.exists()]


def _at_or_above(room: str, part: str) -> Iterator[Path]:
    yield from (TESTS / name for name in (*ROOMS[ROOMS.index(room) + 1 :], *ABOVE))
    parts = {name for names in PARTS.get(room, ()) for name in names}
    for entry in (TESTS / room).iterdir():
        lower = entry.stem in parts and row(room, entry.stem) < row(room, part)
        if not lower and (entry.is_dir() or entry.name.startswith("test_")):
            yield entry


def _tests_that_import(changed: set[Path]) -> set[Path]:
    """Returns those of ``changed`` that are tests, and the tests that import one of the others."""
    if not changed:
        return set()
    read = _read()
    found, rest = set[Path](), list(changed)
    while rest:
        path = rest.pop()
        if path in found:
            continue
        found.add(path)
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        rest += [other for other, names in read.items() if name in names]
    return {
        # Files of data, and what a folder's tests share without importing it, are the folder's.
        path if path.name.startswith("test_") and path.suffix == ".py" else path.parent
        for path in found
        if path.name.startswith("test_") or path.suffix != ".py" or path.name == "conftest.py"
    } - {TESTS}


@cache
def _read() -> dict[Path, set[str]]:
    """Returns what each file of the tests imports."""
    return {path: set(imports(path)) for path in TESTS.rglob("*.py")}


if __name__ == "__main__":
    print("\n".join(reached(changed_files(sys.argv[1] if len(sys.argv) > 1 else "main"))))
