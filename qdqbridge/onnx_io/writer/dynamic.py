"""Roundings whose parameters only the run knows: dynamic products, simulated roundings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantParams, Shape, TensorType
from qdqbridge.core.ops.accumulator import centered
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.dynamic import DYNAMIC_CONV, DYNAMIC_DENSE
from qdqbridge.core.ops.run_time_parameters import FLOAT_CODES, SimulatedAttrs
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs import encode
from qdqbridge.onnx_io.tensors import dtype_to_onnx
from qdqbridge.onnx_io.writer.spec import NodeRow, RowWriter, stem

# ---- dynamic -------------------------------------------------------------------------------------
# Products of activations that are quantized while the model runs, as onnxruntime's tools do it.
#
# ``DynamicQuantizeLinear``, once for all that read its operand; ``MatMulInteger`` or
# ``ConvInteger``, a Cast, the product of both scales, and theirs; and an Add of the bias.
#
# ONNX has no operator for parameters of every row: these are computed step by step, and as
# onnxruntime's MatMulInteger takes one zero point only, what it is times the weights is subtracted
# from sums of codes.


Quantized = tuple[str, str, str]
"""The tensors of codes, scale and zero point."""


def dynamic_rows(writer: RowWriter, node: Node, target: str, type_: TensorType) -> None:
    """Adds the rows of one product.

    Args:
        writer: Where they go.
        node: ``DynamicDense(x, w[N, K], bias[N])``, or ``DynamicConv(x, w, bias)``.
        target: The float tensor to write.
    """
    attributes = DYNAMIC_DENSE.of(node)
    if attributes is not None and attributes.rows:
        row_by_row(writer, node, target, type_)
        return
    codes, scale, zero_point = _dynamic_quantize_once(writer, node.operand(0))
    window = DYNAMIC_CONV.of(node)
    w, points, scales = (_weight_tensors if window is None else _conv_integer_weight)(
        writer, node.operand(1)
    )
    inputs, stated = [codes, w, zero_point, points], None
    if window is not None:
        stated = dict(encode(CONV.name, window, node.inputs, writer.opset).attributes)

    def taken(what: str) -> str:
        return writer.free.take(f"{target}_{what}")

    plain = TensorType(DType.INT32, type_.shape)
    op_type = "MatMulInteger" if window is None else "ConvInteger"
    total = writer.row(op_type, inputs, taken("quantized"), plain, stated, node)
    to = {"to": dtype_to_onnx(DType.FLOAT32)}
    real = writer.row("Cast", [total], taken("cast"), type_, to)
    shape = scales[1]
    both = TensorType(DType.FLOAT32, shape)
    factor = writer.row("Mul", [scale, scales[0]], taken("scales"), both)
    bias = node.optional(2)
    product = target if bias is None else taken("product")
    writer.row("Mul", [real, factor], product, type_)
    if bias is not None:
        writer.row("Add", [product, _added(writer, bias, node, target)], target, type_)


def _dynamic_quantize_once(writer: RowWriter, x: Value) -> Quantized:
    """Returns what DynamicQuantizeLinear makes of a value, which is done once."""
    if x not in writer.dynamic:
        source = writer.real(x, DType.FLOAT32)
        base = stem(source)
        names = [
            writer.free.take(f"{base}_{what}") for what in ("quantized", "scale", "zero_point")
        ]
        name = writer.node_names.take(f"{base}_QuantizeLinear")
        writer.spec.nodes.append(NodeRow("DynamicQuantizeLinear", [source], names, {}, name, ()))
        types = (
            TensorType(DType.UINT8, x.type.shape), TensorType(DType.FLOAT32, ()),
            TensorType(DType.UINT8, ()),
        )  # fmt: skip
        writer.spec.types.update(zip(names, types, strict=True))
        writer.dynamic[x] = (names[0], names[1], names[2])
    return writer.dynamic[x]


def _weight_tensors(writer: RowWriter, w: Value) -> tuple[str, str, tuple[str, tuple[int, ...]]]:
    """Returns the tensors of a weight (K, N), its zero point, and its scale with that shape."""
    assert w.constant is not None and w.quant is not None
    params: QuantParams = w.quant.params
    columns = w.constant.map(np.transpose, shape=w.constant.shape[::-1])
    stored = writer.constant(columns, writer.tensors.of(w))
    base = stem(writer.tensors.of(w))
    points = params.zero_point.astype(params.storage_dtype.numpy)
    scale = params.scale.astype(np.float32)
    return (
        stored, writer.array(points, f"{base}_zero_point"),
        (writer.array(scale, f"{base}_scale"), scale.shape),
    )  # fmt: skip


def _added(writer: RowWriter, bias: Value, node: Node, target: str) -> str:
    """Returns the tensor of a bias, of an image of as many axes, as Hexagon wants it."""
    if node.op is not DYNAMIC_CONV:
        return writer.real(bias, DType.FLOAT32)
    column = (1, -1, *_pixel(node.operand(1)))
    if bias.constant is not None:
        return writer.array(bias.constant.numpy().reshape(column), f"{target}_bias")
    shape = writer.array(np.array(column, np.int64), f"{target}_shape")
    channels = None if bias.type.shape is None else bias.type.shape[0]
    behind = _pixel(node.operand(1))
    type_ = TensorType(DType.FLOAT32, None if channels is None else (1, channels, *behind))
    name = writer.free.take(f"{target}_bias")
    return writer.row("Reshape", [writer.real(bias, DType.FLOAT32), shape], name, type_)


def _conv_integer_weight(
    writer: RowWriter, w: Value
) -> tuple[str, str, tuple[str, tuple[int, ...]]]:
    """As :func:`_weight_tensors`, of a convolution's weight, whose zero points are all the same."""
    assert w.constant is not None and w.quant is not None
    params, name = w.quant.params, writer.tensors.of(w)
    base, scale = stem(name), params.scale.astype(np.float32)
    scale = scale.reshape(1, -1, *_pixel(w)) if scale.ndim else scale
    points = params.zero_point.reshape(-1)
    if (points != points[0]).any():
        raise UnsupportedTargetError(
            "a ConvInteger has one zero point for its weight",
            where=f"tensor '{name}'",
            why="here every channel has one of its own",
            fix="use symmetric weights, or one scale and zero point for the tensor",
        )
    points = points[:1].reshape(()).astype(params.storage_dtype.numpy)
    return (
        writer.constant(w.constant, name), writer.array(points, f"{base}_zero_point"),
        (writer.array(scale, f"{base}_scale"), scale.shape),
    )  # fmt: skip


def _pixel(w: Value) -> list[int]:
    return [1] * ((w.rank or 0) - 2)


# ---- every row by itself ------------------------------------------------------------------------


def row_by_row(writer: RowWriter, node: Node, target: str, type_: TensorType) -> None:
    """Adds the rows of one product whose activation has parameters for every row.

    Args:
        writer: Where they go.
        node: ``DynamicDense(x, w[N, K], bias[N])`` with ``rows``.
        target: The float tensor to write.
    """
    steps = _RowSteps(writer, node, target)
    codes, scale, zero_point = _quantized_rows(steps, node.operand(0))
    w, points, scales = _weight_tensors(writer, node.operand(1))
    none = writer.array(np.zeros((), np.uint8), "no_zero_point")
    total = steps.add("MatMulInteger", [codes, w, none, points], "sums", DType.INT32, type_.shape)
    below = steps.add(
        "Mul",
        [zero_point, _column_sums(writer, node.operand(1))],
        "shift",
        DType.INT32,
        type_.shape,
    )
    exact = steps.add("Sub", [total, below], "quantized", DType.INT32, type_.shape)
    to = {"to": dtype_to_onnx(DType.FLOAT32)}
    real = writer.row("Cast", [exact], steps.name("cast"), type_, to)
    factor = steps.add("Mul", [scale, scales[0]], "scales", DType.FLOAT32, type_.shape)
    bias = node.optional(2)
    product = target if bias is None else steps.name("product")
    writer.row("Mul", [real, factor], product, type_, None, node)
    if bias is not None:
        writer.row("Add", [product, writer.real(bias, DType.FLOAT32)], target, type_)


@dataclass(frozen=True, slots=True)
class _RowSteps:
    """Adds rows whose results are named after one tensor."""

    writer: RowWriter
    node: Node
    stem: str

    def name(self, what: str) -> str:
        return self.writer.free.take(f"{self.stem}_{what}")

    def add(self, op: str, inputs: list[str], what: str, dtype: DType, shape: Shape) -> str:
        type_ = TensorType(dtype, shape)
        return self.writer.row(op, inputs, self.name(what), type_, None, self.node)


def _quantized_rows(steps: _RowSteps, x: Value) -> Quantized:
    """Returns codes, scale and zero point (int32) of every row of a value, computed once."""
    writer = steps.writer
    if x in writer.dynamic_rows:
        return writer.dynamic_rows[x]
    source, shape = writer.real(x, DType.FLOAT32), x.type.shape
    pair = None if shape is None else (*shape[:-1], 1)
    float_, zero = DType.FLOAT32, writer.array(np.zeros((), np.float32), "zero")
    last = writer.array(np.array(255, np.float32), "last_code")
    ends: list[str] = []
    for reduce, bound in (("ReduceMin", "Min"), ("ReduceMax", "Max")):
        end = steps.name(bound.lower())
        attributes: dict[str, Any] = {"keepdims": 1}
        inputs = [source]
        if writer.opset >= 18:
            inputs.append(writer.array(np.array([-1], np.int64), "last_axis"))
        else:
            attributes["axes"] = [-1]
        writer.row(reduce, inputs, end, TensorType(float_, pair), attributes, steps.node)
        ends.append(steps.add(bound, [end, zero], "end", float_, pair))
    low, high = ends
    width = steps.add("Sub", [high, low], "width", float_, pair)
    step = steps.add("Div", [width, last], "step", float_, pair)
    flat = steps.add("Equal", [width, zero], "flat", DType.BOOL, pair)
    one = writer.array(np.ones((), np.float32), "one")
    scale = steps.add("Where", [flat, one, step], "scale", float_, pair)
    below = steps.add("Div", [low, scale], "below", float_, pair)
    place = steps.add("Sub", [zero, below], "place", float_, pair)
    cut = steps.add("Clip", [place, zero, last], "cut", float_, pair)
    point = steps.add("Round", [cut], "point", float_, pair)
    counted = steps.add("Div", [source, scale], "counted", float_, shape)
    whole = steps.add("Round", [counted], "whole", float_, shape)
    shifted = steps.add("Add", [whole, point], "shifted", float_, shape)
    clipped = steps.add("Clip", [shifted, zero, last], "clipped", float_, shape)
    codes, zero_point = steps.name("codes"), steps.name("zero_point")
    for given, made, dtype, extents in (
        (clipped, codes, DType.UINT8, shape), (point, zero_point, DType.INT32, pair),
    ):  # fmt: skip
        to = {"to": dtype_to_onnx(dtype)}
        writer.row("Cast", [given], made, TensorType(dtype, extents), to, steps.node)
    writer.dynamic_rows[x] = (codes, scale, zero_point)
    return writer.dynamic_rows[x]


def _column_sums(writer: RowWriter, w: Value) -> str:
    """Returns the tensor of what a zero point of 1 adds to the sums of codes."""
    assert w.constant is not None and w.quant is not None
    sums = centered(w.constant.numpy(), w.quant.params).astype(np.int64).sum(axis=1)
    return writer.array(sums.astype(np.int32), f"{stem(writer.tensors.of(w))}_sums")


# ---- A simulated rounding as ONNX nodes: an If around Q and DQ whose parameters are tensors ------
# QuantizeLinear and DequantizeLinear store int16, whichever type is simulated: codes are shifted so
# that the smallest one is the smallest int16, and what lies above the largest one is cut off
# before.


_SMALLEST = -(2**15)
_INT16 = 21
"""The opset whose QuantizeLinear stores int16; onnxruntime's own does so at every opset."""
_MICROSOFT = "com.microsoft"


def simulated_row(writer: RowWriter, node: Node) -> None:
    """Adds the row of one ``SimulateQuantization``.

    Args:
        writer: Where it goes.
        node: ``SimulateQuantization(x, code, scale, zero_point, low, high)``.
    """
    names = [writer.stored(node.operand(index)) for index in range(6)]
    output, x = writer.tensors.of(node.output), node.operand(0)
    name = writer.node_names.take(f"{output}_If")
    condition = writer.free.take(f"{names[1]}_condition")
    bool_ = {"to": TensorProto.BOOL}
    writer.spec.nodes.append(NodeRow("Cast", [names[1]], [condition], bool_, f"{name}_Cast"))
    attributes, rank = node.record(SimulatedAttrs), x.rank or 0
    body = _BranchBody(writer, output)
    if attributes.floats:
        body.rounded_to_either(names, attributes.axis, rank)
    else:
        body.rounded(names, attributes.axis, rank)
    other = _BranchBody(writer, output)
    other.add("Identity", [names[0]], "same")
    proto = helper.make_node(
        "If", [condition], [output], then_branch=body.graph(x.rank), else_branch=other.graph(x.rank)
    )
    writer.spec.nodes.append(NodeRow("If", [condition], [output], {}, name, (), proto))
    writer.spec.types[output] = TensorType(node.output.type.dtype, node.output.type.shape)


class _BranchBody:
    """A branch: nodes that read tensors around it, and initializers of the whole model."""

    def __init__(self, writer: RowWriter, stem: str) -> None:
        self._writer, self._stem = writer, stem
        self._nodes: list[NodeProto] = []

    def add(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Adds a node with one result; returns its tensor."""
        output = self._writer.free.take(f"{self._stem}_{name}")
        self._nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def rounded(self, names: Sequence[str], axis: int | None, rank: int) -> None:
        """Adds Q and DQ of what is not above the largest code."""
        x, _, scale, zero_point, low, high = names
        smallest = self._writer.array(np.array(_SMALLEST, np.int32), "smallest_int16")
        reach = self.add("Sub", [high, zero_point], "reach")
        steps = self.add("Cast", [reach], "steps", to=TensorProto.FLOAT)
        largest = self.add("Mul", [steps, scale], "largest")
        depth = self.add("Sub", [low, zero_point], "depth")
        # The zero point is moved so that the lowest code becomes the lowest of int16:
        # QuantizeLinear then saturates there by itself, and only the upper end has to be cut before
        # it.
        shifted = self.add("Sub", [smallest, depth], "shifted")
        zero = self.add("Cast", [shifted], "zero_point", to=TensorProto.INT16)
        if axis is None:
            cut = self.add("Clip", [x, "", largest], "cut")
        else:
            axes = self._writer.array(
                np.array([i for i in range(rank) if i != axis], np.int64), "other_axes"
            )
            cut = self.add("Min", [x, self.add("Unsqueeze", [largest, axes], "bound")], "cut")
        along: dict[str, Any] = {} if axis is None else {"axis": axis}
        if self._writer.opset < _INT16:
            along["domain"] = _MICROSOFT
            self._writer.spec.imports.setdefault(_MICROSOFT, 1)
        codes = self.add("QuantizeLinear", [cut, scale, zero], "codes", **along)
        self.add("DequantizeLinear", [codes, scale, zero], "rounded", **along)

    def rounded_to_either(self, names: Sequence[str], axis: int | None, rank: int) -> None:
        """Adds an If that tells integers from floats, and a branch for each."""
        code = names[1]
        kinds: dict[str, _BranchBody] = {}
        for kind in ("integers", *(dtype.label for dtype in FLOAT_CODES)):
            kinds[kind] = _BranchBody(self._writer, f"{self._stem}_{kind}")
        kinds["integers"].rounded(names, axis, rank)
        found = kinds["integers"]
        for dtype, number in FLOAT_CODES.items():
            kinds[dtype.label].rounded_to_float(dtype, names, axis, rank)
            outer = _BranchBody(self._writer, f"{self._stem}_or_{dtype.label}")
            wanted = self._writer.array(np.array(number, np.int32), f"code_{dtype.label}")
            chosen = outer.add("Equal", [code, wanted], "chosen")
            branches = {
                "then_branch": kinds[dtype.label].graph(rank), "else_branch": found.graph(rank),
            }  # fmt: skip
            outer.add("If", [chosen], "either", **branches)
            found = outer
        self._nodes = found._nodes

    def rounded_to_float(
        self, dtype: DType, names: Sequence[str], axis: int | None, rank: int
    ) -> None:
        """Adds what stores multiples of the scale as a small float, and reads them back."""
        x, scale = names[0], names[2]
        if axis is not None:
            axes = np.array([i for i in range(rank) if i != axis], np.int64)
            scale = self.add("Unsqueeze", [scale, self._writer.array(axes, "other_axes")], "scales")
        steps = self.add("Div", [x, scale], "steps")
        stored = self.add("Cast", [steps], "stored", to=dtype_to_onnx(dtype))
        read = self.add("Cast", [stored], "read", to=TensorProto.FLOAT)
        self.add("Mul", [read, scale], "rounded")

    def graph(self, rank: int | None) -> Any:
        """Returns the branch; its result is that of its last node."""
        name = self._nodes[-1].output[0]
        shape = None if rank is None else [None] * rank
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        return helper.make_graph(self._nodes, f"{self._stem}_branch", [], [result])
