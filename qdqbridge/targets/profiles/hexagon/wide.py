"""How far results of 16 bits are off on Hexagon.

Measured on the host build of the backend (onnxruntime-qnn 2.7.0). With weights around zero a
product is some 20 steps off on v68 and v69, whatever it sums: scale x * scale w / scale y is kept
in few bits (a power of two is exact). From v73 on it is off by some 256 units of scale x * scale w,
and keeps 10 bits of a typical sum where weights have 16 bits. With other weights, and of two
activations, each keeps about 7 bits: the error follows the largest numbers of the operands and the
square root of the number of terms. Products of 8 bits with results of 16 are exact. Functions are
the same in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import FileEncoding, FileNode, FileView
from qdqbridge.targets.profiles.finding import Reason
from qdqbridge.targets.profiles.hexagon.bias import behind_bias, bias_sum, is_bias, stored_bias
from qdqbridge.targets.profiles.shared_rules import WEIGHTED

Array = NDArray[Any]
_WIDE = (DType.INT16, DType.UINT16)
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
    if found[0].dtype in _WIDE:
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
    if x is not None and x.dtype not in _WIDE:
        return None
    weight = view.dequantized(node.input(1))
    known = x is not None and scale is not None and not _around_zero(view, weight)
    sum_ = _typical_sum(view, node, x) if known and x is not None else None
    narrow = weight is not None and weight.dtype in (DType.INT4, DType.UINT4)
    steps = 2 * _PRODUCT_STEPS if narrow else _PRODUCT_STEPS
    if sum_ is not None and scale is not None:
        steps += math.ceil(sum_ / scale / (1 << _SUM_BITS))
    return min(1 << (steps - 1).bit_length(), 1 << 16)


def _of_product_on_v73(view: FileView, node: FileNode, result: FileEncoding) -> int | None:
    x, weight = (view.dequantized(name) for name in node.inputs[:2])
    scale = largest_scale(result)
    if not _around_zero(view, weight) or x is None or scale is None or weight is None:
        return _of_product(view, node, result)
    if x.dtype not in _WIDE:
        return None
    if weight.dtype in _WIDE:
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


def _around_zero(view: FileView, weight: FileEncoding | None) -> bool:
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
    return steps if other.zero() != _MIDDLE and steps > _FEW else None


_MIDDLE, _FEW = 128, 4
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
_STEPS = {
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
        return _STEPS.get(node.op)
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
