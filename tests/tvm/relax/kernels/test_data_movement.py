"""Bytes laid out anew: every mover, tiles and their remainders, few channels, tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    PadAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.data_movement import match_data_movement
from qdqbridge.tvm.relax.kernels.kernel import KernelPlace
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand, target_of

X = params("uint8", 0.1, 3)


def _data(rng: np.random.Generator, shape: Any, kind: str = "uint8", p: Any = X) -> Operand:
    return Operand(every_code(rng, kind, shape), p)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_transposes(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_data_movement, cpu, threads=1 + (cpu == HOST))
    for shape, perm in (
        ((1, 3, 30, 31), (0, 2, 3, 1)),
        ((2, 9, 10, 3), (0, 3, 1, 2)),
        ((2, 4, 77), (0, 2, 1)),
        ((1, 65, 33), (0, 2, 1)),
        ((5, 7), (1, 0)),
        ((16, 16), (1, 0)),
        ((100, 19), (1, 0)),
        ((2, 3, 4, 5), (3, 1, 0, 2)),
        ((2, 3, 40, 5), (1, 0, 3, 2)),
        ((4, 6, 64), (1, 0, 2)),
        ((1, 20, 2000), (0, 2, 1)),
        ((1, 2, 20000), (0, 2, 1)),
        ((3, 1, 2), (2, 1, 0)),
    ):
        cases.add("Transpose", TransposeAttrs(perm), [_data(rng, shape)], X)
    cases.check()


def test_slices_pads_and_repetitions() -> None:
    rng = np.random.default_rng(1)
    cases = Cases(match_data_movement)
    data, big = _data(rng, (2, 9, 10, 70)), 1 << 40
    for attributes in (
        SliceAttrs((1, -50), (7, big), (1, 3), (1, 1)),
        SliceAttrs((8,), (-big,), (1,), (-2,)),
        SliceAttrs((3,), (69,), (3,), (3,)),
        SliceAttrs((1,), (2,), (0,), (1,)),
        SliceAttrs((69,), (-big,), (3,), (-1,)),
    ):
        cases.add("Slice", attributes, [data], X)
    for attributes in (
        PadAttrs((0, 1, 2, 3, 0, 4, 0, 1)),
        PadAttrs((0, -1, 2, -3, 0, 0, -2, 5), value=1.7),
        PadAttrs((1, 0, 0, 0, 0, 0, 0, 0), value=-99.0),
    ):
        cases.add("Pad", attributes, [data], X)
    cases.add("Tile", TileAttrs((1, 2, 1, 3)), [data], X)
    cases.add("Tile", TileAttrs((2, 1, 3, 1)), [_data(rng, (2, 3, 1, 1))], X)
    cases.add("Expand", ExpandAttrs((2, 3, 5, 33)), [_data(rng, (3, 1, 33))], X)
    cases.add("Expand", ExpandAttrs((4, 50)), [_data(rng, (4, 1))], X)
    cases.check()


def test_space_and_depth() -> None:
    rng = np.random.default_rng(2)
    cases = Cases(match_data_movement)
    for last in (False, True):
        for channels in (4, 12, 80):
            for mode in ("DCR", "CRD"):
                data = _data(rng, (2, channels, 3, 5))
                cases.add("DepthToSpace", DepthSpaceAttrs(2, mode), [data], X, last=last)
            data = _data(rng, (2, channels, 4, 6))
            cases.add("SpaceToDepth", DepthSpaceAttrs(2), [data], X, last=last)
    cases.check()


@pytest.mark.parametrize("permutes", [True, False])
def test_concat(permutes: bool) -> None:
    rng = np.random.default_rng(3)
    cases = Cases(match_data_movement, replace(HOST, permutes=permutes and HOST.permutes))
    other, narrow = params("uint8", 0.07, 250), params("uint8", 0.1, 3).with_range(50, 200)
    for axis in (0, 1, 3):
        operands = [_data(rng, (2, 3, 4, 30)), _data(rng, (2, 3, 4, 30), p=other)]
        cases.add("Concat", AxisAttrs(axis), [*operands, operands[0]], X)
        cases.add("Concat", AxisAttrs(axis), operands, narrow, last=axis == 1)
    cases.check()


def test_split() -> None:
    rng = np.random.default_rng(4)
    data = every_code(rng, "uint8", (2, 70, 3))
    type_ = QuantType(X, data.shape)
    shapes = [(2, 10, 3), (2, 59, 3), (2, 1, 3)]
    outputs = [Value(QuantType(X, shape), "y") for shape in shapes]
    node = Node(BY_NAME["Split"], SplitAttrs(1, (10, 59, 1)), [Value(type_, "x")], outputs)
    kernel = match_data_movement(node, KernelPlace(HOST, channels_last=False))
    assert kernel is not None
    function = kernel.build(kernel.description).with_attr("global_symbol", "split")
    library: Any = tvm.compile(tvm.IRModule({"split": function}), target=target_of(HOST))
    results = [tvm.runtime.tensor(np.zeros(shape, np.uint8)) for shape in shapes]
    library["split"](tvm.runtime.tensor(data), *results)
    for wanted, got in zip(np.split(data, [10, 69], axis=1), results, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_open_batches() -> None:
    rng = np.random.default_rng(5)
    for threads in (1, 2):
        cases = Cases(match_data_movement, opened=True, threads=threads)
        data = _data(rng, (3, 5, 6, 9))
        cases.add("Transpose", TransposeAttrs((0, 2, 3, 1)), [data], X)
        cases.add("Slice", SliceAttrs((1,), (4,), (1,), (2,)), [data], X)
        cases.add("Pad", PadAttrs((0, 1, 0, 0, 0, 1, 2, 0)), [data], X)
        cases.add("Concat", AxisAttrs(1), [data, data], X)
        cases.add("DepthToSpace", DepthSpaceAttrs(2), [_data(rng, (3, 8, 3, 4))], X, last=True)
        cases.add(
            "Transpose", TransposeAttrs((1, 0, 2, 3)), [_data(rng, (3, 3, 2, 2))], X, needed=False
        )
        assert cases.refused == 1
        cases.check()


def test_what_is_refused() -> None:
    rng = np.random.default_rng(6)
    cases = Cases(match_data_movement)
    wide = Operand(every_code(rng, "int32", (2, 3)), params("int32", 0.1))
    cases.add("Transpose", TransposeAttrs((1, 0)), [wide], wide.params, needed=False)
    cases.add("Pad", PadAttrs((0, 1, 0, 0), "edge"), [_data(rng, (2, 3))], X, needed=False)
    channels = params("uint8", [0.1, 0.2], [1, 2], axis=0)
    operands = [_data(rng, (2, 3), p=channels), _data(rng, (2, 3))]
    cases.add("Concat", AxisAttrs(1), operands, X, needed=False)
    assert cases.refused == 3
