"""Divided modules are compiled with the kernels of the whole, whatever a table takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from tests.places import MODELS

pytest.importorskip("tvm")

import tvm_ffi
from tvm import tirx

from qdqbridge.tvm.byoc import canonical, compare_regions, partition
from qdqbridge.tvm.byoc.table import Table
from qdqbridge.tvm.relax.kernels.plan import WORK
from qdqbridge.tvm.relax.read import read_function

pytestmark = pytest.mark.relax
NAME = "interpreted"
MODELS_OF_DIGITS = (
    "digits_cnn_u8s8_per_channel", "digits_cnn_s8s8_per_tensor", "digits_attention_u8s8_per_channel"
)  # fmt: skip
_RELATIVES = 100


def _computed(graph: Graph, count: int, *tensors: Any) -> None:
    """Runs a region: its inputs, and then the tensors of its results."""
    given = {v.name: np.from_dlpack(t) for v, t in zip(graph.inputs, tensors, strict=False)}
    for tensor, result in zip(tensors[count:], qb.evaluate(graph, given).values(), strict=True):
        tensor.copyfrom(result)


@tvm_ffi.register_global_func(f"relax.ext.{NAME}", override=True)
def _in_the_interpreter(regions: Sequence[Any], options: Any, names: Any) -> list[Any]:
    del options, names
    for region in regions:
        graph = read_function(region, where="a region")
        run = partial(_computed, graph, len(graph.inputs))
        tvm_ffi.register_global_func(str(region.attrs["global_symbol"]), run, override=True)
    return []


def _table(rng: np.random.Generator) -> Table:
    names = [entry.name for entry in canonical().entries]
    chosen = rng.random(len(names)) < rng.choice([0.1, 0.5, 0.9])
    return canonical(NAME).only(*(n for n, taken in zip(names, chosen, strict=True) if taken))


def _kernels(executable: Any) -> set[str]:
    return {
        variable.name_hint
        for variable, function in executable.module.functions.items()
        if isinstance(function, tirx.PrimFunc) and WORK in (function.attrs or {})
    }


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, _RELATIVES))],
)
def test_any_division_has_the_bits_of_the_whole(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = qb.load(MODELS / f"{MODELS_OF_DIGITS[seed % 3]}.onnx")
    divided, coverage = partition(qb.to_relax(graph)[0], _table(rng))
    x = {v.name: rng.normal(0, 1, (3, 1, 8, 8)).astype(np.float32) for v in graph.inputs}
    executable = qb.compile(divided, kernels="reference" if seed % 4 == 3 else "fast", threads=1)
    found, wanted = executable.run(x), qb.evaluate(graph, x)
    assert list(found) == list(wanted)
    for name, result in found.items():
        assert result.tobytes() == wanted[name].tobytes(), coverage.counts()


def test_what_a_table_leaves_has_the_kernels_of_the_whole() -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    divided, _ = partition(qb.to_relax(graph)[0], canonical(NAME).only("max_pool2d"))
    whole, rest = _kernels(qb.compile(graph, threads=1)), _kernels(qb.compile(divided, threads=1))
    assert {name for name in whole - rest if "max_pool" not in name} == set()


def test_what_is_wrong_with_a_division_is_said(tmp_path: Path) -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    divided, _ = partition(qb.to_relax(graph)[0], canonical("nobodys").only("conv2d"))
    with pytest.raises(UnsupportedTargetError, match="no code generator 'nobodys'") as error:
        qb.compile(divided)
    assert "relax.ext.nobodys" in error.value.why
    given: list[dict[str, Any]] = [
        {"extents": {"batch": 1}}, {"cache": tmp_path}, {"expose": graph.outputs},
    ]  # fmt: skip
    for more in given:
        with pytest.raises(InputDataError, match="without expose, extents and cache"):
            qb.compile(divided, **more)
    with pytest.raises(InputDataError, match="needs a graph, not str"):
        qb.compile("model.onnx")  # type: ignore[arg-type]
    with pytest.raises(InputDataError, match="function 'main'"):
        qb.compile(type(divided)({}))


def test_a_function_of_python_is_not_saved_and_its_errors_name_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    divided, _ = partition(qb.to_relax(graph)[0], canonical(NAME).only("dense"))
    executable = qb.compile(divided, threads=1)
    with pytest.raises(InputDataError, match="cannot save the executable") as error:
        executable.save(tmp_path / "divided.so")
    assert "a registered function of this process" in error.value.why
    assert not list(tmp_path.iterdir())
    (region,) = executable.regions

    def failing(graph: Graph, given: Any) -> None:
        raise ValueError(f"{len(given)} of {len(graph.inputs)}")

    monkeypatch.setattr(qb, "evaluate", failing)
    x = {v.name: np.zeros((3, 1, 8, 8), np.float32) for v in graph.inputs}
    with pytest.raises(UnsupportedTargetError, match="a region's function fails") as failed:
        executable.run(x)
    assert "failing" in str(failed.value)
    assert "ValueError: 1 of 1" in failed.value.why
    assert region in failed.value.fix


def test_the_region_whose_code_is_wrong_is_named() -> None:
    """And no other one, though its results are wrong as well in the whole network."""
    names = ("max_pool2d", "dense", "conv2d")
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    divided, _ = partition(qb.to_relax(graph)[0], canonical("wrong_pools").only(*names))

    def register(regions: Sequence[Any], options: Any, made: Any) -> list[Any]:
        _in_the_interpreter(regions, options, made)
        for region in regions:
            symbol = str(region.attrs["global_symbol"])
            if "max_pool2d" not in symbol:
                continue
            right = tvm_ffi.get_global_func(symbol)
            count = len(region.params)

            def wrong(*tensors: Any, right: Any = right, count: int = count) -> None:
                right(*tensors)
                for tensor in tensors[count:]:
                    codes: Any = np.from_dlpack(tensor)
                    tensor.copyfrom(codes ^ 1)

            tvm_ffi.register_global_func(symbol, wrong, override=True)
        return []

    tvm_ffi.register_global_func("relax.ext.wrong_pools", register, override=True)
    found = compare_regions(divided, extents={"batch": 3})
    assert len(found) > 2 and all(f.values for f in found)
    (wrong,) = (f for f in found if f.different)
    assert any("max_pool2d" in name for name in wrong.composites)
    assert (wrong.different, wrong.largest) == (wrong.values, 1)
    assert "differ, by 1 at most" in str(wrong)
