"""Nodes whose operands are constants, computed as far as that is cheap.

What a file asks for is computed only where it is known beforehand to stay in proportion to what
the file holds; what is not computed stays a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.attributes import (
    ConvAttrs,
    ConvTransposeAttrs,
    ExpandAttrs,
    GemmAttrs,
    PadAttrs,
    PoolAttrs,
    ResizeAttrs,
    TileAttrs,
)
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.data_movement import EXPAND, RESHAPE, TILE
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    RMS_NORMALIZATION,
)
from qdqbridge.core.ops.pooling import AVERAGE_POOL, MAX_POOL
from qdqbridge.core.ops.resize import RESIZE, sizes
from qdqbridge.core.ops.selection import GATHER, PAD, SLICE, SPLIT
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.ops.shapes import extents, span
from qdqbridge.core.ops.table import BY_NAME

# ---- how much a node takes to compute, told from its operands before anything is computed --------
# A file of two hundred bytes can ask for a tensor of terabytes. Whoever computes what a *file*
# asks for (constant folding, while a model is read) asks here first, and never believes a declared
# shape.

OperandConstants: TypeAlias = "Sequence[Constant | None]"
_Shape: TypeAlias = "tuple[int, ...]"
NODE = 64
"""What any node takes at least: an array is made, a function called."""


def steps(node: Node, operands: OperandConstants) -> int | None:
    """Returns how many elements computing a node makes, reads and multiplies, at most.

    Args:
        node: Any node.
        operands: Its operands; where only their shapes matter their elements are not looked at.

    Returns:
        None where that is not known, or the node does not fit its operands: then it must not run.
    """
    if node.op.steps is not None:
        return node.op.steps(node.attributes, operands)
    if BY_NAME.get(node.op.name) is not node.op:
        return None
    if node.op.by_steps and node.op not in _MADE:
        return None
    shapes = [() if operand is None else operand.shape for operand in operands]
    try:
        made = _MADE.get(node.op, _broadcast_steps)(node.attributes, shapes, operands)
    except (ValueError, IndexError, ArithmeticError):  # attributes that do not fit the operands
        return None
    return NODE + made + sum(math.prod(shape) for shape in shapes)


_Made: TypeAlias = "Callable[[Any, list[_Shape], OperandConstants], int]"


def broadcast_size(shapes: Sequence[_Shape]) -> int:
    """Returns how many elements operands broadcast to, at most."""
    size = 1
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        size *= max(shape[-axis] for shape in shapes if len(shape) >= axis)
    return size


def _broadcast_steps(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    del attributes, operands
    return broadcast_size(shapes)


def _first(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    """Returns the elements of what is moved; the rest only configures."""
    del attributes, operands
    return math.prod(shapes[0])


def _channelwise(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    x, groups = shapes[0], getattr(attributes, "num_groups", 1)
    if any(math.prod(shape) not in (x[1], groups) for shape in shapes[1:]):
        raise ValueError("as many parameters as channels")
    return math.prod(x)


def _all(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    del attributes, operands
    return sum(math.prod(shape) for shape in shapes)


def _composition(
    attributes: CompositionAttrs, shapes: list[_Shape], operands: OperandConstants
) -> int:
    del operands
    return len(attributes.steps) * broadcast_size(shapes)


def _expand(attributes: ExpandAttrs, shapes: list[_Shape], operands: OperandConstants) -> int:
    target = attributes.shape
    if target is None:
        given = operands[1]
        if given is None or given.size > _AXES:
            raise ValueError("no target")
        target = tuple(int(extent) for extent in given.numpy().reshape(-1))
    return broadcast_size([shapes[0], target])


def _tile(attributes: TileAttrs, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    return math.prod(shapes[0]) * math.prod(attributes.repeats)


def _count_pad_steps(attributes: PadAttrs, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    widths = [max(pad, 0) for pad in attributes.pads]
    rank = len(shapes[0])
    return math.prod(n + widths[i] + widths[rank + i] for i, n in enumerate(shapes[0]))


def _resize(attributes: ResizeAttrs, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    out = sizes(attributes, shapes[0])
    taps = {"nearest": 1, "linear": 2}.get(attributes.mode, 4)
    # Axis by axis, so a step in between is as large as the larger extent of each axis.
    wide = math.prod(max(a, b) for a, b in zip(out, shapes[0], strict=True))
    return len(out) * wide * taps * (1 + attributes.antialias * max((*shapes[0], 1)))


def _gather(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    data, indices = shapes
    rest = data[: attributes.axis] + data[attributes.axis + 1 :]
    return math.prod(rest) * math.prod(indices)


def _matmul(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    del attributes, operands
    a, b = shapes[:2]
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    return broadcast_size([a[:-2], b[:-2]]) * a[-2] * a[-1] * b[-1]


def _dense_steps(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    del attributes, operands
    x, units = shapes[0], shapes[1][0]
    return math.prod(x) * max(units, 1) + broadcast_size([(*x[:-1], units), *shapes[2:]])


def _gemm(attributes: GemmAttrs, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    a, b = shapes[:2]
    rows, units = a[1 if attributes.trans_a else 0], b[0 if attributes.trans_b else 1]
    return a[0] * a[1] * units + broadcast_size([(rows, units), *shapes[2:]])


def _conv(attributes: ConvAttrs, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    x, w = shapes[:2]
    kernel = w[2:]
    counts = extents(x[2:], kernel, attributes.strides, attributes.dilations, attributes.pads)
    around = _around(x, kernel, attributes.strides, attributes.dilations, attributes.pads, counts)
    return around + x[0] * math.prod(counts) * math.prod(w)


def _conv_transpose(
    attributes: ConvTransposeAttrs, shapes: list[_Shape], operands: OperandConstants
) -> int:
    del operands
    x, w = shapes[:2]
    full = (
        (size - 1) * stride + span(taps, dilation) + more
        for size, taps, stride, dilation, more in zip(
            x[2:], w[2:], attributes.strides, attributes.dilations, attributes.output_padding,
            strict=True,
        )
    )  # fmt: skip
    channels = w[1] * attributes.group
    return x[0] * channels * math.prod(full) + math.prod(x) * math.prod(w[1:])


def _pool(attributes: PoolAttrs, shapes: list[_Shape], operands: OperandConstants) -> int:
    del operands
    a, x = attributes, shapes[0]
    counts = extents(x[2:], a.kernel_shape, a.strides, a.dilations, a.pads, ceil_mode=a.ceil_mode)
    around = _around(x, a.kernel_shape, a.strides, a.dilations, a.pads, counts)
    taps = math.prod(max(size, 1) for size in a.kernel_shape)
    return around + math.prod(x[:2]) * math.prod(counts) * taps + taps * NODE


def _around(
    x: _Shape, kernel: _Shape, strides: _Shape, dilations: _Shape, pads: _Shape, counts: _Shape
) -> int:
    """Returns the elements of ``x`` with everything around it that windows may reach."""
    total = math.prod(x[:2])
    for i, size in enumerate(x[2:]):
        reach = (counts[i] - 1) * strides[i] + span(kernel[i], dilations[i])
        total *= max(size + pads[i] + pads[i + len(counts)], reach + pads[i])
    return total


def _nothing(attributes: Any, shapes: list[_Shape], operands: OperandConstants) -> int:
    del attributes, shapes, operands
    return 0


_AXES = 64
"""More axes than arrays have."""

_NORMS = (BATCH_NORMALIZATION, INSTANCE_NORMALIZATION, GROUP_NORMALIZATION)
_MADE: Mapping[Operator, _Made] = {
    **dict.fromkeys(_NORMS, _channelwise),
    **dict.fromkeys((LAYER_NORMALIZATION, RMS_NORMALIZATION), _broadcast_steps),
    **dict.fromkeys((RESHAPE, SLICE, SPLIT), _first),
    CONCAT: _all,
    SHAPE: _nothing,
    COMPOSITION: _composition,
    EXPAND: _expand,
    TILE: _tile,
    PAD: _count_pad_steps,
    RESIZE: _resize,
    GATHER: _gather,
    MATMUL: _matmul,
    DENSE: _dense_steps,
    GEMM: _gemm,
    CONV: _conv,
    CONV_TRANSPOSE: _conv_transpose,
    AVERAGE_POOL: _pool,
    MAX_POOL: _pool,
}


_ONE = 1 << 20
"""Steps that one node may always take; quantization parameters and shapes take far fewer."""

_ALL = 1 << 21
"""Steps that all nodes of a file may always take together: a fraction of a second, and 200 MB with
all that is made of them."""

_GROWTH = 4
"""One node may take so many steps for each element that it reads."""

_PER_ELEMENT, _PER_NODE = 8, 1 << 12
"""All nodes together may take so many more for each element, and for each node, of the file."""


class Budget:
    """What may still be computed while one file is read.

    Attributes:
        left: The steps that are left.
    """

    __slots__ = ("left",)

    def __init__(self, elements: int = 0, nodes: int = 0) -> None:
        """Makes a budget.

        Args:
            elements: How many elements the constants have that the file really holds.
            nodes: How many nodes it has.
        """
        self.left = _ALL + _PER_ELEMENT * elements + _PER_NODE * nodes

    @staticmethod
    def of(nodes: Sequence[Node]) -> Budget:
        """Returns the budget of a graph."""
        constants = {v for n in nodes for v in n.inputs if v is not None and v.constant}
        return Budget(sum(v.constant.size for v in constants if v.constant), len(nodes))

    def affords(self, count: int) -> bool:
        """Takes ``count`` steps; False, and nothing taken, where they are not left."""
        if count > self.left:
            return False
        self.left -= count
        return True


def proportionate(node: Node, operands: Sequence[Constant | None]) -> int:
    """Returns what computing a node takes; 0 where that is unknown or far more than it reads."""
    count = steps(node, operands) or 0
    read = sum(operand.size for operand in operands if operand is not None)
    return count if count <= max(_ONE, _GROWTH * read) else 0


def affordable(node: Node, operands: Sequence[Constant | None], budget: Budget) -> bool:
    """Returns whether a node may be computed, and takes that from the budget."""
    count = proportionate(node, operands)
    return count > 0 and budget.affords(count)


def folded(
    node: Node, operands: Sequence[Constant | None], budget: Budget
) -> list[Constant] | None:
    """Returns the results of a node, None where they would cost too much or cannot be told.

    Raises:
        InvalidModelError: The constants do not fit together.
        UnsupportedModelError: An opaque operator is one that onnxruntime does not have.
    """
    if not affordable(node, operands, budget):
        return None
    arrays = [None if operand is None else operand.numpy() for operand in operands]
    return [Constant.of(np.asarray(array)) for array in computed(node, arrays)]
