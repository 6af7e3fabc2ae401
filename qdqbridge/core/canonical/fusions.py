"""Steps as one operator: activations, softmax, scores; what lies between two roundings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from qdqbridge.core.canonical.norms import layer_norm_of_steps, offset_into_norm, scale_into_norm
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.core.graph.patterns import Part, Pattern, PatternMatch, near
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs, SoftmaxAttrs
from qdqbridge.core.ops.bodies import ends, steps_of, steps_pattern, written
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs, Step
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.elementwise import CONCAT, MUL, WHERE
from qdqbridge.core.ops.table import BY_NAME, OPERATORS
from qdqbridge.core.ops.unary import HARD_SWISH, RECIPROCAL
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    Rule,
    RuleContext,
    pattern_rule,
    replaced,
    rule,
    stored_behind,
)

# ---- Activations, softmax and scores that a file writes out step by step, as one operator each ---
# One operator is rounded once where its steps are rounded after each, so the last bit of a float
# result may change; these rules are no part of the canonical form. They run where somebody asks for
# them (``fuse``), and before a float graph is quantized: a step that is rounded to codes costs
# far more than that bit, and an exporter's steps are quantized one by one.


def fused_by(
    node: Node, context: RuleContext, chain: Sequence[Node], name: str, attributes: Attributes,
    operands: Sequence[Value | None],
) -> Proposal:  # fmt: skip
    """Proposes one operator for the chain that ends in ``node``.

    Refused where somebody reads a result inside the chain: then its steps are computed anyway.
    """
    steps = [step for step in chain if step is not node]
    for step in steps:
        inside = all(reader in chain for reader in context.readers(step.output))
        if not inside or context.is_output(step.output):
            reason = f"the steps of a {name} are read elsewhere: the result of {step.op.name}"
            return Reject(reason, (step.output.name,))
    x = operands[0]
    if x is None or not isinstance(x.type, TensorType) or not x.type.dtype.is_float:
        return None
    origin = node.origin
    for step in steps:
        origin = step.origin.joined(origin)
    return replaced(node, BY_NAME[name], attributes, operands, origin)


# ---- activations -------------------------------------------------------------------------------


def _fusion(op: Operator) -> Rule:
    """Returns the rule that makes one operator of any of its forms."""

    def of_steps(node: Node, context: RuleContext) -> Proposal:
        found = written(op, node.output, either_order=True)
        if found is None:
            return None
        return fused_by(node, context, found.nodes, op.name, found.attributes, found.operands)

    of_steps.__doc__ = _shown(op, op.forms[0].pattern)
    return rule(f"{kebab(op.name)}-of-steps", *ends(op))(of_steps)


def _shown(op: Operator, steps: Pattern) -> str:
    """Returns the docstring of a rule: the steps, and what they are."""

    def said(step: object) -> str:
        if not isinstance(step, tuple):
            return f"{step:.6g}" if isinstance(step, float) else str(step)
        parts = cast("tuple[object, ...]", step)
        return f"{parts[0]}({', '.join(said(p) for p in parts[1:] if not _is_record(p))})"

    return f"``{said(steps).replace('#', '')} -> {op.name}(x)``"


def _is_record(part: object) -> bool:
    return isinstance(part, Attributes)


def kebab(name: str) -> str:
    """Returns an operator's name as it stands in the names of rules."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower()


ACTIVATIONS: tuple[Rule, ...] = tuple(_fusion(op) for op in OPERATORS if op.arity == 1 and op.forms)


# ---- by the bodies of rows ---------------------------------------------------------------------

_PASSED_ON = (SoftmaxAttrs, PoolAttrs, ReduceAttrs)
"""Records that a body hands to its steps as they are, so that a chain says them."""


def _fusion_by_body(op: Operator) -> Rule:
    """Returns the rule that makes one operator of the steps of its body."""

    def of_steps(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
        stated: dict[str, Any] = {}
        for name, value in match.numbers.items():
            if stated.setdefault(name.rpartition(".")[2], value) != value:
                return Reject(f"the steps of a {op.name} go along other axes or windows")
        if op.attributes is SoftmaxAttrs and len(stated["axes"]) != 1:
            return Reject(f"the steps of a {op.name} go along several axes, ONNX's along one")
        return fused_by(node, context, match.nodes, op.name, op.attributes(**stated), [match["x"]])

    of_steps.__doc__ = _shown(op, steps_of(op))
    return pattern_rule(f"{kebab(op.name)}-of-steps", steps_pattern(op))(of_steps)


BODIES: tuple[Rule, ...] = tuple(
    _fusion_by_body(op) for op in OPERATORS if op.body is not None and op.attributes in _PASSED_ON
)


# ---- attention ---------------------------------------------------------------------------------


@pattern_rule(
    "scaled-scores",
    (
        "MatMul",
        Part("left", ("Mul", Part("a", constant=False), "#a"), sole=True),
        Part("right", ("Mul", Part("b", constant=False), "#b"), sole=True),
    ),
)
def scaled_scores(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``MatMul(a * s, b * s) -> MatMul(a, b) * (s * s)``: attention scales its scores once."""
    del context
    operands, (s, t) = [match["a"], match["b"]], (match.numbers["a"], match.numbers["b"])
    if any(not isinstance(v.type, TensorType) for v in operands) or not near(s, t):
        return None
    type_ = node.output.type
    product = result(node.op, NO_ATTRIBUTES, operands, type_, node.origin)
    factor = constant(Constant.of(np.asarray(s * t, type_.dtype.numpy)), None, "")
    return replaced(node, MUL, NO_ATTRIBUTES, [product, factor])


FUSIONS: tuple[Rule, ...] = (
    *ACTIVATIONS,
    *BODIES,
    scaled_scores,
    scale_into_norm,
    offset_into_norm,
    layer_norm_of_steps,
)
"""The rules, in the order in which they look at a node."""


# ---- Rules for operators of one operand that a file writes as the very same float operations


@pattern_rule("division-of-one", ("Div", 1.0, "x"))
def division_of_one(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Div(1, x) -> Reciprocal(x)``."""
    del context
    x = match["x"]
    if x.type != node.output.type or not _is_float(x):
        return None
    return replaced(node, RECIPROCAL, NO_ATTRIBUTES, [x])


_GATE = ("HardSigmoid", "x", {"alpha": float(np.float32(1 / 6)), "beta": 0.5})


@pattern_rule("hard-swish-of-its-gate", ("Mul", "x", Part("gate", _GATE, sole=True)))
def hard_swish_of_its_gate(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Mul(x, HardSigmoid(x; 1/6, 1/2)) -> HardSwish(x)``, which ONNX defines so."""
    del context
    x = match["x"]
    if x.type.dtype is not DType.FLOAT32 or x.type != node.output.type:
        return None
    return replaced(node, HARD_SWISH, NO_ATTRIBUTES, [x], match.origin())


def number(value: Value | None) -> float | None:
    """Returns the number in a plain float constant of one element."""
    if value is None or value.constant is None or value.quant is not None:
        return None
    if value.constant.size != 1 or not value.type.dtype.is_float:
        return None
    return float(value.constant.numpy().reshape(()).astype(np.float64))


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


# ---- Float elementwise operators between one dequantize and a quantize are one function ----------


_MOST = 64
_NOT_ELEMENTWISE = (CONCAT, WHERE, COMPOSITION)
_STORAGE = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


@rule("compose-elementwise", QUANTIZE)
def compose_elementwise(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Erf(Div(dequantize(q), c))) -> Composition(q, c)`` into the quantized type."""
    target, end = node.output.quant, node.operand(0).producer
    if target is None or end is None or not _is_step(end):
        return None
    if not target.params.per_tensor or target.params.storage_dtype not in _STORAGE:
        return None
    makers = [v.producer for v in end.inputs if v is not None and v.producer is not None]
    if not any(_is_step(maker) for maker in makers):
        return None
    region = _ElementwiseRegion()
    refusal = region.grow(end)
    if refusal is not None:
        return replace(refusal, about=end)
    if region.source is None:
        return None
    leak = _leak(region, end, context)
    if leak is not None:
        return replace(leak, about=end)
    origin = end.origin.joined(node.origin)
    operands = [region.source, *region.scalars]
    attributes = CompositionAttrs(tuple(_composition_steps(region)))
    value = result(COMPOSITION, attributes, operands, node.output.type, origin, node.output.name)
    return Replace({node.output: value})


def _is_step(node: Node) -> bool:
    plain = node.op.flow is Flow.ELEMENTWISE and node.op not in _NOT_ELEMENTWISE
    types = [v.type for v in node.outputs]
    return (
        plain
        and len(types) == 1
        and isinstance(types[0], TensorType)
        and types[0].dtype is DType.FLOAT32
    )


@dataclass(slots=True)
class _ElementwiseRegion:
    """The operators behind a value up to one dequantize, operands first."""

    order: list[Node] = field(default_factory=list[Node])
    scalars: list[Value] = field(default_factory=list[Value])
    source: Value | None = None
    done: set[Node] = field(default_factory=set[Node])

    def grow(self, end: Node) -> Reject | None:
        stack: list[tuple[Node, bool]] = [(end, False)]
        begun = 0
        while stack:
            node, ready = stack.pop()
            if node in self.done:
                continue
            if ready:
                self.done.add(node)
                self.order.append(node)
                continue
            begun += 1
            if begun > _MOST + 1:
                return Reject(f"more than {_MOST} float operators follow one another")
            stack.append((node, True))
            for value in reversed(node.inputs):
                refusal = self._operand(value, stack)
                if refusal is not None:
                    return refusal
        return None

    def _operand(self, value: Value | None, stack: list[tuple[Node, bool]]) -> Reject | None:
        if value is None:
            return None
        if value.constant is not None:
            if value.constant.size != 1 or value.quant or value.type.dtype is not DType.FLOAT32:
                return Reject("a constant operand is no float scalar", (value.name,))
            if value not in self.scalars:
                self.scalars.append(value)
            return None
        stored = stored_behind(value)
        if stored is not None:
            return self._read(stored)
        if value.producer is None or not _is_step(value.producer):
            maker = "a graph input" if value.producer is None else value.producer.op.name
            return Reject(f"its float operand is the result of {maker}", (value.name,))
        stack.append((value.producer, False))
        return None

    def _read(self, stored: Value) -> Reject | None:
        quant = stored.quant
        if quant is None or not quant.params.per_tensor or stored.type.dtype not in _STORAGE:
            return Reject("an operand is no 8- or 16-bit tensor", (stored.name,))
        if self.source is not None and self.source is not stored:
            return Reject("it combines two tensors", (self.source.name, stored.name))
        self.source = stored
        return None


def _leak(region: _ElementwiseRegion, end: Node, context: RuleContext) -> Reject | None:
    for node in region.order:
        value = node.output
        inside = {QUANTIZE} if node is end else set[Operator]()
        for reader in context.readers(value):
            if reader not in region.done and reader.op not in inside:
                return Reject(f"the float result of {node.op.name} is also read elsewhere")
        if context.is_output(value):
            return Reject(f"the float result of {node.op.name} is a graph output")
    return None


def _composition_steps(region: _ElementwiseRegion) -> list[Step]:
    numbers: dict[Value, int] = {value: i for i, value in enumerate(region.scalars, 1)}
    first = 1 + len(region.scalars)
    steps: list[Step] = []
    for node in region.order:
        operands = tuple(numbers.get(v, 0) for v in node.inputs if v is not None)
        steps.append(Step(node.op, node.attributes, operands, node.origin, node.output.name))
        numbers[node.output] = first + len(steps) - 1
    return steps
