"""Extents of what an Attention of ONNX gives.

ONNX's inference (1.23) takes an open count of keys, or of what is kept of earlier ones, for 0: its
last result had no elements, or as many as there are new keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from onnx import NodeProto, TypeProto

from qdqbridge.graph.symbols import product, quotient, total
from qdqbridge.graph.types import Dim

_Extents: TypeAlias = "tuple[Dim | None, ...]"
_Q, _K, _V, _PAST = 0, 1, 2, 4


def attention_extents(
    node: NodeProto, operands: Sequence[TypeProto | None]
) -> list[_Extents | None]:
    """Returns the extents of the four results: y, the present keys and values, the products.

    Args:
        node: The Attention.
        operands: The types of its operands, None where one is left out.

    Returns:
        An entry for every result that ONNX knows; None where the rank of an operand is unknown.
    """
    given = {attribute.name: attribute.i for attribute in node.attribute}
    query, key, value = (
        _with_heads(_extents(operands, place), given.get(name, 0))
        for place, name in ((_Q, "q_num_heads"), (_K, "kv_num_heads"), (_V, "kv_num_heads"))
    )
    if query is None or key is None or value is None:
        return [None] * 4
    batch, heads, length, _ = query
    count = key[2]
    if len(operands) > _PAST and operands[_PAST] is not None:
        past = _extents(operands, _PAST)
        count = None if past is None or len(past) != len(key) else total([past[2], count])
    result: _Extents = (batch, heads, length, value[3])
    if len(_extents(operands, _Q) or ()) == len(query) - 1:
        result = (batch, length, product([heads, value[3]]))
    return [
        result,
        (batch, key[1], count, key[3]),
        (batch, value[1], count, value[3]),
        (batch, heads, length, count),
    ]


def _extents(operands: Sequence[TypeProto | None], place: int) -> _Extents | None:
    type_ = operands[place] if place < len(operands) else None
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in type_.tensor_type.shape.dim
    )


def _with_heads(extents: _Extents | None, heads: int) -> _Extents | None:
    """Returns batch, heads, length and size, also of heads that lie side by side."""
    if extents is None or len(extents) not in (3, 4):
        return None
    if len(extents) == len(("batch", "heads", "length", "size")):
        return extents
    batch, length, width = extents
    return batch, heads or None, length, quotient(width, heads)


__all__ = ["attention_extents"]
