"""Small constants that a file computes: shapes, bounds and scalars (never weights)."""

from __future__ import annotations

import numpy as np

from qdqbridge.canonical.build import constant, evaluated
from qdqbridge.canonical.decomposed import is_stored
from qdqbridge.canonical.rule import Proposal, Replace, Scope, rule
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node
from qdqbridge.graph.types import static_shape

_SMALL = 4096
# One IEEE operation each, so the constant has the bits that every runtime computes.
_EXACT = frozenset(
    (
        "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil", "Min",
        "Max", "Cast", "Concat",
    )
)  # fmt: skip
_EXACT_FOREIGN = frozenset(
    ("Size", "ConstantOfShape", "Range", "CastLike", "NonZero", "Equal", "Not", "And")
)


@rule("small-constant")
def small_constant(node: Node, scope: Scope) -> Proposal:
    """``op(const…) -> const`` for small operands and operators that are exact everywhere."""
    name = node.op.name.rpartition("::")[2]
    if len(node.outputs) != 1 or (name not in _EXACT and name not in _EXACT_FOREIGN):
        return None
    if _is_part(node, name, scope):
        return None
    for value in node.inputs:
        if value is None:
            continue
        if value.constant is None or value.quant or value.constant.size > _SMALL:
            return None
    size = static_shape(node.output.type.shape)
    if size is None or int(np.prod(size, dtype=np.float64)) > _SMALL:
        return None
    return Replace({node.output: constant(Constant.of(evaluated(node)), None, node.output.name)})


def _is_part(node: Node, name: str, scope: Scope) -> bool:
    """True for what may begin a quantization in float arithmetic: see :mod:`decomposed`."""
    readers = {reader.op.name for reader in scope.readers(node.output)}
    if name == "Cast":
        return is_stored(node.operand(0)) and not readers.isdisjoint(("Sub", "Mul"))
    return name in ("Div", "Mul") and "Round" in readers
