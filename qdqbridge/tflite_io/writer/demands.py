"""What TFLite demands of a graph: rules that rewrite it until TFLite can say it.

They are written as the canonical rules are, and run before the layout is planned. Most change no
number; those that round once more say so in their notes, which ``export`` shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qdqbridge.canonical.bias import derived_params
from qdqbridge.canonical.build import (
    constant,
    dequantized,
    quantized,
    requantized,
    result,
    retyped,
)
from qdqbridge.canonical.rule import Proposal, Replace, Rule, Scope, rule, stored_behind
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node, Note, Value
from qdqbridge.graph.numerics import dequantize, quantize
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import QuantType, TensorType, ValueType
from qdqbridge.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    PadAttrs,
    PoolAttrs,
    SliceAttrs,
    SplitAttrs,
)
from qdqbridge.ops.elementwise import WHERE
from qdqbridge.ops.pooling import AVERAGE_POOL, MAX_POOL
from qdqbridge.ops.table import BY_NAME
from qdqbridge.ops.windows import span
from qdqbridge.tflite_io.writer.rows.elementwise import SIGMOID_RESULTS, TANH_RESULTS
from qdqbridge.tflite_io.writer.rows.kernels import activation, product
from qdqbridge.tflite_io.writer.rows.padding import padding_of
from qdqbridge.tflite_io.writer.rows.products import transposed_padding
from qdqbridge.tflite_io.writer.rows.windows import LOG_SOFTMAX_RESULTS, SOFTMAX_RESULTS

_FIXED = {
    "Softmax": SOFTMAX_RESULTS,
    "LogSoftmax": LOG_SOFTMAX_RESULTS,
    "Sigmoid": SIGMOID_RESULTS,
    "Tanh": TANH_RESULTS,
}
_WINDOWS = ("Conv", "MaxPool", "AveragePool")


@rule("prescribed-result", *_FIXED)
def prescribed_result(node: Node, scope: Scope) -> Proposal:
    """``Softmax(x) -> requantize(Softmax(x))``: TFLite prescribes scale and zero point."""
    del scope
    x, quant = node.operand(0), node.output.quant
    if not activation(x) or quant is None:
        return None
    kinds = {params.storage_dtype: params for params in _FIXED[node.op.name]}
    wanted = kinds.get(x.type.dtype)
    if wanted is None or quant.params.widened() == wanted:
        return None
    made = retyped(node, node.inputs, QuantType(wanted, node.output.type.shape), "")
    value = requantized(made, quant.params, node.origin, node.output.name)
    reason = (
        f"TFLite's {node.op.name} gives the scale {float(wanted.scale):g} and the zero point "
        f"{int(wanted.zero_point)}; its result is rounded once more into its own"
    )
    return Replace({node.output: value}, (Note("prescribed-result", node.name, reason),))


@rule("result-as-operand", "AveragePool", "Resize")
def result_as_operand(node: Node, scope: Scope) -> Proposal:
    """``AveragePool(x) -> requantize(AveragePool(x))``: TFLite's has one scale on both sides."""
    del scope
    x, quant = node.operand(0), node.output.quant
    if not activation(x) or quant is None or x.quant is None:
        return None
    wanted = x.quant.params.widened()
    if quant.params.same_mapping(wanted):
        return None
    made = retyped(node, node.inputs, QuantType(wanted, node.output.type.shape), "")
    value = requantized(made, quant.params, node.origin, node.output.name)
    reason = (
        f"TFLite's {node.op.name} keeps scale and zero point; its result is rounded once more "
        "into its own"
    )
    return Replace({node.output: value}, (Note("result-as-operand", node.name, reason),))


@rule("operands-as-result", "Max", "Min", "Where", "Concat")
def operands_as_result(node: Node, scope: Scope) -> Proposal:
    """``Max(a, b) -> Max(requantize(a), requantize(b))`` in its result's scale, exactly."""
    del scope
    quant = node.output.quant
    if quant is None or not activation(node.output):
        return None
    wanted = quant.params.widened()
    operands: list[Value | None] = []
    for index, value in enumerate(node.inputs):
        if value is None or not node.op.is_data(index) or (node.op is WHERE and index == 0):
            operands.append(value)
            continue
        if value.quant is None:
            if value.constant is None or value.type.dtype is not DType.FLOAT32:
                return None
            data = value.constant.map(
                lambda array: quantize(array, wanted), dtype=wanted.storage_dtype
            )
            operands.append(constant(data, wanted, value.name))
            continue
        operands.append(_in_params(value, wanted, node))
    if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
        return None
    return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})


def _in_params(value: Value, wanted: QuantParams, node: Node) -> Value:
    assert value.quant is not None
    own = value.quant.params
    if own.same_mapping(wanted):
        return value
    if value.constant is None:
        return requantized(value, wanted, node.origin, f"{value.name}:as:{node.output.name}")
    data = value.constant.map(
        lambda array: quantize(dequantize(array, own), wanted), dtype=wanted.storage_dtype
    )
    return constant(data, wanted, value.name)


@rule("symmetric-weight", "Conv", "ConvTranspose", "Dense")
def symmetric_weight(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w) -> Conv(x, w')`` with zero point 0, its scale widened to hold every weight."""
    del scope
    x, weight, bias = node.operand(0), node.operand(1), node.optional(2)
    if weight.quant is None or weight.constant is None or weight.quant.params.symmetric:
        return None
    if not activation(x) or x.quant is None or weight.quant.params.blocked:
        return None
    old = weight.quant.params
    real = dequantize(weight.constant.numpy(), old)
    axes = tuple(a for a in range(real.ndim) if a != old.axis)
    largest = np.abs(real).max(axis=axes, initial=0.0)
    scale = np.where(largest > 0, largest / np.float32(127), old.scale).astype(np.float32)
    params = QuantParams(DType.INT8, scale, np.zeros_like(scale, np.int32), old.axis)
    data = Constant.of(quantize(real, params))
    new_bias = _bias_for(node, bias, x.quant.params, params)
    operands = [x, constant(data, params, weight.name), *([new_bias] if bias is not None else [])]
    reason = "TFLite's weights have zero point 0; its weights are rounded again around zero"
    value = retyped(node, operands, node.output.type, node.output.name)
    return Replace({node.output: value}, (Note("symmetric-weight", node.name, reason),))


def _bias_for(node: Node, bias: Value | None, x: QuantParams, w: QuantParams) -> Value | None:
    """Returns a bias in units of a weight's new scale."""
    if bias is None or bias.quant is None or bias.constant is None:
        return bias
    params = derived_params(node, x, w)
    real = bias.constant.numpy().astype(np.float64) * bias.quant.params.scale.astype(np.float64)
    stored = np.rint(real / params.scale.astype(np.float64))
    info = np.iinfo(np.int32)
    data = Constant.of(np.clip(stored, info.min, info.max).astype(np.int32))
    return constant(data, params, bias.name)


@rule("integer-bias", "Conv", "ConvTranspose", "Dense")
def integer_bias(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w, float bias) -> Conv(x, w, int32 bias)``, rounded to the accumulator's units."""
    del scope
    x, weight, bias = node.operand(0), node.operand(1), node.optional(2)
    if bias is None or bias.quant is not None:
        return None
    real = _real_constant(bias)
    if real is None or not activation(x) or x.quant is None or weight.quant is None:
        return None
    if node.output.quant is None:
        return None
    params = derived_params(node, x.quant.params, weight.quant.params)
    if not np.all(params.scale.astype(np.float64) > 0):
        return None
    stored = np.rint(real.astype(np.float64) / params.scale.astype(np.float64))
    if not np.all(np.abs(stored) <= np.iinfo(np.int32).max):
        return None
    new = constant(Constant.of(stored.astype(np.int32)), params, bias.name)
    value = retyped(node, [x, weight, new], node.output.type, node.output.name)
    reason = "TFLite's biases are integers; its float bias is rounded to scale_x * scale_w"
    return Replace({node.output: value}, (Note("integer-bias", node.name, reason),))


@rule("bias-of-zeros", "Conv")
def bias_of_zeros(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w) -> Conv(x, w, 0)``: LiteRT 2.3 refuses one without a bias, or crashes."""
    del scope
    x, weight = node.operand(0), node.operand(1)
    shape = weight.type.shape
    if node.optional(2) is not None or shape is None or isinstance(shape[0], str):
        return None
    if product(node) and x.quant is not None and weight.quant is not None:
        params = derived_params(node, x.quant.params, weight.quant.params)
        bias = constant(Constant.of(np.zeros(shape[0], np.int32)), params, "")
    else:
        bias = constant(Constant.of(np.zeros(shape[0], np.float32)), None, "")
    value = retyped(node, [x, weight, bias], node.output.type, node.output.name)
    return Replace({node.output: value})


@rule("float-bias", "Conv", "ConvTranspose", "Dense")
def float_bias(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, w, int32 bias) -> Conv(x, w, float bias)`` of what is computed on floats.

    LiteRT dequantizes no int32. Where the result is rounded, the bias is int32 again when it is
    read: rounded to float32 and back.
    """
    del scope
    bias = node.optional(2)
    if bias is None or product(node):
        return None
    real = _real_constant(bias)
    if real is None or (bias.constant is not None and bias.quant is None):
        return None
    new = constant(Constant.of(real), None, bias.name)
    if node.output.quant is not None:
        if bias.quant is None or bias.constant is None:
            return None
        scale = bias.quant.params.scale.astype(np.float64)
        stored = np.rint(real.astype(np.float64) / scale)
        if np.array_equal(stored, bias.constant.numpy()):
            return None
        limit = np.iinfo(np.int32).max
        data = Constant.of(np.clip(stored, -limit, limit).astype(np.int32))
        new = constant(data, bias.quant.params, bias.name)
    operands = [*node.inputs[:2], new]
    value = retyped(node, operands, node.output.type, node.output.name)
    return Replace({node.output: value})


@rule("float-weight", "ConvTranspose")
def float_weight(node: Node, scope: Scope) -> Proposal:
    """``ConvTranspose(x, w) -> ConvTranspose(x, float w)`` of what is computed on floats.

    With a weight that the file dequantizes, XNNPACK in LiteRT 2.3 gives other numbers.
    """
    del scope
    weight = node.operand(1)
    stored = stored_behind(weight) or weight
    if product(node) or stored.quant is None:
        return None
    real = _real_constant(weight)
    x = node.operand(0)
    if real is None:
        return None
    image = x if x.quant is None else dequantized(x, DType.FLOAT32, node.origin)
    rest = [
        bias if bias is None or (number := _real_constant(bias)) is None
        else constant(Constant.of(number), None, bias.name)
        for bias in node.inputs[2:]
    ]  # fmt: skip
    operands = [image, constant(Constant.of(real), None, weight.name), *rest]
    output = node.output
    if output.quant is None:
        return Replace({output: retyped(node, operands, output.type, output.name)})
    made = retyped(node, operands, TensorType(DType.FLOAT32, output.type.shape), "")
    return Replace({output: quantized(made, output.quant.params, node.origin, output.name)})


def _real_constant(value: Value) -> NDArray[np.float32] | None:
    """Returns the real numbers of a constant, also of one that is dequantized."""
    stored = stored_behind(value) or value
    if stored.constant is None:
        return None
    if stored.quant is None:
        return stored.constant.numpy().astype(np.float32)
    return np.asarray(dequantize(stored.constant.numpy(), stored.quant.params), np.float32)


# ---- windows ----------------------------------------------------------------------------------


@rule("rows-as-images", "Conv", "ConvTranspose", "MaxPool", "AveragePool")
def rows_as_images(node: Node, scope: Scope) -> Proposal:
    """``Conv(x) -> Squeeze(Conv(Unsqueeze(x)))``: of a sequence, as an image of height 1."""
    del scope
    x, output, attributes = node.operand(0), node.output, node.attributes
    if x.rank != 3 or x.type.shape is None or output.type.shape is None or len(node.outputs) > 1:
        return None
    wide = _wide(attributes)
    if wide is None:
        return None
    axes = AxesAttrs((2,))
    image = result(BY_NAME["Unsqueeze"], axes, [x], _with_height(x.type), node.origin)
    operands: list[Value | None] = [image, *node.inputs[1:]]
    if len(node.inputs) > 1:
        weight = node.operand(1)
        if weight.constant is None:
            return None
        shape = (*weight.constant.shape[:2], 1, *weight.constant.shape[2:])
        data = weight.constant.map(lambda array: array.reshape(shape), shape=shape)
        operands[1] = constant(
            data, None if weight.quant is None else weight.quant.params, weight.name
        )
    made = result(node.op, wide, operands, _with_height(output.type), node.origin)
    flat = result(BY_NAME["Squeeze"], axes, [made], output.type, node.origin, output.name)
    return Replace({output: flat})


def _wide(attributes: object) -> ConvAttrs | ConvTransposeAttrs | PoolAttrs | None:
    """Returns attributes of a sequence for an image of height 1."""
    match attributes:
        case ConvAttrs(strides, dilations, pads, group):
            return ConvAttrs((1, *strides), (1, *dilations), _around(pads), group)
        case ConvTransposeAttrs(strides, dilations, pads, more, group):
            return ConvTransposeAttrs(
                (1, *strides), (1, *dilations), _around(pads), (0, *more), group
            )
        case PoolAttrs(kernel, strides, dilations, pads):
            return replace(
                attributes, kernel_shape=(1, *kernel), strides=(1, *strides),
                dilations=(1, *dilations), pads=_around(pads),
            )  # fmt: skip
        case _:
            return None


def _around(pads: Sequence[int]) -> tuple[int, ...]:
    return (0, pads[0], 0, pads[1])


def _with_height(type_: ValueType) -> ValueType:
    assert type_.shape is not None
    return type_.with_shape((*type_.shape[:2], 1, *type_.shape[2:]))


@rule("padding-apart", *_WINDOWS)
def padding_apart(node: Node, scope: Scope) -> Proposal:
    """``Conv(x, pads) -> Conv(Pad(x))`` where TFLite's two paddings are others.

    A pool of averages that does not count its padding has no such form: it is taken at every place
    and every stride-th result kept.
    """
    del scope
    x, attributes = node.operand(0), node.attributes
    if not isinstance(attributes, ConvAttrs | PoolAttrs) or x.rank != 4 or len(node.outputs) > 1:
        return None
    if isinstance(attributes, PoolAttrs):
        kernel: Sequence[int] = attributes.kernel_shape
    else:
        shape = node.operand(1).type.shape
        if shape is None or any(isinstance(e, str) for e in shape):
            return None
        kernel = [e for e in shape[2:] if isinstance(e, int)]
    given, made = _spatial(x), _spatial(node.output)
    if given is None or made is None:
        return None
    counted = isinstance(attributes, PoolAttrs) and attributes.count_include_pad
    fits = padding_of(attributes, kernel, given, made) is not None
    if fits and not (counted and any(attributes.pads)):
        return None
    if node.op is AVERAGE_POOL and not counted:
        return _every_place(node, attributes, kernel, given, made)
    pads = _ends_needed(attributes, kernel, given, made)
    if pads is None:
        return None
    padded = _padded(node, x, pads)
    bare = replace(attributes, pads=(0,) * len(pads))
    if isinstance(bare, PoolAttrs):
        bare = replace(bare, count_include_pad=False, ceil_mode=False)
    operands = [padded, *node.inputs[1:]]
    value = result(node.op, bare, operands, node.output.type, node.origin, node.output.name)
    return Replace({node.output: value})


def _spatial(value: Value) -> list[int] | None:
    shape = value.type.shape
    return None if shape is None else [-1 if isinstance(e, str) else e for e in shape[2:]]


def _ends_needed(
    attributes: ConvAttrs | PoolAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> tuple[int, ...] | None:
    """Returns pads with as much at the ends as the windows reach."""
    rank = len(given)
    begins, ends = list(attributes.pads[:rank]), list(attributes.pads[rank:])
    for axis in range(rank):
        if given[axis] < 0 or made[axis] < 0:
            if isinstance(attributes, PoolAttrs) and attributes.ceil_mode:
                return None
            continue
        size = span(kernel[axis], attributes.dilations[axis])
        reach = (made[axis] - 1) * attributes.strides[axis] + size
        ends[axis] = max(0, reach - given[axis] - begins[axis])
    return (*begins, *ends)


def _padded(node: Node, x: Value, pads: Sequence[int]) -> Value:
    """Returns an image behind a Pad: zeros, or what no maximum takes."""
    value = 0.0
    if node.op is MAX_POOL:
        value = -math.inf
        if x.quant is not None:
            low = np.asarray(x.quant.params.storage_dtype.qmin)
            value = float(dequantize(low.astype(x.type.dtype.numpy), x.quant.params.widened()))
    half = len(pads) // 2
    whole = (0, 0, *pads[:half], 0, 0, *pads[half:])
    assert x.type.shape is not None
    shape = tuple(
        f"{extent}+{whole[a] + whole[a + len(whole) // 2]}"
        if isinstance(extent, str) and whole[a] + whole[a + len(whole) // 2]
        else extent
        if isinstance(extent, str)
        else extent + whole[a] + whole[a + len(whole) // 2]
        for a, extent in enumerate(x.type.shape)
    )
    type_ = x.type.with_shape(shape)
    if isinstance(type_, QuantType):
        type_ = QuantType(type_.params.widened(), shape)
    return result(BY_NAME["Pad"], PadAttrs(whole, "constant", value), [x], type_, node.origin)


def _every_place(
    node: Node,
    attributes: ConvAttrs | PoolAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> Proposal:
    rank = len(given)
    if not isinstance(attributes, PoolAttrs) or -1 in (*given, *made):
        return None
    begins = tuple((size - 1) // 2 for size in kernel)
    if attributes.pads[:rank] != begins or set(attributes.dilations) != {1}:
        return None
    if any((m - 1) * s >= g for m, s, g in zip(made, attributes.strides, given, strict=True)):
        return None
    ends = tuple(size - 1 - begin for size, begin in zip(kernel, begins, strict=True))
    dense = replace(attributes, strides=(1,) * rank, pads=(*begins, *ends), ceil_mode=False)
    shape = node.output.type.shape
    assert shape is not None
    type_ = node.output.type.with_shape((*shape[:2], *given))
    every = result(node.op, dense, node.inputs, type_, node.origin)
    lasts = tuple((m - 1) * s + 1 for m, s in zip(made, attributes.strides, strict=True))
    kept = SliceAttrs((0,) * rank, lasts, tuple(range(2, rank + 2)), tuple(attributes.strides))
    output = node.output
    value = result(BY_NAME["Slice"], kept, [every], output.type, node.origin, output.name)
    return Replace({output: value})


@rule("whole-then-slice", "ConvTranspose")
def whole_then_slice(node: Node, scope: Scope) -> Proposal:
    """``ConvTranspose(x, pads) -> Slice(ConvTranspose(x))`` where TFLite cuts off others."""
    del scope
    attributes, x, output = node.attributes, node.operand(0), node.output
    if not isinstance(attributes, ConvTransposeAttrs) or x.rank != 4:
        return None
    shape = node.operand(1).type.shape
    given, made = _spatial(x), _spatial(output)
    if shape is None or given is None or made is None or -1 in (*given, *made):
        return None
    kernel = [e for e in shape[2:] if isinstance(e, int)]
    if not any(attributes.pads) or _tflite_pads(attributes, kernel, given, made):
        return None
    rank = len(given)
    whole = [
        (g - 1) * s + k
        for g, s, k in zip(given, attributes.strides, kernel, strict=True)
    ]  # fmt: skip
    more = tuple(
        max(0, m + attributes.pads[a] - w) for a, (m, w) in enumerate(zip(made, whole, strict=True))
    )
    bare = replace(attributes, pads=(0,) * (2 * rank), output_padding=more)
    assert output.type.shape is not None
    full = (*output.type.shape[:2], *(w + m for w, m in zip(whole, more, strict=True)))
    value = result(node.op, bare, node.inputs, output.type.with_shape(full), node.origin)
    begins = tuple(attributes.pads[:rank])
    ends = tuple(b + m for b, m in zip(begins, made, strict=True))
    cut = SliceAttrs(begins, ends, tuple(range(2, rank + 2)), (1,) * rank)
    sliced = result(BY_NAME["Slice"], cut, [value], output.type, node.origin, output.name)
    return Replace({output: sliced})


def _tflite_pads(
    attributes: ConvTransposeAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
) -> bool:
    return transposed_padding(attributes, kernel, given, made) is not None


@rule("convolution-per-group", "ConvTranspose")
def convolution_per_group(node: Node, scope: Scope) -> Proposal:
    """``ConvTranspose(x; groups) -> Concat(ConvTranspose(Split(x)) …)``."""
    del scope
    attributes, x, weight, output = node.attributes, node.operand(0), node.operand(1), node.output
    if not isinstance(attributes, ConvTransposeAttrs) or attributes.group == 1:
        return None
    if weight.constant is None or x.type.shape is None or output.type.shape is None:
        return None
    group, bias = attributes.group, node.optional(2)
    if weight.quant is not None and not weight.quant.params.per_tensor:
        return None
    if bias is not None and (bias.constant is None or _axis(bias) is not None):
        return None
    channels, results = x.type.shape[1], output.type.shape[1]
    if isinstance(channels, str) or isinstance(results, str) or group > 64:
        return None
    sizes = (channels // group,) * group
    part = x.type.with_shape((x.type.shape[0], channels // group, *x.type.shape[2:]))
    parts = [Value(part) for _ in range(group)]
    Node(BY_NAME["Split"], SplitAttrs(1, sizes), [x], parts, node.origin)
    made: list[Value | None] = []
    shape = (output.type.shape[0], results // group, *output.type.shape[2:])
    for place, image in enumerate(parts):
        operands: list[Value | None] = [image, _rows(weight, place, group)]
        if bias is not None:
            operands.append(_rows(bias, place, group))
        one = replace(attributes, group=1)
        made.append(result(node.op, one, operands, output.type.with_shape(shape), node.origin))
    joined = result(
        BY_NAME["Concat"], AxisAttrs(1), made, output.type, node.origin, output.name
    )  # fmt: skip
    return Replace({output: joined})


def _axis(value: Value) -> int | None:
    return None if value.quant is None else value.quant.params.axis


def _rows(value: Value, place: int, count: int) -> Value:
    """Returns a part of a constant along its first axis."""
    assert value.constant is not None
    size = value.constant.shape[0] // count
    shape = (size, *value.constant.shape[1:])
    data = value.constant.map(lambda a: a[place * size : (place + 1) * size], shape=shape)
    return constant(data, None if value.quant is None else value.quant.params, value.name)


RULES: tuple[Rule, ...] = (
    rows_as_images,
    symmetric_weight,
    integer_bias,
    bias_of_zeros,
    float_bias,
    float_weight,
    convolution_per_group,
    whole_then_slice,
    padding_apart,
    prescribed_result,
    result_as_operand,
    operands_as_result,
)
