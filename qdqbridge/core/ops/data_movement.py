"""Operators that lay stored values out anew: Reshape, Transpose, DepthToSpace and their kin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import (
    AnyAttributes,
    Array,
    Attributes,
    Compute,
    Flow,
    NoAttributes,
    OnnxOp,
    Operands,
    Row,
)
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.shapes import axes_fit, differ, known
from qdqbridge.core.ops.stored import moved, optional, present

# ---- DepthToSpace and SpaceToDepth as steps: axes split into six, permuted, and joined again -----
# Letters name the six axes: ``n`` batch, ``d`` the channels beside a block, ``y`` and ``x`` the
# block, ``h`` and ``w`` the image whose pixels are blocks.


_WIDE = ("n", "d", "hy", "wx")


@dataclass(frozen=True, slots=True)
class BlockSteps:
    """What becomes of the axes.

    Attributes:
        split: What each axis of the operand is split into, from the outside.
        joined: What each axis of the result is joined of.
    """

    split: tuple[str, ...]
    joined: tuple[str, ...]

    @property
    def perm(self) -> tuple[int, ...]:
        """The permutation of the six axes."""
        before = "".join(self.split)
        return tuple(before.index(letter) for letter in "".join(self.joined))

    def channels_last(self) -> BlockSteps:
        """Returns the same for images whose channels are the last axis."""
        return BlockSteps(*((n, h, w, c) for n, c, h, w in (self.split, self.joined)))

    def extents(self, shape: Sequence[Any], size: int) -> Mapping[str, Any]:
        """Returns the extent of each letter.

        Args:
            shape: Extents of the operand: numbers, expressions, or None for open ones.
            size: The extent of a block.
        """
        found: dict[str, Any] = {"y": size, "x": size}
        for group, extent in zip(self.split, shape, strict=True):
            # The extent of the block is told, so one letter of each group is left.
            (letter,) = (each for each in group if each not in found)
            blocks = size ** (len(group) - 1)
            found[letter] = extent if extent is None or len(group) == 1 else extent // blocks
        return found

    def between(self, shape: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Returns the extents of the six axes before they are permuted."""
        extents = self.extents(shape, size)
        return tuple(extents[letter] for letter in "".join(self.split))

    def result(self, shape: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Returns the extents of the result."""
        extents = self.extents(shape, size)
        made: list[Any] = []
        for group in self.joined:
            (letter,) = (each for each in group if each not in "yx")
            extent = extents[letter]
            for _ in group[1:]:
                extent = None if extent is None else extent * size
            made.append(extent)
        return tuple(made)


STEPS: Mapping[tuple[str, str], BlockSteps] = {
    ("DepthToSpace", "DCR"): BlockSteps(("n", "yxd", "h", "w"), _WIDE),
    ("DepthToSpace", "CRD"): BlockSteps(("n", "dyx", "h", "w"), _WIDE),
    ("SpaceToDepth", "DCR"): BlockSteps(_WIDE, ("n", "yxd", "h", "w")),
}
"""By operator and mode, of images whose channels are the second axis."""


# ---- Operators that lay stored values out anew: Reshape, Transpose, DepthToSpace and their kin ---


def data_movement(
    name: str,
    attributes: type[AnyAttributes],
    compute: Callable[[Any, Operands], tuple[Array, ...]],
    check: Callable[[Node, Any], Iterator[str]],
    numerics: str = "Moves stored values. Exact.",
    *,
    onnx: tuple[OnnxOp, ...] = (),
    tvm: str = "",
) -> Row[AnyAttributes]:
    """Returns the row of a data-movement operator, whose other operands only configure it.

    Args:
        name: ONNX's name.
        attributes: The record of its attributes.
        compute: Moves elements.
        check: What is wrong with a node.
        numerics: The contract in words.
        onnx: How ONNX writes it, where its attributes are ONNX's.
        tvm: TVM's operator, where that takes the same operands, and the attributes by name.
    """
    return Row(
        name=name,
        flow=Flow.MOVE,
        attributes=attributes,
        compute=compute,
        contract=moved(compute),
        data=(0,),
        check=check,
        numerics=numerics,
        onnx=onnx,
        tvm=tvm,
    )


def _target_shape_operand(fixed: tuple[int, ...] | None, operands: Operands) -> tuple[int, ...]:
    """Returns the target shape: the attribute, or the second operand."""
    if fixed is not None:
        return fixed
    given = optional(operands, 1)
    assert given is not None
    return tuple(int(extent) for extent in given)


def _reshape(attributes: ReshapeAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    target = _target_shape_operand(attributes.shape, operands)
    copies = [] if attributes.allow_zero else [i for i, e in enumerate(target) if e == 0]
    # NumPy divides all elements by what is stated, and both are 0 here.
    if copies and x.size == 0 and target.count(-1) == 1:
        target = _without_copies(target, x.shape, copies)
    return (x.reshape([x.shape[i] if i in copies else e for i, e in enumerate(target)]),)


def _without_copies(
    target: tuple[int, ...], shape: tuple[int, ...], copies: list[int]
) -> tuple[int, ...]:
    """Returns a target with -1 as what is left of the extents that are not copied (0).

    Of a batch of nothing the quotient of all elements would be 0 / 0.
    """
    left = math.prod(extent for i, extent in enumerate(shape) if i not in copies)
    stated = math.prod(extent for extent in target if extent > 0)
    return tuple(left // stated if extent == -1 else extent for extent in target)


def _expand(attributes: ExpandAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    target = _target_shape_operand(attributes.shape, operands)
    return (np.broadcast_to(x, np.broadcast_shapes(x.shape, target)),)


def _transpose(attributes: TransposeAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (x.transpose(attributes.perm),)


def _squeeze(attributes: AxesAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (x.squeeze(axis=attributes.axes),)


def _unsqueeze(attributes: AxesAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (np.expand_dims(x, attributes.axes),)


def _flatten(attributes: AxisAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    rows = int(np.prod(x.shape[: attributes.axis], dtype=np.int64))
    columns = int(np.prod(x.shape[attributes.axis :], dtype=np.int64))
    return (x.reshape(rows, columns),)


def _tile(attributes: TileAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (np.tile(x, attributes.repeats),)


def _identity(attributes: NoAttributes, operands: Operands) -> tuple[Array, ...]:
    del attributes
    return present(operands, 1)


def _blocks(name: str) -> Compute:
    def compute(attributes: DepthSpaceAttrs, operands: Operands) -> tuple[Array, ...]:
        (x,) = present(operands, 1)
        steps, size = STEPS[name, attributes.mode], attributes.block_size
        turned = x.reshape(steps.between(x.shape, size)).transpose(steps.perm)
        return (turned.reshape(steps.result(x.shape, size)),)

    return compute


def _check_reshape(node: Node, attributes: ReshapeAttrs) -> Iterator[str]:
    x = node.operand(0)
    target = attributes.shape
    if target is None:
        if node.optional(1) is None:
            yield "the target is neither an attribute nor an operand"
        return
    if target.count(-1) > 1 or any(extent < -1 for extent in target):
        yield f"the target {target} is not a shape"
        return
    if attributes.allow_zero and 0 in target and -1 in target:
        yield f"the target {target} has both a 0 and a -1"
        return
    if not attributes.allow_zero:
        if x.rank is not None and any(
            extent == 0 and i >= x.rank for i, extent in enumerate(target)
        ):
            yield f"a 0 of the target {target} copies an axis that the input does not have"
            return
        copied = [known(x, i) if extent == 0 else extent for i, extent in enumerate(target)]
    else:
        copied = list(target)
    sizes = [known(x, i) for i in range(x.rank)] if x.rank is not None else [None]
    if None in sizes or None in copied:
        return
    total = int(np.prod([size or 0 for size in sizes], dtype=np.int64))
    wanted = int(np.prod([c for c in copied if c is not None and c != -1], dtype=np.int64))
    if (
        (wanted == 0 and total)
        or (wanted and total % wanted)
        or (-1 not in copied and wanted != total)
    ):
        yield f"{total} elements do not fill the shape {target}"


def _check_expand(node: Node, attributes: ExpandAttrs) -> Iterator[str]:
    x = node.operand(0)
    if attributes.shape is None:
        if node.optional(1) is None:
            yield "the target is neither an attribute nor an operand"
        return
    for axis in range(1, min(len(attributes.shape), x.rank or 0) + 1):
        size, wanted = known(x, -axis), attributes.shape[-axis]
        if differ(size, wanted) and 1 not in (size, wanted):
            yield f"axis {-axis} of extent {size} does not broadcast to {wanted}"


def _check_transpose(node: Node, attributes: TransposeAttrs) -> Iterator[str]:
    rank = node.operand(0).rank
    if sorted(attributes.perm) != list(range(len(attributes.perm))):
        yield f"{attributes.perm} is not a permutation"
    elif rank is not None and len(attributes.perm) != rank:
        yield f"the permutation {attributes.perm} does not fit an input of rank {rank}"


def _check_squeeze(node: Node, attributes: AxesAttrs) -> Iterator[str]:
    x = node.operand(0)
    yield from axes_fit(attributes.axes, x.rank)
    for axis in attributes.axes:
        if axis >= 0 and known(x, axis) not in (None, 1):
            yield f"axis {axis} has extent {known(x, axis)}, not 1"


def _check_unsqueeze(node: Node, attributes: AxesAttrs) -> Iterator[str]:
    rank = node.operand(0).rank
    yield from axes_fit(attributes.axes, None if rank is None else rank + len(attributes.axes))


def _check_flatten(node: Node, attributes: AxisAttrs) -> Iterator[str]:
    rank = node.operand(0).rank
    if rank is not None and not 0 <= attributes.axis <= rank:
        yield f"axis {attributes.axis} does not exist in an operand of rank {rank}"


def _check_tile(node: Node, attributes: TileAttrs) -> Iterator[str]:
    rank = node.operand(0).rank
    if rank is not None and len(attributes.repeats) != rank:
        yield f"repeats has {len(attributes.repeats)} entries for an input of rank {rank}"
    if any(factor < 0 for factor in attributes.repeats):
        yield f"repeats {attributes.repeats} has a negative entry"


def _check_depth_to_space(node: Node, attributes: DepthSpaceAttrs) -> Iterator[str]:
    x = node.operand(0)
    yield from _check_blocks(attributes, x.rank)
    channels = known(x, 1)
    if attributes.block_size > 0 and channels is not None and channels % attributes.block_size**2:
        yield f"{channels} channels are no multiple of {attributes.block_size**2}"


def _check_space_to_depth(node: Node, attributes: DepthSpaceAttrs) -> Iterator[str]:
    x = node.operand(0)
    yield from _check_blocks(attributes, x.rank)
    for axis in (2, 3):
        size = known(x, axis)
        if attributes.block_size > 0 and size is not None and size % attributes.block_size:
            yield f"axis {axis} of extent {size} is no multiple of {attributes.block_size}"


def _check_blocks(attributes: DepthSpaceAttrs, rank: int | None) -> Iterator[str]:
    if attributes.block_size < 1:
        yield f"block_size is {attributes.block_size}"
    if attributes.mode not in ("DCR", "CRD"):
        yield f"mode {attributes.mode!r} does not exist"
    if rank not in (None, 4):
        yield f"the input has rank {rank}, not 4"


def _no_check(node: Node, _: Attributes) -> Iterator[str]:
    del node
    return iter(())


RESHAPE = data_movement(
    "Reshape", ReshapeAttrs, _reshape, _check_reshape,
    onnx=(
        OnnxOp(
            name="Reshape", operands={"shape": 5}, defaults={"allow_zero": False},
            later={"allow_zero": 14},
        ),
    ),
)  # fmt: skip
EXPAND = data_movement(
    "Expand", ExpandAttrs, _expand, _check_expand,
    onnx=(OnnxOp(name="Expand", operands={"shape": 8}),),
)  # fmt: skip
TRANSPOSE = data_movement(
    "Transpose", TransposeAttrs, _transpose, _check_transpose, onnx=(OnnxOp(name="Transpose"),)
)
SQUEEZE = data_movement(
    "Squeeze", AxesAttrs, _squeeze, _check_squeeze,
    onnx=(OnnxOp(name="Squeeze", operands={"axes": 13}),),
)  # fmt: skip
UNSQUEEZE = data_movement(
    "Unsqueeze", AxesAttrs, _unsqueeze, _check_unsqueeze,
    onnx=(OnnxOp(name="Unsqueeze", operands={"axes": 13}),),
)  # fmt: skip
FLATTEN = data_movement(
    "Flatten", AxisAttrs, _flatten, _check_flatten, onnx=(OnnxOp(name="Flatten"),)
)
TILE = data_movement(
    "Tile", TileAttrs, _tile, _check_tile, onnx=(OnnxOp(name="Tile", operands={"repeats": 6}),)
)
IDENTITY = data_movement(
    "Identity", NoAttributes, _identity, _no_check, onnx=(OnnxOp(name="Identity"),)
)
DEPTH_TO_SPACE = data_movement(
    "DepthToSpace", DepthSpaceAttrs, _blocks("DepthToSpace"), _check_depth_to_space,
    onnx=(OnnxOp(name="DepthToSpace", defaults={"mode": "DCR"}, later={"mode": 11}),),
)  # fmt: skip
SPACE_TO_DEPTH = data_movement(
    "SpaceToDepth", DepthSpaceAttrs, _blocks("SpaceToDepth"), _check_space_to_depth,
    onnx=(
        OnnxOp(
            name="SpaceToDepth", defaults={"mode": "DCR"}, later={"mode": 28},
            choices={"mode": ("DCR",)},
        ),
    ),
)  # fmt: skip

OPERATORS = (
    RESHAPE,
    EXPAND,
    TRANSPOSE,
    SQUEEZE,
    UNSQUEEZE,
    FLATTEN,
    TILE,
    IDENTITY,
    DEPTH_TO_SPACE,
    SPACE_TO_DEPTH,
)
