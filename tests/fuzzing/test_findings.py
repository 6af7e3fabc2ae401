"""What fuzzing found, each as the smallest model that shows it; and a short run of the fuzzer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.errors import ModelFileError, UnsupportedModelError
from tests.fuzzing.measured import run
from tests.fuzzing.mutations import mutated
from tests.fuzzing.target import put_through, seeds
from tests.onnx_models import Builder, conv_model
from tests.places import ROOT

MEMORY = 100 << 20
HUGE = 1 << 28


def put(model: onnx.ModelProto, folder: Path) -> str:
    """Puts a model through everything within little time and memory."""
    run(conv_model().SerializeToString(), folder)  # imports are not the model's
    found = run(model.SerializeToString(), folder)
    assert not found["finding"], found["finding"]
    assert found["bytes"] < MEMORY
    assert found["seconds"] < 1
    return str(found["result"])


def one(b: Builder, name: str, declared: list[Any] | None = None) -> onnx.ModelProto:
    b.output(name, declared)
    model = b.model()
    if declared is None:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def int64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def test_slices_of_negative_extents_do_not_abort(tmp_path: Path) -> None:
    b = Builder(17)
    y = b.op("Slice", b.op("Shape", b.input("x", [1, 2])), *(b.init(int64(i)) for i in (0, 1)))
    model = one(b, y)
    shape = model.graph.node[0].output[0]
    model.graph.value_info.append(helper.make_tensor_value_info(shape, TensorProto.INT64, [-1]))
    put(model, tmp_path)
    b = Builder(17)
    x = b.op("Conv", b.input("x", [1, 1, 2, 2]), b.init(np.ones((1, 1, 9, 9), np.float32)))
    y = b.op("Slice", x, *(b.init(int64(i)) for i in (0, 1, 2)))
    put(one(b, y), tmp_path)


@pytest.mark.parametrize("op", ["ConstantOfShape", "Range", "Tile", "Expand"])
@pytest.mark.parametrize("computed", [False, True])
def test_huge_constants_are_not_made(op: str, computed: bool, tmp_path: Path) -> None:
    b = Builder(17)
    count = b.init(int64(HUGE))
    if computed:
        count = b.op("Mul", b.init(int64(1 << 14)), b.init(int64(1 << 14)))
    ones = b.init(np.ones(1, np.int64))
    if op == "Range":
        number = b.op("Squeeze", count)
        made = b.op("Range", b.init(np.int64(0)), number, b.init(np.int64(1)))
    else:
        made = b.op(op, count) if op == "ConstantOfShape" else b.op(op, ones, count)
    real = b.op("Cast", made, to=TensorProto.FLOAT)
    put(one(b, b.op("Add", b.input("x", [1]), b.qdq(real, 0.5))), tmp_path)


def test_huge_vectors_made_of_matrices(tmp_path: Path) -> None:
    b = Builder(17)
    matrix = b.op("Reshape", b.op("Shape", b.input("x", [2, 3])), b.init(int64(100, 1 << 40)))
    vector = b.op("Reshape", b.op("Transpose", matrix, perm=[1, 0]), b.init(int64(-1)))
    put(one(b, b.op("Cast", vector, to=TensorProto.FLOAT)), tmp_path)


@pytest.mark.parametrize("op", ["Tile", "Expand", "Pad", "Resize"])
@pytest.mark.parametrize("constant", [False, True])
def test_huge_results_are_refused_by_name(op: str, constant: bool, tmp_path: Path) -> None:
    b, huge = Builder(17), 1 << 40
    x = b.input("x", [1, 2, 3, 3])
    data = b.qdq(b.init(np.ones((1, 2, 3, 3), np.float32)) if constant else x, 0.5)
    extents = {"Tile": (huge, 1, 1, 1), "Expand": (huge, 2, 3, 3), "Resize": (1, 2, 3, huge),
               "Pad": (0,) * 7 + (huge,)}[op]  # fmt: skip
    empty = ("", "") if op == "Resize" else ()
    made = b.qdq(b.op(op, data, *empty, b.init(int64(*extents))), 0.5)
    model = one(b, b.op("Add", made, b.op("ReduceMax", x)))
    put(model, tmp_path)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    inputs = {"x": np.zeros((1, 2, 3, 3), np.float32)}
    with pytest.raises(UnsupportedModelError, match=f"{op} '.*' does not fit in memory"):
        qb.evaluate(qb.load(path), inputs)
    with pytest.raises(UnsupportedModelError, match="does not fit in memory"):
        qb.evaluate(qb.load(path), inputs, exact=True)


def test_declared_types_of_outputs_are_checked(tmp_path: Path) -> None:
    b = Builder(17)
    name = b.op("Reshape", b.init(np.ones((2, 2), np.float32)), b.init(int64(4)))
    model = one(b, b.op("Add", name, b.input("x", [4])))
    model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.INT8, [4]))
    assert put(model, tmp_path) == "written"  # stale inside, where operators decide
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT8, [4]))
    del model.graph.value_info[:]
    assert put(model, tmp_path) == "InvalidModelError"


def test_declared_shapes_of_constants_do_not_count(tmp_path: Path) -> None:
    b = Builder(17)
    name = b.op("Transpose", b.init(np.ones((2, 3), np.float32)), perm=[1, 0])
    model = one(b, b.op("Add", name, b.input("x", [5, 5])))
    model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [5, 5]))
    assert put(model, tmp_path) == "InvalidModelError"  # 3 by 2 and 5 by 5 do not broadcast


def test_calls_that_do_not_fit_their_function(tmp_path: Path) -> None:
    b = Builder(17)
    body = [helper.make_node("Exp", ["a"], ["b"])]
    opsets = [helper.make_opsetid("", 17)]
    b.functions.append(helper.make_function("local", "F", ["a"], ["b"], body, opsets))
    x = b.input("x", [2])
    assert put(one(b, b.op("F", x, x, x, domain="local")), tmp_path) == "InvalidModelError"


@pytest.mark.parametrize("perm", [[0, 3, 1, 9], [0, 1], [0, 1, 2, 3, 4]])
def test_transpositions_that_are_none(perm: list[int], tmp_path: Path) -> None:
    b = Builder(13)
    names = [b.init(np.float32(0.5)), b.init(np.uint8(3))]
    x = b.op("Transpose", b.input("x", [1, 4, 4, 2], TensorProto.UINT8), perm=[0, 3, 1, 2])
    y = b.op("QLinearSigmoid", x, *names, *names, domain="com.microsoft")
    b.output(b.op("Transpose", y, perm=perm), None, TensorProto.UINT8)
    model = b.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert put(model, tmp_path) == "InvalidModelError"


def test_metadata_that_is_no_text(tmp_path: Path) -> None:
    model = conv_model()
    model.graph.node[0].metadata_props.add(key="key", value="NOT-TEXT")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"NOT-TEXT", b"\xff\xfeT-TEXT"))
    with pytest.raises(ModelFileError, match="not text"):
        qb.load(path)


def test_bounds_that_no_integer_holds(tmp_path: Path) -> None:
    b = Builder(17)
    low, high = b.init(np.int64(-(2**63))), b.init(np.int64(2**63 - 1))
    y = b.op("Clip", b.input("x", [2], TensorProto.INT64), low, high)
    b.output(y, [2], TensorProto.INT64)
    put(b.model(), tmp_path)


def test_versions_beyond_32_bits(tmp_path: Path) -> None:
    """A domain that nobody knows has whatever versions it likes; those of ONNX end before."""
    model = conv_model()
    model.opset_import.append(helper.make_opsetid("com.acme", 2**40))
    model.graph.node[0].domain = "com.acme"
    assert put(model, tmp_path) == "written"
    model = conv_model()
    model.opset_import[0].version = 2**40
    assert put(model, tmp_path).endswith("Error")


@pytest.mark.parametrize("seed", range(4))
def test_a_short_run(seed: int, tmp_path: Path) -> None:
    models, rng = seeds([]), Random(seed)
    for _ in range(60):
        put_through(mutated(rng.choice(models), rng), tmp_path)


@pytest.mark.parametrize("kind", ["bytes", "structured"])
def test_the_command(tmp_path: Path, kind: str) -> None:
    root = ROOT
    script = str(root / "scripts" / "checks" / "mutations.py")
    command = [sys.executable, script, kind, "--count", "40", "-o", str(tmp_path / "f")]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{kind}: 40 cases")
