"""The table as a whole: names, records, and that every row says what it computes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from onnx import defs

from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow
from qdqbridge.core.ops.composition import CompositionAttrs, Step
from qdqbridge.core.ops.table import BY_NAME, OPERATORS

MICROSOFT = {
    "GroupQueryAttention",
    "MergedAttention",
    "MoE",
    "MultiHeadAttention",
    "QMoE",
    "SparseAttention",
}
OURS = {
    "Composition",
    "Dense",
    "DynamicBlockDense",
    "DynamicConv",
    "DynamicDense",
    "quantize",
    "dequantize",
    "requantize",
    "reinterpret",
}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(OPERATORS)
    assert all(BY_NAME[row.name] is row for row in OPERATORS)


def test_the_mapping_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        BY_NAME["Conv"] = OPERATORS[0]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("row", OPERATORS, ids=lambda row: row.name)
def test_row_is_complete(row) -> None:
    assert row.numerics.strip().endswith(".")
    assert issubclass(row.attributes, Attributes) and is_dataclass(row.attributes)
    assert all(field.name.islower() for field in fields(row.attributes))


@pytest.mark.parametrize("row", OPERATORS, ids=lambda row: row.name)
def test_name_is_onnx_or_known_to_be_another(row) -> None:
    assert (row.name in OURS | MICROSOFT) != defs.has(row.name)


def test_movers_averages_and_dot_products_have_contracts() -> None:
    """Without one they would be computed in float32, which is not what they promise."""
    for row in OPERATORS:
        if row.flow in (Flow.MOVE, Flow.ACCUMULATE, Flow.AVERAGE, Flow.CONVERT):
            assert row.contract is not None, row.name


def test_condition_and_indices_are_no_data() -> None:
    assert [BY_NAME["Where"].is_data(i) for i in range(3)] == [False, True, True]
    assert [BY_NAME["Gather"].is_data(i) for i in range(2)] == [True, False]
    assert [BY_NAME["Resize"].is_data(i) for i in range(2)] == [True, False]
    assert all(BY_NAME["Concat"].is_data(i) for i in range(9))


@pytest.mark.parametrize("module", ["onnx", "onnxruntime", "tvm"])
def test_the_table_needs_neither_onnx_nor_tvm(module) -> None:
    code = f"import sys, qdqbridge.core.ops.table; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=240).returncode == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "row", [row for row in OPERATORS if row.flow is Flow.ELEMENTWISE], ids=lambda row: row.name
)
def test_elementwise_rows_keep_the_dtype(row, dtype) -> None:
    from qdqbridge.core.ops import attributes as records

    made = {
        records.AlphaAttrs: records.AlphaAttrs(0.5),
        records.AxisAttrs: records.AxisAttrs(0),
        records.ClipAttrs: records.ClipAttrs(-0.5, 0.5),
        records.GeluAttrs: records.GeluAttrs(),
        records.HardSigmoidAttrs: records.HardSigmoidAttrs(0.25, 0.5),
        records.SeluAttrs: records.SeluAttrs(1.5, 1.0),
        CompositionAttrs: CompositionAttrs((Step(BY_NAME["Erf"], NO_ATTRIBUTES, (0,)),)),
    }
    attributes = made[row.attributes] if row.attributes in made else row.attributes()
    x = np.asarray([0.25, 0.5, 2.0], dtype)
    binary = [op.name for op in OPERATORS if op.arity == 2] + ["Concat", "SwiGLU"]
    operands = [x, x] if row.name in binary else [x > 0, x, x] if row.name == "Where" else [x]
    (result,) = row.compute(attributes, operands)
    assert result.dtype == dtype
