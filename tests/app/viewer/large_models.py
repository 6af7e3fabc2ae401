"""Graphs of the size of language models: every weight lies in a sparse file that holds zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _LlamaFile:
    """Decoder layers as exporters write them, with int8 weights per channel in one other file."""

    def __init__(self, hidden: int, inner: int, vocabulary: int) -> None:
        self.hidden, self.inner, self.vocabulary = hidden, inner, vocabulary
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.offset = self.elements = 0

    def op(self, kind: str, *operands: str, name: str, **attributes: Any) -> str:
        result = f"{name}_output_0"
        self.nodes.append(helper.make_node(kind, operands, [result], name=name, **attributes))
        return result

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, rows: int, columns: int) -> str:
        """Returns real numbers of int8 zeros, of which the file has nothing but their place."""
        tensor = onnx.TensorProto(name=f"{name}.weight", data_type=TensorProto.INT8)
        tensor.dims.extend((rows, columns))
        tensor.data_location = TensorProto.EXTERNAL
        size = rows * columns
        for key, value in (("location", "weights"), ("offset", self.offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self.offset += -(-size // 4096) * 4096
        self.elements += size
        self.constants.append(tensor)
        scale = self.constant(f"{name}.scale", np.full(columns, 0.01, np.float32))
        return self.op("DequantizeLinear", tensor.name, scale, name=f"{name}/DequantizeLinear",
                       axis=1)  # fmt: skip

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        return self.op("MatMul", x, self.weight(name, rows, columns), name=f"{name}/MatMul")

    def norm(self, x: str, name: str) -> str:
        weight = self.constant(f"{name}.weight", np.ones(self.hidden, np.float32))
        return self.op("RMSNormalization", x, weight, name=f"{name}/RMSNormalization", axis=-1)

    def heads(self, x: str, name: str, count: int) -> str:
        shape = self.constant(f"{name}.shape", np.asarray([0, 0, count, -1], np.int64))
        split = self.op("Reshape", x, shape, name=f"{name}/Reshape")
        return self.op("Transpose", split, name=f"{name}/Transpose", perm=[0, 2, 1, 3])

    def layer(self, x: str, number: int, heads: int) -> str:
        at = f"/model/layers.{number}"
        normed = self.norm(x, f"{at}/input_layernorm")
        q, k, v = (
            self.heads(
                self.linear(normed, f"{at}/self_attn/{p}_proj", self.hidden, self.hidden),
                f"{at}/self_attn/{p}", heads,
            )
            for p in "qkv"
        )  # fmt: skip
        turned = self.op("Transpose", k, name=f"{at}/self_attn/k/Transpose_1", perm=[0, 1, 3, 2])
        scores = self.op("MatMul", q, turned, name=f"{at}/self_attn/MatMul")
        root = self.constant(f"{at}.root", np.asarray((self.hidden / heads) ** 0.5, np.float32))
        scores = self.op("Div", scores, root, name=f"{at}/self_attn/Div")
        shares = self.op("Softmax", scores, name=f"{at}/self_attn/Softmax", axis=-1)
        mixed = self.op("MatMul", shares, v, name=f"{at}/self_attn/MatMul_1")
        back = self.op("Transpose", mixed, name=f"{at}/self_attn/Transpose", perm=[0, 2, 1, 3])
        shape = self.constant(f"{at}.joined", np.asarray([0, 0, self.hidden], np.int64))
        joined = self.op("Reshape", back, shape, name=f"{at}/self_attn/Reshape")
        out = self.linear(joined, f"{at}/self_attn/o_proj", self.hidden, self.hidden)
        x = self.op("Add", x, out, name=f"{at}/Add")
        normed = self.norm(x, f"{at}/post_attention_layernorm")
        gate = self.linear(normed, f"{at}/mlp/gate_proj", self.hidden, self.inner)
        gate = self.op("Mul", gate, self.op("Sigmoid", gate, name=f"{at}/mlp/act_fn/Sigmoid"),
                       name=f"{at}/mlp/act_fn/Mul")  # fmt: skip
        up = self.linear(normed, f"{at}/mlp/up_proj", self.hidden, self.inner)
        both = self.op("Mul", gate, up, name=f"{at}/mlp/Mul")
        down = self.linear(both, f"{at}/mlp/down_proj", self.inner, self.hidden)
        return self.op("Add", x, down, name=f"{at}/Add_1")


def llama(
    folder: Path, *, layers: int = 32, hidden: int = 4096, inner: int = 11008,
    vocabulary: int = 32000, heads: int = 32,
) -> tuple[Path, int]:  # fmt: skip
    """Writes a decoder, of seven billion parameters by default; returns it and their number.

    Args:
        folder: Where ``model.onnx`` and its sparse file of weights go.
        layers: Decoder layers.
        hidden: Elements of a token.
        inner: Elements within a feed-forward block.
        vocabulary: Tokens.
        heads: Heads of attention.
    """
    file = _LlamaFile(hidden, inner, vocabulary)
    table = file.weight("/model/embed_tokens", vocabulary, hidden)
    x = file.op("Gather", table, "input_ids", name="/model/embed_tokens/Gather", axis=0)
    for number in range(layers):
        x = file.layer(x, number, heads)
    logits = file.linear(file.norm(x, "/model/norm"), "/lm_head", hidden, vocabulary)
    ports = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["batch", "sequence", vocabulary]),
    ]
    graph = helper.make_graph(file.nodes, "llama", ports[:1], ports[1:], file.constants)
    opset = helper.make_opsetid("", 23)
    (folder / "model.onnx").write_bytes(
        helper.make_model(graph, opset_imports=[opset], ir_version=11).SerializeToString()
    )
    with (folder / "weights").open("wb") as weights:
        weights.truncate(file.offset)
    return folder / "model.onnx", file.elements
