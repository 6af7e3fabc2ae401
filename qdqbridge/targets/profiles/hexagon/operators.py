"""Which operators Hexagon's backend has, of which types, and of how many axes.

Each was run between DequantizeLinear and QuantizeLinear, of four types and of two to five axes.
"""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.targets.profiles.file_view import FileNode, FileView, is_dequantize, is_quantize
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.hexagon.bias import behind_bias
from qdqbridge.targets.profiles.hexagon.clamps import nothing_left
from qdqbridge.targets.profiles.predicates import (
    FOLDED,
    LEAVES,
    Facts,
    X,
    Y,
    first,
    op,
    when,
    where,
)

_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon"

FACTS = Facts.shipped("hexagon")
_APART = op(
    "AveragePool", "GlobalAveragePool", "HardSwish", "LeakyRelu", "Mish", "Round", "Transpose"
)  # fmt: skip
"""Operators that have rules of their own, because more than their type decides."""
_MATRIX, MOST_AXES = 2, 4
_INSIDE = frozenset({"Mish"})
"""Taken of up to four axes between other operators; alone, as the table has them, left."""
_ELSEWHERE = frozenset({"LRN", "Round"})
"""Operators whose axes other rules speak of."""
_FEW = (FACTS.names(lambda fact: fact.most_axes == MOST_AXES) | _INSIDE) - _ELSEWHERE
"""Operators that are taken of up to four axes."""
ROWS_ONLY = frozenset(n for n in _FEW if n in BY_NAME and BY_NAME[n].flow is Flow.ELEMENTWISE)
"""Those of them that compute on each element."""


def _five_axes(view: FileView, node: FileNode) -> Reason | None:
    """Operators that are taken, or right, of up to four axes."""
    rank = view.rank(node.input(0)) or 0
    if node.op == "MatMul":
        rank = max(rank, view.rank(node.input(1)) or 0)
    if rank <= MOST_AXES or is_quantize(node) or is_dequantize(node):
        return None
    x = view.dequantized(node.input(0))
    found = view.quantized(node.output) or behind_bias(view, node)
    wrong = node.op.rpartition("::")[2] in _FEW
    if x is not None and found:
        signed, one_type = x.dtype in (DType.INT8, DType.INT16), x.dtype is found[0].dtype
        direct = view.producer(x.node.input(0)) is None
        if node.op in ("Reshape", "Flatten", "Squeeze") or behind_bias(view, node):
            # a product with a bias is one of rows, between Reshapes
            wrong = signed and direct and not nothing_left(view, node)
            wrong = wrong and (bool(behind_bias(view, node)) or found[0].same_mapping(x))
        elif node.op == "MatMul":
            stored = view.is_constant(node.input(0)) and view.dequantized(node.input(1))
            kept = stored.dtype is found[0].dtype if stored else one_type
            wrong = one_type and (view.is_constant(node.input(1)) or x.dtype is DType.UINT8)
            wrong = wrong or (kept and not _same_batches(view, node))
        elif node.op == "Transpose":
            wrong = x.dtype is DType.INT16 and found[0].same_mapping(x)
        elif node.op == "Concat":
            sides = [view.dequantized(name) for name in node.inputs]
            wrong = signed and any(s is not None and not s.same_mapping(x) for s in sides)
        elif node.op in ("Max", "Min"):
            sides = [view.dequantized(n) for n in node.inputs if view.is_constant(n)]
            wrong = any(side is None or side.dtype is not x.dtype for side in sides)
        elif node.op == "Pad":
            wrong = node.attributes.get("mode", b"constant") not in (b"constant", "constant")
    elif x is not None and node.op in ("Reshape", "Squeeze"):  # floats of a signed input
        direct = view.producer(x.node.input(0)) is None and not view.is_constant(x.node.input(0))
        wrong = direct and x.dtype in (DType.INT8, DType.INT16) and not nothing_left(view, node)
    taken = node.op in ("Reshape", "Flatten", "Squeeze")
    taken = taken or (node.op == "MatMul" and _same_batches(view, node))
    taken = taken or (node.op == "ReduceL2" and not node.attributes.get("keepdims", 1))
    effect = Effect.OTHER if taken else None
    return Reason(f"it has {rank} axes", (node.output,), effect=effect) if wrong else None


def _same_batches(view: FileView, node: FileNode) -> bool:
    """True for a product of two stacks of matrices, one with one."""
    left, right = (view.shape(name) for name in node.inputs[:_MATRIX])
    return left is not None and right is not None and left[:-_MATRIX] == right[:-_MATRIX]


def _moved(view: FileView, node: FileNode) -> Reason | None:
    """A movement whose result has another encoding than its operand: it keeps the operand's."""
    x, found = view.dequantized(node.input(0)), view.quantized(node.output)
    if x is None or not found or found[0].same_mapping(x):
        return None
    direct = view.producer(x.node.input(0)) is None
    images = view.rank(node.input(0)) == MOST_AXES
    constant = node.attributes.get("mode", b"constant") in (b"constant", "constant")
    wide = x.dtype in (DType.INT16, DType.UINT16)
    wrong = {
        "Gather": True,
        "SpaceToDepth": True,
        "DepthToSpace": direct,
        "Pad": direct and not constant,
        "MaxPool": direct and wide and not images,
        "Transpose": not direct,
        "Tile": not direct,
        "Unsqueeze": not direct and images,
    }
    if not wrong.get(node.op, False):
        return None
    return Reason("its result has another scale or zero point than its operand", (node.output,))


IMAGES = frozenset(
    {
        "AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool",
        "InstanceNormalization", "MaxPool", "Resize",
    }
)  # fmt: skip
"""Operators that have channels last in the backend."""


def _converted_image(view: FileView, node: FileNode) -> Reason | None:
    """An image that is converted where it leaves the graph: its change of layout is left behind."""
    rank = view.rank(node.output) or 0
    if not is_quantize(node) or node.output not in view.outputs or not _MATRIX < rank <= MOST_AXES:
        return None
    own, stored, converted = view.encoding(node), node, False
    while (source := view.dequantized(stored.input(0))) is not None:
        converted = converted or not source.same_mapping(own)
        before = view.producer(source.node.input(0))
        if before is None or not is_quantize(before):
            return None
        stored = before
    made = view.producer(stored.input(0))
    if not converted or made is None or made.op not in IMAGES:
        return None
    return Reason(f"it converts what {made.op} '{made.name}' makes", (node.output,))


OPERATOR_RULES: tuple[TargetRule, ...] = (
    TargetRule("no-such-operator", "operators that the backend does not have",
           when(FACTS.left & ~_APART & ~FOLDED, "operators of type {node.op} are not taken",
                "output"),
           f"{_HOST}: 'Operators of type … are not supported by QNN EP'", Effect.ELSEWHERE,
           "write it in steps, or leave it to the CPU"),
    TargetRule("inner-mish", "Mish of an input, or as an output",
           where(op("Mish") & X.known & Y.known, first(
               when(X.entering, "it reads an input", "x"),
               when(LEAVES, "it makes an output", "y"))),
           f"{_HOST}: Q and DQ are left to the CPU", Effect.ELSEWHERE,
           "write x * Tanh(Softplus(x)), each quantized"),
    TargetRule("not-made", "GroupNormalization, RMSNormalization, Selu, ThresholdedRelu",
           when(FACTS.refused & ~FOLDED, "{node.op} is taken, and cannot be made", "output"),
           f"{_HOST}: 'Failed to finalize QNN graph', or 'inserted using the NHWC format'",
           Effect.REFUSED, "write it in steps"),
    TargetRule("taken-of-type", "operators of int8, uint16 or int16",
           when(FACTS.untaken & ~_APART & (op("ArgMax") | Y.known), "'{x}' is {x.dtype}", "x"),
           f"{_HOST}: 'fails the backend's validation, code 3110', or does not load",
           Effect.ELSEWHERE, "use unsigned types, zero points shifted by half the range"),
    TargetRule("cumulative-sum", "CumSum",
           when(op("CumSum") & X.known, "its running sum is kept within the ends of the result",
                "output"), f"{_HOST}: up to 78 of 256 steps off",
        Effect.OTHER,
           "leave it in floats, or multiply by a matrix of ones"),
    TargetRule("moved-encoding", "Gather, Pad, Transpose, Tile and others that move numbers",
        _moved,
           f"{_HOST}: up to 82 LSB off, or 'Failed to finalize QNN graph'", Effect.OTHER,
           "give operand and result one encoding, and convert behind"),
    TargetRule("converted-image", "QuantizeLinear behind a Q/DQ pair, of an image as an output",
           _converted_image, f"{_HOST}: 'Transpose fails the backend's validation, code 3110'",
           Effect.ELSEWHERE, "convert its rows, between Reshapes"),
    TargetRule("up-to-four-axes", "products, functions, norms, pools, signed movements",
           _five_axes, f"{_HOST}: 'fails the backend's validation, code 3110', or 128 LSB off",
           Effect.ELSEWHERE, "reshape to fewer axes in front, and back behind"),
)  # fmt: skip
