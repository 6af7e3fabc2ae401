"""Norms and softmaxes that a host is given as several calls."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern, near
from qdqbridge.core.ops.attributes import NormAttrs, SoftmaxAttrs
from qdqbridge.core.ops.data_movement import RESHAPE
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION
from qdqbridge.core.ops.softmax import OPERATORS as SOFTMAXES
from qdqbridge.core.rewrite.rule import Replace, Rule, RuleContext, pattern_rule, rule
from qdqbridge.tvm.qnn.read.rules.recorded import completed, present, stated

_NORMS = (LAYER_NORMALIZATION, RMS_NORMALIZATION)
_ROOT: Pattern = ("Sqrt", ("Add", ("ReduceMean", ("Mul", "x", "x")), "#epsilon"))


@rule("norm-with-offset", ADD)
def norm_with_offset(node: Node, context: RuleContext) -> Replace | None:
    """``LayerNormalization(x, gamma) + beta -> LayerNormalization(x, gamma, beta)``."""
    del context
    inner = node.operand(0).producer
    if inner is None or inner.op not in _NORMS or len(inner.inputs) != 2:
        return None
    given = stated(node, inner.op.name, NormAttrs)
    return given and completed(node, inner.op, [*present(inner), node.operand(1)], given)


@pattern_rule("norm-of-steps", ("Mul", ("Div", "x", _ROOT), "gamma"))
def norm_of_steps(node: Node, match: PatternMatch, context: RuleContext) -> Replace | None:
    """``x / Sqrt(ReduceMean(x * x) + epsilon) * gamma -> RMSNormalization(x, gamma)``.

    Where x is ``y - ReduceMean(y)``, it may be a layer norm of y.
    """
    del context
    for op in _NORMS:
        given, x = stated(node, op.name, NormAttrs), match["x"]
        if given is None or not near(match.numbers["epsilon"], given.epsilon):
            continue
        if op is LAYER_NORMALIZATION:
            centred = PatternMatch()
            if not match_value_pattern(x, ("Sub", "y", ("ReduceMean", "y")), centred):
                continue
            x = centred.values["y"]
        return completed(node, op, [x, match["gamma"]], given)
    return None


@rule("softmax-of-flat", RESHAPE)
def softmax_of_flat(node: Node, context: RuleContext) -> Replace | None:
    """``Reshape(Softmax(Reshape(x))) -> Softmax(x)``: over several axes."""
    del context
    inner = node.operand(0).producer
    if inner is None or inner.op not in SOFTMAXES:
        return None
    given, flat = stated(node, inner.op.name, SoftmaxAttrs), inner.operand(0).producer
    if given is None or flat is None or flat.op is not RESHAPE:
        return None
    return completed(node, inner.op, [flat.operand(0)], given)


RULES: tuple[Rule, ...] = (norm_with_offset, norm_of_steps, softmax_of_flat)
