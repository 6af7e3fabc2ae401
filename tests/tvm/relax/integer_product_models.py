"""Random MatMulIntegers: matrices fed or stored, zero points of every form, open extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.options import Kernels
from tests.onnx_models import Array, Builder, canonical

Feeds = dict[str, Array]


def integer_products(seed: int, count: int) -> tuple[Builder, Feeds]:
    """Returns a model of so many independent products, and what is fed to it."""
    rng, b, feeds = np.random.default_rng(seed), Builder(17), Feeds()
    for _ in range(count):
        _product(b, rng, feeds)
    return b, feeds


def _product(b: Builder, rng: np.random.Generator, feeds: Feeds) -> None:
    rows, terms, columns = (int(extent) for extent in rng.integers(1, 7, 3))
    left, right = ((np.uint8, np.int8)[int(rng.integers(2))] for _ in range(2))
    stack = [(), (2,), (2, 3)][int(rng.integers(3))]
    other = stack if rng.random() < 0.3 else ()
    names = [_operand(b, rng, feeds, (*stack, rows, terms), left, fixed=0.1),
             _operand(b, rng, feeds, (*other, terms, columns), right, fixed=0.3)]  # fmt: skip
    shapes: list[list[tuple[int, ...]]] = [[(), (1,)], [(), (1,)]]
    if not other:
        shapes[1].append((columns,))
    if rng.random() < 0.8:  # onnxruntime takes one zero point for the rows, and for stacks
        for dtype, choices in zip((left, right), shapes, strict=True):
            chosen = choices[int(rng.integers(len(choices)))]
            names.append(_operand(b, rng, feeds, chosen, dtype, fixed=0.5))
    y = b.op("MatMulInteger", *names)
    kind = TensorProto.INT32
    if rng.random() < 0.6:
        scale = _operand(b, rng, feeds, (columns,), np.float32, fixed=0.5)
        y, kind = b.op("Mul", b.op("Cast", y, to=TensorProto.FLOAT), scale), TensorProto.FLOAT
    b.output(y, None, kind)


def _operand(
    b: Builder, rng: np.random.Generator, feeds: Feeds, shape: tuple[int, ...], dtype: Any, *,
    fixed: float,
) -> str:  # fmt: skip
    real = dtype is np.float32
    made = rng.uniform(0.001, 0.1, shape) if real else rng.integers(-128, 128, shape)
    array = np.asarray(made).astype(np.int64 if not real else dtype).astype(dtype)
    if rng.random() < fixed:
        return b.init(array)
    name, opened = b.name("in"), rng.random() < 0.4
    declared = [f"{name}_{i}" if opened and rng.random() < 0.7 else e for i, e in enumerate(shape)]
    b.input(name, declared, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    feeds[name] = array
    return name


def wrong(b: Builder, feeds: Feeds, kernels: Kernels) -> list[str]:
    """Returns where the interpreter is not onnxruntime, or TVM not the interpreter."""
    model = b.model()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    meant = dict(zip(names, session.run(names, feeds), strict=True))
    graph = canonical(model)
    found = [] if qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest else ["the digest"]
    sides = {
        "interpreter": qb.evaluate(graph, feeds),
        "TVM": qb.compile(graph, kernels=kernels).run(feeds),
    }
    for side, results in sides.items():
        for name, array in results.items():
            if not np.array_equal(array, np.asarray(meant[name])):
                found.append(f"{side}: {name}")
    return found
