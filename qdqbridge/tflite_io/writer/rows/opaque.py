"""Operators that the graph keeps as the file has them: comparisons, logic, indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tflite_io.counterparts import Family, of_families
from qdqbridge.tflite_io.writer.emission import Emission, WriteRow, WriterRow
from qdqbridge.tflite_io.writer.rows import kernels
from qdqbridge.tflite_io.writer.values import NoCounterpart, extents


def _onnx_integer_attrs(node: Node) -> dict[str, int]:
    """Returns the integer attributes of a node of ONNX's own.

    Raises:
        NoCounterpart: It is of another domain.
    """
    attributes = node.attributes
    if not isinstance(attributes, OpaqueAttrs) or attributes.domain:
        raise NoCounterpart("TFLite has no counterpart")
    return attributes.node.integers()


def plain(name: str, options: str = "") -> WriteRow:
    """Returns the row of an operator that has no attributes."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        if _onnx_integer_attrs(node):
            raise NoCounterpart("it has attributes that TFLite does not have")
        e.add(name, x, y, options)

    return write


def extreme_index(name: str, options: str) -> WriteRow:
    """Returns the row of ARG_MAX and ARG_MIN, which drop their axis."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        given, rank = _onnx_integer_attrs(node), len(extents(node.operand(0)))
        if given.get("keepdims", 1) or given.get("select_last_index", 0):
            raise NoCounterpart("it keeps its axis, or takes the last of equal elements")
        axis = e.constant([given.get("axis", 0) % rank], "axis")
        e.add(name, [x[0], axis], y, options, OutputType=4)

    return write


def modulus(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """FLOOR_MOD, whose sign is the divisor's."""
    if _onnx_integer_attrs(node).get("fmod", 0):
        raise NoCounterpart("its sign is the dividend's")
    e.add("FLOOR_MOD", x, y, "FloorModOptions")


def gather_entries(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """GATHER_ND."""
    if _onnx_integer_attrs(node).get("batch_dims", 0):
        raise NoCounterpart("it has batch axes")
    e.add("GATHER_ND", x, y, "GatherNdOptions")


def cumulated(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """CUMSUM."""
    given, axis = _onnx_integer_attrs(node), _constant_int_operand(node, 1)
    e.add(
        "CUMSUM", [x[0], e.constant(np.asarray(axis, np.int32), "axis")], y, "CumsumOptions",
        Exclusive=bool(given.get("exclusive", 0)), Reverse=bool(given.get("reverse", 0)),
    )  # fmt: skip


def largest(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """TOPK_V2, which goes along the last axis; its indices have 32 bits."""
    given, rank = _onnx_integer_attrs(node), len(extents(node.operand(0)))
    if not given.get("largest", 1):
        raise NoCounterpart("it takes the least", "take the largest of the negated numbers")
    count = e.constant(np.asarray(_constant_int_operand(node, 1), np.int32), "count")
    axis = given.get("axis", -1) % rank
    order = [*(a for a in range(rank) if a != axis), axis]
    moves = axis != rank - 1
    source = e.transposed(x[0], order) if moves else x[0]
    shape = [e.type_of(y[0])[1][a] for a in order]
    values = e.like(y[0], shape) if moves else y[0]
    places, wide = e.plain("INT32", shape, "places"), e.like(y[1], shape) if moves else y[1]
    e.add("TOPK_V2", [source, count], [values, places], "TopKV2Options")
    e.cast(places, wide)
    if moves:
        back = e.constant([order.index(a) for a in range(rank)], "perm")
        e.add("TRANSPOSE", [values, back], [y[0]], "TransposeOptions")
        e.add("TRANSPOSE", [wide, back], [y[1]], "TransposeOptions")


def squares(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """The sum of squares along constant axes, or its root."""
    given, attributes = _onnx_integer_attrs(node), node.record(OpaqueAttrs)
    axes = attributes.node.listed("axes")
    if axes is None:
        raise NoCounterpart("its axes are not constant")
    square, rank = e.like(x[0], e.type_of(x[0])[1]), len(extents(node.operand(0)))
    e.add("MUL", [x[0], x[0]], [square], "MulOptions")
    root = attributes.op_type == "ReduceL2"
    total = e.like(y[0], e.type_of(y[0])[1]) if root else y[0]
    listed = [int(axis) % rank for axis in axes]
    kept = bool(given.get("keepdims", 1))
    e.add("SUM", [square, e.constant(listed, "axes")], [total], "ReducerOptions", KeepDims=kept)
    if root:
        e.add("SQRT", [total], y)


def _constant_int_operand(node: Node, place: int) -> int:
    """Returns an operand that is one constant integer."""
    value = node.operand(place)
    if value.constant is None or value.constant.size != 1:
        raise NoCounterpart("its axis or count is computed while the model runs")
    return int(value.constant.numpy().reshape(()))


ROWS: Mapping[str, WriterRow] = {
    **{
        row.onnx: WriterRow(plain(row.tflite, row.options), kernels.never)
        for row in of_families(Family.COMPARISON, Family.LOGICAL)
    },
    **{
        row.onnx: WriterRow(extreme_index(row.tflite, row.options), kernels.never)
        for row in of_families(Family.INDEX)
    },
    "CumSum": WriterRow(cumulated, kernels.never, own=(1,)),
    "GatherND": WriterRow(gather_entries, kernels.never),
    "Mod": WriterRow(modulus, kernels.never),
    "ReduceL2": WriterRow(squares, kernels.never),
    "ReduceSumSquare": WriterRow(squares, kernels.never),
    "TopK": WriterRow(largest, kernels.never, own=(1,)),
}
