"""Activations, softmax and scores that a file spells step by step, as one operator each.

One operator is rounded once where its steps are rounded after each, so the last bit of a float
result may change; these rules are no part of the canonical form. They run where somebody asks for
them (``reroll``), and before a float graph is quantized: a step that is rounded to codes costs
far more than that bit, and an exporter's steps are quantized one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qdqbridge.canonical.activations import hard_sigmoid_of_steps, hard_swish_of_a_gate
from qdqbridge.canonical.build import constant, result
from qdqbridge.canonical.layer_norms import LAYER_NORMS
from qdqbridge.canonical.norms import offset_into_norm, scale_into_norm
from qdqbridge.canonical.rule import Proposal, Reject, Replace, Rule, Scope, rule
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.graph.patterns import Match, Pattern, match, near
from qdqbridge.graph.types import TensorType
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    ReduceAttrs,
    SoftmaxAttrs,
)
from qdqbridge.ops.table import BY_NAME


def whole(
    node: Node, scope: Scope, found: Match, name: str, attributes: Attributes,
    operands: Sequence[Value | None],
) -> Proposal:  # fmt: skip
    """Proposes one operator for the chain that ends in ``node``.

    Refused where somebody reads a result inside the chain: then its steps are computed anyway.
    """
    steps = [step for step in found.nodes if step is not node]
    for step in steps:
        inside = all(reader in found.nodes for reader in scope.readers(step.output))
        if not inside or scope.is_output(step.output):
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


def _first(node: Node, patterns: Sequence[Pattern]) -> Match | None:
    for pattern in patterns:
        found = Match()
        if match(node.output, pattern, found, either_order=True):
            return found
    return None


# ---- activations -------------------------------------------------------------------------------

_ROOT_2, _HALF_ROOT = math.sqrt(2), math.sqrt(0.5)
_ERF: tuple[Pattern, ...] = (
    ("Erf", ("Div", "x", _ROOT_2)),
    ("Erf", ("Mul", "x", _HALF_ROOT)),
)
_GELU: tuple[Pattern, ...] = tuple(
    pattern
    for erf in _ERF
    for pattern in (
        ("Mul", ("Mul", "x", ("Add", erf, 1.0)), 0.5),
        ("Mul", ("Mul", "x", 0.5), ("Add", erf, 1.0)),
        ("Mul", "x", ("Mul", ("Add", erf, 1.0), 0.5)),
    )
)
_CUBES: tuple[Pattern, ...] = (
    ("Mul", ("Pow", "x", 3.0), 0.044715),
    ("Mul", ("Mul", ("Mul", "x", "x"), "x"), 0.044715),
    ("Mul", ("Mul", "x", "x"), ("Mul", "x", 0.044715)),
    ("Mul", ("Mul", ("Mul", "x", 0.044715), "x"), "x"),
)
_TANHS: tuple[Pattern, ...] = tuple(
    ("Tanh", ("Mul", ("Add", "x", cube), math.sqrt(2 / math.pi))) for cube in _CUBES
)
_FACTORED: Pattern = (
    "Tanh",
    ("Mul", ("Mul", "x", math.sqrt(2 / math.pi)),
     ("Add", ("Mul", ("Mul", "x", "x"), 0.044715), 1.0)),
)  # fmt: skip
_GELU_TANH: tuple[Pattern, ...] = tuple(
    pattern
    for tanh in (*_TANHS, _FACTORED)
    for pattern in (
        ("Mul", ("Mul", "x", ("Add", tanh, 1.0)), 0.5),
        ("Mul", ("Mul", "x", 0.5), ("Add", tanh, 1.0)),
        ("Mul", "x", ("Mul", ("Add", tanh, 1.0), 0.5)),
    )
)


@rule("gelu-of-steps", "Mul")
def gelu_of_steps(node: Node, scope: Scope) -> Proposal:
    """``x / 2 * (1 + Erf(x / sqrt 2)) -> Gelu(x)``, and its approximation by Tanh."""
    for approximate, patterns in (("none", _GELU), ("tanh", _GELU_TANH)):
        found = _first(node, patterns)
        if found is not None:
            return whole(node, scope, found, "Gelu", GeluAttrs(approximate), [found.values["x"]])
    return None


_SWISH: tuple[Pattern, ...] = (
    ("Mul", "x", ("Sigmoid", "x")),
    ("Mul", "x", ("Sigmoid", ("Mul", "x", "#alpha"))),
    ("Div", "x", ("Add", ("Exp", ("Neg", "x")), 1.0)),
)


@rule("swish-of-steps", "Mul", "Div")
def swish_of_steps(node: Node, scope: Scope) -> Proposal:
    """``x * Sigmoid(alpha * x) -> Swish(x)``."""
    found = _first(node, _SWISH)
    if found is None:
        return None
    attributes = AlphaAttrs(found.numbers.get("alpha", 1.0))
    return whole(node, scope, found, "Swish", attributes, [found.values["x"]])


_MISH: Pattern = ("Mul", "x", ("Tanh", ("Softplus", "x")))
_SOFTPLUS: Pattern = ("Log", ("Add", ("Exp", "x"), 1.0))


@rule("softplus-of-steps", "Log")
def softplus_of_steps(node: Node, scope: Scope) -> Proposal:
    """``Log(1 + Exp(x)) -> Softplus(x)``."""
    found = _first(node, (_SOFTPLUS,))
    if found is None:
        return None
    return whole(node, scope, found, "Softplus", NO_ATTRIBUTES, [found.values["x"]])


@rule("mish-of-steps", "Mul")
def mish_of_steps(node: Node, scope: Scope) -> Proposal:
    """``x * Tanh(Softplus(x)) -> Mish(x)``."""
    found = _first(node, (_MISH,))
    if found is None:
        return None
    return whole(node, scope, found, "Mish", NO_ATTRIBUTES, [found.values["x"]])


_GATE: Pattern = ("Add", "x", 3.0)
_HARD_SIGMOID: tuple[Pattern, ...] = (("Div", "gate", 6.0), ("Mul", "gate", 1 / 6))
_HARD_SWISH: tuple[Pattern, ...] = (
    ("Div", ("Mul", "x", "gate"), 6.0),
    ("Mul", ("Mul", "x", "gate"), 1 / 6),
    ("Mul", "x", ("Div", "gate", 6.0)),
    ("Mul", "x", ("Mul", "gate", 1 / 6)),
)


@rule("hard-swish-of-steps", "Mul", "Div")
def hard_swish_of_steps(node: Node, scope: Scope) -> Proposal:
    """``x * Clip(x + 3, 0, 6) / 6 -> HardSwish(x)``; without the x HardSigmoid."""
    for name, patterns in (("HardSwish", _HARD_SWISH), ("HardSigmoid", _HARD_SIGMOID)):
        for pattern in patterns:
            found = Match()
            if not match(node.output, pattern, found, either_order=True):
                continue
            clip = found.values["gate"].producer
            if clip is None or clip.attributes != ClipAttrs(0.0, 6.0):
                continue
            found.nodes.append(clip)
            if not match(clip.operand(0), _GATE, found, either_order=True):
                continue
            swish = name == "HardSwish"
            sixth = HardSigmoidAttrs(float(np.float32(1 / 6)), 0.5)
            attributes = NO_ATTRIBUTES if swish else sixth
            return whole(node, scope, found, name, attributes, [found.values["x"]])
    return None


# ---- attention ---------------------------------------------------------------------------------

_SHARES: Pattern = ("Div", "e", ("ReduceSum", "e"))
_CENTRED: Pattern = ("Exp", ("Sub", "x", ("ReduceMax", "x")))


@rule("softmax-of-steps", "Div")
def softmax_of_steps(node: Node, scope: Scope) -> Proposal:
    """``e / ReduceSum(e)``, ``e = Exp(x - ReduceMax(x))`` ``-> Softmax(x)`` along one axis."""
    found = Match()
    if not match(node.output, _SHARES, found):
        return None
    total = node.operand(1).producer
    if total is None or not match(found.values["e"], _CENTRED, found):
        return None
    largest = [step for step in found.nodes if step.op.name == "ReduceMax"]
    axes = total.attributes
    if not isinstance(axes, ReduceAttrs) or not axes.keepdims or len(axes.axes) != 1:
        return Reject("a quotient of exponentials and their sum is no Softmax of one axis")
    if any(step.attributes != axes for step in largest):
        return Reject("the largest element is taken along other axes than the sum")
    return whole(node, scope, found, "Softmax", SoftmaxAttrs(axes.axes), [found.values["x"]])


@rule("scaled-scores", "MatMul")
def scaled_scores(node: Node, scope: Scope) -> Proposal:
    """``MatMul(a * s, b * t) -> MatMul(a, b) * (s * t)``: attention scales its scores once."""
    factors: list[float] = []
    operands: list[Value] = []
    for value in node.inputs:
        found = Match()
        scaled = match(value, ("Mul", "x", "#factor"), found, either_order=True)
        if value is None or not scaled or scope.sole_reader(value) is not node:
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
    value = result(
        BY_NAME["Mul"], NO_ATTRIBUTES, [product, factor], output.type, node.origin, output.name
    )
    return Replace({output: value})


REROLLED: tuple[Rule, ...] = (
    gelu_of_steps,
    hard_swish_of_steps,
    hard_sigmoid_of_steps,
    hard_swish_of_a_gate,
    swish_of_steps,
    softplus_of_steps,
    mish_of_steps,
    softmax_of_steps,
    scaled_scores,
    scale_into_norm,
    offset_into_norm,
    *LAYER_NORMS,
)
"""The rules, in the order in which they look at a node."""
