"""Checks that several runtimes share, each about one Q or DQ node or one weighted operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.accumulator import LIMIT
from qdqbridge.core.ops.shapes import laid_along
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Check, Reason
from qdqbridge.targets.profiles.predicates import OTHER_DOMAIN, OWN, PARAMETER, Predicate, op, when

Array = NDArray[Any]
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def encoding_of(view: FileView, node: FileNode) -> FileEncoding | None:
    """Returns the parameters of a Q or DQ node that runs, None for any other node."""
    if is_dequantize(node) or (is_quantize(node) and not view.is_constant(node.input(0))):
        return view.encoding(node)
    return None


def stored_tensor(node: FileNode) -> str:
    """Returns the integer tensor of a Q or DQ node."""
    return node.output if is_quantize(node) else node.input(0)


def is_parameter(view: FileView, node: FileNode) -> bool:
    """True for the DQ of a constant."""
    return is_dequantize(node) and view.is_constant(node.input(0))


def storage(activations: Iterable[DType], constants: Iterable[DType]) -> Check:
    """Returns a check of the element types that Q and DQ nodes store."""
    allowed = {False: tuple(activations), True: tuple(constants)}

    def check(view: FileView, node: FileNode) -> Reason | None:
        found = encoding_of(view, node)
        if found is None or found.dtype is None:
            return None
        constant = is_parameter(view, node)
        if found.dtype in allowed[constant]:
            return None
        kind, listed = "constant" if constant else "activation", map(str, allowed[constant])
        tensor = stored_tensor(node)
        text = f"the {kind} '{tensor}' is {found.dtype}, not {' or '.join(listed)}"
        return Reason(text, (tensor,))

    return check


def constant_positive_scale(view: FileView, node: FileNode) -> Reason | None:
    """Checks that the scale is known when the engine is built, finite and above 0."""
    found = encoding_of(view, node)
    if found is None:
        return None
    name = node.input(1)
    if not view.is_constant(name):
        return Reason(f"the scale '{name}' is computed at run time", (name,))
    if found.scale is None:
        return None
    wide = found.scale.astype(np.float64)
    sound = np.isfinite(wide) & (wide > 0)
    if sound.all():
        return None
    return Reason(f"the scale '{name}' holds {wide[~sound].reshape(-1)[0]:.6g}", (name,))


per_tensor_activations = when(
    OWN.scales & ~PARAMETER, "the activation '{own}' has {own.scales} scales", "own"
)
onnx_domain = when(OWN.known & OTHER_DOMAIN, "{node.op} is not an operator of ONNX")
explicit_zero_point = when(OWN.known & ~OWN.written, "the zero point of '{own}' is left out", "own")
RUNNING = frozenset({"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"})
"""Operators of dynamic quantization."""
quantized_while_running = when(op(*RUNNING), "it quantizes while the model runs")


def weight_axis(axis_of: dict[str, int]) -> Check:
    """Returns a check of the axis of per-channel weights.

    Args:
        axis_of: The axis by operator; Gemm and MatMul are known.
    """

    def check(view: FileView, node: FileNode) -> Reason | None:
        found = view.dequantized(node.input(1)) if node.op in WEIGHTED else None
        if found is None or found.scale is None or found.per_tensor or found.block_size:
            return None
        rank = view.rank(found.node.input(0)) or view.rank(node.input(1))
        if rank is None:
            return None
        last = rank - 2 if node.attributes.get("transB", 0) else rank - 1
        wanted, axis = axis_of.get(node.op, last), found.axis % rank
        if axis == wanted:
            return None
        name = found.node.input(0)
        return Reason(f"the weight '{name}' has scales along axis {axis}, not {wanted}", (name,))

    return check


def bias_ratio(x: FileEncoding, w: FileEncoding, bias: FileEncoding) -> float | None:
    """Returns the scale of a bias over ``scale x * scale w`` where that is farthest from 1.

    None where it is not known.
    """
    if x.scale is None or w.scale is None or bias.scale is None:
        return None
    sx, sw, sb = (
        e.scale.astype(np.float64).reshape(-1) for e in (x, w, bias) if e.scale is not None
    )
    if sb.size not in (1, sw.size) or sx.size != 1:
        return None
    with np.errstate(all="ignore"):
        ratio = sb / (sx * sw)
        return float(ratio[np.argmax(np.abs(ratio - 1))])


def sums_leave_int32(view: FileView, node: FileNode, bias: str) -> bool:
    """Returns whether the sums of a product of stored numbers may be more than int32 holds.

    Args:
        view: The file.
        node: A Conv, Gemm or MatMul.
        bias: The tensor that is added, empty where there is none.
    """
    x, w = view.dequantized(node.input(0)), view.dequantized(node.input(1))
    if x is None or w is None or x.dtype is None or w.dtype is None or x.scale is None:
        return False
    shape = view.shape(w.node.input(0)) or ()
    if w.scale is None or len(shape) < 2 or not all(isinstance(e, int) and e for e in shape):
        return False
    if not (x.dtype.is_integer and w.dtype.is_integer and x.per_tensor):
        return False
    sizes = [int(extent) for extent in shape]
    rows = node.op == "Conv" or bool(node.attributes.get("transB", 0))
    terms = int(np.prod(sizes[1:])) if rows else sizes[-2]
    low, high = (end - x.zero() for end in (x.dtype.qmin, x.dtype.qmax))
    added = np.abs(_as_sums(view, bias, x.scale, w.scale))
    reach = max(abs(low), abs(high)) * (w.dtype.qmax - w.dtype.qmin)
    codes = view.constant(w.node.input(0))
    # The cheap bound first: it needs no weight, and nearly every product is below it.
    if terms * reach + added.max(initial=0.0) < LIMIT:
        return False
    # Without numbers to sum, the cheap bound stands: the product may leave int32.
    if codes is None or w.block_size or (not rows and len(sizes) > 2):
        return True
    zero = np.zeros(1) if w.zero_point is None else w.zero_point.astype(np.float64)
    zero = laid_along(zero, w.axis, len(sizes)) if zero.size > 1 else zero.reshape(())
    centred = codes.astype(np.float64) - zero
    weights = (centred if rows else centred.T).reshape(-1, terms)
    ends = np.stack([weights * min(low, 0), weights * max(high, 0)])
    largest = np.maximum(ends.max(axis=0).sum(axis=1), -ends.min(axis=0).sum(axis=1))
    # A bias that is not one number per row goes to no row in particular: each may get its largest.
    added = added if added.size in (1, largest.size) else added.max(initial=0.0)
    return bool((largest + added).max(initial=0.0) >= LIMIT)


def _as_sums(view: FileView, bias: str, x_scale: Array, w_scale: Array) -> Array:
    """Returns a constant bias as the integers that are added to sums of products."""
    if not bias:
        return np.zeros(1)
    found = view.dequantized(bias)
    stored = view.constant(bias if found is None else found.node.input(0))
    if stored is None:
        return np.zeros(1)
    codes = stored.astype(np.float64).reshape(-1)
    if found is not None:
        return codes
    units = x_scale.astype(np.float64).reshape(-1)[:1] * w_scale.astype(np.float64).reshape(-1)
    with np.errstate(all="ignore"):  # of scales that are no numbers nothing is known
        return np.nan_to_num(codes / (units if units.size in (1, codes.size) else units.min()))


def has_products(view: FileView) -> bool:
    """Returns whether any product of quantized operands is in the file; found once per file."""
    if view.known_products is None:
        view.known_products = any(
            node.op in WEIGHTED and view.dequantized(node.input(0)) is not None
            for node in view.nodes
        )
    return view.known_products


def fixed_shapes(view: FileView, node: FileNode) -> Reason | None:
    """Checks that a node which reads an input of the graph reads fixed extents."""
    for name in node.inputs:
        if not name or view.producer(name) is not None or view.is_constant(name):
            continue
        _, shape = view.inferred.get(name, (None, ()))
        free = [str(dim) for dim in shape or () if not isinstance(dim, int)]
        if shape is None or free:
            listed = f" [{', '.join(map(str, shape))}]" if shape is not None else ""
            return Reason(f"input '{name}' has an open shape{listed}", (name,))
    return None


def both_or_none(view: FileView, node: FileNode) -> Reason | None:
    """Checks that an activation and its weight are both quantized, or none of them."""
    if node.op not in WEIGHTED or len(node.inputs) < 2:
        return None
    pair = [view.dequantized(name) for name in node.inputs[:2]]
    if (pair[0] is None) == (pair[1] is None) or view.is_constant(node.input(0)):
        return None
    index = 0 if pair[0] is None else 1
    name = node.input(index)
    text = f"operand {1 - index} is dequantized and operand {index} ('{name}') is not"
    return Reason(text, (name,))


def clamp_bounds(view: FileView, node: FileNode) -> tuple[float | None, float | None]:
    """Returns the interval of a Relu or Clip, None on a side that is not constant."""
    if node.op == "Relu":
        return 0.0, float("inf")
    bounds: list[float | None] = []
    for index, (name, default) in enumerate((("min", "-inf"), ("max", "inf")), 1):
        operand = node.input(index)
        if not operand:
            bounds.append(float(node.attributes.get(name, default)))
            continue
        found = view.constant(operand)
        bounds.append(None if found is None or found.size != 1 else float(found.reshape(())))
    return bounds[0], bounds[1]


def active_ends(view: FileView, node: FileNode, found: FileEncoding) -> tuple[bool, bool] | None:
    """Returns which ends of a Relu or Clip lie inside the range of a Q; None where unknown."""
    low, high = clamp_bounds(view, node)
    if low is None or high is None or found.dtype is None or found.scale is None:
        return None
    if not found.per_tensor or not found.dtype.is_integer:
        return None
    scale, zero = found.scale.reshape(()).astype(np.float32), found.zero()
    with np.errstate(all="ignore"):
        ends = [float(np.rint(np.float32(bound) / scale) + zero) for bound in (low, high)]
    return ends[0] > found.dtype.qmin, ends[1] < found.dtype.qmax


# ---- Float compute between quantized values: what a runtime should have made integer -------------


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
