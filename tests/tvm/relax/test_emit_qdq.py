"""The form ``qdq``: numbers, and what TVM's own pattern tables find in it."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.places import MODELS

pytest.importorskip("tvm")

import tvm
from tvm import ir, relax
from tvm.relax.backend import get_patterns_with_prefix
from tvm.relax.frontend.onnx import from_onnx
from tvm.relax.transform import FuseOpsByPattern

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from tests.tvm.relax.single_ops import Array, Model, X, codes, const, params
from tests.tvm.relax.targets import compiled

pytestmark = pytest.mark.relax

for table in ("example_npu", "nnapi", "tensorrt"):
    import_module(f"tvm.relax.backend.contrib.{table}")  # registers its patterns

NAMES = (
    "digits_cnn_u8s8_per_channel",
    "digits_cnn_s8s8_per_tensor",
    "digits_attention_u8s8_per_channel",
)


S8, U8 = params("int8", 0.05, 3), params("uint8", 0.04, 131)


def built(graph: qb.Graph) -> Any:
    module, _ = qb.to_relax(graph, variant="qdq")
    device: Any = tvm.cpu()
    return relax.VirtualMachine(compiled(module), device)


def run(graph: qb.Graph, inputs: dict[str, Array]) -> list[Array]:
    tensors = [tvm.runtime.tensor(inputs[value.name]) for value in graph.inputs]
    result = built(graph)["main"](*tensors)
    return [t.numpy() for t in ([result] if len(graph.outputs) == 1 else result)]


def operators(module: Any) -> Counter[str]:
    """Returns the operators of ``main``, and the composites by their names."""
    found: Counter[str] = Counter()
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if not isinstance(binding.value, ir.Call):
                continue
            callee: Any = binding.value.op
            if isinstance(callee, ir.GlobalVar):
                found[str(module[callee].attrs["Composite"])] += 1
            else:
                found[callee.name] += 1
    return found


def matched(module: Any, table: str) -> Counter[str]:
    """Returns what a table of TVM's takes of a module."""
    patterns: Any = get_patterns_with_prefix(table)
    with contextlib.redirect_stdout(io.StringIO()):
        fused = FuseOpsByPattern(patterns, bind_constants=True, annotate_codegen=False)(module)
    names = {k: v for k, v in operators(fused).items() if k.startswith(f"{table}.")}
    return Counter({name.removeprefix(f"{table}."): count for name, count in names.items()})


def imported(path: Path) -> Any:
    """Returns what TVM's own importer makes of a file."""
    with contextlib.redirect_stdout(io.StringIO()):
        model: Any = onnx.load(path)
        module: Any = from_onnx(model, keep_params_in_input=False)
    return relax.transform.ConvertToDataflow()(module)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_agrees_within_one_lsb_of_its_output(name: str) -> None:
    graph = qb.load(MODELS / f"{name}.onnx")
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:32].astype(np.float32)}
    (want,), (got,) = qb.evaluate(graph, data).values(), run(graph, data)
    last = graph.outputs[0].producer
    quant = None if last is None else last.operand(0).quant
    assert quant is not None
    scale = float(quant.params.scale)
    steps = np.rint((got - want) / scale)
    # Ties of the averages and float32 sums in TVM's order, carried on by the layers behind them.
    assert np.abs(steps).max() <= 1 and (steps != 0).mean() < 0.2


def test_single_operators_agree_but_for_ties() -> None:
    m = Model()
    a, image = X(codes((1, 8, 9, 9), "uint8"), U8), X(codes((1, 8, 9, 9), "int8"), S8)
    kernel = X(codes((8, 8, 3, 3), "int8", 1), params("int8", np.full(8, 0.01), 0, 0), fixed=True)
    grouped = X(codes((8, 1, 3, 3), "int8", 2), params("int8", 0.02), fixed=True)
    matrix = X(codes((9, 5), "int8", 3), params("int8", np.full(5, 0.02), np.zeros(5), 1), True)
    relu, clip = params("int8", 1.5, -128), (const(np.float32(0)), const(np.float32(6)))
    m.add("Conv", [image, kernel], params("int8", 2.0, 3), pads=[1, 1, 1, 1])
    m.add("Conv", [image, grouped], params("uint8", 0.5, 0), group=8, strides=[2, 2])
    m.add("ConvTranspose", [image, kernel], params("int8", 4.0, 3), strides=[2, 2])
    m.add("MatMul", [image, matrix], relu)
    m.add("Add", [image, a], params("int8", 0.75, 1), then="Relu")
    for op in ("Sub", "Mul", "Max"):
        m.add(op, [image, a], params("int8", 0.75, 1))
    m.add("Div", [image, const(np.float32(1.7))], params("int8", 0.05, 1))
    for op in ("Sigmoid", "Tanh", "Erf", "HardSwish", "Softmax", "Abs"):
        m.add(op, [image], params("int8", 1 / 64, -5))
    m.add("Clip", [image, *clip], S8, row="")
    m.add("AveragePool", [image], S8, kernel_shape=[3, 3])
    m.add("GlobalAveragePool", [image], S8)
    m.add("ReduceMean", [image, const([2])], S8, keepdims=0)
    m.add("MaxPool", [image], S8, kernel_shape=[2, 2], strides=[2, 2])
    m.add("Concat", [image, a], S8, axis=1)
    m.add("Transpose", [image], S8, perm=[0, 2, 3, 1])
    m.add("Pad", [image, const([0, 0, 1, 2, 0, 0, 2, 1]), const(np.float32(1.5))], S8)
    sizes = const([1, 8, 18, 13])
    for mode in ("nearest", "linear", "cubic"):
        m.add("Resize", [image, None, None, sizes], S8, mode=mode)
    scale = (const(np.ones(9, np.float32)), const(np.zeros(9, np.float32)))
    m.add("LayerNormalization", [image, *scale], params("int8", 1 / 32))
    graph = m.load()
    wanted, got = qb.evaluate(graph, m.inputs), run(graph, m.inputs)
    for branch in m.branches:
        (end,) = branch.outputs
        have = got[graph.output_names.index(end)].astype(int)
        steps = np.abs(have - wanted[end].astype(int))
        assert steps.max() <= 1 and (steps != 0).mean() <= 0.12, branch.label


@pytest.mark.parametrize("name", NAMES)
def test_weights_stay_integers_and_every_reader_has_its_own_dequantize(name: str) -> None:
    module: Any = qb.to_relax(qb.load(MODELS / f"{name}.onnx"), variant="qdq")[0]
    assert not any(op.startswith("qnn.") for op in operators(module))
    bindings: list[Any] = [b for block in module["main"].body.blocks for b in block.bindings]
    calls: dict[Any, Any] = {b.var: b.value for b in bindings if isinstance(b.value, ir.Call)}
    readers = Counter(arg for call in calls.values() for arg in call.args)
    for variable, call in calls.items():
        if call.op.name in ("relax.nn.conv2d", "relax.matmul"):
            source = calls[call.args[1]]  # the weight, or an activation
            assert source.op.name in ("relax.dequantize", "relax.permute_dims")
        if call.op.name == "relax.dequantize":
            assert readers[variable] <= 1  # a shared one would keep patterns from matching


TABLES = {
    "digits_cnn_u8s8_per_channel": {
        "example_npu": (15, 15), "tensorrt": (22, 23), "nnapi": (10, 11),
    },
    "digits_cnn_s8s8_per_tensor": {
        "example_npu": (20, 18), "tensorrt": (27, 26), "nnapi": (15, 14),
    },
    "digits_attention_u8s8_per_channel": {
        "example_npu": (49, 49), "tensorrt": (74, 75), "nnapi": (58, 59),
    },
}  # fmt: skip
"""Composites of TVM's tables: on this form, on what TVM's importer makes of the file."""


@pytest.mark.parametrize("name", NAMES)
def test_shipped_tables_take_what_they_take_of_imported_files(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    own, theirs = qb.to_relax(qb.load(path), variant="qdq")[0], imported(path)
    for table, counts in TABLES[name].items():
        ours, other = matched(own, table), matched(theirs, table)
        assert (ours.total(), other.total()) == counts, table
        # less: a weight is stored the way it is multiplied; more: a Clip that is a Relu here
        less = {op for op in other if ours[op] < other[op]}
        more = {op for op in ours if ours[op] > other[op]}
        assert less <= {"transpose"} and more <= {"nn.relu", "relu"}


def test_quantize_breaks_ties_to_even_and_saturates() -> None:
    m = Model()
    m.finish(m.operand(X(np.zeros((1, 8), np.float32))), params("int8", 0.5, 3))
    values = np.array([[0.25, 0.75, 1.25, -0.25, -0.75, 1e9, -1e9, 63.25]], np.float32)
    graph = m.load()
    name = graph.inputs[0].name
    (want,) = qb.evaluate(graph, {name: values}).values()
    np.testing.assert_array_equal(run(graph, {name: values})[0], want)


def test_there_is_no_other_spelling() -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    with pytest.raises(InputDataError, match="what variant is given"):
        qb.to_relax(graph, variant="qnnn")  # pyright: ignore[reportArgumentType]
