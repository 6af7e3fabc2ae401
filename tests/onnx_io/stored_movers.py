"""Random models that move stored integers between a Q and its DQ, with scales of every granularity.

``python -m tests.onnx_io.stored_movers FIRST COUNT`` runs so many, on TVM too; prints what fails.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import qdqbridge as qb
from tests.onnx_models import Array, Builder

BLOCK = 2
TYPES = (np.uint8, np.int8, np.uint16, np.int16)


class Movers(Builder):
    """Stored tensors of one storage type and what moves them.

    Attributes:
        rng: Decides everything.
        dtype: Of what is stored.
        kind: ONNX's number of it.
        feeds: The inputs.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        granularity = self.rng.choice(["axis", "axis", "axis", "blocked", "tensor"])
        super().__init__(21 if granularity == "blocked" else self.rng.choice([13, 18, 21]))
        self.granularity = granularity
        self.dtype = self.rng.choice(TYPES if self.opset == 21 else TYPES[:2])
        self.kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        self.numbers = np.random.default_rng(seed)
        self.feeds: dict[str, Array] = {}

    def scales(self, shape: list[int], axis: int) -> tuple[Any, dict[str, int]]:
        """Returns scales of a tensor of a shape, and the attributes that say how they lie."""
        extents: list[int] = []
        attributes: dict[str, int] = {}
        if self.granularity == "axis":
            extents, attributes = [shape[axis]], {"axis": axis - self.rng.choice([0, len(shape)])}
        elif self.granularity == "blocked":
            extents = [-(-n // BLOCK) if i == axis else n for i, n in enumerate(shape)]
            attributes = {"axis": axis, "block_size": BLOCK}
        scale = self.numbers.uniform(0.01, 0.03, extents).astype(np.float32)
        return scale, attributes

    def stored(self, shape: list[int], axis: int) -> tuple[str, Any, Array, dict[str, int]]:
        """Returns a quantized input, and how it is."""
        name = self.input(f"x{len(self.feeds)}", shape)
        self.feeds[name] = self.numbers.normal(size=shape).astype(np.float32)
        scale, attributes = self.scales(shape, axis)
        zero = self.numbers.integers(90, 110, scale.shape).astype(self.dtype)
        made = self.q(name, scale, zero, self.dtype, **attributes)
        return made, scale, zero, attributes

    def ints(self, *values: int) -> str:
        return self.init(np.array(values, np.int64))

    def constant(self, shape: tuple[int, ...] | list[int]) -> str:
        return self.init(self.numbers.integers(0, 120, shape).astype(self.dtype))


Move = Callable[[Movers, str, list[int], int, str], str]
"""``move(models, stored, shape, axis, other)``: other is of the same type and shape."""


def _reshape(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    joined = [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]
    return b.op("Reshape", x, b.ints(*b.rng.choice([joined, [1, *shape], shape[::-1], [-1]])))


def _transpose(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    return b.op("Transpose", x, perm=b.rng.sample(range(len(shape)), len(shape)))


def _concat(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    operands = b.rng.choice([[x, x], [x, x, x], [x], [x, other], [x, b.constant(shape)]])
    return b.op("Concat", *operands, axis=axis - b.rng.choice([0, len(shape)]))


def _squeeze(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    wide = b.op("Unsqueeze", x, b.ints(axis))
    return b.op("Squeeze", wide, b.ints(axis)) if b.rng.random() < 0.5 else wide


def _slice(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    start, end, step = b.rng.choice([(1, 99, 1), (0, 2, 1), (-1, -99, -1), (0, 99, 2)])
    return b.op("Slice", x, b.ints(start), b.ints(end), b.ints(axis), b.ints(step))


def _gather(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    indices = b.rng.choice([[1, 0, 1], list(range(shape[axis]))[::-1], 1])
    return b.op("Gather", x, b.init(np.array(indices, np.int64)), axis=axis)


def _split(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    first = b.op("Split", x, b.ints(1, shape[axis] - 1), outputs=2, axis=axis)
    return first if b.rng.random() < 0.5 else f"{first}:1"


def _pad(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    pads = [int(i == axis) for i in range(len(shape))] * 2
    value = [] if b.rng.random() < 0.3 else [b.init(np.array(b.rng.choice([0, 100]), b.dtype))]
    return b.op("Pad", x, b.ints(*pads), *value, mode=b.rng.choice(["constant", "edge"]))


def _reduce(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    old = b.opset < 18
    kind, keeps = b.rng.choice(["ReduceMax", "ReduceMin"]), b.rng.choice([0, 1])
    operands = [x] if old else [x, b.ints(axis)]
    return b.op(kind, *operands, keepdims=keeps, axes=[axis] if old else None)


def _window(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    return b.op("MaxPool", x, kernel_shape=[2] * (len(shape) - 2))


def _blocks(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    mode, kind = b.rng.choice(["DCR", "CRD"]), b.rng.choice(["DepthToSpace", "SpaceToDepth"])
    return b.op(kind, x, blocksize=2, mode=mode if kind == "DepthToSpace" else None)


def _where(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    condition = b.init(b.numbers.random(shape) < 0.5)
    return b.op("Where", condition, x, b.rng.choice([other, x, b.constant(())]))


def _resize(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    scales = b.init(np.array([1 + (i == axis) for i in range(len(shape))], np.float32))
    at = "asymmetric"
    return b.op(
        "Resize", x, "", scales, mode="nearest", nearest_mode="floor",
        coordinate_transformation_mode=at,
    )  # fmt: skip


def _indexed(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    indices = b.init(b.numbers.integers(0, shape[axis], shape))
    if b.rng.random() < 0.5:
        return b.op("GatherElements", x, indices, axis=axis)
    return b.op("GatherND", x, b.init(np.array([[0], [1]], np.int64)))


def _scatter(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    updates = b.constant([1, *shape[1:]])
    return b.op("ScatterND", x, b.init(np.array([[1]], np.int64)), updates)


def _clip(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    return b.op("Clip", x, *(b.init(np.array(v, b.dtype)) for v in (80, 120)))


def _extreme(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    return b.op(b.rng.choice(["Max", "Min"]), x, b.rng.choice([other, b.constant(())]))


def _flip(b: Movers, x: str, shape: list[int], axis: int, other: str) -> str:
    lengths = b.init(np.full(shape[1], shape[0], np.int64))
    return b.op("ReverseSequence", x, lengths, batch_axis=1, time_axis=0)


MOVES: tuple[Move, ...] = (
    _reshape, _transpose, _concat, _concat, _squeeze, _slice, _gather, _split, _pad, _reduce,
    _window, _blocks, _where, _resize, _indexed, _scatter, _clip, _extreme, _flip,
    lambda b, x, shape, axis, other: b.op("Flatten", x, axis=axis),
    lambda b, x, shape, axis, other: b.op(
        "Tile", x, b.ints(*(1 + (i == axis) for i in range(len(shape))))
    ),
    lambda b, x, shape, axis, other: b.op("Expand", x, b.ints(2, *shape)),
    lambda b, x, shape, axis, other: b.op("Identity", x),
    lambda b, x, shape, axis, other: b.op("Relu", x),
    lambda b, x, shape, axis, other: b.op("Cast", x, to=b.kind),
)  # fmt: skip


def model(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]] | None:
    """Returns a model whose result is stored, or dequantized in every way that fits; and data.

    None where ONNX or onnxruntime does not have it.
    """
    b = Movers(seed)
    move = MOVES[seed % len(MOVES)]
    rank = 4 if move in (_window, _blocks) else b.rng.choice([2, 3, 4])
    shape = [4, 4, 2, 4][:rank]
    along, axis = b.rng.randrange(rank), b.rng.randrange(rank - (move is _reshape))
    x, scale, zero, attributes = b.stored(shape, along)
    other = b.stored(shape, along)[0]
    moved = move(b, x, shape, axis, other)
    if b.rng.random() < 0.25:
        moved = b.op("Identity", moved)
    b.output(moved, None, b.kind)
    given = _ran(b.model(), b.feeds)
    if given is None:
        return None
    extents = list(given[0].shape)
    for target in range(len(extents)):
        if attributes and extents[target] == shape[along] and b.granularity == "axis":
            b.output(b.dq(moved, scale, zero, b.dtype, axis=target))
    if extents:
        scale, attributes = b.scales(extents, b.rng.randrange(len(extents)))
        zero = b.numbers.integers(90, 110, scale.shape).astype(b.dtype)
        b.output(b.dq(moved, scale, zero, b.dtype, **attributes))
    if b.rng.random() < 0.5:
        del b.outputs[0]
    return (b.model(), b.feeds) if b.outputs else None


def _ran(model: onnx.ModelProto | Path, feeds: dict[str, Array]) -> list[Array] | None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return [np.asarray(each) for each in session.run(None, feeds)]
    except Exception:  # onnxruntime has no common error of its own
        return None


def case(seed: int, folder: Path, *, compiled: bool = False) -> str | None:
    """Returns in words what goes wrong; None where onnxruntime does not have the model."""
    made = model(seed)
    wanted = None if made is None else _ran(*made)
    if made is None or wanted is None:
        return None
    path, saved = folder / "m.onnx", folder / "o.onnx"
    onnx.save(made[0], path)

    def differs(got: list[Array] | None) -> bool:
        return got is None or any(
            a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes()
            for a, b in zip(wanted, got, strict=True)
        )

    graph = qb.load(path)
    if differs(list(qb.evaluate(graph, made[1]).values())):
        return "the interpreter differs"
    if compiled and differs(list(qb.compile(graph).run(made[1]).values())):
        return "TVM differs"
    qb.save(graph, saved, overwrite=True)
    if differs(_ran(saved, made[1])):
        return "onnxruntime computes something else of the saved file"
    if qb.load(saved).digest != graph.digest:
        return "the saved file has another digest"
    if qb.parse(graph.text("inline")).digest != graph.digest:
        return "the text form has another digest"
    return ""


def main(first: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        ran = 0
        for seed in range(first, first + count):
            try:
                problem = case(seed, Path(scratch), compiled=True)
            except qb.QdqBridgeError as error:
                problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ran += problem is not None
            if problem:
                print(seed, problem, flush=True)
        print(f"{ran} of {count} ran")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
