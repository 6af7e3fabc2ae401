"""Typed attribute records of the operator table.

Axes are non-negative, pads are resolved to explicit numbers, and inputs that only configure
(``Slice`` starts, ``Pad`` pads, ``Clip`` bounds …) are attributes wherever they are constants.
Pads are written ``(begin…, end…)`` as ONNX does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from qdqbridge.core.graph.attribute_codecs import AttributeCodec, Holds, Ints
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import UNSAID, Attributes

Axis = Annotated[int, AttributeCodec(holds=Holds.AXIS)]
Axes = Annotated[Ints, AttributeCodec(tvm="axis", holds=Holds.AXES)]
Each = Annotated[Ints, AttributeCodec(holds=Holds.EACH)]
Kernel = Annotated[Ints, AttributeCodec(tvm="pool_size", holds=Holds.SPATIAL)]
Strides = Annotated[Ints, AttributeCodec(holds=Holds.SPATIAL)]
Dilations = Annotated[Ints, AttributeCodec(tvm="dilation", holds=Holds.SPATIAL)]
Pads = Annotated[Ints, AttributeCodec(tvm="padding", holds=Holds.ENDS)]
Groups = Annotated[int, AttributeCodec(tvm="groups")]


@dataclass(frozen=True, slots=True)
class ConvAttrs(Attributes):
    """Conv: one entry of strides and dilations per spatial axis, two of pads."""

    strides: Strides
    dilations: Dilations
    pads: Pads
    group: Groups = 1


@dataclass(frozen=True, slots=True)
class ConvTransposeAttrs(Attributes):
    """ConvTranspose: weight is (in, out / group, spatial…)."""

    strides: Strides
    dilations: Dilations
    pads: Pads
    output_padding: Strides
    group: Groups = 1


@dataclass(frozen=True, slots=True)
class GemmAttrs(Attributes):
    """Gemm: ``alpha * op(a) @ op(b) + beta * c``."""

    alpha: float = 1.0
    beta: float = 1.0
    trans_a: Annotated[bool, AttributeCodec(onnx="transA", tvm="transpose_a")] = False
    trans_b: Annotated[bool, AttributeCodec(onnx="transB", tvm="transpose_b")] = False


@dataclass(frozen=True, slots=True)
class PoolAttrs(Attributes):
    """AveragePool and MaxPool."""

    kernel_shape: Kernel
    strides: Strides
    dilations: Dilations
    pads: Pads
    ceil_mode: bool = False
    count_include_pad: bool = False


@dataclass(frozen=True, slots=True)
class ReduceAttrs(Attributes):
    """Reductions; ``axes`` lists every reduced axis."""

    axes: Axes
    keepdims: bool = True


@dataclass(frozen=True, slots=True)
class AxisAttrs(Attributes):
    """Operators with one axis: Concat, Gather, Flatten and others."""

    axis: Axis


@dataclass(frozen=True, slots=True)
class SoftmaxAttrs(Attributes):
    """Softmax and LogSoftmax: the axes normalized together (several before opset 13)."""

    axes: Annotated[Ints, AttributeCodec(onnx="axis", tvm="axis", holds=Holds.AXES, alone=True)]


@dataclass(frozen=True, slots=True)
class AlphaAttrs(Attributes):
    """LeakyRelu, Elu, Celu, ThresholdedRelu, Swish: one coefficient (a float32 number)."""

    alpha: float


@dataclass(frozen=True, slots=True)
class HardSigmoidAttrs(Attributes):
    """HardSigmoid: ``max(0, min(1, alpha * x + beta))``."""

    alpha: float
    beta: float


@dataclass(frozen=True, slots=True)
class SeluAttrs(Attributes):
    """Selu: ``gamma * (alpha * exp(x) - alpha)`` for negative x."""

    alpha: float
    gamma: float


@dataclass(frozen=True, slots=True)
class GeluAttrs(Attributes):
    """Gelu: ``approximate`` is ``none`` (erf) or ``tanh``."""

    approximate: str = "none"


@dataclass(frozen=True, slots=True)
class ClipAttrs(Attributes):
    """Clip with constant bounds; None where there is none."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ReshapeAttrs(Attributes):
    """Reshape: the target; None where a second operand gives it at run time.

    0 copies the input's extent (unless ``allow_zero``), one -1 takes what is left.
    """

    shape: Ints | None
    allow_zero: Annotated[bool, AttributeCodec(onnx="allowzero")] = False


@dataclass(frozen=True, slots=True)
class ExpandAttrs(Attributes):
    """Expand: the target; None where a second operand gives it at run time."""

    shape: Annotated[Ints | None, AttributeCodec(holds=Holds.EACH)]


@dataclass(frozen=True, slots=True)
class TransposeAttrs(Attributes):
    """Transpose: ``output axis i is input axis perm[i]``."""

    perm: Ints


@dataclass(frozen=True, slots=True)
class AxesAttrs(Attributes):
    """Squeeze (axes of the input) and Unsqueeze (axes of the output), sorted."""

    axes: Annotated[Ints, AttributeCodec(holds=Holds.AXES)]


@dataclass(frozen=True, slots=True)
class SliceAttrs(Attributes):
    """Slice: one entry per sliced axis; starts and ends as written (may be negative or huge)."""

    starts: Ints
    ends: Ints
    axes: Annotated[Ints, AttributeCodec(holds=Holds.IN_ORDER)]
    steps: Ints


@dataclass(frozen=True, slots=True)
class SplitAttrs(Attributes):
    """Split: the extent of every part along the axis."""

    axis: Axis
    sizes: Annotated[Ints, AttributeCodec(onnx="split")]


_PADDINGS = MappingProxyType({"edge": "replicate", "wrap": "circular"})


@dataclass(frozen=True, slots=True)
class PadAttrs(Attributes):
    """Pad: ``pads`` covers every axis; ``value`` is a real number, used in constant mode."""

    pads: Annotated[Ints, AttributeCodec(holds=Holds.BOTH)]
    mode: Annotated[str, AttributeCodec(tvm="pad_mode", words=_PADDINGS)] = "constant"
    value: Annotated[float, AttributeCodec(tvm="pad_value")] = 0.0


@dataclass(frozen=True, slots=True)
class TileAttrs(Attributes):
    """Tile: one factor per axis."""

    repeats: Each


@dataclass(frozen=True, slots=True)
class DepthSpaceAttrs(Attributes):
    """DepthToSpace (``mode`` DCR or CRD) and SpaceToDepth."""

    block_size: Annotated[int, AttributeCodec(onnx="blocksize")]
    mode: str = "DCR"


_METHODS = MappingProxyType({"nearest": "nearest_neighbor"})


@dataclass(frozen=True, slots=True)
class ResizeAttrs(Attributes):
    """Resize: ``scales`` and ``sizes`` cover every axis; ``sizes`` is None where scales decide."""

    mode: Annotated[str, AttributeCodec(tvm="method", words=_METHODS)]
    coordinate_transformation_mode: str
    nearest_mode: Annotated[str, AttributeCodec(tvm="rounding_method")]
    scales: Annotated[tuple[float, ...] | None, AttributeCodec(holds=Holds.EACH)]
    sizes: Annotated[Ints | None, AttributeCodec(holds=Holds.EACH)]
    cubic_coeff_a: Annotated[float, AttributeCodec(tvm="cubic_alpha")] = -0.75
    exclude_outside: Annotated[bool, AttributeCodec(tvm="cubic_exclude")] = False
    extrapolation_value: float = 0.0
    antialias: bool = False
    roi: Annotated[tuple[float, ...], AttributeCodec(holds=Holds.BOTH)] = ()


@dataclass(frozen=True, slots=True)
class NormAttrs(Attributes):
    """LayerNormalization: normalized axes are ``axis`` and all after it."""

    axis: Annotated[int, AttributeCodec(holds=Holds.LAST_AXES)]
    epsilon: float


@dataclass(frozen=True, slots=True)
class EpsilonAttrs(Attributes):
    """InstanceNormalization and BatchNormalization (inference)."""

    epsilon: float


@dataclass(frozen=True, slots=True)
class CastAttrs(Attributes):
    """Cast: the element type of the result."""

    to: DType


@dataclass(frozen=True, slots=True)
class GroupNormAttrs(Attributes):
    """GroupNormalization: channels are split into ``num_groups`` equal runs."""

    num_groups: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class ShapeAttrs(Attributes):
    """Shape: the extents from axis ``start`` to before ``end`` (None: to the last)."""

    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class QuantizeAttrs(Attributes):
    """A quantize; ``precision`` is the type of the division, None for float32."""

    precision: DType | None = field(default=None, metadata={UNSAID: True})


IN_FLOAT32 = QuantizeAttrs()


@dataclass(frozen=True, slots=True)
class LinearAttrs(Attributes):
    """QuantizeLinear and DequantizeLinear whose parameters are operands.

    ``to`` is the element type of the result; ``axis`` the one of parameters per channel or block,
    None where they are scalars; ``block_size`` 0 where there are no blocks; ``precision`` the type
    of the division, None for float32.
    """

    to: DType
    axis: int | None = None
    block_size: int = 0
    saturate: bool = True
    precision: DType | None = None
