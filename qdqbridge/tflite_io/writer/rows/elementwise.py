"""Element-wise operators, and those that the graph keeps as the file has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import AlphaAttrs, ClipAttrs, GeluAttrs, QuantizeAttrs
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.ops.unary import CLIP, ELU, GELU, LEAKY_RELU
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tflite_io.counterparts import Counterpart, Family, of_families
from qdqbridge.tflite_io.writer.emission import CLAMPS, Emission, WriteRow, WriterRow, written
from qdqbridge.tflite_io.writer.rows import kernels
from qdqbridge.tflite_io.writer.rows.kernels import ACTIVATIONS, stored
from qdqbridge.tflite_io.writer.tensors import TYPE_NAMES, NoCounterpart, extents

# ---- Element-wise operators ----------------------------------------------------------------------


def unary(name: str, options: str = "", version: int = 2) -> WriteRow:
    """Returns the row of an operator with one operand and no options."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        del node
        e.add(name, x[:1], y, options, version if e.integers else 1)

    return write


def arithmetic(name: str, options: str) -> WriteRow:
    """Returns the row of ADD, SUB, MUL or DIV."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        del node
        fields: dict[str, Any] = {"FusedActivationFunction": e.activation}
        version = e.version(x[0])
        if name in ("ADD", "SUB"):
            fields["PotScaleInt16"] = False
            # By LiteRT's own count: int16 came with another version of each operator.
            version = 5 if version == 3 and name == "SUB" else 4 if version == 3 else version
        if name == "MUL" and version == 3:
            version = 4
        e.add(name, x, y, options, version, **fields)

    return write


def extreme(name: str) -> WriteRow:
    """Returns the row of MAXIMUM and MINIMUM, folded from left to right."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        del node
        made = x[0]
        for place, other in enumerate(x[1:], 1):
            after = y[0] if place == len(x) - 1 else e.like(y[0], e.type_of(y[0])[1])
            e.add(name, [made, other], [after], "MaximumMinimumOptions", 2 if e.integers else 1)
            made = after

    return write


def plain_binary(name: str, options: str) -> WriteRow:
    """Returns the row of an operator with two operands and no options."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        del node
        e.add(name, x, y, options, 1)

    return write


def leaky(
    e: Emission, node: Node, attributes: AlphaAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """LEAKY_RELU."""
    del node
    e.add("LEAKY_RELU", x, y, "LeakyReluOptions", 2 if e.integers else 1, Alpha=attributes.alpha)


def elu(
    e: Emission, node: Node, attributes: AlphaAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """ELU of alpha 1."""
    del node
    if attributes.alpha != 1.0:
        raise NoCounterpart(f"its alpha is {attributes.alpha:g}", "TFLite has alpha 1 only")
    e.add("ELU", x, y)


def gelu(
    e: Emission, node: Node, attributes: GeluAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """GELU, by erf or tanh."""
    del node
    tanh = attributes.approximate == "tanh"
    e.add("GELU", x, y, "GeluOptions", 2 if e.integers else 1, Approximate=tanh)


def reciprocal(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """DIV of one."""
    del node
    one = e.constant(np.asarray(1, np.float32), "one")
    e.add("DIV", [one, x[0]], y, "DivOptions", 1)


def clip(
    e: Emission, node: Node, attributes: ClipAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """RELU6, RELU_N1_TO_1 or one or two extremes."""
    low, high = attributes.low, attributes.high
    known: dict[tuple[float | None, float | None], str] = {
        (0.0, 6.0): "RELU6",
        (-1.0, 1.0): "RELU_N1_TO_1",
    }
    if (low, high) in known:
        e.add(known[low, high], x[:1], y)
        return
    steps = [(n, b) for n, b in (("MAXIMUM", low), ("MINIMUM", high)) if b is not None]
    # A Clip without bounds copies; TFLite has no Identity, and its kernels of RESHAPE copy.
    if not steps:
        e.add("RESHAPE", [x[0], e.constant(e.type_of(x[0])[1], "shape")], y, "ReshapeOptions")
        return
    dtype = node.operand(0).type.dtype.numpy if node.operand(0).quant is None else np.float32
    made = x[0]
    for place, (name, bound) in enumerate(steps):
        after = y[0] if place == len(steps) - 1 else e.like(y[0], e.type_of(y[0])[1])
        # Of plain integers a float bound would be another type, which MAXIMUM and MINIMUM refuse.
        limit = e.constant(np.asarray(bound, dtype), "bound")
        e.add(name, [made, limit], [after], "MaximumMinimumOptions")
        made = after


def prelu(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """PRELU."""
    del node
    e.add("PRELU", x, y)


def select(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """SELECT_V2."""
    del node
    e.add("SELECT_V2", x, y, "SelectV2Options")


def composition(
    e: Emission, node: Node, attributes: CompositionAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """The steps, one after the other, on floats."""
    del node
    made = list(x)
    shapes = [e.type_of(index)[1] for index in x]
    for place, step in enumerate(attributes.steps):
        row = e.rows.get(step.op.name)
        if row is None:
            raise NoCounterpart(f"TFLite has no counterpart of {step.op.name} in it")
        shape = _shape_beside_scalars([shapes[i] for i in step.operands])
        last = place == len(attributes.steps) - 1
        after = y[0] if last else e.plain("FLOAT32", shape, step.name or step.op.name.lower())
        named = tuple(
            f"{place}:{axis}" if extent < 0 else extent for axis, extent in enumerate(shape)
        )
        values = [Value(TensorType(DType.FLOAT32, None), "") for _ in step.operands]
        inner = Node(step.op, step.attributes, values, [Value(TensorType(DType.FLOAT32, named))])
        row.write(e, inner, [made[i] for i in step.operands], [after])
        made.append(after)
        shapes.append(shape)


def _shape_beside_scalars(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the shape of a result; scalars beside one tensor."""
    return max(shapes, key=lambda shape: (len(shape), shape))


def quantize(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """QUANTIZE, of floats or of other integers; one that clamps as a Relu does is that Relu."""
    if node.op is REQUANTIZE and e.activation:
        name, version = CLAMPS[e.activation]
        made = x[0]
        # A Relu keeps its operand's type, so that is changed first.
        if e.type_of(made)[0] != e.type_of(y[0])[0]:
            made = e.like(y[0], e.type_of(y[0])[1])
            e.add("QUANTIZE", x[:1], [made], version=2)
        e.add(name, [made], y, version=version)
        return
    if isinstance(node.attributes, QuantizeAttrs) and node.attributes.precision is not None:
        raise NoCounterpart(
            f"it divides in {node.attributes.precision}", "let it divide in float32"
        )
    source = node.operand(0)
    if source.quant is not None and not source.quant.params.per_tensor:
        raise NoCounterpart("LiteRT requantizes with one scale only", "quantize it per tensor")
    real = x[0]
    # TFLite's QUANTIZE takes floats and codes: plain integers are cast first.
    if source.type.dtype is DType.INT32 and source.quant is None:
        real = e.plain("FLOAT32", e.type_of(real)[1], f"{source.name}_float32")
        e.cast(x[0], real)
    e.add("QUANTIZE", [real], y, version=2 if e.type_of(real)[0] != "FLOAT32" else 1)


def dequantize(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """DEQUANTIZE."""
    source = node.operand(0)
    kind = node.output.type.dtype
    if kind is not DType.FLOAT32:
        raise NoCounterpart(f"it gives {kind.label}", "use float32 scales")
    if source.type.dtype is DType.INT32:
        raise NoCounterpart("LiteRT dequantizes no int32", "multiply a Cast by the scale")
    e.add("DEQUANTIZE", x[:1], y, version=2)
    e.reals.setdefault(source, y[0])


def cast(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """CAST."""
    given, made = node.operand(0), node.output
    if given.quant is not None or made.quant is not None:
        raise NoCounterpart("it casts quantized numbers")
    e.cast(x[0], y[0])
    if made.type.dtype not in TYPE_NAMES:
        raise NoCounterpart(f"it casts to {made.type.dtype.label}")


def _always(node: Node) -> bool:
    del node
    return True


def _steep(node: Node) -> bool:
    """HARD_SWISH of int8, whose multiplier to the result may not be 1 or more."""
    if not stored(DType.INT8)(node):
        return False
    x, y = node.operand(0).quant, node.output.quant
    assert x is not None and y is not None
    ratio = float(x.params.scale) / 128 / float(y.params.scale)
    return math.frexp(ratio)[1] <= 0 and ratio > 0


def _slopes(node: Node) -> bool:
    return stored(DType.INT8)(node)


def _elementwise_writer_row(row: Counterpart) -> WriterRow:
    integers = kernels.of_counterpart(row)
    match row.family:
        case Family.UNARY:
            return WriterRow(unary(row.tflite, row.options), integers)
        case Family.ARITHMETIC:
            return WriterRow(arithmetic(row.tflite, row.options), integers, fused=bool(row.stored))
        case Family.EXTREME:
            return WriterRow(extreme(row.tflite), integers)
        case _:
            return WriterRow(plain_binary(row.tflite, row.options), integers)


_FAMILIES = Family.UNARY, Family.ARITHMETIC, Family.EXTREME, Family.BINARY


# ---- Operators that the graph keeps as the file has them: comparisons, logic, indices ------------


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


OPAQUE: Mapping[str, WriterRow] = {
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
"""Of operators without a row of the table."""
ROWS: Mapping[str, WriterRow] = {
    **{row.onnx: _elementwise_writer_row(row) for row in of_families(*_FAMILIES)},
    "Cast": WriterRow(cast, kernels.never),
    "HardSwish": WriterRow(unary("HARD_SWISH", version=1), _steep),
    "PRelu": WriterRow(prelu, _slopes),
    "Reciprocal": WriterRow(reciprocal, kernels.never),
    "Where": WriterRow(select, stored(*ACTIVATIONS, same=True)),
    "dequantize": WriterRow(dequantize, _always),
    "quantize": WriterRow(quantize, _always),
    "requantize": WriterRow(quantize, _always, fused=True),
    **dict(
        (
            written(CLIP, clip, kernels.never),
            written(COMPOSITION, composition, kernels.never),
            written(ELU, elu, kernels.never),
            written(GELU, gelu, stored(DType.INT8)),
            written(LEAKY_RELU, leaky, stored(*ACTIVATIONS)),
        )
    ),
    **OPAQUE,
}
