"""What a grown graph is put through, and what tells a fault from a rounding.

Results are compared bit for bit (NaN is NaN, and 0 is -0). Where they differ and a float operator
that may round otherwise stands before them - a sum in another order, a function's last bit - the
judge runs the graph again with random last bits behind and in front of these operators: what moves
by as much is a rounding. Where there is no such operator, nothing may move.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.onnx_io.reading.reader import read
from tests.fuzzing.graph_grower import SETS, Grower, NoJudge, runner
from tests.fuzzing.operator_nodes import MAKERS
from tests.onnx_io.digest_trips import HOSTED, hosted
from tests.onnx_models import Array
from tests.tvm.relax.targets import HOST, UNOPTIMIZED

STAGES = ("whole", "load", "raw", "canonical", "text", "saved", "relax", "tvm")
ROUNDED = frozenset({
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Gelu", "HardSigmoid", "HardSwish", "Log", "Mish", "Pow", "Reciprocal", "Selu", "Sigmoid",
    "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "Sum", "Mean", "ReduceSum",
    "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
    "ReduceLogSumExp", "CumSum", "CumProd", "MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose",
    "AveragePool", "GlobalAveragePool", "LpPool", "GlobalLpPool", "Resize", "Upsample",
    "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization",
    "RMSNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization", "Softmax",
    "LogSoftmax", "Mod", "ScatterElements", "ScatterND", "Shrink", "DynamicQuantizeLinear",
})  # fmt: skip
"""Operators whose last bits, of floats, nobody promises."""
_EPSILON = {"float32": 2.0**-21, "float16": 2.0**-9, "float64": 2.0**-48}
_STASHED = ("LayerNormalization", "RMSNormalization", "Shrink")
"""Operators that ONNX (``stash_type``) or onnxruntime (Shrink) computes in float32 whatever they
are given."""
_OPTIMIZED = 0.2
"""Of the graphs, what LLVM optimizes."""
_TRIES, _MORE, _MARGIN = 8, 64, 4.0
_BESIDE_ZERO = frozenset(
    {"LogSoftmax", "ReduceLogSumExp", "ReduceLogSum", "Softplus", "Log", "Gelu"}
)
"""Operators whose result is as exact as a logarithm around 1 is: as 1, not as the result. So is
1 + erf."""
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm")
_LARGE = {"float32": 1e15, "float16": 100.0, "float64": 1e100}
"""Numbers whose products may overflow in one order of additions, and not in another."""


class Outcome(NamedTuple):
    """What became of a graph in a stage: ``pass``, ``wrong``, ``refused``, ``error``."""

    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """A model, and what is fed and meant, by set of inputs."""

    model: onnx.ModelProto
    sets: Sequence[tuple[Mapping[str, Array], Mapping[str, Array]]]
    values: Sequence[Mapping[str, Array]]
    """Every value by name, by set."""


class Wrong(Exception):
    """A result differs from what the graph means."""


def grown(seed: object, most: int = 12) -> Grower:
    """Returns a graph of 2 nodes or more, ``most`` at most."""
    rng = Random(f"{seed}")
    g = Grower(rng)
    wanted = rng.randint(2, most)
    for _ in range(5 * most):
        if (
            sum(1 for node in g.b.nodes if node.op_type not in ("Constant", "ConstantOfShape"))
            >= wanted
        ):
            break
        draft = rng.choice(MAKERS)(g)
        if draft is not None:
            g.put(draft)
    return g


def case_of(seed: object, most: int = 12) -> Case:
    """Returns a random graph of ``most`` nodes at most, its outputs chosen, and what they are."""
    g = grown(seed, most)
    rng = g.rng
    computed = {name for node in g.b.nodes for name in node.output}
    names = [v.name for v in g.values]
    chosen = [v for v in names if v in computed][-rng.randint(1, 3) :]
    if g.chance(0.5) and names:
        chosen.append(rng.choice(names))
    if g.chance(0.05):
        chosen.append(rng.choice([*g.made]))
    if not chosen:
        chosen = names[:1] or [*g.made][:1]
    chosen = [*dict.fromkeys(chosen)]
    for name in chosen:
        v = g.made[name]
        shape = list(v.shape) if not g.opened and g.chance(0.3) else None
        g.b.output(name, shape, helper.np_dtype_to_tensor_dtype(v.first.dtype))
    sets, values = [], []
    for index in range(SETS):
        if g.alive[index]:
            wanted = {name: g.made[name].arrays[index] for name in chosen}
            sets.append((g.feeds(index), wanted))
            values.append({name: v.arrays[index] for name, v in g.made.items()})
    return Case(g.b.model(), sets, values)


class Run:
    """A case on its way through the stages."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.file = folder / "model.onnx"
        onnx.save(case.model, self.file)
        self.graph: Any = None
        self.executable: Any = None
        self.doubtful = False
        """onnxruntime computes another result of the whole model than of its nodes."""

    def stage(self, name: str) -> Outcome:
        """Returns what becomes of the case in a stage."""
        steps: dict[str, Callable[[], None]] = {
            "whole": self._whole, "load": self._load, "raw": self._raw,
            "canonical": self._canonical, "text": self._text, "saved": self._saved,
            "relax": self._relax, "tvm": self._tvm,
        }  # fmt: skip
        try:
            steps[name]()
        except Wrong as error:
            return Outcome("wrong", str(error))
        except qb.QdqBridgeError as error:
            return Outcome("refused", f"{error.what}: {_line(error.why)}")
        except NoJudge as error:
            return Outcome("unjudged", _line(error))
        except Exception as error:  # a finding, whatever it is
            if "onnxruntime" in type(error).__module__:
                return Outcome("refused", f"onnxruntime: {_line(error)}")
            return Outcome("error", f"{type(error).__name__}: {_line(error)} {_place(error)}")
        return Outcome("pass")

    def _each(self, run: Callable[[Mapping[str, Array]], Mapping[str, Any]]) -> None:
        for index, (feeds, wanted) in enumerate(self.case.sets):
            found = run(feeds)
            for name, array in wanted.items():
                self._check(index, name, array, found[name])

    def _check(self, index: int, name: str, wanted: Array, found: Any) -> None:
        if not isinstance(found, np.ndarray):
            found = np.asarray(found)
        if found.dtype != wanted.dtype:
            raise Wrong(f"set {index}: {name} is {found.dtype} instead of {wanted.dtype}")
        if found.shape == wanted.shape and _same(found, wanted).all():
            return
        if found.shape == wanted.shape:
            differ = ~_same(found, wanted)
            for tries in (_TRIES, _MORE):  # whatever lies beside a tie moves one way or the other
                allowed = moved(self.case, index, name, wanted, tries)
                if allowed is None:
                    break
                with np.errstate(all="ignore"):
                    away = np.abs(_wide(found) - _wide(wanted))
                    differ &= ~(away <= _MARGIN * allowed) & ~np.isinf(allowed)
                if not differ.any():
                    return
            at = tuple(int(i) for i in np.argwhere(np.atleast_1d(differ))[0])
            one, other = np.atleast_1d(found)[at], np.atleast_1d(wanted)[at]
            raise Wrong(
                f"set {index}: {name} {wanted.dtype}{list(wanted.shape)} {int(differ.sum())} of "
                f"{differ.size} differ, {one!r} instead of {other!r} at {at}"
            )
        allowed = moved(self.case, index, name, wanted)
        if allowed is None or not np.isinf(allowed).any():
            raise Wrong(f"set {index}: {name} has shape {found.shape} instead of {wanted.shape}")

    def _whole(self) -> None:
        try:
            self._each(_by_name(self.case.model))
        except Wrong as error:
            self.doubtful = True
            raise NoJudge(f"the judge contradicts itself: {error}") from error

    def _load(self) -> None:
        self.graph = qb.load(self.file)

    def _loaded(self) -> qb.Graph:
        if self.graph is None:
            self.graph = qb.load(self.file)
        return self.graph

    def _raw(self) -> None:
        graph = read(self.file, canonicalize)
        self._each(lambda feeds: evaluate(graph, feeds)[0])

    def _canonical(self) -> None:
        graph = self._loaded()
        self._each(lambda feeds: qb.evaluate(graph, feeds))

    def _text(self) -> None:
        graph = self._loaded()
        again = qb.load(self.file)
        if canonicalize(again).digest != graph.digest:
            raise Wrong("canonicalizing twice gives another digest")

    def _saved(self) -> None:
        graph, saved = self._loaded(), self.folder / "saved.onnx"
        qb.save(graph, saved, overwrite=True)
        if not self.doubtful:
            self._each(_by_name(onnx.load(saved)))
        if qb.load(saved).digest != graph.digest:
            raise Wrong("the saved file has another digest")

    def _relax(self) -> None:
        graph = self._loaded()
        for variant in HOSTED:
            if hosted(graph, variant).digest != graph.digest:
                raise Wrong(f"the module of the form '{variant}' has another digest")

    def _tvm(self) -> None:
        if self.executable is None:
            whole = Random(self.case.model.SerializeToString()).random() < _OPTIMIZED
            target = HOST if whole else UNOPTIMIZED
            self.executable = qb.compile(self._loaded(), target, threads=1)
        self._each(self.executable.run)


def _by_name(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], Mapping[str, Any]]:
    run, names = runner(model), [value.name for value in model.graph.output]
    return lambda feeds: dict(zip(names, run(feeds), strict=True))


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _same(found: Array, wanted: Array) -> Array:
    same = np.asarray(found == wanted)
    if wanted.dtype.kind == "f":
        same = same | (np.isnan(found) & np.isnan(wanted))
    return same


def moved(case: Case, index: int, name: str, wanted: Array, tries: int = _TRIES) -> Array | None:
    """Returns how far random last bits move an output, by element; None where none are before it.

    Infinite where it becomes a number, or none; as a scalar where it has another shape.
    """
    needed = _before(case.model, name)
    for node in case.model.graph.node:
        if (
            node.op_type in ROUNDED
            and id_of(node) in needed
            and _overflows(node, case.values[index])
        ):
            return np.array(np.inf)
    with np.errstate(all="ignore"):
        widest = np.abs(np.spacing(wanted)) if wanted.dtype.kind == "f" else np.zeros(wanted.shape)
    widest = np.where(np.isfinite(widest), widest, 0).astype(np.float64)
    for number in range(tries):
        noisy, count = _noisy(case.model, case.values[index], name, np.random.default_rng(number))
        if not count:
            return None
        try:
            found = dict(_by_name(noisy)(case.sets[index][0]))[name]
        except Exception:  # what moves breaks a later node: no judgement
            return np.array(np.inf)
        if found.shape != wanted.shape:
            return np.array(np.inf)
        with np.errstate(all="ignore"):
            away = np.abs(_wide(found) - _wide(wanted))
        away = np.where(_same(found, wanted), 0, away)
        widest = np.maximum(widest, np.where(np.isnan(away), np.inf, away))
    return widest


def _overflows(node: NodeProto, arrays: Mapping[str, Array]) -> bool:
    found = [arrays[n] for n in node.input if n in arrays and arrays[n].dtype.name in _LARGE]
    return any(bool(np.any(np.abs(a[np.isfinite(a)]) > _LARGE[a.dtype.name])) for a in found)


def _noisy(
    model: onnx.ModelProto, arrays: Mapping[str, Array], name: str, rng: Any
) -> tuple[onnx.ModelProto, int]:
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    needed = _before(model, name)
    nodes: list[NodeProto] = []
    count = 0

    def factor(of: str, op_type: str) -> str:
        nonlocal count
        array, key = arrays[of], f"noise_{count}"
        kind = "float32" if op_type in _STASHED and array.dtype == np.float64 else array.dtype.name
        with np.errstate(all="ignore"):
            around = 1 + rng.choice([-1.0, 1.0], array.shape) * _EPSILON[kind]
        noisy.graph.initializer.append(numpy_helper.from_array(around.astype(array.dtype), key))
        count += 1
        return key

    def real(of: str) -> bool:
        return bool(of) and of in arrays and arrays[of].dtype.name in _EPSILON

    makers = {result: node for node in model.graph.node for result in node.output}
    for node in model.graph.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        half = any(real(n) and arrays[n].dtype == np.float16 for n in (*node.input, *node.output))
        if id_of(node) not in needed or not (node.op_type in ROUNDED or half):
            nodes.append(copy)
            continue
        for i, operand in enumerate(node.input):
            if i == 2 and (unit := _bias_unit(node, makers, arrays)):
                made, key = f"{operand}/{count}", f"noise_{count}"
                around = rng.choice([-0.5, 0.5], arrays[operand].shape) * unit
                around = around.astype(arrays[operand].dtype)
                noisy.graph.initializer.append(numpy_helper.from_array(around, key))
                nodes.append(helper.make_node("Add", [operand, key], [made]))
                copy.input[i] = made
                count += 1
            elif real(operand) and not (node.op_type in ("Resize", "Upsample") and i):
                made = f"{operand}/{count}"
                nodes.append(
                    helper.make_node("Mul", [operand, factor(operand, node.op_type)], [made])
                )
                copy.input[i] = made
        nodes.append(copy)
        for i, result in enumerate(node.output):
            if real(result):
                copy.output[i] = f"{result}/exact"
                made = result if node.op_type not in _BESIDE_ZERO else f"{result}/near"
                nodes.append(
                    helper.make_node("Mul", [copy.output[i], factor(result, node.op_type)], [made])
                )
                if made != result:
                    exact = _one(noisy, arrays[result])
                    one = helper.make_node("Sub", [factor(result, node.op_type), exact],
                                           [f"{result}/bits"])  # fmt: skip
                    nodes += [one, helper.make_node("Add", [made, f"{result}/bits"], [result])]
    del noisy.graph.node[:]
    noisy.graph.node.extend(nodes)
    outputs = [value for value in noisy.graph.output if value.name == name]
    del noisy.graph.output[:]
    noisy.graph.output.extend(outputs)
    return noisy, count


def _bias_unit(
    node: NodeProto, makers: Mapping[str, NodeProto], arrays: Mapping[str, Array]
) -> float:
    """Returns the unit to whole numbers of which the canonical form rounds a float bias; or 0."""
    both = [makers.get(name) for name in node.input[:2]]
    dequantized = [m for m in both if m is not None and m.op_type == "DequantizeLinear"]
    if node.op_type not in _PRODUCTS or len(dequantized) != 2 or node.input[2] not in arrays:
        return 0.0
    return float(np.prod([float(arrays[m.input[1]].max()) for m in dequantized]))


def _one(model: onnx.ModelProto, array: Array) -> str:
    name = f"one_{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.ones((), array.dtype), name))
    return name


def id_of(node: NodeProto) -> str:
    """Returns what names a node."""
    return next(name for name in node.output if name)


def _before(model: onnx.ModelProto, name: str) -> set[str]:
    made = {result: node for node in model.graph.node for result in node.output}
    needed: set[str] = set()
    stack = [name]
    while stack:
        node = made.get(stack.pop())
        if node is not None and id_of(node) not in needed:
            needed.add(id_of(node))
            stack += node.input
            for attribute in node.attribute:
                for inner in attribute.g.node:
                    stack += inner.input
    return needed


def _line(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 400 else text[:400] + " …"


def _place(error: Exception) -> str:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(frames[-5:])


def outcomes(case: Case, stages: Sequence[str] = STAGES) -> dict[str, Outcome]:
    """Returns what becomes of a case, by stage; nothing runs behind ``load`` that fails."""
    with tempfile.TemporaryDirectory() as folder:
        run, found = Run(case, Path(folder)), {}
        for stage in stages:
            found[stage] = run.stage(stage)
            if stage in ("whole", "load") and found[stage].outcome not in ("pass", "unjudged"):
                break
        return found
