"""Which of LiteRT's kernels round how, measured: one operator at a time, on random operands.

For products the accumulator is known, and every formula of :mod:`qdqbridge.tflite_io.arithmetic` is
tried on it: what gives LiteRT's result in every element is how that kernel rounds. For all
operators: how many results differ from the numeric contract, and by how many steps at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.tflite_io.litert import Kernels, node_differences, products_by_formula, shapes_of
from qdqbridge.tflite_io.writer import converted

_IMAGE = "[2,8,14,14]"


def cases(rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    """Yields operators with random parameters, by TFLite's name."""
    for kind in ("int8", "int16"):
        yield from ((name, graph) for name, graph in _products(rng, kind))
        yield from _others(rng, kind)


def _params(rng: np.random.Generator, kind: str, largest: float = 4.0) -> str:
    if kind == "int16":
        return f"quant<int16, {largest * rng.uniform(0.5, 1) / 32767:.9g}, 0>"
    return f"quant<int8, {largest * rng.uniform(0.5, 1) / 127:.9g}, {rng.integers(-20, 20)}>"


def _products(rng: np.random.Generator, kind: str) -> Iterator[tuple[str, Graph]]:
    for name, shape, group in (
        ("CONV_2D", (16, 8, 3, 3), 1), ("DEPTHWISE_CONV_2D", (8, 1, 3, 3), 8),
    ):  # fmt: skip
        x, y = _params(rng, kind), _params(rng, kind, 8.0)
        axis = _numbers(rng.uniform(0.004, 0.02, shape[0]))
        weight = _numbers(rng.integers(-127, 128, shape))
        listed = ",".join(map(str, shape))
        yield (
            name,
            qb.parse(
                f"qnn-raw 1\ninput %x: {x}{_IMAGE}\n"
                f"%y = Conv(%x, const quant<int8, [{axis}], 0, axis=0>[{listed}] [{weight}]) "
                f"{{strides=[1 1], dilations=[1 1], pads=[1 1 1 1], group={group}}}: "
                f"{y}[2,{shape[0]},14,14]\noutput %y\n"
            ),
        )
    x, y = _params(rng, kind), _params(rng, kind, 8.0)
    weight = _numbers(rng.integers(-127, 128, (32, 24)))
    scale = rng.uniform(0.004, 0.02)
    yield (
        "FULLY_CONNECTED",
        qb.parse(
            f"qnn-raw 1\ninput %x: {x}[64,24]\n"
            f"%y = Dense(%x, const quant<int8, {scale:.9g}, 0>[32,24] [{weight}]): {y}[64,32]\n"
            "output %y\n"
        ),
    )


def _others(rng: np.random.Generator, kind: str) -> Iterator[tuple[str, Graph]]:
    fixed = {
        ("LOGISTIC", "int8"): "quant<int8, 0.00390625, -128>",
        ("LOGISTIC", "int16"): "quant<int16, 0.000030517578125, 0>",
        ("SOFTMAX", "int8"): "quant<int8, 0.00390625, -128>",
        ("SOFTMAX", "int16"): "quant<int16, 0.000030517578125, 0>",
        ("TANH", "int8"): "quant<int8, 0.0078125, 0>",
        ("TANH", "int16"): "quant<int16, 0.000030517578125, 0>",
    }
    pool = "{kernel_shape=[3 3], strides=[1 1], dilations=[1 1], pads=[1 1 1 1]}"
    calls = {
        "ADD": "Add(%x, %b)", "SUB": "Sub(%x, %b)", "MUL": "Mul(%x, %b)",
        "QUANTIZE": "requantize(%x)", "LEAKY_RELU": "LeakyRelu(%x) {alpha=0.1}",
        "HARD_SWISH": "HardSwish(%x)", "GELU": "Gelu(%x)", "EXP": "Exp(%x)", "ABS": "Abs(%x)",
        "LOGISTIC": "Sigmoid(%x)", "TANH": "Tanh(%x)", "SOFTMAX": "Softmax(%x) {axes=[1]}",
        "MEAN": "GlobalAveragePool(%x)", "AVERAGE_POOL_2D": f"AveragePool(%x) {pool}",
        "SUM": "ReduceSum(%x) {axes=[1]}",
        "RESIZE_BILINEAR": "Resize(%x) {mode='linear', nearest_mode='round_prefer_floor', "
        "coordinate_transformation_mode='half_pixel', scales=[1 1 2 2], sizes=None}",
        "BATCH_MATMUL": "MatMul(%x, %b)",
    }  # fmt: skip
    for name, call in calls.items():
        x, b, y = _params(rng, kind), _params(rng, kind), _params(rng, kind, 8.0)
        shape = {
            "MEAN": "[2,8,1,1]", "SUM": "[2,1,14,14]", "RESIZE_BILINEAR": "[2,8,28,28]",
        }.get(name, _IMAGE)  # fmt: skip
        if name in ("AVERAGE_POOL_2D", "RESIZE_BILINEAR"):
            y = x
        y = fixed.get((name, kind), y)
        second = f"input %b: {b}{_IMAGE}\n" if "%b" in call else ""
        yield (
            name,
            qb.parse(
                f"qnn-raw 1\ninput %x: {x}{_IMAGE}\n{second}%y = {call}: {y}{shape}\noutput %y\n"
            ),
        )


def _numbers(array: np.ndarray) -> str:
    return " ".join(f"{number:.9g}" for number in array.reshape(-1).tolist())


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    found: dict[tuple[str, str, str], list[tuple[int, int, float, frozenset[str]]]] = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        for name, graph in cases(rng):
            kind = str(graph.inputs[0].type.dtype.label)
            for kernels in Kernels:
                row = _measured(name, graph, kernels, seed)
                if row is not None:
                    found.setdefault((name, kind, kernels.name), []).append(row)
    print("| operator | integers | kernels | results | differ | LSB | rounds as |")
    print("|---|---|---|---|---|---|---|")
    for (name, kind, kernels), rows in sorted(found.items()):
        count, different = sum(r[0] for r in rows), sum(r[1] for r in rows)
        formulas = frozenset.intersection(*(r[3] for r in rows))
        print(
            f"| {name} | {kind} | {kernels} | {count:,} | {different / count:.4%} | "
            f"{max(r[2] for r in rows):g} | {', '.join(sorted(formulas))} |"
        )


def _measured(
    name: str, graph: Graph, kernels: Kernels, seed: int
) -> tuple[int, int, float, frozenset[str]] | None:
    made = converted(graph)
    if not any(operator.name == name for operator in made.model.operators):
        return None
    rng = np.random.default_rng(seed)
    shapes = shapes_of(made.graph)
    inputs = {}
    for value in made.graph.inputs:
        dtype = value.type.dtype.numpy
        info = np.iinfo(dtype)
        inputs[value.name] = rng.integers(info.min, info.max + 1, shapes[value.name]).astype(dtype)
    try:
        differences = node_differences(made, inputs, kernels)
        formulas = products_by_formula(made, inputs, kernels)
    except qb.QdqBridgeError:
        return None
    last = differences[-1]
    equal = frozenset(formula for formula, count in formulas.items() if count == 0)
    return last.count, last.different, last.largest, equal


if __name__ == "__main__":
    main()
