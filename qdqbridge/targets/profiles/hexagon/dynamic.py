"""Dynamic quantization on Hexagon: left to the CPU, or computed in floats that are not rounded.

onnxruntime's QNN provider knows one chain: a DynamicQuantizeLinear for products with constant
weights, a Cast, and a Mul with the product of both scales; an Add behind, if it alone follows, has
to be a bias. Where one product is otherwise, none is taken, or the file does not load. It makes
products of floats of them, whose activations nobody rounds: 2e-7 from the float product, and up to
1 % of the largest result from what the file means (onnxruntime-qnn 2.7.0, host build). Of zero
points per channel it takes one.
"""

from __future__ import annotations

import math

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import Shape
from qdqbridge.targets.profiles.file_view import FileNode, FileView, is_dequantize
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.shared_rules import RUNNING

_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon"
_CODES, _SCALE, _ZERO = 0, 1, 2
"""Results of DynamicQuantizeLinear, and where a product reads codes and zero point."""
_WEIGHT, _WEIGHT_ZERO = 1, 3
_STEPS = 4
"""How far results were from the file's, in 256 steps of the largest: up to 3."""


def _left(view: FileView, node: FileNode) -> Reason | None:
    if node.op not in RUNNING or _fused(view, node):
        return None
    if only_dequantized(view, node):
        return None
    return Reason("it quantizes while the model runs")


def _unrounded(view: FileView, node: FileNode) -> Reason | None:
    if node.op == "DynamicQuantizeLinear":
        rounds = only_dequantized(view, node)
    else:
        rounds = node.op in RUNNING and _fused(view, node)
    if not rounds:
        return None
    points = view.constant(node.input(_WEIGHT_ZERO)) if node.input(_WEIGHT_ZERO) else None
    if points is not None and (points != points.reshape(-1)[0]).any():
        return Reason("each channel of its weight has a zero point", (node.input(_WEIGHT_ZERO),))
    text = f"its activations are not rounded: up to {_STEPS} of 256 steps of the largest result"
    return Reason(text, (node.input(0),), _STEPS)


def only_dequantized(view: FileView, node: FileNode) -> bool:
    """True for codes that become numbers again at once: neither is computed."""
    reads = [r for name in node.outputs for r, _ in view.consumers(name)]
    if node.op != "DynamicQuantizeLinear" or not reads:
        return False
    same = all(is_dequantize(reader) and reader.inputs == node.outputs for reader in reads)
    return same and view.outputs.isdisjoint(node.outputs)


def _fused(view: FileView, node: FileNode) -> bool:
    """True for a DynamicQuantizeLinear all of whose readers are such products, and for these."""
    made = view.producer(node.input(_CODES)) if node.op != "DynamicQuantizeLinear" else node
    if made is None or made.op != "DynamicQuantizeLinear":
        return False
    products = [reader for reader, _ in view.consumers(made.output)]
    factors = {reader.name for reader, _ in view.consumers(made.outputs[_SCALE])}
    known = [_factor(view, product, made) for product in products]
    if not products or None in known or factors != {f.name for f in known if f is not None}:
        return False
    zeros = [reader for reader, _ in view.consumers(made.outputs[_ZERO])]
    return view.outputs.isdisjoint(made.outputs) and all(zero in products for zero in zeros)


def _factor(view: FileView, node: FileNode, made: FileNode) -> FileNode | None:
    """Returns the Mul of both scales, where a product of codes is one that the provider knows."""
    if node.op not in ("MatMulInteger", "ConvInteger") or not view.is_constant(node.input(_WEIGHT)):
        return None
    if node.input(_CODES) != made.output or node.input(_ZERO) != made.outputs[_ZERO]:
        return None
    cast = _reader(view, node.output)
    product = None if cast is None or cast.op != "Cast" else _reader(view, cast.output)
    if product is None or product.op != "Mul" or view.dtype(product.output) is DType.FLOAT16:
        return None
    factors = [view.producer(name) for name in product.inputs]
    factor = next((f for f in factors if f and made.outputs[_SCALE] in f.inputs), None)
    if factor is None or factor.op != "Mul" or _reader(view, factor.output) is not product:
        return None
    scales = [name for name in factor.inputs if view.is_constant(name)]
    known = scales and _fits(view, node, scales[0]) and _added(view, node, product)
    return factor if known else None


def _reader(view: FileView, name: str) -> FileNode | None:
    """Returns the only node that reads a tensor, which is not an output."""
    readers = view.consumers(name)
    return readers[0][0] if len(readers) == 1 and name not in view.outputs else None


def _added(view: FileView, node: FileNode, product: FileNode) -> bool:
    """True where no Add alone follows, or one of a bias."""
    readers = view.consumers(product.output)
    sum_ = readers[0][0] if len(readers) == 1 else None
    if sum_ is None or sum_.op != "Add" or product.output in view.outputs:
        return True
    biases = [name for name in sum_.inputs if view.is_constant(name)]
    shape = _constant_or_declared_shape(view, biases[0]) if biases else None
    return shape is not None and _numbers(shape) > 1 and _fits(view, node, biases[0])


def _fits(view: FileView, node: FileNode, name: str) -> bool:
    """True for one number, or one for each channel, of the rank of an image where it is one."""
    shape, weight = (
        _constant_or_declared_shape(view, name),
        _constant_or_declared_shape(view, node.input(_WEIGHT)),
    )
    if shape is None or weight is None or _numbers(shape) == 1:
        return shape is not None
    if node.op == "ConvInteger":
        return tuple(shape) == (1, weight[0], *[1] * (len(weight) - 2))
    return _numbers(shape) == weight[-1] == shape[-1] and len(shape) <= len(weight)


def _constant_or_declared_shape(view: FileView, name: str) -> Shape:
    """Returns the shape of a constant."""
    array = view.constant(name)
    return view.shape(name) if array is None else array.shape


def _numbers(shape: tuple[int | str, ...]) -> int:
    return math.prod(dim if isinstance(dim, int) else 0 for dim in shape)


DYNAMIC_RULES: tuple[TargetRule, ...] = (
    TargetRule("static-quantization", "DynamicQuantizeLinear, MatMulInteger, ConvInteger", _left,
           f"{_HOST}: 'Operators of type `DynamicQuantizeLinear` are not supported by QNN EP'",
           Effect.ELSEWHERE, "give fixed parameters: export --data x.npz"),
    TargetRule("unrounded-activations", "products of dynamic quantization", _unrounded,
           f"{_HOST}: computed as products of floats, up to 1 % of the largest result off",
           Effect.OTHER, "give fixed parameters: export --data x.npz"),
)  # fmt: skip
