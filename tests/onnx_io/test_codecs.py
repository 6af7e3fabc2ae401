"""What a codec writes, it reads back, in every opset that can express it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.ops import attributes as a
from qdqbridge.core.ops.attention import (
    AttentionAttrs,
    MergedAttentionAttrs,
    MultiHeadAttentionAttrs,
    RotaryEmbeddingAttrs,
)
from qdqbridge.core.ops.convolution import CausalConvAttrs
from qdqbridge.core.ops.experts import ExpertsAttrs
from qdqbridge.core.ops.group_query_attention import GroupQueryAttentionAttrs, SparseAttentionAttrs
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs import BY_ROW, decode, encode, since
from tests.onnx_io.codec_nodes import constant, model_of, value, view_of

NEWEST = onnx.defs.onnx_opset_version()
X = value((2, 4, 6, 6))
VECTOR = constant(np.ones(4, np.float32))
F = float
HALF = F(np.float32(0.3))


Case = tuple[str, Attributes, list[Value | None]]


def element_wise() -> Iterator[Case]:
    """Yields what a row alone describes, with attributes unlike ONNX's defaults."""
    for row in OPERATORS:
        if not row.onnx or not row.arity:
            continue
        options = [
            row.onnx[0].choices.get(name) or [F(np.float32(0.3 + 0.25 * index))]
            for index, name in enumerate(row.fields)
        ]
        for values in itertools.product(*options):
            operands: list[Value | None] = [X] * row.arity
            yield row.name, row.attributes(*values), operands


X3 = value((2, 3, 8))
CASES: list[Case] = [
    *element_wise(),
    *((name, NO_ATTRIBUTES, [X]) for name in ("Identity", "GlobalAveragePool", "GlobalMaxPool")),
    ("MatMul", NO_ATTRIBUTES, [X, X]),
    ("Where", NO_ATTRIBUTES, [value((6,), DType.BOOL), X, X]),
    ("Clip", a.ClipAttrs(0.0, 6.0), [X]),
    ("Clip", a.ClipAttrs(None, HALF), [X]),
    ("Clip", a.ClipAttrs(-1.0, None), [X]),
    ("Clip", a.ClipAttrs(None, None), [X]),
    ("Clip", a.ClipAttrs(-3.0, 7.0), [value((3,), DType.INT8)]),
    (
        "Conv",
        a.ConvAttrs((2, 1), (1, 2), (1, 2, 0, 1), 2),
        [X, constant(np.ones((4, 2, 3, 3), np.float32)), VECTOR],
    ),
    ("Conv", a.ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0)), [X, value((5, 4, 1, 1))]),
    (
        "ConvTranspose",
        a.ConvTransposeAttrs((2, 2), (1, 1), (1, 0, 0, 1), (1, 0), 2),
        [X, constant(np.ones((4, 2, 3, 3), np.float32))],
    ),
    (
        "Gemm",
        a.GemmAttrs(0.5, 2.0, trans_a=True, trans_b=True),
        [value((3, 2)), value((5, 3)), value((5,))],
    ),
    ("Gemm", a.GemmAttrs(), [value((2, 3)), value((3, 5))]),
    ("SwiGLU", a.AlphaAttrs(HALF), [X, X]),
    (
        "AveragePool",
        a.PoolAttrs((3, 2), (2, 1), (1, 1), (1, 0, 1, 1), ceil_mode=True, count_include_pad=True),
        [X],
    ),
    ("AveragePool", a.PoolAttrs((2, 2), (1, 1), (2, 1), (0, 0, 0, 0)), [X]),
    ("MaxPool", a.PoolAttrs((3, 3), (2, 2), (2, 1), (1, 1, 1, 1), ceil_mode=True), [X]),
    *(
        (name, a.ReduceAttrs((1, 3), keepdims=keep), [X])
        for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
        for keep in (True, False)
    ),
    ("ReduceMean", a.ReduceAttrs(()), [value(())]),
    ("Softmax", a.SoftmaxAttrs((2,)), [X]),
    ("LogSoftmax", a.SoftmaxAttrs((3,)), [X]),
    ("LayerNormalization", a.NormAttrs(3, HALF), [X, constant(np.ones(6, np.float32))]),
    ("RMSNormalization", a.NormAttrs(3, HALF), [X, constant(np.ones(6, np.float32))]),
    ("InstanceNormalization", a.EpsilonAttrs(HALF), [X, VECTOR, VECTOR]),
    ("GroupNormalization", a.GroupNormAttrs(2, HALF), [X, VECTOR, VECTOR]),
    ("BatchNormalization", a.EpsilonAttrs(HALF), [X, VECTOR, VECTOR, VECTOR, VECTOR]),
    ("Resize", a.ResizeAttrs("nearest", "asymmetric", "floor", (1.0, 1.0, 2.0, 2.0), None), [X]),
    (
        "Resize",
        a.ResizeAttrs("linear", "align_corners", "round_prefer_floor", None, (2, 4, 9, 12)),
        [X],
    ),
    (
        "Resize",
        a.ResizeAttrs(
            "linear", "half_pixel_symmetric", "round_prefer_floor", (1.0, 1.0, HALF, 2.0), None
        ),
        [X],
    ),
    (
        "Resize",
        a.ResizeAttrs(
            "cubic",
            "half_pixel",
            "round_prefer_floor",
            (1.0, 1.0, 2.0, 2.0),
            None,
            cubic_coeff_a=-0.5,
            exclude_outside=True,
        ),
        [X],
    ),
    (
        "Resize",
        a.ResizeAttrs(
            "linear",
            "tf_crop_and_resize",
            "round_prefer_floor",
            None,
            (2, 4, 3, 3),
            extrapolation_value=HALF,
            roi=(0.0, 0.0, 0.25, 0.5, 1.0, 1.0, 0.75, 1.0),
        ),
        [X],
    ),
    ("Reshape", a.ReshapeAttrs((0, -1)), [X]),
    ("Reshape", a.ReshapeAttrs((0, 3), allow_zero=True), [value((0, 5))]),
    ("Reshape", a.ReshapeAttrs(None), [X, value((2,), DType.INT64)]),
    ("Expand", a.ExpandAttrs((2, 4, 6, 6)), [value((4, 1, 1))]),
    ("Expand", a.ExpandAttrs(None), [X, value((4,), DType.INT64)]),
    ("Transpose", a.TransposeAttrs((0, 2, 3, 1)), [X]),
    ("Squeeze", a.AxesAttrs((0, 2)), [value((1, 3, 1))]),
    ("Unsqueeze", a.AxesAttrs((0, 5)), [X]),
    ("Shape", a.ShapeAttrs(), [X]),
    ("Shape", a.ShapeAttrs(1, -1), [X]),
    ("Flatten", a.AxisAttrs(0), [X]),
    ("Flatten", a.AxisAttrs(4), [X]),
    ("Slice", a.SliceAttrs((1, -1), (2**63 - 1, -(2**63)), (0, 3), (1, -2)), [X]),
    ("Gather", a.AxisAttrs(1), [X, value((2, 2), DType.INT64)]),
    ("Concat", a.AxisAttrs(2), [X, X, X]),
    ("Split", a.SplitAttrs(1, (1, 3)), [X]),
    ("Pad", a.PadAttrs((0, 0, 1, 2, 0, 0, 0, -1)), [X]),
    ("Pad", a.PadAttrs((0, 0, 1, 2, 0, 0, 0, 1), value=-1.5), [X]),
    ("Pad", a.PadAttrs((0, 0, 1, 2, 0, 0, 0, 1), "reflect"), [X]),
    ("Pad", a.PadAttrs((0, 0, 1, 2, 0, 0, 0, 1), "wrap"), [X]),
    ("DepthToSpace", a.DepthSpaceAttrs(2, "CRD"), [X]),
    ("SpaceToDepth", a.DepthSpaceAttrs(2), [X]),
    ("Tile", a.TileAttrs((1, 2, 1, 3)), [X]),
    ("Cast", a.CastAttrs(DType.FLOAT16), [X]),
    ("Cast", a.CastAttrs(DType.INT4), [X]),
    ("QuantizeLinear", a.LinearAttrs(DType.UINT8), [X, value(())]),
    (
        "QuantizeLinear",
        a.LinearAttrs(DType.FLOAT8_E5M2, axis=2, saturate=False),
        [X, value((5,)), value((5,), DType.FLOAT8_E5M2)],
    ),
    ("DequantizeLinear", a.LinearAttrs(DType.FLOAT32), [value((2, 3), DType.INT8), value(())]),
    (
        "DequantizeLinear",
        a.LinearAttrs(DType.FLOAT32, axis=1, block_size=2),
        [value((2, 6), DType.INT4), value((2, 3)), value((2, 3), DType.INT4)],
    ),
    (
        "GroupQueryAttention",
        GroupQueryAttentionAttrs(4, 2, 0.25, do_rotary=True, local_window_size=8),
        [
            value((1, 3, 128)),
            None,
            None,
            *[value((1, 2, 5, 16))] * 2,
            value((1,), DType.INT32),
            value((), DType.INT32),
            *[value((32, 8))] * 2,
        ],
    ),
    ("Attention", AttentionAttrs(2, 1, 0.25, 3.0, True), [X3] * 3),
    ("Attention", AttentionAttrs(left_window_size=2, softmax_precision=11), [X] * 3),
    ("MultiHeadAttention", MultiHeadAttentionAttrs(2, 0.5, unidirectional=True), [X3] * 3),
    ("MergedAttention", MergedAttentionAttrs(2, (8, 8, 16), 0.5), [X3, value((8, 32))]),
    (
        "MoE",
        ExpertsAttrs(2, "silu"),
        [X3, value((6, 4)), value((4, 16, 8)), None, value((4, 8, 16))],
    ),
    (
        "QMoE",
        ExpertsAttrs(2, "silu", expert_weight_bits=8, accuracy_level=4),
        [
            X3,
            value((6, 4)),
            value((4, 16, 8), DType.UINT8),
            value((4, 16)),
            None,
            value((4, 8, 16), DType.UINT8),
            value((4, 8)),
        ],
    ),
    (
        "SparseAttention",
        SparseAttentionAttrs(4, 2, 16, do_rotary=True),
        [
            value((2, 3, 128)),
            None,
            None,
            value((2, 2, 32, 16)),
            value((2, 2, 32, 16)),
            value((1, 3), DType.INT32),
            value((1, 3), DType.INT32),
            value((1,), DType.INT32),
            value((2,), DType.INT32),
            value((32, 8)),
            value((32, 8)),
        ],
    ),
    ("CausalConvWithState", CausalConvAttrs("silu", 2), [X3, value((3, 1, 4))]),
    (
        "RotaryEmbedding",
        RotaryEmbeddingAttrs(2, 0, True),
        [X3, value((9, 2)), value((9, 2)), value((2, 3), DType.INT64)],
    ),
]


def identify(item: object) -> str:
    return item if isinstance(item, str) else ""


def test_every_codec_that_writes_is_tried() -> None:
    assert {name for name, _, _ in CASES} == set(BY_ROW), "write a case into CASES"


@pytest.mark.parametrize(("row", "attributes", "operands"), CASES, ids=identify)
def test_what_is_written_is_read_back(
    row: str, attributes: Any, operands: list[Value | None]
) -> None:
    results = len(attributes.sizes) if row == "Split" else 1
    lowest = since(row, attributes)
    for opset in range(lowest, NEWEST + 1):
        encoded = encode(row, attributes, operands, opset)
        node = view_of(encoded, opset, results)
        decoded = decode(node)
        assert decoded is not None
        assert (decoded.op_name, decoded.attributes) == (row, attributes)
        assert decoded.operands == operands
        onnx.checker.check_node(node.proto, checker_context(opset))
        if opset in (lowest, 21):
            model = model_of(node)
            if model.graph.output[0].type.tensor_type.HasField("shape"):
                onnx.checker.check_model(model, full_check=True)
    if lowest > 13:
        with pytest.raises(UnsupportedTargetError, match=row):
            encode(row, attributes, operands, lowest - 1)


def checker_context(opset: int) -> onnx.checker.C.CheckerContext:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = 10
    context.opset_imports = {"": opset, "com.microsoft": 1}
    return context


@pytest.mark.parametrize(
    ("row", "attributes", "opset"),
    [
        ("Gelu", a.GeluAttrs(), 20), ("LayerNormalization", a.NormAttrs(1, 0.1), 17),
        ("Mish", NO_ATTRIBUTES, 18), ("HardSwish", NO_ATTRIBUTES, 14),
        ("Swish", a.AlphaAttrs(1.0), 24), ("Relu", NO_ATTRIBUTES, 13),
        ("GroupNormalization", a.GroupNormAttrs(1, 0.1), 21),
        ("AveragePool", a.PoolAttrs((2,), (1,), (1,), (0, 0)), 13),
        ("AveragePool", a.PoolAttrs((2,), (1,), (2,), (0, 0)), 19),
        ("MaxPool", a.PoolAttrs((2,), (1,), (2,), (0, 0)), 13),
        ("Cast", a.CastAttrs(DType.INT2), 25),
    ],
    ids=str,
)  # fmt: skip
def test_the_opset_that_attributes_need(row: str, attributes: Attributes, opset: int) -> None:
    assert since(row, attributes) == opset


def test_softmax_over_several_axes_cannot_be_written() -> None:
    with pytest.raises(UnsupportedTargetError, match="one axis"):
        encode("Softmax", a.SoftmaxAttrs((1, 2)), [X], 13)


def test_a_mode_that_onnx_dropped_cannot_be_written() -> None:
    mode = a.ResizeAttrs("nearest", "tf_half_pixel_for_nn", "floor", (1.0, 1.0, 3.0, 3.0), None)
    with pytest.raises(UnsupportedTargetError, match="tf_half_pixel"):
        encode("Resize", mode, [X], 13)


def test_a_number_beyond_int64_is_refused() -> None:
    with pytest.raises(UnsupportedTargetError, match="extent"):
        encode("Reshape", a.ReshapeAttrs((1 << 70,)), [X], 17)
