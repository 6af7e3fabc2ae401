"""What a quantized graph means as floats: its operators without a rounding, activations whole.

Two tools write one network with other operators: an activation in steps or as one, a batch
normalization of its own or in the weights, quantization as pairs of nodes or as float arithmetic.
Both graphs are brought to the same form before they are aligned, and every node of the form knows
which nodes of the graph it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.planning.batch_norms import FOLDS, without_layout
from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.fusions import FUSIONS
from qdqbridge.core.canonical.linear import parts_of_one_product
from qdqbridge.core.canonical.order import order_operands
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import Copy, copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import link, unlink
from qdqbridge.core.graph.graph import Graph, Node, Origin, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.types import QuantType, TensorType, ValueType
from qdqbridge.core.ops.attributes import GemmAttrs, SliceAttrs, SplitAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.dynamic import UNROUNDED
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.ops.selection import SLICE, SPLIT
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, pattern_rule, rule, run

Array = NDArray[Any]
_BIAS = 2
_NEAR = 0.5
"""Relative distance up to which a constant behind a product is the original's, rounded."""
_OF_FLOATS = (ReadingOptions(decomposed=True), ReadingOptions(fold_affine=True))
"""Quantization in float arithmetic is quantization; then, what folds into integer products does.

At once a quantization's Div would be folded into the product before it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class CommonForm:
    """The float form of a quantized graph.

    Attributes:
        source: The graph that it is the form of.
        steps: The form, operator by operator.
        values: Of each value of the source, that of the steps; conversions give what they read.
        stands: Of each step, the node of the source that it belongs to.
        whole: The form with activations and norms whole.
    """

    source: Graph
    steps: Graph
    values: Mapping[Value, Value]
    stands: Mapping[Node, Node]
    whole: Graph

    def parts(self, node: Node) -> list[Node]:
        """Returns the steps that a node of the whole form stands for, in their order."""
        numbers = sorted(int(number) for number in node.origin.nodes)
        return [self.steps.nodes[number] for number in numbers]


def without_arithmetic(quantized: Graph, *, channels_first: bool = False) -> Copy:
    """Returns a copy in which quantization in float arithmetic and folded affine maps are types.

    Args:
        quantized: A canonical graph.
        channels_first: Undo transposes of images, which a tool for another layout has put in.
    """
    copy = copied(quantized)
    # One after the other: together, the Div of a quantization would be folded into a product.
    for options in _OF_FLOATS:
        canonicalize(copy.graph, options, channels_first=channels_first)
    run(copy.graph, (parts_of_one_product,))
    return copy


def with_slices(graph: Graph) -> Graph:
    """Returns a copy in which every Split is Slices, as PyTorch's exporter writes it.

    Args:
        graph: A canonical graph.
    """
    copy = copied(graph).graph
    run(copy, (split_is_slices,))
    return copy


@rule("split-is-slices", SPLIT)
def split_is_slices(node: Node, context: RuleContext) -> Proposal:
    """``Split(x) -> Slice(x)`` for each part."""
    del context
    given = node.attributes
    if not isinstance(given, SplitAttrs) or len(node.inputs) != 1:
        return None
    ends = list(accumulate(given.sizes))
    starts = [end - size for end, size in zip(ends, given.sizes, strict=True)]
    return Replace({
        part: result(
            SLICE, SliceAttrs((start,), (end,), (given.axis,), (1,)), [node.operand(0)], part.type,
            node.origin, part.name,
        )
        for part, start, end in zip(node.outputs, starts, ends, strict=True)
    })  # fmt: skip


def common_form(graph: Graph) -> CommonForm:
    """Returns the float form of a graph that may be quantized; the graph is not changed.

    Args:
        graph: A canonical graph.
    """
    made = _Floats()
    for value in graph.inputs:
        made.values[value] = Value(_float(value), value.name)
    for node in graph.nodes:
        made.add(node)
    inputs = [made.values[value] for value in graph.inputs]
    outputs = [made.real(value) for value in graph.outputs]
    steps = replace(graph, inputs=inputs, outputs=outputs, nodes=made.nodes, notes=[])
    whole = copied(steps).graph
    for number, node in enumerate(whole.nodes):
        # The number of a step instead of a name: what rules make of several joins their origins,
        # and so says of which steps it is made.
        node.origin = Origin((str(number),))
    whole = without_layout(whole, (*FOLDS, *FUSIONS, matrix_is_dense, dense_bias))
    order_operands(whole)
    return CommonForm(graph, steps, made.values, made.stands, whole)


def unfolded(form: CommonForm, nodes: Iterable[Node]) -> CommonForm:
    """Returns a form in which some nodes are their steps again.

    Args:
        nodes: Nodes of ``form.whole``.
    """
    copy = copied(form.whole)
    apart = {copy.nodes[node]: form.parts(node) for node in nodes}
    made: list[Node] = []
    for node in copy.graph.nodes:
        numbers = sorted(int(number) for number in node.origin.nodes)
        steps = in_place_of(node, apart[node], own=True) if node in apart else None
        if steps is None:
            made.append(node)
            continue
        for number, step in zip(numbers, steps, strict=True):
            step.origin = Origin((str(number),))
        made += steps
    copy.graph.nodes = made
    return replace(form, whole=copy.graph)


def in_place_of(node: Node, steps: Sequence[Node], *, own: bool) -> list[Node] | None:
    """Puts copies of steps in the place of a node that computes the same; None where they do not.

    Args:
        node: The node, which is unlinked.
        steps: The steps, which read one value that is not constant.
        own: The steps' constants are those of ``node``; else its constants are put in where they
            are the same but for a rounding.
    """
    inner = {value for step in steps for value in step.outputs}
    operands = [v for step in steps for v in step.inputs if v is not None and v not in inner]
    outside = list(dict.fromkeys(v for v in operands if v.constant is None))
    given = list(dict.fromkeys(v for v in node.inputs if v is not None and v.constant is None))
    # With several operands nothing would say which belongs where.
    if len(outside) != len(given) or len(given) > 1 or any(len(s.outputs) != 1 for s in steps):
        return None
    values = dict(zip(outside, given, strict=True))
    scaled = any(step.op.weight is not None for step in steps) and any(
        step.op.weight is None and step.op is not ADD for step in steps
    )
    made: list[Node] = []
    unlink(node)
    for step in steps:
        taken = [
            v
            if v is None
            else values.get(v) or (v if own else _find_original_constant(v, node, scaled=scaled))
            for v in step.inputs
        ]
        last = step is steps[-1]
        result_ = node.output if last else Value(step.output.type.with_shape(None),
                                                 step.output.name)  # fmt: skip
        copy = Node(step.op, step.attributes, taken, [result_], step.origin)
        link(copy)
        values[step.output] = result_
        made.append(copy)
    return made


def _find_original_constant(value: Value, node: Node, *, scaled: bool) -> Value:
    """Returns the node's constant that one of the steps is a rounding of, else that one.

    Behind a product that is ``scaled`` afterwards, the product's weight may be another one.
    """
    if value.constant is None or value.constant.size <= 1:
        return value
    array = value.constant.numpy()
    found: list[tuple[float, int, Value]] = []
    for index, own in enumerate(node.inputs):
        if own is None or own.constant is None or own.constant.size != array.size:
            continue
        gap = distance(own.constant.numpy(), array)
        # A scale behind the product may have been folded into the weight of one of the graphs only.
        if gap is not None and (gap < _NEAR or not scaled):
            found.append((gap, index, own))
    if not found:
        return value
    best = min(found)[2]
    shape = array.shape
    assert best.constant is not None
    if best.constant.shape == shape:
        return best
    data = best.constant.map(lambda own: own.reshape(shape), shape=shape)
    return Value(best.type.with_shape(shape), best.name, constant=data)


def distance(a: Array, b: Array) -> float | None:
    """Returns 0 for equal constants, 1 for what has nothing in common; None for other sizes."""
    if a.size != b.size:
        return None
    wide = a.astype(np.float64).reshape(-1)
    choices = [b.reshape(-1)]
    # A square matrix may be transposed though the shapes are equal.
    if a.shape != b.shape or (a.ndim == 2 and a.shape[0] == a.shape[1]):
        choices.append(b.T.reshape(-1))
    signal = float(np.square(wide).sum())
    gaps = [float(np.square(choice.astype(np.float64) - wide).sum()) for choice in choices]
    return float(min(np.sqrt(min(gaps) / signal), 1.0)) if signal else float(min(gaps) > 0)


def is_conversion(node: Node) -> bool:
    """True of nodes that give the same numbers in another type."""
    if node.op is CAST and node.inputs[0] is not None:
        return node.operand(0).type.dtype.is_float and node.output.type.dtype.is_float
    return node.op.flow is Flow.CONVERT


@rule("matrix-is-dense", MATMUL, GEMM)
def matrix_is_dense(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(x, w) -> Dense(x, transpose(w))`` for a constant matrix w, of floats as of codes."""
    del context
    given, x, w = node.attributes, node.operand(0), node.operand(1)
    flipped = False
    if isinstance(given, GemmAttrs):
        if given.trans_a or given.alpha != 1.0 or given.beta != 1.0:
            return None
        flipped = given.trans_b
    if w.constant is None or w.rank != 2 or x.rank is None or x.rank < 2:
        return None
    rows = w.constant if flipped else w.constant.transposed()
    bias = node.optional(_BIAS)
    units = rows.shape[0]
    if bias is not None and (bias.constant is None or bias.constant.shape != (units,)):
        return None
    weight = w if flipped else Value(w.type.with_shape(rows.shape), w.name, constant=rows)
    return _common_dense(node, [x, weight, *([] if bias is None else [bias])], node)


@pattern_rule(
    "dense-bias",
    (
        "Add",
        Part("product", ("Dense", "x", Part("w", constant=True)), sole=True),
        Part("vector", constant=True),
    ),
)
def dense_bias(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(Dense(x, w), vector) -> Dense(x, w, vector)`` for a constant."""
    del context
    added, weight = match["vector"], match["w"].constant
    if added.constant is None or weight is None:
        return None
    units, shape = weight.shape[0], added.constant.shape
    if added.constant.size != units or not shape or shape[-1] != units:
        return None
    flat = added.constant.map(lambda array: array.reshape(-1), shape=(units,))
    vector = Value(added.type.with_shape((units,)), added.name, constant=flat)
    return _common_dense(match.node("product"), [match["x"], match["w"], vector], node)


def _common_dense(product: Node, operands: Sequence[Value | None], last: Node) -> Proposal:
    origin = product.origin if product is last else product.origin.joined(last.origin)
    output = last.output
    value = result(DENSE, NO_ATTRIBUTES, operands, output.type, origin, output.name)
    return Replace({output: value})


class _Floats:
    """Builds the steps."""

    def __init__(self) -> None:
        self.values: dict[Value, Value] = {}
        self.nodes: list[Node] = []
        self.stands: dict[Node, Node] = {}

    def real(self, value: Value) -> Value:
        """Returns what a value stands for; of a constant, its real numbers."""
        if value not in self.values:
            self.values[value] = Value(
                _float(value), value.name, constant=_constant_to_float32(value)
            )
        return self.values[value]

    def add(self, node: Node) -> None:
        """Adds the steps of a node; none for a conversion."""
        operands = [None if value is None else self.real(value) for value in node.inputs]
        if is_conversion(node) and operands and operands[0] is not None:
            self.values[node.output] = operands[0]
            return
        results = [Value(_float(value), value.name) for value in node.outputs]
        self.values.update(zip(node.outputs, results, strict=True))
        if isinstance(node.attributes, CompositionAttrs):
            self._compose(node, node.attributes, operands, results[0])
            return
        op, attributes = UNROUNDED.get(node.op, node.op), node.attributes
        if op is DENSE:
            attributes = NO_ATTRIBUTES
        self._link(Node(op, attributes, operands, results, node.origin), node)

    def _compose(
        self, node: Node, attributes: CompositionAttrs, operands: Sequence[Value | None],
        result: Value,
    ) -> None:  # fmt: skip
        known = list(operands)
        inner = [Value(result.type.with_shape(None), step.name) for step in attributes.steps[:-1]]
        for step, made in zip(attributes.steps, [*inner, result], strict=True):
            taken = [known[index] for index in step.operands]
            self._link(Node(step.op, step.attributes, taken, [made], node.origin), node)
            known.append(made)

    def _link(self, node: Node, source: Node) -> None:
        link(node)
        self.nodes.append(node)
        self.stands[node] = source


def _float(value: Value) -> ValueType:
    if isinstance(value.type, QuantType):
        return TensorType(DType.FLOAT32, value.type.shape)
    return value.type


def _constant_to_float32(value: Value) -> Constant | None:
    data = value.constant
    if data is None or value.quant is None:
        return data
    params = value.quant.params
    return data.map(lambda array: dequantize(array, params, np.float32), dtype=DType.FLOAT32)
