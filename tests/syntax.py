"""The package's files and their syntax trees, each parsed once for all tests that look at them."""

import ast
from functools import cache
from pathlib import Path

from tests.places import ROOT

PACKAGE = ROOT / "qdqbridge"
FILES = tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))
