"""Carried operators that TVM's importer would compute as something else are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Graph
from tests.onnx_models import Builder, canonical

pytestmark = pytest.mark.relax
Make = Callable[[Builder, bool], None]
"""Adds a node and its outputs, in the spelling that TVM gets wrong or in one that it gets right."""


def resize(b: Builder, wrong: bool) -> None:
    scales = b.init(np.array([1, 1, 0.5, 0.5], np.float32))
    x = b.input("x", [1, 1, 4, 4])
    b.output(b.op("Resize", x, "", scales, mode="linear", antialias=int(wrong)), [1, 1, 2, 2])


def is_inf(b: Builder, wrong: bool) -> None:
    found = b.op("IsInf", b.input("x", [3]), detect_negative=int(not wrong))
    b.output(found, [3], TensorProto.BOOL)


def layer_normalization(b: Builder, wrong: bool) -> None:
    x, scale = b.input("x", [2, 4]), b.init(np.ones(4, np.float32))
    y = b.op("LayerNormalization", x, scale, outputs=2 if wrong else 1)
    b.output(y, [2, 4])
    if wrong:
        b.output(f"{y}:1", [2, 1])


def suppression(b: Builder, wrong: bool) -> None:
    limits = [b.init(np.array([3])), b.init(np.array([0.5], np.float32))]
    score = b.init(np.array([0.4 if wrong else 0], np.float32))
    boxes, scores = b.input("x", [1, 6, 4]), b.input("scores", [1, 1, 6])
    chosen = b.op("NonMaxSuppression", boxes, scores, *limits, score)
    b.output(chosen, ["n", 3], TensorProto.INT64)


def graph_of(make: Make, wrong: bool) -> Graph:
    b = Builder(18 if make is resize else 17)
    make(b, wrong)
    return canonical(b.model())


@pytest.mark.parametrize("make", [resize, is_inf, layer_normalization, suppression])
def test_what_the_importer_gets_wrong_is_refused(make: Make) -> None:
    with pytest.raises(UnsupportedTargetError, match="cannot be emitted") as error:
        qb.to_relax(graph_of(make, True))
    assert "would compute it wrongly" in error.value.why
    module, _ = qb.to_relax(graph_of(make, False))
    assert "main" in [variable.name_hint for variable in module.functions]
