"""Second factors of matrix products that Hexagon computes around the middle of their type.

Where a sum or a product makes the second of two activations of a MatMul, and its zero point is at
most 16 steps from the middle of its 8 bits, the backend computes it around the middle: what ends at
127 steps above the middle is lost of the end that reached further, and what the other end had
clamped comes out again (onnxruntime-qnn 2.7.0, host build). A Max in between that changes nothing
keeps the zero point. No zero point in the middle does so with as few bits: the numbers that are
stored are 256, and others.
"""

from __future__ import annotations

import math

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.ops.elementwise import ADD, SUB
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.file_view import FileEncoding, FileNode, FileView, is_quantize
from qdqbridge.targets.profiles.finding import Reason
from qdqbridge.targets.profiles.hexagon.bias import biased
from qdqbridge.targets.profiles.hexagon.clamps import kept
from qdqbridge.targets.profiles.hexagon.products import is_average, largest, largest_scale, terms

_NEAR = 16
"""How many steps a zero point may be from the middle to be moved there."""
_TURNS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators through which the backend sees what has made a factor."""
_SUMS = frozenset({"Add", "Sub"})
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_ROUNDED, _STEPS = 1, 2
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
    steps = 0 if scale is None else _ROUNDED + math.ceil(lost * most / scale)
    if scale is not None and steps <= _STEPS:
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
