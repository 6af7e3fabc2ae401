"""What onnxruntime does to Q/DQ before it looks for fusions, as far as fusions depend on it.

Read in onnxruntime/core/optimizer: qdq_transformer/qdq_propagation.cc, qdq_util.cc,
weight_bias_quantization.cc, selectors_actions/qdq_selectors.cc; measured on 1.31.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.predicates import Predicate
from qdqbridge.targets.profiles.shared_rules import active_ends, clamp_bounds

_PROPAGATES = {
    "MaxPool": (12, 22),
    "Reshape": (5, 13, 14, 19, 21, 23, 24, 25),
    "Transpose": (1, 13, 21, 23, 24, 25),
    "Squeeze": (1, 11, 13, 21, 23, 24, 25),
    "Unsqueeze": (1, 11, 13, 21, 23, 24, 25),
    "Slice": (1, 10, 11, 13),
}
"""Data-movement operators past which Q and DQ are pushed, with the versions of the operator."""
_CLAMPS = ("Relu", "Clip")


@dataclass(frozen=True, slots=True)
class DequantizeSource:
    """The DQ that an operand comes from.

    Attributes:
        encoding: Its parameters.
        dtype: The stored type after :func:`on_x86`.
        moved: True where the DQ is pushed past a data-movement operator to get there.
    """

    encoding: FileEncoding
    dtype: DType | None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class DequantizeFeed:
    """The DQ behind a tensor.

    Attributes:
        encoding: Its parameters.
        pushed: True where it is pushed past a data-movement operator to get there.
    """

    encoding: FileEncoding
    pushed: bool = False


@dataclass(frozen=True, slots=True)
class QuantizeTarget:
    """Where the result of a node goes: one Q, or why there is none that fits.

    Attributes:
        encoding: The parameters of the Q.
        dtype: The stored type after :func:`on_x86`.
        problem: Why there is none.
        floating: True where no QuantizeLinear reads the result at all.
    """

    encoding: FileEncoding | None
    dtype: DType | None = None
    problem: str = ""
    floating: bool = False


def source(view: FileView, tensor: str) -> DequantizeSource | None:
    """Returns the DQ that feeds an operand, behind data movement where a DQ is pushed past them."""
    found = fed(view, tensor)
    if found is None:
        return None
    if found.pushed:
        readers = len(view.consumers(tensor))
        return DequantizeSource(found.encoding, on_x86(found.encoding, readers), moved=True)
    stored = found.encoding.node.input(0)
    maker = view.producer(stored)
    if maker is None or not is_quantize(maker) or view.is_constant(stored):
        return DequantizeSource(found.encoding, found.encoding.dtype)
    return DequantizeSource(
        found.encoding, on_x86(found.encoding, _dequantized_readers(view, stored))
    )


def fed(view: FileView, tensor: str, *, any_scale: bool = False) -> DequantizeFeed | None:
    """Returns the DQ behind a tensor; each moved tensor is looked at once.

    Args:
        view: The file.
        any_scale: Past data movement whatever the scales are along, as where nothing is fused.
    """
    passed: list[tuple[str, bool]] = []
    known = view.known_feeds[any_scale]
    while tensor not in known and (step := _lifted(view, tensor, any_scale)) is not None:
        known[tensor] = None  # in a cycle there is no DQ
        passed.append((tensor, step[1]))
        tensor = step[0]
    if tensor not in known:
        encoding = view.dequantized(tensor)
        known[tensor] = None if encoding is None else DequantizeFeed(encoding)
    found = known[tensor]
    for name, pushed in reversed(passed):
        if found is not None and pushed and not found.pushed:
            found = DequantizeFeed(found.encoding, pushed=True)
        known[name] = found
    return found


def _lifted(view: FileView, tensor: str, any_scale: bool) -> tuple[str, bool] | None:
    """Returns what is moved to make a tensor, and whether a DQ is pushed past that."""
    node = view.producer(tensor)
    if node is None or is_dequantize(node):
        return None
    if not any_scale and node.op == "Transpose" and view.is_constant(tensor):
        return node.input(0), False  # weights: the transpose optimizer swaps the two
    if not propagates(view, node):
        return None
    below = None if any_scale else view.dequantized(node.input(0))
    return None if below is not None and not below.per_tensor else (node.input(0), True)


def on_x86(found: FileEncoding, readers: int) -> DType | None:
    """Returns the stored type after qdq_s8_to_u8.cc.

    On x86 a pair of int8 Q and DQ becomes uint8 where one operator reads it; a pair with more
    readers stays int8, and for that there are no kernels of Conv and MatMul.
    """
    plain = found.dtype is DType.INT8 and found.explicit and found.per_tensor
    return DType.UINT8 if plain and readers == 1 else found.dtype


def _dequantized_readers(view: FileView, stored: str) -> int:
    """Returns how many operands read a stored tensor through DQ nodes, one DQ for each of them."""
    if stored not in view.known_readers:
        count = 2 if stored in view.outputs else 0
        for node, _ in view.consumers(stored):
            count += max(1, len(view.consumers(node.output))) if is_dequantize(node) else 2
        view.known_readers[stored] = count
    return view.known_readers[stored]


def target(view: FileView, tensor: str) -> QuantizeTarget:
    """Returns the Q that the result ``tensor`` goes to, behind clamps that it makes redundant."""
    passed: list[tuple[str, FileNode]] = []
    while tensor not in view.known_targets and (node := _passed(view, tensor)) is not None:
        passed.append((tensor, node))
        tensor = node.output
    if tensor not in view.known_targets:
        view.known_targets[tensor] = _quantize_consumer(view, tensor)
    found = view.known_targets[tensor]
    for name, node in reversed(passed):
        if node.op in _CLAMPS:
            found = _before_clamp(view, node, found)
        elif found.encoding is not None:  # the Q is pushed before data movement: its only reader
            found = replace(found, dtype=on_x86(found.encoding, 1))
        view.known_targets[name] = found
    return found


def _passed(view: FileView, tensor: str) -> FileNode | None:
    """Returns the clamp or data movement that alone reads a tensor as its data, before a Q."""
    readers = view.consumers(tensor)
    if len(readers) != 1 or readers[0][1] != 0 or tensor in view.outputs:
        return None
    node = readers[0][0]
    return node if node.op in _CLAMPS or propagates(view, node) else None


def _quantize_consumer(view: FileView, tensor: str) -> QuantizeTarget:
    """Returns the Q that reads ``tensor`` itself, or why there is none."""
    readers = view.consumers(tensor)
    found = view.quantized(tensor)
    if not found:
        names = sorted({node.op for node, _ in readers}) or ["the graph's output"]
        problem = f"no QuantizeLinear reads its result '{tensor}', which goes to {', '.join(names)}"
        return QuantizeTarget(None, problem=problem, floating=True)
    if tensor in view.outputs:
        return QuantizeTarget(
            None, problem=f"its result '{tensor}' is an output of the graph as well"
        )
    if len(found) < len(readers):
        others = sorted({node.op for node, _ in readers if not is_quantize(node)})
        problem = f"{', '.join(others)} reads its float result '{tensor}' as well"
        return QuantizeTarget(None, problem=problem)
    if any(not first.same_mapping(found[0]) for first in found[1:]):
        problem = f"its result '{tensor}' is quantized in {len(found)} different ways"
        return QuantizeTarget(None, problem=problem)
    readers = sum(_dequantized_readers(view, e.node.output) for e in found)
    return QuantizeTarget(found[0], on_x86(found[0], readers))


def bias_add(view: FileView, node: FileNode) -> FileNode | None:
    """Returns the Add of a bias that a MatMul is fused with to a Gemm (matmul_add_fusion.cc)."""
    readers = view.consumers(node.output)
    if node.op != "MatMul" or len(readers) != 1 or node.output in view.outputs:
        return None
    add, index = readers[0]
    bias = add.input(1 - index)
    known = view.is_folded(bias) or (view.dequantized(bias) and view.is_constant(bias))
    if add.op != "Add" or not known or view.rank(bias) != 1:
        return None
    return add if view.rank(node.input(1)) in (2, None) else None


def is_bias_add(view: FileView, node: FileNode) -> bool:
    """True for an Add that becomes the bias of a Gemm."""
    makers = (view.producer(name) for name in node.inputs)
    return any(m is not None and bias_add(view, m) is node for m in makers)


def result_of(view: FileView, node: FileNode) -> str:
    """Returns the tensor that a node writes once a bias behind it is part of it."""
    add = bias_add(view, node)
    return node.output if add is None else add.output


def rounds_weight(view: FileView, node: FileNode) -> bool:
    """True for products between DQ and Q whose float weight is rounded to 8 bits of all of it."""
    product = node.op in ("Conv", "ConvTranspose", "Gemm")
    if not product and (node.op != "MatMul" or bias_add(view, node) is None):
        return False  # weight_bias_quantization.cc; a MatMul with a bias is a Gemm by then
    weight = view.constant(node.input(1)) if view.is_folded(node.input(1)) else None
    if weight is None or weight.dtype != np.float32 or source(view, node.input(0)) is None:
        return False
    return target(view, result_of(view, node)).encoding is not None


def redundant(view: FileView, node: FileNode) -> FileEncoding | None:
    """Returns the Q that makes a Relu or Clip redundant, if one does."""
    behind = target(view, node.output).encoding
    active = None if behind is None else active_ends(view, node, behind)
    return behind if active == (False, False) else None


REDUNDANT = Predicate(lambda view, node: redundant(view, node) is not None)


def _before_clamp(view: FileView, node: FileNode, behind: QuantizeTarget) -> QuantizeTarget:
    """Returns what the result goes to that a clamp reads, from what the clamp's result goes to."""
    if behind.encoding is None or active_ends(view, node, behind.encoding) == (False, False):
        return behind
    low, high = clamp_bounds(view, node)
    return QuantizeTarget(
        None,
        problem=f"{node.op} '{node.name}' to {low} .. {high} stands before its QuantizeLinear "
        f"(zero point {behind.encoding.zero()}), whose range does not imply it",
    )


def propagates(view: FileView, node: FileNode) -> bool:
    """True for data-movement operators past which Q and DQ are pushed."""
    versions = _PROPAGATES.get(node.op)
    if versions is None:
        return False
    return int(onnx.defs.get_schema(node.op, view.opset).since_version) in versions
