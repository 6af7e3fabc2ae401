"""The rule for blocks of depth that become space, and the other way round."""

from __future__ import annotations

from dataclasses import dataclass

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import Dim
from qdqbridge.core.ops.attributes import DepthSpaceAttrs, TransposeAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.data_movement import RESHAPE, TRANSPOSE
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, made_by, rule


@dataclass(frozen=True, slots=True)
class _BlockForm:
    """One way to split axes, permute and join them.

    Attributes:
        name: The operator that it is.
        mode: Its mode.
        perm: The permutation of the six axes.
        sizes: Which of the six axes are the block's, before the permutation.
    """

    name: str
    mode: str
    perm: tuple[int, ...]
    sizes: tuple[int, int]


_FORMS = (
    _BlockForm("DepthToSpace", "DCR", (0, 3, 4, 1, 5, 2), (1, 2)),
    _BlockForm("DepthToSpace", "CRD", (0, 1, 4, 2, 5, 3), (2, 3)),
    _BlockForm("SpaceToDepth", "DCR", (0, 3, 5, 1, 2, 4), (3, 5)),
)


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
    for form in _FORMS:
        size = middle[form.sizes[0]]
        if turn.attributes != TransposeAttrs(form.perm) or not isinstance(size, int):
            continue
        if _fits(middle[1:], _block_split_shape(form, image, size)) and _fits(
            after[1:], _joined(form, image, size)
        ):
            attributes, output = DepthSpaceAttrs(size, form.mode), node.output
            origin = split.origin.joined(turn.origin).joined(node.origin)
            op = BY_NAME[form.name]
            return Replace({output: result(op, attributes, [x], output.type, origin, output.name)})
    return None


def _fits(shape: tuple[Dim, ...], wanted: tuple[int | None, ...]) -> bool:
    """True where every extent is the wanted one, and the one that is not known is open."""
    return len(shape) == len(wanted) and all(
        isinstance(a, str) if b is None else a == b for a, b in zip(shape, wanted, strict=True)
    )


def _times(extent: Dim, factor: int) -> int | None:
    return extent * factor if isinstance(extent, int) else None


def _over(extent: Dim, divisor: int) -> int | None:
    return extent // divisor if isinstance(extent, int) else None


def _block_split_shape(
    form: _BlockForm, image: tuple[Dim, ...], size: int
) -> tuple[int | None, ...]:
    c, h, w = image
    if form.name == "SpaceToDepth":
        return (_times(c, 1), _over(h, size), size, _over(w, size), size)
    depth, space = _over(c, size**2), (_times(h, 1), _times(w, 1))
    deep = (size, size, depth) if form.mode == "DCR" else (depth, size, size)
    return (*deep, *space)


def _joined(form: _BlockForm, image: tuple[Dim, ...], size: int) -> tuple[int | None, ...]:
    c, h, w = image
    if form.name == "SpaceToDepth":
        return (_times(c, size**2), _over(h, size), _over(w, size))
    return (_over(c, size**2), _times(h, size), _times(w, size))
