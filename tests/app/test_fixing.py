"""One model made right for one runtime: what is kept, what is changed, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.app import pipeline
from qdqbridge.app.cli.failures import DONE, NOT_MET, USAGE, run
from qdqbridge.app.fixing import OnEngine, closer_there, fix, profile_of, symmetric
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.options import FixTarget
from qdqbridge.targets.profiles import Effect
from tests.places import MODELS

CNN = MODELS / "digits_cnn_u8s8_per_channel.onnx"
SIGNED = MODELS / "digits_cnn_s8s8_per_tensor.onnx"


@pytest.fixture(scope="module")
def data() -> dict[str, NDArray[Any]]:
    with np.load(MODELS / "digits_test.npz") as arrays:
        return {"input": arrays["x"][:24].astype(np.float32)}


def broken(findings: Any) -> int:
    return sum(each.effect is not Effect.PROCESSOR for each in findings)


@pytest.mark.parametrize("model", [CNN, SIGNED], ids=["u8s8", "s8s8"])
@pytest.mark.parametrize(
    "target",
    ["ort", "portable", "qnn", "openvino", "qoperator", "tflite", "tosa", "onnxruntime-web"],
)
def test_the_meaning_is_kept_and_fewer_rules_are_broken(
    tmp_path: Path, target: FixTarget, model: Path
) -> None:
    path = tmp_path / ("m.tflite" if target in ("tflite", "tosa") else "m.onnx")
    made = fix(model, target, path)
    assert path.exists()
    assert not made.again
    worst = min(each.sqnr_db for each in made.meaning.outputs)
    if target in ("ort", "portable", "qoperator", "onnxruntime-web"):
        assert made.meaning.equal
    if target == "onnxruntime-web":
        assert made.engine == "onnxruntime-web in Node (WebAssembly)"
    assert worst > 25
    if made.after is not None:
        assert made.before is not None
        assert broken(made.after) <= broken(made.before)
        assert made.after == tuple(pipeline.check(path, profile_of(target)))


def test_a_file_that_is_right_already_is_kept_byte_for_byte(tmp_path: Path) -> None:
    made = fix(CNN, "portable", tmp_path / "m.onnx")
    assert made.as_it_was
    assert (tmp_path / "m.onnx").read_bytes() == CNN.read_bytes()
    assert made.changes == ()


def test_the_file_that_its_engine_computes_closer_to_the_model_is_kept(
    data: dict[str, NDArray[Any]],
) -> None:
    graph = qb.load(CNN)
    attention = MODELS / "digits_attention_u8s8_per_channel.onnx"

    def there(model: Path) -> OnEngine:
        found = pipeline.compare(graph, qb.load(model), data)
        return OnEngine(None, found)

    same, rounded, wrong, nothing = (
        there(CNN),
        there(SIGNED),
        there(attention),
        OnEngine(None, None),
    )
    assert closer_there(wrong, same, lambda: False) is same
    assert closer_there(rounded, same, lambda: False) is same
    assert closer_there(rounded, same, lambda: True) is None
    assert closer_there(wrong, same, lambda: True) is same  # other classes are never rounding
    assert closer_there(same, wrong, lambda: False) is same
    assert closer_there(nothing, wrong, lambda: False) is wrong
    assert closer_there(wrong, nothing, lambda: False) is wrong
    assert closer_there(nothing, nothing, lambda: False) is None
    assert closer_there(wrong, None, lambda: False) is None


def test_extents_are_given_where_the_runtime_needs_them(tmp_path: Path) -> None:
    assert fix(CNN, "qnn", tmp_path / "a.onnx").extents == {"batch": 1}
    assert fix(CNN, "qnn", tmp_path / "b.onnx", extents={"batch": 3}).extents == {"batch": 3}
    assert fix(CNN, "ort", tmp_path / "c.onnx").extents == {}
    assert qb.load(tmp_path / "b.onnx").inputs[0].type.shape == (3, 1, 8, 8)


def test_with_data_it_is_quantized_again_where_that_is_closer(
    tmp_path: Path, data: dict[str, NDArray[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, samples = tmp_path / "m.onnx", tmp_path / "d.npz"
    np.savez(samples, **data)  # pyright: ignore[reportArgumentType]
    command = ["fix", str(CNN), "--for", "tensorrt", "-o", str(path), "--data", str(samples)]
    assert run([*command, "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["again"] or found["symmetric"]) and found["before"]
    assert "advice" in found["without_engine"]
    assert found["meaning"][0]["sqnr_db"] > 25
    assert found["meaning"][0]["top1"] > 0.95


def test_it_says_what_is_still_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = MODELS / "digits_attention_u8s8_per_channel.onnx"
    assert run(["fix", str(model), "--for", "ort", "-o", str(tmp_path / "m.onnx")]) == NOT_MET
    out = capsys.readouterr().out
    assert "kept as it was" in out
    assert "there is no integer Erf" in out
    assert run(["fix", str(model), "--for", "nothing", "-o", str(tmp_path / "n.onnx")]) == USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_integer_inputs_on_the_way(tmp_path: Path, data: dict[str, NDArray[Any]]) -> None:
    for given in (None, data):
        made = fix(CNN, "ort", tmp_path / "m.onnx", given, io="int8", overwrite=True)
        assert made.meaning.equal and not made.as_it_was
        assert made.there.results is not None
        assert min(each.sqnr_db for each in made.there.results.outputs) > 25
    assert "qdqbridge.interface" not in qb.unquantize(qb.load(tmp_path / "m.onnx")).metadata
    assert (tmp_path / "m.io.json").exists()


def test_zero_points_are_taken_out_without_data_and_the_cost_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    run(["fix", str(CNN), "--for", "tensorrt", "-o", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert "12 in larger steps (at most 2.01 times" in found["symmetric"] and not found["again"]
    assert found["meaning"][0]["sqnr_db"] > 25 and found["meaning"][0]["max_lsb"] is None
    graph = qb.load(path)
    stored = [v.quant.params for v in graph.values() if v.quant is not None and not v.is_constant]
    assert stored and all(p.symmetric and p.storage_dtype is DType.INT8 for p in stored)
    assert sum(node.op_type == "Relu" for node in onnx.load(path).graph.node) == 5


@pytest.mark.parametrize("given", [False, True], ids=["random", "data"])
def test_export_takes_zero_points_out_on_one_argument(
    tmp_path: Path, data: dict[str, NDArray[Any]], capsys: pytest.CaptureFixture[str], given: bool
) -> None:
    path, samples = tmp_path / "m.onnx", tmp_path / "d.npz"
    np.savez(samples, **data)  # pyright: ignore[reportArgumentType]
    command = ["export", str(CNN), "--profile", "tensorrt", "-o", str(path), "--symmetric"]
    assert run([*command, *(["--data", str(samples)] if given else []), "--json"]) == DONE
    told = json.loads(capsys.readouterr().out)["symmetric"]
    assert "12 in larger steps" in told and "dB SQNR" in told and "LSB off" in told
    assert ("the given data" if given else "random samples") in told
    made = symmetric(qb.load(CNN), data if given else None)
    assert f"{made.text}: {made.cost}" == told
    qb.save(qb.load(CNN), tmp_path / "n.onnx", "tensorrt", symmetric=True)
    assert qb.load(tmp_path / "n.onnx").digest == qb.load(path).digest
    out = qb.evaluate(qb.load(CNN), data)["logits"] - qb.evaluate(qb.load(path), data)["logits"]
    if given:
        node = qb.load(CNN).outputs[0].producer
        stored = None if node is None else node.operand(0).quant
        assert stored is not None
        scale = float(stored.params.scale)
        # one is a difference of float64 numbers, the other of float32 ones
        assert made.lsb["logits"] == pytest.approx(np.abs(out).max() / scale)


def test_what_lies_around_zero_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = symmetric(qb.load(SIGNED))
    assert made.graph.digest == qb.load(SIGNED).digest
    assert made.text == "every 8-bit value lies around zero already"
    assert made.cost == "every output is equal (4 random samples)"
    command = ["export", str(SIGNED), "-o", str(tmp_path / "m.onnx"), "--symmetric"]
    assert run([*command, "--recenter"]) == USAGE
    assert run([*command, "--float"]) == USAGE
    assert "give one of them" in capsys.readouterr().err
