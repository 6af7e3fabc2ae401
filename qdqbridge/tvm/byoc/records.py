"""What a composite computes, in typed records: the whole interface of a backend author.

Every record says everything about one composite; nobody has to dig in constants. Arrays are NumPy
arrays, read when they are looked at. Axes count from the front. A record's ``family`` is the key
under which :mod:`qdqbridge.tvm.byoc.constraints` limits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.arguments import renamed_in
from qdqbridge.tvm.byoc.pattern import RANGES, Tensor

Clamp: TypeAlias = "tuple[int, int]"
"""Smallest and largest stored value of a result."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Record:
    """What all composites have.

    Attributes:
        op: The operator, by Relay's name (``qnn.conv2d``).
        output: The result.
        clamp: The range into which the result is saturated; None where that is all of its type.
    """

    family: ClassVar[str] = ""
    op: str
    output: Tensor
    clamp: Clamp | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The activations, in order."""
        return ()

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Constant operands; biases are left out."""
        return ()

    @property
    def range(self) -> Clamp:
        """``clamp``, or all of the output's type."""
        return self.clamp or RANGES.get(self.output.dtype, (0, 0))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Accumulation(Record):
    """``sat(rint(f32(sum (x - zx)(w - zw) + bias) * multiplier) + zy)``, or a float result.

    Attributes:
        input: The activation.
        weight: The other operand.
        bias: int32 or int64, one entry per channel in units of ``accumulator_scale``; None
            without one.
        float_bias: A bias that is added to the float result instead.
        accumulator_dtype: int32, or int64 where the sum could overflow that.
        accumulator_scale: float32, ``sx * sw`` as stated in the module.
        rounding: How ties are broken: TONEAREST_EVEN, TONEAREST or UPWARD; None without rounding.
        compute_dtype: In which arithmetic the sum is rescaled.
    """

    input: Tensor
    weight: Tensor
    bias: NDArray[Any] | None = None
    float_bias: NDArray[Any] | None = None
    accumulator_dtype: str = "int32"
    accumulator_scale: NDArray[np.float32]
    rounding: str | None = None
    compute_dtype: str | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The activations, in order."""
        return (self.input,) if self.weight.is_constant else (self.input, self.weight)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Constant operands; biases are left out."""
        return (self.weight,) if self.weight.is_constant else ()

    @property
    def multiplier(self) -> NDArray[np.float32] | None:
        """``float32(accumulator_scale / output scale)``; None for a float result."""
        if self.output.scale is None:
            return None
        return np.asarray(self.accumulator_scale / self.output.scale, np.float32)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Convolution(Accumulation):
    """A convolution of 1 to 3 spatial axes, or a transposed one.

    Attributes:
        strides: One per spatial axis, as dilation, kernel_size and output_padding.
        padding: Begins, then ends.
        groups: Groups of channels.
        channels: Channels of the result.
        transposed: True for a transposed convolution.
        data_layout: ``NCHW``, ``NHWC`` and the like.
        kernel_layout: ``OIHW``, ``HWIO``, ``HWOI`` and the like.
    """

    family: ClassVar[str] = "convolution"
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    kernel_size: tuple[int, ...]
    groups: int
    channels: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    data_layout: str
    kernel_layout: str

    @property
    def depthwise(self) -> bool:
        """True where every channel is a group of its own."""
        shape = self.input.shape
        return (
            self.groups > 1
            and shape is not None
            and shape[self.data_layout.index("C")] == self.groups
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunTimeProduct(Record):
    """A product of an activation that is quantized to uint8 while the model runs, in floats.

    Attributes:
        input: The activation, float32.
        weight: The weight.
        float_bias: What is added to the float result; None without a bias.
    """

    input: Tensor
    weight: Tensor
    float_bias: NDArray[Any] | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The activations, in order."""
        return (self.input,)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Constant operands; biases are left out."""
        return (self.weight,)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DynamicDense(RunTimeProduct):
    """``x[..., K]`` times ``w[units, K]``.

    Attributes:
        units: Rows of the weight.
        rows: True where every row has a scale and zero point of its own.
    """

    family: ClassVar[str] = "dynamic_dense"
    units: int
    rows: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DynamicConvolution(RunTimeProduct):
    """A convolution of 1 to 3 spatial axes; its window is that of a :class:`Convolution`."""

    family: ClassVar[str] = "dynamic_convolution"
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    kernel_size: tuple[int, ...]
    groups: int
    channels: int
    data_layout: str
    kernel_layout: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dense(Accumulation):
    """``x[..., K]`` times ``w[units, K]``."""

    family: ClassVar[str] = "dense"
    units: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchMatmul(Accumulation):
    """A product of matrices of two activations (``input`` and ``weight``)."""

    family: ClassVar[str] = "batch_matmul"
    transpose_a: bool = False
    transpose_b: bool = True


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Binary(Record):
    """``add``, ``subtract``, ``mul``, ``divide``, ``minimum``, ``maximum``, ``power``, ``prelu``.

    Attributes:
        lhs: The first operand; one may be a constant.
        rhs: The second.
        condition: Of ``where``: a boolean tensor; None for the others.
    """

    family: ClassVar[str] = "binary"
    lhs: Tensor
    rhs: Tensor
    condition: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Both operands, constant or not."""
        return (self.lhs, self.rhs)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OneInput(Record):
    """What reads one activation.

    Attributes:
        input: The activation.
    """

    input: Tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The activations, in order."""
        return (self.input,)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unary(OneInput):
    """A function of each element.

    Attributes:
        attributes: Its parameters (``alpha``, ``beta``, ``approximate``).
        entries: Of ``qnn.lookup``: the result for each bit pattern of the input.
    """

    family: ClassVar[str] = "unary"
    attributes: Mapping[str, Any]
    entries: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Softmax(OneInput):
    """``qnn.softmax`` or ``qnn.log_softmax`` along ``axes``."""

    family: ClassVar[str] = "softmax"
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pool(OneInput):
    """An average or maximum of windows; attributes as in :class:`Convolution`."""

    family: ClassVar[str] = "pool"
    maximum: bool
    pool_size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    count_include_pad: bool
    data_layout: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reduction(OneInput):
    """``qnn.mean``, ``qnn.sum``, ``max`` or ``min`` over ``axes``."""

    family: ClassVar[str] = "reduction"
    axes: tuple[int, ...]
    keepdims: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Resize(OneInput):
    """A change of extents.

    Attributes:
        size: Extents of the result's resized axes.
        scales: ONNX's factors of the same axes; empty where only sizes are given.
        method: ``nearest_neighbor``, ``linear`` or ``cubic``.
        coordinate_transformation_mode: ONNX's.
        rounding_method: ONNX's ``nearest_mode``.
        data_layout: ``NCHW`` and the like; empty where every axis counts.
        attributes: All attributes of the call.
    """

    family: ClassVar[str] = "resize"
    size: tuple[int, ...]
    scales: tuple[float, ...]
    method: str
    coordinate_transformation_mode: str
    rounding_method: str
    data_layout: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Normalization(OneInput):
    """``qnn.layer_norm``, ``rms_norm``, ``instance_norm``, ``group_norm`` or ``batch_norm``.

    Attributes:
        gamma: Factors, quantized or float.
        beta: Summands.
        mean: Of ``batch_norm``: float32 means; else None.
        variance: Of ``batch_norm``: float32 variances; else None.
        epsilon: Added to the variance.
        axis: The first normalized axis, or the channel axis; None where it is always 1.
        groups: Of ``group_norm``; else 1.
    """

    family: ClassVar[str] = "normalization"
    gamma: Tensor
    beta: Tensor
    mean: NDArray[Any] | None = None
    variance: NDArray[Any] | None = None
    epsilon: float
    axis: int | None = None
    groups: int = 1

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Constant operands; biases are left out."""
        return (self.gamma, self.beta)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Concatenation(Record):
    """Joins operands along ``axis``; operands of other parameters are requantized first."""

    family: ClassVar[str] = "concatenation"
    operands: tuple[Tensor, ...]
    axis: int

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The activations, in order."""
        return self.operands


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DataMovement(OneInput):
    """Moves stored integers: ``reshape``, ``transpose``, ``strided_slice``, ``nn.pad``, ...

    Attributes:
        attributes: Relay's attributes of the call.
        operands: Tensor arguments after the first (the indices of ``take``).
    """

    family: ClassVar[str] = "data_movement"
    attributes: Mapping[str, Any]
    operands: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Conversion(OneInput):
    """``qnn.quantize``, ``qnn.dequantize``, ``qnn.requantize``, or a ``clip`` of codes."""

    family: ClassVar[str] = "conversion"
    rounding: str | None = None
    compute_dtype: str | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockedDequantize(OneInput):
    """Stored weights with a scale for every ``block_size`` elements along ``axis``, made float.

    Attributes:
        scale: float32; along ``axis`` one entry per block.
        zero_point: Of the scale's shape.
        axis: The axis of the blocks.
        block_size: Elements in a block; the last one may be shorter.
    """

    family: ClassVar[str] = "conversion"
    scale: NDArray[Any]
    zero_point: NDArray[Any]
    axis: int
    block_size: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Other(Record):
    """A composite of a vendor's own pattern that has no describing function.

    Attributes:
        operands: Its inputs.
    """

    family: ClassVar[str] = "other"
    operands: tuple[Tensor, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The activations, in order."""
        return self.operands


__getattr__ = renamed_in(globals(), Mover="DataMovement")
