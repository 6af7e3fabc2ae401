"""Small QDQ models, built with onnx.helper, and the way from a model to a graph."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.targets.profiles.export import exported_proto

Array = np.ndarray[Any, Any]
FLOAT = TensorProto.FLOAT

IR_VERSION = 10


class Builder:
    """Collects nodes of one model; every method returns the name of what it made."""

    def __init__(self, opset: int = 13, domain: str = "") -> None:
        self.opset, self.domain = opset, domain
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.opsets: dict[str, int] = {"": opset}
        self.count = 0

    def name(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_{self.count}"

    def input(
        self, name: str, shape: Sequence[int | str | None] | None, elem_type: int = FLOAT
    ) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def output(
        self, name: str, shape: Sequence[int | str] | None = None, elem_type: int = FLOAT
    ) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def init(self, array: Any, name: str = "") -> str:
        """Adds an initializer; equal names are for the caller to avoid."""
        proto = numpy_helper.from_array(np.asarray(array), name or self.name("init"))
        self.initializers.append(proto)
        return proto.name

    def op(
        self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> str:
        """Adds a node; returns its first output (``<name>:1`` are the others)."""
        first = self.name(op_type.lower())
        names = [first, *(f"{first}:{i}" for i in range(1, outputs))]
        node = helper.make_node(op_type, inputs, names, f"node_{first}", domain=domain)
        for key, value in attributes.items():
            if value is not None:
                node.attribute.append(helper.make_attribute(key, value))
        self.nodes.append(node)
        if domain:
            self.opsets.setdefault(domain, 1)
        return first

    def params(self, scale: Any, zero_point: Any, dtype: Any) -> list[str]:
        scale = np.asarray(scale, np.float32) if type(scale) in (int, float) else np.asarray(scale)
        names = [self.init(scale)]
        if zero_point is not None:
            names.append(self.init(np.broadcast_to(np.asarray(zero_point, dtype), scale.shape)))
        return names

    def q(
        self, x: str, scale: Any, zero_point: Any = 0, dtype: Any = np.uint8, **attributes: Any
    ) -> str:
        params = self.params(scale, zero_point, dtype)
        return self.op("QuantizeLinear", x, *params, domain=self.domain, **attributes)

    def dq(
        self, q: str, scale: Any, zero_point: Any = 0, dtype: Any = np.uint8, **attributes: Any
    ) -> str:
        params = self.params(scale, zero_point, dtype)
        return self.op("DequantizeLinear", q, *params, domain=self.domain, **attributes)

    def qdq(
        self, x: str, scale: Any, zero_point: Any = 0, dtype: Any = np.uint8, **attributes: Any
    ) -> str:
        """``x -> Q -> DQ`` with parameters shared by both."""
        params = self.params(scale, zero_point, dtype)
        stored = self.op("QuantizeLinear", x, *params, domain=self.domain, **attributes)
        return self.op("DequantizeLinear", stored, *params, domain=self.domain, **attributes)

    def weight(self, stored: Array, scale: Any, zero_point: Any = 0, **attributes: Any) -> str:
        """A stored weight and its DequantizeLinear."""
        return self.dq(self.init(stored), scale, zero_point, stored.dtype, **attributes)

    def model(self, **fields: Any) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "test", self.inputs, self.outputs, initializer=self.initializers
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(d, v) for d, v in self.opsets.items()],
            functions=self.functions,
            ir_version=IR_VERSION,
            **fields,
        )


def ints(shape: Sequence[int], seed: int = 0, dtype: Any = np.int8) -> Array:
    """Returns random integers over the whole range of ``dtype`` but its smallest value."""
    info = np.iinfo(dtype)
    low = info.min + 1 if info.min < 0 else 0
    return np.random.default_rng(seed).integers(low, info.max, shape, dtype, endpoint=True)


def load(model: onnx.ModelProto | bytes, folder: Path | None = None) -> Graph:
    """Returns the raw graph of a model that is written to a file first."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    with tempfile.TemporaryDirectory() as scratch:
        path = (folder or Path(scratch)) / "model.onnx"
        path.write_bytes(data)
        return read(path, canonicalize)


def canonical(model: onnx.ModelProto | bytes, folder: Path | None = None) -> Graph:
    """Returns the canonical graph of a model."""
    return canonicalize(load(model, folder))


def ops(graph: Graph) -> list[str]:
    """Returns the operators of a graph in order."""
    return [node.op.name for node in graph.nodes]


def run(graph: Graph, inputs: Mapping[str, Array], *, exact: bool = False) -> list[Array]:
    """Returns the outputs of a graph in order."""
    outputs, _ = evaluate(graph, inputs, exact=exact)
    return [outputs[name] for name in graph.output_names]


# ---- base models ------------------------------------------------------------------------------

WEIGHT_SCALES = np.array([2**-7, 2**-6, 3 * 2**-8, 2**-7], np.float32)


def conv_model(opset: int = 13, *, relu: bool = True, domain: str = "") -> onnx.ModelProto:
    """``x -> QDQ -> Conv(per-channel weight, int32 bias) -> Relu -> QDQ -> y``."""
    b = Builder(opset, domain)
    if domain:
        b.opsets[domain] = 1
    x = b.qdq(b.input("x", [1, 3, 6, 6]), 2**-5, 120)
    channels = {} if opset < 13 and not domain else {"axis": 0}
    scales: Any = WEIGHT_SCALES if channels else 2**-7
    w = b.weight(ints((4, 3, 3, 3)), scales, **channels)
    bias_scale = np.float32(2**-5) * np.asarray(scales, np.float32)
    bias = b.dq(b.init(np.array([5, -7, 900, 0], np.int32)), bias_scale, 0, np.int32, **channels)
    y = b.op("Conv", x, w, bias, pads=[1, 1, 1, 1])
    if relu:
        y = b.op("Relu", y)
    b.output(b.qdq(y, 2**-2, 0))
    return b.model()


def conv_input(seed: int = 0, scale: float = 2**-5) -> dict[str, Array]:
    """Returns data for :func:`conv_model`, multiples of half a scale."""
    codes = np.random.default_rng(seed).integers(-300, 300, (1, 3, 6, 6))
    return {"x": (codes * np.float32(scale / 2)).astype(np.float32)}


def check_carried(model: onnx.ModelProto, says: str) -> None:
    """Checks that a node whose encoding has no Q/DQ form is carried, noted, and written again."""
    graph = canonical(model)
    notes = [note for note in graph.notes if note.rule == "opaque-operator"]
    assert any(re.search(says, note.reason) for note in notes), notes
    assert canonical(exported_proto(graph)).digest == graph.digest
