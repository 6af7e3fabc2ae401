"""The call that a quantized convolution becomes: its name, attributes and layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.weights import geometry_of
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs
from qdqbridge.tvm.qnn.emit.emitter import FunctionEmitter


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """How a weight is laid out anew: reshaped, then transposed."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def of(self, weight: Constant) -> Constant:
        """Returns the weight, computed when it is looked at."""
        shape = tuple(self.shape[axis] for axis in self.axes)
        return weight.map(lambda a: np.transpose(a.reshape(self.shape), self.axes), shape=shape)


@dataclass(frozen=True, slots=True)
class ConvolutionCall:
    """A convolution's call.

    Attributes:
        name: Operator name.
        attrs: Attributes but the accumulator's type.
        kernel: How the weight is laid out; None as the graph has it.
        axis: The channel axis of the result.
        height: The axis of extent 1 that makes an image of a sequence.
        lifted: True where data of one spatial axis becomes an image of height 1.
        products: Number of products in a sum.
    """

    name: str
    attrs: dict[str, Any]
    kernel: KernelLayout | None
    axis: int
    height: int
    lifted: bool
    products: int


def convolution(
    emitter: FunctionEmitter,
    node: Node,
    attributes: ConvAttrs | ConvTransposeAttrs,
    shape: tuple[int, ...],
) -> ConvolutionCall:
    """Returns the call of a node whose weight has ``shape``."""
    transposed, last = isinstance(attributes, ConvTransposeAttrs), node in emitter.channels_last
    lifted = emitter.only_images and len(shape) == 3
    given = shape
    shape = (*shape[:2], 1, shape[2]) if lifted else shape
    rank, group = len(shape) - 2, attributes.group
    geometry = geometry_of(node)
    assert geometry is not None
    attrs = _emit_conv_attrs(attributes, shape, geometry.channels(shape), lifted=lifted)
    kernel = KernelLayout(shape, tuple(range(rank + 2))) if shape != given else None
    if last:
        depthwise = not transposed and geometry.depthwise(shape)
        layout = _kernel_layout(emitter, depthwise=depthwise, transposed=transposed)
        axes = "DHW"[3 - rank :]
        attrs |= {"data_layout": f"N{axes}C", "kernel_layout": layout.replace("HW", axes)}
        kernel = _laid_out(shape, attrs["kernel_layout"], group)
    return ConvolutionCall(
        node.op.qnn.format(rank=rank), attrs, kernel,
        rank + 1 if last else 1, 1 if last else 2, lifted, geometry.terms(shape),
    )  # fmt: skip


def _emit_conv_attrs(
    attributes: ConvAttrs | ConvTransposeAttrs,
    shape: tuple[int, ...],
    channels: int,
    *,
    lifted: bool,
) -> dict[str, Any]:
    def along(values: tuple[int, ...], neutral: int) -> list[int]:
        return [neutral, *values] if lifted else list(values)

    half = len(attributes.pads) // 2
    begin, end = attributes.pads[:half], attributes.pads[half:]
    attrs: dict[str, Any] = {
        "strides": along(attributes.strides, 1),
        "padding": along(begin, 0) + along(end, 0),
        "dilation": along(attributes.dilations, 1),
        "groups": attributes.group,
        "channels": channels,
        "kernel_size": list(shape[2:]),
    }
    if isinstance(attributes, ConvTransposeAttrs):
        attrs["output_padding"] = along(attributes.output_padding, 0)
    return attrs


def _kernel_layout(emitter: FunctionEmitter, *, depthwise: bool, transposed: bool) -> str:
    choose = emitter.variant.kernel_layout
    if choose is not None:
        return choose(depthwise, transposed)
    return "IOHW" if transposed else "HWOI" if depthwise else "HWIO"


def _laid_out(shape: tuple[int, ...], layout: str, group: int) -> KernelLayout | None:
    """Returns how (O, I, H, W), or (I, O, H, W) of a transposed one, becomes ``layout``.

    ``HWOI`` is the depthwise layout (H, W, C, multiplier). Other ranks have other spatial axes.
    """
    rank, axes = len(shape), layout.replace("I", "").replace("O", "")
    if layout in (f"OI{axes}", f"IO{axes}"):
        return KernelLayout(shape, tuple(range(rank))) if rank == 4 else None
    if layout == f"{axes}OI":
        return KernelLayout((group, shape[0] // group, *shape[2:]), (*range(2, rank), 0, 1))
    return KernelLayout(shape, tuple(f"OI{axes}".index(letter) for letter in layout))
