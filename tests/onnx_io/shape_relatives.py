"""Random small QDQ models whose shapes are declared wrongly, computed, or written in many ways.

``python -m tests.onnx_io.shape_relatives CASES`` runs so many of each class; prints what fails.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import qdqbridge as qb
from tests.onnx_models import FLOAT, Array, Builder

SCALE, ZERO = 2**-4, 120
Dims = tuple[int, ...]


class Net(Builder):
    """A model that is built along one chain of known shape; axis 0 of the input may have a name.

    Attributes:
        x: The tensor that the next node reads.
        dims: Its true shape on the data that is fed.
    """

    def __init__(self, opset: int, dims: Dims, names: Sequence[str | int] | None = None) -> None:
        super().__init__(opset)
        self.fed = dims
        self.x, self.dims = self.input("x", names or dims), dims
        self.pair()

    def put(self, dims: Sequence[int], op_type: str, *others: str, **attributes: Any) -> None:
        """Applies an operator to the chain."""
        self.x = self.op(op_type, self.x, *others, **attributes)
        self.dims = tuple(dims)

    def pair(self) -> None:
        self.x = self.qdq(self.x, SCALE, ZERO)

    def numbers(self, values: Sequence[int]) -> str:
        return self.init(np.array(values, np.int64))

    def finished(self) -> onnx.ModelProto:
        self.pair()
        self.output(self.x)
        return self.model()

    def feed(self) -> dict[str, Array]:
        rng = np.random.default_rng(len(self.nodes))
        return {"x": rng.normal(size=self.fed).astype(np.float32)}


# ---- running ----------------------------------------------------------------------------------


def runtime(model: onnx.ModelProto | Path, feed: dict[str, Array]) -> Array | None:
    """Returns what onnxruntime computes without optimizations; None where it refuses."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, feed)[0])
    except Exception:  # onnxruntime has no common error of its own
        return None


def loaded(model: onnx.ModelProto, folder: Path, name: str) -> qb.Graph:
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return qb.load(path)


def digest_after_export(graph: qb.Graph, folder: Path) -> str:
    path = folder / "exported.onnx"
    qb.save(graph, path, overwrite=True)
    return qb.load(path).digest


# ---- chains -----------------------------------------------------------------------------------


def _split(rng: random.Random, number: int) -> list[int]:
    """Returns two or three factors of a number."""
    first = rng.choice([i for i in range(1, number + 1) if number % i == 0])
    rest = number // first
    second = rng.choice([i for i in range(1, rest + 1) if rest % i == 0])
    return [first, second, rest // second] if rng.random() < 0.5 else [first, rest]


def step(net: Net, rng: random.Random) -> None:
    """Appends a random node."""
    dims, rank = net.dims, len(net.dims)
    total = math.prod(dims)
    kinds = ["Relu", "Pair", "Reshape", "Transpose", "Softmax", "Unsqueeze", "Slice", "Expand"]
    kinds += ["Tile", "Size", "Concat", "Add"]
    if rank == 4 and min(dims[2:]) > 2:
        kinds += ["Conv", "Conv", "MaxPool", "Pool", "Flatten"]
    kinds += ["Mean", "Flatten"] if rank > 1 else []
    kinds += ["MatMul", "Gemm"] if rank == 2 else []
    kind = rng.choice(kinds)
    if total > 4000 and kind in ("Expand", "Tile", "Concat"):
        kind = "Relu"
    axis = rng.randrange(rank)
    if kind in ("Pair", "Relu", "Transpose", "Softmax", "Add", "MatMul", "Gemm"):
        _compute(net, kind, axis, rng)
    elif kind in ("Conv", "MaxPool", "Pool", "Mean"):
        _reduce(net, kind, axis, rng)
    else:
        _move(net, kind, axis, rng)


def _move(net: Net, kind: str, axis: int, rng: random.Random) -> None:
    dims, rank, total = net.dims, len(net.dims), math.prod(net.dims)
    if kind == "Flatten":
        net.put([dims[0], total // dims[0]], "Flatten")
    elif kind == "Reshape":
        target = [dims[0], *_split(rng, total // dims[0])]
        net.put(target, "Reshape", net.numbers([rng.choice([0, dims[0]]), *target[1:-1], -1]))
    elif kind == "Unsqueeze":
        _unsqueeze(net, axis)
    elif kind == "Slice":
        end = rng.randint(1, dims[axis])
        data = ([0], [end], [axis])
        net.put([*dims[:axis], end, *dims[axis + 1 :]], "Slice", *map(net.numbers, data))
    elif kind == "Expand":
        net.put([2, *dims], "Expand", net.numbers([2, *dims]))
    elif kind == "Tile":
        repeats = [1 + (i == axis) for i in range(rank)]
        made = [d * r for d, r in zip(dims, repeats, strict=True)]
        net.put(made, "Tile", net.numbers(repeats))
    elif kind == "Size":
        count = net.op("Unsqueeze", net.op("Size", net.x), net.numbers([0]))
        if net.opset < 13:
            net.nodes[-1].input.pop()
            net.nodes[-1].attribute.append(helper.make_attribute("axes", [0]))
        net.put([total], "Reshape", count)
    elif kind == "Concat":
        net.put([*dims[:axis], 2 * dims[axis], *dims[axis + 1 :]], "Concat", net.x, axis=axis)


def _unsqueeze(net: Net, axis: int) -> None:
    made = [*net.dims[:axis], 1, *net.dims[axis:]]
    if net.opset >= 13:
        net.put(made, "Unsqueeze", net.numbers([axis]))
    else:
        net.put(made, "Unsqueeze", axes=[axis])


def _compute(net: Net, kind: str, axis: int, rng: random.Random) -> None:
    dims, rank = net.dims, len(net.dims)
    if kind == "Pair":
        net.pair()
    elif kind == "Relu":
        net.put(dims, "Relu")
    elif kind == "Transpose":
        perm = rng.sample(range(rank), rank)
        net.put([dims[i] for i in perm], "Transpose", perm=perm)
    elif kind == "Softmax":
        net.put(dims, "Softmax", axis=rng.choice([axis, axis - rank]))
    elif kind == "Add":
        net.put(dims, "Add", net.init(np.full(dims[-1:], 0.5, np.float32)))
    else:
        net.put([dims[0], 3], kind, net.weight(rng_ints(rng, (dims[1], 3)), 2**-7))


def _reduce(net: Net, kind: str, axis: int, rng: random.Random) -> None:
    if kind == "Mean":
        made = [1 if i == axis else d for i, d in enumerate(net.dims)]
        if net.opset >= 18:
            net.put(made, "ReduceMean", net.numbers([axis]))
        else:
            net.put(made, "ReduceMean", axes=[axis])
        return
    n, c, h, w = net.dims
    if kind == "Pool":
        net.put([n, c, 1, 1], "GlobalAveragePool")
    elif kind == "MaxPool":
        net.put([n, c, h - 1, w - 1], "MaxPool", kernel_shape=[2, 2])
    else:
        weight = net.weight(rng_ints(rng, (3, c, 3, 3)), 2**-8)
        net.put([n, 3, h - 2, w - 2], "Conv", weight)


def rng_ints(rng: random.Random, shape: Sequence[int]) -> Array:
    return np.random.default_rng(rng.randrange(1 << 30)).integers(-127, 128, shape).astype(np.int8)


def chain(rng: random.Random) -> tuple[Net, list[tuple[str, Dims]]]:
    """Returns a random chain with the names and true shapes of its tensors."""
    dims = rng.choice([(4, 3, 8, 8), (2, 6), (3, 4, 5), (2, 2, 6, 6), (1, 8, 5, 5)])
    named = rng.random() < 0.4
    net = Net(rng.choice([11, 13, 17, 18]), dims, ("n", *dims[1:]) if named else None)
    made: list[tuple[str, Dims]] = [(net.x, net.dims)]
    for _ in range(rng.randint(1, 6)):
        before = len(net.nodes), net.x, net.dims
        if named and before[0] and net.dims[0] != dims[0]:
            break  # an open axis is moved; the generator's numbers would be baked in
        step(net, rng)
        made.append((net.x, net.dims))
    return net, made


# ---- stale shapes -----------------------------------------------------------------------------


def lie(rng: random.Random, dims: Dims) -> list[Any]:
    """Returns a shape that is not ``dims``."""
    shape: list[Any] = list(dims)
    kind = rng.choice(["batch", "permuted", "rank", "random", "ones", "name"])
    if kind == "batch" and shape:
        shape[0] += rng.choice([-1, 1, 3])
    elif kind == "permuted":
        rng.shuffle(shape)
    elif kind == "rank":
        shape = [*shape, 2] if rng.random() < 0.5 else shape[1:]
    elif kind == "ones":
        shape = [1] * len(shape)
    elif kind == "name" and shape:
        shape[rng.randrange(len(shape))] = "n"
    else:
        shape = [rng.randint(1, 9) for _ in shape]
    return shape


def stale_case(seed: int, folder: Path) -> str:
    """Checks a model with wrong declared shapes beside the same without any; returns what fails."""
    rng = random.Random(seed)
    net, made = chain(rng)
    honest = net.finished()
    feed = net.feed()
    want = runtime(honest, feed)
    if want is None:
        return "not run by onnxruntime"  # the generator's own fault
    stale = onnx.ModelProto()
    stale.CopyFrom(honest)
    for name, dims in made:
        if rng.random() < 0.7:
            info = helper.make_tensor_value_info(name, FLOAT, lie(rng, dims))
            stale.graph.value_info.append(info)
    if rng.random() < 0.7:
        shape = lie(rng, want.shape)
        stale.graph.output[0].CopyFrom(helper.make_tensor_value_info(net.x, FLOAT, shape))
    a, b = loaded(honest, folder, "honest"), loaded(stale, folder, "stale")
    if a.digest != b.digest:
        return "another digest"
    have = qb.evaluate(b, feed)[b.output_names[0]]
    if not np.array_equal(have, qb.evaluate(a, feed)[a.output_names[0]]):
        return "evaluate differs"
    steps = np.abs(have - want).max(initial=0) / SCALE if have.shape == want.shape else None
    if steps is None or steps > 1:  # float sums of means are rounded twice in onnxruntime
        return f"onnxruntime {want.shape} evaluate {have.shape}: {steps} steps"
    qb.save(b, folder / "saved.onnx", overwrite=True)
    saved = runtime(folder / "saved.onnx", feed)
    if saved is None or not np.array_equal(saved, want):
        return "the saved file differs"
    return ""


# ---- computed attributes ----------------------------------------------------------------------


def computed(net: Net, values: Sequence[int], rng: random.Random, source: str, dims: Dims) -> str:
    """Returns integers that are computed: from constants, or from the shape of ``source``."""
    array = np.array(values, np.int64)
    kind = rng.choice(["Identity", "Cast", "Concat", "Neg", "Reshape", "Shape", "Add", "Where"])
    if kind == "Cast":
        return net.op("Cast", net.init(array.astype(np.int32)), to=onnx.TensorProto.INT64)
    if kind == "Concat" and len(array) > 1:
        parts = [net.init(array[i : i + 1]) for i in range(len(array))]
        return net.op("Concat", *parts, axis=0)
    if kind == "Neg":
        return net.op("Neg", net.init(-array))
    if kind == "Reshape":
        return net.op("Reshape", net.init(array.reshape(1, -1)), net.numbers([-1]))
    if kind == "Shape":  # the first number by arithmetic on an extent
        axis = rng.randrange(len(dims))
        extent = net.op("Gather", net.op("Shape", source), net.init(np.int64(axis)))
        rest = net.op("Sub", extent, net.init(np.int64(dims[axis] - int(array[0]))))
        first = net.op("Unsqueeze", rest, net.numbers([0]))
        if len(array) == 1:
            return first
        return net.op("Concat", first, net.init(array[1:]), axis=0)
    if kind == "Add":
        return net.op("Add", net.init(array - 7), net.init(np.int64(7)))
    if kind == "Where":
        condition = net.op("Equal", net.init(array), net.init(array))
        return net.op("Where", condition, net.init(array), net.init(np.zeros_like(array)))
    return net.op("Identity", net.init(array))


Integers = Callable[[Sequence[int]], str]


def configured(net: Net, kind: str, ints: Integers) -> None:
    """Appends a node whose integers ``ints`` writes."""
    n, c, h, w = net.dims
    if kind == "Reshape":
        net.put([n, c * h, w], kind, ints([n, c * h, w]))
    elif kind == "Expand":
        net.put([2, n, c, h, w], kind, ints([2, n, c, h, w]))
    elif kind == "Tile":
        net.put([n, c, h, 2 * w], kind, ints([1, 1, 1, 2]))
    elif kind == "Slice":
        net.put([n, c, 2, w], kind, ints([1]), ints([3]), ints([2]), ints([1]))
    elif kind == "Split":
        net.put([n, 1, h, w], kind, ints([1, c - 1]), axis=1, outputs=2)
    elif kind == "Pad":
        net.put([n, c, h + 2, w + 1], kind, ints([0, 0, 1, 0, 0, 0, 1, 1]))
    elif kind == "Resize":
        net.put(
            [n, c, 2 * h, 2 * w], kind, "", "", ints([n, c, 2 * h, 2 * w]),
            mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
    elif kind == "Unsqueeze":
        net.put([n, 1, c, h, w], kind, ints([1]))
    elif kind == "Squeeze":
        net.put([n, c, h, 1], "ReduceMax", net.numbers([3]))
        net.put([n, c, h], kind, ints([3]))
    elif kind == "TopK":
        net.x = net.op(kind, net.x, ints([2]), axis=1, outputs=2)
    elif kind == "Gather":
        net.put([n, 2, h, w], kind, ints([0, 1]), axis=1)
    else:
        net.put([n, c, 1, 1], kind, ints([2, 3]))


CONFIGURED = (
    "Reshape", "Expand", "Tile", "Slice", "Split", "Pad", "Resize", "Unsqueeze", "Squeeze", "TopK",
    "Gather", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin",
)  # fmt: skip


def computed_case(seed: int, folder: Path) -> str:
    """Checks a model whose integers are computed beside the one where they are constants."""
    rng = random.Random(seed)
    kind, dims = CONFIGURED[seed % len(CONFIGURED)], rng.choice([(1, 4, 4, 5), (2, 3, 5, 5)])
    twins: list[onnx.ModelProto] = []
    for folded in (True, False):
        net = Net(18, dims)

        def ints(values: Sequence[int], net: Net = net, folded: bool = folded) -> str:
            return net.numbers(values) if folded else computed(net, values, rng, net.x, net.dims)

        configured(net, kind, ints)
        twins.append(net.finished())
    feed = net.feed()
    a, b = (loaded(model, folder, f"twin{i}") for i, model in enumerate(twins))
    if len({a.digest, b.digest, *(digest_after_export(g, folder) for g in (a, b))}) != 1:
        return f"{kind}: another digest, {[n.op.name for n in b.nodes]}"
    want, have = runtime(twins[1], feed), runtime(folder / "exported.onnx", feed)
    if want is None or have is None or not np.array_equal(want, have):
        return f"{kind}: the exported file differs"
    return ""


# ---- forms of a reshape -------------------------------------------------------------------


def variants(rng: random.Random, dims: Dims, target: Sequence[int], open_: int) -> list[list[int]]:
    """Returns the targets that mean one reshape for every extent of the open axes."""
    found: list[list[int]] = []
    for left in (None, *range(len(target))):
        for zeros in range(1 << len(target)):
            written = list(target)
            for i in range(len(target)):
                if zeros >> i & 1 and i < len(dims) and dims[i] == target[i]:
                    written[i] = 0
            if left is not None:
                written[left] = -1
            if all(written[i] in (0, -1) for i in range(open_)):
                found.append(written)
    return rng.sample(found, min(4, len(found)))


def reshape_case(seed: int, folder: Path) -> str:
    """Checks that all forms of one reshape, open or not, have one digest."""
    rng = random.Random(seed)
    dims = rng.choice([(3, 4, 8, 6), (5, 32, 24), (2, 6, 4), (7, 8), (3, 8, 1, 1)])
    open_ = rng.randint(0, 1)
    kept = [dims[0]] if open_ or rng.random() < 0.5 else []
    target = [*kept, *_split(rng, math.prod(dims) // (dims[0] if kept else 1))]
    if rng.random() < 0.4:
        target = [dims[0], math.prod(dims[1:])]
    names = [*(("n",) * open_), *dims[open_:]]
    models = [_reshaped(dims, names, written) for written in variants(rng, dims, target, open_)]
    models.append(_by_shape(dims, names, target))
    if len(target) == 2 and target[0] == dims[0]:
        models.append(_flattened(dims, names))
    graphs = [loaded(model, folder, f"written{i}") for i, model in enumerate(models)]
    digests = {graph.digest for graph in graphs}
    digests |= {digest_after_export(graph, folder) for graph in graphs}
    if len(digests) != 1:
        return f"{names} -> {target}: {len(digests)} digests of {len(models)} forms"
    return ""


def _reshaped(dims: Dims, names: Sequence[str | int], target: Sequence[int]) -> onnx.ModelProto:
    net = Net(17, dims, names)
    net.put(target, "Reshape", net.numbers(target))
    return net.finished()


def _by_shape(dims: Dims, names: Sequence[str | int], target: Sequence[int]) -> onnx.ModelProto:
    """The target from the tensor's own shape, as PyTorch writes a view."""
    net = Net(17, dims, names)
    if target[0] == dims[0]:
        extent = net.op("Gather", net.op("Shape", net.x), net.init(np.int64(0)))
        first = net.op("Unsqueeze", extent, net.numbers([0]))
        written = net.op("Concat", first, net.numbers(target[1:]), axis=0)
    else:
        written = net.op("Identity", net.numbers(target))
    net.put(target, "Reshape", written)
    return net.finished()


def _flattened(dims: Dims, names: Sequence[str | int]) -> onnx.ModelProto:
    net = Net(17, dims, names)
    net.put((dims[0], math.prod(dims[1:])), "Flatten")
    return net.finished()


CLASSES: dict[str, Callable[[int, Path], str]] = {
    "stale": stale_case,
    "computed": computed_case,
    "reshape": reshape_case,
}


def main(cases: int) -> int:
    """Runs every class; returns the number of failures."""
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, case in CLASSES.items():
            for seed in range(cases):
                try:
                    problem = case(seed, Path(scratch))
                except qb.QdqBridgeError as error:
                    problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                if problem:
                    failures += 1
                    sys.stdout.write(f"{name} {seed}: {problem}\n")
            sys.stdout.write(f"{name}: {cases} cases\n")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1])), 1))
