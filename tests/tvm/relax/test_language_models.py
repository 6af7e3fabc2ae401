"""A decoder as onnxruntime-genai's builder writes it: kept bit for bit, and decoded on TVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb

HIDDEN, HEADS, SHARED, SIZE, WORDS, BLOCK = 64, 4, 2, 16, 96, 32
TOKENS = 8
CLOSE = 1e-4
"""Of the largest logit; sums of float32 in another order are 1e-6 off."""


class _Builder:
    """Nodes and weights of a model."""

    def __init__(self, bits: int) -> None:
        self.rng, self.bits = np.random.default_rng(7), bits
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(
        self, op: str, inputs: list[str], outputs: list[str], domain: str = "", **at: Any
    ) -> None:
        self.nodes.append(helper.make_node(op, inputs, outputs, outputs[0], domain=domain, **at))

    def product(self, x: str, name: str, terms: int, rows: int) -> str:
        """A product with weights of 4 bits, or of floats."""
        if not self.bits:
            weight = self.rng.normal(0, 0.2, (terms, rows)).astype(np.float32)
            self.node("MatMul", [x, self.constant(f"{name}.w", weight)], [name])
            return name
        shape = (rows, terms // BLOCK, BLOCK // 2)
        codes = self.rng.integers(0, 256, shape).astype(np.uint8)
        scales = self.rng.uniform(0.02, 0.06, rows * terms // BLOCK).astype(np.float32)
        given = [x, self.constant(f"{name}.w", codes), self.constant(f"{name}.s", scales)]
        self.node("MatMulNBits", given, [name], "com.microsoft", K=terms, N=rows, bits=4,
                  block_size=BLOCK)  # fmt: skip
        return name

    def norm(self, name: str) -> str:
        return self.constant(name, self.rng.uniform(0.8, 1.2, HIDDEN).astype(np.float32))


def _model(bits: int) -> onnx.ModelProto:
    """Two layers; weights of floats where ``bits`` is 0."""
    b = _Builder(bits)
    angles = np.outer(np.arange(64), 1 / 100 ** (np.arange(SIZE // 2) / (SIZE // 2)))
    tables = [b.constant("cos", np.cos(angles).astype(np.float32)),
              b.constant("sin", np.sin(angles).astype(np.float32))]  # fmt: skip
    one, axis = b.constant("one", np.array([1])), b.constant("axis", np.array(1))
    words = b.rng.normal(0, 1, (WORDS, HIDDEN)).astype(np.float32)
    b.node("Gather", [b.constant("words", words), "input_ids"], ["x"])
    b.node("ReduceSum", ["attention_mask", one], ["count"], keepdims=0)
    b.node("Sub", ["count", one], ["last"])
    b.node("Cast", ["last"], ["ends"], to=TensorProto.INT32)
    b.node("Shape", ["attention_mask"], ["shape"])
    b.node("Gather", ["shape", axis], ["longest"])
    b.node("Cast", ["longest"], ["total"], to=TensorProto.INT32)
    b.node("SimplifiedLayerNormalization", ["x", b.norm("n")], ["h"], axis=-1, epsilon=1e-5)
    x, h = "x", "h"
    tokens = ["batch", "length"]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, tokens),
              helper.make_tensor_value_info("attention_mask", TensorProto.INT64,
                                            ["batch", "all"])]  # fmt: skip
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*tokens, WORDS])]
    for layer in range(2):
        p = f"{layer}."
        qkv = b.product(h, f"{p}qkv", HIDDEN, (HEADS + 2 * SHARED) * SIZE)
        past, present = [f"past.{p}{x}" for x in "kv"], [f"present.{p}{x}" for x in "kv"]
        for names, into, extent in ((past, inputs, "old"), (present, outputs, "all")):
            shape = ["batch", SHARED, extent, SIZE]
            into += [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names
            ]
        b.node("GroupQueryAttention", [qkv, "", "", *past, "ends", "total", *tables],
               [f"{p}a", *present], "com.microsoft", num_heads=HEADS, kv_num_heads=SHARED,
               do_rotary=1)  # fmt: skip
        o = b.product(f"{p}a", f"{p}o", HEADS * SIZE, HIDDEN)
        b.node("SkipSimplifiedLayerNormalization", [x, o, b.norm(f"{p}n1")],
               [f"{p}h1", "", "", f"{p}x1"], "com.microsoft", epsilon=1e-5)  # fmt: skip
        gate = b.product(f"{p}h1", f"{p}gate", HIDDEN, 96)
        b.node("Sigmoid", [gate], [f"{p}open"])
        b.node("Mul", [gate, f"{p}open"], [f"{p}swish"])
        down = b.product(f"{p}swish", f"{p}down", 96, HIDDEN)
        b.node("SkipSimplifiedLayerNormalization", [f"{p}x1", down, b.norm(f"{p}n2")],
               [f"{p}h2", "", "", f"{p}x2"], "com.microsoft", epsilon=1e-5)  # fmt: skip
        x, h = f"{p}x2", f"{p}h2"
    b.node("Identity", [b.product(h, "head", HIDDEN, WORDS)], ["logits"])
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, b.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _session(path: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options)
    names = [each.name for each in session.get_outputs()]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = session.run(None, dict(feeds))
        return {n: np.asarray(r) for n, r in zip(names, results, strict=True)}

    return run


def _decoded(run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]) -> np.ndarray:
    """The last logits of a prompt and of each token after it, the greatest one each time."""
    cache = [f"past.{layer}.{kind}" for layer in range(2) for kind in "kv"]
    state = {name: np.zeros((1, SHARED, 0, SIZE), np.float32) for name in cache}
    tokens, past, found = np.array([[3, 14, 15, 92, 65]]), 0, list[np.ndarray]()
    for _ in range(TOKENS + 1):
        past += tokens.shape[1]
        mask = np.ones((1, past), np.int64)
        results = run({"input_ids": tokens, "attention_mask": mask, **state})
        state = {name: np.asarray(results[name.replace("past", "present")]) for name in cache}
        found.append(np.asarray(results["logits"])[0, -1])
        tokens = np.array([[found[-1].argmax()]])
    return np.stack(found)


@pytest.mark.parametrize("bits", [0, 4])
def test_a_decoder_is_kept_and_decodes_on_tvm(bits: int, tmp_path: Path) -> None:
    original, saved = tmp_path / "model.onnx", tmp_path / "saved.onnx"
    onnx.save(_model(bits), original)
    graph = qb.load(original)
    wanted = _decoded(_session(original))
    qb.save(graph, saved)
    assert qb.load(saved).digest == graph.digest
    kinds = [Counter(n.op_type for n in onnx.load(p).graph.node) for p in (original, saved)]
    assert kinds[0] - Counter(["Identity"]) == kinds[1] - Counter(["Identity"])
    np.testing.assert_array_equal(_decoded(_session(saved)), wanted)
    for run in (lambda feeds: qb.evaluate(graph, feeds), qb.compile(graph).run):
        found = _decoded(run)
        assert (found.argmax(-1) == wanted.argmax(-1)).all()
        assert np.abs(found - wanted).max() <= CLOSE * np.abs(wanted).max()
    module, _ = qb.to_relax(graph)
    assert qb.from_relax(module).digest == graph.digest
