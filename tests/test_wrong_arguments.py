"""Whatever a public function is given instead of an argument, its error is a QdqBridgeError."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb

pytestmark = pytest.mark.relax

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


class Opaque:
    """Nothing that anybody expects."""


class Broken:
    """An array that cannot be made."""

    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("it needs a gradient")


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None, "int": lambda: 3, "minus": lambda: -1, "huge": lambda: 10**30,
    "bool": lambda: True, "float": lambda: 1.5, "nan": lambda: float("nan"), "bytes": lambda: b"x",
    "str": lambda: "no such thing", "empty": lambda: "", "nul": lambda: "a\0b",
    "long": lambda: "a" * 5000, "half": lambda: "\ud800", "folder": lambda: ".",
    "path": lambda: Path("nope"), "array": lambda: np.zeros(3), "list": lambda: [1],
    "nested": lambda: [[None]], "names": lambda: ["nope"], "tuple": lambda: (1, 2),
    "set": lambda: {1}, "dict": dict, "numbers": lambda: {1: 2}, "named": lambda: {"x": "nope"},
    "broken": lambda: {"x": Broken()}, "opaque": Opaque, "class": lambda: int,
    "iterator": lambda: iter(()), "function": lambda: len, "objects": lambda: [Opaque()],
}  # fmt: skip


def dense(path: Path, *, quantized: bool) -> str:
    """Writes a model of one product."""
    tensors = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
    nodes, x = [helper.make_node("MatMul", ["x", "w"], ["y"])], helper.make_tensor_value_info
    if quantized:
        tensors += [numpy_helper.from_array(np.array(0.1, np.float32), "s")]
        tensors += [numpy_helper.from_array(np.array(3, np.uint8), "z")]
        nodes[0].output[0] = "f"
        nodes += [helper.make_node("QuantizeLinear", ["f", "s", "z"], ["q"])]
        nodes += [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    x_, y_ = ([x(name, TensorProto.FLOAT, ["n", 4])] for name in "xy")
    graph = helper.make_graph(nodes, "g", x_, y_, tensors)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return str(path)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[Callable[..., Any], Mapping[str, Any]]:
    """Arguments with which every public function works, by its parameters' names."""
    folder = tmp_path_factory.mktemp("right")
    model = dense(folder / "float.onnx", quantized=False)
    other = dense(folder / "quantized.onnx", quantized=True)
    graph, data = qb.load(other), {"x": X}
    executable, made = qb.compile(graph), qb.profile(model, data)
    executable.save(folder / "m.so")
    qb.save_profile(made, folder / "p.json")
    module, params = qb.to_relax(graph)
    out = folder / "out"
    return {
        qb.load: {"path": other}, qb.load_adapter: {"path": model},
        qb.save: {"graph": graph, "path": f"{out}.onnx", "overwrite": True},
        qb.save_encodings: {
            "graph": graph, "path": f"{out}.onnx", "encodings": f"{out}.encodings",
            "overwrite": True,
        },
        qb.parse: {"text": graph.text("inline")}, qb.explain: {"graph": graph},
        qb.unquantize: {"graph": graph},
        qb.view: {"model": graph, "path": f"{out}.html"},
        qb.blame: {"reference": model, "quantized": other, "data": data, "repairs": 0},
        qb.evaluate: {"graph": graph, "inputs": data},
        qb.compare: {"a": graph, "b": graph, "data": data},
        qb.open_engine: {"name": "no such engine", "source": other},
        qb.compile: {"graph": graph, "kernels": "no such kernels"},
        qb.load_executable: {"path": folder / "m.so"}, qb.to_relax: {"graph": graph},
        qb.from_relax: {"module": module, "params": params},
        qb.profile: {"model": model, "data": data}, qb.load_profile: {"path": folder / "p.json"},
        qb.save_profile: {"profile": made, "path": f"{out}.json"},
        qb.merge_profiles: {"profiles": [made]},
        qb.quantize: {"model": model, "data": data, "target": "no such target"},
        graph.text: {}, executable.run: {"inputs": data}, executable.save: {"path": f"{out}.so"},
    }  # fmt: skip


def calls(functions: Any) -> Iterator[tuple[Callable[..., Any], str, str]]:
    """Yields every function, parameter and wrong value."""
    for function in functions:
        for parameter in inspect.signature(function).parameters:
            called = parameter in ("progress", "checkpoint", "warn", "chooser", "metric")
            for wrong in WRONG:  # what somebody's own function raises is his
                if not (called and wrong in ("class", "function")):
                    yield function, parameter, wrong


def foreign(function: Any, right: Mapping[str, Any], parameter: str, wrong: str) -> str:
    """Calls a function with one wrong argument; returns what it should not have raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**{**right, parameter: WRONG[wrong]()})
    except qb.QdqBridgeError as error:
        return "" if error.what else "an empty message"
    except Exception as error:  # whatever else is a finding
        return f"{function.__name__}({parameter}={wrong}): {error!r:.200}"
    return ""


def test_the_arguments_are_right(right: dict[Any, Any]) -> None:
    """So that what is refused is refused for the one wrong argument."""
    assert {getattr(qb, name) for name in qb.__all__ if callable(getattr(qb, name))} - {
        qb.Executable, qb.Comparison, qb.Graph, qb.QdqBridgeError
    } <= set(right)  # fmt: skip
    refused = {qb.load_adapter, qb.open_engine, qb.compile, qb.quantize}
    for function, arguments in right.items():
        if function not in refused:
            function(**arguments)


def test_errors_are_ours(
    right: dict[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    every = list(calls(right))
    chosen = np.random.default_rng(0).permutation(len(every))[:500]
    found = [foreign(f, right[f], p, w) for f, p, w in (every[i] for i in chosen)]
    assert not [each for each in found if each]


@pytest.mark.slow
def test_errors_are_ours_in_every_call(
    right: dict[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [foreign(f, right[f], p, w) for f, p, w in calls(right)]
    assert not [each for each in found if each]
