"""Rules for changes of type: what cancels, what is one requantize, what is a constant."""

from __future__ import annotations

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType, TensorType
from qdqbridge.core.ops.build import constant, evaluated, requantized, retyped
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.conversion import QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Replace,
    RuleContext,
    made_by,
    rule,
    stored_behind,
)
from qdqbridge.errors import UnsupportedModelError


def covers(wide: QuantParams, narrow: QuantParams) -> bool:
    """True where every stored value of ``narrow`` is one of ``wide`` with the same meaning."""
    return wide.same_mapping(narrow) and wide.qmin <= narrow.qmin and wide.qmax >= narrow.qmax


@rule("quantized-constant", QUANTIZE, REQUANTIZE)
def quantized_constant(node: Node, context: RuleContext) -> Proposal:
    """``quantize(const) -> const``, rounded as ONNX says, when first looked at.

    Every further way to quantize the same constant takes from what a file may have computed: a
    file of one weight that is quantized ten thousand times stands for as many weights.

    Raises:
        UnsupportedModelError: More is asked for than that.
    """
    source, target = node.operand(0), node.output.type
    data = source.constant
    if data is None or not isinstance(target, QuantType):
        return None
    known = context.quantized.setdefault((data, source.type), {})
    if target.params not in known:
        if known and not context.budget.affords(data.size):
            raise UnsupportedModelError(
                "a constant is quantized in too many ways",
                where=f"node '{node.name}'",
                why=f"it has {data.size} elements, and {len(known)} others of its quantizations "
                "are in the graph",
                fix="store the integers of each in the file, or use the same parameters",
            )
        known[target.params] = Constant(target.dtype, data.shape, lambda: evaluated(node))
    return Replace({node.output: constant(known[target.params], target.params, source.name)})


@rule("reinterpreted-constant", REINTERPRET)
def reinterpreted_constant(node: Node, context: RuleContext) -> Proposal:
    """``reinterpret(const) -> const`` of the other type."""
    del context
    source, target = node.operand(0), node.output.type
    if source.constant is None:
        return None
    params = target.params if isinstance(target, QuantType) else None
    return Replace({node.output: constant(source.constant, params, source.name)})


@rule("reinterpret-twice", REINTERPRET)
def reinterpret_twice(node: Node, context: RuleContext) -> Proposal:
    """``reinterpret(reinterpret(q)) -> reinterpret(q)``, or ``q`` where the type is the same."""
    del context
    source = node.operand(0)
    if source.type == node.output.type:
        return Replace({node.output: source})
    inner = made_by(source, REINTERPRET)
    if inner is None:
        return None
    original = inner.operand(0)
    if original.type == node.output.type:
        return Replace({node.output: original})
    return Replace({node.output: retyped(node, [original], node.output.type, node.output.name)})


@rule("dequantize-quantize", QUANTIZE)
def dequantize_quantize(node: Node, context: RuleContext) -> Proposal:
    """``quantize(dequantize(q)) -> q`` with equal parameters, else ``requantize(q)``."""
    del context
    stored, target = stored_behind(node.operand(0)), node.output.quant
    if stored is None or stored.quant is None or target is None:
        return None
    source = stored.quant.params
    if not source.round_trips:
        return None
    if covers(target.params, source):
        return Replace({node.output: stored})
    return Replace({node.output: requantized(stored, target.params, node.origin, node.output.name)})


@rule("requantize-nothing", REQUANTIZE)
def requantize_nothing(node: Node, context: RuleContext) -> Proposal:
    """``requantize(q) -> q`` where the parameters are equal and the range covers q's."""
    del context
    source, target = node.operand(0), node.output.quant
    if source.quant is None or target is None or not covers(target.params, source.quant.params):
        return None
    return Replace({node.output: source})


@rule("cast-nothing", CAST)
def cast_nothing(node: Node, context: RuleContext) -> Proposal:
    """``Cast(x) -> x`` where x has that type already."""
    del context
    source = node.operand(0)
    if isinstance(source.type, TensorType) and source.type.dtype is node.output.type.dtype:
        return Replace({node.output: source})
    return None
