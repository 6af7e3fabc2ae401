"""What tiles of convolutions ask memory for before it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi

from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.executable import compile_relax
from qdqbridge.tvm.relax.kernels.codegen.processors import AVX512_VNNI
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.plan import plan
from qdqbridge.tvm.relax.kernels.tiles import direct
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from tests.core.graph.graphs import apply, const, stored
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import HOST

pytestmark = [
    pytest.mark.relax,
    pytest.mark.skipif(HOST != AVX512_VNNI, reason="its code does not run on this CPU"),
]
RECORD = "qdqbridge.tests.asked"
TARGET = {"kind": "llvm", "mcpu": "cascadelake"}
OWN = params("uint8", 0.05, 7)


def convolution(x: Value, channels: int, kernel: int) -> Value:
    assert x.type.shape is not None
    _, inner, *image = x.type.shape
    w = every_code(np.random.default_rng(channels), "int8", (channels, int(inner), kernel, kernel))
    attributes = ConvAttrs((1, 1), (1, 1), (kernel // 2,) * 4)
    type_ = QuantType(OWN, (1, channels, *image))
    return apply("Conv", x, const(w, params("int8", 0.003)), type_=type_, attributes=attributes)


def network(size: int, inner: int, channels: int, kernel: int) -> Graph:
    """A convolution, to whose codes others are added, and one that reads it channels-last."""
    x = stored("x", OWN, (1, inner, size, size))
    other = stored("o", OWN, (1, channels, size, size))
    total = apply("Add", convolution(x, channels, kernel), other, type_=other.type)
    graph = Graph([x, other], [convolution(total, 16, 1)], ["y"], [])
    Editor(graph).finish()
    return graph


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Where memory is asked for while kernels run that are made in a test, by element type."""
    found: dict[str, set[int]] = {"int8": set(), "uint8": set()}

    def record(weights: int, index: int) -> None:
        found["int8" if weights else "uint8"].add(index)

    def ask(buffer: Any, index: Any) -> None:
        weights = tirx.const(int(buffer.dtype == "int8"), "int64")
        T.evaluate(tirx.call_packed(RECORD, weights, index))

    tvm_ffi.register_global_func(RECORD, record, override=True)
    monkeypatch.setattr(direct, "ask", ask)
    return found


@pytest.mark.parametrize(
    ("size", "inner", "channels", "kernel", "steps"),
    [
        (7, 64, 128, 3, 2),  # four tiles of pixels, two blocks of channels in each
        (5, 64, 128, 3, 1),  # three tiles
        (14, 32, 96, 1, 4),  # fourteen tiles
        (14, 36, 96, 1, 1),  # nine steps are no multiple of two
        (3, 64, 128, 3, 0),  # one tile, which is the first
        (56, 16, 64, 1, 0),  # of many tiles, few wait for weights
        (7, 64, 16, 3, 0),  # no channels come next
    ],
)
def test_all_that_comes_next_is_asked_for(
    size: int, inner: int, channels: int, kernel: int, steps: int, asked: dict[str, set[int]]
) -> None:
    graph, rng = network(size, inner, channels, kernel), np.random.default_rng(1)
    feeds = {
        name: every_code(rng, "uint8", (1, depth, size, size))
        for name, depth in (("x", inner), ("o", channels))
    }
    got = compile_relax(graph, TARGET, threads=1).run(feeds)["y"]
    np.testing.assert_array_equal(got, evaluate(graph, feeds)[0]["y"])
    kernels = plan(graph, AVX512_VNNI).kernels.values()
    found = next(k.description for k in kernels if k.name.endswith("_add"))
    assert isinstance(found, tuple)
    (d,) = found
    assert isinstance(d, Direct) and d.asked_steps == steps
    block = d.runs[0] * d.runs[1] * d.steps * 64
    weights = set(range(d.tile_blocks * block, d.blocks * block, 64)) if steps else set[int]()
    assert weights <= asked["int8"] and bool(asked["int8"]) == bool(steps)
    first = d.tile_rows * d.column_parts.size  # pixels of the first tile
    starts = range(0, channels, d.tile_blocks * 16)
    added = {pixel * channels + c for pixel in range(first, size * size) for c in starts}
    assert added <= asked["uint8"]
