"""Random models whose If, Loop and Scan quantize inside, in one another.

``python -m tests.onnx_io.quantized_bodies FIRST COUNT`` runs so many, on TVM too, and
prints what fails.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

import qdqbridge as qb
from tests.exact_sessions import exact_session
from tests.onnx_models import Array

ROWS, WIDTH = 3, 4
FLOAT, INT8 = TensorProto.FLOAT, TensorProto.INT8
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def info(name: str, kind: int = FLOAT, shape: Any = (ROWS, WIDTH)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


class Drawn:
    """Draws one model; every tensor of it is ``[ROWS, WIDTH]``, float or int8 codes.

    Scales are powers of two, so that float sums of onnxruntime's are exact as well.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.count = 0
        self.outer: list[TensorProto] = []
        self.shared = self.random.random() < 0.5

    def name(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def constant(self, array: Any, held: list[TensorProto], hint: str = "c") -> str:
        """Returns a constant of a body, or one that it captures."""
        place = held if self.random.random() < 0.6 else self.outer
        place.append(numpy_helper.from_array(np.asarray(array), self.name(hint)))
        return place[-1].name

    def params(self, held: list[TensorProto], low: int = -6, high: int = -3) -> list[str]:
        """Returns scale and zero point, that of all others perhaps."""
        scale = self.constant(np.float32(2.0 ** self.random.randint(low, high)), held, "s")
        own = self.random.choice([0, 0, 3, -5])
        if not self.shared:
            return [scale, self.constant(np.int8(own), held, "z")]
        if all(each.name != "zero" for each in held):
            held.append(numpy_helper.from_array(np.asarray(0, np.int8), "zero"))
        return [scale, "zero"]

    def add(self, nodes: list[NodeProto], op: str, inputs: list[str], **given: Any) -> str:
        out = self.name("v")
        nodes.append(helper.make_node(op, inputs, [out], **given))
        return out

    def real(self, x: str, nodes: list[NodeProto], held: list[TensorProto]) -> str:
        """``x -> Q -> DQ``, of a float tensor."""
        params = self.params(held)
        stored = self.add(nodes, "QuantizeLinear", [x, *params])
        return self.add(nodes, "DequantizeLinear", [stored, *params])

    def step(
        self, x: str, others: list[str], nodes: list[NodeProto], held: list[TensorProto]
    ) -> str:
        """Adds one quantized operator to the nodes of a body."""
        x = self.real(x, nodes, held)
        kind = self.random.randrange(8)
        if kind in (0, 1):
            codes = self.numbers.integers(-60, 61, (WIDTH, WIDTH)).astype(np.int8)
            weight = [self.constant(codes, held, "w"), *self.params(held, -8, -6)[:1]]
            weight.append(self.constant(np.int8(0), held, "z"))
            x = self.add(nodes, "MatMul", [x, self.add(nodes, "DequantizeLinear", weight)])
        elif kind == 2:
            op = self.random.choice(["Add", "Mul", "Sub"])
            x = self.add(nodes, op, [x, self.real(self.random.choice(others), nodes, held)])
        elif kind == 3:
            x = self.add(nodes, self.random.choice(["Relu", "Abs", "Neg", "LeakyRelu"]), [x])
        elif kind == 4:
            params = self.params(held)
            stored = self.add(nodes, "QuantizeLinear", [x, *params])
            turned = self.add(nodes, "Transpose", [stored], perm=[1, 0])
            turned = self.add(nodes, "Transpose", [turned], perm=[1, 0])
            x = self.add(nodes, "DequantizeLinear", [turned, *params])
        elif kind == 5:
            axis = self.constant(np.array([0], np.int64), held)
            x = self.add(nodes, "Unsqueeze", [x, axis])
            pool = {"kernel_shape": [3], "pads": [1, 1]}
            x = self.add(nodes, self.random.choice(["MaxPool", "AveragePool"]), [x], **pool)
            x = self.add(nodes, "Squeeze", [self.real(x, nodes, held), axis])
        elif kind == 6:
            a, b = self.params(held), self.params(held)
            codes = self.numbers.integers(-60, 61, (WIDTH, WIDTH)).astype(np.int8)
            weight = [self.constant(codes, held, "w"), *self.params(held, -8, -6)]
            stored = self.add(nodes, "QuantizeLinear", [x, *a])
            stored = self.add(nodes, "QLinearMatMul", [stored, *a, *weight, *b])
            x = self.add(nodes, "DequantizeLinear", [stored, *b])
        else:
            x = self.add(
                nodes, "Concat", [x, self.real(self.random.choice(others), nodes, held)], axis=0
            )
            rows = self.constant(np.array([0, ROWS, 1], np.int64), held)
            x = self.add(nodes, "Gather", [x, rows], axis=0)
        return self.real(x, nodes, held)

    def body(
        self, x: str, depth: int, outer: list[str], nodes: list[NodeProto], held: list[TensorProto]
    ) -> str:
        """Adds the nodes of a body; returns its float result."""
        known = [x, *outer]
        for _ in range(self.random.randint(1, 3)):
            if depth and self.random.random() < 0.3:
                x = self.control(x, depth - 1, known, nodes)
            else:
                x = self.step(x, known, nodes, held)
            known.append(x)
        return x

    def ends(
        self,
        x: str,
        codes: bool,
        nodes: list[NodeProto],
        held: list[TensorProto],
        params: list[str],
    ) -> str:
        """Returns a result: float, or codes of the parameters."""
        return self.add(nodes, "QuantizeLinear", [x, *params]) if codes else x

    def control(self, x: str, depth: int, outer: list[str], nodes: list[NodeProto]) -> str:
        """Adds an If, Loop or Scan that reads ``x``; returns a float result."""
        kind, codes = self.random.choice(["If", "Loop", "Scan"]), self.random.random() < 0.4
        params = [
            self.constant(np.float32(2**-4), self.outer),
            self.constant(np.int8(2), self.outer),
        ]
        type_ = INT8 if codes else FLOAT
        if kind == "If":
            graphs: list[GraphProto] = []
            for _ in range(2):
                inner, held = list[NodeProto](), list[TensorProto]()
                y = self.body(x, depth, outer, inner, held)
                y = self.ends(y, codes, inner, held, params)
                graphs.append(helper.make_graph(inner, self.name("b"), [], [info(y, type_)], held))
            out = self.name("v")
            then, other = graphs
            nodes.append(helper.make_node("If", ["c"], [out], then_branch=then, else_branch=other))
            return self.add(nodes, "DequantizeLinear", [out, *params]) if codes else out
        inner, held = list[NodeProto](), list[TensorProto]()
        state, out, rows = self.name("st"), self.name("v"), self.name("v")
        start = self.add(nodes, "QuantizeLinear", [x, *params]) if codes else x
        own = self.add(inner, "DequantizeLinear", [state, *params]) if codes else state
        if kind == "Loop":
            i, going = self.name("i"), self.name("g")
            y = self.body(own, depth, outer, inner, held)
            last = self.ends(y, codes, inner, held, params)
            shown = self.add(inner, "QuantizeLinear", [y, *params])
            more = self.add(inner, "Identity", [going])
            graph = helper.make_graph(
                inner, self.name("b"),
                [info(i, INT64, []), info(going, BOOL, []), info(state, type_)],
                [info(more, BOOL, []), info(last, type_), info(shown, INT8)], held,
            )  # fmt: skip
            nodes.append(helper.make_node("Loop", ["n", "", start], [out, rows], body=graph))
        else:
            row = self.name("x")
            both = self.add(inner, "Add", [own, self.real(row, inner, held)])
            y = self.body(both, depth, outer, inner, held)
            last = self.ends(y, codes, inner, held, params)
            shown = self.add(inner, "QuantizeLinear", [y, *params])
            graph = helper.make_graph(
                inner, self.name("b"), [info(state, type_), info(row)],
                [info(last, type_), info(shown, INT8)], held,
            )  # fmt: skip
            nodes.append(
                helper.make_node("Scan", [start, "xs"], [out, rows], num_scan_inputs=1, body=graph)
            )
        result = self.add(nodes, "DequantizeLinear", [out, *params]) if codes else out
        if self.random.random() < 0.5:
            return result
        real = self.add(nodes, "DequantizeLinear", [rows, *params])
        total = self.add(
            nodes, "ReduceSum", [real, self.constant(np.array([0]), self.outer)], keepdims=0
        )
        return self.add(nodes, "Add", [result, total])


def model(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Returns a model and data for it."""
    drawn = Drawn(seed)
    nodes = list[NodeProto]()
    y = drawn.control("x", 1, ["x"], nodes)
    nodes.append(helper.make_node("Identity", [y], ["y"]))
    steps = drawn.random.choice([1, 2, 5])
    inputs = [
        info("x"), info("c", BOOL, []), info("n", INT64, []),
        info("xs", FLOAT, [drawn.random.choice(["t", steps]), ROWS, WIDTH]),
    ]  # fmt: skip
    if all(each.name != "zero" for each in drawn.outer):
        drawn.outer.append(numpy_helper.from_array(np.asarray(0, np.int8), "zero"))
    graph = helper.make_graph(nodes, "g", inputs, [info("y")], drawn.outer)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    n = drawn.numbers
    return made, {
        "x": n.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "c": np.array(drawn.random.random() < 0.5), "n": np.array(drawn.random.choice([0, 1, 4])),
        "xs": n.normal(size=(steps, ROWS, WIDTH)).astype(np.float32),
    }  # fmt: skip


def _ran(model: onnx.ModelProto | Path, feeds: dict[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return np.asarray(exact_session(model, options).run(None, feeds)[0])


def case(seed: int, folder: Path, *, compiled: bool = False) -> str:
    """Returns in words what goes wrong."""
    made, feeds = model(seed)
    path, saved = folder / "m.onnx", folder / "o.onnx"
    onnx.save(made, path)
    graph, wanted = qb.load(path), _ran(made, feeds)
    if not np.array_equal(qb.evaluate(graph, feeds)["y"], wanted):
        return "the interpreter differs"
    if compiled and not np.array_equal(qb.compile(graph).run(feeds)["y"], wanted):
        return "TVM differs"
    qb.save(graph, saved, overwrite=True)
    if not np.array_equal(_ran(saved, feeds), wanted):
        return "onnxruntime computes something else of the saved file"
    return "" if qb.load(saved).digest == graph.digest else "the saved file has another digest"


def main(first: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(first, first + count):
            try:
                problem = case(seed, Path(scratch), compiled=True)
            except qb.QdqBridgeError as error:
                problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if problem:
                print(seed, problem, flush=True)
    print(f"{count} ran")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
