"""Where OpenVINO rounds inside a reduction, and what is put otherwise for it.

Measured on OpenVINO 2026.4.1 (``docs/upstream/openvino_*reduce*.onnx``). A QuantizeLinear becomes
part of the reduction in front of it. ReduceMax and ReduceMin of floats then keep what they have
found so far in the result's 8 bits, not scaled yet: integers, within the ends of that type. A
MatMul's zero point and scales per channel, moved behind a mean or a sum, keep the shape they had.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import ml_dtypes
import numpy as np

from qdqbridge.core.canonical.linear import parts_of_one_product
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import NO_ORIGIN, Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.elementwise import ADD, MAX, SUB
from qdqbridge.core.ops.matmul import DENSE, MATMUL
from qdqbridge.core.ops.reduction import REDUCE_MAX, REDUCE_MEAN, REDUCE_MIN, REDUCE_SUM
from qdqbridge.core.ops.unary import RELU
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, replaced, rule
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Reason
from qdqbridge.targets.profiles.shared_rules import COPIES, WEIGHTED, is_parameter

_EXTREMES = ("ReduceMax", "ReduceMin")
_AVERAGES = ("ReduceMean", "ReduceSum")
_CLAMPS = ("Relu", "Clip")
_MATRIX = 2
_FINE = 0.2
"""Scales from which on half an integer is at most two steps, and those of this engine are 1."""
_WITHIN = frozenset(
    {
        "Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "HardSwish", "Gelu", "Abs", "Sqrt", "Neg",
        "Mish", "Clip", "PRelu",
    }
)  # fmt: skip
"""What becomes part of a reduction as well; so do sums and products with constants."""
_WITH_CONSTANTS = frozenset({"Add", "Sub", "Mul", "Div"})
_VIEWS = frozenset({"Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Cast"})


def rounded_extremes(view: FileView, node: FileNode) -> Reason | None:
    """ReduceMax and ReduceMin of floats are integers where they are rounded at once."""
    rank = view.rank(node.output)
    if node.op not in _EXTREMES or (rank is not None and rank < _MATRIX):
        return None
    if _of_stored(view, node) or (rank != _MATRIX and _moved_behind(view, node)):
        return None
    found = _rounding(view, node)
    if (
        found is not None
        and found[1]
        and _is_coarse(found[0])
        and not _product_before_reduction(view, node)
    ):
        return None
    found = None if found is None else found[0]
    if found is None or found.scale is None:
        return None
    tensor, step = found.node.output, float(found.scale.reshape(-1)[0])
    return Reason(f"'{tensor}' is rounded in steps of {step:.4g}", (tensor,))


def _of_stored(view: FileView, node: FileNode) -> bool:
    """Returns whether a reduction is one of stored numbers, their scale behind it."""
    tensor, made = node.input(0), view.producer(node.input(0))
    idle = True
    while made is not None and not is_dequantize(made):
        scaled = made.op in _WITH_CONSTANTS and any(_is_number(view, n) for n in made.inputs)
        if made.op == "Relu":
            idle = False
        elif made.op != "Clip" and made.op not in COPIES and "Pool" not in made.op and not scaled:
            return False
        tensor = next((name for name in made.inputs if not view.is_constant(name)), "")
        made = view.producer(tensor)
    found = view.dequantized(tensor)
    if found is None or is_parameter(view, found.node):
        return False
    return idle or found.symmetric


def _is_number(view: FileView, tensor: str) -> bool:
    return view.is_constant(tensor) and view.shape(tensor) in ((), (1,))


def _moved_behind(view: FileView, node: FileNode) -> str:
    """Returns what a MatMul by a weight leaves to be computed behind a reduction; else ``""``.

    A Relu in between lets scales through, and no zero point.
    """
    made = view.producer(node.input(0))
    behind_relu = made is not None and made.op == "Relu"
    made = view.producer(made.input(0)) if made is not None and behind_relu else made
    if made is None or made.op != "MatMul" or (view.rank(made.output) or 0) <= _MATRIX:
        return ""
    x, w = (view.dequantized(name) for name in made.inputs[:2])
    if x is None or w is None or not is_parameter(view, w.node):
        return ""
    if not x.symmetric:
        return "" if behind_relu else f"the zero point {x.zero()} of '{x.node.input(0)}'"
    return "" if w.per_tensor else f"the scales per channel of '{w.node.input(0)}'"


def _product_before_reduction(view: FileView, node: FileNode) -> FileNode | None:
    """Returns the product of dequantized operands that a reduction reads, a Relu in between."""
    made = view.producer(node.input(0))
    made = view.producer(made.input(0)) if made is not None and made.op == "Relu" else made
    if made is None or made.op not in WEIGHTED:
        return None
    return None if any(view.dequantized(name) is None for name in made.inputs[:2]) else made


def _rounding(view: FileView, node: FileNode) -> tuple[FileEncoding, bool] | None:
    """Returns the 8-bit QuantizeLinear that becomes part of a node; None where there is none.

    Returns:
        It, and whether nothing is computed in between.
    """
    tensor, between = node.output, list[str]()
    while tensor not in view.outputs:
        readers = view.consumers(tensor)
        if len(readers) != 1:
            return None
        reader = readers[0][0]
        if is_quantize(reader):
            found = view.encoding(reader)
            fits = found.per_tensor and found.dtype in (DType.INT8, DType.UINT8)
            if not fits or not ("Concat" in between or _in_integers(view, found)):
                return None
            return found, all(op in _VIEWS or op == "Concat" for op in between)
        constants = [name for name in reader.inputs if name and view.is_constant(name)]
        inside = reader.op in _WITHIN or reader.op in _VIEWS
        inside |= reader.op in _WITH_CONSTANTS and len(constants) == 1
        inside |= reader.op == "Concat" and not constants
        if not inside:
            return None
        between.append(reader.op)
        tensor = reader.output
    return None


def _is_coarse(found: FileEncoding) -> bool:
    """Returns whether integers are as good, and none is beyond the ends of the stored type."""
    if found.scale is None or found.dtype is None:
        return False
    step, ends = float(found.scale.reshape(-1)[0]), (found.dtype.qmin, found.dtype.qmax)
    beyond = [abs((end - found.zero()) * step) - abs(end) for end in ends]
    return step >= _FINE and max(beyond) <= 2 * step


def _in_integers(view: FileView, found: FileEncoding) -> bool:
    """Returns whether stored numbers are read as such; else there is one rounding, in floats."""
    stored = found.node.output
    if stored in view.outputs or not found.symmetric:
        return True
    reals = [reader.output for reader, _ in view.consumers(stored) if is_dequantize(reader)]
    for real in reals:
        for reader, _ in view.consumers(real):
            if reader.op in WEIGHTED and len(reader.inputs) > 1:
                other = view.dequantized(reader.input(1))
                if other is not None:
                    return True
            elif view.quantized(reader.output) or _two_activations(view, reader):
                return True
    return False


def _two_activations(view: FileView, node: FileNode) -> bool:
    given = [name for name in node.inputs if name and not view.is_constant(name)]
    return node.op in _WITH_CONSTANTS and len(given) > 1


def averaged_products(view: FileView, node: FileNode) -> Reason | None:
    """Means and sums over the rows of a MatMul keep its zero point in the shape that it had."""
    if node.op not in _AVERAGES or view.rank(node.output) != _MATRIX:
        return None
    what = _moved_behind(view, node) if _is_rounded(view, node, _CLAMPS) else ""
    return Reason(f"{what} is applied behind it", (node.input(0),)) if what else None


def _is_rounded(view: FileView, node: FileNode, between: Collection[str]) -> bool:
    """Returns whether a result is quantized, behind operators of these kinds at most."""
    tensor = node.output
    while not view.quantized(tensor):
        readers = view.consumers(tensor)
        if len(readers) != 1 or readers[0][0].op not in between:
            return False
        tensor = readers[0][0].output
    return True


def reduced_products(view: FileView, node: FileNode) -> Reason | None:
    """Means and sums of a product's float result are floats; behind a pair they are integers."""
    made = _product_before_reduction(view, node) if node.op in _AVERAGES else None
    if made is None or not _is_rounded(view, node, (*_CLAMPS, "Max")):
        return None
    return Reason(f"the result of the {made.op} '{made.name}' is not rounded", (made.output,))


def reduced_axes(view: FileView, node: FileNode) -> Reason | None:
    """Its reader of opset 13 looks for the axes of three reductions among their inputs."""
    if node.op not in _UNREAD or "axes" not in node.attributes:
        return None
    return Reason("its axes are an attribute, and all are reduced") if view.opset >= 13 else None


_UNREAD = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")


@rule("reduction-guarded", REDUCE_MAX, REDUCE_MIN, REDUCE_MEAN, REDUCE_SUM)
def guarded_reductions(node: Node, context: RuleContext) -> Proposal:
    """Puts a Max that changes nothing behind reductions of floats that would be rounded inside."""
    value = node.output
    if value not in context.fact(_floats_quantized_later) or value.quant is not None:
        return None
    number = np.array(ml_dtypes.finfo(value.type.dtype.numpy).min, value.type.dtype.numpy)
    guard = ("Max", "x", float(number))
    guarded = [match_value_pattern(user.output, guard, PatternMatch()) for user, _ in value.users]
    if any(guarded) or not _rounds_wrongly(node):
        return None
    lowest = constant(number, None, "lowest")
    reduced = result(node.op, node.attributes, node.inputs, value.type, node.origin)
    return replaced(node, MAX, NO_ATTRIBUTES, [reduced, lowest], NO_ORIGIN)


def _rounds_wrongly(node: Node) -> bool:
    x = node.operand(0)
    if node.op in (REDUCE_MAX, REDUCE_MIN):
        return x.quant is None
    made = x.producer if node.op in (REDUCE_MEAN, REDUCE_SUM) else None
    made = made.operand(0).producer if made is not None and made.op is RELU else made
    product = made is not None and made.op in (MATMUL, DENSE) and made.operand(0).quant is not None
    return product and x.quant is None and node.output.rank == _MATRIX


def _floats_quantized_later(graph: Graph) -> set[Value]:
    """Returns the float values that are quantized, at once or behind other float operators."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        if any(value.quant is not None or value in found for value in node.outputs):
            real = (v for v in node.inputs if v is not None and v.quant is None)
            found.update(value for value in real if value.type.dtype.is_float)
    return found


# ---- How graphs are put for OpenVINO: the same numbers in forms that it reads
#
# Measured on OpenVINO 2026.4.1; each legalization keeps a rule of :mod:`.openvino`.


@rule("blocks-that-divide")
def whole_blocks(node: Node, context: RuleContext) -> Proposal:
    """Cuts blocks of weights whose last one is shorter into smaller ones of the same scales."""
    del context
    cut: dict[Value, Value] = {}
    for value in node.inputs:
        if value is None or value.constant is None or value.quant is None:
            continue
        params = _divided(value.quant.params, value.constant.shape)
        if params is not None:
            cut[value] = constant(value.constant, params, value.name)
    return Replace(cut) if cut else None


def _divided(params: QuantParams, shape: tuple[int, ...]) -> QuantParams | None:
    """Returns parameters in blocks that divide the extent; None where they do already."""
    size, axis = params.block_size, params.axis
    if size is None or axis is None or shape[axis] % size == 0:
        return None
    smaller = math.gcd(shape[axis], size)
    kept = [slice(None)] * len(shape)
    kept[axis] = slice(shape[axis] // smaller)
    scale, zero_point = (
        np.repeat(each, size // smaller, axis)[tuple(kept)]
        for each in (params.scale, params.zero_point)
    )
    return replace(params, scale=scale, zero_point=zero_point, block_size=smaller)


@rule("terms-in-floats", DEQUANTIZE)
def float_terms(node: Node, context: RuleContext) -> Proposal:
    """Makes vectors that are added to floats floats: stored, they end the process."""
    del context
    stored = node.operand(0)
    if node.output.type.dtype is not DType.FLOAT32 or stored.quant is None:
        return None
    if stored.constant is None or len(stored.constant.shape) != 1:
        return None
    users = [(user, index) for user, index in node.output.users if user.op in (ADD, SUB)]
    if not users:
        return None
    real = constant(dequantize(stored.constant.numpy(), stored.quant.params), None, stored.name)
    return Replace(operands=dict.fromkeys(users, real))


LEGALIZATIONS = (parts_of_one_product, whole_blocks, float_terms, guarded_reductions)
"""Products whole; then for the rules whole-blocks, stored-terms and rounded-extremes."""
