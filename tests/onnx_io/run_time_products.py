"""Random QLinearConv, QLinearMatMul and QGemm whose parameters are fed: onnxruntime's integers.

``python -m tests.onnx_io.run_time_products [COUNT [SEED]]`` compares so many one by one: the
interpreter, the saved file in onnxruntime, its digest, TVM, and the digest of the Relax module read
back. Many scales are powers of two, which makes ties frequent.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import qdqbridge as qb
from qdqbridge.options import Kernels
from tests.exact_sessions import exact_session
from tests.onnx_models import Array, Builder, canonical

MS = "com.microsoft"


@dataclass
class Product:
    """A model of one random node, and what is fed to it.

    Attributes:
        seed: What it is made from.
    """

    seed: int
    feeds: dict[str, Array] = field(default_factory=dict[str, Array])

    def __post_init__(self) -> None:
        self.draw, self.rng = Random(self.seed), np.random.default_rng(self.seed)
        self.builder = Builder(self.draw.choice((10, 13, 17, 21)))
        self.dtype = self.draw.choice((np.uint8, np.int8))
        kind = self.draw.choice((self._conv, self._conv, self._matmul, self._gemm))
        self.builder.output(kind(), None, helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))

    @property
    def model(self) -> onnx.ModelProto:
        """The file."""
        model = self.builder.model()
        if not any(entry.domain == MS for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid(MS, 1))
        return model

    def _given(self, made: Any, constant: float, *, opened: bool = True) -> str:
        """Returns a name of a constant, or of an input some of whose extents may be open."""
        array = np.asarray(made)
        if self.draw.random() < constant:
            return self.builder.init(array)
        name = self.builder.name("in")
        shape = [
            f"{name}_{i}" if opened and self.draw.random() < 0.2 else extent
            for i, extent in enumerate(array.shape)
        ]
        self.builder.input(name, shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        self.feeds[name] = array
        return name

    def _codes(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.asarray(self.rng.integers(-128, 128, shape)).astype(np.int64).astype(dtype)

    def _scale(self, shape: tuple[int, ...], factor: float = 1) -> Array:
        if self.draw.random() < 0.5:
            return np.asarray(2.0 ** self.rng.integers(-8, -3, shape) * factor).astype(np.float32)
        return np.asarray(self.rng.uniform(0.001, 0.05, shape) * factor).astype(np.float32)

    def _parameters(
        self, shape: tuple[int, ...], dtype: Any, *, one_zero: bool = False
    ) -> list[str]:
        zero = self._codes((), dtype) if one_zero else self._codes(shape, dtype)
        zeros = np.broadcast_to(zero, shape).copy()
        return [self._given(self._scale(shape), 0.3), self._given(zeros, 0.3)]

    def _own(self) -> list[str]:
        """Returns the names of scale and zero point of the result."""
        shape = self.draw.choice(((), (1,)))
        scale = self._scale(shape, self.draw.choice((10, 160)))
        return [self._given(scale, 0.3), self._given(self._codes(shape, self.dtype), 0.3)]

    def _weight_dtype(self) -> Any:
        """Returns a type that onnxruntime takes beside the activation's."""
        return self.draw.choice((np.uint8, np.int8)) if self.dtype is np.uint8 else np.int8

    def _extents(self, count: int, most: int) -> list[int]:
        return [self.draw.randint(1, most) for _ in range(count)]

    def _matmul(self) -> str:
        (rows, terms, columns), weight = self._extents(3, 7), self._weight_dtype()
        stack, one = self.draw.choice(((), (), (2,), (2, 3))), self.draw.choice(((), (1,)))
        each = self.draw.choice(((), (1,), (columns,)))
        names = [self._given(self._codes((*stack, rows, terms), self.dtype), 0.05)]
        names += self._parameters(one, self.dtype)
        names += [self._given(self._codes((terms, columns), weight), 0.4)]
        names += self._parameters(each, weight)
        return self.builder.op("QLinearMatMul", *names, *self._own())

    def _gemm(self) -> str:
        (rows, terms, columns), weight = self._extents(3, 7), self._weight_dtype()
        permuted = [self.draw.randint(0, 1) for _ in range(2)]
        one, each = self.draw.choice(((), (1,))), self.draw.choice(((), (1,), (columns,)))
        left = (terms, rows) if permuted[0] else (rows, terms)
        right = (columns, terms) if permuted[1] else (terms, columns)
        names = [self._given(self._codes(left, self.dtype), 0.05)]
        names += self._parameters(one, self.dtype)
        names += [self._given(self._codes(right, weight), 0.4), *self._parameters(each, weight)]
        bias = self.draw.choice((None, (columns,), (1, columns), (rows, columns)))
        names.append("" if bias is None else self._given(self._bias(bias), 0.5))
        alpha = self.draw.choice((1.0, 0.7))
        return self.builder.op(
            "QGemm", *names, *self._own(), domain=MS, transA=permuted[0], transB=permuted[1],
            alpha=alpha,
        )  # fmt: skip

    def _bias(self, shape: tuple[int, ...]) -> Array:
        return self.rng.integers(-3000, 3000, shape).astype(np.int32)

    def _conv(self) -> str:
        rank, group = self.draw.choice((1, 2, 2, 2, 3)), self.draw.choice((1, 1, 2))
        channels, results = (group * extent for extent in self._extents(2, 3))
        kernel, weight = self._extents(rank, 3), self._weight_dtype()
        one, each = self.draw.choice(((), (1,))), self.draw.choice(((), (1,), (results,)))
        image = (self.draw.randint(1, 2), channels, *(e + 4 for e in self._extents(rank, 4)))
        names = [self._given(self._codes(image, self.dtype), 0.05)]
        names += self._parameters(one, self.dtype)
        codes = self._codes((results, channels // group, *kernel), weight)
        names.append(self._given(codes, 0.5, opened=False))
        names += self._parameters(each, weight, one_zero=True)  # as onnxruntime requires
        names += self._own()
        if self.draw.random() < 0.6:
            names.append(self._given(self._bias((results,)), 0.5))
        attributes: dict[str, Any] = {"group": group}
        if self.draw.random() < 0.3:
            attributes["auto_pad"] = self.draw.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        else:
            attributes["pads"] = [self.draw.randint(0, 1) for _ in range(2 * rank)]
            attributes["strides"] = self._extents(rank, 2)
            attributes["dilations"] = self._extents(rank, 2)
        return self.builder.op("QLinearConv", *names, **attributes)


def wrong(product: Product, kernels: Kernels | None = None) -> list[str]:
    """Returns where an engine is not onnxruntime with the file itself, or a digest moves.

    Args:
        product: What is computed.
        kernels: TVM's kernels; None leaves TVM out.
    """
    model, feeds = product.model, product.feeds
    meant, graph = _run(model, feeds), canonical(model)
    results = {"interpreter": next(iter(qb.evaluate(graph, feeds).values()))}
    found: list[str] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.onnx"
        qb.save(graph, path)
        results["saved"] = _run(path, feeds)
        if qb.load(path).digest != graph.digest:
            found.append("the saved file's digest")
    if kernels is not None:
        executable = qb.compile(graph, kernels=kernels, threads=1)
        results["TVM"] = next(iter(executable.run(feeds).values()))
        if qb.from_relax(qb.to_relax(graph)[0]).digest != graph.digest:
            found.append("the Relax module's digest")
    for side, array in results.items():
        if array.dtype != meant.dtype or not np.array_equal(array, meant):
            found.append(side)
    return found


def _run(model: Path | onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    (result,) = exact_session(model, options).run(None, feeds)
    return np.asarray(result)


def main() -> None:
    """Runs the command line."""
    count, seed = (int(text) for text in [*sys.argv[1:3], *("200", "0")[len(sys.argv[1:3]) :]])
    bad = 0
    for index in range(seed, seed + count):
        found = wrong(Product(index), "fast" if index % 2 else "reference")
        bad += bool(found)
        if found:
            print(index, Product(index).model.graph.node[0].op_type, *found, flush=True)
    print(f"{bad} of {count} products differ")


if __name__ == "__main__":
    main()
