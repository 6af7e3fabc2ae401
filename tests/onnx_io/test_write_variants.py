"""Where one form has several forms, a file is written as it was: float bits depend on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import NO_ORIGIN
from qdqbridge.targets.profiles.export import exported_proto
from tests.onnx_models import Builder, canonical, load

Make = Callable[[Builder, str], str]
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


W, C, V = numbers(3, 2, 3, 3), numbers(3, 1, 1), numbers(6, 4)
IMAGE, ROWS, SEQUENCE = [1, 2, 8, 8], [5, 6], [1, 6, 9]
SPELLINGS: dict[str, tuple[list[int], Make]] = {
    "mean over space": (IMAGE, lambda b, x: b.op("ReduceMean", x, axes=[2, 3])),
    "pool": (IMAGE, lambda b, x: b.op("GlobalAveragePool", x)),
    "pool of a sequence": (SEQUENCE, lambda b, x: b.op("GlobalAveragePool", x)),
    "mean of a sequence": (SEQUENCE, lambda b, x: b.op("ReduceMean", x, axes=[2])),
    "convolution": (IMAGE, lambda b, x: b.op("Conv", x, b.init(W), b.init(C.reshape(3)))),
    "sum behind a convolution": (
        IMAGE, lambda b, x: b.op("Add", b.op("Conv", x, b.init(W)), b.init(C))
    ),
    "product": (ROWS, lambda b, x: b.op("MatMul", x, b.init(V))),
    "sum behind a product": (
        ROWS, lambda b, x: b.op("Add", b.op("MatMul", x, b.init(V)), b.init(numbers(4)))
    ),
    "gemm": (ROWS, lambda b, x: b.op("Gemm", x, b.init(V), b.init(numbers(4)))),
    "gemm of rows": (
        ROWS, lambda b, x: b.op("Gemm", x, b.init(V.T.copy()), b.init(numbers(4)), transB=1)
    ),
    "gemm without bias": (ROWS, lambda b, x: b.op("Gemm", x, b.init(V))),
}  # fmt: skip


def model(make: Make, shape: list[int]) -> onnx.ModelProto:
    b = Builder(13)
    b.output(make(b, b.input("x", shape)), None)
    return b.model()


def computed(proto: onnx.ModelProto, x: Any) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("name", SPELLINGS)
def test_files_are_written_as_they_were(name: str) -> None:
    shape, make = SPELLINGS[name]
    original = model(make, shape)
    graph = canonical(original)
    written = exported_proto(graph)
    assert [n.op_type for n in written.graph.node] == [n.op_type for n in original.graph.node]
    x = numbers(*shape)
    assert computed(written, x).tobytes() == computed(original, x).tobytes()
    assert canonical(written).digest == graph.digest


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mean over space", ["GlobalAveragePool"]),
        ("sum behind a convolution", ["Conv"]),
        ("sum behind a product", ["Gemm"]),
        ("gemm", ["Gemm"]),
        ("mean of a sequence", ["ReduceMean"]),
    ],
)
def test_other_sources_get_what_fuses(name: str, wanted: list[str]) -> None:
    shape, make = SPELLINGS[name]
    raw = load(model(make, shape))
    for node in raw.nodes:
        node.origin = NO_ORIGIN
    written = exported_proto(canonicalize(raw))
    assert [n.op_type for n in written.graph.node] == wanted


def test_quantized_means_of_sequences_are_pools() -> None:
    b = Builder(13)
    x = b.qdq(b.input("x", SEQUENCE), 0.05, 100)
    b.output(b.qdq(b.op("ReduceMean", x, axes=[2]), 0.02, 90))
    raw = load(b.model())
    for node in raw.nodes:
        node.origin = NO_ORIGIN
    graph = canonicalize(raw)
    written = exported_proto(graph)
    assert "GlobalAveragePool" in [n.op_type for n in written.graph.node]
    assert canonical(written).digest == graph.digest


def test_a_gemm_of_unknown_rank_that_no_file_wrote_is_a_gemm(tmp_path: Path) -> None:
    """The text of a graph says no variant; a MatMul would take more than matrices."""
    graph = qb.parse(
        "qnn-canonical 4\n"
        "input %x: float32\n"
        "%y = Gemm(%x, const float32[3,2] [1 4 2 5 3 6])"
        " {alpha=1, beta=1, trans_a=False, trans_b=True}: float32\n"
        "output %y\n"
    )
    qb.save(graph, file := tmp_path / "g.onnx")
    assert [node.op_type for node in onnx.load(file).graph.node] == ["Gemm"]
    assert qb.load(file).digest == graph.digest
