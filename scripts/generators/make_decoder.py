"""Trains the decoder of ``models/decoder``: ``python -m scripts.generators.make_decoder``.

Two layers that write text byte by byte, with a key-value cache as inputs and outputs: root mean
square norms, grouped queries with rotary positions (``GroupQueryAttention``), a gated product of
SiLU. The names of its inputs and outputs are those of onnxruntime-genai's model builder. It learns
the pages of this repository; see ``examples/decode_language_model.py`` for what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from scripts.generators.byte_training import ROOT, VOCABULARY, descend, loss_of, pages, pieces

MODEL = ROOT / "models" / "decoder" / "float.onnx"
SEED, STEPS, BATCH, CONTEXT = 7, 3000, 24, 96
LONGEST = 512
"""How many positions there are."""
THETA, EPSILON = 10_000.0, 1e-5
OPSET, IR_VERSION = 21, 10


@dataclass(frozen=True)
class Shape:
    """How large the decoder is."""

    width: int = 64
    inner: int = 160
    layers: int = 2
    heads: int = 4
    groups: int = 2

    @property
    def head(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads


SHAPE = Shape()


class Layer(nn.Module):
    """Attention, and what follows it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.width, shape.inner
        self.shape = shape
        self.before, self.behind = nn.RMSNorm(width, EPSILON), nn.RMSNorm(width, EPSILON)
        rows = (shape.heads + 2 * shape.groups) * shape.head
        self.qkv = nn.Linear(width, rows, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Returns ``[batch, sequence, width]`` of the same."""
        x = x + self.out(self.mixed(self.qkv(self.before(x)), cos, sin))
        y = self.behind(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def mixed(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Returns the attention of every position to those before it."""
        batch, sequence, _ = qkv.shape
        shape = self.shape
        parts = qkv.view(batch, sequence, -1, shape.head).transpose(1, 2)
        q, k, v = parts.split((shape.heads, shape.groups, shape.groups), dim=1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (each.repeat_interleave(shape.heads // shape.groups, dim=1) for each in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return found.transpose(1, 2).reshape(batch, sequence, shape.width)


class Decoder(nn.Module):
    """Bytes in, logits of the next ones out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, EPSILON)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        cos, sin = rotations(shape.head)
        self.cos, self.sin = torch.from_numpy(cos), torch.from_numpy(sin)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits of ``[batch, sequence]`` bytes."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        return self.head(self.norm(x))


def rotations(head: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines, ``[LONGEST, head / 2]``."""
    rates = THETA ** (-np.arange(0, head, 2) / head)
    angles = np.arange(LONGEST)[:, None] * rates
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns queries or keys turned by their position, the halves of a head as pairs."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def text() -> np.ndarray:
    """Returns the bytes of the pages, those beyond ASCII as question marks."""
    paths = pages("*.md", "docs/*.md", "qdqbridge/**/*.md")
    read = [path.read_text("utf-8").encode("ascii", "replace") for path in paths]
    return np.frombuffer(b"\n".join(read), np.uint8)


def trained(data: np.ndarray) -> Decoder:
    """Returns a decoder that has read the text."""
    torch.manual_seed(SEED)
    rng, decoder = np.random.default_rng(SEED), Decoder(SHAPE)

    def loss(_: int) -> Tensor:
        batch = torch.from_numpy(pieces(data, BATCH, CONTEXT, rng))
        return loss_of(decoder(batch[:, :-1]), batch)

    descend(decoder.parameters(), loss, STEPS, every=250, lr=4e-3, weight_decay=0.02)
    return decoder.eval()


class Writer:
    """Collects nodes and constants of a file."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        """Adds a constant; returns its name."""
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], outputs: list[str], **how: Any) -> str:
        """Adds a node; returns the name of its first result."""
        name = f"{outputs[0]}_{op}" if outputs[0] == "logits" else outputs[0]
        self.nodes.append(helper.make_node(op, inputs, outputs, name, **how))
        return outputs[0]

    def product(self, x: str, linear: nn.Linear, name: str, result: str | None = None) -> str:
        """Adds a product with a weight."""
        weight = self.constant(f"{name}.weight", linear.weight.detach().numpy().T.copy())
        return self.add("MatMul", [x, weight], [result or name])

    def norm(self, x: str, norm: nn.RMSNorm, name: str) -> str:
        """Adds a root mean square norm."""
        scale = self.constant(f"{name}.weight", norm.weight.detach().numpy().copy())
        return self.add("SimplifiedLayerNormalization", [x, scale], [name], axis=-1,
                        epsilon=EPSILON, stash_type=1)  # fmt: skip


def written(decoder: Decoder) -> onnx.ModelProto:
    """Returns the decoder as a file that onnxruntime runs."""
    w, shape = Writer(), SHAPE
    cos, sin = w.constant("cos", decoder.cos.numpy()), w.constant("sin", decoder.sin.numpy())
    ones = w.constant("one", np.array([1], np.int64))
    seen = w.add("ReduceSum", ["attention_mask", ones], ["seen"], keepdims=0)
    last = w.add("Sub", [seen, ones], ["last"])
    lengths = w.add("Cast", [last], ["lengths"], to=TensorProto.INT32)
    extents = w.add("Shape", ["attention_mask"], ["extents"], start=1, end=2)
    axis = w.constant("axis", np.array([0], np.int64))
    total = w.add("Squeeze", [extents, axis], ["total_length"])
    total = w.add("Cast", [total], ["total"], to=TensorProto.INT32)
    embed = w.constant("embed", decoder.embed.weight.detach().numpy().copy())
    x = w.add("Gather", [embed, "input_ids"], ["embedded"])
    caches: list[tuple[str, str]] = []
    for i, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        own = f"layer{i}"
        past = [f"past_key_values.{i}.{k}" for k in ("key", "value")]
        present = [f"present.{i}.{k}" for k in ("key", "value")]
        caches += zip(past, present, strict=True)
        qkv = w.product(w.norm(x, layer.before, f"{own}.before"), layer.qkv, f"{own}.qkv")
        mixed = w.add(
            "GroupQueryAttention", [qkv, "", "", *past, lengths, total, cos, sin],
            [f"{own}.mixed", *present], domain="com.microsoft", num_heads=shape.heads,
            kv_num_heads=shape.groups, do_rotary=1, rotary_interleaved=0,
        )  # fmt: skip
        x = w.add("Add", [x, w.product(mixed, layer.out, f"{own}.out")], [f"{own}.attended"])
        y = w.norm(x, layer.behind, f"{own}.behind")
        gate = w.product(y, layer.gate, f"{own}.gate")
        share = w.add("Sigmoid", [gate], [f"{own}.share"])
        silu = w.add("Mul", [gate, share], [f"{own}.silu"])
        gated = w.add("Mul", [silu, w.product(y, layer.up, f"{own}.up")], [f"{own}.gated"])
        x = w.add("Add", [x, w.product(gated, layer.down, f"{own}.down")], [f"{own}.done"])
    w.product(w.norm(x, decoder.norm, "norm"), decoder.head, "head", "logits")

    def info(name: str, dtype: int, *extents: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, extents)

    cache = ("batch", shape.groups, "{}", shape.head)

    def cached(name: str, length: str) -> onnx.ValueInfoProto:
        extents = (length if each == "{}" else each for each in cache)
        return info(name, TensorProto.FLOAT, *extents)

    graph = helper.make_graph(
        w.nodes, "decoder",
        [info("input_ids", TensorProto.INT64, "batch", "sequence"),
         info("attention_mask", TensorProto.INT64, "batch", "total"),
         *(cached(past, "past") for past, _ in caches)],
        [info("logits", TensorProto.FLOAT, "batch", "sequence", VOCABULARY),
         *(cached(present, "total") for _, present in caches)],
        w.constants,
    )  # fmt: skip
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="make_decoder"
    )


def main() -> None:
    """Trains and writes it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    onnx.save(written(trained(text())), MODEL)
    print(f"{MODEL.name}: {MODEL.stat().st_size} bytes")


if __name__ == "__main__":
    main()
