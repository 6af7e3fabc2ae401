"""ONNX's own node tests: attributes compute what ONNX expects, in one form at every opset."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.onnx_io.codecs import BY_ONNX, NodeView, decode, encode, since
from tests.onnx_io.codec_nodes import view_of
from tests.onnx_io.version_spellings import models, single_nodes
from tests.onnx_models import canonical

KNOWN = {
    # onnx rounds the expected values of this one to four digits.
    "test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-3,
}
ORT_DIFFERS = {
    # onnxruntime divides by (length - 1) of the rounded length, onnx by that of the exact one;
    # the operator table follows onnxruntime, whose own test run leaves these two out.
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}


# Without a case of one node; the last one is onnxruntime's. It and rows of com.microsoft are held
# to onnxruntime in test_lowering_fused.py and tests/ops.
WITHOUT_CASES = ("Upsample", "SequenceAt", "SimplifiedLayerNormalization")


def array(data: Any) -> np.ndarray[Any, Any]:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


def node_of(case: Any) -> tuple[NodeView, list[Any]] | None:
    """The node with its inputs as constants, and the results expected; None for odd types."""
    inputs, outputs = case.data_sets[0]
    if any(isinstance(data, (list, type(None))) for data in outputs):
        return None  # sequences and optionals
    proto, opset = onnx.NodeProto(), case.model.opset_import[0].version
    proto.CopyFrom(case.model.graph.node[0])
    if proto.op_type == "LayerNormalization":
        del proto.output[1:]  # the statistics, which every case asks for
    names = [value.name for value in case.model.graph.input]
    values: dict[str, Value] = {}
    for name, data in zip(names, map(array, inputs), strict=True):
        type_ = TensorType(DType.of(data.dtype), data.shape)
        values[name] = Value(type_, name, constant=Constant.of(data))
    results = [array(data) for data in outputs]
    operands = [values[name] if name else None for name in proto.input]
    view = NodeView(proto, opset, operands, case.name)
    return view, results


@pytest.mark.parametrize("op_type", sorted({name for domain, name in BY_ONNX if not domain}))
@pytest.mark.filterwarnings("ignore")
def test_attributes_mean_what_onnx_means(op_type: str) -> None:
    tried = 0
    for case in single_nodes().get(op_type, []):
        if case.name in ORT_DIFFERS:
            continue
        viewed = node_of(case)
        decoded = None if viewed is None else decode(viewed[0])
        if viewed is None or decoded is None:
            continue
        node, expected = viewed
        operands = [v and v.constant and v.constant.numpy() for v in decoded.operands]
        computed = BY_NAME[decoded.op_name].compute(decoded.attributes, operands)
        for have, want in zip(computed, expected, strict=False):
            check(case.name, have, want)
        opset = max(node.opset, since(decoded.op_name, decoded.attributes))
        encoded = encode(decoded.op_name, decoded.attributes, decoded.operands, opset)
        again = decode(view_of(encoded, opset, len(node.proto.output)))
        assert again is not None and again.attributes == decoded.attributes, case.name
        tried += 1
    assert tried or op_type in WITHOUT_CASES, "no case was tried"


_FORMS = 3
_ONE_VERSION = {
    "BitCast", "CausalConvWithState", "CumProd", "LinearAttention", "SwiGLU", "TensorScatter",
}  # fmt: skip
_WITHOUT_CASES = {
    "ConcatFromSequence", "GlobalLpPool", "Loop", "MaxRoiPool", "MeanVarianceNormalization",
    "Multinomial", "Optional", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "STFT", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
    "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
}  # fmt: skip
"""Operators of which ONNX has no case of tensors that two of its versions take."""
_OPERATORS = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}


@pytest.mark.parametrize("op_type", sorted(_OPERATORS - _ONE_VERSION - _WITHOUT_CASES))
@pytest.mark.filterwarnings("ignore")
def test_every_version_that_means_the_same_has_one_digest(op_type: str) -> None:
    """Operators with a row and those without one; three of ONNX's cases of each."""
    cases = single_nodes().get(op_type, [])
    compared = 0
    for index, case in enumerate(cases[:: max(1, len(cases) // _FORMS)][:_FORMS]):
        found = {opset: canonical(made).digest for opset, made in models(case, index % _FORMS)}
        assert len(set(found.values())) <= 1, (case.name, found)
        compared += len(found) > 1
    assert compared, "no case has two versions"


def check(name: str, have: Any, want: Any) -> None:
    assert have.shape == want.shape, name
    if want.dtype == object:
        assert (have == want).all(), name
        return
    # onnx computes its examples with NumPy: sums in another order, halves rounded at other steps.
    coarse = DType.of(want.dtype).is_float and want.dtype.itemsize < 4
    tolerance = KNOWN.get(name, 5e-3 if coarse else 1e-5)
    np.testing.assert_allclose(
        have.astype(np.float64), want.astype(np.float64), tolerance, tolerance, err_msg=name
    )
