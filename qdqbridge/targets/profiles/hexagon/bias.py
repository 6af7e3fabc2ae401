"""A MatMul whose bias is an Add behind it: onnxruntime makes a Gemm of both before Hexagon sees it.

Between DequantizeLinear and QuantizeLinear that is one unit of integers, as a Gemm is.
"""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import FileEncoding, FileNode, FileView
from qdqbridge.targets.profiles.finding import Reason

_MATRIX = 2
_BIASES = (None, DType.INT32)
"""Types of a bias that is part of the unit: floats, which are quantized on the way, and int32."""


def bias_sum(view: FileView, node: FileNode) -> FileNode | None:
    """Returns the Add that is the bias of a MatMul of stored numbers by a constant."""
    readers = view.consumers(node.output)
    sum_ = readers[0][0] if node.op == "MatMul" and len(readers) == 1 else None
    if sum_ is None or sum_.op != "Add" or not view.is_constant(node.input(1)):
        return None
    if any(view.dequantized(name) is None for name in node.inputs):
        return None
    for name in sum_.inputs:
        found = view.dequantized(name)
        vector = view.is_constant(name) and view.rank(name) == 1
        if vector and (None if found is None else found.dtype) in _BIASES:
            return sum_
    return None


def behind_bias(view: FileView, node: FileNode) -> list[FileEncoding]:
    """Returns what quantizes a MatMul behind its bias; nothing where that is no unit."""
    sum_ = bias_sum(view, node)
    return [] if sum_ is None else list(view.quantized(sum_.output))


def biased(view: FileView, sum_: FileNode) -> FileNode | None:
    """Returns the MatMul of such a unit whose Add this is."""
    made = [view.producer(name) for name in sum_.inputs if sum_.op == "Add"]
    units = (m for m in made if m is not None and m.op == "MatMul" and behind_bias(view, m))
    return next(units, None)


def is_bias(view: FileView, node: FileNode) -> bool:
    """True for the Add of such a unit."""
    return biased(view, node) is not None


def stored_bias(view: FileView, node: FileNode) -> str:
    """Returns the tensor of a product's bias, empty where there is none."""
    if node.op in ("Conv", "ConvTranspose", "Gemm"):
        return node.input(2)
    sum_ = bias_sum(view, node) if behind_bias(view, node) else None
    return next((n for n in (() if sum_ is None else sum_.inputs) if view.is_constant(n)), "")


def bias_granularity(view: FileView, node: FileNode) -> Reason | None:
    """Checks that a stored bias has as many scales as the weight; else it is added wrongly."""
    name = stored_bias(view, node)
    weight, bias = view.dequantized(node.input(1)), view.dequantized(name)
    if weight is None or bias is None or weight.scale is None or bias.scale is None:
        return None
    channels, own = weight.scale.size, bias.scale.size
    if weight.block_size or (channels == 1) == (own == 1):
        return None
    text = (
        f"the bias '{bias.node.input(0)}' has {own} scale{'s' * (own > 1)}, its weight {channels}"
    )
    return Reason(text, (name,))


def is_clamped_gemm(view: FileView, sum_: FileNode) -> bool:
    """True for a bias behind which a clamp is no part of the unit, and no unit of floats either.

    A float bias of matrices of more axes stays a sum of floats, and is taken.
    """
    for name in sum_.inputs:
        made = view.producer(name) if sum_.op == "Add" else None
        if made is not None and bias_sum(view, made) is sum_:
            stored = any(
                view.is_constant(own) and view.dequantized(own) is not None for own in sum_.inputs
            )
            return stored or view.rank(made.input(0)) == _MATRIX
    return False
