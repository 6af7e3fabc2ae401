"""What blame refuses, and why; and what it says of what is no plain 8-bit file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.errors import UnsupportedModelError
from tests.autoquant.attribution.sabotage import renamed
from tests.places import MODELS

FLOATS = {name: MODELS / f"digits_{name}_float.onnx" for name in ("cnn", "attention", "mobile")}
INT8 = MODELS / "digits_cnn_u8s8_per_channel.onnx"
HOSTILE = "</script><b>\"'\u202e\\"


def images(count: int = 8) -> NDArray[Any]:
    with np.load(MODELS / "digits_test.npz") as arrays:
        return arrays["x"][200 : 200 + count]


@pytest.mark.parametrize("name", ["attention", "mobile"])
@pytest.mark.parametrize("other_names", [False, True])
def test_another_network_is_refused(name: str, tmp_path: Path, other_names: bool) -> None:
    file = renamed(INT8, tmp_path / "renamed.onnx") if other_names else INT8
    with pytest.raises(UnsupportedModelError, match="is another network") as error:
        qb.blame(FLOATS[name], file, {"input": images()})
    assert "compute what nodes of the float model do" in error.value.why
    assert error.value.where.count("'") == 6  # three of its nodes


def test_other_weights_are_refused(tmp_path: Path) -> None:
    """The same network, trained anew: nothing in it is a rounding of the float model's."""
    model, rng = onnx.load(FLOATS["cnn"]), np.random.default_rng(0)
    for constant in model.graph.initializer:
        array = numpy_helper.to_array(constant)
        if array.ndim > 1:
            drawn = rng.standard_normal(array.shape).astype(array.dtype) * array.std()
            constant.CopyFrom(numpy_helper.from_array(drawn, constant.name))
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UnsupportedModelError, match="other weights than the float one") as error:
        qb.blame(tmp_path / "other.onnx", INT8, {"input": images()})
    assert "6 of its 6 weights" in error.value.why


def test_a_quantized_model_in_the_place_of_the_float_one_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="first model is quantized itself") as error:
        qb.blame(INT8, FLOATS["cnn"], {"input": images()})
    assert "float model first" in error.value.fix


def test_16_bits_are_told_and_not_proposed_again() -> None:
    graph = qb.quantize(FLOATS["cnn"], {"input": images(24)}, target="a16w8", repair=())
    found = qb.blame(FLOATS["cnn"], graph, {"input": images()}, repairs=30)
    # Integer kernels round once where the simulation rounds a float sum.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.25)
    assert {each.kind for each in found.tensors[:6]} == {"weight"}
    activations = [each for each in found.tensors if each.kind == "activation"]
    assert min(each.added_db for each in activations) > 80
    assert not any(each.repair == "16 bits" for each in activations)


def with_a_body(path: Path, kind: str, *, quantized: bool, name: str = "body") -> Path:
    """Writes a product, then one in a body, whose result is rounded coarsely there."""
    rng = np.random.default_rng(0)
    weights = {key: rng.normal(size=(8, 8)).astype(np.float32) * 0.3 for key in "wv"}
    constants = [numpy_helper.from_array(array, key) for key, array in weights.items()]
    nodes: list[onnx.NodeProto] = []

    def rounded(nodes: list[onnx.NodeProto], value: str, scale: float) -> str:
        if not quantized:
            return value
        step = numpy_helper.from_array(np.asarray(scale, np.float32), f"{value}_s")
        zero = numpy_helper.from_array(np.asarray(128, np.uint8), f"{value}_z")
        parts = [helper.make_node("Constant", [], [each.name], value=each) for each in (step, zero)]
        pair = [step.name, zero.name]
        nodes += [
            *parts,
            helper.make_node("QuantizeLinear", [value, *pair], [f"{value}_q"]),
            helper.make_node("DequantizeLinear", [f"{value}_q", *pair], [f"{value}_r"]),
        ]
        return f"{value}_r"

    def port(name: str, type_: int = TensorProto.FLOAT, shape: list[int] | None = None) -> Any:
        return helper.make_tensor_value_info(name, type_, shape)

    nodes.append(helper.make_node("MatMul", [rounded(nodes, "x", 0.05), "w"], ["y"]))
    inner = rounded(nodes, "y", 0.04)
    held: list[onnx.NodeProto] = []
    if kind == "If":
        nodes.append(helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0))
        nodes.append(helper.make_node("Cast", ["most"], ["chosen"], to=TensorProto.BOOL))
        held.append(helper.make_node("MatMul", [inner, "v"], ["m"]))
        held.append(helper.make_node("Relu", [rounded(held, "m", 0.5)], ["taken"]))
        none = [helper.make_node("Neg", [inner], ["other"])]
        branches: dict[str, Any] = {
            "then_branch": helper.make_graph(held, "then", [], [port("taken")]),
            "else_branch": helper.make_graph(none, "else", [], [port("other")]),
        }
        nodes.append(helper.make_node("If", ["chosen"], ["z"], name=name, **branches))
    else:
        constants += [numpy_helper.from_array(np.asarray(2), "trips")]
        held.append(helper.make_node("MatMul", ["state", "v"], ["m"]))
        held.append(helper.make_node("Tanh", [rounded(held, "m", 0.5)], ["next"]))
        held.append(helper.make_node("Identity", ["going"], ["still"]))
        ports = [port("i", TensorProto.INT64, []), port("going", TensorProto.BOOL, [])]
        results = [port("still", TensorProto.BOOL, []), port("next")]
        body = helper.make_graph(held, "loop", [*ports, port("state")], results)
        nodes.append(helper.make_node("Loop", ["trips", "", inner], ["z"], name=name, body=body))
    nodes.append(helper.make_node("MatMul", ["z", "w"], ["out"]))
    graph = helper.make_graph(
        nodes, "g", [port("x", shape=[16, 8])], [port("out", shape=[16, 8])], constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_what_a_body_rounds_is_charged_to_its_node(kind: str, tmp_path: Path) -> None:
    data = {"x": np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)}
    original, quantized = (
        with_a_body(tmp_path / f"{each}.onnx", kind, quantized=each == "quantized", name=HOSTILE)
        for each in ("float", "quantized")
    )
    found = qb.blame(original, quantized, data)
    worst = found.tensors[0]
    assert (worst.kind, worst.cause) == ("body", "rounding inside its body")
    assert HOSTILE in worst.node
    assert worst.repair == "leave it float"
    # All that is rounded is in the run that explains: the last digits are float sums.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.01)
    (node,) = (each for each in found.nodes if each.operator == kind)
    assert next(iter(node.parts)) == "body"
    assert found.repaired_db > found.quantized_db + 20


def test_parts_of_a_split_are_those_slices(tmp_path: Path) -> None:
    """One tool writes Split, another one Slices: what each part rounds is found in both."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 8)).astype(np.float32)

    def written(path: Path, *, slices: bool) -> Path:
        constants: dict[str, NDArray[Any]] = {"w": weight, "sizes": np.array([3, 5])}
        nodes = [helper.make_node("MatMul", ["x", "w"], ["m"])]
        if slices:
            for name, start, end in (("b", 3, 8), ("a", 0, 3)):
                bounds = {"start": start, "end": end, "axis": 1}
                constants |= {f"{name}_{key}": np.array([at]) for key, at in bounds.items()}
                operands = ["m", *(f"{name}_{key}" for key in bounds)]
                nodes.append(helper.make_node("Slice", operands, [name]))
        else:
            nodes.append(helper.make_node("Split", ["m", "sizes"], ["a", "b"], axis=1))
        for name, scale in (("a", 0.1), ("b", 0.02)):
            value = name
            if slices:
                constants[f"{name}_s"] = np.asarray(scale, np.float32)
                constants[f"{name}_z"] = np.asarray(128, np.uint8)
                pair = [f"{name}_s", f"{name}_z"]
                nodes.append(helper.make_node("QuantizeLinear", [name, *pair], [f"{name}_q"]))
                nodes.append(
                    helper.make_node("DequantizeLinear", [f"{name}_q", *pair], [f"{name}_r"])
                )
                value = f"{name}_r"
            nodes.append(helper.make_node("Sigmoid", [value], [f"{name}_y"]))
        nodes.append(helper.make_node("Concat", ["b_y", "a_y"], ["y"], axis=1))
        ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xy"]
        held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph(nodes, "parts", ports[:1], ports[1:], held)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
        return path

    original = written(tmp_path / "float.onnx", slices=False)
    found = qb.blame(
        original, written(tmp_path / "quantized.onnx", slices=True),
        {"x": rng.standard_normal((4, 8)).astype(np.float32)},
    )  # fmt: skip
    assert found.aligned == 1.0
    assert {each.name for each in found.tensors} == {"a", "b"}
    # Both run the same floats, rounded alike.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_without_numbers_are_left_out_and_told(
    bad: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = images(6)
    spoiled = clean.copy()
    spoiled[[1, 4], 0, 3, 3] = bad
    known = qb.blame(FLOATS["cnn"], INT8, {"input": np.delete(clean, [1, 4], axis=0)})
    found = qb.blame(FLOATS["cnn"], INT8, {"input": spoiled})
    assert found.left_out == (1, 4)
    assert replace(found, left_out=(), tensors=(), nodes=()) == replace(known, tensors=(), nodes=())
    for one, other in zip(found.tensors, known.tensors, strict=True):
        assert repr(replace(one, place=None)) == repr(replace(other, place=None))
    np.savez(tmp_path / "x.npz", input=spoiled)
    assert run(["blame", str(FLOATS["cnn"]), str(INT8), "--data", str(tmp_path / "x.npz")]) == 0
    assert "left out: 2 of the samples" in " ".join(capsys.readouterr().out.split())
