"""Activations, softmax and scores that a file writes out step by step, as one operator each.

One operator is rounded once where its steps are rounded after each, so the last bit of a float
result may change; these rules are no part of the canonical form. They run where somebody asks for
them (``fuse``), and before a float graph is quantized: a step that is rounded to codes costs
far more than that bit, and an exporter's steps are quantized one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from qdqbridge.core.canonical.layer_norms import LAYER_NORMS
from qdqbridge.core.canonical.norms import offset_into_norm, scale_into_norm
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern, near
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import ReduceAttrs, SoftmaxAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.elementwise import DIV, MUL
from qdqbridge.core.ops.forms import ends, written
from qdqbridge.core.ops.matmul import MATMUL
from qdqbridge.core.ops.reduction import REDUCE_MAX
from qdqbridge.core.ops.table import BY_NAME, OPERATORS
from qdqbridge.core.rewrite.rule import Proposal, Reject, Replace, Rule, RuleContext, rule


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
    output = node.output
    value = result(BY_NAME[name], attributes, operands, output.type, origin, output.name)
    return Replace({output: value})


# ---- activations -------------------------------------------------------------------------------


def _fusion(op: Operator) -> Rule:
    """Returns the rule that makes one operator of any of its forms."""

    @rule(f"{_kebab(op.name)}-of-steps", *ends(op))
    def of_steps(node: Node, context: RuleContext) -> Proposal:
        found = written(op, node.output, either_order=True)
        if found is None:
            return None
        return fused_by(node, context, found.nodes, op.name, found.attributes, found.operands)

    return of_steps


def _kebab(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower()


ACTIVATIONS: tuple[Rule, ...] = tuple(_fusion(op) for op in OPERATORS if op.arity == 1 and op.forms)


# ---- attention ---------------------------------------------------------------------------------

_SHARES: Pattern = ("Div", "e", ("ReduceSum", "e"))
_CENTRED: Pattern = ("Exp", ("Sub", "x", ("ReduceMax", "x")))


@rule("softmax-of-steps", DIV)
def softmax_of_steps(node: Node, context: RuleContext) -> Proposal:
    """``e / ReduceSum(e)``, ``e = Exp(x - ReduceMax(x))`` ``-> Softmax(x)`` along one axis."""
    found = PatternMatch()
    if not match_value_pattern(node.output, _SHARES, found):
        return None
    total = node.operand(1).producer
    if total is None or not match_value_pattern(found.values["e"], _CENTRED, found):
        return None
    largest = [step for step in found.nodes if step.op is REDUCE_MAX]
    axes = total.attributes
    if not isinstance(axes, ReduceAttrs) or not axes.keepdims or len(axes.axes) != 1:
        return Reject("a quotient of exponentials and their sum is not a Softmax of one axis")
    if any(step.attributes != axes for step in largest):
        return Reject("the largest element is taken along other axes than the sum")
    return fused_by(
        node, context, found.nodes, "Softmax", SoftmaxAttrs(axes.axes), [found.values["x"]]
    )


@rule("scaled-scores", MATMUL)
def scaled_scores(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(a * s, b * t) -> MatMul(a, b) * (s * t)``: attention scales its scores once."""
    factors: list[float] = []
    operands: list[Value] = []
    for value in node.inputs:
        found = PatternMatch()
        scaled = match_value_pattern(value, ("Mul", "x", "#factor"), found, either_order=True)
        if value is None or not scaled or context.sole_reader(value) is not node:
            return None
        factors.append(found.numbers["factor"])
        operands.append(found.values["x"])
    if any(not isinstance(v.type, TensorType) or v.is_constant for v in operands):
        return None
    if not near(factors[0], factors[1]):
        return None
    output = node.output
    product = result(node.op, NO_ATTRIBUTES, operands, output.type, node.origin)
    number = np.asarray(factors[0] * factors[1], output.type.dtype.numpy)
    factor = constant(Constant.of(number), None, "")
    value = result(MUL, NO_ATTRIBUTES, [product, factor], output.type, node.origin, output.name)
    return Replace({output: value})


FUSIONS: tuple[Rule, ...] = (
    *ACTIVATIONS,
    softmax_of_steps,
    scaled_scores,
    scale_into_norm,
    offset_into_norm,
    *LAYER_NORMS,
)
"""The rules, in the order in which they look at a node."""
