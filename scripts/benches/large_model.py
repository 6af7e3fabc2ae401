"""What a file of billions of weights takes: ``large_model.py FOLDER [--layers N] [--step STEP]``.

Makes a decoder with random int4 weights (``MatMulNBits``), external data and a key-value cache in
FOLDER where there is none; 32 layers are 6.7 billion weights and 4 GB. A fresh process then does a
step (``load``, ``to_relax`` or ``compile``, which runs a prompt and some tokens as well) and prints
seconds, those of the processor, and memory in GB: held, of that in anonymous pages, and at most.
Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN, INNER, WORDS, HEADS, LENGTH = 4096, 11008, 32000, 32, 2048
HEAD = HIDDEN // HEADS
MICROSOFT = "com.microsoft"
_PIECE = 1 << 24
_PAGE = 4096


class Decoder:
    """Writes the model and its data side by side; weights never are in memory together.

    Args:
        folder: Where ``model.onnx`` and its data go.
        block: Weights that share a scale.
    """

    def __init__(self, folder: Path, block: int) -> None:
        self.folder, self.block, self.rng = folder, block, np.random.default_rng(0)
        self.bytes = self.rng.integers(0, 256, _PIECE, np.uint8).tobytes()
        self.nodes, self.tensors = list[Any](), list[Any]()
        self.end = 0

    def tensor(self, name: str, dtype: int, shape: Sequence[int], spread: float = 0.0) -> str:
        """Writes a tensor: random bytes, or positive float32 numbers of that spread."""
        count = int(np.prod(shape)) * (1 if dtype == TensorProto.UINT8 else 4)
        padding = -self.end % _PAGE
        self.data.write(bytes(padding))
        start = self.end + padding
        for done in range(0, count, _PIECE):
            size = min(_PIECE, count - done)
            if dtype == TensorProto.UINT8:
                self.data.write(self.bytes[:size])
            else:
                drawn = self.rng.uniform(0.5, 1.5, size // 4).astype(np.float32)
                self.data.write((drawn * np.float32(spread)).tobytes())
        self.end = start + count
        proto = TensorProto(name=name, data_type=dtype, dims=shape)
        proto.data_location = TensorProto.EXTERNAL
        place = {"location": "model.onnx.data", "offset": str(start), "length": str(count)}
        for key, value in place.items():
            proto.external_data.add(key=key, value=value)
        self.tensors.append(proto)
        return name

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> str:
        """Adds a node; returns its first result."""
        self.nodes.append(helper.make_node(op, inputs, outputs, outputs[0], **attributes))
        return outputs[0]

    def product(self, x: str, name: str, inner: int, units: int) -> str:
        """Adds a product with a weight of 4 bits in blocks."""
        blocks = inner // self.block
        codes = self.tensor(f"{name}.w", TensorProto.UINT8, (units, blocks, self.block // 2))
        scales = self.tensor(f"{name}.s", TensorProto.FLOAT, (units * blocks,), 0.2 / inner**0.5)
        return self.node(
            "MatMulNBits", [x, codes, scales], [name], domain=MICROSOFT, K=inner, N=units, bits=4,
            block_size=self.block,
        )  # fmt: skip

    def norm(self, x: str, added: str, name: str) -> tuple[str, str]:
        """Adds ``x + added`` and its norm; returns both."""
        gamma = self.tensor(f"{name}.gamma", TensorProto.FLOAT, (HIDDEN,), 1.0)
        outputs = [f"{name}.normed", "", "", f"{name}.sum"]
        self.node(
            "SkipSimplifiedLayerNormalization", [x, added, gamma], outputs, domain=MICROSOFT,
            epsilon=1e-5,
        )  # fmt: skip
        return outputs[3], outputs[0]

    def layer(self, i: int, x: str, h: str) -> tuple[str, str]:
        """Adds attention and the gated product behind it."""
        qkv = self.product(h, f"{i}.qkv", HIDDEN, 3 * HIDDEN)
        inputs = [qkv, "", "", f"past.{i}.k", f"past.{i}.v", "last", "total", "cos", "sin"]
        seen = self.node(
            "GroupQueryAttention", inputs, [f"{i}.seen", f"present.{i}.k", f"present.{i}.v"],
            domain=MICROSOFT, num_heads=HEADS, kv_num_heads=HEADS, do_rotary=1,
        )  # fmt: skip
        x, h = self.norm(x, self.product(seen, f"{i}.o", HIDDEN, HIDDEN), f"{i}.a")
        gate = self.product(h, f"{i}.gate", HIDDEN, INNER)
        up = self.product(h, f"{i}.up", HIDDEN, INNER)
        sigmoid = self.node("Sigmoid", [gate], [f"{i}.sigmoid"])
        silu = self.node("Mul", [gate, sigmoid], [f"{i}.silu"])
        gated = self.node("Mul", [silu, up], [f"{i}.gated"])
        return self.norm(x, self.product(gated, f"{i}.down", INNER, HIDDEN), f"{i}.b")

    def write(self, layers: int) -> None:
        """Writes the whole model."""
        with (self.folder / "model.onnx.data").open("wb") as self.data:
            self.tensor("embedding", TensorProto.FLOAT, (WORDS, HIDDEN), 0.02)
            x = self.node("Gather", ["embedding", "input_ids"], ["x"])
            self.node("ReduceSum", ["attention_mask", "one"], ["lengths"], keepdims=0)
            self.node("Cast", [self.node("Sub", ["lengths", "one"], ["ends"])], ["last"], to=6)
            self.node("Gather", [self.node("Shape", ["attention_mask"], ["s"]), "axis"], ["t"])
            self.node("Cast", ["t"], ["total"], to=TensorProto.INT32)
            gamma = self.tensor("gamma", TensorProto.FLOAT, (HIDDEN,), 1.0)
            h = self.node("SimplifiedLayerNormalization", [x, gamma], ["h"], epsilon=1e-5)
            for i in range(layers):
                x, h = self.layer(i, x, h)
            self.node("Identity", [self.product(h, "head", HIDDEN, WORDS)], ["logits"])
        onnx.save(self.model(layers), self.folder / "model.onnx")

    def model(self, layers: int) -> onnx.ModelProto:
        """Returns the model of the nodes so far."""
        angles = np.outer(np.arange(LENGTH), 1 / 1e4 ** (np.arange(HEAD // 2) / (HEAD // 2)))
        small = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
        small |= {"one": np.array([1], np.int64), "axis": np.array(1, np.int64)}
        self.tensors += [numpy_helper.from_array(array, name) for name, array in small.items()]

        def info(name: str, dtype: int, *shape: str | int) -> Any:
            return helper.make_tensor_value_info(name, dtype, shape)

        tokens, numbers = TensorProto.INT64, TensorProto.FLOAT
        inputs = [info("input_ids", tokens, "b", "n"), info("attention_mask", tokens, "b", "all")]
        outputs = [info("logits", numbers, "b", "n", WORDS)]
        for each in (f"{i}.{kind}" for i in range(layers) for kind in "kv"):
            inputs.append(info(f"past.{each}", numbers, "b", HEADS, "past", HEAD))
            outputs.append(info(f"present.{each}", numbers, "b", HEADS, "all", HEAD))
        made = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.tensors)
        opsets = [helper.make_opsetid("", 22), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(made, opset_imports=opsets, ir_version=10)


class Meter:
    """Prints what has passed since the last line."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def line(self, what: str) -> None:
        """Prints one line."""
        wall, cpu = time.perf_counter(), time.process_time()
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        status = {line.partition(":")[0]: line.split()[1] for line in lines if "kB" in line}
        held, own, most = (int(status[key]) / 1e6 for key in ("VmRSS", "RssAnon", "VmHWM"))
        print(
            f"{what:10} {wall - self.wall:7.2f} s  cpu {cpu - self.cpu:6.2f} s  "
            f"{held:5.2f} GB  anonymous {own:5.2f}  most {most:5.2f}", flush=True,
        )  # fmt: skip
        self.wall, self.cpu = time.perf_counter(), time.process_time()


def measure(path: Path, step: str) -> None:
    """Does a step in this process."""
    import tvm

    import qdqbridge as qb

    print(f"TVM {tvm.__version__}, whose libraries are not the model's")
    meter = Meter()
    meter.line("start")
    graph = qb.load(path)
    meter.line("load")
    if step == "to_relax":
        _ = qb.to_relax(graph)
        meter.line("to_relax")
    if step != "compile":
        return
    executable = qb.compile(graph, threads=2)
    meter.line("compile")
    state = {v.name: np.zeros((1, HEADS, 0, HEAD), np.float32) for v in graph.inputs[2:]}
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    for i in range(5):
        past = next(iter(state.values())).shape[2]
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, past + len(tokens)), np.int64),
        }
        found = executable.run({**feeds, **state})
        state = {name: found[name.replace("past", "present")] for name in state}
        tokens = [int(found["logits"][0, -1].argmax())]
        meter.line("token" if i else "prompt")


def main(argv: Sequence[str]) -> int:
    """Makes the model where there is none, and measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--block", type=int, default=128, choices=(32, 64, 128))
    parser.add_argument("--step", choices=("load", "to_relax", "compile"))
    arguments = parser.parse_args(argv)
    path: Path = arguments.folder / "model.onnx"
    if not path.exists():
        arguments.folder.mkdir(parents=True, exist_ok=True)
        Decoder(arguments.folder, arguments.block).write(arguments.layers)
    if arguments.step:
        measure(path, arguments.step)
        return 0
    print(f"{path.with_name('model.onnx.data').stat().st_size / 1e9:.2f} GB of data", flush=True)
    for step in ("to_relax", "compile"):
        subprocess.run([sys.executable, __file__, *argv, "--step", step], check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
