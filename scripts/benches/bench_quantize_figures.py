"""What a quantized file is like: how close its outputs are, and how much of it is integers.

All files run in onnxruntime, with graph optimizations disabled, which computes what they say, and
with all of them. Of several outputs the mean noise counts.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bench_networks import Array, Case, results, session
from bench_quantize_tools import OURS, Method

NO_ARITHMETIC = frozenset(
    {
        "Cast", "Concat", "Constant", "ConstantOfShape", "DequantizeLinear",
        "DynamicQuantizeLinear", "Expand", "Flatten", "Gather", "Identity", "Pad",
        "QuantizeLinear", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Transpose",
        "Unsqueeze",
    }
)  # fmt: skip
"""Operators that are not counted among those that run on integers or do not."""
RUNS = 50
"""The shortest of so many runs counts: other processes only ever make one longer."""
INTEGER_KERNELS = ("QLinear", "QGemm", "QAttention", "DynamicQuantize")
"""How names of onnxruntime's integer kernels begin; in others ``Integer`` stands."""
QGEMM_SCALE = 7
"""Which input of a QGemm is the scale of its result, which is float without one."""
DRAWS, SURE = 2000, 95.0
"""How often samples are drawn anew, and how many percent of what they say is printed."""
WITH_WEIGHTS = frozenset({"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul"})


@dataclass(frozen=True)
class Figures:
    """What a quantized file is like, or why there is none."""

    decibels: float = float("-inf")
    optimized: float = float("-inf")
    integers: str = ""
    kernels: str = ""
    milliseconds: float = float("nan")
    top1: float | None = None
    seconds: float = 0.0
    remark: str = ""
    noise: Array | None = None

    @property
    def share(self) -> float:
        """Of the operators that compute, those that read stored integers."""
        done, _, all_ = self.integers.partition("/")
        return int(done) / max(int(all_), 1) if all_ else 0.0


@dataclass(frozen=True)
class Row:
    """The figures of one network by method."""

    case: Case
    top1: float | None
    milliseconds: float
    figures: Mapping[Method, Figures] = field(default_factory=dict[Method, Figures])

    def best(self, *tools: str, share: float = 0.0) -> float:
        """Returns the largest SQNR that a tool reaches with as many operators on integers."""
        found = self.nearest(*tools, share=share)
        return float("-inf") if found is None else found.decibels

    def nearest(self, *tools: str, share: float = 0.0) -> Figures | None:
        """Returns what a tool does that comes closest with as many operators on integers.

        A file that computes what the float one does, or on floats alone, does not count.
        """
        found = [
            figures
            for method, figures in self.figures.items()
            if method.tool in tools
            and np.isfinite(figures.decibels)
            and figures.share >= max(share, np.finfo(float).tiny)
        ]
        return max(found, key=lambda figures: figures.decibels, default=None)

    @property
    def first(self) -> Figures:
        """The figures of the first of our methods."""
        return next(f for m, f in self.figures.items() if m.tool == OURS)

    @property
    def share(self) -> float:
        """Its share of operators on integers."""
        return self.first.share

    @property
    def ours(self) -> float:
        """Its SQNR."""
        return self.first.decibels


def row(case: Case, ways: Sequence[Method], coverage: Callable[[Path], str]) -> Row:
    """Returns the figures of one network by method; ``coverage`` is said of each file."""
    reference = results(case.path, case.measured)
    found: dict[Method, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            out, start = Path(folder) / "quantized.onnx", time.perf_counter()
            try:
                with quiet():
                    remark = way.run(case, out)
                seconds = time.perf_counter() - start
                got = results(out, case.measured)
                fused, remark = optimized(out, case, remark)
            except Exception as error:  # whatever another tool raises is a result
                found[way] = Figures(remark=" ".join(str(error).split())[:160])
                continue
            shares = noise(reference, got)
            found[way] = Figures(
                decibels(shares),
                decibels(noise(reference, fused)) if fused else float("nan"),
                coverage(out),
                kernels(out) if fused else "",
                milliseconds(out, case) if fused else float("nan"),
                top1(case, got),
                seconds,
                remark,
                shares,
            )
    return Row(case, top1(case, reference), milliseconds(case.path, case), found)


def optimized(out: Path, case: Case, remark: str) -> tuple[list[Array], str]:
    """Returns what onnxruntime's optimizations make of a file, nothing where they break it."""
    try:
        return results(out, case.measured, optimized=True), remark
    except Exception as error:  # its fusions fail on some files
        return [], f"{remark}; optimized: {' '.join(str(error).split())[:100]}"


def noise(reference: Sequence[Array], other: Sequence[Array]) -> Array:
    """Returns the noise of every sample as share of the mean power, outputs averaged."""
    shares = [
        _squares(a - b) / max(float(_squares(a).mean()), np.finfo(float).tiny)
        for a, b in zip(reference, other, strict=True)
    ]
    return np.mean(shares, axis=0)


def _squares(output: Array) -> Array:
    return np.sum(output.reshape(len(output), -1) ** 2, axis=1)


def decibels(shares: Array) -> float:
    """Returns the SQNR of samples with such shares of noise."""
    mean = float(np.mean(shares))
    return float("inf") if not mean else -10 * float(np.log10(mean))


def interval(ours: Array, theirs: Array) -> tuple[float, float]:
    """Returns between what ours may be ahead, in dB, had other samples of the kind been measured.

    Args:
        ours: Shares of noise of the samples.
        theirs: Those of the same samples.

    Returns:
        The middle :data:`SURE` percent of what samples drawn from these, with replacement, say.
    """
    drawn = np.random.default_rng(0).integers(0, len(ours), (DRAWS, len(ours)))
    ahead = 10 * np.log10(theirs[drawn].mean(axis=1) / ours[drawn].mean(axis=1))
    low, high = np.percentile(ahead, [50 - SURE / 2, 50 + SURE / 2])
    return float(low), float(high)


def top1(case: Case, outputs: Sequence[Array]) -> float | None:
    """Returns the share of right classes in percent, where there are labels."""
    if case.labels is None:
        return None
    return 100 * float(np.mean(outputs[0].argmax(1) == case.labels))


def integers(path: Path) -> str:
    """Returns how many of the operators that compute read stored integers, and how many compute."""
    import onnx

    graph = onnx.load(path).graph
    producers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}

    def stored(name: str) -> bool:
        node = producers.get(name)
        while node is not None and node.op_type in NO_ARITHMETIC and node.input:
            if node.op_type == "DequantizeLinear":
                return True
            name = node.input[0]
            node = producers.get(name)
        return name in constants or (node is not None and node.op_type == "Constant")

    computing = [node for node in graph.node if node.op_type not in NO_ARITHMETIC]
    found = sum(
        "Integer" in node.op_type
        or node.op_type.startswith("QLinear")
        or all(stored(name) for name in node.input[:2] if name)
        for node in computing
    )
    return f"{found}/{len(computing)}"


def milliseconds(path: Path, case: Case) -> float:
    """Returns what a sample takes in onnxruntime with its optimizations: CPU, one thread."""
    runner = session(path, optimized=True, threads=1)
    sample = {name: array[:1] for name, array in case.measured.items()}
    best = math.inf
    for _ in range(RUNS):
        start = time.process_time()
        runner.run(None, sample)
        best = min(best, time.process_time() - start)
    return 1e3 * best


def kernels(path: Path) -> str:
    """Returns how many kernels of onnxruntime's take integers, and how many compute at all.

    What reads stored integers need not be computed with them: of 16-bit activations onnxruntime
    computes floats between DequantizeLinear and QuantizeLinear.
    """
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "optimized.onnx"
        session(path, optimized=True, written=written)
        graph = onnx.load(written).graph
    producers = {name: node for node in graph.node for name in node.output}

    def codes(name: str) -> bool:
        """True for a tensor of stored integers."""
        node = producers.get(name)
        if node is None or node.op_type == "DequantizeLinear" or "Integer" in node.op_type:
            return False  # MatMulIntegerToFloat and the like
        if node.op_type == "QGemm":
            return len(node.input) > QGEMM_SCALE and bool(node.input[QGEMM_SCALE])
        stores = node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear")
        return stores or (bool(node.input) and codes(node.input[0]))

    computing = [node for node in graph.node if node.op_type not in NO_ARITHMETIC]
    found = sum(
        node.op_type.startswith(INTEGER_KERNELS)
        or "Integer" in node.op_type
        or codes(node.input[0])
        for node in computing
        if node.input
    )
    return f"{found}/{len(computing)}"


def in_4_bits(path: Path) -> str:
    """Returns how many elements of the weights of products have 4 bits, and how many there are."""
    import onnx

    graph = onnx.load(path).graph
    producers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}

    def held(name: str) -> tuple[Any, int | None]:
        """Returns the constant behind a name, and the type of what a QuantizeLinear makes of it."""
        stored = None
        while (made := producers.get(name)) is not None and name not in constants:
            if made.op_type == "QuantizeLinear" and len(made.input) > 2:
                stored = constants[made.input[2]].data_type
            name = made.input[0] if made.input else ""
        return constants.get(name), stored

    narrow, total = 0, 0
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            sizes = {a.name: a.i for a in node.attribute}
            total += sizes["K"] * sizes["N"]
            narrow += sizes["K"] * sizes["N"] if sizes.get("bits", 4) == 4 else 0
        for name in node.input[1:3] if node.op_type in WITH_WEIGHTS else ():
            tensor, stored = held(name)
            if tensor is not None and len(tensor.dims) > 1:
                total += int(np.prod(tensor.dims))
                types = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
                narrow += int(np.prod(tensor.dims)) if (stored or tensor.data_type) in types else 0
    return f"{narrow}/{total}"


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """Keeps warnings and chatter of other tools from the table."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), open(os.devnull, "w") as sink:
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            yield
    logging.disable(logging.NOTSET)
