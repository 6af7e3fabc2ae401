"""What shipped tables take of a CNN of every kind of layer, quantized by onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.byoc.coverage import Coverage
from qdqbridge.tvm.byoc.model import partition_model, partition_shipped
from qdqbridge.tvm.relay.emit import emit
from qdqbridge.tvm.relay.tables import TABLES
from tests.onnx_models import Builder, canonical
from tests.tvm.relay.gated_cnn import VARIANTS, quantized

VAGUE = ("its own check refuses", "its own check fails")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, qb.Graph]:
    folder = tmp_path_factory.mktemp("gated_cnn")
    return {variant: qb.load(quantized(folder, variant)) for variant in VARIANTS}


def figures(coverage: Coverage) -> tuple[int, int, int]:
    """Returns composites, regions and operators left."""
    composites = [item for item in coverage.taken if not item.entry.startswith("operator ")]
    return len(composites), len(coverage.regions), len(coverage.left)


def explained(coverage: Coverage) -> bool:
    reasons = [reason for item in coverage.left for reason in item.reasons]
    told = all(item.reasons for item in coverage.left)
    return told and not any(word in reason for word in VAGUE for reason in reasons)


@pytest.mark.parametrize(
    ("variant", "table", "rewrite", "wanted"),
    [
        ("s8s8", "ethos-u", False, (22, 1, 2)), ("u8s8", "ethos-u", True, (22, 1, 2)),
        ("s8s8", "cmsis-nn", False, (12, 4, 24)), ("u8s8", "cmsis-nn", True, (13, 4, 22)),
        ("u8s8", "ethos-n", False, (16, 3, 10)),
        ("u8u8-pt", "arm_compute_lib", False, (9, 4, 24)),
        ("s8s8", "dnnl", True, (8, 4, 14)),
        ("u8s8", "vsi_npu", False, (26, 1, 0)), ("s8s8", "mrvl", False, (19, 4, 4)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [
            ("s8s8-sym", "ethos-u", False, (22, 1, 2)), ("u8s8", "ethos-u", False, (13, 3, 21)),
            ("u8s8", "cmsis-nn", False, (0, 0, 54)), ("u8s8", "dnnl", False, (8, 4, 14)),
            ("u8s8", "arm_compute_lib", False, (1, 4, 48)),
        ]),
    ],
)  # fmt: skip
def test_figures(
    models: dict[str, qb.Graph], variant: str, table: str, rewrite: bool,
    wanted: tuple[int, int, int],
) -> None:  # fmt: skip
    found = partition_model(models[variant], table, dialect="relay", rewrite=rewrite)
    assert figures(found.coverage) == wanted
    assert explained(found.coverage)


def reasons(graph: qb.Graph, table: str) -> str:
    coverage = partition_model(graph, table, dialect="relay").coverage
    return "\n".join(reason for item in coverage.left for reason in item.reasons)


def test_reasons_name_what_is_in_the_way(models: dict[str, qb.Graph]) -> None:
    assert "the data is uint8, int8 is taken" in reasons(models["u8s8"], "ethos-u")
    assert "the zero point of the weight is not 0" in reasons(models["u8u8-pt"], "cmsis-nn")
    assert "1/256 and -128 of int8" in reasons(models["s8s8"], "cmsis-nn")
    assert "16 scales, one for the tensor" in reasons(models["u8s8"], "arm_compute_lib")
    assert "the table leaves concatenations out" in reasons(models["u8s8"], "arm_compute_lib")
    assert "the result is int8, uint8 is taken" in reasons(models["s8s8"], "dnnl")


@pytest.mark.parametrize("table", ["cmsis-nn", "ethos-u"])
def test_an_operator_that_relay_has_not_is_named(table: str) -> None:
    b = Builder()
    y = b.op("Mul", b.qdq(b.input("x", [1, 4, 4, 2]), 2**-5, 0, np.int8), b.init(np.float32(0.7)))
    b.output(b.qdq(y, 2**-4, 0, np.int8))
    coverage = partition_model(canonical(b.model()), table, dialect="relay").coverage
    (left,) = [item for item in coverage.left if item.operator == "qnn.mul"]
    assert left.kind == "refused" and "it is qnn.qdq_mul" in left.reasons[0]


@pytest.mark.parametrize("table", ["cmsis-nn", "ethos-n", "ethos-u", "vsi_npu"])
def test_channels_first_convolutions_are_not_taken(models: dict[str, qb.Graph], table: str) -> None:
    module: Any = emit(models["s8s8"], "tflite", "NCHW")[0]
    _, coverage = partition_shipped(module, TABLES[table])
    assert not any("qnn.conv2d" in item.operators for item in coverage.taken)
    assert explained(coverage)


def test_a_table_that_does_not_exist_is_named(models: dict[str, qb.Graph]) -> None:
    with pytest.raises(UnsupportedTargetError, match="no table 'shl'") as error:
        partition_model(models["s8s8"], "shl", dialect="relay")
    assert "cmsis-nn" in str(error.value)


def test_a_check_is_guarded_only_where_it_must_be() -> None:
    for table in TABLES.values():
        with table.shims():
            names = {name.removeprefix(f"{table.name}.") for name, *_ in table.patterns()}
        assert set(table.guards) <= names
        known = names | {n.removeprefix(f"{table.name}.") for n, *_ in table.others()}
        assert set(table.reasons) <= known, table.name


def test_shims_leave_nothing_behind(models: dict[str, qb.Graph]) -> None:
    from tvm.relay.op.contrib import _ethosn, cmsisnn

    partition_model(models["s8s8"], "ethos-n", dialect="relay")
    assert not hasattr(_ethosn, "conv2d")
    assert not hasattr(cmsisnn, "GetEffectiveConv2DPadding")
