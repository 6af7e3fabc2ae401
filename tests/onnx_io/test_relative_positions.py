"""RelativePositionBias, which onnxruntime computes on CUDA only: its tests, and T5's formula."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.targets.profiles.export import exported_proto
from tests.onnx_io.lowering_cases import MS, Array, ort_run
from tests.onnx_models import Builder, canonical, check_carried, run

BUCKETS, HEADS, LENGTH = 32, 3, 40


def model(table: Array, reach: int, *, both: bool, opset: int = 17) -> onnx.ModelProto:
    """The bias of as many queries and keys as the model's input has columns."""
    b = Builder(opset)
    tokens = b.input("tokens", ["batch", "length"], onnx.TensorProto.INT64)
    length = b.op("Gather", b.op("Shape", tokens), b.init(np.array([1])))
    at = {"max_distance": reach, "is_bidirectional": int(both)}
    bias = b.op("RelativePositionBias", b.init(table), length, length, domain=MS, **at)
    b.output(bias, [1, table.shape[1], "length", "length"])
    return b.model()


def by_heads(table: Array) -> Array:
    """A table of numbers per bucket and head, as onnxruntime stores it: by heads."""
    return np.ascontiguousarray(table.T).reshape(table.shape)


def tokens(length: int) -> dict[str, Array]:
    return {"tokens": np.zeros((1, length), np.int64)}


def bucket(away: int, buckets: int, reach: int, *, both: bool) -> int:
    """The bucket of a key ``away`` behind its query: T5's formula, logarithms in float64."""
    first = 0
    if both:
        buckets //= 2
        first, away = buckets if away > 0 else 0, abs(away)
    else:
        away = -min(away, 0)
    exact = buckets // 2
    if away < exact:
        return first + away
    share = math.log(away / exact) / math.log(reach / exact)
    return first + min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)


@pytest.mark.parametrize(
    ("heads", "both", "expected"),
    [
        (2, True, [1, 7, 3, 1, 2, 8, 4, 2]),
        (3, True, [1, 10, 4, 1, 2, 11, 5, 2, 3, 12, 6, 3]),
        (3, False, [1, 1, 4, 1, 2, 2, 5, 2, 3, 3, 6, 3]),
    ],
)
def test_onnxruntimes_own_examples(heads: int, both: bool, expected: list[int]) -> None:
    """Those of its test/contrib_ops/relative_attention_bias_test.cc."""
    table = np.arange(1, 4 * heads + 1, dtype=np.float32).reshape(4, heads)
    (found,) = run(canonical(model(by_heads(table), 128, both=both)), tokens(2))
    assert found.shape == (1, heads, 2, 2)
    assert found.reshape(-1).tolist() == expected


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("reach", [20, 128])
def test_every_distance_has_the_bucket_of_the_formula(reach: int, both: bool) -> None:
    table = np.random.default_rng(0).standard_normal((BUCKETS, HEADS)).astype(np.float32)
    graph = canonical(model(by_heads(table), reach, both=both))
    length = 3 * reach
    (found,) = run(graph, tokens(length))
    for key in range(-length + 1, length):
        row = table[bucket(key, BUCKETS, reach, both=both)]
        query = max(0, -key)
        assert np.array_equal(found[0, :, query, query + key], row), key
    (again,) = ort_run(exported_proto(graph), tokens(length))
    assert np.array_equal(again, found)


@pytest.mark.relax
def test_it_runs_on_tvm() -> None:
    table = np.random.default_rng(1).standard_normal((BUCKETS, HEADS)).astype(np.float32)
    graph = canonical(model(by_heads(table), 20, both=True))
    executable = qb.compile(graph)
    for length in (1, LENGTH):
        (found,) = executable.run(tokens(length)).values()
        (expected,) = run(graph, tokens(length))
        assert np.array_equal(found, expected)


def test_the_opset_of_a_file_does_not_matter() -> None:
    table = np.zeros((BUCKETS, HEADS), np.float32)
    graphs = [canonical(model(table, 128, both=True, opset=opset)) for opset in (9, 13, 21)]
    assert len({graph.digest for graph in graphs}) == 1
    assert canonical(exported_proto(graphs[0])).digest == graphs[0].digest


@pytest.mark.parametrize(("buckets", "reach"), [(2, 128), (32, 8), (32, 5000)])
def test_what_no_table_is_made_of_is_carried(buckets: int, reach: int) -> None:
    check_carried(model(np.zeros((buckets, HEADS), np.float32), reach, both=True), "no table")
