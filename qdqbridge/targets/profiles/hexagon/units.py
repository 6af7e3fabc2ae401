"""What Hexagon computes as one unit: biases and clamps, its operators, what only runs know."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow
from qdqbridge.core.graph.types import QuantParams, Shape
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.ops.elementwise import CONCAT, MAX
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
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
from qdqbridge.targets.profiles.shared_rules import (
    COPIES,
    RUNNING,
    WEIGHTED,
    encoding_of,
    is_parameter,
)

# ---- bias ----------------------------------------------------------------------------------------
# A MatMul whose bias is an Add behind it: onnxruntime makes a Gemm of both before Hexagon sees it.
#
# Between DequantizeLinear and QuantizeLinear that is one unit of integers, as a Gemm is.


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


# ---- Saturation that Hexagon loses: of results that are stored once more, in a wider range -------
# The backend computes an operator in the encoding of what reads its result: of a Concat always, of
# a QuantizeLinear where no product stands before. What the first, narrower encoding had clamped
# comes out again (onnxruntime-qnn 2.7.0, host build). A Max in between that changes nothing keeps
# it.


_HALF = 0.5
_KEEPERS = frozenset({"Max", "Min", "Relu", "Clip", "MaxPool"})
"""Operators whose result stays clamped where it has the encoding of the operand."""


@rule("clamp-kept", CONCAT, REQUANTIZE)
def kept_clamps(node: Node, context: RuleContext) -> Proposal:
    """``Concat(x, y) -> Concat(Max(x, lowest), y)`` where the result is wider than ``x``."""
    target = node.output.quant
    if target is None or not target.params.per_tensor:
        return None
    operands: dict[tuple[Node, int], Value] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.quant is None or not value.quant.params.per_tensor:
            continue
        if _is_made(value, node) and _outside(value.quant.params, target.params):
            operands[node, index] = context.once(kept, value)
    return Replace(operands=operands) if operands else None


def _is_made(value: Value, reader: Node) -> bool:
    made = value.producer
    while made is not None and made.op.flow is Flow.MOVE:
        made = made.operand(0).producer
    if made is None or made.op.name in _KEEPERS:
        return False
    return reader.op is CONCAT or made.op.flow is not Flow.ACCUMULATE


def kept(value: Value) -> Value:
    """Returns a stored value behind a Max that changes nothing, as the backend rounds it then."""
    assert value.quant is not None
    params = value.quant.params
    lowest = np.asarray(params.qmin, params.storage_dtype.numpy)
    operands = [value, constant(lowest, params, f"{value.name}_lowest")]
    return result(MAX, NO_ATTRIBUTES, operands, value.type, name=f"{value.name}_kept")


def _outside(own: QuantParams, wider: QuantParams) -> bool:
    return _reaches_out(_range_of(own), _range_of(wider))


def _range_of(params: QuantParams) -> StoredRange:
    return StoredRange(*params.real_range, float(params.scale.reshape(())))


class StoredRange(NamedTuple):
    """The real numbers that can be stored.

    Attributes:
        low: The smallest.
        high: The largest.
        step: Between neighbours.
    """

    low: float
    high: float
    step: float


def _reaches_out(own: StoredRange, wider: StoredRange) -> bool:
    """True where a range goes on behind an end of another, by more than its step."""
    step = max(own.step, _HALF * wider.step)
    return wider.low < own.low - step or wider.high > own.high + step


def lost_clamp(view: FileView, node: FileNode) -> Reason | None:
    """Returns whether a Concat or a QuantizeLinear stores a result in a wider range."""
    if is_quantize(node):
        target = view.encoding(node)
    elif node.op == "Concat" and view.quantized(node.output):
        target = view.quantized(node.output)[0]
    else:
        return None
    joined = node.inputs if node.op == "Concat" else node.inputs[:1]
    if any(view.dequantized(name) is None for name in joined):
        return None  # floats are joined as they are
    for name in joined:
        own = view.dequantized(name)
        steps = 0 if own is None or view.is_constant(name) else _let_through(own, target)
        if own is not None and steps and _computed(view, own, node):
            tensor = own.node.input(0)
            text = f"'{tensor}' has a narrower range than the result, by {steps} of its steps"
            bounded = target.dtype is not None and target.dtype.bits <= _BOUNDED_BITS
            return Reason(text, (tensor,), _at_most(view, node, steps, target) if bounded else 0)
    return None


def _let_through(own: FileEncoding, target: FileEncoding) -> int:
    """Returns by how many steps of the result what is clamped may be off; 0 for two and less."""
    inner, outer = _stored_range(own), _stored_range(target)
    if inner is None or outer is None or not _reaches_out(inner, outer):
        return 0
    steps = max(inner.low - outer.low, outer.high - inner.high) / outer.step
    return math.ceil(steps) if steps > _STEPS else 0


def _at_most(view: FileView, node: FileNode, steps: int, target: FileEncoding) -> int:
    """Returns a bound for a result and for products behind it, which may make more of it."""
    found, top = steps + 1, (1 << _BOUNDED_BITS) - 1
    stored = view.quantized(node.output) if node.op == "Concat" else [target]
    for own in stored:
        for reader, _ in view.consumers(own.node.output):
            products = view.consumers(reader.output) if is_dequantize(reader) else []
            gains = [_gain(view, product, target) for product, index in products if index == 0]
            found = max([found, *(math.ceil(gain * found) for gain in gains)])
    return min(found, top)


def _gain(view: FileView, product: FileNode, x: FileEncoding) -> float:
    """Returns how many steps of its result one step of each operand is at most."""
    weight, results = view.dequantized(product.input(1)), view.quantized(product.output)
    if product.op not in WEIGHTED or weight is None or not results or weight.scale is None:
        return 0.0
    stored, result = view.constant(weight.node.input(0)), results[0]
    if stored is None or result.scale is None or x.scale is None:
        return 0.0
    largest = float(weight.scale.max()) * float(np.abs(stored.astype(np.int64)).max(initial=0))
    terms = stored.size / max(stored.shape[0 if product.op == "Conv" else -1], 1)
    return largest * terms * float(x.scale.max()) / float(result.scale.min())


_STEPS = 2
_BOUNDED_BITS = 8
"""Bits of results up to which no more than the lost clamp was ever seen; of 16 it was more."""


def _stored_range(found: FileEncoding) -> StoredRange | None:
    if found.dtype is None or found.scale is None or not found.per_tensor:
        return None
    scale, zero = float(found.scale.reshape(-1)[0]), found.zero()
    low, high = (int(end) - zero for end in (found.dtype.qmin, found.dtype.qmax))
    return StoredRange(low * scale, high * scale, scale)


def _computed(view: FileView, own: FileEncoding, reader: FileNode) -> bool:
    """True where an operator has made what is stored, in another encoding than its operand."""
    made, tensor, source = None, own.node.input(0), None
    while stored := view.producer(tensor):
        made = view.producer(stored.input(0)) if is_quantize(stored) else None
        if made is not None and is_dequantize(made):  # a conversion, which clamps or does not
            source = view.encoding(made)
            if _let_through(own, source):
                return True
            made, tensor = None, made.input(0)
            continue
        source = None if made is None else view.dequantized(made.input(0))
        if made is None or source is None or made.op not in COPIES:
            break
        tensor = source.node.input(0)
    if made is None:
        return False
    if made.op in _KEEPERS and source is not None and source.same_mapping(own):
        return False
    if made.op in (_CLAMPED_FOR_CONCAT if reader.op == "Concat" else _CLAMPED):
        return False
    return reader.op == "Concat" or made.op not in WEIGHTED


def nothing_left(view: FileView, node: FileNode) -> bool:
    """True where a Relu follows, and a Q that can store numbers up to 0 only: all of them are."""
    positive, readers = False, view.consumers(node.output)
    while len(readers) == 1:
        node = readers[0][0]
        if positive and is_quantize(node):
            found = view.encoding(node)
            if found.dtype is not None and found.zero() == found.dtype.qmax:
                return True
        keeps = is_quantize(node) or is_dequantize(node) or node.op in _STAYS_POSITIVE
        positive = node.op == "Relu" or (positive and keeps)
        readers = view.consumers(node.output)
    return False


_STAYS_POSITIVE = COPIES | {"ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "MaxPool"}


_CLAMPED_FOR_CONCAT = frozenset(
    {"ReduceMax", "ReduceMin", "ReduceMean", "GlobalAveragePool", "Sigmoid"}
)
"""Operators whose results are rounded to their own range before a Concat joins them."""
_CLAMPED = _CLAMPED_FOR_CONCAT | {
    "AveragePool", "Gelu", "GlobalMaxPool", "LayerNormalization", "LeakyRelu", "MaxPool", "Mul",
    "ReduceSum", "Relu", "Resize", "Softmax", "Tanh",
}  # fmt: skip
"""Operators whose results are so before another QuantizeLinear; sums and what is moved are not."""


# ---- What is no part of an operator between DequantizeLinear and QuantizeLinear, and is left so
#
# Such an operator is one unit to onnxruntime's QNN provider, with the DequantizeLinear of its
# parameters. Operators on stored integers, parameters of nobody, and what has bodies are none.

_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon"
_STORED = (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16)
_ANY_TYPE = RUNNING | {"Cast", "Shape", "Size", "If", "Loop", "Scan"}
"""Operators that other rules speak of, or that read no values."""
_NO_UNITS = frozenset({"Add", "Div", "Flatten", "Gather", "Mul", "Reshape", "Squeeze", "Sub"})
"""Readers of parameters that have a scale for each channel, which are left."""
_BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})
_BODIES = frozenset({"If", "Loop", "Scan"})


def _on_stored(view: FileView, node: FileNode) -> Reason | None:
    """An operator of ONNX on stored integers; a Transpose between Q and DQ is moved behind."""
    if is_quantize(node) or is_dequantize(node) or node.op in _ANY_TYPE or "::" in node.op:
        return None
    if node.op.startswith("QLinear") or not node.outputs or view.is_constant(node.output):
        return None
    for name in node.inputs:
        if not name or view.is_constant(name) or view.dtype(name) not in _STORED:
            continue
        made, readers = view.producer(name), view.consumers(node.output)
        moved = made is not None and is_quantize(made)
        moved = moved and bool(readers) and all(is_dequantize(reader) for reader, _ in readers)
        if node.op == "Transpose" and moved:
            return None
        return Reason(f"it reads stored integers: '{name}' is {view.dtype(name)}", (name,))
    return None


def _lone_channels(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not is_parameter(view, node) or found.scale is None:
        return None
    if found.per_tensor or found.block_size:
        return None
    for reader, _ in view.consumers(node.output):
        if reader.op in _NO_UNITS and not _is_bias_sum(view, reader):
            text = f"{reader.op} '{reader.name}' reads it, which is not a product"
            return Reason(text, (node.input(0),))
    return None


def _is_bias_sum(view: FileView, node: FileNode) -> bool:
    """True for an Add that is the bias of a MatMul, with whatever clamp behind."""
    made = [view.producer(name) for name in node.inputs if node.op == "Add"]
    return any(m is not None and bias_sum(view, m) is node for m in made)


def _lone_bias(view: FileView, node: FileNode) -> Reason | None:
    """A stored bias beside a weight that is not dequantized: the product is one of floats."""
    name, weight = node.input(2), node.input(1)
    x = view.dequantized(node.input(0)) if node.op in _BIASED and name else None
    if x is None or x.dtype not in (DType.UINT8, DType.INT8) or not view.quantized(node.output):
        return None
    if not view.is_constant(weight) or view.dequantized(weight) is not None:
        return None
    if view.dequantized(name) is None:
        return None  # floats are quantized by the provider
    made = view.producer(weight)
    if (made is not None and made.op == "Transpose") or view.dtype(weight) is not DType.FLOAT32:
        return None
    return Reason(f"its weight '{weight}' is float, its bias is stored", (name,))


def _body(view: FileView, node: FileNode) -> Reason | None:
    if node.op not in _BODIES or all(map(view.is_constant, node.outputs)):
        return None
    if node.op == "If" and view.is_constant(node.input(0)):
        return None  # onnxruntime puts the branch in its place
    return Reason("it has bodies, which read what is made elsewhere", (node.output,))


UNIT_RULES: tuple[TargetRule, ...] = (
    TargetRule("stored-operands", "operators on stored integers", _on_stored,
           f"{_HOST}: 'fails the backend's validation, code 3110', or 'inserted using the NHWC "
           "format'", Effect.ELSEWHERE, "dequantize in front, and quantize behind"),
    TargetRule("lone-channels", "DQ of per-channel constants", _lone_channels,
           f"{_HOST}: 'does not support a standalone DQ op with per-channel quantization'",
           Effect.ELSEWHERE, "store it in the shape in which a product reads it"),
    TargetRule("lone-bias", "products of 8 bits with a stored bias and a float weight", _lone_bias,
           f"{_HOST}: 'Dequantize fails the backend's validation, code 3110'", Effect.ELSEWHERE,
           "quantize the weight, or write both in floats"),
    TargetRule("bodies", "If, Loop and Scan", _body,
           f"{_HOST}: 'produced outside the QNN partition (cross-partition unsupported)'",
           Effect.ELSEWHERE, "write the branch that runs in its place"),
)  # fmt: skip


# ---- Which operators Hexagon's backend has, of which types, and of how many axes -----------------
# Each was run between DequantizeLinear and QuantizeLinear, of four types and of two to five axes.


FACTS = Facts.shipped("hexagon")
_APART = op(
    "AveragePool", "GlobalAveragePool", "HardSwish", "LeakyRelu", "Mish", "Round", "Transpose"
)  # fmt: skip
"""Operators that have rules of their own, because more than their type decides."""
_OPERATOR_MATRIX, MOST_AXES = 2, 4
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
    left, right = (view.shape(name) for name in node.inputs[:_OPERATOR_MATRIX])
    return (
        left is not None
        and right is not None
        and left[:-_OPERATOR_MATRIX] == right[:-_OPERATOR_MATRIX]
    )


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
    if (
        not is_quantize(node)
        or node.output not in view.outputs
        or not _OPERATOR_MATRIX < rank <= MOST_AXES
    ):
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


# ---- dynamic -------------------------------------------------------------------------------------
# Dynamic quantization on Hexagon: left to the CPU, or computed in floats that are not rounded.
#
# onnxruntime's QNN provider knows one chain: a DynamicQuantizeLinear for products with constant
# weights, a Cast, and a Mul with the product of both scales; an Add behind, if it alone follows,
# has to be a bias. Where one product is otherwise, none is taken, or the file does not load. It
# makes products of floats of them, whose activations nobody rounds: 2e-7 from the float product,
# and up to 1 % of the largest result from what the file means (onnxruntime-qnn 2.7.0, host build).
# Of zero points per channel it takes one.


_CODES, _SCALE, _ZERO = 0, 1, 2
"""Results of DynamicQuantizeLinear, and where a product reads codes and zero point."""
_WEIGHT, _WEIGHT_ZERO = 1, 3
_DYNAMIC_STEPS = 4
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
    steps = f"up to {_DYNAMIC_STEPS} of 256 steps of the largest result"
    text = f"its activations are not rounded: {steps}"
    return Reason(text, (node.input(0),), _DYNAMIC_STEPS)


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
