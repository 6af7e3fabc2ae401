"""Products of activations that are quantized in blocks while they run, on Relay: every bit."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.dynamic import BlockAttrs
from tests.core.graph.graphs import apply, const, graph, plain, quant, typed

pytest.importorskip("tvm.relay")


@pytest.mark.parametrize("inner", [64, 70])
def test_blocks_of_an_activation(inner: int) -> None:
    from qdqbridge.tvm.relay import emit
    from qdqbridge.tvm.relay.build import build

    rng, blocks = np.random.default_rng(inner), -(-inner // 32)
    codes = rng.integers(-8, 8, (5, inner)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, (5, blocks)).astype(np.float32)
    zeros = rng.integers(-3, 4, (5, blocks)).astype(np.int32)
    weight = const(codes, quant(DType.INT8, scale, zeros, axis=1, block_size=32))
    x = plain("x", (3, inner))
    y = apply("DynamicBlockDense", x, weight, type_=typed((3, 5)), attributes=BlockAttrs(32))
    found, data = graph([x], y), rng.normal(0, 1, (3, inner)).astype(np.float32)
    (name,) = found.output_names
    module, params = emit(found)
    np.testing.assert_array_equal(
        build(module, params).run({"x": data})[name], evaluate(found, {"x": data})[0][name]
    )
