"""Operators of two operands, functions of one element, and rows: softmax and norms."""

from __future__ import annotations

from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.tvm.byoc import descriptions
from qdqbridge.tvm.byoc.pattern import Anything, CallPattern, ConstantPattern, Pattern
from qdqbridge.tvm.byoc.table import Describe, Entry
from qdqbridge.tvm.byoc.tables.accumulations import FOUR, TWO, clipped

_BINARY = tuple(row.qnn for row in OPERATORS if row.arity == 2)
UNARY_NAMES = (
    *(row.qnn for row in OPERATORS if row.arity == 1 and row.qnn), "relu", "clip", "rsqrt",
)  # fmt: skip
_NORMS = ("layer_norm", "rms_norm", "instance_norm", "group_norm")


def one(name: str, operator: str, describing: Describe, *args: Pattern) -> Entry:
    """Returns an entry of one operator, clamped where the module clamps it."""
    return Entry(name, clipped(CallPattern(operator, *args).named("op")), describing)


_OPERAND = Anything()
BINARY = (
    *(
        one(name, f"qnn.{name}", descriptions.binary, _OPERAND, _OPERAND, *FOUR, *TWO)
        for name in _BINARY
    ),
    one("where", "qnn.where", descriptions.binary, *(_OPERAND,) * 3, *FOUR, *TWO),
)
UNARY = (
    *(one(name, f"qnn.{name}", descriptions.unary, _OPERAND, *FOUR) for name in UNARY_NAMES),
    one("lookup", "qnn.lookup", descriptions.lookup, _OPERAND, ConstantPattern()),
)
ROWS = (
    one("softmax", "qnn.softmax", descriptions.softmax, _OPERAND, *FOUR),
    one("log_softmax", "qnn.log_softmax", descriptions.softmax, _OPERAND, *FOUR),
    *(one(name, f"qnn.{name}", descriptions.normalization) for name in _NORMS),
    one("batch_norm", "qnn.batch_norm", descriptions.normalization),
)
