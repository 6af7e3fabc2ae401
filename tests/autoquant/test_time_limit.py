"""Bits per layer for a limit of time: kernels timed in TVM and in onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.judging import node_times
from qdqbridge.app.quantizing import Quantization
from qdqbridge.autoquant.search import time_limit
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.targets.engines.kinds import NodeTime
from tests.autoquant.float_models import images, slow_layer
from tests.places import MODELS

LARGE = "node_conv_5"
ENGINES = [pytest.param("tvm", marks=pytest.mark.relax), "onnxruntime"]


@cache
def made() -> Quantization:
    return slow_layer()


def on_one_thread(engine: str, graph: Graph) -> Sequence[NodeTime]:
    return node_times(engine, graph, {"x": images(1)}, threads=1)


@cache
def times(engine: str, target: str = "a16w8") -> Sequence[NodeTime]:
    return on_one_thread(engine, made().graph if target == "a16w8" else slow_layer(target).graph)


@cache
def limit(engine: str) -> float:
    """Returns what the large layer keeps with 8 bits alone: between what it takes and with 16.

    With AMX it takes a fortieth where all is 8 bits, and a fourth between neighbours of 16.
    """
    slow, fast = (max(t.seconds for t in times(engine, name)) for name in ("a16w8", "qnn"))
    return max((slow * fast) ** 0.5, 0.3 * slow)


def bits(graph: Graph, name: str) -> int:
    """Returns the bits of what a node reads."""
    node = next(node for node in graph.nodes if node.name == name)
    quant = node.operand(0).quant
    return 32 if quant is None else quant.params.storage_dtype.bits


@pytest.mark.parametrize("engine", ENGINES)
def test_nodes_are_timed_by_the_names_of_the_model(engine: str) -> None:
    slowest = max(times(engine), key=lambda each: each.seconds)
    assert {LARGE, "relu_6_quantized", "relu_6_quantized_float"} & set(slowest.names)
    others = sum(each.seconds for each in times(engine)) - slowest.seconds
    assert slowest.seconds > others


@pytest.mark.parametrize(
    "engine", [pytest.param("tvm", marks=[pytest.mark.relax, pytest.mark.slow]), "onnxruntime"]
)
def test_a_slow_node_gets_fewer_bits_with_its_neighbours_where_that_needs_them(engine: str) -> None:
    """It gets 8 bits; or floats, which are nearer, where they are as fast (TVM without VNNI)."""
    assert bits(made().graph, LARGE) == 16
    found, slowest, wanted = made(), 0.0, 8
    for _ in range(6):  # what else the machine does may slow the limit's timing, or the search's
        limit.cache_clear()
        times.cache_clear()
        try:
            found = made().within(max_node_seconds=limit(engine), engine=engine, threads=1)
        except InputDataError:  # the machine has become slower since the limit was measured
            continue
        slowest = max(each.seconds for each in on_one_thread(engine, found.graph))
        assert found.fallback is not None
        times_of = {p.name: p.slowest_milliseconds or 0.0 for p in found.fallback.pareto}
        wanted = 32 if times_of["of 4 layers 4 in float"] <= 1e3 * limit(engine) else 8
        if bits(found.graph, LARGE) == wanted and slowest <= limit(engine):
            break
    assert found.fallback is not None
    assert bits(found.graph, LARGE) == wanted
    assert slowest <= limit(engine)
    first = next(each for each in found.fallback.reverted if each.layer.name == LARGE)
    assert first.to == {8: "uint8", 32: "float"}[wanted]
    assert first.reason.startswith("no node above ") and f"s on {engine}: " in first.reason
    points = found.fallback.pareto
    assert [p.slowest_milliseconds for p in points] == sorted(
        p.slowest_milliseconds or 0 for p in points
    )
    assert len(points) >= 5
    assert {p.name for p in points} >= {"as quantized", "of 4 layers 4 in float"}
    chosen = next(p for p in points if (p.slowest_milliseconds or 1e9) <= 1e3 * limit(engine))
    assert chosen.sqnr_db > 30


@pytest.mark.parametrize(
    "engine", [pytest.param("tvm", marks=[pytest.mark.relax, pytest.mark.slow]), "onnxruntime"]
)
def test_what_is_fast_enough_stays(engine: str) -> None:
    found = made().within(max_node_seconds=10.0, engine=engine)
    assert found.graph.digest == made().graph.digest


def test_nodes_that_nothing_makes_fast_enough_are_told_with_their_times() -> None:
    with pytest.raises(InputDataError) as raised:
        made().within(max_node_seconds=1e-6, engine="onnxruntime")
    assert "nodes take longer than 1 µs on onnxruntime" in raised.value.what
    why = raised.value.why
    assert why.startswith(f"Conv '{LARGE}'") or why.startswith(f"QLinearConv '{LARGE}")
    for kind in ("as quantized", "in uint8", "in int4 weights", "in float"):
        assert kind in why


def test_a_goal_that_the_time_leaves_no_room_for_is_refused() -> None:
    with pytest.raises(InputDataError, match="no bits per layer are no node above"):
        made().within(max_node_seconds=10.0, engine="onnxruntime", threads=1, min_sqnr=150.0)


def test_a_search_goes_on_where_it_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, most = tmp_path / "trials.json", limit("onnxruntime")
    timed: list[str] = []
    real = node_times

    def counted(
        engine: str, graph: Graph, inputs: dict[str, np.ndarray], threads: int | None
    ) -> list[NodeTime]:
        timed.append(graph.digest)
        return real(engine, graph, inputs, threads=threads)

    monkeypatch.setattr("qdqbridge.app.judging.node_times", counted)

    def stopping(done: int, total: int) -> None:
        assert done <= total
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made().within(
            max_node_seconds=most, engine="onnxruntime", threads=1, state=state, progress=stopping
        )
    before = list(timed)
    assert len(json.loads(state.read_text("utf-8"))["times"]) in (len(before), len(before) - 1)
    while True:
        try:
            found = made().within(
                max_node_seconds=most, engine="onnxruntime", threads=1, state=state
            )
            break
        except InputDataError:  # the machine has become slower since the limit was measured
            most *= 2
    assert before[0] not in timed[len(before) :]
    count = len(timed)
    again = made().within(max_node_seconds=most, engine="onnxruntime", threads=1, state=state)
    assert len(timed) == count
    assert again.graph.digest == found.graph.digest
    with pytest.raises(InputDataError, match="trials of another model, data or target"):
        made().within(max_node_seconds=most, engine="tvm", state=state)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(InputDataError, match="one search has one limit"):
        made().within(max_node_seconds=1.0, max_bytes=1000)
    with pytest.raises(InputDataError, match="no limit"):
        made().within(max_node_seconds=0.0)
    with pytest.raises(UnsupportedTargetError, match="no engine 'fast'"):
        made().within(max_node_seconds=1.0, engine="fast")


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, out, page = tmp_path / "x.npz", tmp_path / "out.onnx", tmp_path / "page.html"
    np.savez(data, input=np.load(MODELS / "digits_test.npz")["x"][:32])
    model = str(MODELS / "digits_mlp_float.onnx")
    plain = ["quantize", model, "--data", str(data), "-o", str(out), "--repair", "none"]
    plain += ["--chooser", "minmax", "--force", "--engine", "onnxruntime"]
    assert run([*plain, "--max-node-time", "2s", "--report", str(page)]) == 0
    assert "ms the slowest node" in capfd.readouterr().out
    assert "ms of the slowest node" in page.read_text("utf-8")
    assert len(qb.load(out).nodes) > 1
    for wrong in ("2", "fastms", "0ms"):
        assert run([*plain, "--max-node-time", wrong]) == 3
    assert run([*plain, "--max-node-time", "1us"]) == 3
    assert time_limit.TimeLimit(2e-3, "tvm").max_seconds == 0.002
