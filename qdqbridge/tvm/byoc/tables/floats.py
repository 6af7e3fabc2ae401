"""Float operators beside the QNN dialect, for backends that compute them too."""

from __future__ import annotations

from qdqbridge.tvm.byoc import descriptions
from qdqbridge.tvm.byoc.pattern import Anything, CallPattern
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Entry
from qdqbridge.tvm.qnn.read import ROWS

_PAIRS = frozenset(
    (
        "add", "divide", "floor_divide", "greater", "less", "matmul", "maximum", "minimum",
        "multiply", "power", "subtract",
    )
)  # fmt: skip
"""Operators of two operands; TVM's matcher asks some of these for both."""
_PARTS = frozenset(("greater", "less", "nn.leakyrelu"))
"""Operators that are read as parts of others, or under another name."""


def _on_floats(record: Record) -> list[str]:
    floats = record.output.is_float or any(value.is_float for value in record.inputs)
    return [] if floats else ["it works on integers that are no codes"]


FLOATS = tuple(
    Entry(
        f"float_{name.removeprefix('nn.')}",
        CallPattern(name, *(Anything(),) * (2 if name in _PAIRS else 1)),
        descriptions.other,
        _on_floats,
    )
    for name in sorted(ROWS.keys() | _PARTS)
    if not name.startswith("qnn.")
)
"""Single operators that ``read_function`` reads, where they work on floats."""
