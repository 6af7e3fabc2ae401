"""Weights, biases and operands of products as Hexagon takes them, and computes them right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import NO_ORIGIN, Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow, WeightGeometry, geometry_of
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, per_tensor
from qdqbridge.core.ops.attributes import PadAttrs
from qdqbridge.core.ops.build import constant, dequantized, quantized, result, retyped
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, SUB
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION
from qdqbridge.core.ops.selection import PAD
from qdqbridge.core.ops.shapes import laid_along
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, replaced, rule
from qdqbridge.targets.profiles.file_view import FileEncoding, FileNode, FileView, is_quantize
from qdqbridge.targets.profiles.finding import Reason
from qdqbridge.targets.profiles.hexagon.units import (
    behind_bias,
    bias_sum,
    biased,
    is_bias,
    kept,
    stored_bias,
)
from qdqbridge.targets.profiles.shared_rules import WEIGHTED

# ---- How far results of 16 bits are off on Hexagon
#
# Measured on the host build of the backend (onnxruntime-qnn 2.7.0). With weights around zero a
# product is some 20 steps off on v68 and v69, whatever it sums: scale x * scale w / scale y is
# kept in few bits (a power of two is exact). From v73 on it is off by some 256 units of scale x *
# scale w, and keeps 10 bits of a typical sum where weights have 16 bits. With other weights, and
# of two activations, each keeps about 7 bits: the error follows the largest numbers of the
# operands and the square root of the number of terms. Products of 8 bits with results of 16 are
# exact. Functions are the same in all of them.

_WIDE_WIDE = (DType.INT16, DType.UINT16)
_ROUGH_FLOATS = frozenset({"LayerNormalization"})
"""Operators that are off in floats as well: the others are exact."""
_PRODUCT_STEPS, _SUM_BITS = 64, 7
"""What every product is off (twice as much of 4 bits), and the bits that it keeps of a sum."""
_V73_STEPS, _V73_WIDE_BITS = 2, 10
"""The same from v73 on, of weights of 16 bits around zero."""
_V73_UNITS, _V73_BIAS_UNITS, _V73_ROOT_UNITS = 512, 256, 32
"""Of fewer bits: units of scale x * scale w, with a bias more, and by the root of the terms."""
_TERMS = 64
"""Terms of a product whose shapes are not known."""


def wide_arithmetic(view: FileView, node: FileNode) -> Reason | None:
    """Returns how far a result of 16 bits may be off on v68; see :class:`TargetRule`."""
    return _off(view, node, _of_product)


def wide_arithmetic_of_v73(view: FileView, node: FileNode) -> Reason | None:
    """Returns the same on v73 and later."""
    return _off(view, node, _of_product_on_v73)


Bound: TypeAlias = "Callable[[FileView, FileNode, FileEncoding], int | None]"


def _off(view: FileView, node: FileNode, of_product: Bound) -> Reason | None:
    found = view.quantized(node.output) or behind_clamp(view, node) or behind_bias(view, node)
    sum_ = bias_sum(view, node)
    found = found or ([] if sum_ is None else behind_clamp(view, sum_))
    if is_bias(view, node):
        return None  # said of its product
    if not (is_of_integers(view, node) or node.op in _ROUGH_FLOATS):
        return None
    if not found or found[0].dtype is None or _exact_norm(view, node):
        return None
    if found[0].dtype in _WIDE_WIDE:
        x = view.dequantized(node.input(0))
        most = None if x is None else largest(x)
        weighted = node.op in WEIGHTED
        bound = of_product if weighted else partial(steps_of, most=most)
        steps = bound(view, node, found[0])
    else:
        steps = _of_activations(view, node, found[0])
    if steps is None:
        return None
    tensor, number = found[0].node.output, 1 << found[0].dtype.bits
    text = f"'{tensor}' ({found[0].dtype}) is up to {steps} of {number} steps off"
    return Reason(text, (tensor,), steps)


def _exact_norm(view: FileView, node: FileNode) -> bool:
    """True for a LayerNormalization of integers with a scale of uint8, and no bias or int32."""
    if node.op != "LayerNormalization" or not is_of_integers(view, node):
        return False
    gain, bias = (view.dequantized(node.input(index)) for index in (1, 2))
    whole = not node.input(2) or (bias is not None and bias.dtype is DType.INT32)
    return whole and gain is not None and gain.dtype is DType.UINT8


def is_of_integers(view: FileView, node: FileNode) -> bool:
    """True where what is computed with comes from a DQ; else the backend computes in floats."""
    operands = [name for name in node.inputs if name and not view.is_constant(name)]
    return all(view.dequantized(name) is not None for name in operands)


def behind_clamp(view: FileView, node: FileNode) -> list[FileEncoding]:
    """Returns what quantizes a result behind the clamp that alone reads it."""
    readers = view.consumers(node.output)
    clamp = readers[0][0] if len(readers) == 1 else None
    known = clamp is not None and clamp.op in ("Relu", "Clip")
    return list(view.quantized(clamp.output)) if known and clamp is not None else []


def _of_product(view: FileView, node: FileNode, result: FileEncoding) -> int | None:
    """Returns a bound in steps; None where it is exact."""
    x, scale = view.dequantized(node.input(0)), largest_scale(result)
    if x is not None and x.dtype not in _WIDE_WIDE:
        return None
    weight = view.dequantized(node.input(1))
    known = x is not None and scale is not None and not _wide_around_zero(view, weight)
    sum_ = _typical_sum(view, node, x) if known and x is not None else None
    narrow = weight is not None and weight.dtype in (DType.INT4, DType.UINT4)
    steps = 2 * _PRODUCT_STEPS if narrow else _PRODUCT_STEPS
    if sum_ is not None and scale is not None:
        steps += math.ceil(sum_ / scale / (1 << _SUM_BITS))
    return min(1 << (steps - 1).bit_length(), 1 << 16)


def _of_product_on_v73(view: FileView, node: FileNode, result: FileEncoding) -> int | None:
    x, weight = (view.dequantized(name) for name in node.inputs[:2])
    scale = largest_scale(result)
    if not _wide_around_zero(view, weight) or x is None or scale is None or weight is None:
        return _of_product(view, node, result)
    if x.dtype not in _WIDE_WIDE:
        return None
    if weight.dtype in _WIDE_WIDE:
        bias = stored_bias(view, node)
        if bias and view.dequantized(bias) is None and not weight.per_tensor:
            return 1 << 16  # a float bias is added in units of another scale
        sum_ = _typical_sum(view, node, x)
        off = 0.0 if sum_ is None else sum_ / (1 << _V73_WIDE_BITS)
    else:
        units = _V73_UNITS + _V73_ROOT_UNITS * math.sqrt(_terms_of_weights(view, node))
        units += _V73_BIAS_UNITS * bool(stored_bias(view, node))
        off = units * (largest_scale(x) or 0.0) * (largest_scale(weight) or 0.0)
    return min(_V73_STEPS + math.floor(off / scale), 1 << 16)


def _terms_of_weights(view: FileView, node: FileNode) -> int:
    """Returns how many products a product with constant weights sums up."""
    shape = [dim for dim in view.shape(node.input(1)) or () if isinstance(dim, int)]
    if len(shape) < _MATRIX:
        return _TERMS
    if node.op == "Gemm":
        return shape[-1] if node.attributes.get("transB", 0) else shape[-2]
    if node.op == "MatMul":
        return shape[-2]
    return math.prod(shape) // shape[1 if node.op == "ConvTranspose" else 0]


def _wide_around_zero(view: FileView, weight: FileEncoding | None) -> bool:
    """True for stored weights whose zero point is the middle of their type."""
    if weight is None or weight.dtype is None or weight.scale is None:
        return False
    zeros = np.zeros(1) if weight.zero_point is None else weight.zero_point.astype(np.int64)
    middle = (int(weight.dtype.qmin) + int(weight.dtype.qmax) + 1) // 2
    return view.is_constant(weight.node.input(0)) and not (zeros - middle).any()


def _of_activations(view: FileView, node: FileNode, result: FileEncoding) -> int | None:
    """Returns a bound for 8 bits: of two activations it keeps as little, if less is asked for."""
    x, other = (view.dequantized(name) for name in (node.input(0), node.input(1)))
    scale = largest_scale(result)
    if node.op != "MatMul" or x is None or other is None or scale is None:
        return None
    if view.is_constant(node.input(1)) or {x.dtype, other.dtype} != {DType.UINT8}:
        return None
    if other.scale is None:
        return None
    number = 1 if is_average(view, x) else terms(view, node)
    sum_ = largest(x) * largest(other) * math.sqrt(number)
    steps = math.ceil(sum_ / scale / (1 << _SUM_BITS))
    return steps if other.zero() != _WIDE_MIDDLE and steps > _FEW else None


_WIDE_MIDDLE, _FEW = 128, 4
"""The zero point that is nothing to subtract, and the bound below which 2 steps were not seen."""


def _typical_sum(view: FileView, node: FileNode, x: FileEncoding) -> float | None:
    """Returns a sum of products of the largest operands, signs at random, in real units."""
    other, most = view.dequantized(node.input(1)), largest(x)
    if other is None:
        return _sum_of_floats(view, node, most)
    if other.dtype is None or other.scale is None:
        return None
    stored = other.node.input(0)
    array = view.constant(stored) if view.is_constant(stored) else None
    middle = (int(other.dtype.qmin) + int(other.dtype.qmax) + 1) // 2
    if array is None:
        return most * largest(other) * math.sqrt(terms(view, node))
    norms = _norms(node, array.astype(np.float64) - middle)
    along = other.scale.reshape(-1) if other.scale.size == len(norms) else other.scale.max()
    return most * float((norms * along).max(initial=0))


def terms(view: FileView, node: FileNode) -> int:
    """Returns how many products a MatMul of two activations sums up."""
    other = view.dequantized(node.input(1))
    shape = (None if other is None else view.shape(other.node.input(0))) or ()
    shape = shape or view.shape(node.input(1)) or ()
    number = shape[-2] if len(shape) > 1 else None
    return number if isinstance(number, int) else _TERMS


def is_average(view: FileView, x: FileEncoding) -> bool:
    """True for what a Softmax gives: a product with it is an average of the other operand."""
    stored = view.producer(x.node.input(0))
    made = None if stored is None else view.producer(stored.input(0))
    return made is not None and made.op == "Softmax"


def _sum_of_floats(view: FileView, node: FileNode, most: float) -> float | None:
    """Returns it for weights in floats, which the backend quantizes, their zero point anywhere."""
    weight = view.constant(node.input(1))
    if weight is None or weight.ndim < _MATRIX:
        return None
    return most * float(_norms(node, weight.astype(np.float64)).max(initial=0))


_MATRIX = 2


def _norms(node: FileNode, weight: Array) -> Array:
    """Returns the root of the sum of squares for each result channel."""
    axis = {"Conv": 0, "ConvTranspose": 1}.get(node.op, weight.ndim - 1)
    axis = 0 if node.attributes.get("transB", 0) else axis
    rows = np.moveaxis(weight, axis, 0)
    return np.sqrt((rows.reshape(len(rows), -1) ** 2).sum(axis=1))


def largest(side: FileEncoding) -> float:
    """Returns the largest real number that an operand can have."""
    assert side.dtype is not None
    zero, scale = side.zero(), largest_scale(side) or 1.0
    return scale * max(zero - int(side.dtype.qmin), int(side.dtype.qmax) - zero)


def largest_scale(found: FileEncoding) -> float | None:
    """Returns the largest scale, None where it is not known."""
    known = found.scale is not None and found.scale.size > 0
    return float(found.scale.max()) if known and found.scale is not None else None


# ---- functions -----------------------------------------------------------------------------------
#
# How far functions of 16 bits are off on Hexagon: the same on every architecture.
#
# Measured over all 65,536 operands in several ranges (onnxruntime-qnn 2.7.0, host build). Steps
# that are the same in every encoding of the result are errors of the integers; where another scale
# has as many times fewer, the function itself is an approximation, and no encoding makes it
# better.

Error = Callable[[FileView, FileNode, float], float]
"""Returns the error in real numbers, of an operand's largest number."""
_WIDE_STEPS = {
    "LayerNormalization": 64, "Div": 32, "Sigmoid": 8, "Tanh": 8, "Add": 4, "Sub": 4, "Mul": 4,
    "Atan": 4, "Exp": 16, "HardSigmoid": 4, "Log": 4, "LogSoftmax": 4, "Reciprocal": 16,
    "Sqrt": 128,
}  # fmt: skip
"""Steps of the result that were seen, rounded up to a power of 2."""
_ROUNDED = 2


def steps_of(
    view: FileView, node: FileNode, result: FileEncoding, most: float | None
) -> int | None:
    """Returns by how many steps of a result a function may be off; None where it is right.

    Args:
        view: The file.
        node: The function.
        result: The encoding of its result.
        most: The largest number of its operand, None where it is not known.
    """
    error = _ERRORS.get(node.op)
    if error is None:
        return _WIDE_STEPS.get(node.op)
    scale = None if result.scale is None else float(result.scale.max(initial=0))
    if not scale or most is None:
        return 1 << 16
    return min(_ROUNDED + math.ceil(error(view, node, most) / scale), 1 << 16)


def _gelu(view: FileView, node: FileNode, most: float) -> float:
    """A thousandth of small numbers, and less of larger ones."""
    del view, node
    return min(1e-3 * most, 2.2e-3 + 3e-4 * most)


def _softplus(view: FileView, node: FileNode, most: float) -> float:
    del view, node, most
    return 1.28e-2


def _softmax(view: FileView, node: FileNode, most: float) -> float:
    """Some hundredths of the mean of its row."""
    del most
    shape, axis = view.shape(node.input(0)) or (), int(node.attributes.get("axis", -1))
    extent = shape[axis] if -len(shape) <= axis < len(shape) else None
    return 1.6e-2 / (extent if isinstance(extent, int) and extent else 2)


_ERRORS: Mapping[str, Error] = MappingProxyType(
    {"Gelu": _gelu, "Softplus": _softplus, "Softmax": _softmax}
)


@rule("product-in-floats")
def float_products(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w) -> Conv(Pad(x), dequantize(w))`` where operand or result is float.

    The backend then computes in floats: it takes no weights per channel, and pads a dequantized
    operand with other numbers than 0.
    """
    del context
    if node.op is DEQUANTIZE and _only_with_integers(node, node.operand(0)):
        return Replace({node.output: as_floats(node.operand(0), node.output.type.dtype)})
    if node.op.flow is not Flow.ACCUMULATE:
        return None
    x = node.operand(0)
    if node.output.quant is not None and x.quant is not None:
        return None
    operands = [
        as_floats(value, _float_type(node))
        if index and value is not None and _only_with_integers(node, value)
        else value
        for index, value in enumerate(node.inputs)
    ]
    conv, attributes = CONV.of(node), node.attributes
    if x.quant is not None and conv is not None and any(conv.pads) and x.rank is not None:
        operands[0] = x = _padded(x, conv.pads)
        attributes = replace(conv, pads=(0,) * len(conv.pads))
    if _quantized_on_the_way(node) or (x.quant is not None and CONV_TRANSPOSE.of(node) is not None):
        stored = x.quant is not None
        real = dequantized(x, _float_type(node), name=f"{x.name}_real") if stored else x
        # A DQ in front would be taken into the product again; two negations, which nobody folds,
        # keep it apart.
        operands[0] = _negated_twice(real)
    if operands == node.inputs:
        return None
    return replaced(node, node.op, attributes, operands)


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


def as_floats(value: Value, dtype: DType) -> Value:
    """Returns a stored constant as the real numbers that it stands for."""
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


def _quantized_on_the_way(node: Node) -> bool:
    """True for a product of dequantized numbers and floats with a bias, whose result is quantized.

    onnxruntime quantizes such a bias before the provider sees it, which then takes the product in
    floats and leaves the bias to the CPU. A normalization behind becomes a bias first.
    """
    made, weight = node.operand(0).producer, node.operand(1)
    dequantizes = made is not None and made.op is DEQUANTIZE
    from_integers = dequantizes or node.operand(0).quant is not None
    readers = {user.op for user, _ in node.output.users}
    ends = node.output.quant is not None or QUANTIZE in readers or BATCH_NORMALIZATION in readers
    biased = node.optional(2) is not None or BATCH_NORMALIZATION in readers
    return from_integers and ends and biased and weight.constant is not None


def _negated_twice(real: Value) -> Value:
    """Returns real numbers, negated twice: neither onnxruntime nor the backend changes those."""
    neg, name = BY_NAME["Neg"], real.name
    for _ in range(2):
        real = result(neg, NO_ATTRIBUTES, [real], real.type, NO_ORIGIN, f"{name}_negated")
    return real


@rule("wide-product-in-floats", CONV, CONV_TRANSPOSE, DENSE, GEMM, MATMUL)
def wide_products(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w) -> quantize(Conv(dequantize(x), w))`` of 16 bits, where little is kept of a sum.

    Of two activations, and of weights whose zero point is not the middle of their type, the backend
    keeps 7 bits of a typical sum; of floats it keeps all.
    """
    del context
    quant = node.output.quant
    if quant is None or not _keeps_little(node):
        return None
    dtype, name = quant.params.expressed_dtype, node.output.name
    real = _negated_twice(dequantized(node.operand(0), dtype, name=f"{name}_operand"))
    operands: list[Value | None] = [real]
    for value in node.inputs[1:]:
        constant_operand = value is not None and value.is_constant and value.quant is not None
        operands.append(as_floats(value, dtype) if value and constant_operand else value)
    weight = operands[1]
    if weight is not None and weight.quant is not None:
        operands[1] = _negated_twice(dequantized(weight, dtype, name=f"{name}_weight"))
    type_ = TensorType(dtype, node.output.type.shape)
    inside = retyped(node, operands, type_, f"{name}_real")
    value = quantized(inside, quant.params, node.origin, name)
    return Replace({node.output: value}, (Note("wide-arithmetic", node.name, _IN_FLOATS),))


_IN_FLOATS = (
    "it is computed in floats: exactly by the host build of the backend, with 11 bits by an NPU, "
    "where integers keep 7 bits of a typical sum"
)


_OPERAND_AND_RESULT = 2


def _keeps_little(node: Node) -> bool:
    """True for a product of 16 bits whose weights are no integers around zero."""
    x, weight = node.operand(0), node.operand(1)
    sides = [v.quant.params for v in (x, node.output) if v.quant is not None]
    wide = [p for p in sides if p.per_tensor and p.storage_dtype in (DType.UINT16, DType.INT16)]
    if len(wide) < _OPERAND_AND_RESULT or x.is_constant:
        return False
    if weight.quant is None:
        return weight.is_constant
    params = weight.quant.params
    if params.storage_dtype in (DType.UINT16, DType.INT16):
        return not weight.is_constant and params.per_tensor
    middle = (int(params.storage_dtype.qmin) + int(params.storage_dtype.qmax) + 1) // 2
    return weight.is_constant and bool((params.zero_point != middle).any())


@rule("blocks-as-channels")
def channels_of_blocks(node: Node, context: RuleContext) -> Proposal:
    """Weights in blocks, along terms, or with zero points of their own, as int8 per channel.

    Between stored operands and a stored result, where the product is one of integers then.
    """
    del context
    if node.op.flow is not Flow.ACCUMULATE:
        return None
    x, weight, end = (*map(_stored_behind, node.inputs[:2]), _stored_end(node))
    if weight is None or weight.constant is None or weight.quant is None or end is None:
        return None
    params, geometry = weight.quant.params, geometry_of(node)
    if geometry is None or x is None or x.quant is None or x.is_constant:
        return None
    along_terms = params.axis != geometry.axis
    if params.per_tensor or not (params.blocked or along_terms or _lopsided(params)):
        return None
    real = dequantize(weight.constant.numpy(), params).astype(np.float64)
    stored, own = _per_channel(real, geometry.axis)
    noise = float(((dequantize(stored, own) - real) ** 2).sum())
    operands = [x, constant(stored, own, weight.name), *node.inputs[2:]]
    bias = node.optional(2)
    if bias is not None and bias.constant is not None and bias.quant is not None:
        operands[2] = as_floats(bias, DType.FLOAT32)
    value = result(node.op, node.attributes, operands, end.type, node.origin, end.name)
    lost = "exact" if not noise else f"{10 * np.log10((real**2).sum() / noise):.1f} dB"
    other = "scales along its terms" if along_terms else "other zero points"
    kind = f"blocks of {params.block_size}" if params.blocked else other
    text = f"its weight had {kind}, now int8 per channel: {lost} signal to noise"
    return Replace({end: value}, (Note("no-blocks", node.name, text),))


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


@rule("half-bias-in-int32", CONV, CONV_TRANSPOSE, DENSE, GEMM)
def half_biases(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w, b)`` of half floats: the bias in int32, in units of scale x * scale w.

    Written as half floats, which it is otherwise, it makes the provider give up the whole file.
    """
    del context
    bias = node.optional(2)
    sides = [v.quant.params for v in (*node.inputs[:2], node.output) if v and v.quant]
    if bias is None or bias.constant is None or len(sides) < _WHOLE:
        return None
    own = None if bias.quant is None else bias.quant.params.expressed_dtype
    if sides[0].expressed_dtype is not DType.FLOAT16 or own is DType.FLOAT16:
        return None
    wanted = (sides[0].scale.astype(np.float32) * sides[1].scale.astype(np.float32)).reshape(-1)
    scale = wanted.astype(np.float16)
    if (np.abs(scale.astype(np.float32) - wanted) > wanted / _BIAS_NEAR).any():
        return None  # too small for half floats: the backend takes scale x * scale w in any case
    array = bias.constant.numpy()
    array = array if bias.quant is None else dequantize(array, bias.quant.params)
    real, single = array.astype(np.float64), scale.size == 1
    stored = np.rint(real / scale.astype(np.float64)).astype(np.int32)
    params = QuantParams(
        DType.INT32,
        scale.reshape(()) if single else scale,
        np.zeros(() if single else scale.shape, np.int32),
        axis=None if single else 0,
        expressed_dtype=DType.FLOAT16,
    )
    off = float((np.abs(stored * scale.astype(np.float64) - real) / wanted).max(initial=0))
    text = f"its bias is rounded to int32: {off:.2g} of scale x * scale w off"
    operands = {(node, 2): constant(stored, params, bias.name)}
    return Replace(notes=(Note("half-bias", node.name, text),), operands=operands)


_WHOLE = 3
"""Operand, weight and result."""
_BIAS_NEAR = 100
"""How near the product of two scales is in half floats: 1 in 100, as rule bias-int32 wants it."""


@rule("int4-in-bytes", CONV, CONV_TRANSPOSE)
def whole_bytes(node: Node, context: RuleContext) -> Proposal:
    """Weights of int4 with one scale as int8: the same integers, for convolutions."""
    del context
    weight = node.operand(1)
    params = None if weight.constant is None or weight.quant is None else weight.quant.params
    if params is None or weight.constant is None or params.storage_dtype is not DType.INT4:
        return None
    if not (params.per_tensor and params.symmetric):
        return None
    own = replace(params, storage_dtype=DType.INT8)
    data = weight.constant.map(lambda array: array.astype(DType.INT8.numpy), dtype=DType.INT8)
    return Replace(operands={(node, 1): constant(data, own, weight.name)})


# ---- weights that fill their 8 bits --------------------------------------------------------------
#
# Weights that fill their 8 bits, beside activations of 16.
#
# From v73 on such a product is off by some 256 steps of scale x * scale w, whatever it sums. A
# weight of 4 bits, and one of 8 whose numbers are small, has the same real numbers in a finer
# scale.

Array = NDArray[Any]
_WIDE = (DType.UINT16, DType.INT16)
_NARROW = (DType.INT4, DType.UINT4, DType.INT8, DType.UINT8)
_TOP, _TOP_OF_BIAS = 127, (1 << 31) - 1


@rule("weights-that-fill-8-bits", CONV, CONV_TRANSPOSE, DENSE, GEMM, MATMUL)
def stretched_weights(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w in int4) -> Conv(x, 16 * w in int8, scale / 16)``: the same real numbers."""
    del context
    weight, bias = node.operand(1), node.optional(2)
    if weight.constant is None or weight.quant is None or not _of_16_bits(node):
        return None
    params = weight.quant.params
    if params.storage_dtype not in _NARROW or params.blocked or not _around_zero(params):
        return None
    middle = int(params.zero_point.reshape(-1)[0]) if params.zero_point.size else 0
    codes = weight.constant.numpy().astype(np.int32) - middle
    powers = _powers(codes, params)
    if not powers.any():
        return None
    own = _finer(params, powers, DType.INT8)
    finer = _finer_bias(bias, powers)
    if own is None or (bias is not None and finer is None):
        return None
    data = (codes << laid_along(powers, params.axis, codes.ndim)).astype(np.int8)
    operands = {(node, 1): constant(data, own, weight.name)}
    return Replace(operands=operands if finer is None else operands | {(node, 2): finer})


def _of_16_bits(node: Node) -> bool:
    sides = (node.operand(0).quant, node.output.quant)
    return all(quant is not None and quant.params.storage_dtype in _WIDE for quant in sides)


def _around_zero(params: QuantParams) -> bool:
    middle = (int(params.storage_dtype.qmin) + int(params.storage_dtype.qmax) + 1) // 2
    return not (params.zero_point != middle).any()


def _powers(codes: Array, params: QuantParams) -> Array:
    """Returns by which powers of two the numbers still fit into int8, for each scale."""
    others = (
        None if params.axis is None else tuple(a for a in range(codes.ndim) if a != params.axis)
    )
    above, below = codes.max(axis=others, initial=0), -codes.min(axis=others, initial=0)
    fit = np.minimum(_TOP / np.maximum(above, 1), (_TOP + 1) / np.maximum(below, 1))
    return np.floor(np.log2(fit)).clip(0).astype(np.int32)


def _finer(params: QuantParams, powers: Array, dtype: DType) -> QuantParams | None:
    """Returns the same mapping in finer steps, None where its scale has no such bits."""
    scale = np.ldexp(params.scale, -powers).astype(params.scale.dtype)
    if (np.ldexp(scale, powers) != params.scale).any():
        return None
    zeros = np.zeros(scale.shape, np.int32)
    return replace(
        params, storage_dtype=dtype, scale=scale, zero_point=zeros,
        qmin=int(dtype.qmin), qmax=int(dtype.qmax),
    )  # fmt: skip


def _finer_bias(bias: Value | None, powers: Array) -> Value | None:
    """Returns a stored bias in the new steps, None where there is none or it does not fit."""
    if bias is None or bias.constant is None or bias.quant is None:
        return bias
    params = bias.quant.params
    if params.scale.size != powers.size:
        return None
    own = _finer(params, powers.reshape(params.scale.shape), DType.INT32)
    stored = bias.constant.numpy().astype(np.int64) << powers.reshape(-1)
    if own is None or np.abs(stored).max(initial=0) > _TOP_OF_BIAS or params.zero_point.any():
        return None
    return constant(stored.astype(np.int32), own, bias.name)


# ---- weights in digits ---------------------------------------------------------------------------
#
# Weights of 16 bits as two digits of 8: v68 does not take them, v73 keeps 10 bits of their sums.
#
# ``w = 257 * high + low``, each from -128 to 127, so that two products with weights of 8 bits and
# a sum are the product, which every Hexagon takes and v73 computes within a few steps.

_BASE, _LOW, _HIGH = 257, -128, 127
"""With 256 the largest weights, of which every symmetric tensor has one, would have no digits."""
_STEPS, _MIDDLE = (1 << 16) - 1, 1 << 15


@rule("weights-in-digits", CONV, CONV_TRANSPOSE, DENSE, GEMM, MATMUL)
def weights_in_digits(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w) -> Add(Conv(x, high), Conv(x, low))``: int16 weights as two of int8."""
    del context
    x, weight, quant = node.operand(0), node.operand(1), node.output.quant
    if not (_is_wide(x) and quant is not None and _is_wide(weight) and weight.constant):
        return None
    params, geometry = weight.quant.params if weight.quant else None, geometry_of(node)
    if params is None or params.blocked or geometry is None or x.is_constant:
        return None
    along = params.axis is None or params.axis == geometry.axis
    if not along or quant.params.storage_dtype not in _WIDE or not quant.params.per_tensor:
        return None
    digits = _digits(weight.constant.numpy().astype(np.int64) - _zeros(params, weight))
    value = _sum_of_two(node, digits, params, geometry)
    return Replace({node.output: value}, (Note("wide-weights", node.name, _TWO_PRODUCTS),))


_TWO_PRODUCTS = (
    "its weights of 16 bits are two of 8, whose products are added; a weight of 32767 is 32766"
)


def _is_wide(value: Value) -> bool:
    return value.quant is not None and value.quant.params.storage_dtype in _WIDE


def _zeros(params: QuantParams, weight: Value) -> Array:
    """Returns zero points in the shape in which they are subtracted."""
    zeros = params.zero_point.astype(np.int64)
    if params.axis is None:
        return zeros.reshape(())
    shape = [1] * (weight.rank or 1)
    shape[params.axis] = -1
    return zeros.reshape(shape)


def _digits(centred: Array) -> tuple[Array, Array]:
    high = np.clip(np.rint(centred / _BASE), _LOW, _HIGH)
    low = np.clip(centred - _BASE * high, _LOW, _HIGH)
    return high.astype(np.int8), low.astype(np.int8)


def _sum_of_two(
    node: Node, digits: tuple[Array, Array], params: QuantParams, geometry: WeightGeometry
) -> Value:
    """Returns the sum of two products, in the encoding of the result."""
    x, weight, output = node.operand(0), node.operand(1), node.output
    assert x.quant is not None and output.quant is not None
    scale = params.scale.astype(np.float32)
    own = [_of_8_bits(params, scale * np.float32(f)) for f in (_BASE, 1)]
    rest = _largest_rest(x.quant.params, geometry.rows(dequantize(digits[1], own[1])))
    shape, name = output.type.shape, output.name
    types = [QuantType(p, shape) for p in _encodings(output.quant.params, rest)]
    high, low = (constant(d, p, weight.name) for d, p in zip(digits, own, strict=True))
    bias = node.optional(2)
    if bias is not None and bias.constant is not None and bias.quant is not None:
        bias = as_floats(bias, DType.FLOAT32)
    operands = [x, high, *([] if bias is None else [bias])]
    first = retyped(node, operands, types[0], f"{name}_high")
    second = retyped(node, [x, low], types[1], f"{name}_low")
    return result(ADD, NO_ATTRIBUTES, [first, second], output.type, node.origin, name)


def _of_8_bits(params: QuantParams, scale: Array) -> QuantParams:
    zeros = np.zeros(scale.shape, np.int32)
    return QuantParams(DType.INT8, scale.astype(np.float32), zeros, axis=params.axis)


def _largest_rest(x: QuantParams, rows: Array) -> float:
    """Returns what the product with the low digits can be at most."""
    scale, zero = float(x.scale.reshape(-1)[0]), int(x.zero_point.reshape(-1)[0])
    most = scale * max(zero - int(x.storage_dtype.qmin), int(x.storage_dtype.qmax) - zero)
    return most * float(np.abs(rows).sum(axis=1, dtype=np.float64).max(initial=0))


def _encodings(own: QuantParams, rest: float) -> tuple[QuantParams, QuantParams]:
    """Returns those of both products: the result's range and what is added to it, and the rest."""
    scale, zero = float(own.scale.reshape(-1)[0]), int(own.zero_point.reshape(-1)[0])
    low, high = (
        scale * (int(end) - zero) for end in (own.storage_dtype.qmin, own.storage_dtype.qmax)
    )
    step = (high - low + 2 * rest) / _STEPS
    first = per_tensor(DType.UINT16, np.float32(step), round((rest - low) / step))
    fine = max(rest / _MIDDLE, float(np.finfo(np.float32).tiny))
    return first, per_tensor(DType.UINT16, np.float32(fine * (1 + 1e-6)), _MIDDLE)


# ---- Second factors of matrix products that Hexagon computes around the middle of their type -----
# Where a sum or a product makes the second of two activations of a MatMul, and its zero point is at
# most 16 steps from the middle of its 8 bits, the backend computes it around the middle: what ends
# at 127 steps above the middle is lost of the end that reached further, and what the other end had
# clamped comes out again (onnxruntime-qnn 2.7.0, host build). A Max in between that changes nothing
# keeps the zero point. No zero point in the middle does so with as few bits: the numbers that are
# stored are 256, and others.


_NEAR = 16
"""How many steps a zero point may be from the middle to be moved there."""
_TURNS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators through which the backend sees what has made a factor."""
_SUMS = frozenset({"Add", "Sub"})
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_FACTOR_ROUNDED, _FACTOR_STEPS = 1, 2
"""What a rounding is off, and how many steps are not worth a word."""


@rule("factor-kept", MATMUL)
def kept_factors(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(x, Add(a, b)) -> MatMul(x, Max(Add(a, b), lowest))``, also behind a Transpose."""
    reader, index = node, 1
    while (made := reader.operand(index).producer) is not None and made.op.name in _TURNS:
        reader, index = made, 0
    value = reader.operand(index)
    if value.is_constant or not _is_moved(value):
        return None
    return Replace(operands={(reader, index): context.once(kept, value)})


def _is_moved(value: Value) -> bool:
    """True for the result of a sum or a product without channels, near the middle of its type."""
    made, quant = value.producer, value.quant
    if made is None or quant is None or not quant.params.per_tensor:
        return False
    params = quant.params
    if not _near_middle(params.storage_dtype, int(params.zero_point.reshape(-1)[0])):
        return False
    return made.op in (ADD, SUB) or (made.op in (DENSE, GEMM, MATMUL) and _of_one_scale(made))


def _of_one_scale(product: Node) -> bool:
    weight = product.operand(1)
    return weight.quant is None or weight.quant.params.per_tensor


def _near_middle(dtype: DType | None, zero: int) -> bool:
    if dtype not in (DType.UINT8, DType.INT8):
        return False
    return 0 < _from_middle(dtype, zero) <= _NEAR


def _from_middle(dtype: DType, zero: int) -> int:
    return abs(zero - _middle(dtype))


def _middle(dtype: DType) -> int:
    return (int(dtype.qmin) + int(dtype.qmax) + 1) // 2


def moved_factor(view: FileView, node: FileNode) -> Reason | None:
    """Returns how far the result of a MatMul may be off whose second factor is moved."""
    x, factor = (view.dequantized(node.input(index)) for index in (0, 1))
    if node.op != "MatMul" or x is None or factor is None or factor.scale is None:
        return None
    if view.is_constant(node.input(1)) or not factor.per_tensor:
        return None
    if not _near_middle(factor.dtype, factor.zero()) or not _is_made(view, factor):
        return None
    results = view.quantized(node.output)
    scale = largest_scale(results[0]) if results else None
    assert factor.dtype is not None
    lost = _from_middle(factor.dtype, factor.zero()) * float(factor.scale.max())
    most = largest(x) * (1 if is_average(view, x) else terms(view, node))
    steps = 0 if scale is None else _FACTOR_ROUNDED + math.ceil(lost * most / scale)
    if scale is not None and steps <= _FACTOR_STEPS:
        return None
    tensor, middle = factor.node.input(0), _middle(factor.dtype)
    zero = factor.zero()
    text = f"'{tensor}' ({factor.dtype}) with zero point {zero} is computed around {middle}"
    return Reason(text, (tensor,), steps)


def _is_made(view: FileView, factor: FileEncoding) -> bool:
    """True where a sum or a product without channels has made a factor, maybe turned behind it."""
    stored = view.producer(factor.node.input(0))
    while stored is not None and is_quantize(stored):
        made = view.producer(stored.input(0))
        if made is None:
            return False
        source = view.dequantized(made.input(0))
        if made.op not in _TURNS:
            product = biased(view, made) or made
            one = product.op in _PRODUCTS and _has_one_scale(view, product)
            return one or product.op in _SUMS
        if source is None:
            return False
        stored = view.producer(source.node.input(0))
    return False


def _has_one_scale(view: FileView, product: FileNode) -> bool:
    weight = view.dequantized(product.input(1))
    return weight is None or weight.per_tensor
