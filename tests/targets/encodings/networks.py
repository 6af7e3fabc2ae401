"""Random small networks, as a float model and as the QDQ model that parameters make of it."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True)
class Params:
    """Parameters of one tensor, as a QuantizeLinear has them."""

    dtype: str
    scale: Any
    zero_point: Any
    axis: int | None = None
    weight: bool = False

    @property
    def bits(self) -> int:
        return int(self.dtype.lstrip("uint"))

    @property
    def signed(self) -> bool:
        return self.dtype.startswith("i")


@dataclass
class Network:
    """Nodes and weights with the names of the float model, and parameters by name."""

    rng: np.random.Generator
    symmetric: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Params] = field(default_factory=dict)
    shape: tuple[int, ...] = (1, 4, 6, 6)

    def write(self, path: Path, *, quantized: bool) -> Path:
        nodes: list[onnx.NodeProto] = []
        weights = dict(self.weights)
        if quantized:
            nodes += self._pair("x", weights)
            for name in self.params:
                nodes += self._pair(name, weights) if name in self.weights else []
        for node in self.nodes:
            inputs = [f"{n}.dq" if quantized and n in self.params else n for n in node.input]
            nodes.append(helper.make_node(node.op_type, inputs, node.output, node.name))
            nodes[-1].attribute.extend(node.attribute)
            if quantized and node.output[0] in self.params:
                nodes += self._pair(node.output[0], weights)
        last = self.nodes[-1].output[0]
        out = f"{last}.dq" if quantized and last in self.params else last
        graph = helper.make_graph(
            nodes, "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 6])],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(w, n) for n, w in weights.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", 21)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
        return path

    def _pair(self, name: str, weights: dict[str, Any]) -> list[onnx.NodeProto]:
        p = self.params[name]
        weights[f"{name}.s"] = np.asarray(p.scale, np.float32)
        weights[f"{name}.z"] = np.asarray(p.zero_point, p.dtype)
        along: dict[str, Any] = {} if p.axis is None else {"axis": p.axis}
        ends = [f"{name}.s", f"{name}.z"]
        return [
            helper.make_node("QuantizeLinear", [name, *ends], [f"{name}.q"], **along),
            helper.make_node("DequantizeLinear", [f"{name}.q", *ends], [f"{name}.dq"], **along),
        ]


def random_network(seed: int, *, symmetric: bool = False) -> Network:
    """Returns a network of two to five operators.

    Args:
        seed: What it is made of.
        symmetric: Activations are int8 with zero point 0, and weights as TensorRT has them.
    """
    n = Network(np.random.default_rng(seed), symmetric)
    _activation(n, "x")
    kinds = ("Conv", "Conv", "ConvTranspose", "Add", "MaxPool", "Sigmoid")
    x = "x"
    for i in range(int(n.rng.integers(1, 4))):
        x = _image_node(n, str(n.rng.choice(kinds)), x, f"t{i}")
    n.nodes.append(helper.make_node("Flatten", [x], ["flat"]))
    n.params["flat"] = n.params[x]
    _matrix_node(n, "flat", int(np.prod(n.shape)))
    return n


def _image_node(n: Network, kind: str, x: str, y: str) -> str:
    batch, channels, height, width = n.shape
    if kind in ("Conv", "ConvTranspose"):
        groups = int(n.rng.choice([1, 1, channels]))
        out = channels if groups > 1 else int(n.rng.integers(1, 6))
        lead = (out, channels // groups) if kind == "Conv" else (channels, out // groups)
        axis = 0 if kind == "Conv" else 1
        _weight(n, f"{y}.w", (*lead, 3, 3), None if lead[axis] == 1 else axis)
        n.weights[f"{y}.b"] = n.rng.normal(0, 0.5, out).astype(np.float32)
        inputs = [x, f"{y}.w", f"{y}.b"][: int(n.rng.integers(2, 4))]
        n.nodes.append(helper.make_node(kind, inputs, [f"{y}.c"], pads=[1, 1, 1, 1], group=groups))
        n.shape = (batch, out, height, width)
        kind, x = "Relu", f"{y}.c"
    if kind == "Add":
        n.nodes.append(helper.make_node("Add", [x, x], [y]))
    elif kind == "MaxPool":
        n.nodes.append(helper.make_node("MaxPool", [x], [y], kernel_shape=[2, 2]))
        n.shape = (batch, channels, height - 1, width - 1)
        n.params[y] = n.params[x]
        return y
    else:
        n.nodes.append(helper.make_node(kind, [x], [y]))
    _activation(n, y)
    return y


def _matrix_node(n: Network, x: str, terms: int) -> None:
    results = int(n.rng.integers(2, 6))
    if n.rng.random() < 0.5:
        _weight(n, "m", (terms, results), 1)
        n.nodes.append(helper.make_node("MatMul", [x, "m"], ["y"]))
    else:
        _weight(n, "m", (results, terms), 0)
        n.weights["m.b"] = n.rng.normal(0, 0.5, results).astype(np.float32)
        n.nodes.append(helper.make_node("Gemm", [x, "m", "m.b"], ["y"], transB=1))
    _activation(n, "y")


def _activation(n: Network, name: str) -> None:
    dtype = "int8" if n.symmetric else str(n.rng.choice(TYPES))
    info = np.iinfo(dtype)
    zero = 0 if n.symmetric else int(n.rng.integers(info.min, info.max))
    n.params[name] = Params(dtype, np.float32(n.rng.uniform(0.01, 0.1)), zero)


def _weight(n: Network, name: str, shape: tuple[int, ...], axis: int | None) -> None:
    w = n.weights[name] = n.rng.normal(0, 0.3, shape).astype(np.float32)
    if n.symmetric:
        own = 0 if axis is None and len(shape) == 4 and shape[0] == 1 else axis
        own = 1 if own is None else own
        others = tuple(i for i in range(len(shape)) if i != own)
        scale = np.abs(w).max(axis=others) / np.float32(127)
        n.params[name] = Params("int8", scale, np.zeros(scale.shape, int), own, weight=True)
        return
    channels = None if axis is None or n.rng.random() < 0.3 else shape[axis]
    scale = np.asarray(n.rng.uniform(0.002, 0.01, channels), np.float32)
    zeros = np.zeros(np.shape(scale), int)
    n.params[name] = Params("int8", scale, zeros, axis if channels else None, weight=True)


def said(params: dict[str, Params], form: str) -> str:
    """Returns a file as the vendor's documentation has it."""
    if form == "tensorrt":
        own = {name: p for name, p in params.items() if not p.weight}
        lines = (f"{name}: {struct.pack('>f', p.scale).hex()}" for name, p in own.items())
        return "\n".join(["TRT-8601-EntropyCalibration2", *lines])
    if form == "ort-overrides":
        return json.dumps({name: _overrides(p) for name, p in params.items()})
    if form == "aimet-2.0.0":
        return json.dumps(
            {"version": "2.0.0", "encodings": [_typed(name, p) for name, p in params.items()]}
        )
    parts: dict[str, Any] = {}
    for part, weight in (("activation_encodings", False), ("param_encodings", True)):
        own = {name: p for name, p in params.items() if p.weight is weight}
        if form == "aimet-1.0.0":
            parts[part] = [_in_bits(name, p) for name, p in own.items()]
        else:
            parts[part] = {name: _listed(p) for name, p in own.items()}
    return json.dumps({"version": form.partition("-")[2], **parts})


def _flat(p: Params) -> tuple[list[float], list[int]]:
    return np.ravel(p.scale).astype(float).tolist(), np.ravel(p.zero_point).tolist()


def _offsets(p: Params) -> list[int]:
    return [-z - (1 << (p.bits - 1) if p.signed else 0) for z in _flat(p)[1]]


def _overrides(p: Params) -> list[dict[str, Any]]:
    kind = p.dtype.replace("uint", "QUInt").replace("int", "QInt", 1 if p.signed else 0)
    along = {} if p.axis is None else {"axis": p.axis}
    return [
        {"quant_type": kind, "scale": s, "zero_point": z, **along}
        for s, z in zip(*_flat(p), strict=True)
    ]


def _typed(name: str, p: Params) -> dict[str, Any]:
    scale, zero_point = np.asarray(p.scale, float).tolist(), np.asarray(p.zero_point).tolist()
    along = {} if p.axis is None else {"axis": p.axis}
    zero = {"y_zero_point": zero_point} if np.any(p.zero_point) else {}
    return {"name": name, "output_dtype": p.dtype, "y_scale": scale, **zero, **along}


def _in_bits(name: str, p: Params) -> dict[str, Any]:
    kind = "PER_TENSOR" if p.axis is None else "PER_CHANNEL"
    return {
        "name": name, "dtype": "INT", "enc_type": kind, "bw": p.bits, "is_sym": p.signed,
        "scale": _flat(p)[0], "offset": _offsets(p),
    }  # fmt: skip


def _listed(p: Params) -> list[dict[str, Any]]:
    return [
        {"bitwidth": p.bits, "dtype": "int", "is_symmetric": str(p.signed), "scale": s,
         "offset": o, "min": 0.0, "max": 0.0}
        for s, o in zip(_flat(p)[0], _offsets(p), strict=True)
    ]  # fmt: skip
