"""The rules that give nearest resizes one form."""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.build import requantized, result
from qdqbridge.core.ops.resize import RESIZE, moves
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
_ROUNDED = ("round_prefer_floor", "round_prefer_ceil")


@rule("nearest-by-whole-factors", RESIZE)
def nearest_by_whole_factors(node: Node, context: RuleContext) -> Proposal:
    """``Resize(half_pixel, round) -> Resize(asymmetric, floor)`` of nearest by whole factors.

    Both take element ``i // factor``: ``(i + 1/2) / factor - 1/2`` is never halfway between two
    integers, and rounds to that.
    """
    del context
    given = node.attributes
    if not isinstance(given, ResizeAttrs) or given.mode != "nearest" or given.scales is None:
        return None
    if given.coordinate_transformation_mode not in _CENTRES or given.nearest_mode not in _ROUNDED:
        return None
    if any(scale < 1 or scale != int(scale) for scale in given.scales):
        return None
    written = replace(given, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    output, origin = node.output, node.origin
    value = result(node.op, written, node.inputs, output.type, origin, output.name)
    return Replace({output: value})


@rule("nearest-keeps-quantization", RESIZE)
def nearest_keeps_quantization(node: Node, context: RuleContext) -> Proposal:
    """``Resize(x) -> requantize(Resize(x))`` of nearest into other parameters than those of x.

    What only copies elements does not round them; where it stands is no matter of rule order.
    """
    del context
    given, source, target = node.attributes, node.operand(0).quant, node.output.quant
    if not isinstance(given, ResizeAttrs) or not moves(given) or source is None or target is None:
        return None
    if source.params.same_mapping(target.params) or not source.params.per_tensor:
        return None
    output, origin = node.output, node.origin
    copied = result(node.op, given, node.inputs, source.with_shape(target.shape), origin)
    return Replace({output: requantized(copied, target.params, origin, output.name)})
