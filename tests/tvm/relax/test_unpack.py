"""qnn.unpack: its codes, and weights that stay packed on their way to TVM and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.onnx_io.tensors import from_bytes, raw_bytes
from qdqbridge.tvm.relax.files import write_module
from qdqbridge.tvm.relax.saved.reading import read_module
from tests.core.graph.graphs import apply, const, graph, plain, quant, typed
from tests.tvm.relax.dialect_cases import Cases


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("signed", [False, True])
def test_codes_come_in_the_order_of_files(bits: int, signed: bool) -> None:
    cases = Cases()
    for shape in ((5,), (3, 7), (2, 3, 1)):
        data = np.random.default_rng(bits).integers(0, 256, shape, np.uint8)
        places = [(data >> place) & ((1 << bits) - 1) for place in range(0, 8, bits)]
        codes = np.stack(places, -1).reshape(*shape[:-1], -1).astype(np.int16)
        if signed:
            codes = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes)
        wanted = codes.astype(np.int8 if signed else np.uint8)
        cases.add("qnn.unpack", [data], {"bits": bits, "signed": signed}, wanted)
    cases.check()


UNITS, INNER, BLOCK = 1030, 1024, 32


def network(stored: DType, *, packed: bool) -> Graph:
    """Returns a product with a weight that lies in bytes as a file has it, or in an array."""
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, UNITS * INNER // 2, np.uint8)
    weight = from_bytes(data, stored, (UNITS, INNER))
    if not packed:
        weight = Constant.of(np.array(weight.numpy()))
    scale = rng.uniform(0.01, 0.02, (UNITS, INNER // BLOCK)).astype(np.float32)
    params = quant(stored, scale, np.zeros_like(scale, np.int32), axis=1, block_size=BLOCK)
    value = const(np.zeros((UNITS, INNER), stored.numpy), params)
    value.constant = weight
    x = plain("x", ("n", INNER))
    return graph([x], apply("Dense", x, value, type_=typed(("n", UNITS))))


@pytest.mark.parametrize("keep_params", [False, True])
def test_a_large_weight_stays_packed_on_its_way_there_and_back(
    keep_params: bool, tmp_path: Path
) -> None:
    own = network(DType.INT4, packed=True)
    module, arrays = qb.to_relax(own, keep_params=keep_params)
    assert str(module["main"].script()).count('R.Tensor((1030, 1024), dtype="int8")') >= 1
    if keep_params:
        assert any(a.dtype == np.uint8 and a.shape == (UNITS, INNER // 2) for a in arrays.values())
    else:
        write_module(module, tmp_path / "m.json")
        module = read_module(tmp_path / "m.json")
    back = qb.from_relax(module, arrays)
    texts = [g.text().splitlines()[1:] for g in (back, own, network(DType.INT4, packed=False))]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("stored", [DType.INT4, pytest.param(DType.UINT4, marks=pytest.mark.slow)])
def test_a_packed_weight_is_multiplied_as_an_unpacked_one(stored: DType) -> None:
    x = np.random.default_rng(1).normal(0, 1, (3, INNER)).astype(np.float32)
    results = [
        qb.compile(network(stored, packed=packed)).run({"x": x}).popitem()[1]
        for packed in (True, False)
    ]
    assert np.array_equal(results[0], results[1])
    held = network(stored, packed=True).nodes[0].operand(1).constant
    assert held is not None and raw_bytes(held) == raw_bytes(Constant.of(held.numpy()))
