"""Quantized convolutions of one or two spatial axes, channels-last, as direct convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import ConvAttrs, GemmAttrs
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, Scaled
from qdqbridge.tvm.relax.kernels.epilogues.fused_operators import extend
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import (
    integer_bias,
    requantization,
    scaled,
    sum_scale,
)
from qdqbridge.tvm.relax.kernels.kernel import (
    ActivationCodes,
    Array,
    Kernel,
    KernelPlace,
    Open,
    along,
    by_channel,
    centred_weight,
    codes_of,
    extents,
    image_of,
    known_extent,
    leading,
)
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_constant, real_product
from qdqbridge.tvm.relax.kernels.products.names import name_of
from qdqbridge.tvm.relax.kernels.tiles.direct import build_parts
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, Pair
from qdqbridge.tvm.relax.kernels.tiles.packing import in_tiles, pack, per_lane, reach
from qdqbridge.tvm.relax.kernels.tiles.repeated_loops import pixels_at_once, sums_of_a_block
from qdqbridge.tvm.relax.kernels.tiles.winograd import filtered
from qdqbridge.tvm.relax.kernels.windows import nearest_pixels

# ---- What every product of bytes with a constant weight shares: its operands and its kernel ------


Form = Requantize | Scaled
"""How sums of integers become results."""


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """What a product computes with.

    Attributes:
        x: How its activations are stored.
        scale: float32 scale of the sums, one entry or one per output channel.
        weights: Centred weights, (groups, channels of a group, runs, length); several arrays where
            parts of the result have weights of their own.
    """

    x: ActivationCodes
    scale: Array
    weights: Sequence[Array]


def product(
    node: Node, operands: Operands, describe: Callable[[int, int, Form], Direct]
) -> Kernel | None:
    """Returns the kernel of a node.

    Args:
        node: The node; its operand 2 is a bias.
        operands: What it computes with.
        describe: Makes the description of a part: its index, the sums that make a weight, and the
            form of the epilogue.

    Returns:
        None where sums could leave int32, the result is neither codes nor float32, or codes have a
        bias that is not an integer.
    """
    x, weights = operands.x, operands.weights
    groups, channels = weights[0].shape[0], weights[0].shape[0] * weights[0].shape[1]
    real = scaled(node, operands.scale, channels)
    result = real or requantization(node.output, operands.scale)
    whole, bias = integer_bias(node, operands.scale, channels)
    if result is None or not (whole or real):
        return None
    parts: list[Direct] = []
    arrays: list[Array] = []
    for i, own in enumerate(weights):
        cpu = describe(i, 1, result.form).cpu
        packed = pack(cpu, own, x.zero_point, bias)
        if packed is None or not result.holds(reach(packed, own)):
            return None
        part = describe(i, packed.parts, result.form)
        part, packed = filtered(part, own, packed) or (part, packed)
        parts.append(part)
        arrays += [in_tiles(packed.weights, parts[-1].side_by_side), packed.bias]
    spread = np.broadcast_to(result.multiplier, (channels,))
    multiplier = per_lane(parts[0].cpu, spread, groups)
    ends = np.asarray((*result.ends, x.zero_point), np.int32)
    work = sum(2 * part.counted * own.size for part, own in zip(parts, weights, strict=True))
    constants = [*arrays, multiplier, ends]
    if result.added is not None:
        constants.append(per_lane(parts[0].cpu, result.added, groups))
    return Kernel(
        name_of(node, parts), tuple(parts), build_parts, (node.operand(0),), tuple(constants),
        (node.output,), work, None if real else extend,
    )  # fmt: skip


# ---- Quantized convolutions of one or two spatial axes, channels-last, as direct convolutions ----


_RANKS = (3, 4)
Shape = tuple["int | None", ...]


def match_conv(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Conv of bytes, or of float32, whose weight is constant."""
    attributes, x = node.attributes, codes_of(node.operand(0))
    if not isinstance(attributes, ConvAttrs) or not place.channels_last:
        return None
    shape, result = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    weight = _conv_weight(node, x)
    if weight is None or shape is None or result is None or len(shape) not in _RANKS:
        return None
    if len(shape) == 3:
        weight = weight[:, :, None]
    if x is None and weight.shape[1] == 1 and attributes.group > 1:
        return None  # a group has nothing to sum over but the kernel
    merged, groups = merge_groups(weight, attributes.group, place.cpu.lanes)
    window = window_of(attributes, shape, result, (weight.shape[2], weight.shape[3]), place.threads)

    def describe(part: int, sums: int, form: Requantize | Plain | Scaled) -> Direct:
        del part
        return Direct(
            place.cpu, shape, result, shape[0], window.image, known_extent(shape[-1]),
            x is not None and x.signed, window.kernel, window.strides, window.dilations,
            window.begin, window.result, groups, len(weight), sums, form, place.threads,
        )  # fmt: skip

    weights = runs(merged, groups, attributes.dilations[-1])
    if x is None:
        return real_product(node, [weights], describe)
    return product(node, Operands(x, sum_scale(x, node.operand(1)), [weights]), describe)


def _conv_weight(node: Node, x: ActivationCodes | None) -> Array | None:
    """Returns the centred weight of codes, or that of floats."""
    if x is not None:
        return centred_weight(node)
    floats = is_real(node.operand(0)) and is_real(node.output)
    return real_constant(node.operand(1)) if floats else None


def merge_groups(weight: Array, groups: int, lanes: int) -> tuple[Array, int]:
    """Joins groups of few output channels into larger ones, with zeros between them.

    Args:
        weight: (channels, channels of a group, rows, columns).
        groups: Number of groups.
        lanes: Output channels that a group should have.

    Returns:
        The weight, and how many groups there are left.
    """
    channels, inputs = weight.shape[0] // groups, weight.shape[1]
    sizes = [n for n in range(1, groups + 1) if groups % n == 0]
    # The smallest that fills a register: every group that is joined adds products with zeros.
    size = next((n for n in sizes if n * channels >= lanes), groups)
    if size == 1:
        return weight, groups
    left = groups // size
    wide = np.zeros((left, size, channels, size, inputs, *weight.shape[2:]), weight.dtype)
    own = weight.reshape(left, size, channels, *weight.shape[1:])
    for i in range(size):
        wide[:, i, :, i] = own[:, i]
    return wide.reshape(weight.shape[0], size * inputs, *weight.shape[2:]), left


def runs(weight: Array, groups: int, dilation: int) -> Array:
    """Returns a weight as (groups, channels, runs, length); see :mod:`.direct`."""
    last = weight.reshape(groups, -1, *weight.shape[1:]).transpose(0, 1, 3, 4, 2)
    rows, columns, inputs = last.shape[2:]
    joined = groups == 1 and (dilation == 1 or columns == 1)
    count = rows if joined else rows * columns
    return last.reshape(*last.shape[:2], count, rows * columns * inputs // count)


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """A convolution as one of images; see :class:`~.direct.Direct`."""

    image: Pair
    kernel: Pair
    strides: Pair
    dilations: Pair
    begin: Pair
    result: Pair


def window_of(
    attributes: ConvAttrs, shape: Shape, result: Shape, kernel: Pair, threads: int
) -> ImageWindow:
    """Returns the window; where every pixel stands alone, an image of one row per thread."""
    image, outcome = image_of(shape), image_of(result)
    strides, dilations = along(attributes.strides, 1), along(attributes.dilations, 1)
    if (kernel, strides) == ((1, 1), (1, 1)) and not any(attributes.pads):
        pixels = math.prod(image)
        rows = threads if pixels % threads == 0 else 1
        image = outcome = rows, pixels // rows
    begin = along(attributes.pads[: len(attributes.pads) // 2], 0)
    return ImageWindow(image, kernel, strides, dilations, begin, outcome)


# ---- Quantized convolutions of images that were resized to the nearest pixel by whole factors

_CHANNELS = 8
"""Input channels from which fewer products are worth the sums: 3x3 behind 2x2 takes 1.00 of the
time with 4 channels, 0.78 with 8, 0.53 with 16, 0.33 with 64 (Zen 4)."""
_ROOM = 1 << 20
"""Bytes of sums of one block of channels: more than a second-level cache has are too many."""


def match_resized_conv(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Conv of bytes whose image was resized, which it then is not."""
    attributes, x = node.attributes, codes_of(node.operand(0))
    resize = node.operand(0).producer
    if not isinstance(attributes, ConvAttrs) or x is None or not place.channels_last:
        return None
    if resize is None or resize.op is not RESIZE or attributes.group != 1 or place.cpu.amx:
        return None
    source, weight = resize.operand(0), centred_weight(node)
    shape, result = extents(source.type.shape), extents(node.output.type.shape)
    repeats = _repeats(resize, place)
    if weight is None or shape is None or result is None or repeats is None:
        return None
    channels, kernel, outcome = weight.shape[1], weight.shape[2:], image_of(result)
    strides = along(attributes.strides, 1)
    if channels < _CHANNELS or strides != (1, 1) or pixels_at_once(place.cpu, kernel[1]) < 2:
        return None
    # One pixel sees one pixel: its product may as well be repeated behind it.
    if kernel == (1, 1) or any(n % f for n, f in zip(outcome, repeats, strict=True)):
        return None

    def describe(part: int, sums: int, form: Requantize | Scaled) -> Direct:
        del part
        return Direct(
            place.cpu, shape, result, shape[0], image_of(shape), channels, x.signed,
            (kernel[0], kernel[1]), strides, along(attributes.dilations, 1),
            along(attributes.pads[: len(attributes.pads) // 2], 0), outcome, 1, len(weight), sums,
            form, place.threads, repeats=repeats,
        )  # fmt: skip

    taps = weight.transpose(0, 2, 3, 1).reshape(1, len(weight), -1, channels)
    made = product(node, Operands(x, sum_scale(x, node.operand(1)), [taps]), describe)
    if made is None or _bytes_of_sums(made) > _ROOM:
        return None
    return replace(made, inputs=(source,))


def _bytes_of_sums(kernel: Kernel) -> int:
    """Returns what the sums of one block of channels take."""
    parts: Any = kernel.description
    return sums_of_a_block(parts[0]) * parts[0].cpu.lanes * 4


def _repeats(resize: Node, place: KernelPlace) -> Pair | None:
    """Returns how often a Resize repeats rows and columns; None where it does something else."""
    tables = nearest_pixels(resize, place)
    if tables is None:
        return None
    shape = extents(resize.operand(0).type.shape)
    assert shape is not None
    found: list[int] = []
    for table, extent in zip(tables, image_of(shape), strict=True):
        factor = len(table) // extent
        # The places themselves are compared: modes of Resize have many names for them.
        if not np.array_equal(table, np.arange(extent).repeat(factor)):
            return None
        found.append(factor)
    return None if found == [1, 1] else (found[0], found[1])


# ---- dense ---------------------------------------------------------------------------------------
# Products with a constant matrix (Dense, Gemm, MatMul), as convolutions of one row of pixels.


AT_ONCE = 112
"""Rows of an open number that are worked on at a time: eight of the highest tiles of vectors."""
_AT_ONCE_AMX = 128
"""The same of tiles of AMX, which are 32 rows high."""


def match_constant_matmul(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a product of rows of bytes, or of float32, with a constant matrix."""
    x = codes_of(node.operand(0))
    weight = _matrix(node, x)
    rows = rows_of(node)
    if weight is None or rows is None:
        return None
    gemm = node.attributes if isinstance(node.attributes, GemmAttrs) else GemmAttrs()
    if gemm.trans_a or (x is not None and node.optional(2) is not None and gemm.beta != 1.0):
        return None
    units = len(weight)

    def describe(part: int, sums: int, form: Requantize | Plain | Scaled) -> Direct:
        del part
        return rows.direct(place, units, sums, form, signed=x is not None and x.signed)

    if x is None:
        return real_product(node, [weight[None, :, None] * np.float32(gemm.alpha)], describe)
    scale = sum_scale(x, node.operand(1), gemm.alpha)
    return product(node, Operands(x, scale, [weight[None, :, None]]), describe)


@dataclass(frozen=True, slots=True)
class Rows:
    """The operand and the result of a product of rows with a matrix.

    Attributes:
        operand: Shape of the rows; None for open extents, which are leading ones.
        outcome: Shape of the result.
        batch: None where ``count`` rows come as often as only the run knows.
        count: Rows of known number, or what open extents multiply.
        open: True where the number of rows is not known otherwise.
    """

    operand: Open
    outcome: Open
    batch: int | None
    count: int
    open: bool

    def direct(
        self, place: KernelPlace, units: int, sums: int, form: Requantize | Plain | Scaled, *,
        signed: bool,
    ) -> Direct:  # fmt: skip
        """Returns the description of a kernel: rows are pixels, one row of them or one column."""
        inner = known_extent(self.operand[-1])

        def of_grid(grid: tuple[int, int]) -> Direct:
            return Direct(
                place.cpu, self.operand, self.outcome, self.batch, grid, inner, signed, (1, 1),
                (1, 1), (1, 1), (0, 0), grid, 1, units, sums, form, place.threads,
                open_rows=self.open,
            )  # fmt: skip

        if not self.open:
            return of_grid((1, self.count))
        high = of_grid((_AT_ONCE_AMX, 1))
        return of_grid((AT_ONCE, 1)) if high.amx is None else high


def rows_of(node: Node) -> Rows | None:
    """Returns the rows that a product takes and gives; None where their extents are not leading."""
    shape, result = (leading(value.type.shape) for value in (node.operand(0), node.output))
    if shape is None or result is None or shape[:-1] != result[:-1]:
        return None
    count = math.prod(extent for extent in shape[:-1] if extent is not None)
    opened = shape.count(None)
    # One open batch is a loop around a known number of rows; anything else leaves only rows.
    if opened and (opened > 1 or shape[0] is not None or count == 1):
        return Rows(shape, result, None, count, True)
    return Rows(shape, result, None if opened else 1, count, False)


def _matrix(node: Node, x: ActivationCodes | None) -> Array | None:
    """Returns the weight, centred where it is one of codes, as (units, inner)."""
    w = node.operand(1)
    if w.rank != 2:
        return None
    if x is not None:
        weight = centred_weight(node)
    elif is_real(node.operand(0)) and is_real(node.output):
        weight = real_constant(w)
    else:
        return None
    return None if weight is None else by_channel(weight, node)
