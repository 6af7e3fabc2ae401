"""Writes docs/operators.md from the operator table and the table of ONNX codecs.

Run as ``python scripts/generators/operator_table.py``; with ``--check`` it only says whether the
page is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.onnx_io.codecs import BY_ROW
from qdqbridge.onnx_io.codecs.codec import OLDEST
from qdqbridge.onnx_io.codecs.table import CODECS
from scripts.generators.generated_page import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
_INTRODUCTION = """\
# Operators

Every row of the operator table (`qdqbridge/core/ops/`), by how quantization flows through it. Made
by `python scripts/generators/operator_table.py`; a test checks that it is current. [What is
supported](support.md) says what happens to operators that are not here, [the numeric
contract](numerics.md) what all of them have in common.

- **ONNX**: the operators that are read as it; one that is only read is in italics. A number is the
  opset that the operator needs, where that is more than {oldest}.
- **QNN**: its call on quantized operands, `qnn.…`; `1d` to `3d` by the number of spatial axes. `–`
  where there is none: what moves values is the host's own operator on the stored integers.
- **forms**: in how many ways of writing it out with other operators it is recognized, and the first
  of them, which a host without the operator is given.
- **contract**: what is computed on quantized operands, and every known difference from onnxruntime.
"""


def page() -> str:
    """Returns the page as it should be."""
    lines = [_INTRODUCTION.format(oldest=OLDEST)]
    for flow in Flow:
        rows = [row for row in OPERATORS if row.flow is flow]
        if rows:
            lines += [f"## {flow.name.capitalize()}: {flow.value}", "", *_table(rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: list[Operator]) -> Iterator[str]:
    yield "| operator | ONNX | QNN | forms | contract |"
    yield "|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: row.name):
        cells = (row.name, _onnx(row), _qnn(row), _forms(row), row.numerics or "–")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _onnx(row: Operator) -> str:
    """Returns ONNX's names, the one that is written first."""
    written = BY_ROW.get(row.name)
    codecs = sorted(
        (codec for codec in CODECS if codec.row == row.name), key=lambda codec: codec is not written
    )
    said: list[str] = []
    for codec in codecs:
        name = f"{codec.domain}.{codec.onnx_name}" if codec.domain else codec.onnx_name
        since = f" {codec.introduced}" if codec.introduced > OLDEST else ""
        said.append(name + since if codec.write is not None else f"*{name}*")
    return ", ".join(dict.fromkeys(said)) or "–"


def _qnn(row: Operator) -> str:
    return f"`qnn.{row.qnn.format(rank='{1,2,3}')}`" if row.qnn else "–"


def _forms(row: Operator) -> str:
    if not row.forms:
        return "–"
    return f"{len(row.forms)}: `{_shown(row.forms[0].pattern)}`"


def _shown(pattern: Pattern) -> str:
    """Returns a form as people write it: operators by name, attributes without their sign."""
    if isinstance(pattern, tuple):
        operator, *operands = pattern
        return f"{operator}({', '.join(map(_shown, operands))})"
    return pattern.removeprefix("#") if isinstance(pattern, str) else f"{pattern:.6g}"


if __name__ == "__main__":
    sys.exit(main(PAGE, page, __doc__))
