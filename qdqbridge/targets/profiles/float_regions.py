"""Float compute between quantized values: what a runtime should have made integer."""

from __future__ import annotations

from qdqbridge.targets.profiles.file_view import FileNode, FileView, is_dequantize, is_quantize
from qdqbridge.targets.profiles.predicates import Predicate

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
COPIES = frozenset(
    {
        "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Split",
        "Expand", "Tile", "Identity", "Cast", "Pad", "DepthToSpace", "SpaceToDepth", "Dropout",
        "GatherElements", "ReorderInput", "ReorderOutput", "If", "Loop", "Scan",
    }
)  # fmt: skip
"""Operators that move or convert values without computing with them."""

_NOT_FLOAT = frozenset(
    {
        "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Equal", "Greater", "Less", "IsNaN",
        "GreaterOrEqual", "LessOrEqual", "Not", "And", "Or", "DynamicQuantizeLinear",
        "ConvInteger", "MatMulInteger", "TopK",
    }
)  # fmt: skip
_FLOAT_FROM_INTEGERS = frozenset({"MatMulIntegerToFloat", "QGemm"})
_FUSED = {
    "FusedConv": "Conv",
    "FusedGemm": "Gemm",
    "FusedMatMul": "MatMul",
    "MatMulNBits": "MatMul",
}


def bare(node: FileNode) -> str:
    """Returns the operator of a node without its domain, fused variants under the plain name."""
    op = node.op.rpartition("::")[2]
    return _FUSED.get(op, op)


def float_region_nodes(view: FileView) -> list[FileNode]:
    """Returns the nodes that compute in float between a DQ and a Q.

    These are the nodes with a dequantized activation before and a QuantizeLinear behind, nearby
    or through other float nodes, and every Conv, ConvTranspose, Gemm and MatMul of nothing but
    dequantized operands. Nodes that only move values do not count.
    """
    real = _from_quantized(view)
    leads = _to_quantized(view)
    found: list[FileNode] = []
    for node in view.nodes:
        if not _computes(view, node):
            continue
        between = any(i in real for i in node.inputs) and any(o in leads for o in node.outputs)
        if between or _all_dequantized(view, node):
            found.append(node)
    return found


def float_regions_of(view: FileView) -> frozenset[FileNode]:
    """Returns the same as a set, found once per file."""
    if view.known_regions is None:
        view.known_regions = frozenset(float_region_nodes(view))
    return view.known_regions


COMPUTED = Predicate(lambda view, node: node in float_regions_of(view))
"""Floats that are computed between a DQ and a Q."""


def _computes(view: FileView, node: FileNode) -> bool:
    op = bare(node)
    if op in COPIES or op in _NOT_FLOAT or is_quantize(node) or is_dequantize(node):
        return False
    return not _on_integers(op) and not view.is_constant(node.output)


def _on_integers(op: str) -> bool:
    return op.startswith("QLinear") or op in _FLOAT_FROM_INTEGERS


def _all_dequantized(view: FileView, node: FileNode) -> bool:
    pair = [view.dequantized(name) for name in node.inputs[:2]]
    if bare(node) not in WEIGHTED or len(pair) < 2 or any(found is None for found in pair):
        return False
    return any(not view.is_constant(name) for name in node.inputs[:2])


def _from_quantized(view: FileView) -> set[str]:
    """Returns the float tensors that depend on a dequantized activation."""
    real: set[str] = set()
    for node in view.nodes:
        op = bare(node)
        if is_dequantize(node):
            starts = not view.is_constant(node.output)
        elif op in _FLOAT_FROM_INTEGERS:
            starts = True
        else:
            starts = not (is_quantize(node) or _on_integers(op) or op in _NOT_FLOAT)
            starts = starts and any(name in real for name in node.inputs)
        if starts:
            real.update(node.outputs)
    return real


def _to_quantized(view: FileView) -> set[str]:
    """Returns the float tensors that a QuantizeLinear depends on."""
    leads: set[str] = set()
    for node in reversed(view.nodes):
        if is_dequantize(node) or _on_integers(bare(node)):
            continue
        if is_quantize(node):
            leads.add(node.input(0))
        elif any(name in leads for name in node.outputs):
            leads.update(node.inputs)
    return leads
