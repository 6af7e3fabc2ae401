"""The rule for blocks of depth that become space, and the other way round."""

from __future__ import annotations

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import Dim
from qdqbridge.core.ops.attributes import DepthSpaceAttrs, TransposeAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.data_movement import RESHAPE, TRANSPOSE
from qdqbridge.core.ops.depth_space import STEPS
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, made_by, rule


@rule("blocks-of-depth", RESHAPE)
def blocks_of_depth(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(Transpose(Reshape(x))) -> DepthToSpace(x)`` or ``SpaceToDepth(x)``.

    One extent may be open beside the batch: a Reshape leaves no choice for one that is left.
    """
    del context
    turn = made_by(node.operand(0), TRANSPOSE)
    split = None if turn is None else made_by(turn.operand(0), RESHAPE)
    if turn is None or split is None:
        return None
    x, middle, after = split.operand(0), split.output.type.shape, node.output.type.shape
    image = x.type.shape and x.type.shape[1:]
    if image is None or len(image) != 3 or middle is None or after is None or len(middle) != 6:
        return None
    if sum(isinstance(extent, str) for extent in image) > 1:
        return None
    known = tuple(extent if isinstance(extent, int) else None for extent in (0, *image))
    for (name, mode), steps in STEPS.items():
        size = middle["".join(steps.split).index("y")]
        if turn.attributes != TransposeAttrs(steps.perm) or not isinstance(size, int) or not size:
            continue
        wanted = steps.between(known, size), steps.result(known, size)
        if _fits(middle[1:], wanted[0][1:]) and _fits(after[1:], wanted[1][1:]):
            attributes, output = DepthSpaceAttrs(size, mode), node.output
            origin = split.origin.joined(turn.origin).joined(node.origin)
            made = result(BY_NAME[name], attributes, [x], output.type, origin, output.name)
            return Replace({output: made})
    return None


def _fits(shape: tuple[Dim, ...], wanted: tuple[int | None, ...]) -> bool:
    """True where every extent is the wanted one, and the one that is not known is open."""
    return len(shape) == len(wanted) and all(
        isinstance(a, str) if b is None else a == b for a, b in zip(shape, wanted, strict=True)
    )
