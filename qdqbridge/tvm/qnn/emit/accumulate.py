"""Conv, ConvTranspose, Dense, Gemm and MatMul on quantized operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import call_attributes
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Attributes, Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams, static_shape
from qdqbridge.core.ops.attributes import (
    ConvAttrs,
    ConvTransposeAttrs,
    GemmAttrs,
    PoolAttrs,
    ReduceAttrs,
)
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.pooling import fitting
from qdqbridge.core.ops.reduction import (
    REDUCE_MAX,
    REDUCE_MEAN,
    REDUCE_MIN,
    REDUCE_SUM,
    reduction_of,
)
from qdqbridge.core.ops.shapes import broadcast_extents, reaching, span
from qdqbridge.tvm.qnn.emit.emitter import (
    Expr,
    FunctionEmitter,
    fills,
    storage,
    tvm_dtype,
    unsupported,
)
from qdqbridge.tvm.qnn.ranges import accumulator_dtype, magnitude

# ---- the call that a quantized convolution becomes: its name, attributes and layouts -------------


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """How a weight is laid out anew: reshaped, then transposed."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def of(self, weight: Constant) -> Constant:
        """Returns the weight, computed when it is looked at."""
        shape = tuple(self.shape[axis] for axis in self.axes)
        return weight.map(lambda a: np.transpose(a.reshape(self.shape), self.axes), shape=shape)


@dataclass(frozen=True, slots=True)
class ConvolutionCall:
    """A convolution's call.

    Attributes:
        name: Operator name.
        attrs: Attributes but the accumulator's type.
        kernel: How the weight is laid out; None as the graph has it.
        axis: The channel axis of the result.
        height: The axis of extent 1 that makes an image of a sequence.
        lifted: True where data of one spatial axis becomes an image of height 1.
        products: Number of products in a sum.
    """

    name: str
    attrs: dict[str, Any]
    kernel: KernelLayout | None
    axis: int
    height: int
    lifted: bool
    products: int


def convolution(
    emitter: FunctionEmitter,
    node: Node,
    attributes: ConvAttrs | ConvTransposeAttrs,
    shape: tuple[int, ...],
) -> ConvolutionCall:
    """Returns the call of a node whose weight has ``shape``."""
    transposed, last = isinstance(attributes, ConvTransposeAttrs), node in emitter.channels_last
    # Relay's dialect has convolutions of images only.
    lifted = emitter.only_images and len(shape) == 3
    given = shape
    shape = (*shape[:2], 1, shape[2]) if lifted else shape
    rank, group = len(shape) - 2, attributes.group
    geometry = geometry_of(node)
    assert geometry is not None
    attrs = _emit_conv_attrs(attributes, shape, geometry.channels(shape), lifted=lifted)
    kernel = KernelLayout(shape, tuple(range(rank + 2))) if shape != given else None
    if last:
        depthwise = not transposed and geometry.depthwise(shape)
        layout = _kernel_layout(emitter, depthwise=depthwise, transposed=transposed)
        axes = "DHW"[3 - rank :]
        attrs |= {"data_layout": f"N{axes}C", "kernel_layout": layout.replace("HW", axes)}
        kernel = _laid_out(shape, attrs["kernel_layout"], group)
    return ConvolutionCall(
        node.op.qnn.format(rank=rank), attrs, kernel,
        rank + 1 if last else 1, 1 if last else 2, lifted, geometry.terms(shape),
    )  # fmt: skip


def _emit_conv_attrs(
    attributes: ConvAttrs | ConvTransposeAttrs,
    shape: tuple[int, ...],
    channels: int,
    *,
    lifted: bool,
) -> dict[str, Any]:
    def along(values: tuple[int, ...], neutral: int) -> list[int]:
        return [neutral, *values] if lifted else list(values)

    half = len(attributes.pads) // 2
    begin, end = attributes.pads[:half], attributes.pads[half:]
    attrs: dict[str, Any] = {
        "strides": along(attributes.strides, 1),
        "padding": along(begin, 0) + along(end, 0),
        "dilation": along(attributes.dilations, 1),
        "groups": attributes.group,
        "channels": channels,
        "kernel_size": list(shape[2:]),
    }
    if isinstance(attributes, ConvTransposeAttrs):
        attrs["output_padding"] = along(attributes.output_padding, 0)
    return attrs


def _kernel_layout(emitter: FunctionEmitter, *, depthwise: bool, transposed: bool) -> str:
    choose = emitter.variant.kernel_layout
    if choose is not None:
        return choose(depthwise, transposed)
    return "IOHW" if transposed else "HWOI" if depthwise else "HWIO"


def _laid_out(shape: tuple[int, ...], layout: str, group: int) -> KernelLayout | None:
    """Returns how (O, I, H, W), or (I, O, H, W) of a transposed one, becomes ``layout``.

    ``HWOI`` is the depthwise layout (H, W, C, multiplier). Other ranks have other spatial axes.
    """
    rank, axes = len(shape), layout.replace("I", "").replace("O", "")
    if layout in (f"OI{axes}", f"IO{axes}"):
        return KernelLayout(shape, tuple(range(rank))) if rank == 4 else None
    if layout == f"{axes}OI":
        return KernelLayout((group, shape[0] // group, *shape[2:]), (*range(2, rank), 0, 1))
    return KernelLayout(shape, tuple(f"OI{axes}".index(letter) for letter in layout))


# ---- products on hosts whose operators take matrices, or stacks of them, only --------------------


def batches(
    emitter: FunctionEmitter, x: Expr, w: Expr, gemm: GemmAttrs
) -> tuple[Expr, Expr, list[Any]]:
    """Returns operands (B, M, K) and (B, N, K), and the leading extents that B stands for."""
    lead = broadcast_extents(emitter.extents(x)[:-2], emitter.extents(w)[:-2])
    if gemm.trans_a:
        x = _swapped(emitter, x)
    if not gemm.trans_b:
        w = _swapped(emitter, w)
    return _stacked(emitter, x, lead), _stacked(emitter, w, lead), lead


def _swapped(emitter: FunctionEmitter, x: Expr) -> Expr:
    rank = emitter.rank(x)
    return emitter.emit(emitter.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


def _stacked(emitter: FunctionEmitter, x: Expr, lead: list[Any]) -> Expr:
    extents = emitter.extents(x)
    if extents[:-2] != lead:
        x = emitter.emit(emitter.op.broadcast_to(x, [*lead, *extents[-2:]]))
    if len(lead) != 1:
        x = emitter.emit(emitter.op.reshape(x, [math.prod(lead), *extents[-2:]]))
    return x


def quantized_accumulation(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """Emits the integer form; returns None where the operands have none."""
    x, w = node.operand(0), node.operand(1)
    if x.quant is None or w.quant is None or not x.quant.params.per_tensor:
        return None
    if node.op.body is not None:  # steps that could not be nodes
        return None
    if isinstance(node.attributes, ConvAttrs | ConvTransposeAttrs):
        return _convolution(emitter, node, node.attributes)
    if node.op is DENSE:
        return _accumulate_dense(emitter, node)
    return _emit_dense(emitter, node)


def _product_qparams(node: Node) -> tuple[QuantParams, QuantParams]:
    x, w = node.operand(0).quant, node.operand(1).quant
    assert x is not None and w is not None
    return x.params, w.params


def _emit_zero_points_scales(emitter: FunctionEmitter, node: Node) -> list[Expr]:
    """Returns zero points, then scales, of both operands."""
    px, pw = _product_qparams(node)
    return [
        emitter.zero_point(px),
        emitter.number(_kernel_zero_point(emitter, pw)),
        emitter.scale(px),
        emitter.scale(pw),
    ]


def _kernel_zero_point(emitter: FunctionEmitter, params: QuantParams) -> NDArray[np.int32]:
    # Tables of some backends take a number there, and no vector of zeros.
    if emitter.variant.scalar_zero_point and params.symmetric:
        return np.zeros((), np.int32)
    return params.zero_point


def _accumulator(node: Node, products: int) -> str:
    px, pw = _product_qparams(node)
    bias = node.optional(2)
    largest = 0
    if bias is not None and bias.quant is not None and bias.constant is not None:
        # The bias is added to the sum, so that the type has to hold both.
        largest = int(np.abs(bias.constant.numpy().astype(np.int64)).max(initial=0))
    left = magnitude(storage(px), px.zero_point)
    right = magnitude(storage(pw), pw.zero_point)
    return accumulator_dtype(products, left, right, largest)


def _convolution(
    emitter: FunctionEmitter, node: Node, attributes: ConvAttrs | ConvTransposeAttrs
) -> Expr:
    shape = static_shape(node.operand(1).type.shape)
    if shape is None:
        raise unsupported(node, "the extents of its weight are known at run time only")
    form = convolution(emitter, node, attributes, shape)
    x = emitter.value(node.operand(0))
    if form.lifted:
        x = emitter.emit(emitter.op.expand_dims(x, [form.height]))
    w = (
        emitter.value(node.operand(1))
        if form.kernel is None
        else _emit_conv_weight(emitter, node, form)
    )
    attrs = {**form.attrs, "out_dtype": _accumulator(node, form.products)}
    acc = emitter.qnn(form.name, [x, w, *_emit_zero_points_scales(emitter, node)], attrs)
    result = _finish(emitter, node, acc, axis=form.axis)
    return emitter.emit(emitter.op.squeeze(result, [form.height])) if form.lifted else result


def _emit_conv_weight(emitter: FunctionEmitter, node: Node, form: ConvolutionCall) -> Expr:
    """Returns the weight as ``form`` wants it laid out."""
    w = node.operand(1)
    assert form.kernel is not None
    if w.constant is not None:
        return emitter.constant(form.kernel.of(w.constant), w.name)
    spread = emitter.emit(emitter.op.reshape(emitter.value(w), list(form.kernel.shape)))
    return emitter.emit(emitter.op.permute_dims(spread, list(form.kernel.axes)))


def _accumulate_dense(emitter: FunctionEmitter, node: Node) -> Expr:
    w = node.operand(1)
    stored = emitter.value(w) if w.constant is None else emitter.constant(w.constant, w.name)
    return _by_matrix(emitter, node, emitter.value(node.operand(0)), stored)


def _emit_dense(emitter: FunctionEmitter, node: Node) -> Expr:
    """Gemm and MatMul: ``qnn.dense`` of a constant matrix, and of one with scales per channel."""
    attributes, w = node.attributes, node.operand(1)
    gemm = attributes if isinstance(attributes, GemmAttrs) else GemmAttrs()
    one_scale = w.quant is None or _product_qparams(node)[1].per_tensor
    if w.rank != 2 or (w.constant is None and one_scale):
        return _batch_matmul(emitter, node, gemm)
    if w.constant is None:
        stored = emitter.value(w)
        stored = stored if gemm.trans_b else emitter.emit(emitter.op.permute_dims(stored))
    else:
        rows, columns = w.constant.shape
        weight = w.constant
        if not gemm.trans_b:
            weight = weight.map(np.transpose, shape=(columns, rows))
        stored = emitter.constant(weight, w.name)
    x = emitter.value(node.operand(0))
    x = emitter.emit(emitter.op.permute_dims(x)) if gemm.trans_a else x
    return _by_matrix(emitter, node, x, stored, gemm)


def _by_matrix(
    emitter: FunctionEmitter,
    node: Node,
    x: Expr,
    stored: Expr,
    gemm: GemmAttrs | None = None,
) -> Expr:
    """Emits ``qnn.dense`` of ``x`` and a weight of shape (units, K)."""
    extents = emitter.extents(stored)
    # The call states the number of units.
    if not all(isinstance(extent, int) for extent in extents):
        raise unsupported(node, "qnn.dense takes a weight of known extents")
    units, inner = (int(extent) for extent in extents)
    attrs = {"units": units, "out_dtype": _accumulator(node, inner)}
    lead = emitter.extents(x)[:-1]
    # Relay's qnn.dense takes matrices alone; Relax's takes any number of axes before the last.
    flat = emitter.only_matrices and len(lead) != 1
    if flat:
        x = emitter.emit(emitter.op.reshape(x, (-1, inner)))
    acc = emitter.qnn("dense", [x, stored, *_emit_zero_points_scales(emitter, node)], attrs)
    result = _finish(emitter, node, acc, axis=emitter.rank(acc) - 1, gemm=gemm)
    return emitter.emit(emitter.op.reshape(result, (*lead, units))) if flat else result


def _batch_matmul(emitter: FunctionEmitter, node: Node, gemm: GemmAttrs) -> Expr:
    x, w = emitter.value(node.operand(0)), emitter.value(node.operand(1))
    single = [emitter.rank(e) == 1 for e in (x, w)]  # vectors are matrices of one row
    x = emitter.emit(emitter.op.expand_dims(x, [0])) if single[0] else x
    w = emitter.emit(emitter.op.expand_dims(w, [1])) if single[1] else w
    x, w = emitter.aligned([x, w], trailing=2)
    extent = emitter.extents(x)[-2 if gemm.trans_a else -1]
    # As many products as an extent may count: then the sums are int64.
    inner = extent if isinstance(extent, int) else 1 << 31
    attrs = {
        "transpose_a": gemm.trans_a,
        "transpose_b": gemm.trans_b,
        "out_dtype": _accumulator(node, inner),
    }
    lead: list[Any] | None = None
    if emitter.only_matrices:
        x, w, lead = batches(emitter, x, w, gemm)
        attrs = {"out_dtype": attrs["out_dtype"]}
    acc = emitter.qnn("batch_matmul", [x, w, *_emit_zero_points_scales(emitter, node)], attrs)
    result = _finish(emitter, node, acc, axis=emitter.rank(acc) - 1, gemm=gemm)
    if lead is not None and len(lead) != 1:
        result = emitter.emit(emitter.op.reshape(result, (*lead, *emitter.extents(acc)[-2:])))
    if any(single):
        rank = emitter.rank(result)
        axes = [rank - 2 + i for i in range(2) if single[i]]
        result = emitter.emit(emitter.op.squeeze(result, axes))
    return result


def _finish(
    emitter: FunctionEmitter,
    node: Node,
    acc: Expr,
    *,
    axis: int,
    gemm: GemmAttrs | None = None,
) -> Expr:
    """Bias, then requantize into the result's type, or dequantize where it is float."""
    scale = _accumulator_scale(node, 1.0 if gemm is None else gemm.alpha)
    bias, beta = node.optional(2), 1.0 if gemm is None else gemm.beta
    if bias is not None and beta == 1.0 and _in_units(bias, scale):
        assert bias.constant is not None
        array = bias.constant.numpy().astype(emitter.dtype(acc))
        acc, bias = emitter.variant.bias(emitter, acc, array, axis), None
    elif bias is None and emitter.variant.zero_bias and axis >= 0:
        none = np.zeros(emitter.extents(acc)[axis], emitter.dtype(acc))
        acc = emitter.variant.bias(emitter, acc, none, axis)
    result = node.output.quant
    if result is not None and bias is None:
        return emitter.variant.requantize(emitter, acc, scale, axis, result.params)
    zero = emitter.number(np.zeros((), np.int32))
    real = emitter.qnn("dequantize", [acc, emitter.number(scale), zero], {"axis": axis})
    if bias is not None:
        added = _real_bias(emitter, bias, axis, real, beta)
        fitting = emitter.fitted(added, emitter.extents(real))
        real = emitter.emit(emitter.op.add(*emitter.aligned([real, fitting])))
    if result is not None:
        return emitter.quantize(real, result.params)
    return emitter.cast(real, tvm_dtype(node.output.type.dtype))


def _accumulator_scale(node: Node, alpha: float) -> NDArray[np.float32]:
    """Returns the scale of the accumulator, one number or one per channel."""
    px, pw = _product_qparams(node)
    left = px.scale.astype(np.float32)
    if alpha != 1.0:
        left = np.asarray(np.float32(alpha) * left, np.float32)
    scale = np.asarray(left * pw.scale.astype(np.float32), np.float32)
    geometry = geometry_of(node)
    return scale if geometry is None else geometry.spread(scale)


def _in_units(bias: Value, scale: NDArray[Any]) -> bool:
    """True where a bias counts in units of the accumulator's scale, so that it can be added."""
    if bias.constant is None or bias.quant is None:
        return False
    params = bias.quant.params
    if params.storage_dtype is not DType.INT32 or not params.symmetric or params.blocked:
        return False
    own, wanted = np.broadcast_arrays(params.scale.reshape(-1), scale)
    return bool(np.array_equal(own, wanted))


def _real_bias(emitter: FunctionEmitter, bias: Value, axis: int, acc: Expr, beta: float) -> Expr:
    if bias.constant is None:
        real = emitter.cast(emitter.real(bias), "float32")
    else:
        stored = bias.constant.numpy()
        array = stored if bias.quant is None else dequantize(stored, bias.quant.params)
        real = emitter.number(array.astype(np.float32))
    if beta != 1.0:
        real = emitter.emit(emitter.op.multiply(real, emitter.number(np.asarray(beta, np.float32))))
    trailing = emitter.rank(acc) - 1 - axis
    if axis < 0 or not trailing or bias.rank != 1:
        return real
    return emitter.emit(emitter.op.reshape(real, (-1, *([1] * trailing))))


# ---- Convolutions and averages of floats, and the pads of pools ----------------------------------


Emit = Callable[[FunctionEmitter, Node, list[Expr]], Expr]


def window_pads(
    emitter: FunctionEmitter, node: Node, attributes: PoolAttrs, have: list[Any]
) -> tuple[int, ...]:
    """Returns pads under which a pool without ``ceil_mode`` has ONNX's windows.

    ONNX drops a last window that would start in the padding behind the data.
    """
    rank = len(attributes.kernel_shape)
    pads = list(attributes.pads)
    if not attributes.ceil_mode:
        return tuple(pads)
    extents = [have[axis] for axis in emitter.spatial(node, rank + 2)]
    for i in range(rank):
        kernel, stride = attributes.kernel_shape[i], attributes.strides[i]
        dilation = attributes.dilations[i]
        if isinstance(extents[i], int):
            both = (pads[i], pads[rank + i])
            pads[rank + i] = reaching(extents[i], kernel, stride, dilation, both)
        elif pads[rank + i] + stride > span(kernel, dilation):
            raise unsupported(node, "a last window may start in the padding, or may not")
        else:
            pads[rank + i] += stride - 1
    return tuple(pads)


def need_fitting_windows(emitter: FunctionEmitter, node: Node) -> None:
    """Lets a run end with an error where windows of a pool are wider than its padded input.

    Hosts round the number of windows down, to none, where ONNX's runtimes have one.
    """
    attributes = node.attributes
    if not isinstance(attributes, PoolAttrs) or attributes.ceil_mode:
        return
    rank = len(attributes.kernel_shape)
    have = emitter.extents(emitter.value(node.operand(0)))
    have = [have[axis] for axis in emitter.spatial(node, rank + 2)]
    if fitting(attributes, [e if isinstance(e, int) else None for e in have]) != attributes:
        raise unsupported(node, "its windows are wider than its input")
    for i, extent in enumerate(have):
        if not isinstance(extent, int):
            pads = attributes.pads[i] + attributes.pads[rank + i]
            least = span(attributes.kernel_shape[i], attributes.dilations[i]) - pads
            emitter.at_least(extent, least)


def pool(emitter: FunctionEmitter, node: Node, x: Expr, pads: tuple[int, ...]) -> Expr:
    """Emits the host's pool of a node with these pads, which say all about ``ceil_mode``."""
    rank = emitter.rank(x)
    function = emitter.function(node.op.tvm.format(rank=rank - 2))
    unsaid = {"ceil_mode"} if node.op.flow is Flow.AVERAGE else {"ceil_mode", "count_include_pad"}
    window = {k: v for k, v in call_attributes(node.attributes).items() if k not in unsaid}
    return function(x, layout=emitter.layout(node, rank), **window | {"padding": pads})


def _conv(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    x, w = args[0], args[1]
    rank, last = emitter.rank(x) - 2, node in emitter.channels_last
    attrs, function = (
        call_attributes(node.attributes),
        emitter.function(node.op.tvm.format(rank=rank)),
    )
    if last and isinstance(node.attributes, ConvTransposeAttrs):  # TVM's are channels-first only
        permuted = emitter.emit(emitter.op.permute_dims(x, [0, rank + 1, *range(1, rank + 1)]))
        first = emitter.emit(function(permuted, w, **attrs))
        x = emitter.emit(emitter.op.permute_dims(first, [0, *range(2, rank + 2), 1]))
        return _plus(emitter, x, args, 0)
    if last:
        w = emitter.emit(emitter.op.permute_dims(w, [*range(2, rank + 2), 1, 0]))
        letters = "DHW"[3 - rank :]
        attrs |= {"data_layout": f"N{letters}C", "kernel_layout": f"{letters}IO"}
    return _plus(emitter, function(x, w, **attrs), args, 0 if last else rank)


def _plus(emitter: FunctionEmitter, result: Expr, args: list[Expr], trailing: int) -> Expr:
    if len(args) < 3:
        return result
    column = emitter.emit(emitter.op.reshape(args[2], (-1, *([1] * trailing))))
    return emitter.op.add(emitter.emit(result), column if trailing else args[2])


def _average_pool(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.record(PoolAttrs), args[0]
    pads = window_pads(emitter, node, attributes, emitter.extents(x))
    beyond = any(p > q for p, q in zip(pads, attributes.pads, strict=True))
    if attributes.count_include_pad and beyond:
        # The windows of ceil_mode may reach beyond the padding, which does not count.
        ones = emitter.emit(emitter.op.ones_like(x))
        return _counted_pool(emitter, node, x, ones, pads)
    return pool(emitter, node, x, pads)


def _counted_pool(
    emitter: FunctionEmitter, node: Node, x: Expr, ones: Expr, pads: tuple[int, ...]
) -> Expr:
    attributes = node.record(PoolAttrs)
    rank = len(attributes.kernel_shape)
    counted = [min(p, q) for p, q in zip(pads, attributes.pads, strict=True)]
    widths = [0] * (2 * (rank + 2))
    for i, axis in enumerate(emitter.spatial(node, rank + 2)):
        widths[2 * axis : 2 * axis + 2] = [counted[i], counted[rank + i]]
    left = tuple(p - q for p, q in zip(pads, counted, strict=True))
    whole = emitter.emit(emitter.op.nn.pad(x, widths, "constant", 0.0))
    total = emitter.emit(pool(emitter, node, whole, left))
    counts = emitter.emit(emitter.op.nn.pad(ones, widths, "constant", 1.0))
    return emitter.op.divide(total, emitter.emit(pool(emitter, node, counts, left)))


def _wants_some(emitter: FunctionEmitter, node: Node, x: Expr) -> bool:
    """True where hosts divide integers by 0, or give a bound that the result's type has not."""
    if node.op is REDUCE_MEAN:
        return "float" not in emitter.dtype(x)
    quant = node.output.quant
    return node.op in (REDUCE_MAX, REDUCE_MIN) and quant is not None and not fills(quant.params)


def reduction(emitter: FunctionEmitter, node: Node, x: Expr) -> Expr:
    """Emits the host's reduction, of the spatial axes for a global pool."""
    found, have = reduction_of(node, emitter.spatial(node, emitter.rank(x))), emitter.extents(x)
    unset = not (emitter.reduces_nothing or node.op is REDUCE_SUM)
    if unset and any(have[axis] == 0 for axis in found.axes):
        raise unsupported(node, "it reduces no elements, and TVM leaves such a result unset")
    if _wants_some(emitter, node, x):
        for axis in found.axes:
            emitter.at_least(have[axis], 1)
    return emitter.function(node.op.tvm)(x, list(found.axes), found.keepdims)


FLOATING_WINDOWS: dict[type[Attributes], Emit] = {
    ConvAttrs: _conv,
    ConvTransposeAttrs: _conv,
    PoolAttrs: _average_pool,
    ReduceAttrs: lambda emitter, node, args: reduction(emitter, node, args[0]),
}
"""By the record of their attributes."""
