"""A small language model, and what its weights lose in few bits: perplexity by tool.

``python -m scripts.benches.small_language_model train MODEL.onnx`` (with PyTorch) trains a
decoder-only transformer on the bytes of this repository's own pages and sources; ``compare
MODEL.onnx`` stores the weights of its products in 4 (or 8) bits, by us and by onnxruntime's
``MatMulNBitsQuantizer`` (``pip install onnx_ir torch``) and, in blocks of 32, by tools in Pythons
of their own (``--nncf PYTHON``, ``--aimet``, ``--quark``, ``--modelopt``: see
``bench_quantize_tools.py``). It prints the perplexity on text that neither training nor
calibration has seen. Files are run by onnxruntime with its optimizations on and, in the second
figure, off.

``train`` writes ``MODEL.npz`` beside the model: ``scripts/bench quantize --folder`` reads both.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scripts.generators.byte_training import VOCABULARY, descend, loss_of, pages, pieces

Array = NDArray[Any]
Weights = dict[str, Array]
CONTEXT = 64
TOOLS = ("nncf", "aimet", "quark", "modelopt")
HELD_OUT = 0.1
"""The share of every file's end that nobody trains on."""
OUTLIERS = 24.0
"""How much larger some channels behind the norms are than others, as in large models."""


@dataclass(frozen=True)
class Shape:
    """How large the model is."""

    width: int = 128
    layers: int = 3
    heads: int = 4


def text() -> tuple[Array, Array]:
    """Returns the bytes to train on, and those to judge on."""
    seen, unseen = bytearray(), bytearray()
    for path in pages("docs/*.md", "*.md", "qdqbridge/**/*.py"):
        data = path.read_bytes()
        end = int(len(data) * (1 - HELD_OUT))
        seen += data[:end]
        unseen += data[end:]
    first, second = (np.frombuffer(bytes(t), np.uint8) for t in (seen, unseen))
    return np.minimum(first, VOCABULARY - 1), np.minimum(second, VOCABULARY - 1)


def examples(data: Array, count: int, seed: int) -> Array:
    """Returns ``[count, CONTEXT + 1]`` bytes from places that a seed gives."""
    return pieces(data, count, CONTEXT, np.random.default_rng(seed))


def write_samples(path: Path) -> None:
    """Writes the samples that ``scripts/bench quantize --folder`` reads beside a model."""
    seen, unseen = text()
    np.savez(
        path, seen_ids=examples(seen, 64, 1)[:, :-1], fresh_ids=examples(unseen, 64, 2)[:, :-1]
    )


# ---- training -----------------------------------------------------------------------------------


def trained(shape: Shape, steps: int, seed: int) -> Weights:
    """Returns the weights after so many steps of AdamW."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    weights = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in _start(shape, seed).items()}
    mask = torch.triu(torch.full((CONTEXT, CONTEXT), -1e9), 1)
    seen, _ = text()

    def loss(step: int) -> Any:
        batch = torch.tensor(examples(seen, 24, seed + step))
        y = weights["embed"][batch[:, :-1]] + weights["place"]
        for i in range(shape.layers):
            y = y + _attention(_norm(y, weights, f"{i}.a"), weights, i, shape, mask)
            inner = _norm(y, weights, f"{i}.m") @ weights[f"{i}.up"] + weights[f"{i}.up.bias"]
            y = y + F.gelu(inner) @ weights[f"{i}.down"] + weights[f"{i}.down.bias"]
        return loss_of(_norm(y, weights, "end") @ weights["head"], batch)

    descend(weights.values(), loss, steps, every=100, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.05)
    return {name: w.detach().numpy() for name, w in weights.items()}


def _start(shape: Shape, seed: int) -> Weights:
    rng, d = np.random.default_rng(seed), shape.width

    def drawn(*sizes: int, scale: float) -> Array:
        return (rng.standard_normal(sizes) * scale).astype(np.float32)

    found = {
        "embed": drawn(VOCABULARY, d, scale=0.1), "place": drawn(CONTEXT, d, scale=0.02),
        "head": drawn(d, VOCABULARY, scale=d**-0.5),
    }  # fmt: skip
    for norm in ("end", *(f"{i}.{k}" for i in range(shape.layers) for k in "am")):
        found[f"{norm}.gamma"], found[f"{norm}.beta"] = (
            np.ones(d, np.float32),
            np.zeros(d, np.float32),
        )
    for i in range(shape.layers):
        for name, a, b in (("qkv", d, 3 * d), ("out", d, d), ("up", d, 4 * d), ("down", 4 * d, d)):
            found[f"{i}.{name}"] = drawn(a, b, scale=a**-0.5 / (1 + (name in ("out", "down"))))
            found[f"{i}.{name}.bias"] = np.zeros(b, np.float32)
    return found


def _norm(y: Any, weights: Any, name: str) -> Any:
    centred = y - y.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / deviation * weights[f"{name}.gamma"] + weights[f"{name}.beta"]


def _attention(y: Any, weights: Any, layer: int, shape: Shape, mask: Any) -> Any:
    n, t, d = y.shape
    qkv = y @ weights[f"{layer}.qkv"] + weights[f"{layer}.qkv.bias"]
    q, k, v = qkv.reshape(n, t, 3, shape.heads, d // shape.heads).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-1, -2) / (d // shape.heads) ** 0.5 + mask).softmax(-1)
    mixed = (scores @ v).transpose(1, 2).reshape(n, t, d)
    return mixed @ weights[f"{layer}.out"] + weights[f"{layer}.out.bias"]


def with_outliers(weights: Weights, shape: Shape, seed: int) -> Weights:
    """Returns weights of the same function with a few loud channels behind every norm."""
    rng, found = np.random.default_rng(seed), dict(weights)
    for i in range(shape.layers):
        for norm, product in ((f"{i}.a", f"{i}.qkv"), (f"{i}.m", f"{i}.up")):
            factor = np.ones(shape.width, np.float32)
            factor[rng.permutation(shape.width)[:3]] = OUTLIERS
            found[f"{norm}.gamma"] = found[f"{norm}.gamma"] * factor
            found[f"{norm}.beta"] = found[f"{norm}.beta"] * factor
            found[product] = found[product] / factor[:, None]
    return found


# ---- the file -----------------------------------------------------------------------------------


class _Writer:
    """Adds nodes whose results are numbered."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = dict(weights)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], output, **attributes))
        return output

    def constant(self, name: str, array: Array) -> str:
        self.constants[name] = array
        return name

    def linear(self, x: str, name: str) -> str:
        return self.add("Add", self.add("MatMul", x, name), f"{name}.bias")

    def norm(self, x: str, name: str) -> str:
        return self.add("LayerNormalization", x, f"{name}.gamma", f"{name}.beta", epsilon=1e-5)


def written(weights: Weights, shape: Shape) -> onnx.ModelProto:
    """Returns the model as an ONNX file: ``ids[n, CONTEXT]`` to ``logits``."""
    w, size = _Writer(weights), shape.width // shape.heads
    heads = w.constant("heads", np.array([0, CONTEXT, shape.heads, size], np.int64))
    whole = w.constant("whole", np.array([0, CONTEXT, shape.width], np.int64))
    thirds = w.constant("thirds", np.full(3, shape.width, np.int64))
    root = w.constant("root", np.array(size**0.5, np.float32))
    mask = w.constant("mask", np.triu(np.full((CONTEXT, CONTEXT), -1e4, np.float32), 1))
    y = w.add("Add", w.add("Gather", "embed", "ids"), "place")
    for i in range(shape.layers):
        x = w.linear(w.norm(y, f"{i}.a"), f"{i}.qkv")
        parts = [f"{x}_{k}" for k in "qkv"]
        w.nodes.append(helper.make_node("Split", [x, thirds], parts, f"{x}_split", axis=2))
        q, k, v = (w.add("Reshape", part, heads) for part in parts)
        q, v = (w.add("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        k = w.add("Transpose", k, perm=[0, 2, 3, 1])
        scores = w.add("Add", w.add("Div", w.add("MatMul", q, k), root), mask)
        mixed = w.add("MatMul", w.add("Softmax", scores, axis=-1), v)
        mixed = w.add("Reshape", w.add("Transpose", mixed, perm=[0, 2, 1, 3]), whole)
        y = w.add("Add", y, w.linear(mixed, f"{i}.out"))
        inner = w.add("Gelu", w.linear(w.norm(y, f"{i}.m"), f"{i}.up"))
        y = w.add("Add", y, w.linear(inner, f"{i}.down"))
    w.nodes.append(helper.make_node("MatMul", [w.norm(y, "end"), "head"], ["logits"], "head"))
    graph = helper.make_graph(
        w.nodes, "small_language_model",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", CONTEXT])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CONTEXT, VOCABULARY])],
        [numpy_helper.from_array(array, name) for name, array in w.constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


# ---- comparing ----------------------------------------------------------------------------------


def perplexity(path: Path, samples: Array, *, optimized: bool = True) -> float:
    """Returns the perplexity of a file on pieces of text."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(str(path), options)
    total, count = 0.0, 0
    for i in range(0, len(samples), 32):
        batch = samples[i : i + 32]
        (logits,) = session.run(None, {"ids": batch[:, :-1]})
        wide = np.asarray(logits, np.float64)
        top = wide.max(axis=-1, keepdims=True)
        norm = np.log(np.exp(wide - top).sum(axis=-1)) + top[..., 0]
        chosen = np.take_along_axis(wide, batch[:, 1:, None], axis=-1)[..., 0]
        total += float((norm - chosen).sum())
        count += chosen.size
    return math.exp(total / count)


def ours(model: Path, out: Path, samples: Array, **wanted: Any) -> None:
    """Writes what we make of a model by a target and formats."""
    import qdqbridge as qb

    graph = qb.quantize(model, {"ids": samples[:, :-1]}, **wanted)
    qb.save(graph, out, overwrite=True)


def theirs(
    model: Path, out: Path, samples: Array, algorithm: str, bits: int, block: int, symmetric: bool
) -> None:
    """Writes what onnxruntime's MatMulNBitsQuantizer makes of a model."""
    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter([{"ids": row[None, :-1]} for row in samples[:64]])

        def get_next(self) -> Any:
            return next(self._left, None)

    configs: dict[str, Callable[[], Any]] = {
        "default": lambda: None,
        "rtn": tool.RTNWeightOnlyQuantConfig,
        "k-quant": tool.KQuantWeightOnlyQuantConfig,
        "hqq": lambda: tool.HQQWeightOnlyQuantConfig(block_size=block, bits=bits),
        "gptq": lambda: tool.GPTQWeightOnlyQuantConfig(
            calibration_data_reader=Reader(), block_size=block
        ),
    }
    keywords: dict[str, Any] = {"bits": bits} if algorithm == "default" else {}
    quantizer = tool.MatMulNBitsQuantizer(
        onnx.load(model), block_size=block, is_symmetric=symmetric,
        algo_config=configs[algorithm](), **keywords,
    )  # fmt: skip
    quantizer.process()
    made: Any = quantizer.model
    made.save_model_to_file(str(out))


def elsewhere(
    model: Path, samples: Array, pythons: dict[str, str]
) -> list[tuple[str, Callable[[Path], None]]]:
    """Returns what other tools make of a model, in Pythons of their own."""
    sys.path.insert(0, str(Path(__file__).parent))
    from bench_networks import Case
    from bench_quantize_tools import BLOCKS, OTHERS_IN_4_BITS, by_other

    ids = samples[:, :-1]
    case = Case(model.stem, model.resolve(), {"ids": ids}, {"ids": ids})

    def making(tool: str, setting: str) -> Callable[[Path], None]:
        run = by_other(tool, pythons[tool], setting)
        return lambda path: print(run(case, path))

    return [
        (f"{tool} {setting}", making(tool, setting))
        for tool in pythons
        for setting in OTHERS_IN_4_BITS[BLOCKS][tool]
    ]


def compare(model: Path, bits: int, block: int, count: int, pythons: dict[str, str]) -> None:
    """Prints a table of perplexities."""
    seen, unseen = text()
    calibration, judged = examples(seen, 128, 1), examples(unseen, count, 2)
    stored = f"uint{bits}"
    rows: list[tuple[str, Callable[[Path], None]]] = [
        ("ours", lambda p: ours(
            model, p, calibration, target="weight-only", weights=stored, block=block)),
        ("ours, nearest", lambda p: ours(
            model, p, calibration, target="weight-only", weights=stored, block=block,
            repair=(), weight_chooser="minmax")),
        ("ours, symmetric", lambda p: ours(
            model, p, calibration, target="weight-only", weights=f"int{bits}", block=block)),
    ]  # fmt: skip
    for algorithm in ("default", "rtn", "k-quant", "hqq", "gptq"):
        if bits == 4 or algorithm in ("default", "hqq"):
            rows.append((
                f"onnxruntime {algorithm}",
                lambda p, a=algorithm: theirs(model, p, calibration, a, bits, block, False),
            ))  # fmt: skip
    if bits == 4 and block == 32:
        rows += elsewhere(model, calibration, pythons)
    print(f"float: {perplexity(model, judged):.4f}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in rows:
            start, path = time.perf_counter(), Path(folder) / f"{name}.onnx"
            try:
                make(path)
            except Exception as error:  # tools fail in ways of their own, which is a figure too
                print(f"{name}: {type(error).__name__}: {str(error)[:120]}", flush=True)
                continue
            seconds = time.perf_counter() - start
            both = [perplexity(path, judged, optimized=o) for o in (True, False)]
            size = path.stat().st_size / 1e3
            print(
                f"{name}: {both[0]:.4f} {both[1]:.4f}, {size:.0f} kB, {seconds:.0f} s", flush=True
            )


def main() -> None:
    """Trains, or compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["train", "compare"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--outliers", action="store_true", help="Loud channels behind norms.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--pieces", type=int, default=512)
    for tool in TOOLS:
        parser.add_argument(f"--{tool}", help="a Python that has it")
    given = parser.parse_args()
    if given.verb == "compare":
        pythons = {tool: getattr(given, tool) for tool in TOOLS if getattr(given, tool)}
        compare(given.model, given.bits, given.block, given.pieces, pythons)
        return
    shape = Shape()
    weights = trained(shape, given.steps, given.seed)
    if given.outliers:
        weights = with_outliers(weights, shape, given.seed)
    onnx.save(written(weights, shape), given.model)
    write_samples(given.model.with_suffix(".npz"))


if __name__ == "__main__":
    main()
