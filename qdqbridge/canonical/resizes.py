"""The rule that gives nearest resizes by whole factors one spelling."""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.canonical.build import result
from qdqbridge.canonical.rule import Proposal, Replace, Scope, rule
from qdqbridge.graph.graph import Node
from qdqbridge.ops.attributes import ResizeAttrs

_CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
_ROUNDED = ("round_prefer_floor", "round_prefer_ceil")


@rule("nearest-by-whole-factors", "Resize")
def nearest_by_whole_factors(node: Node, scope: Scope) -> Proposal:
    """``Resize(half_pixel, round) -> Resize(asymmetric, floor)`` of nearest by whole factors.

    Both take element ``i // factor``: ``(i + 1/2) / factor - 1/2`` is never halfway between two
    integers, and rounds to that.
    """
    del scope
    given = node.attributes
    if not isinstance(given, ResizeAttrs) or given.mode != "nearest" or given.scales is None:
        return None
    if given.coordinate_transformation_mode not in _CENTRES or given.nearest_mode not in _ROUNDED:
        return None
    if any(scale < 1 or scale != int(scale) for scale in given.scales):
        return None
    spelled = replace(given, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    output, origin = node.output, node.origin
    value = result(node.op, spelled, node.inputs, output.type, origin, output.name)
    return Replace({output: value})
