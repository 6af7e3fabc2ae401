"""What Hexagon's backend cannot finalize, or computes wrongly, of operators that are not whole.

An operator between DequantizeLinear and QuantizeLinear is one unit to the backend; these rules are
about operators that lack one of these, and about neighbours that it joins wrongly. Where it says
"Failed to finalize QNN graph", no part of the file is taken.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.types import (
    QuantParams,
    QuantType,
    Shape,
    TensorType,
    per_tensor,
    static_shape,
)
from qdqbridge.core.ops.attributes import NormAttrs, ReshapeAttrs
from qdqbridge.core.ops.build import constant, dequantized, result
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.elementwise import ADD, MUL
from qdqbridge.core.ops.normalization import INSTANCE_NORMALIZATION, LAYER_NORMALIZATION
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    FloatRegions,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.hexagon.units import (
    MOST_AXES,
    behind_bias,
    lost_clamp,
    nothing_left,
    only_dequantized,
)
from qdqbridge.targets.profiles.shared_rules import COPIES, WEIGHTED

# ---- Normalizations as Hexagon takes them, and computes them right: parameters in 8 and 32 bits

_EIGHT, _POWER = 8, 0.5
_FINE, _HALF_FINE = 30, 14
"""Bits that the largest number of an int32 bias has."""


@rule("instance-norm-in-integers", INSTANCE_NORMALIZATION)
def quantized_norms(node: Node, context: RuleContext) -> Proposal:
    """``InstanceNormalization(x, g, b)``: the scale in 8 bits, the bias in 32."""
    del context
    x = node.operand(0).quant
    if node.output.quant is None or x is None:
        return None
    gain, bias = node.operand(1), node.operand(2)
    operands, costs = dict[tuple[Node, int], Value](), list[str]()
    if gain.constant is not None and _needs_eight_bits(gain):
        operands[node, 1], off = _in_eight_bits(gain)
        costs += [f"its scale is rounded to 8 bits: {off:.2g} of its largest entry"] if off else []
    half = x.params.expressed_dtype is DType.FLOAT16
    if bias.constant is not None and not _is_int32(bias, half_floats=half):
        operands[node, 2] = _in_many_bits(bias, half_floats=half)
        costs += [f"its bias is rounded to 1 / {1 << _HALF_FINE} of its range"] if half else []
    notes = tuple(Note("instance-norm-parameters", node.name, text) for text in costs)
    return Replace(notes=notes, operands=operands) if operands else None


@rule("norm-of-one-scale", LAYER_NORMALIZATION)
def norms_of_one_scale(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, g, b)``: parameters with a scale for each channel as floats."""
    del context
    operands: dict[tuple[Node, int], Value] = {}
    for index in (1, 2):
        value = node.optional(index)
        params = None if value is None or value.quant is None else value.quant.params
        if value is None or params is None or params.per_tensor or value.constant is None:
            continue
        array = value.constant.numpy()
        real = dequantize(array, params).astype(params.expressed_dtype.numpy)
        operands[node, index] = constant(real, None, value.name)
    return Replace(operands=operands) if operands else None


@rule("norm-of-uint8-scale", LAYER_NORMALIZATION)
def exact_norms(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, g, b)`` of 16 bits: the scale in uint8, the bias in int32 or none.

    So it is exact; with parameters of other types some 10 of 65,536 steps off.
    """
    del context
    x, end = node.operand(0).quant, node.output.quant
    gain, bias = node.optional(1), node.optional(2)
    wide = (DType.UINT16, DType.INT16)
    if x is None or end is None or gain is None or gain.constant is None:
        return None
    if x.params.storage_dtype not in wide or end.params.storage_dtype not in wide:
        return None
    unsigned = as_uint8(gain)
    if unsigned is None or unsigned.quant is None or (bias is not None and bias.constant is None):
        return None
    operands = {(node, 1): unsigned}
    if bias is None:
        return None if unsigned is gain else Replace(operands=operands)
    units = per_tensor(
        DType.INT32,
        np.float32(float(x.params.scale.reshape(-1)[0]) * float(unsigned.quant.params.scale)),
    )
    if unsigned is gain and bias.quant is not None and bias.quant.params.same_mapping(units):
        return None
    operands[node, 2] = _in_units(bias, units)
    text = "its bias is rounded to int32, in units of scale x * scale g"
    return Replace(notes=(Note("wide-arithmetic", node.name, text),), operands=operands)


def as_uint8(gain: Value) -> Value | None:
    """Returns a constant as uint8 with one scale, None where it is not exact in 8 bits."""
    if _needs_eight_bits(gain):
        gain, off = _in_eight_bits(gain)
        if off:
            return None
    params = None if gain.quant is None else gain.quant.params
    if params is None or gain.constant is None or not params.per_tensor:
        return None
    if params.storage_dtype is DType.UINT8:
        return gain
    array = gain.constant.numpy().astype(np.int16) + _HALF_BYTE
    zero = int(params.zero_point.reshape(-1)[0]) + _HALF_BYTE
    own = per_tensor(DType.UINT8, params.scale.reshape(-1)[0], zero)
    return constant(array.astype(np.uint8), own, gain.name)


_HALF_BYTE = 128


def _in_units(bias: Value, params: QuantParams) -> Value:
    """Returns a constant in other parameters."""
    assert bias.constant is not None
    array = bias.constant.numpy()
    real = array if bias.quant is None else dequantize(array, bias.quant.params)
    return constant(quantize(real.astype(np.float32), params), params, bias.name)


@rule("instance-norm-of-rows", INSTANCE_NORMALIZATION)
def norms_of_channels(node: Node, context: RuleContext) -> Proposal:
    """``InstanceNormalization(x, g, b)`` of floats ``-> LayerNormalization(rows of x) * g + b``."""
    del context
    attributes = INSTANCE_NORMALIZATION.of(node)
    if attributes is None or (node.operand(0).quant and node.output.quant):
        return None
    dims, gain, bias = static_shape(node.output.type.shape), node.operand(1), node.operand(2)
    if dims is None or gain.constant is None or bias.constant is None:
        return None
    text = "written as LayerNormalization, Mul and Add: rounded in other places"
    value = _in_steps(node, attributes.epsilon, dims)
    return Replace({node.output: value}, (Note("instance-norm-parameters", node.name, text),))


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


def _needs_eight_bits(value: Value) -> bool:
    params = None if value.quant is None else value.quant.params
    return params is None or params.storage_dtype.bits != _EIGHT or not params.per_tensor


def _is_int32(value: Value, *, half_floats: bool) -> bool:
    """True for int32 with one scale, of half floats a power of 2."""
    params = None if value.quant is None else value.quant.params
    if params is None or params.storage_dtype is not DType.INT32 or not params.per_tensor:
        return False
    exact = params.expressed_dtype is DType.FLOAT16 and np.frexp(params.scale.item())[0] == _POWER
    return exact or not half_floats


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


def _in_many_bits(value: Value, *, half_floats: bool) -> Value:
    """Returns a constant of floats in int32: a power of 2 as scale, so that most are exact."""
    assert value.constant is not None
    array = value.constant.numpy()
    array = array if value.quant is None else dequantize(array, value.quant.params)
    real = array.astype(np.float64)
    top = float(np.abs(real).max(initial=0)) or 1.0
    scale = 2.0 ** (int(np.ceil(np.log2(top))) - (_HALF_FINE if half_floats else _FINE))
    stored = np.rint(real / scale).astype(np.int32)
    params = per_tensor(DType.INT32, np.float32(scale))
    if half_floats:
        params = replace(params, scale=np.float16(scale), expressed_dtype=DType.FLOAT16)
    return constant(stored, params, value.name)


# ---- scaled and moved behind ---------------------------------------------------------------------
#
# LayerNormalization of 16 bits whose scale is not a number of 8: scaled and moved behind it.
#
# The backend is some 10 to 30 of 65,536 steps off where the scale of a norm has 16 bits, or is
# float (onnxruntime-qnn 2.7.0, host build, every architecture). With the scale 1 in uint8 it is
# exact, and so are Mul and Add of 16 bits, within a step.

Array = NDArray[Any]
_WIDE = (DType.UINT16, DType.INT16)
_MIDDLE = 1 << 15


@rule("norm-scaled-behind", LAYER_NORMALIZATION)
def wide_norms(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, g, b) -> Add(Mul(LayerNormalization(x, 1), g), b)`` of 16 bits."""
    del context
    attributes, shape = LAYER_NORMALIZATION.of(node), node.output.type.shape or ()
    sides = [value.quant for value in (*node.inputs[:1], node.output) if value is not None]
    if attributes is None or not all(q and q.params.storage_dtype in _WIDE for q in sides):
        return None
    gain, bias, extent = node.optional(1), node.optional(2), shape[-1] if shape else None
    along = attributes.axis in (-1, len(shape) - 1) and isinstance(extent, int)
    if gain is None or gain.constant is None or as_uint8(gain) is not None or not along:
        return None
    if bias is not None and bias.constant is None:
        return None
    assert isinstance(extent, int)
    text = "it is scaled and moved behind it, and rounded three times"
    value = _apart(node, gain, bias, extent)
    return Replace({node.output: value}, (Note("wide-arithmetic", node.name, text),))


def _apart(node: Node, gain: Value, bias: Value | None, extent: int) -> Value:
    shape, name, output = node.output.type.shape, node.output.name, node.output
    assert output.quant is not None
    factors, terms = (
        _flat_norm_constant(gain),
        np.zeros(1) if bias is None else _flat_norm_constant(bias),
    )
    most = _most(output.quant.params, factors, terms, extent)
    one = constant(np.ones(extent, np.uint8), per_tensor(DType.UINT8, np.float32(1)), f"{name}_one")
    types = [QuantType(_around_zero(top), shape) for top in (most, most * np.abs(factors).max())]
    norm = result(
        LAYER_NORMALIZATION, node.attributes, [node.operand(0), one], types[0], node.origin,
        f"{name}_norm",
    )  # fmt: skip
    if bias is None:
        return result(
            MUL, NO_ATTRIBUTES, [norm, _as_16bit_constant(gain)], output.type, node.origin, name
        )
    scaled = result(
        MUL,
        NO_ATTRIBUTES,
        [norm, _as_16bit_constant(gain)],
        types[1],
        node.origin,
        f"{name}_scaled",
    )
    return result(
        ADD, NO_ATTRIBUTES, [scaled, _as_16bit_constant(bias)], output.type, node.origin, name
    )


def _flat_norm_constant(value: Value) -> Array:
    assert value.constant is not None
    array = value.constant.numpy()
    array = array if value.quant is None else dequantize(array, value.quant.params)
    return array.astype(np.float64).reshape(-1)


def _most(own: QuantParams, factors: Array, terms: Array, extent: int) -> float:
    """Returns the largest normalized number that a result can tell from larger ones."""
    scale, zero = float(own.scale.reshape(-1)[0]), int(own.zero_point.reshape(-1)[0])
    ends = [scale * (int(end) - zero) for end in (own.storage_dtype.qmin, own.storage_dtype.qmax)]
    reach = np.maximum(np.abs(ends[0] - terms), np.abs(ends[1] - terms))
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(factors == 0, 0, reach / np.abs(factors)).max(initial=0)
    # no number of a row is further from its mean than this many deviations
    return float(min(needed, np.sqrt(extent))) or 1.0


def _around_zero(top: float) -> QuantParams:
    step = max(top / (_MIDDLE - 1), float(np.finfo(np.float32).tiny))
    return per_tensor(DType.UINT16, np.float32(step), _MIDDLE)


def _as_16bit_constant(value: Value) -> Value:
    """Returns a constant in 16 bits: as it is, or around zero."""
    params = None if value.quant is None else value.quant.params
    if params is not None and params.per_tensor and params.storage_dtype in _WIDE:
        return value
    real = _flat_norm_constant(value)
    own = _around_zero(float(np.abs(real).max(initial=0)) or 1.0)
    return constant(quantize(real.astype(np.float32), own), own, value.name)


_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon"
_UNFINISHED = f"{_HOST}: 'Failed to finalize QNN graph', code 1002"
_IMAGES, _IMAGE_AXES = frozenset({"Conv", "ConvTranspose"}), 4
_WIDTH = {DType.UINT8: 8, DType.INT8: 8, DType.UINT16: 16, DType.INT16: 16}


def _instance_norm(view: FileView, node: FileNode) -> Reason | None:
    """One that is float, signed, or whose scale is not 8 bits and bias not int32, of one scale."""
    if node.op != "InstanceNormalization":
        return None
    x, gain, bias = (view.dequantized(node.input(index)) for index in range(3))
    if x is None or not view.quantized(node.output):
        return Reason("it is computed in floats", (node.output,))
    if x.dtype not in (DType.UINT8, DType.UINT16):
        return Reason(f"'{x.node.input(0)}' is {x.dtype}", (x.node.input(0),))
    rank = view.rank(node.input(0)) or 0
    if rank > MOST_AXES:
        return Reason(f"it has {rank} axes", (node.output,))
    if bias is None or bias.dtype is not DType.INT32:
        dtype = "float" if bias is None else str(bias.dtype)
        return Reason(f"its bias '{node.input(2)}' is {dtype}, not int32", (node.input(2),))
    if gain is None or gain.dtype not in (DType.UINT8, DType.INT8):
        dtype = "float" if gain is None else str(gain.dtype)
        return Reason(f"its scale '{node.input(1)}' is {dtype}, not 8 bits", (node.input(1),))
    for index, own in ((1, gain), (2, bias)):
        if not own.per_tensor:
            text = f"its parameter '{node.input(index)}' has a scale for each channel"
            return Reason(text, (node.input(index),))
    return None


def _behind(view: FileView, tensor: str) -> list[FileNode]:
    """Returns what reads a tensor, Q and DQ in between left aside."""
    found: list[FileNode] = []
    pending = [tensor]
    while pending:
        for node, _ in view.consumers(pending.pop()):
            if is_quantize(node) or is_dequantize(node):
                pending.append(node.output)
            else:
                found.append(node)
    return found


def _before(view: FileView, tensor: str) -> FileNode | None:
    """Returns what makes a tensor, Q and DQ in between left aside."""
    node = view.producer(tensor)
    while node is not None and (is_quantize(node) or is_dequantize(node)):
        node = view.producer(node.input(0))
    return node


def _divisor(view: FileView, node: FileNode) -> Reason | None:
    if node.op != "Div" or not view.is_constant(node.input(1)):
        return None
    x, divisor = view.dequantized(node.input(0)), view.dequantized(node.input(1))
    if x is not None and divisor is not None and view.quantized(node.output):
        unsigned = divisor.dtype in (DType.UINT8, DType.UINT16)
        if unsigned and _width(x) == _width(divisor):
            return None
    scores = [reader for reader in _behind(view, node.output) if reader.op == "Softmax"]
    if not any(r.op == "MatMul" for s in scores for r in _behind(view, s.output)):
        return None
    kind = "a float" if divisor is None else str(divisor.dtype)
    return Reason(f"it divides scores of attention by {kind}", (node.input(1),))


def _width(found: FileEncoding) -> int | None:
    return None if found.dtype is None else _WIDTH.get(found.dtype)


def _padded(view: FileView, node: FileNode) -> Reason | None:
    """A product of 8 bits in floats: what is around it is the smallest number, not the zero point.

    16 bits are padded with 0.
    """
    x = view.dequantized(node.input(0)) if node.op in _IMAGES else None
    if x is None or x.dtype is None or _width(x) != _WIDTH[DType.UINT8]:
        return None
    if view.quantized(node.output) or x.zero() == x.dtype.qmin or _clamped(view, node):
        return None
    if nothing_left(view, node):
        return None
    if not is_padded(node):
        return None
    tensor = x.node.input(0)
    text = f"'{tensor}' ({x.dtype}) has zero point {x.zero()}, and the result is not quantized"
    return Reason(text, (tensor,))


def is_padded(node: FileNode) -> bool:
    """True for a convolution over more than what it is of."""
    inside = node.op == "ConvTranspose"
    automatic = node.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET")
    return inside or (node.op == "Conv" and (automatic or any(node.attributes.get("pads", ()))))


def _clamped(view: FileView, node: FileNode) -> bool:
    """True where the backend joins a clamp and the QuantizeLinear behind it."""
    readers = view.consumers(node.output)
    clamp = readers[0][0] if len(readers) == 1 else None
    return clamp is not None and clamp.op in ("Relu", "Clip") and bool(view.quantized(clamp.output))


def _float_weight(view: FileView, node: FileNode) -> Reason | None:
    """A product in floats: weights per channel, and biases, are no part of it."""
    if node.op not in WEIGHTED or _clamped(view, node) or behind_bias(view, node):
        return None
    if view.dequantized(node.input(0)) is not None and view.quantized(node.output):
        return None
    for index in (1, 2):
        found, name = view.dequantized(node.input(index)), node.input(index)
        if found is None or not view.is_constant(name):
            continue
        if not found.per_tensor:
            return Reason(f"'{found.node.input(0)}' has scales per channel", (name,))
        if found.dtype is DType.INT32:
            return Reason(f"its bias '{found.node.input(0)}' is int32", (name,))
    return None


def _half_bias(view: FileView, node: FileNode) -> Reason | None:
    name = node.input(2)
    if node.op not in WEIGHTED or not name or view.dequantized(name) is not None:
        return None
    if view.dtype(name) is not DType.FLOAT16 or view.dequantized(node.input(0)) is None:
        return None
    if not view.quantized(node.output):
        return None
    return Reason(f"its bias '{name}' is float16", (name,))


def _narrow_convolution(view: FileView, node: FileNode) -> Reason | None:
    found = view.dequantized(node.input(1)) if node.op in _IMAGES else None
    if found is None or found.dtype is not DType.INT4 or not found.per_tensor:
        return None
    tensor = found.node.input(0)
    return Reason(f"'{tensor}' is int4 with one scale", (tensor,))


def _dynamic(view: FileView, node: FileNode) -> Reason | None:
    """A convolution of ``x - zero point`` of run time: dynamic quantization, written in floats."""
    made = view.producer(node.input(0)) if node.op in _IMAGES else None
    if made is None or made.op != "Sub" or any(map(view.is_constant, made.inputs)):
        return None
    return Reason(f"its operand is {made.op} '{made.name}' of run time", (node.input(0),))


def _shared(view: FileView, node: FileNode) -> Reason | None:
    """A tensor that two DequantizeLinear read with other scales: it is taken with one.

    What a Pad is filled with is not a tensor, but a number of it.
    """
    if not is_dequantize(node) or _fills(view, node):
        return None
    own = view.encoding(node)
    for other, index in view.consumers(node.input(0)):
        if other is node or index or not is_dequantize(other) or not own.per_tensor:
            continue
        if _fills(view, other):
            continue
        if not own.same_mapping(view.encoding(other)):
            text = f"'{node.input(0)}' has another scale in '{other.name}'"
            return Reason(text, (node.input(0),))
    return None


def _fills(view: FileView, node: FileNode) -> bool:
    """True for a dequantized number that only Pads read, to fill with."""
    readers = view.consumers(node.output)
    constant = view.is_constant(node.output) and bool(readers)
    return constant and all(reader.op == "Pad" and index for reader, index in readers)


def _erf(view: FileView, node: FileNode) -> Reason | None:
    del view
    if node.op != "Erf":
        return None
    return Reason("operators of type Erf are not supported", (node.output,))


def _float_gelu(view: FileView, node: FileNode) -> Reason | None:
    if node.op != "Gelu":
        return _gelu_of_steps(view, node)
    if view.dequantized(node.input(0)) is not None and view.quantized(node.output):
        return None
    return Reason("it is computed in floats", (node.output,))


def _gelu_of_steps(view: FileView, node: FileNode) -> Reason | None:
    """``x * (Erf(y) + 1)`` of floats with no QuantizeLinear behind: the provider makes a Gelu."""
    made = view.producer(node.input(0)) if node.op == "Add" else None
    if made is None or made.op != "Erf":
        return None
    scaled = view.producer(made.input(0))
    operand = (
        made.input(0) if scaled is None or scaled.op not in ("Mul", "Div") else scaled.input(0)
    )
    if view.dequantized(operand) is not None and _quantized_soon(view, node):
        return None
    return Reason("it is computed in floats, from Erf on", (node.output,))


def _quantized_soon(view: FileView, node: FileNode) -> bool:
    """True where a Q stands behind one of the products that follow."""
    pending = [node]
    for _ in range(4):
        readers = [reader for each in pending for reader, _ in view.consumers(each.output)]
        if any(is_quantize(reader) for reader in readers):
            return True
        pending = [reader for reader in readers if reader.op == "Mul"]
    return False


def _where(view: FileView, node: FileNode) -> Reason | None:
    if node.op != "Where" or view.is_constant(node.output):
        return None
    if view.dtype(node.output) is not DType.FLOAT32:
        return None
    if not view.quantized(node.output):
        return Reason("it chooses between floats", (node.output,))
    for name in node.inputs[1:]:
        array = view.constant(name)
        if view.dequantized(name) is None and (array is None or array.size > 1):
            return Reason(f"'{name}' is float, its result is quantized", (name,))
    return None


def _unfinished(view: FileView, node: FileNode) -> Reason | None:
    """Operators that are taken between DQ and Q, and said to be taken of floats but not made."""
    if node.op not in _UNFINISHED_FLOATS or view.is_constant(node.output):
        return None
    if view.dequantized(node.input(0)) is not None and view.quantized(node.output):
        return None
    return Reason("it is computed in floats", (node.output,))


_UNFINISHED_FLOATS = frozenset({"Atan", "Elu", "HardSigmoid", "LpNormalization"})


def _float_quotient(view: FileView, node: FileNode) -> Reason | None:
    """What the backend has for integers, computed in floats, in front of a product.

    A product of integers it cannot make behind such floats that no float Mul has joined, and a
    float Mul not where it is the first one.
    """
    if node.op not in _LONG_WAY or view.is_constant(node.output) or _is_fully_quantized(view, node):
        return None
    made = view.producer(node.input(0))
    scaled = made is not None and made.op == "Mul" and _of_number(view, made)
    if node.op == "Div" and scaled and view.is_constant(node.input(1)):
        return None  # both factors become one
    if node.op == "Sub" and not view.is_constant(node.input(1)):
        readers = {reader.op for reader, _ in view.consumers(node.output)}
        if readers <= _JOINED:
            return None
    readers = view.consumers(node.output)
    if made is not None and made.op == "ReduceMean" and node.op in ("Exp", "Sqrt"):
        return None
    numbers = all(r.op == "Add" and _of_number(view, r) for r, _ in readers)
    if node.op == "Sub" and readers and numbers and view.rank(node.input(1)) == 0:
        return None  # both terms become one
    regions = _find_float_regions(view)
    if node.output in regions.before_integers:
        return Reason("it is computed in floats, and a product follows", (node.output,))
    first = regions.behind_mul.isdisjoint(node.inputs)
    if first and (node.op == "Reciprocal" or node.output in regions.before_mul):
        return Reason("it is computed in floats, and a first float Mul follows", (node.output,))
    return None


_LONG_WAY = frozenset({"Div", "Sub", "Exp", "Sqrt", "Reciprocal"})
_JOINED = frozenset({"Mul", "MatMul", "Pow"})


def _of_number(view: FileView, node: FileNode) -> bool:
    return any(map(view.is_constant, node.inputs))


def _is_fully_quantized(view: FileView, node: FileNode) -> bool:
    """True where all operands are dequantized and the result is quantized."""
    return bool(view.quantized(node.output)) and all(map(view.dequantized, node.inputs))


def _find_float_regions(view: FileView) -> FloatRegions:
    """Returns what stands before and behind the products of a file, found once."""
    if view.known_float_regions is None:
        ops = WEIGHTED | _JOINED | {"BatchNormalization"}
        joins = {n for n in view.nodes if n.op in ops and not _is_fully_quantized(view, n)}
        leading, integers, muls, behind = set[str](), set[str](), set[str](), set[str]()
        for node in reversed(view.nodes):
            if node.op in WEIGHTED or not leading.isdisjoint(node.outputs):
                leading.update(node.inputs)
            if is_quantize(node) and node.output in leading:
                integers.add(node.input(0))
            elif node in joins:
                muls.update(node.inputs)
            elif not (is_quantize(node) or is_dequantize(node)):
                for ahead in (integers, muls):
                    if not ahead.isdisjoint(node.outputs):
                        ahead.update(node.inputs)
        for node in view.nodes:
            joined = not (behind.isdisjoint(node.inputs) or _casts_integers(view, node))
            if node in joins or joined:
                behind.update(node.outputs)
        view.known_float_regions = FloatRegions(
            frozenset(integers), frozenset(muls), frozenset(behind)
        )
    return view.known_float_regions


def _casts_integers(view: FileView, node: FileNode) -> bool:
    """True for a Cast of stored integers: other than behind a DQ, floats begin anew there."""
    dtype = view.dtype(node.input(0)) if node.op == "Cast" else None
    return dtype is not None and not dtype.is_float


def _conversion(view: FileView, node: FileNode) -> Reason | None:
    """Rows of an input that are converted between a Transpose, a Reshape and a product."""
    if not is_quantize(node) or not any(r.op in WEIGHTED for r in _behind(view, node.output)):
        return None
    source = view.dequantized(node.input(0))
    stored = None if source is None else view.producer(source.node.input(0))
    reshaped = view.producer(stored.input(0)) if stored and is_quantize(stored) else None
    if source is None or reshaped is None or reshaped.op not in ("Reshape", "Flatten"):
        return None
    moved, target = _before(view, reshaped.input(0)), view.encoding(node)
    if moved is None or source.same_mapping(target) or not _turned_input(view, moved, reshaped):
        return None
    if source.dtype is not target.dtype:
        return None
    return Reason(f"it converts what {reshaped.op} '{reshaped.name}' moves", (node.output,))


def _turned_input(view: FileView, moved: FileNode, reshaped: FileNode) -> bool:
    """True for an input that is one matrix, turned, whose rows stay rows."""
    x, shape = view.dequantized(moved.input(0)), view.shape(moved.output)
    if moved.op != "Transpose" or x is None or view.producer(x.node.input(0)) is not None:
        return False
    rows = view.shape(reshaped.output)
    if shape is None or rows is None:
        return True
    order, last = [*range(len(shape))], len(shape) - 1
    order[-2:] = order[:-3:-1]
    perm = list(moved.attributes.get("perm", range(last, -1, -1)))
    matrix = last > 0 and all(dim == 1 for dim in shape[:-2])
    return matrix and perm == order and rows[-1:] == shape[-1:]


def _two_widths(view: FileView, node: FileNode) -> Reason | None:
    """8 and 16 bits at one operator: weights of such products, and sums, are no part of it."""
    if node.op in _SUMS:
        return _sum_of_two_widths(view, node)
    x, found = view.dequantized(node.input(0)), view.quantized(node.output)
    if node.op not in WEIGHTED or x is None or not found or _width(x) == _width(found[0]):
        return None
    weight = view.dequantized(node.input(1))
    channels = weight is not None and not weight.per_tensor
    if not (node.input(2) or channels) or not view.is_constant(node.input(1)):
        return None
    tensors = (x.node.input(0), found[0].node.output)
    return Reason(f"'{tensors[0]}' is {x.dtype}, its result is {found[0].dtype}", tensors)


_SUMS = frozenset({"Add", "Sub", "Mul", "Div"})


def _sum_of_two_widths(view: FileView, node: FileNode) -> Reason | None:
    sides = [view.dequantized(name) for name in node.inputs]
    if {_width(side) for side in sides if side is not None} < {8, 16}:
        return None
    for side in sides:
        if side is None or _width(side) != _WIDTH[DType.UINT8]:
            continue
        made = view.producer(side.node.input(0))
        if made is not None and is_quantize(made) and view.producer(made.input(0)) is not None:
            tensor = side.node.input(0)
            return Reason(f"'{tensor}' is {side.dtype}, another operand has 16 bits", (tensor,))
    return None


def _wide_weight(view: FileView, node: FileNode) -> Reason | None:
    """A product of integers by 16 bits; products of floats are taken."""
    x, weight = view.dequantized(node.input(0)), view.dequantized(node.input(1))
    if node.op not in WEIGHTED or x is None or x.dtype is None:
        return None
    if weight is None or not (view.quantized(node.output) or _clamped(view, node)):
        return None
    if weight.dtype not in (DType.INT16, DType.UINT16) or not view.is_constant(node.input(1)):
        return None
    bias, tensor = node.input(2), weight.node.input(0)
    if is_added_behind(view, node) or (x.dtype is DType.INT8 and not bias and weight.per_tensor):
        # it is taken as a product of floats, and padded with the smallest number
        wrong = is_padded(node) and x.zero() != x.dtype.qmin
        text = f"'{tensor}' is {weight.dtype}, and the padding is not {x.dtype}'s zero point"
        return Reason(text, (tensor,), effect=Effect.OTHER) if wrong else None
    return Reason(f"'{tensor}' is {weight.dtype}", (tensor,))


def wide_weight_on_v73(view: FileView, node: FileNode) -> Reason | None:
    """Weights of 16 bits that v73 does not take either: others than int16 around 0, or uint16.

    Those it takes beside activations of uint16 (of uint16 not in a Gemm, nor over one or three
    axes), and beside a bias in floats.
    """
    reason, weight = _wide_weight(view, node), view.dequantized(node.input(1))
    if reason is None or weight is None or reason.effect is not None:
        return reason
    x = view.dequantized(node.input(0))
    taken = weight.symmetric
    if weight.dtype is DType.UINT16:
        images = node.op not in _IMAGES or view.rank(node.input(0)) == _IMAGE_AXES
        taken = weight.per_tensor and images and node.op != "Gemm"
    taken = taken and x is not None and x.dtype is DType.UINT16
    return None if taken or is_fused_on_v73(view, node) else reason


def is_fused_on_v73(view: FileView, node: FileNode) -> bool:
    """True for a constant bias in floats, which makes v73 take weights of other types."""
    name, x = node.input(2), view.dequantized(node.input(0))
    if not name or not view.is_constant(name) or view.dequantized(name) is not None:
        return False
    return node.op == "Gemm" or (x is not None and x.dtype is DType.INT8)


def is_added_behind(view: FileView, node: FileNode) -> bool:
    """True for a float bias that is not a constant vector, or in few bits: a float sum."""
    name, x = node.input(2), view.dequantized(node.input(0))
    bias = view.dequantized(name) if name else None
    if not name or bias is not None:
        return bias is not None and bias.dtype is not DType.INT32
    if view.is_constant(name):
        return node.op == "Gemm" and view.rank(name) != 1
    return node.op == "Gemm" or (x is not None and x.dtype is DType.INT8)


def _of_onnxruntime(view: FileView, node: FileNode) -> Reason | None:
    """Operators on stored integers, those of onnxruntime's optimizer, and of other domains."""
    del view
    domain, _, op = node.op.rpartition("::")
    custom = domain not in ("", "com.microsoft") and not domain.startswith("ai.onnx")
    known = op.startswith("QLinear") or op in _ON_INTEGERS
    if op in ("QuantizeLinear", "DequantizeLinear") or not (known or custom):
        return None
    return Reason(f"operators of type {node.op} are not supported", (node.output,))


_ON_INTEGERS = frozenset(
    {
        "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
        "MatMulNBits", "FusedConv", "NhwcMaxPool", "QAttention", "DynamicQuantizeLSTM",
    }
)  # fmt: skip


def _one_channel(view: FileView, node: FileNode) -> Reason | None:
    """An input of one channel that a Concat converts, with windows over the result."""
    found = view.quantized(node.output)
    if node.op != "Concat" or node.attributes.get("axis") != 1 or not found:
        return None
    if all(reader.op not in _WINDOWS for reader in _behind(view, found[0].node.output)):
        return None
    for name in node.inputs:
        own, shape = view.dequantized(name), view.shape(name)
        if own is None or shape is None or own.same_mapping(found[0]) or shape[1:2] != (1,):
            continue
        if _before(view, name) is None:
            tensor = own.node.input(0)
            return Reason(f"'{tensor}' has one channel, and another scale", (tensor,))
    return None


_WINDOWS = _IMAGES | {"MaxPool", "AveragePool", "Pad"}


def _run_time_scale(view: FileView, node: FileNode) -> Reason | None:
    converts = is_quantize(node) or is_dequantize(node)
    if not converts or view.is_constant(node.input(1)):
        return None
    made = view.producer(node.input(0))
    if made is not None and only_dequantized(view, made):
        return None
    return Reason(f"its scale '{node.input(1)}' is made while the model runs", (node.output,))


_OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators that read no values."""


def _unrounded(view: FileView, node: FileNode) -> Reason | None:
    """Floats made of 8 bits that an operator has made: their rounding may be left out."""
    if node.op in COPIES or is_quantize(node) or is_dequantize(node) or view.quantized(node.output):
        return None
    if node.op in _OF_SHAPES:
        return None
    if _clamped(view, node) or behind_bias(view, node):
        return None
    for name in node.inputs:
        own = view.dequantized(name)
        if own is None or view.is_constant(name) or _width(own) != _WIDTH[DType.UINT8]:
            continue
        made = view.producer(own.node.input(0))
        if made is not None and is_quantize(made) and view.producer(made.input(0)) is not None:
            tensor = own.node.input(0)
            text = f"it reads '{tensor}' ({own.dtype}) in floats, which may not be rounded"
            return Reason(text, (tensor,), _UNROUNDED_STEPS)
    return None


_UNROUNDED_STEPS = 16
"""How far results of floats that are not rounded were off, up to a power of 2."""


def _round(view: FileView, node: FileNode) -> Reason | None:
    if node.op != "Round" or view.is_constant(node.output):
        return None
    source = view.dequantized(node.input(0))
    if source is not None and view.quantized(node.output):
        few = (view.rank(node.input(0)) or 0) <= MOST_AXES
        if few and source.dtype is not DType.INT16:
            return None
    return Reason("it rounds floats, int16, or more than four axes", (node.output,))


FLOAT_RULES: tuple[TargetRule, ...] = (
    TargetRule("instance-norm-parameters", "InstanceNormalization", _instance_norm, _UNFINISHED,
           Effect.REFUSED, "quantize operand and result to unsigned types, its scale to 8 bits, "
           "its bias to int32, each with one scale"),
    TargetRule("quantized-divisor", "Div in front of a Softmax and a MatMul", _divisor, _UNFINISHED,
           Effect.REFUSED, "quantize the divisor as the unsigned integer 1, or multiply"),
    TargetRule("no-float-gelu", "Gelu of floats, also step by step", _float_gelu,
           _UNFINISHED, Effect.REFUSED,
           "quantize operand and result"),
    TargetRule("no-float-where", "Where of float32", _where,
           f"{_UNFINISHED}; winml-cli 0.4.0, an NPU: with a quantized result it was taken",
           Effect.REFUSED, "quantize both operands and the result, or multiply by a mask and add"),
    TargetRule("half-bias", "Conv, ConvTranspose, Gemm", _half_bias,
           f"{_HOST}: 'inserted using the NHWC format as requested', and not taken",
           Effect.REFUSED, "quantize the bias to int32, scale x * scale w"),
    TargetRule("narrow-convolution", "weights of Conv and ConvTranspose", _narrow_convolution,
           f"{_HOST}: 'inserted using the NHWC format as requested', and not taken",
           Effect.REFUSED, "store int4 with one scale as int8, or give each channel a scale"),
    TargetRule("no-dynamic-convolution", "Conv and ConvTranspose of x - zero point", _dynamic,
           _UNFINISHED, Effect.REFUSED, "quantize the float model statically: qdqbridge quantize"),
    TargetRule("unfinished-floats", "Atan, Elu, HardSigmoid, LpNormalization of floats",
           _unfinished, _UNFINISHED, Effect.REFUSED, "quantize operand and result"),
    TargetRule("float-quotient", "Div, Sub, Exp, Sqrt and Reciprocal of floats before a product",
           _float_quotient, _UNFINISHED, Effect.REFUSED,
           "quantize operands and result; multiply by a reciprocal, add a negative"),
    TargetRule("early-conversion",
        "QuantizeLinear behind a turned input and Reshape, before a product",
           _conversion, f"{_HOST}: up to 107 LSB off", Effect.OTHER,
           "convert in front of the Reshape"),
    TargetRule("one-width", "8 bits beside 16: products with a bias or channels, sums of results",
           _two_widths, f"{_HOST}: parameters are left to the CPU, sums up to 232 LSB off",
           Effect.OTHER, "requantize the 8 bits to uint16 in 256 steps for each one"),
    TargetRule("wide-weights", "weights of 16 bits", _wide_weight,
           f"{_HOST}: 'fails the backend's validation, code 3110'", Effect.ELSEWHERE,
           "store them in 8 bits, or name a Hexagon of v73 or later (provider option htp_arch)"),
    TargetRule("one-channel", "Concat of an input with one channel, before windows", _one_channel,
           f"{_HOST}: up to 218 LSB off", Effect.OTHER,
           "requantize it to the result's scale and zero point"),
    TargetRule("on-integers", "QLinear operators, what onnxruntime fuses, other domains",
           _of_onnxruntime, f"{_HOST}: left to the CPU", Effect.ELSEWHERE,
           "write DequantizeLinear and QuantizeLinear"),
    TargetRule("run-time-scale", "Q and DQ", _run_time_scale, f"{_HOST}: left to the CPU",
           Effect.ELSEWHERE, "write scales as initializers"),
    TargetRule("wide-before-floats", "floats computed of 8-bit results", _unrounded,
           f"{_HOST}: up to 9 LSB off behind a Tanh", Effect.OTHER,
           "requantize to uint16 in 256 steps for each one, which are the same numbers"),
    TargetRule("no-round", "Round", _round, _UNFINISHED, Effect.REFUSED,
           "read it with --decomposed where it quantizes step by step"),
    TargetRule("lost-clamp", "Concat, and QuantizeLinear behind a Q/DQ pair", lost_clamp,
           f"{_HOST}: up to 122 LSB off", Effect.OTHER,
           "put a Max with the smallest number that can be stored in front"),
    TargetRule("one-encoding", "DQ of one tensor", _shared, f"{_HOST}: up to 90 LSB off",
        Effect.OTHER,
           "store a constant once for each scale; read other tensors in one way"),
    TargetRule("float-padding", "Conv and ConvTranspose of DQ, result not quantized", _padded,
           f"{_HOST}: 8 bits are padded with the smallest number", Effect.OTHER,
           "quantize the result, or pad the stored integers"),
    TargetRule("float-products", "products in floats", _float_weight,
           f"{_HOST}: 'does not support a standalone DQ op with per-channel quantization'",
           Effect.ELSEWHERE, "quantize operand and result, or write float weights"),
    TargetRule("no-erf", "Erf", _erf,
        f"{_HOST}: 'Operators of type `Erf` are not supported by QNN EP'",
           Effect.ELSEWHERE, "write a Gelu whose operand and result are quantized"),
)  # fmt: skip
