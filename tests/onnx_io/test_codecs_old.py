"""Old and unusual forms mean what onnxruntime makes of them, or have no row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantType, per_tensor
from qdqbridge.core.ops import attributes as a
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.codecs import NodeView, decode, why_not
from qdqbridge.onnx_io.reading.operators_known import check_known
from tests.onnx_io.codec_nodes import computed, constant, model_of, value, view

ort.set_default_logger_severity(4)
RNG = np.random.default_rng(0)
X = value((2, 4, 7, 6))
W = constant(RNG.standard_normal((4, 2, 3, 3)).astype(np.float32))
AXES: tuple[dict[str, Any], ...] = ({}, {"axis": 2}, {"axis": 3})
SAME = ("SAME_UPPER", "SAME_LOWER", "VALID")


def f32(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float32)


def i64(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


def scalar(number: float) -> np.ndarray[Any, Any]:
    return np.array(number, np.float32)


SPELLINGS: list[NodeView] = [
    *(view("Conv", [X, W], opset, auto_pad=pad, group=2, strides=[2, 3])
      for opset in (7, 11, 22) for pad in SAME),
    *(view("Conv", [X, W], 11, auto_pad=pad, group=2, dilations=[2, 1]) for pad in SAME[2:]),
    *(view("ConvTranspose", [X, W], 11, auto_pad=pad, strides=s)
      for pad in SAME for s in ([2, 2], [1, 3], [1, 1])),
    view("ConvTranspose", [X, W], 11, output_shape=[14, 12], strides=[2, 2]),
    view("ConvTranspose", [X, W], 11, output_shape=[14, 12], strides=[2, 2],
         auto_pad="SAME_UPPER"),
    view("ConvTranspose", [X, W], 11, output_shape=[16, 14], strides=[2, 2],
         output_padding=[1, 1], dilations=[1, 2]),
    *(view("AveragePool", [X], opset, auto_pad=pad, kernel_shape=[3, 2], strides=[2, 2])
      for opset in (7, 10, 19) for pad in SAME),
    view("AveragePool", [X], 7, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    *(view("MaxPool", [X], 12, auto_pad=pad, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=ceil)
      for pad in SAME for ceil in (0, 1)),
    *(view("ReduceMean", [X], opset, axes=[-1, 1], keepdims=0) for opset in (7, 11, 13)),
    view("ReduceMean", [X], 7), view("ReduceMean", [X], 18),
    view("ReduceMean", [X, i64(-1, 0)], 18), view("ReduceSum", [X], 11, axes=[2]),
    view("ReduceSum", [X, i64(2)], 13), view("ReduceSum", [X], 13, noop_with_empty_axes=1),
    view("ReduceMean", [X, i64()], 18, noop_with_empty_axes=1),
    *(view("Softmax", [X], opset, **axis) for opset in (7, 11, 13)
      for axis in AXES),
    view("Softmax", [X], 11, axis=-2), view("LogSoftmax", [X], 12, axis=0),
    view("Clip", [X], 7, min=-0.5, max=0.25), view("Clip", [X], 7, max=0.5),
    view("Clip", [X], 7), view("Clip", [X, scalar(-0.5), scalar(0.25)], 11),
    view("Clip", [X, None, scalar(0.25)], 13), view("Clip", [X, scalar(0.0)], 13),
    view("Squeeze", [value((1, 3, 1, 2))], 7, axes=[0, 2]),
    view("Squeeze", [value((1, 3, 1, 2))], 11, axes=[-2]),
    view("Squeeze", [value((1, 3, 1, 2))], 7),
    view("Squeeze", [value((1, 3, 1, 2)), i64(-4)], 13),
    view("Unsqueeze", [X], 7, axes=[0, 3]), view("Unsqueeze", [X], 11, axes=[-1, 0]),
    view("Unsqueeze", [X, i64(-1, 2)], 13),
    view("Slice", [X], 7, starts=[1, -3], ends=[2, 100], axes=[1, 3]),
    view("Slice", [X], 9, starts=[0, 1], ends=[-1, 3]),
    view("Slice", [X, i64(-1), i64(-99), i64(-2), i64(-2)], 13),
    view("Slice", [X, i64(1, 0), i64(4, -1)], 10),
    view("Pad", [X], 7, pads=[0, 0, 1, 2, 0, 0, 0, 1], value=1.5),
    view("Pad", [X], 7, pads=[0, 0, 1, 2, 0, 0, 0, 1], mode="edge"),
    view("Pad", [X, i64(0, 0, 1, 2, 0, 0, 0, 1), scalar(-1.0)], 11),
    view("Pad", [X, i64(1, 2, 0, 1), scalar(2.0), i64(-1, 1)], 18),
    view("Pad", [X, i64(1, 0, 0, 1), None, i64(2, 3)], 19, mode="reflect"),
    view("Split", [X], 7, results=2, axis=1), view("Split", [X], 11, results=2, axis=-1),
    view("Split", [X], 11, results=2, axis=1, split=[1, 3]),
    view("Split", [X], 13, results=2, axis=1),
    view("Split", [X, i64(1, 3)], 13, results=2, axis=1),
    view("Split", [X], 18, results=3, axis=2, num_outputs=3),
    view("Upsample", [X], 7, scales=[1.0, 1.0, 2.0, 1.5]),
    view("Upsample", [X], 7, scales=[1.0, 1.0, 2.0, 1.5], mode="linear"),
    view("Upsample", [X, f32(1, 1, 2, 3)], 9), view("Resize", [X, f32(1, 1, 2, 1.7)], 10),
    view("Resize", [X, f32(1, 1, 0.6, 0.5)], 10),
    view("Resize", [X, f32(1, 1, 0.6, 2)], 10, mode="linear"),
    view("Resize", [X, f32(), f32(1, 1, 2, 2)], 11,
         coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor"),
    view("Resize", [X, f32(), f32(1, 1, 1.3, 2)], 11,
         coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor"),
    view("Resize", [X, f32(), f32(), i64(2, 4, 9, 9)], 11, mode="linear"),
    view("Resize", [X, None, None, i64(9, 9)], 18, mode="linear", axes=[-2, -1]),
    view("Resize", [X, None, f32(2, 1.5)], 18, mode="cubic", axes=[3, 2]),
    view("Resize", [X, None, None, i64(14, 18)], 18, mode="linear", axes=[2, 3],
         keep_aspect_ratio_policy="not_larger"),
    view("Resize", [X, f32(0.25, 0, 0.75, 1), None, i64(3, 5)], 18, axes=[3, 2], mode="linear",
         coordinate_transformation_mode="tf_crop_and_resize"),
    view("Flatten", [X], 7), view("Flatten", [X], 11, axis=-2), view("Flatten", [X], 13, axis=4),
    view("Transpose", [X], 7), view("Concat", [X, X], 11, axis=-3),
    view("Gather", [X, i64(-1, 0)], 11, axis=-1), view("Gather", [X, i64(1)], 7),
    view("Reshape", [X, i64(0, -1)], 7), view("Expand", [X, i64(3, 1, 1, 1, 1)], 8),
    view("Tile", [X, i64(1, 2, 1, 1)], 7), view("DepthToSpace", [X], 7, blocksize=2),
    view("Gemm", [value((3, 2)), constant(np.ones((4, 3), np.float32)), f32(1, 2, 3, 4)], 7,
         transA=1, transB=1, alpha=0.5, beta=0.25),
    view("Dropout", [X], 7, ratio=0.3), view("Dropout", [X, scalar(0.3)], 12),
    view("BatchNormalization", [X, *([f32(1, 2, 3, 4)] * 4)], 7, epsilon=0.5, momentum=0.1),
    view("BatchNormalization", [X, *([f32(1, 2, 3, 4)] * 4)], 9),
    view("BatchNormalization", [X, *([f32(1, 2, 3, 4)] * 4)], 15, training_mode=0),
    view("LayerNormalization", [X, f32(1, 2, 3, 4, 5, 6)], 17),
    view("HardSigmoid", [X], 7), view("Selu", [X], 7), view("LeakyRelu", [X], 7),
    view("Elu", [X], 7), view("Celu", [X], 12), view("ThresholdedRelu", [X], 10),
    view("Gelu", [X], 1, domain="com.microsoft"),
    view("QuickGelu", [X], 1, domain="com.microsoft"),
    view("QuickGelu", [X], 1, domain="com.microsoft", alpha=0.5),
]  # fmt: skip


@pytest.mark.parametrize("node", SPELLINGS, ids=lambda n: f"{n.op_type}-{n.opset}")
def test_a_spelling_means_what_onnxruntime_makes_of_it(node: NodeView) -> None:
    shape = node.shape(0)
    assert shape is not None
    x = RNG.standard_normal(shape).astype(np.float32)  # type: ignore[arg-type]
    session = ort.InferenceSession(
        model_of(node).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected: Sequence[Any] = session.run(None, {i.name: x for i in session.get_inputs()})
    decoded = decode(node)
    assert decoded is not None, why_not(node)
    results = computed(decoded.op_name, decoded.attributes, decoded.operands, x)
    assert len(results) == len(expected)
    for have, want in zip(results, expected, strict=True):
        assert have.shape == want.shape, decoded
        # Sums in another order, and onnxruntime's own exponential: an ulp of what cancels.
        np.testing.assert_allclose(have, want, 1e-5, 5e-6, err_msg=str(decoded))
    assert decoded.op_name in BY_NAME


BATCH = value(("n", 4, 7, 6))
UNKNOWN = value(None)
SYMBOLIC = value((1, 4, "h", "w"))
LENGTHS = value((1,), DType.INT64)
NO_ROW = {
    "slice at run time": view("Slice", [X, LENGTHS, LENGTHS], 13),
    "pads at run time": view("Pad", [X, value((8,), DType.INT64)], 13),
    "bound at run time": view("Clip", [X, value(())], 13),
    "axes at run time": view("ReduceMean", [X, LENGTHS], 18),
    "repeats at run time": view("Tile", [X, value((4,), DType.INT64)], 13),
    "indices": view("MaxPool", [X], 12, results=2, kernel_shape=[2, 2]),
    "dropout in training": view("Dropout", [X, scalar(0.5), np.array(True)], 13),
    "dropout mask": view("Dropout", [X], 13, results=2),
    "batch norm in training": view("BatchNormalization", [X, *([f32(1, 2, 3, 4)] * 4)], 15,
                                   training_mode=1),
    "old batch norm in training": view("BatchNormalization", [X, *([f32(1, 2, 3, 4)] * 4)], 9,
                                       results=5),
    "batch norm per position": view("BatchNormalization", [X, *([f32(1, 2, 3, 4)] * 4)], 7,
                                    spatial=0),
    "another gelu": view("Gelu", [X], 20, approximate="sigmoid"),
    "layer norm's mean": view("LayerNormalization", [X, f32(1)], 17, results=2),
    "half-precision layer norm": view("LayerNormalization", [X, f32(1)], 17, stash_type=10),
    "scale per group": view("GroupNormalization", [X, f32(1, 1), f32(1, 1)], 18, num_groups=2),
    "SAME without extents": view("Conv", [SYMBOLIC, W], 11, auto_pad="SAME_UPPER", group=2,
                                 strides=[2, 2]),
    "output shape without extents": view("ConvTranspose", [SYMBOLIC, W], 11,
                                         output_shape=[14, 12]),
    "weight of unknown shape": view("Conv", [X, UNKNOWN], 11),
    "negative axis of unknown rank": view("Concat", [UNKNOWN, UNKNOWN], 11, axis=-1),
    "transpose of unknown rank": view("Transpose", [UNKNOWN], 11),
    "squeeze of unknown extents": view("Squeeze", [SYMBOLIC], 11),
    "equal parts of an unknown extent": view("Split", [SYMBOLIC], 11, results=2, axis=2),
    "antialias": view("Resize", [X, None, f32(1, 1, 0.5, 0.5)], 18, mode="linear", antialias=1),
    "mixed old rounding": view("Resize", [X, f32(1, 1, 2, 0.5)], 10),
    "scales at run time": view("Resize", [X, None, value((4,))], 13),
    "cast to float8": view("Cast", [X], 19, to=17, saturate=0),
    "cast to strings": view("Cast", [X], 13, to=8),
    "pad strings": view("Pad", [value((2,), DType.STRING), i64(1, 0)], 13),
    "reduce nothing": view("ReduceMax", [value((2, 0)), i64(1)], 20),
    "before opset 7": view("Add", [X, X], 6, broadcast=1),
    "no codec": view("TopK", [X, i64(2)], 13),
    "another domain": view("Conv", [X, W], 1, domain="com.acme"),
    "bound not exact": view("Clip", [value((2,), DType.INT64), np.array(2**60 + 1)], 13),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_ROW)
def test_spellings_without_a_row_say_why(case: str) -> None:
    assert decode(NO_ROW[case]) is None
    assert why_not(NO_ROW[case])


INVALID = {
    "unknown attribute": view("Relu", [X], 13, axis=1),
    "attribute of another opset": view("Squeeze", [X], 13, axes=[0]),
    "unknown contrib attribute": view("Gelu", [X], 1, domain="com.microsoft", alpha=1.0),
    "string weight": view("Conv", [X, value((4, 2, 3, 3), DType.STRING)], 13),
    "group": view("Conv", [X, W], 13, group=3),
    "channels": view("Conv", [X, W], 13, group=1),
    "kernel_shape": view("Conv", [X, W], 13, group=2, kernel_shape=[5, 5]),
    "kernel rank": view("Conv", [X, W], 13, group=2, kernel_shape=[3]),
    "input rank": view("Conv", [value((2, 4, 7)), W], 13, group=2),
    "pads": view("Conv", [X, W], 13, group=2, pads=[1, 1, 1]),
    "negative pads": view("Conv", [X, W], 13, group=2, pads=[1, 1, 1, -1]),
    "stride": view("Conv", [X, W], 13, group=2, strides=[1, 0]),
    "auto_pad": view("Conv", [X, W], 13, group=2, auto_pad="SOME"),
    "axis": view("Softmax", [X], 13, axis=4),
    "axis twice": view("ReduceMean", [X], 13, axes=[1, -3]),
    "squeeze": view("Squeeze", [X, i64(1)], 13),
    "split sum": view("Split", [X, i64(1, 2)], 13, results=2, axis=1),
    "split odd": view("Split", [X], 13, results=3, axis=1),
    "slice lists": view("Slice", [X, i64(1, 2), i64(3)], 13),
    "slice step": view("Slice", [X, i64(1), i64(3), i64(0), i64(0)], 13),
    "perm": view("Transpose", [X], 13, perm=[0, 1, 1, 3]),
    "two wildcards": view("Reshape", [X, i64(-1, -1)], 13),
    "float shape": view("Reshape", [X, f32(2, -1)], 13),
    "pads of an axis": view("Pad", [X, i64(1, 1)], 13),
    "scales": view("Resize", [X, None, f32(1, 2)], 13),
    "scale of zero": view("Resize", [X, None, f32(1, 1, 0, 1)], 13),
    "scales and sizes": view("Resize", [X, None, f32(1, 1, 1, 1), i64(2, 4, 7, 6)], 13),
    "mode": view("Resize", [X, None, f32(1, 1, 1, 1)], 13, mode="lanczos"),
    "cast to nothing": view("Cast", [X], 13, to=0),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_nodes_that_break_onnx_rules_are_refused_by_name(case: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        decode(INVALID[case])
    assert "'n'" in caught.value.where


UNFIT = {
    "wrong type": view("Concat", [X, X], 13, axis=1.0),
    "missing attribute": view("Concat", [X, X], 13),
    "missing kernel_shape": view("MaxPool", [X], 13),
    "missing input": view("Conv", [X, None], 13),
    "too few inputs": view("Conv", [X], 13),
    "too many inputs": view("Relu", [X, X], 13),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_nodes_that_do_not_fit_their_schema_are_refused_before_they_are_decoded(case: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        check_known(model_of(UNFIT[case]), "model.onnx")
    assert "'n'" in caught.value.where


def test_operators_of_other_opsets_are_told() -> None:
    with pytest.raises(UnsupportedModelError, match="unknown at opset 13") as caught:
        check_known(model_of(view("Gelu", [X], 13)), "model.onnx")
    assert "Gelu" in caught.value.why


def test_an_attribute_given_twice_is_refused() -> None:
    node = view("Concat", [X, X], 13, axis=1)
    node.proto.attribute.append(node.proto.attribute[0])
    with pytest.raises(InvalidModelError, match="given twice"):
        NodeView(node.proto, 13, node.operands)


def test_same_padding_with_stride_one_needs_no_extents() -> None:
    dilated: dict[str, Any] = {"auto_pad": "SAME_LOWER", "group": 2, "dilations": [2, 1]}
    decoded = decode(view("Conv", [SYMBOLIC, W], 11, **dilated))
    assert decoded is not None
    assert decoded.attributes == a.ConvAttrs((1, 1), (2, 1), (2, 1, 2, 1), 2)


def test_symbolic_extents_that_do_not_matter_do_not_matter() -> None:
    decoded = decode(view("Softmax", [BATCH], 11, axis=3))
    assert decoded is not None and decoded.attributes == a.SoftmaxAttrs((3,))


LIMIT = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ([scalar(-LIMIT), scalar(np.inf)], (-LIMIT, None)),
        ([scalar(-np.inf), scalar(LIMIT)], (None, LIMIT)),
        ([], (-LIMIT, LIMIT)),
        ([None, scalar(6)], (-LIMIT, 6)),
    ],
)
def test_an_infinite_clip_bound_is_none_and_one_left_out_the_last_number(
    bounds: list[Value | None], wanted: tuple[float | None, float | None]
) -> None:
    decoded = decode(view("Clip", [X, *bounds], 13))
    assert decoded is not None and decoded.attributes == a.ClipAttrs(*wanted)


def test_a_shape_known_at_run_time_stays_an_operand() -> None:
    for op_type, record in (("Reshape", a.ReshapeAttrs(None)), ("Expand", a.ExpandAttrs(None))):
        decoded = decode(view(op_type, [X, LENGTHS], 13))
        assert decoded is not None and decoded.attributes == record
        assert decoded.operands == [X, LENGTHS]


@pytest.mark.parametrize(
    ("written", "real"),
    [(None, -32.0), (np.array(128, np.uint8), 0.0), (np.array([130], np.uint8), 0.5)],
)
def test_padding_stored_integers_is_padding_with_what_they_stand_for(
    written: Any, real: float
) -> None:
    stored = Value(QuantType(per_tensor(DType.UINT8, 0.25, 128), (2,)), "x")
    decoded = decode(view("Pad", [stored, i64(1, 0), written], 13))
    assert decoded is not None and decoded.attributes == a.PadAttrs((1, 0), value=real)


def test_a_quantized_bound_means_its_real_value() -> None:
    bound = Value(
        QuantType(per_tensor(DType.UINT8, 0.25, 128), ()), "b",
        constant=Constant.of(np.array(152, np.uint8)),
    )  # fmt: skip
    decoded = decode(view("Clip", [X, scalar(0.0), bound], 13))
    assert decoded is not None and decoded.attributes == a.ClipAttrs(0.0, 6.0)


def test_bounds_may_be_computed_from_constants() -> None:
    cast = BY_NAME["Cast"]
    bound = value(())
    Node(cast, a.CastAttrs(DType.FLOAT32), [constant(np.array(6, np.int64))], [bound])
    decoded = decode(view("Clip", [X, None, bound], 13))
    assert decoded is not None and decoded.attributes == a.ClipAttrs(-LIMIT, 6.0)


def test_left_out_operands_at_the_end_are_dropped() -> None:
    bias: Value | None = None
    decoded = decode(view("Conv", [X, W, bias], 13, group=2))
    assert decoded is not None and decoded.operands == [X, W]


def test_onnx_own_domain_has_two_names() -> None:
    decoded = decode(view("Relu", [X], 13, domain="ai.onnx"))
    assert decoded is not None and decoded.attributes == NO_ATTRIBUTES
