"""What profiles call the kernels of convolutions and dense products."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct


def name_of(node: Node, parts: Sequence[Direct]) -> str:
    """Returns what profiles call a kernel: what it is, and its extents."""
    d = parts[0]
    rows, columns = d.kernel
    if len(parts) > 1:
        image = "x".join(map(str, d.image))
        return f"conv_transpose_{d.channels}_{d.out_channels}_{image}"
    if node.op is not CONV:
        return f"dense_{d.result[1]}x{d.channels}x{d.out_channels}"
    form = f"{rows}x{columns}"
    if d.repeats != (1, 1):
        form += f"_up{d.repeats[0]}x{d.repeats[1]}"
    if d.winograd:
        form += "_winograd"
    if d.strides != (1, 1):
        form += f"_s{d.strides[0]}"
    if d.dilations != (1, 1):
        form += f"_d{d.dilations[0]}"
    if d.groups > 1:
        form += f"_g{d.groups}"
    extent = "x".join(str(extent) for extent in d.outcome[1:-1])
    return f"conv_{form}_{d.channels}_{d.out_channels}_{extent}"
