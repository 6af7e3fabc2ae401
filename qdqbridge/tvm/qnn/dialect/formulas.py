"""Element-wise operators of two operands as TIR expressions, by the rows of the operator table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.forms import OPERANDS
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim
from qdqbridge.tvm.qnn.dialect.tir import tirx

Number: TypeAlias = "Callable[[float], Prim]"
"""Returns a float32 constant, of as many lanes as the operands have."""
Guard: TypeAlias = "Callable[[Prim], Prim]"
"""Keeps LLVM from fusing a step with what follows."""

STEPS: Mapping[str, Callable[..., Prim]] = {
    "Abs": tirx.abs,
    "Add": lambda a, b: a + b,
    "Ceil": tirx.ceil,
    "Div": lambda a, b: a / b,
    "Floor": tirx.floor,
    "Greater": lambda a, b: a > b,
    "Less": lambda a, b: a < b,
    "Max": tirx.max,
    "Min": tirx.min,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "Sub": lambda a, b: a - b,
    "Where": tirx.Select,
}
"""What TIR computes as one float32 operation, bit for bit as ONNX says."""


def computable(op: Operator) -> bool:
    """Returns whether an operator is a step, or written with nothing but steps."""
    return op.arity == 2 and (op.name in STEPS or _steps_only(op))


def formula(op: Operator, number: Number, guard: Guard) -> Callable[[Prim, Prim], Prim]:
    """Returns an operator of two float32 operands.

    Args:
        op: The operator; :func:`computable` says which.
        number: Makes the constants of its form.
        guard: Goes around every step but the last.
    """
    if op.name in STEPS:
        return STEPS[op.name]

    def compute(a: Prim, b: Prim) -> Prim:
        known = dict(zip(OPERANDS[2], (a, b), strict=True))
        return _computed(op.forms[0].pattern, known, number, guard)

    return compute


def _computed(pattern: Pattern, known: Mapping[str, Prim], number: Number, guard: Guard) -> Prim:
    if isinstance(pattern, str):
        return known[pattern]
    if not isinstance(pattern, tuple):
        return number(float(pattern))
    parts = [_computed(part, known, number, guard) for part in pattern[1:]]
    parts = [
        guard(part) if isinstance(inner, tuple) and inner[0] in _ROUNDED else part
        for part, inner in zip(parts, pattern[1:], strict=True)
    ]
    return STEPS[pattern[0]](*parts)


_ROUNDED = ("Add", "Div", "Mul", "Sub")
"""Steps whose result LLVM could keep unrounded."""


def _steps_only(op: Operator) -> bool:
    return bool(op.forms) and _is_pattern_computable(op.forms[0].pattern)


def _is_pattern_computable(pattern: Pattern) -> bool:
    if not isinstance(pattern, tuple):
        return not isinstance(pattern, str) or not pattern.startswith("#")
    return pattern[0] in STEPS and all(_is_pattern_computable(part) for part in pattern[1:])
