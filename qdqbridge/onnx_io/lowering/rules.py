"""The rules by which other encodings are read, and how many operands their operators have."""

from __future__ import annotations

from qdqbridge.core.rewrite import Rule, RulesByOperator
from qdqbridge.onnx_io.lowering import (
    elementwise,
    matrix,
    normalization,
    packed_weights,
    qonnx,
    recurrent,
    windows,
)
from qdqbridge.onnx_io.lowering.context import MICROSOFT

ENCODINGS: tuple[Rule, ...] = (
    *windows.RULES,
    *matrix.RULES,
    *elementwise.RULES,
    *packed_weights.RULES,
    *normalization.RULES,
    *recurrent.RULES,
    *qonnx.RULES,
)
"""Every rule, one per operator."""
_RULES = RulesByOperator(ENCODINGS)


def encoding_of(name: str) -> Rule | None:
    """Returns the rule that looks at an operator of a file, by its domain and name."""
    return next(iter(_RULES.of(name)), None)


def is_microsoft(op_type: str) -> bool:
    """True for operators that exist in the domain com.microsoft and are read from there."""
    return encoding_of(f"{MICROSOFT}::{op_type}") is not None
