"""Writes the list of producers' idioms, each of which has tests.

Run as ``python scripts/generators/idioms.py``; with ``--check`` it only says whether the list is
current.
"""

from __future__ import annotations

import argparse
import ast
import csv
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IDIOMS = ROOT / "tests" / "idioms.csv"
TABLE = ROOT / "qdqbridge" / "onnx_io" / "README.md"
_FAMILIES = {
    "A": "How Q, DQ and their parameters are written",
    "B": "Weights",
    "C": "Biases",
    "D": "Convolutions and products",
    "E": "Elementwise operators, residuals, Concat",
    "F": "Fixed ranges",
    "G": "Data-movement operators",
    "H": "Pools and means",
    "I": "Norms, activations, attention",
    "J": "Borders between precisions",
    "K": "QOperator files and contrib operators",
    "L": "Other encodings of the same thing",
}
_INTRODUCTION = """\
# ONNX in and out

A file becomes a raw graph, and a graph becomes a file. The room knows ONNX, and no runtime but
onnxruntime as reference.

| read | for |
|---|---|
| `reading/model_file.py`, `reading/reader.py` | the way in: an untrusted file, read |
| `reading/structure.py`, `inference/` | functions, bodies, order; types and shapes |
| `reading/qdq.py` | the parameters of Q and DQ |
| `lowering/` | rules: other encodings (QOperator, `com.microsoft`, QONNX) as Q and DQ |
| `reading/older_operators.py` | rules: what opsets before 13 say otherwise |
| `codecs/` | a node to the row of its operator, and back: `derived.py` by rows, others compute |
| `opaque/`, `control_flow/` | operators without a row; the bodies of If, Loop and Scan |
| `writer/` | the way out: `nodes.py`; `spec.py` says what, `opset.py` in which opset |
| `runtime/` | onnxruntime with optimizations off, the reference |

To add a codec, see [adding an operator](../../docs/adding_an_operator.md#of-another-family).
Tests: `./scripts/test onnx_io`.

## Learned from onnx/ir-py and onnxscript

- As in ir-py, external tensors are mapped and not copied, and nodes refer to values, not to names.
- As in onnxscript, a rewrite is a pattern, a condition and a replacement.
- ir-py reads a part of the invalid models, to repair them. Here they are refused with place and
  reason: files come from
    strangers. And it is ONNX in memory; here Q and DQ are gone, and one operator is one row
  whatever the opset.

## Idioms

Every way in which a known producer writes quantization. Each has tests: `git grep 'idiom(.*"A5"'
tests` finds those of A5.
Made by `python scripts/generators/idioms.py` from `tests/idioms.csv`.
"""


def idioms() -> dict[str, str]:
    """Returns ``id -> what the idiom is``, in the order of the list."""
    with IDIOMS.open(encoding="utf-8", newline="") as stream:
        return {row["id"]: row["idiom"] for row in csv.DictReader(stream)}


@cache
def held() -> dict[str, list[str]]:
    """Returns ``id -> the tests that are marked with it``."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, test in _marks(ast.parse(path.read_text("utf-8"))):
            place = f"{path.relative_to(ROOT / 'tests').as_posix()}::{test}"
            if place not in found.setdefault(name, []):
                found[name].append(place)
    return found


def _marks(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields ``(id, test)``; marks of parameters belong to the test that names their list."""
    lists = {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        for target in (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        )
        if isinstance(target, ast.Name)
    }
    for node in module.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        for decorator in node.decorator_list:
            named = [lists[n.id] for n in ast.walk(decorator)
                     if isinstance(n, ast.Name) and n.id in lists]  # fmt: skip
            for tree in (decorator, *named):
                yield from ((name, node.name) for name in _ids(tree))


def _ids(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.idiom":
            yield from (a.value for a in call.args if isinstance(a, ast.Constant))


def table() -> str:
    """Returns the text of the README."""
    lines, family = [_INTRODUCTION], ""
    for name, what in idioms().items():
        if name[0] != family:
            family = name[0]
            lines += [f"### {_FAMILIES[family]}", ""]
        lines.append(f"- **{name}** {what}")
        if _last(name):
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _last(name: str) -> bool:
    return f"{name[0]}{int(name[1:]) + 1}" not in idioms()


def main() -> int:
    """Writes or checks the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = table()
    if not parser.parse_args().check:
        TABLE.write_text(text, "utf-8")
        return 0
    if TABLE.is_file() and TABLE.read_text("utf-8") == text:
        return 0
    print("the list of idioms is old: run python scripts/generators/idioms.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
