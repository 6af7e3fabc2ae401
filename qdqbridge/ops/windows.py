"""Sliding windows over the spatial axes of an ``(N, C, spatial…)`` array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qdqbridge.graph.operator import Array


def span(kernel: int, dilation: int) -> int:
    """Returns how many elements a dilated kernel covers."""
    return (kernel - 1) * dilation + 1


def extents(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    *,
    ceil_mode: bool = False,
) -> tuple[int, ...]:
    """Returns the number of windows along every spatial axis.

    With ``ceil_mode`` a last window may reach beyond the padding, but has to start inside the
    input or its begin padding (ONNX AveragePool and MaxPool).
    """
    result: list[int] = []
    for i, size in enumerate(sizes):
        room = size + pads[i] + pads[i + len(sizes)] - span(kernel[i], dilations[i])
        count = (-(-room // strides[i]) if ceil_mode else room // strides[i]) + 1
        if ceil_mode and (count - 1) * strides[i] >= size + pads[i]:
            count -= 1
        result.append(max(count, 0))
    return tuple(result)


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
        reach = (out[i] - 1) * strides[i] + span(kernel[i], dilations[i])
        widths.append((pads[i], max(pads[i + len(out)], reach - size - pads[i])))
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
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, s, o in zip(tap, dilations, strides, out, strict=True)
        )
        yield tap, x[(slice(None), slice(None), *region)]
