"""Random MatMulNBits of every width, block, level, zero point and float type, beside onnxruntime.

``python -m tests.onnx_io.packed_products [COUNT [SEED]]`` compares so many: the interpreter with
onnxruntime, the saved file (bits of its results, digest), TVM's kernels and plain loops with the
interpreter, and the digest of the Relax module read back. Prints how far results are from
onnxruntime's, in parts of the largest sum that there can be.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.onnx_io.lowering.context import packed
from qdqbridge.options import Kernels
from tests.onnx_models import Array, Builder, canonical

MS = "com.microsoft"
LEVEL = 4
FAR = 3e-7
"""In parts of the largest sum; onnxruntime adds blocks and zero points in an order of its own."""
HALF = 2.0**-10
"""What rounding two nearly equal sums to float16, and again with the bias, may make of them."""
WEIGHT = 2.0**-11
"""What rounding a weight to float16 moves it by, which onnxruntime's kernel leaves out."""
BIAS = 4
"""No bias is larger."""


@dataclass
class PackedProduct:
    """A model of one random node, and what is fed to it.

    Attributes:
        seed: What it is made from.
    """

    seed: int
    feeds: dict[str, Array] = field(default_factory=dict[str, Array])

    def __post_init__(self) -> None:
        self.draw, self.rng = Random(self.seed), np.random.default_rng(self.seed)
        draw = self.draw
        self.bits = draw.choice((2, 4, 4, 4, 8))
        self.block = draw.choice((16, 32, 32, 64, 128, 256))
        self.terms = draw.choice((self.block, 2 * self.block, 4 * self.block, draw.randint(1, 300)))
        self.units, self.level = draw.randint(1, 40), draw.choice((None, 0, 1, 4, 4, 4, 4))
        kinds = ("", "", "packed", "float") if self.bits != 8 else ("", "packed")
        self.zeros = draw.choice(kinds)
        self.ordered = self.bits == 4 and self.zeros != "packed" and draw.random() < 0.2
        self.half = draw.random() < 0.2
        self.dtype = np.float16 if self.half else np.float32
        self.builder = Builder(21)
        kind = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        self.builder.output(self._node(), None, kind)

    @property
    def model(self) -> onnx.ModelProto:
        """The file."""
        return self.builder.model()

    @property
    def rounded(self) -> bool:
        """Whether onnxruntime rounds the activations to 8 bits."""
        told = self.level == LEVEL and self.zeros != "float" and not self.ordered
        return told and (self.bits != 2 or self.block in (32, 64, 128))

    def _node(self) -> str:
        b, draw, rng, bits = self.builder, self.draw, self.rng, self.bits
        blocks = -(-self.terms // self.block)
        codes = rng.integers(0, 1 << bits, (self.units, blocks * self.block)).astype(np.uint8)
        scale = rng.uniform(0.01, 0.1, (self.units, blocks))
        if draw.random() < 0.2:  # all alike: a weight without blocks
            scale[:] = scale[0, 0]
        rows = draw.choice(((draw.randint(1, 20),), (2, 3), (1,), (draw.randint(30, 70),)))
        x = rng.normal(0, 10.0 ** draw.randint(-3, 2), (*rows, self.terms)).astype(self.dtype)
        if draw.random() < 0.2:
            x[..., : self.block] = 0
        self.feeds["x"] = x
        shape = [draw.choice((f"n{i}", extent)) for i, extent in enumerate(rows)]
        kind = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        names = [b.input("x", [*shape, self.terms], kind)]
        stored = np.frombuffer(packed(codes, bits), np.uint8)
        names.append(b.init(stored.reshape(self.units, blocks, -1)))
        names += [b.init(scale.astype(self.dtype)), "", "", ""]
        centre = 1 << (bits - 1)
        points = rng.integers(0, 1 << bits, (self.units, blocks))
        if self.zeros == "packed":
            each = b"".join(packed(row, bits) for row in points)
            names[3] = b.init(np.frombuffer(each, np.uint8).reshape(self.units, -1))
        elif self.zeros:
            names[3] = b.init(points.astype(self.dtype))
        groups = np.arange(self.terms, dtype=np.int32) // self.block
        if self.ordered:
            groups = rng.permutation(groups) if draw.random() < 0.7 else groups
            names[4] = b.init(groups)
        self.bias = np.zeros(self.units, self.dtype)
        if draw.random() < 0.4:
            self.bias = rng.normal(size=self.units).astype(self.dtype)
            names[5] = b.init(self.bias)
        while not names[-1]:
            names.pop()
        points = points if self.zeros else np.full_like(points, centre)
        steps = (codes[:, : self.terms] - points[:, groups].astype(np.float32)).astype(np.float32)
        self.weights = steps * scale.astype(self.dtype).astype(np.float32)[:, groups]
        largest = np.abs(codes.reshape(self.units, blocks, -1)).max(-1) + np.abs(points)
        reach = (largest * scale).max()
        self.most = np.abs(x.astype(np.float64)).sum(-1, keepdims=True) * reach + 4
        return b.op(
            "MatMulNBits", *names, domain=MS, N=self.units, K=self.terms, bits=bits,
            block_size=self.block, accuracy_level=self.level,
        )  # fmt: skip


def wrong(product: PackedProduct, kernels: Kernels | None = None) -> tuple[list[str], float]:
    """Returns where an engine differs, and how far the interpreter is from onnxruntime.

    Args:
        product: What is computed.
        kernels: TVM's kernels; None leaves TVM out.
    """
    model, feeds = product.model, product.feeds
    (meant,), graph = _run(model.SerializeToString(), feeds), canonical(model)
    (own,) = qb.evaluate(graph, feeds).values()
    found: list[str] = []
    if (DYNAMIC_BLOCK_DENSE in [node.op for node in graph.nodes]) != product.rounded:
        found.append("what is rounded")
    gap = np.abs(meant.astype(np.float64) - own)
    if product.half:
        gap = np.maximum(gap - (np.abs(meant.astype(np.float64)) + BIAS) * HALF, 0)
    if product.half and not product.rounded:
        data = feeds["x"].astype(np.float64)
        gap = np.maximum(gap - np.abs(data) @ np.abs(product.weights.T) * WEIGHT, 0)
        if not _as_written(product, own):
            found.append("the product of weights in float16")
    far = float((gap / product.most).max())
    if own.dtype != meant.dtype or not far <= FAR:
        found.append(f"interpreter ({far:.1e})")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.onnx"
        qb.save(graph, path)
        if _run(path.read_bytes(), feeds)[0].tobytes() != meant.tobytes():
            found.append("saved")
        if qb.load(path).digest != graph.digest:
            found.append("the saved file's digest")
    if kernels is not None:
        made = next(iter(qb.compile(graph, kernels=kernels, threads=1).run(feeds).values()))
        if product.rounded and not np.array_equal(made, own):
            found.append("TVM")
        # TVM adds products of float16 in float16 (docs/support.md); three digits are a float32.
        if not product.half and (np.abs(made - own) > product.most * 2 * FAR).any():
            found.append("TVM's floats")
        if qb.from_relax(qb.to_relax(graph)[0]).digest != graph.digest:
            found.append("the Relax module's digest")
    return found, far


def _as_written(product: PackedProduct, own: Array) -> bool:
    """Whether a result is the product of weights that are rounded to float16, as ONNX's text is."""
    weights = product.weights.astype(np.float16).astype(np.float64)
    meant = product.feeds["x"].astype(np.float64) @ weights.T + product.bias
    gap = np.abs(meant - own) - (np.abs(meant) + BIAS) * HALF
    return bool((gap <= product.most * FAR).all())


def _run(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, feeds)]


def main() -> None:
    """Runs the command line."""
    count, seed = (int(text) for text in [*sys.argv[1:3], *("200", "0")[len(sys.argv[1:3]) :]])
    bad, rounded, farthest = 0, 0, {True: 0.0, False: 0.0}
    for index in range(seed, seed + count):
        product = PackedProduct(index)
        found, far = wrong(product, "fast" if index % 2 else "reference")
        farthest[product.rounded] = max(far, farthest[product.rounded])
        bad, rounded = bad + bool(found), rounded + product.rounded
        if found:
            print(index, product.bits, product.block, product.terms, *found, flush=True)
    print(f"{bad} of {count} products differ; {rounded} are rounded, at most {farthest[True]:.1e} "
          f"from onnxruntime, the others {farthest[False]:.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
