"""How graphs are put for Qualcomm's Hexagon: what its backend takes, and computes right.

Measured on the host build of the backend (onnxruntime-qnn 2.7.0 on onnxruntime 1.32); each
respelling keeps a rule of :mod:`.qnn`, whose page has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.edit import Editor
from qdqbridge.graph.graph import NO_ORIGIN, Graph, Node, Value
from qdqbridge.graph.numerics import dequantize, quantize
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.graph.quantization import QuantParams, per_tensor
from qdqbridge.graph.types import QuantType, Shape, TensorType
from qdqbridge.graph.weights import geometry_of
from qdqbridge.onnx_io.profiles.erf_steps import erfs_in_steps
from qdqbridge.onnx_io.profiles.hexagon_types import converted_interfaces
from qdqbridge.onnx_io.profiles.own_encodings import own_encodings
from qdqbridge.onnx_io.profiles.respelling import (
    Cost,
    Respelling,
    is_attention_score,
    put,
    readers,
    replace_operand,
)
from qdqbridge.onnx_io.profiles.whole_gelu import whole_gelus
from qdqbridge.onnx_io.profiles.wide_operands import wide_operands
from qdqbridge.ops.attributes import NormAttrs, PadAttrs, ReshapeAttrs
from qdqbridge.ops.build import constant, dequantized, requantized, result
from qdqbridge.ops.conversion import DEQUANTIZE, QUANTIZE
from qdqbridge.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.ops.data_movement import RESHAPE
from qdqbridge.ops.elementwise import ADD, CONCAT, DIV, MUL, POW, SUB, WHERE
from qdqbridge.ops.matmul import DENSE, GEMM
from qdqbridge.ops.normalization import INSTANCE_NORMALIZATION, LAYER_NORMALIZATION
from qdqbridge.ops.selection import PAD
from qdqbridge.ops.table import BY_NAME


def alike_in_concats(graph: Graph) -> Iterator[Cost]:
    """``Concat(a, b) -> Concat(requantize(a), b)``: operands in the encoding of the result."""
    for node in graph.nodes:
        target = node.output.quant
        if node.op is not CONCAT or target is None or not target.params.per_tensor:
            continue
        if not (_convolved(node) and any(r.op.name in _WINDOWS for r in readers(node.output))):
            continue
        for index, value in enumerate(list(node.inputs)):
            if value is None or value.quant is None:
                continue
            if value.quant.params.same_mapping(target.params):
                continue
            name = f"{value.name}_for_{node.output.name}"
            replace_operand(node, index, _requantized(value, target.params, name))
    yield from ()


_WINDOWS = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "Pad"})


def _convolved(node: Node) -> bool:
    makers = (_maker(value) for value in node.inputs)
    return any(each is not None and each.op in (CONV, CONV_TRANSPOSE) for each in makers)


def _requantized(value: Value, params: QuantParams, name: str) -> Value:
    assert value.quant is not None
    if value.constant is None:
        return requantized(value, params.widened(), name=name)
    own = value.quant.params
    data = value.constant.map(
        lambda array: quantize(dequantize(array, own), params), dtype=params.storage_dtype
    )
    return constant(data, params, name)


def divisors(graph: Graph) -> Iterator[Cost]:
    """``Div(x, c) -> Div(x, 1 * c)``: a float divisor as the integer 1 in units of itself.

    Where there is no integer around it is ``Mul(x, 1 / c)``: the backend cannot finalize a Div, Sub
    or Exp of floats in front of a product, if no product stands before.
    """
    for node in graph.nodes:
        divisor = node.operand(1) if node.op is DIV else None
        if divisor is None or divisor.constant is None or divisor.constant.size != 1:
            continue
        if not _plain_floats(divisor):
            continue
        array, source = divisor.constant.numpy(), node.operand(0).quant
        number = float(np.asarray(array, np.float64).item())
        if not 0 < number < np.inf:
            continue
        exact = array.dtype == np.float32 and source is not None and node.output.quant is not None
        if exact and source is not None:
            wide = source.params.storage_dtype.bits > _BYTE
            dtype = DType.UINT16 if wide else DType.UINT8
            one = np.ones(array.shape, dtype.numpy)
            params = per_tensor(dtype, np.float32(number))
            replace_operand(node, 1, constant(one, params, divisor.name))
        elif node.output.quant is None or is_attention_score(node):
            factor = np.asarray(1 / np.asarray(array, np.float64)).astype(array.dtype)
            value = constant(factor, None, f"{divisor.name}_reciprocal")
            put(graph, node, retyped_as(node, MUL, [node.operand(0), value]))
            if np.frexp(number)[0] != 0.5:
                yield Cost(node.name, f"x / {number:g} is x * {factor.item():g}")


_BYTE = 8


def squares(graph: Graph) -> Iterator[Cost]:
    """``Pow(x, 2) -> Mul(x, x)`` of floats."""
    for node in graph.nodes:
        if node.op is not POW or node.output.quant is not None or node.operand(0).quant is not None:
            continue
        exponent = node.operand(1)
        known = exponent.constant is not None and exponent.quant is None
        if known and exponent.constant is not None and (exponent.constant.numpy() == 2).all():
            base = node.operand(0)
            if base.type.shape == node.output.type.shape:
                put(graph, node, retyped_as(node, MUL, [base, base]))
    yield from ()


def differences(graph: Graph) -> Iterator[Cost]:
    """``Sub(x, y) -> Add(x, -y)`` of floats: the same numbers."""
    for node in graph.nodes:
        if node.op is not SUB or node.output.quant is not None:
            continue
        x, y = node.operand(0), node.operand(1)
        if x.quant is not None or y.quant is not None or not y.type.dtype.is_float:
            continue
        if y.constant is not None:
            negative = constant(np.negative(y.constant.numpy()), None, f"{y.name}_negative")
        else:
            minus = constant(np.asarray(-1, y.type.dtype.numpy), None, f"{y.name}_minus")
            negative = result(MUL, NO_ATTRIBUTES, [y, minus], y.type, node.origin)
        put(graph, node, retyped_as(node, ADD, [x, negative]))
    yield from ()


def _maker(value: Value | None) -> Node | None:
    """Returns what makes a value, conversions aside."""
    while value is not None and value.producer is not None:
        if value.producer.op.flow is not Flow.CONVERT:
            return value.producer
        value = value.producer.inputs[0]
    return None


def retyped_as(node: Node, op: Operator, operands: list[Value]) -> Value:
    """Returns the result of another operator in the place of a node's."""
    return result(op, NO_ATTRIBUTES, operands, node.output.type, node.origin, node.output.name)


def float_products(graph: Graph) -> Iterator[Cost]:
    """``Conv(x, w) -> Conv(Pad(x), dequantize(w))`` where operand or result is float.

    The backend then computes in floats: it takes no weights per channel, and pads a dequantized
    operand with other numbers than 0.
    """
    for node in graph.nodes:
        if node.op is DEQUANTIZE and _only_with_integers(node, node.operand(0)):
            Editor(graph).replace_value(
                node.output, _as_floats(node.operand(0), node.output.type.dtype)
            )
        if node.op.flow is not Flow.ACCUMULATE:
            continue
        x = node.operand(0)
        if node.output.quant is not None and x.quant is not None:
            continue
        for index, value in enumerate(node.inputs):
            if index and value is not None and _only_with_integers(node, value):
                replace_operand(node, index, _as_floats(value, _float_type(node)))
        conv = CONV.of(node)
        if x.quant is None:
            continue
        if conv is not None and any(conv.pads) and x.rank is not None:
            replace_operand(node, 0, _padded(x, conv.pads))
            node.attributes = replace(conv, pads=(0,) * len(conv.pads))
        elif CONV_TRANSPOSE.of(node) is not None:
            replace_operand(node, 0, _twice_negated(x))
    yield from ()


def _only_with_integers(node: Node, value: Value) -> bool:
    """True for a constant of a product that is taken only where everything is quantized."""
    if value.constant is None or value.quant is None:
        return False
    params = value.quant.params
    plain = params.per_tensor and params.symmetric and value.type.dtype is not DType.INT32
    return not plain or (node.op in (DENSE, GEMM) and node.optional(2) is None)


def _float_type(node: Node) -> DType:
    """Returns the type in which a product of floats computes."""
    sides = (node.operand(0), node.output)
    return next((v.type.dtype for v in sides if v.quant is None), DType.FLOAT32)


def _as_floats(value: Value, dtype: DType) -> Value:
    assert value.constant is not None and value.quant is not None
    params = value.quant.params
    real = value.constant.map(
        lambda array: dequantize(array, params).astype(dtype.numpy), dtype=dtype
    )
    written = value.written if value.written is not None and value.written.dtype is dtype else None
    return constant(written or real, None, value.name)


def _padded(value: Value, pads: tuple[int, ...]) -> Value:
    """Returns a stored value with stored zeros around it."""
    assert value.quant is not None and value.type.shape is not None
    half = len(pads) // 2
    shape = [
        dim + pads[axis - 2] + pads[axis - 2 + half] if axis > 1 and isinstance(dim, int) else dim
        for axis, dim in enumerate(value.type.shape)
    ]
    every = (0, 0, *pads[:half], 0, 0, *pads[half:])
    type_ = QuantType(value.quant.params, tuple(shape))
    return result(PAD, PadAttrs(every), [value], type_, NO_ORIGIN, f"{value.name}_padded")


def _twice_negated(value: Value) -> Value:
    """Returns the real numbers of a stored value, negated twice: the backend leaves those alone."""
    real, neg = dequantized(value, DType.FLOAT32, name=f"{value.name}_real"), BY_NAME["Neg"]
    for _ in range(2):
        real = result(neg, NO_ATTRIBUTES, [real], real.type, NO_ORIGIN, f"{value.name}_negated")
    return real


def channels_of_blocks(graph: Graph) -> Iterator[Cost]:
    """Weights in blocks, or with zero points of their own, as int8 with a scale per channel.

    Between stored operands and a stored result, where the product is one of integers then.
    """
    for node in graph.nodes:
        if node.op.flow is not Flow.ACCUMULATE:
            continue
        x, weight, end = (*map(_stored_behind, node.inputs[:2]), _stored_end(node))
        if weight is None or weight.constant is None or weight.quant is None or end is None:
            continue
        params, geometry = weight.quant.params, geometry_of(node)
        if geometry is None or x is None or x.quant is None or x.is_constant:
            continue
        if params.per_tensor or not (params.blocked or _lopsided(params)):
            continue
        real = dequantize(weight.constant.numpy(), params).astype(np.float64)
        stored, own = _per_channel(real, geometry.axis)
        noise = float(((dequantize(stored, own) - real) ** 2).sum())
        operands = [x, constant(stored, own, weight.name), *node.inputs[2:]]
        bias = node.optional(2)
        if bias is not None and bias.constant is not None and bias.quant is not None:
            operands[2] = _as_floats(bias, DType.FLOAT32)
        value = result(node.op, node.attributes, operands, end.type, node.origin, end.name)
        assert end.producer is not None
        put(graph, end.producer, value)
        lost = "exact" if not noise else f"{10 * np.log10((real**2).sum() / noise):.1f} dB"
        kind = f"blocks of {params.block_size}" if params.blocked else "other zero points"
        text = f"its weight had {kind}, now int8 per channel: {lost} signal to noise"
        yield Cost(node.name, text)


def _stored_behind(value: Value | None) -> Value | None:
    """Returns the stored value that a float one is dequantized from."""
    made = None if value is None else value.producer
    return made.operand(0) if made is not None and made.op is DEQUANTIZE else value


def _stored_end(node: Node) -> Value | None:
    """Returns the stored value that a result becomes, and nothing else."""
    if node.output.quant is not None:
        return node.output
    readers = [user for user, _ in node.output.users]
    return readers[0].output if len(readers) == 1 and readers[0].op is QUANTIZE else None


def _per_channel(real: NDArray[np.float64], axis: int) -> tuple[NDArray[Any], QuantParams]:
    """Returns int8 for real numbers, with a scale for each entry of an axis."""
    top = np.abs(real).max(axis=tuple(a for a in range(real.ndim) if a != axis))
    scale = (np.where(top > 0, top, 1) / DType.INT8.qmax).astype(np.float32)
    zeros = np.zeros(scale.shape, np.int32)
    high = int(DType.INT8.qmax)
    own = QuantParams(DType.INT8, scale, zeros, axis=axis, qmin=-high, qmax=high)
    return quantize(real.astype(np.float32), own), own


def _lopsided(params: QuantParams) -> bool:
    return bool((params.zero_point != 0).any()) or not params.storage_dtype.is_signed


_FINE = 30
"""Bits that the largest number of an int32 bias has."""


def quantized_norms(graph: Graph) -> Iterator[Cost]:
    """``InstanceNormalization(x, g, b)``: the scale in 8 bits, the bias in 32."""
    for node in graph.nodes:
        quantized = node.output.quant is not None and node.operand(0).quant is not None
        if node.op is not INSTANCE_NORMALIZATION or not quantized:
            continue
        gain, bias = node.operand(1), node.operand(2)
        if gain.constant is not None and _needs_eight_bits(gain):
            rounded, off = _in_eight_bits(gain)
            replace_operand(node, 1, rounded)
            if off:
                text = f"its scale is rounded to 8 bits: {off:.2g} of its largest entry"
                yield Cost(node.name, text)
        if bias.constant is not None and bias.quant is None:
            replace_operand(node, 2, _in_many_bits(bias))


def norms_of_channels(graph: Graph) -> Iterator[Cost]:
    """``InstanceNormalization(x, g, b)`` of floats ``-> LayerNormalization(rows of x) * g + b``."""
    for node in graph.nodes:
        attributes = INSTANCE_NORMALIZATION.of(node)
        if attributes is None or (node.operand(0).quant and node.output.quant):
            continue
        shape, gain, bias = node.output.type.shape, node.operand(1), node.operand(2)
        fixed = shape is not None and all(isinstance(dim, int) for dim in shape)
        if not fixed or shape is None or gain.constant is None or bias.constant is None:
            continue
        dims = tuple(dim for dim in shape if isinstance(dim, int))
        put(graph, node, _in_steps(node, attributes.epsilon, dims))
        yield Cost(node.name, "written as LayerNormalization, Mul and Add: rounded in other places")


def _in_steps(node: Node, epsilon: float, shape: tuple[int, ...]) -> Value:
    """Returns an InstanceNormalization as the norm of each channel, scaled and moved."""
    x, name, origin = node.operand(0), node.output.name, node.origin
    real = x if x.quant is None else dequantized(x, DType.FLOAT32, name=f"{name}_real")
    dtype = real.type.dtype
    rows = (*shape[:2], math.prod(shape[2:]))

    def made(op: Operator, attributes: Attributes, inputs: list[Value], to: Shape) -> Value:
        return result(op, attributes, inputs, TensorType(dtype, to), origin, f"{name}_{op.name}")

    def along(value: Value) -> Value:
        assert value.constant is not None
        array, params = value.constant.numpy(), None if value.quant is None else value.quant.params
        array = array if params is None else dequantize(array, params)
        column = array.astype(dtype.numpy).reshape(-1, *([1] * (len(shape) - 2)))
        return constant(column, None, value.name)

    ones = constant(np.ones(rows[2], dtype.numpy), None, f"{name}_ones")
    flat = made(RESHAPE, ReshapeAttrs(rows), [real], rows)
    norm = made(LAYER_NORMALIZATION, NormAttrs(2, epsilon), [flat, ones], rows)
    whole = made(RESHAPE, ReshapeAttrs(shape), [norm], shape)
    scaled = made(MUL, NO_ATTRIBUTES, [whole, along(node.operand(1))], shape)
    return result(
        ADD, NO_ATTRIBUTES, [scaled, along(node.operand(2))], node.output.type, origin, name
    )


def masks_of_numbers(graph: Graph) -> Iterator[Cost]:
    """``Where(mask, x, c) -> x * mask + where(mask, 0, c)`` of floats, both constants: the same."""
    for node in graph.nodes:
        if node.op is not WHERE or node.output.quant is not None:
            continue
        mask = node.operand(0).constant
        known = [index for index in (1, 2) if _plain_floats(node.operand(index))]
        if mask is None or len(known) != 1:
            continue
        other, index = node.operand(known[0]), 3 - known[0]
        assert other.constant is not None
        number = other.constant.numpy()
        zeros = np.zeros((), number.dtype)
        keeps = mask.numpy() == (index == 1)
        rest = np.where(keeps, zeros, number)
        if not np.isfinite(rest).all():
            continue
        name = node.output.name
        factor = constant(keeps.astype(number.dtype), None, f"{name}_mask")
        offset = constant(rest, None, f"{name}_masked")
        type_, origin = node.output.type, node.origin
        kept = result(MUL, NO_ATTRIBUTES, [node.operand(index), factor], type_, origin)
        value = result(ADD, NO_ATTRIBUTES, [kept, offset], type_, origin, name)
        put(graph, node, value)
    yield from ()


def _plain_floats(value: Value) -> bool:
    return value.constant is not None and value.quant is None and value.type.dtype.is_float


def _needs_eight_bits(value: Value) -> bool:
    return value.quant is None or value.quant.params.storage_dtype.bits != _BYTE


def _in_eight_bits(value: Value) -> tuple[Value, float]:
    """Returns a constant in 8 bits, and the largest error relative to its range."""
    assert value.constant is not None
    array = value.constant.numpy()
    array = array if value.quant is None else dequantize(array, value.quant.params)
    real = array.astype(np.float64)
    top = float(np.abs(real).max(initial=0)) or 1.0
    signed = bool((real < 0).any())
    dtype = DType.INT8 if signed else DType.UINT8
    params = per_tensor(dtype, np.float32(top / dtype.qmax))
    stored = quantize(array.astype(np.float32), params)
    off = np.abs(dequantize(stored, params).astype(np.float64) - real).max(initial=0) / top
    return constant(stored, params, value.name), float(off)


def _in_many_bits(value: Value) -> Value:
    """Returns a constant of floats in int32: a power of 2 as scale, so that most are exact."""
    assert value.constant is not None
    real = value.constant.numpy().astype(np.float64)
    top = float(np.abs(real).max(initial=0)) or 1.0
    scale = 2.0 ** (int(np.ceil(np.log2(top))) - _FINE)
    stored = np.rint(real / scale).astype(np.int32)
    params = per_tensor(DType.INT32, np.float32(scale))
    return constant(stored, params, value.name)


RESPELLINGS = (
    Respelling("no-erf", whole_gelus),
    Respelling("no-erf", erfs_in_steps),
    Respelling("fixed-encodings", own_encodings),
    Respelling("no-float-where", masks_of_numbers),
    Respelling("quantized-divisor", divisors),
    Respelling("float-quotient", squares),
    Respelling("float-quotient", differences),
    Respelling("concat-encodings", alike_in_concats),
    Respelling("no-blocks", channels_of_blocks),
    Respelling("float-products", float_products),
    Respelling("instance-norm-parameters", quantized_norms),
    Respelling("instance-norm-parameters", norms_of_channels),
    Respelling("wide-before-floats", wide_operands),
    Respelling("unsigned", converted_interfaces),
)
"""In the order in which they are applied."""
