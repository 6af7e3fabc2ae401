"""Operators of classical models on TVM, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.onnx_models import Array, Builder, canonical

pytestmark = pytest.mark.relax


def _same(b: Builder, *many: dict[str, Array]) -> None:
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph)
    for given in many:
        (found,), (wanted,) = executable.run(given).values(), qb.evaluate(graph, given).values()
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("shape", [("n", 4), (2, "n"), ("n",), (2, 3, "n")])
def test_chosen_features(shape: tuple[Any, ...]) -> None:
    b = Builder(21)
    x, y = b.input("x", shape), b.input("y", ["k"], TensorProto.INT64)
    b.output(b.op("ArrayFeatureExtractor", x, y, domain="ai.onnx.ml"), None)
    x = np.random.default_rng(0).normal(size=[4 if n == "n" else n for n in shape])
    _same(b, *({"x": x.astype(np.float32), "y": np.array(y)} for y in ([3, 0, 3], [1])))


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
def test_features_above_a_threshold(kind: str) -> None:
    elem = {"float32": 1, "float64": 11, "int32": 6, "int64": 7}[kind]
    b = Builder(21)
    x = b.input("x", ["n", 3], elem)
    b.output(b.op("Binarizer", x, domain="ai.onnx.ml", threshold=1.0), ["n", 3], elem)
    numbers = np.array([[0, 1, 2], [-1, 3, 1]], kind)
    _same(b, {"x": numbers}, {"x": numbers[:0]})


@pytest.mark.parametrize("shape", [("n", "c"), ("c",)])
def test_ngrams_of_rows_of_any_length(shape: tuple[str, ...]) -> None:
    """Shorter than an n-gram, or of nothing at all."""
    b = Builder(21)
    attributes: dict[str, Any] = {
        "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7], "ngram_counts": [0, 4],
        "ngram_indexes": [0, 1, 2, 3, 6, 5, 4], "min_gram_length": 1, "max_gram_length": 2,
        "max_skip_count": 2,
    }  # fmt: skip
    x = b.input("x", shape, TensorProto.INT64)
    b.output(b.op("TfIdfVectorizer", x, mode="TFIDF", **attributes), None)
    row = np.array([[1, 5, 6, 5, 7, 6, 7, 2, 8], [2, 2, 5, 6, 3, 7, 8, 6, 7]])
    row = row if len(shape) == 2 else row[0]
    _same(b, *({"x": row[..., :extent]} for extent in (9, 2, 1, 0)))
