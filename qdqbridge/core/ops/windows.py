"""Sliding windows over the spatial axes of an ``(N, C, spatial…)`` array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qdqbridge.core.graph.operator import Array


def span(kernel: int, dilation: int) -> int:
    """Returns how many elements a dilated kernel covers."""
    return (kernel - 1) * dilation + 1


def covered(count: int, stride: int, kernel: int, dilation: int) -> int:
    """Returns how many elements ``count`` windows cover together."""
    return (count - 1) * stride + span(kernel, dilation)


def window_count(room: Any, stride: int) -> Any:
    """Returns how many windows begin in the ``room`` that one of them leaves; also of expressions.

    Args:
        room: What is left of the padded input behind one window.
        stride: How far windows lie apart.
    """
    return room // stride + 1


def same_padding(size: int, span: int, stride: int) -> int:
    """Returns both pads of ``auto_pad`` SAME together: a window begins at every stride.

    Below 0 where strides leave elements over, which callers take for what their format says.
    """
    return (-(-size // stride) - 1) * stride + span - size


def split_padding(totals: Sequence[int], *, upper: bool) -> tuple[int, ...]:
    """Returns begin and end pads; an odd total's extra element goes to the end if ``upper``."""
    less = tuple(total // 2 for total in totals)
    more = tuple(total - half for total, half in zip(totals, less, strict=True))
    return (*less, *more) if upper else (*more, *less)


def extents(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    *,
    ceil_mode: bool = False,
    clipped: bool = False,
) -> tuple[int, ...]:
    """Returns the number of windows along every spatial axis.

    Args:
        sizes: The extents of the input.
        kernel: The extents of the window.
        strides: How far windows lie apart.
        dilations: How far the elements of a window lie apart.
        pads: Begin and end padding.
        ceil_mode: A last window may reach beyond the padding, but has to start inside the input or
            its begin padding (ONNX AveragePool and MaxPool).
        clipped: A window wider than the padded input by less than a stride counts as one (see
            :func:`fitted`).
    """
    result: list[int] = []
    for i, size in enumerate(sizes):
        room = size + pads[i] + pads[i + len(sizes)] - span(kernel[i], dilations[i])
        up = ceil_mode or (clipped and room < 0)
        count = window_count(room + (strides[i] - 1) * up, strides[i])
        # ONNX leaves out a last window that begins in the end padding; its inference counts it.
        if ceil_mode and (count - 1) * strides[i] >= size + pads[i]:
            count -= 1
        result.append(max(count, 0))
    return tuple(result)


def elements_read(
    count: int,
    size: int,
    stride: int,
    kernel: int,
    dilation: int,
    pads: tuple[int, int],
    *,
    with_padding: bool,
) -> Array:
    """Returns how many elements each of ``count`` windows reads along one axis.

    Padding counts with ``with_padding`` (``count_include_pad``); what lies beyond it never does.
    """
    begin, end = pads
    low, high = (0, begin + size + end) if with_padding else (begin, begin + size)
    reads = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation
    return ((reads >= low) & (reads < high)).sum(axis=1)


def reaching(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    """Returns the end padding as far as the windows of ``ceil_mode`` reach along one axis.

    Less than there is where a last window would start in it: ONNX leaves that one out.
    """
    (count,) = extents((size,), (kernel,), (stride,), (dilation,), pads, ceil_mode=True)
    return max(0, covered(count, stride, kernel, dilation) - size - pads[0])


def fitted(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> tuple[int, int, int]:
    """Returns kernel, stride and end padding of a pool whose windows fit along one axis.

    A window that is wider than the padded input, by less than a stride, fits nowhere: ONNX's text,
    which rounds the number of windows down, yields none. ONNX's shape inference and onnxruntime
    (1.32) round it towards zero and yield one, of the elements there are; files are made for that.
    Where that leaves padding as wide as the window, which onnxruntime refuses, it stays as it is.
    """
    room = size + sum(pads)
    fewer = (room - 1) // dilation + 1
    end = max(pads[1] - (room - span(fewer, dilation)), 0)
    fits = not -stride < room - span(kernel, dilation) < 0
    if fits or max(pads[0], end) >= fewer:
        return kernel, stride, pads[1]
    whole = size + pads[0] + end
    return fewer, stride if whole == span(fewer, dilation) else whole, end


def padded(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    out: Sequence[int],
    fill: object,
) -> Array:
    """Returns ``x`` with ``fill`` around it, as far as the ``out`` windows reach."""
    widths = [(0, 0), (0, 0)]
    for i, size in enumerate(x.shape[2:]):
        wide = covered(out[i], strides[i], kernel[i], dilations[i])
        widths.append((pads[i], max(pads[i + len(out)], wide - size - pads[i])))
    if not any(width for pair in widths for width in pair):
        return x
    return np.pad(x, widths, constant_values=np.asarray(fill, x.dtype))  # pyright: ignore


def taps(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yields every position of the kernel with the view of ``x`` that it reads."""
    for tap in np.ndindex(*kernel):
        region = tuple(
            slice(t * d, t * d + (o - 1) * s + 1 if o else t * d, s)
            for t, d, s, o in zip(tap, dilations, strides, out, strict=True)
        )
        yield tap, x[(slice(None), slice(None), *region)]
