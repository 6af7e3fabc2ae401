"""Random models of opsets 7 to 12: an operator in the form of its time, mostly behind Q and DQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass
class Made:
    """A model on the way: ``x`` is what the operator reads."""

    rng: np.random.Generator
    opset: int
    rank: int
    shape: list[int]
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    initializers: list[onnx.TensorProto] = field(default_factory=list[onnx.TensorProto])
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list[onnx.ValueInfoProto])
    feeds: dict[str, Array] = field(default_factory=dict[str, Array])
    outputs: list[str] = field(default_factory=list[str])

    def given(self, name: str, array: Array) -> str:
        """An operand: a constant, or an input of the graph."""
        if self.rng.random() < 0.6:
            self.initializers.append(numpy_helper.from_array(array, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            self.inputs.append(helper.make_tensor_value_info(name, kind, list(array.shape)))
            self.feeds[name] = array
        return name

    def fixed(self, name: str, array: Array) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op_type: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> None:
        names = ["y", *(f"y{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, names, op_type, **attributes))
        self.outputs += names

    def axis(self) -> int:
        low = -self.rank if self.opset >= 11 else 0
        return int(self.rng.integers(low, self.rank))

    def axes(self) -> list[int]:
        count = int(self.rng.integers(1, self.rank + 1))
        return sorted(int(a) for a in self.rng.choice(self.rank, count, replace=False))

    def maybe(self, **attributes: Any) -> dict[str, Any]:
        return {name: value for name, value in attributes.items() if self.rng.random() < 0.7}


def _softmax(m: Made) -> None:
    name = str(m.rng.choice(["Softmax", "LogSoftmax", "Hardmax"]))
    m.node(name, ["x"], **m.maybe(axis=m.axis()))


def _reduce(m: Made) -> None:
    kinds = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
    given = m.maybe(axes=m.axes(), keepdims=int(m.rng.integers(2)))
    m.node(f"Reduce{m.rng.choice(kinds)}", ["x"], **given)


def _squeeze(m: Made) -> None:
    axes = m.axes()
    m.node("Unsqueeze", ["x"], axes=axes)


def _split(m: Made) -> None:
    axis = int(m.rng.integers(m.rank))
    extent = m.shape[axis]
    if extent > 1:
        cut = int(m.rng.integers(1, extent))
        m.node("Split", ["x"], 2, axis=axis, split=[cut, extent - cut])
    else:
        m.node("Split", ["x"], 1, axis=axis)


def _top_k(m: Made) -> None:
    axis = m.axis()
    k = int(m.rng.integers(1, m.shape[axis] + 1))
    if m.opset < 10:
        m.node("TopK", ["x"], 2, k=k, axis=axis)
        return
    more = m.maybe(largest=int(m.rng.integers(2))) if m.opset >= 11 else {}
    m.node("TopK", ["x", m.given("k", np.array([k], np.int64))], 2, axis=axis, **more)


def _scatter(m: Made) -> None:
    if m.opset < 9:
        return _softmax(m)
    axis = int(m.rng.integers(m.rank))
    shape = [int(m.rng.integers(1, extent + 1)) for extent in m.shape]
    shape[axis] = 1  # no position twice: whose update counts is not said
    index = m.rng.integers(0, m.shape[axis], shape)
    updates = m.rng.normal(size=shape).astype(np.float32)
    name = "Scatter" if m.opset < 11 else "ScatterElements"
    operands = ["x", m.given("i", index.astype(np.int64)), m.given("u", updates)]
    m.node(name, operands, **({"axis": axis} if axis or m.rng.random() < 0.5 else {}))


def _resize(m: Made) -> None:
    if m.opset > 10 or m.rank != 4:
        return _pad(m)
    up = m.opset < 10
    low = 1.0 if up else 0.5
    choices = [s for s in (0.5, 0.6, 1.0, 1.5, 2.0, 3.0) if s >= low]
    mode = str(m.rng.choice(["nearest", "linear"]))
    scales = np.array([1, 1, *m.rng.choice(choices, 2)], np.float32)
    if m.opset < 9:
        m.node("Upsample", ["x"], mode=mode, scales=[float(s) for s in scales])
        return
    m.node("Upsample" if up else "Resize", ["x", m.given("s", scales)], mode=mode)


def _pad(m: Made) -> None:
    pads = [int(p) for p in m.rng.integers(0, 3, 2 * m.rank)]
    mode = str(m.rng.choice(["constant", "edge", "reflect"]))
    if mode == "reflect":
        pads = [min(p, extent - 1) for p, extent in zip(pads, m.shape * 2, strict=True)]
    if m.opset < 11:
        m.node("Pad", ["x"], pads=pads, mode=mode, **m.maybe(value=0.75))
        return
    operands = ["x", m.given("p", np.array(pads, np.int64))]
    if m.rng.random() < 0.5:
        operands.append(m.given("v", np.array(0.75, np.float32)))
    m.node("Pad", operands, mode=mode)


def _slice(m: Made) -> None:
    axes = m.axes()
    starts = [int(m.rng.integers(0, m.shape[a])) for a in axes]
    ends = [int(m.rng.integers(s + 1, m.shape[a] + 1)) for s, a in zip(starts, axes, strict=True)]
    if m.opset < 10:
        m.node("Slice", ["x"], starts=starts, ends=ends, axes=axes)
        return
    parts = {"from": starts, "to": ends, "axes": axes}
    operands = [m.given(name, np.array(part, np.int64)) for name, part in parts.items()]
    m.node("Slice", ["x", *operands])


def _clip(m: Made) -> None:
    low, high = sorted(float(np.float32(v)) for v in m.rng.normal(size=2))
    if m.opset < 11:
        m.node("Clip", ["x"], **m.maybe(min=low, max=high))
        return
    bounds = [m.given(n, np.array(v, np.float32)) for n, v in (("lo", low), ("hi", high))]
    m.node("Clip", ["x", *bounds])


def _dropout(m: Made) -> None:
    m.node("Dropout", ["x"], int(m.rng.integers(1, 3)) if m.opset >= 10 else 1)


def _normalization(m: Made) -> None:
    if m.rank < 2:
        return _softmax(m)
    channels = m.shape[1]
    values = [m.rng.normal(size=channels).astype(np.float32) for _ in range(3)]
    values.append(np.abs(m.rng.normal(size=channels)).astype(np.float32) + np.float32(0.5))
    names = [m.given(n, v) for n, v in zip(("g", "b", "m", "v"), values, strict=True)]
    m.node("BatchNormalization", ["x", *names], **m.maybe(epsilon=1e-3))


def _gemm(m: Made) -> None:
    if m.rank != 2:
        return _clip(m)
    out = 3
    w = m.rng.normal(size=(m.shape[1], out)).astype(np.float32)
    m.node("Gemm", ["x", m.given("w", w), m.given("c", np.ones(out, np.float32))], alpha=0.5)


def _compare(m: Made) -> None:
    other = m.given("o", m.rng.normal(size=m.shape).astype(np.float32))
    kinds = ["Greater", "Less", "Pow", "Mod", "PRelu"]
    kind = str(m.rng.choice(kinds))
    if kind == "Mod" and m.opset >= 10:
        m.node(kind, ["x", other], fmod=1)
    else:
        m.node("PRelu" if kind in ("Mod", "Pow") else kind, ["x", other])


def _argument(m: Made) -> None:
    name = str(m.rng.choice(["ArgMax", "ArgMin"]))
    m.node(name, ["x"], axis=m.axis(), keepdims=int(m.rng.integers(2)))


def _one_hot(m: Made) -> None:
    if m.opset < 9:
        return _argument(m)
    m.nodes.append(helper.make_node("Cast", ["x"], ["index"], to=INT64))
    depth = m.fixed("depth", np.array(4, np.int64))
    values = m.given("values", np.array([0.25, 2], np.float32))
    m.node("OneHot", ["index", depth, values], axis=-1)


def _pool(m: Made) -> None:
    if m.rank != 4:
        return _reduce(m)
    kind = str(m.rng.choice(["MaxPool", "AveragePool", "LpPool", "GlobalLpPool"]))
    if kind == "GlobalLpPool":
        m.node(kind, ["x"], p=2)
        return
    more = m.maybe(ceil_mode=1) if m.opset >= 10 and kind != "LpPool" else {}
    m.node(kind, ["x"], kernel_shape=[2, 2], strides=[1, 1], **more)


def _branch(m: Made) -> None:
    """Old operators inside the bodies of an If."""
    bodies = {}
    for name, low in (("then_branch", 0), ("else_branch", 1)):
        nodes = [helper.make_node("Softmax", ["x"], [f"{name}s"], axis=min(1, m.rank - 1))]
        result = f"{name}y"
        if low:
            nodes.append(helper.make_node("Unsqueeze", [f"{name}s"], [f"{name}u"], axes=[0]))
            nodes.append(helper.make_node("Squeeze", [f"{name}u"], [result], axes=[0]))
        else:
            nodes.append(helper.make_node("ReduceSum", [f"{name}s"], [f"{name}r"], axes=[0]))
            nodes.append(helper.make_node("Add", [f"{name}s", f"{name}r"], [result]))
        info = helper.make_tensor_value_info(result, FLOAT, None)
        bodies[name] = helper.make_graph(nodes, name, [], [info])
    m.inputs.append(helper.make_tensor_value_info("cond", TensorProto.BOOL, []))
    m.feeds["cond"] = np.array(bool(m.rng.integers(2)))
    m.node("If", ["cond"], **bodies)


KINDS: Mapping[str, Callable[[Made], None]] = {
    "argument": _argument, "branch": _branch, "clip": _clip, "compare": _compare,
    "dropout": _dropout, "gemm": _gemm, "normalization": _normalization, "one_hot": _one_hot,
    "pad": _pad, "pool": _pool, "reduce": _reduce, "resize": _resize, "scatter": _scatter,
    "slice": _slice, "softmax": _softmax, "split": _split, "squeeze": _squeeze, "top_k": _top_k,
}  # fmt: skip


def old_model(seed: int) -> tuple[str, onnx.ModelProto, dict[str, Array]]:
    """Returns a model's name, the model and what to feed it."""
    rng = np.random.default_rng(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    opset = 7 + seed // len(KINDS) % 6
    rank = int(rng.choice([1, 2, 3, 4, 4]))
    shape = [int(extent) for extent in rng.integers(2, 6, rank)]
    made = Made(rng, opset, rank, shape)
    data = rng.normal(size=shape).astype(np.float32)
    made.feeds["a"] = data
    quantized = opset >= 10 and rng.random() < 0.8
    declared: Any = shape if rng.random() < 0.7 else [f"d{i}" for i in range(rank)]
    made.inputs.append(helper.make_tensor_value_info("a", FLOAT, declared))
    source = "a"
    if rng.random() < 0.15:  # not even the rank is known
        made.inputs.append(helper.make_tensor_value_info("shape", INT64, ["n"]))
        made.feeds["shape"] = np.array(shape, np.int64)
        made.nodes.append(helper.make_node("Reshape", ["a", "shape"], ["source"]))
        source = "source"
    if quantized:
        made.fixed("scale", np.array(0.02, np.float32))
        made.fixed("zero", np.array(int(rng.integers(90, 160)), np.uint8))
        made.nodes.append(helper.make_node("QuantizeLinear", [source, "scale", "zero"], ["q"]))
        made.nodes.append(helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["x"]))
    else:
        made.nodes.append(helper.make_node("Identity", [source], ["x"]))
    KINDS[kind](made)
    outputs = [onnx.ValueInfoProto(name=name) for name in made.outputs]
    graph = helper.make_graph(made.nodes, kind, made.inputs, outputs, made.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.output}
    for value in model.graph.output:
        value.type.tensor_type.elem_type = types.get(value.name) or FLOAT
    return f"{kind}-{opset}", model, made.feeds
