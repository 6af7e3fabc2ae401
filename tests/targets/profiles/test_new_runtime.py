"""A new runtime is a table of facts, a list of rules and a worker: a toy, by public functions."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qdqbridge
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.writer.spec import Clamp, WriterOptions
from qdqbridge.targets.engines.kinds import EngineKind
from qdqbridge.targets.engines.vendor import open_engine
from qdqbridge.targets.profiles import Effect, ExportProfile, TargetRule, check
from qdqbridge.targets.profiles.export import export
from qdqbridge.targets.profiles.predicates import COLUMNS, MIN, Facts, X, op, rank, when

TABLE = """\
# toy 1
operator,u8,s8,u16,s16
Abs,5,5,5,5
Neg,4,4,left,left
Relu,5,5,5,left
Sigmoid,4,left,4,left
Tanh,left,left,left,left
"""
FACTS = Facts.of(TABLE.splitlines())
_FOUR = FACTS.where(lambda fact: fact.most_axes == 4)
RULES = (
    TargetRule("no-such-operator", "operators that it does not have",
        when(FACTS.left, "there is no {node.op}", "output"), "toy 1", Effect.ELSEWHERE, "leave it"),
    TargetRule("taken-of-type", "operators of other types",
        when(FACTS.untaken, "'{x}' is {x.dtype}", "x"), "toy 1", Effect.ELSEWHERE, "use uint8"),
    TargetRule("up-to-four-axes", "operators of five axes",
        when(_FOUR & ~FACTS.untaken & rank(lambda axes: axes > 4), "it has more than four axes"),
        "toy 1", Effect.ELSEWHERE, "reshape in front, and back behind"),
    TargetRule("lowest-zero", "Relu of signed types",
        when(op("Relu") & X.signed & ~X.zero_in(MIN, 0), "'{x}' has zero point {x.zero}", "x"),
        "toy 1", Effect.REFUSED, "use the zero point 0"),
)  # fmt: skip
PROFILE = ExportProfile("toy", "the toy", WriterOptions(Clamp.BEFORE), RULES, strict=True)
WORKER = """
import onnx, onnxruntime

WIDE = ("UINT16", "INT16")
LEFT = {"Neg": WIDE, "Relu": ("INT16",), "Sigmoid": ("INT8", "INT16")}

class Worker:
    def version(self):
        return "toy 1"

    def load(self, key, file):
        model = onnx.shape_inference.infer_shapes(onnx.load(file))
        known = {v.name: v.type.tensor_type for v in (*model.graph.input, *model.graph.value_info)}
        real = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
        stored = {node.output[0]: node.input[0] for node in real}
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(file, options)
        rows = []
        for node in model.graph.node:
            if node.input[0] in stored:
                type_ = known[stored[node.input[0]]]
                dtype = onnx.TensorProto.DataType.Name(type_.elem_type)
                deep = len(type_.shape.dim) > 4 and node.op_type in ("Neg", "Sigmoid")
                left = deep or node.op_type == "Tanh" or dtype in LEFT.get(node.op_type, ())
                rows.append((node.name, node.op_type, "CPU" if left else "toy", not left, ""))
        return rows, 1

    def run(self, key, inputs, names):
        return dict(zip(names, self.session.run(list(names), dict(inputs))))

WORKER = Worker
"""


def network(zero: int = 0) -> onnx.ModelProto:
    """Returns every operator of the table, of every type and of two to five axes, side by side."""
    nodes, ports, results, constants = [], [], [], []
    scale = numpy_helper.from_array(np.array(0.05, np.float32), "scale")
    for dtype in COLUMNS.values():
        constants.append(numpy_helper.from_array(np.array(zero, dtype.numpy), f"zero_{dtype}"))
    for name, dtype, axes in product(FACTS.rows, COLUMNS.values(), (2, 3, 4, 5)):
        key, parameters = f"{name}_{dtype}_{axes}", ["scale", f"zero_{dtype}"]
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype.numpy))
        ports.append(helper.make_tensor_value_info(f"{key}_x", element, [2] * axes))
        results.append(helper.make_tensor_value_info(f"{key}_y", element, [2] * axes))
        nodes += [
            helper.make_node("DequantizeLinear", [f"{key}_x", *parameters], [f"{key}_real"]),
            helper.make_node(name, [f"{key}_real"], [f"{key}_made"], key),
            helper.make_node("QuantizeLinear", [f"{key}_made", *parameters], [f"{key}_y"]),
        ]
    graph = helper.make_graph(nodes, "toy", ports, results, [scale, *constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "network.onnx"
    onnx.save(network(), path)
    return path


def test_its_rules_say_what_its_engine_does(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    kind = EngineKind("toy", "The toy", "onnxruntime", "pip", "toy.worker", PROFILE)
    graph = qdqbridge.load(file)
    with open_engine(kind, file, graph) as engine:
        said = {row.node for row in engine.taken().left}
        feeds = {
            v.name: np.ones([2] * len(v.type.shape or ()), v.type.dtype.numpy) for v in graph.inputs
        }
        found = engine.run(feeds, engine.outputs)
    assert {finding.node for finding in check(file, PROFILE)} == said
    assert len(said) == 40
    expected = qdqbridge.evaluate(graph, feeds)
    assert all((found[name] == expected[name]).all() for name in expected)


def test_a_rule_names_its_values(tmp_path: Path) -> None:
    onnx.save(network(zero=3), tmp_path / "shifted.onnx")
    (first, *others) = (
        f for f in check(tmp_path / "shifted.onnx", PROFILE) if f.rule == "lowest-zero"
    )
    assert first.reason == "'Relu_int8_2_x' has zero point 3"
    assert first.tensors == ("Relu_int8_2_x",)
    assert {f.operator for f in others} == {"Relu"} and len(others) == 7


def test_an_export_is_for_it(file: Path, tmp_path: Path) -> None:
    written = tmp_path / "written.onnx"
    export(qdqbridge.load(file), written, profile=PROFILE)
    assert qdqbridge.load(written).digest == qdqbridge.load(file).digest
    onnx.save(network(zero=3), file)
    with pytest.raises(UnsupportedTargetError, match="the toy cannot take this graph"):
        export(qdqbridge.load(file), written, profile=PROFILE)
