"""The checks: each refuses what it should, in words, and accepts what is fine or unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantParams, QuantType, Shape, TensorType, per_tensor
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    DepthSpaceAttrs,
    EpsilonAttrs,
    ExpandAttrs,
    GemmAttrs,
    GroupNormAttrs,
    NormAttrs,
    PadAttrs,
    PoolAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    ResizeAttrs,
    SliceAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.table import BY_NAME


def problems(name: str, attributes: Attributes, shapes: list[Shape], results: int = 1) -> list[str]:
    """Returns what a node with float operands of these shapes is told."""
    operands = [Value(TensorType(DType.FLOAT32, shape)) for shape in shapes]
    outputs = [Value(TensorType(DType.FLOAT32, None)) for _ in range(results)]
    row = BY_NAME[name]
    return list(row.problems(Node(row, attributes, operands, outputs)))


def conv(pads=(0, 0, 0, 0), strides=(1, 1), dilations=(1, 1), group=1) -> ConvAttrs:
    return ConvAttrs(strides, dilations, pads, group)


def transposed(output_padding=(0, 0), group=1) -> ConvTransposeAttrs:
    return ConvTransposeAttrs((1, 1), (1, 1), (0, 0, 0, 0), output_padding, group)


def pool(kernel=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0)) -> PoolAttrs:
    return PoolAttrs(kernel, strides, (1, 1), pads)


RESIZE = ResizeAttrs("linear", "half_pixel", "floor", (1.0, 1.0, 2.0, 2.0), None)


X: Shape = (1, 4, 8, 8)
FINE: list[tuple[str, Attributes, list[Shape]]] = [
    ("Conv", conv(), [X, (6, 4, 3, 3), (6,)]),
    ("Conv", conv(), [("n", "c", "h", "w"), (6, 4, 3, 3)]),
    ("Conv", conv(), [None, None]),
    ("ConvTranspose", transposed(), [X, (4, 3, 2, 2), (3,)]),
    ("Dense", NO_ATTRIBUTES, [("n", 5), (3, 5), (3,)]),
    ("MatMul", NO_ATTRIBUTES, [(2, 1, 3, 4), (5, 4, 6)]),
    ("MatMul", NO_ATTRIBUTES, [(4,), (4,)]),
    ("MatMul", NO_ATTRIBUTES, [(3, 4), None]),
    ("Gemm", GemmAttrs(trans_b=True), [(3, 4), (5, 4), (1, 5)]),
    ("AveragePool", pool(pads=(1, 1, 1, 1)), [X]),
    ("MaxPool", pool(), [None]),
    ("Concat", AxisAttrs(1), [(1, 2), (1, "k")]),
    ("Add", NO_ATTRIBUTES, [(3, 1), (1, 4)]),
    ("Max", NO_ATTRIBUTES, [(3,), (1,), (3,)]),
    ("PRelu", NO_ATTRIBUTES, [X, (4, 1, 1)]),
    ("Where", NO_ATTRIBUTES, [(3,), (3,), (1,)]),
    ("Softmax", SoftmaxAttrs((1, 2)), [(1, 2, 3)]),
    ("ReduceMean", ReduceAttrs((0, 1)), [(1, 2)]),
    ("LayerNormalization", NormAttrs(1, 1e-5), [(2, 5), (5,), (5,)]),
    ("BatchNormalization", EpsilonAttrs(1e-5), [X, (4,), (4,), (4,), (4,)]),
    ("GroupNormalization", GroupNormAttrs(2, 1e-5), [X, (4,), (4,)]),
    ("Resize", RESIZE, [X]),
    ("Reshape", ReshapeAttrs((0, -1)), [(2, 3, 4)]),
    ("Reshape", ReshapeAttrs((0, -1)), [("n", 3, 4)]),
    ("Transpose", TransposeAttrs((1, 0)), [(2, 3)]),
    ("Unsqueeze", AxesAttrs((0, 3)), [(2, 3)]),
    ("Pad", PadAttrs((-1, 0)), [(2,)]),
    ("Slice", SliceAttrs((0,), (9,), (0,), (1,)), [(4,)]),
]
WRONG: list[tuple[str, Attributes, list[Shape], str]] = [
    ("Conv", conv(group=3), [X, (6, 4, 3, 3)], "group 3 does not divide the 4 input channels"),
    ("Conv", conv(group=2), [X, (5, 2, 3, 3)], "group 2 does not divide the 5 output channels"),
    ("Conv", conv(group=0), [X, (6, 4, 3, 3)], "group is 0"),
    ("Conv", conv(), [X, (6, 3, 3, 3)], "the weight takes 3 x 1 channels, the input has 4"),
    ("Conv", conv(), [X, (6, 4, 3)], "the weight has rank 3 and the input 4"),
    ("Conv", conv(), [(1, 4), (6, 4)], "the input has rank 2"),
    ("Conv", conv(pads=(0, 0)), [X, (6, 4, 3, 3)], "pads has 2 entries for 2 spatial axes"),
    ("Conv", conv(pads=(0, 0, -1, 0)), [X, (6, 4, 3, 3)], "has an entry below 0"),
    ("Conv", conv(strides=(0, 1)), [X, (6, 4, 3, 3)], "strides (0, 1) has an entry below 1"),
    ("Conv", conv(dilations=(1, 0)), [X, (6, 4, 3, 3)], "dilations (1, 0) has an entry below 1"),
    ("Conv", conv(strides=(1,)), [X, (6, 4, 3, 3)], "strides has 1 entries for 2 spatial axes"),
    ("Conv", conv(), [X, (6, 4, 3, 3), (5,)], "the bias has 5 elements, not 6"),
    ("Conv", conv(), [X, (6, 4, 3, 3), (6, 1)], "the bias has rank 2, not 1"),
    ("ConvTranspose", transposed(), [X, (3, 4, 2, 2)], "the weight takes 3 channels"),
    ("ConvTranspose", transposed(group=3), [X, (4, 3, 2, 2)], "does not divide the 4 input"),
    ("ConvTranspose", transposed(group=2), [X, (4, 3, 2, 2), (3,)], "3 elements, not 6"),
    ("ConvTranspose", transposed((0,)), [X, (4, 3, 2, 2)], "output_padding has 1 entries"),
    ("Dense", NO_ATTRIBUTES, [(2, 5), (3, 4)], "rows of 5 elements, the weight of 4"),
    ("Dense", NO_ATTRIBUTES, [(2, 5), (3, 5, 1)], "the weight has rank 3, not 2"),
    ("Dense", NO_ATTRIBUTES, [(), (3, 5)], "the input is a scalar"),
    ("Dense", NO_ATTRIBUTES, [(2, 5), (3, 5), (5,)], "the bias has 5 elements, not 3"),
    ("MatMul", NO_ATTRIBUTES, [(3, 4), (5, 4)], "rows of 4 elements, the second 5 rows"),
    ("MatMul", NO_ATTRIBUTES, [(3, 4), ()], "an operand is a scalar"),
    ("MatMul", NO_ATTRIBUTES, [(2, 3, 4), (5, 4, 6)], "batch axis -3 is 2 in one operand and 5"),
    ("Gemm", GemmAttrs(), [(3, 4), (5, 4)], "the inner extents are 4 and 5"),
    ("Gemm", GemmAttrs(), [(2, 3, 4), (4, 5)], "the first operand has rank 3, not 2"),
    ("Gemm", GemmAttrs(), [(3, 4), (4, 5), (4,)], "does not broadcast to 5"),
    ("Gemm", GemmAttrs(), [(3, 4), (4, 5), (1, 1, 5)], "the bias has rank 3"),
    ("AveragePool", pool((2,)), [X], "kernel_shape has 1 entries for 2 spatial axes"),
    ("AveragePool", pool(strides=(0, 1)), [X], "has an entry below 1"),
    ("MaxPool", pool(pads=(2, 0, 0, 0)), [X], "padding of spatial axis 0 is as wide as"),
    ("MaxPool", pool(), [(1, 2)], "the input has rank 2"),
    ("GlobalAveragePool", NO_ATTRIBUTES, [(1, 2)], "the input has rank 2"),
    ("Concat", AxisAttrs(2), [(1, 2), (1, 2)], "axis 2 does not exist in operands of rank 2"),
    ("Concat", AxisAttrs(1), [(1, 2), (3, 2)], "axis 0 has different extents [1, 3]"),
    ("Concat", AxisAttrs(1), [(1, 2), (1, 2, 3)], "operands have ranks [2, 3]"),
    ("Add", NO_ATTRIBUTES, [(3, 2), (4,)], "axis -1 has extents [2, 4], which do not broadcast"),
    ("Add", NO_ATTRIBUTES, [(3,)], "needs two operands, has 1"),
    ("PRelu", NO_ATTRIBUTES, [(4, 1), (4, 4)], "axis -1 of the slope does not broadcast"),
    ("PRelu", NO_ATTRIBUTES, [(4,), (1, 4)], "the slope has rank 2 and the input only 1"),
    ("Where", NO_ATTRIBUTES, [(3,), (3,)], "needs three operands, has 2"),
    ("Softmax", SoftmaxAttrs((3,)), [(1, 2, 3)], "axis 3 does not exist in an operand of rank 3"),
    ("Softmax", SoftmaxAttrs(()), [(1, 2, 3)], "no axis is given"),
    ("ReduceMean", ReduceAttrs((0, 0)), [(1, 2)], "axes (0, 0) name an axis twice"),
    ("ReduceMax", ReduceAttrs((-1,)), [(1, 2)], "axis -1 does not exist"),
    ("LayerNormalization", NormAttrs(1, 1e-5), [(2, 5), (4,)], "axis -1 of the scale is 4, not 5"),
    ("LayerNormalization", NormAttrs(2, 1e-5), [(2, 5), (5,)], "axis 2 does not exist"),
    ("LayerNormalization", NormAttrs(1, -1.0), [(2, 5), (5,)], "epsilon is -1.0"),
    ("RMSNormalization", NormAttrs(1, 1e-5), [(5,), (1, 5)], "the scale has rank 2"),
    ("BatchNormalization", EpsilonAttrs(0), [X, (4,), (4,), (3,), (4,)], "the mean has 3 elements"),
    ("InstanceNormalization", EpsilonAttrs(0), [(4,), (4,), (4,)], "the input has rank 1"),
    ("InstanceNormalization", EpsilonAttrs(-1), [X, (4,), (4,)], "epsilon is -1"),
    ("GroupNormalization", GroupNormAttrs(3, 0), [X, (4,), (4,)], "3 groups do not divide"),
    ("Resize", replace(RESIZE, mode="sinc"), [X], "mode 'sinc' does not exist"),
    (
        "Resize",
        replace(RESIZE, coordinate_transformation_mode="x"),
        [X],
        "coordinates 'x' do not exist",
    ),
    (
        "Resize",
        replace(RESIZE, mode="nearest", nearest_mode="up"),
        [X],
        "nearest mode 'up' does not exist",
    ),
    ("Resize", replace(RESIZE, antialias=True), [X], "antialias is not supported"),
    ("Resize", replace(RESIZE, scales=None), [X], "neither scales nor sizes are given"),
    ("Resize", replace(RESIZE, scales=(2.0,)), [X], "scales has 1 entries for an input of rank 4"),
    ("Resize", replace(RESIZE, scales=(1.0, 1.0, 0.0, 1.0)), [X], "not all positive"),
    (
        "Resize",
        replace(RESIZE, coordinate_transformation_mode="tf_crop_and_resize"),
        [X],
        "needs a region",
    ),
    ("Reshape", ReshapeAttrs((5, 5)), [(2, 3)], "6 elements do not fill the shape (5, 5)"),
    ("Reshape", ReshapeAttrs((-1, 4)), [(2, 3)], "6 elements do not fill the shape (-1, 4)"),
    ("Reshape", ReshapeAttrs((-1, -1)), [(2, 3)], "the target (-1, -1) is not a shape"),
    ("Reshape", ReshapeAttrs((2, 3, 0)), [(2, 3)], "copies an axis that the input does not have"),
    ("Reshape", ReshapeAttrs((0, -1), True), [(2, 3)], "has both a 0 and a -1"),
    ("Reshape", ReshapeAttrs(None), [(2, 3)], "neither an attribute nor an operand"),
    ("Expand", ExpandAttrs((4,)), [(3,)], "axis -1 of extent 3 does not broadcast to 4"),
    ("Expand", ExpandAttrs(None), [(3,)], "neither an attribute nor an operand"),
    ("Transpose", TransposeAttrs((0, 0)), [(2, 3)], "(0, 0) is not a permutation"),
    ("Transpose", TransposeAttrs((1, 0)), [(2, 3, 4)], "does not fit an input of rank 3"),
    ("Squeeze", AxesAttrs((1,)), [(1, 3)], "axis 1 has extent 3, not 1"),
    ("Unsqueeze", AxesAttrs((4,)), [(1, 3)], "axis 4 does not exist in an operand of rank 3"),
    ("Flatten", AxisAttrs(3), [(1, 3)], "axis 3 does not exist in an operand of rank 2"),
    ("Tile", TileAttrs((2,)), [(1, 3)], "repeats has 1 entries for an input of rank 2"),
    ("Tile", TileAttrs((2, -1)), [(1, 3)], "has a negative entry"),
    ("DepthToSpace", DepthSpaceAttrs(3), [X], "4 channels are no multiple of 9"),
    ("DepthToSpace", DepthSpaceAttrs(2, "ABC"), [X], "mode 'ABC' does not exist"),
    ("DepthToSpace", DepthSpaceAttrs(0), [X], "block_size is 0"),
    ("SpaceToDepth", DepthSpaceAttrs(3), [X], "axis 2 of extent 8 is no multiple of 3"),
    ("SpaceToDepth", DepthSpaceAttrs(2), [(1, 4, 8)], "the input has rank 3, not 4"),
    ("Slice", SliceAttrs((0,), (1,), (2,), (1,)), [(4,)], "axis 2 does not exist"),
    ("Slice", SliceAttrs((0,), (1,), (0,), (0,)), [(4,)], "a step is 0"),
    ("Slice", SliceAttrs((0, 1), (1,), (0,), (1,)), [(4,)], "have different lengths"),
    ("Gather", AxisAttrs(1), [(4,), (2,)], "axis 1 does not exist in an operand of rank 1"),
    ("Gather", AxisAttrs(0), [(4,)], "has no indices"),
    ("Split", SplitAttrs(0, (1, 2)), [(4,)], "sizes (1, 2) do not add up to 4"),
    ("Split", SplitAttrs(0, (2, 2)), [(4,)], "has 2 sizes and 1 results"),
    ("Split", SplitAttrs(0, (-1,)), [(4,)], "has a negative entry"),
    ("Pad", PadAttrs((1,)), [(4,)], "pads has 1 entries for an input of rank 1"),
    ("Pad", PadAttrs((-3, -2)), [(4,)], "pads crop more than the 4 elements of axis 0"),
    ("Pad", PadAttrs((4, 0), "reflect"), [(4,)], "reflected padding of axis 0 is wider"),
    ("Pad", PadAttrs((1, 0), "mirror"), [(4,)], "mode 'mirror' does not exist"),
]


@pytest.mark.parametrize(("name", "attributes", "shapes"), FINE)
def test_accepts(name, attributes, shapes) -> None:
    assert problems(name, attributes, shapes) == []


@pytest.mark.parametrize(("name", "attributes", "shapes", "words"), WRONG)
def test_refuses(name, attributes, shapes, words) -> None:
    assert any(words in problem for problem in problems(name, attributes, shapes))


@pytest.mark.parametrize("name", ["Conv", "Dense", "MatMul", "Gemm"])
def test_an_activation_with_several_scales_is_refused_where_the_weight_is_quantized(name) -> None:
    several = QuantParams(DType.UINT8, np.ones(4, np.float32), np.zeros(4, np.int32), axis=1)
    row = BY_NAME[name]
    attributes = {"Conv": conv(), "Gemm": GemmAttrs()}.get(name, NO_ATTRIBUTES)
    xs, ws = (X, (4, 4, 3, 3)) if name == "Conv" else ((4, 4), (4, 4))
    x = Value(QuantType(several, xs))
    y = Value(TensorType(DType.FLOAT32, None))
    integer = Value(QuantType(per_tensor(DType.INT8, 0.1), ws))
    (problem,) = row.problems(Node(row, attributes, [x, integer], [y]))
    assert "is quantized per axis 1; it has to be per tensor" in problem
    real = Value(TensorType(DType.FLOAT32, ws))
    assert list(row.problems(Node(row, attributes, [x, real], [y]))) == []


@pytest.mark.parametrize(
    ("name", "axis", "wanted"),
    [("Conv", 1, 0), ("ConvTranspose", 0, 1), ("Dense", 1, 0), ("MatMul", 0, 1), ("Gemm", 0, 1)],
)
def test_scales_of_a_weight_lie_along_the_channels_of_the_result(name, axis, wanted) -> None:
    """An operand of as many channels hides it: TVM takes each scale for one of the result's."""
    row = BY_NAME[name]
    shape = (4, 4, 3, 3) if "Conv" in name else (4, 4)
    attributes = {
        "Conv": conv(),
        "ConvTranspose": ConvTransposeAttrs((1, 1), (1, 1), (0,) * 4, (0, 0), 1),
        "Gemm": GemmAttrs(),
    }.get(name, NO_ATTRIBUTES)
    x = Value(QuantType(per_tensor(DType.UINT8, 0.1), shape))

    def complaints(along: int) -> list[str]:
        several = QuantParams(DType.INT8, np.ones(4, np.float32), np.zeros(4, np.int32), axis=along)
        operands = [x, Value(QuantType(several, shape))]
        return list(
            row.problems(Node(row, attributes, operands, [Value(TensorType(DType.FLOAT32, None))]))
        )

    (problem,) = complaints(axis)
    assert f"per axis {axis}; it has to be per tensor or along axis {wanted}" in problem
    assert complaints(wanted) == []


def test_conversions_name_the_side_that_is_wrong() -> None:
    real = TensorType(DType.FLOAT32, (2, 3))
    eight = QuantType(per_tensor(DType.INT8, 0.1), (2, 3))
    wide = QuantType(per_tensor(DType.INT16, 0.1), (2, 3))

    def complaints(name, before, after) -> list[str]:
        row = BY_NAME[name]
        return list(row.problems(Node(row, NO_ATTRIBUTES, [Value(before)], [Value(after)])))

    assert complaints("quantize", real, eight) == []
    assert complaints("dequantize", eight, real) == []
    assert complaints("requantize", eight, wide) == []
    assert complaints("reinterpret", eight, eight) == []
    assert complaints("quantize", eight, eight) == ["the operand is quantized"]
    assert complaints("quantize", real, real) == ["the result is not quantized"]
    assert complaints("dequantize", real, real) == ["the operand is not quantized"]
    assert complaints("requantize", eight, real) == ["the result is not quantized"]
    assert complaints("reinterpret", eight, wide) == ["int8 and int16 differ in width"]
    longer = eight.with_shape((2, 4))
    assert complaints("quantize", real, longer) == ["axis 1 is 3 before and 4 after"]
    assert complaints("quantize", real, eight.with_shape((2,))) != []
