"""Products that another product stands for: its operands moved, and its result.

The body of such an operator (:mod:`qdqbridge.core.ops.bodies`) has one product of the table in it,
a Conv, ConvTranspose, Dense or MatMul, and operators that move values around that::

    def _of_pixels(a: EinsumAttrs) -> Pattern:
        return ("Conv", "a", ("Unsqueeze", "b", AxesAttrs((2, 3))), POINTWISE)

Moving moves stored integers as well, so that the product is the exact one of its integers. Hosts
are given the steps, each a node of its own (:func:`qdqbridge.tvm.qnn.emit.graph.expanded`) with all
that its row has: a call on integers, a layout, a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import (
    AnyAttributes,
    Array,
    Attributes,
    Contract,
    Flow,
    OnnxOp,
    Operands,
    Operator,
    Pattern,
    Row,
    Types,
    WeightGeometry,
)
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType, Shape, TensorType, ValueType, static_shape
from qdqbridge.core.ops.attributes import AxesAttrs, TransposeAttrs
from qdqbridge.core.ops.bodies import LETTERS, computed, folded, of_any_rank, trimmed
from qdqbridge.core.ops.build import permuted_params
from qdqbridge.core.ops.result_shapes import result_shape
from qdqbridge.errors import GraphError


def product(
    name: str, body: Callable[[Any], Pattern], check: Callable[[Node, Any], Iterator[str]], *,
    attributes: type[AnyAttributes], onnx: tuple[OnnxOp, ...], numerics: str,
    weight: Callable[[Any, int | None], WeightGeometry | None], bias: bool = False,
) -> Row[AnyAttributes]:  # fmt: skip
    """Returns the row of a product that another one stands for.

    Args:
        name: ONNX's name.
        body: The other product with what is moved, from its attributes.
        check: What is wrong with a node.
        attributes: The record of its attributes.
        onnx: How ONNX writes it.
        numerics: The contract in words.
        weight: How its second operand lies, from its attributes and that operand's rank.
        bias: Its third operand is a vector over the channels of its result.
    """
    return Row(
        name=name, flow=Flow.ACCUMULATE, attributes=attributes, compute=computed(body),
        contract=_contract(body), check=check, onnx=onnx, body=of_any_rank(body), weight=weight,
        bias=bias,
        numerics=numerics,
    )  # fmt: skip


def is_by_steps(op: Operator) -> bool:
    """Returns whether a product is one that another stands for."""
    return op.body is not None and op.weight is not None


# ---- the exact product -------------------------------------------------------------------------


def _contract(body: Callable[[Any], Pattern]) -> Contract:
    """Returns the contract of a body: the product's, between moves of stored integers."""

    def contract(
        attributes: Any, operands: Operands, types: Types, results: Types
    ) -> tuple[Array, ...] | None:
        result = results[0]
        if isinstance(result, QuantType) and not result.params.per_tensor:
            return None
        typed = [*zip(operands, types, strict=True), *[(None, None)] * len(LETTERS)]

        def step(
            row: Operator, own: Attributes, values: list[tuple[Array | None, ValueType | None]]
        ) -> tuple[Array | None, ValueType | None]:
            arrays, kinds = [v for v, _ in values], [t for _, t in values]
            if row.flow is Flow.MOVE:
                kind = None if kinds[0] is None else moved_type(row, own, kinds[0])
                found = None if kind is None else row.compute(own, arrays)
                return (None if found is None else found[0]), kind
            unknown = any(kind is None for kind in kinds[:2])
            found = None if unknown or row.contract is None else row.contract(
                own, trimmed(arrays), kinds, results
            )  # fmt: skip
            return (None, None) if found is None else (found[0], result)

        stored = folded(body(attributes), typed, step, no_number)[0]
        return None if stored is None else (stored,)

    return contract


def no_number(value: float) -> Any:
    """Refuses a number in the body of a product."""
    raise GraphError(f"{value} in the body of a product", why="it moves values, and multiplies")


def moved_type(row: Operator, attributes: Attributes, type_: ValueType) -> ValueType | None:
    """Returns the type of a value that is moved.

    Its parameters lie along the axis still that they belong to. None where that is not known.
    """
    shape = _moved_shape(row, attributes, type_.shape)
    if not isinstance(type_, QuantType):
        return TensorType(type_.dtype, shape)
    params = type_.params
    moved = params if params.per_tensor else _moved_params(row, attributes, params, type_.shape)
    return None if moved is None else QuantType(moved, shape)


def _moved_shape(row: Operator, attributes: Attributes, shape: Shape) -> Shape:
    known = static_shape(shape)
    if known is not None:
        return row.compute(attributes, (np.broadcast_to(np.int8(0), known),))[0].shape
    if shape is None:
        return None
    if isinstance(attributes, TransposeAttrs | AxesAttrs):  # extents stay, or are 1
        stand_ins = tuple(2 + axis for axis in range(len(shape)))
        moved = _moved_shape(row, attributes, stand_ins) or ()
        return tuple(1 if size == 1 else shape[stand_ins.index(size)] for size in moved)
    found = result_shape(row.name, attributes, [shape], None)
    dims = [] if found is None else [dim for dim in found if dim is not None]
    return tuple(dims) if found is not None and len(dims) == len(found) else None


def _moved_params(
    row: Operator, attributes: Attributes, params: QuantParams, shape: Shape
) -> QuantParams | None:
    """Returns parameters along an axis, which is looked for where it has gone."""
    known = static_shape(shape)
    if isinstance(attributes, TransposeAttrs):
        return permuted_params(params, attributes.perm)
    if known is None or params.blocked or params.axis is None:
        return None
    count = known[params.axis]
    along = np.arange(count).reshape([-1 if i == params.axis else 1 for i in range(len(known))])
    moved = row.compute(attributes, (np.broadcast_to(along, known),))[0]
    if not moved.size:
        return None
    for axis in range(moved.ndim):
        one = moved[tuple(slice(None) if i == axis else slice(1) for i in range(moved.ndim))]
        if one.size == count and np.array_equal(np.broadcast_to(one, moved.shape), moved):
            return params.with_axis(axis)
    return None
