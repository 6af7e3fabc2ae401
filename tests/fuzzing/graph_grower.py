"""Graphs that grow node by node; a node stays where the judge runs it on the data of every value.

A value is its name and its arrays, one per set of inputs: shapes, indices and divisors are known
wherever the next node is drawn, and what a graph means is known before anybody reads it. The judge
is onnxruntime without optimizations, a node at a time; ONNX's own reference where it has no kernel.
A second and third set of inputs differ in the open extents, which may be 0 and 1 there; a set on
which a node fails is given up for the whole graph, the first never.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, defs, helper, numpy_helper

from tests.fuzzing.undefined_results import aborts, undefined
from tests.onnx_models import Array, Builder

OLDEST, NEWEST = 7, 26
SETS = 3
REALS = ("float32", "float16", "float64")
INTEGERS = ("int64", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64")
KINDS = (*REALS, *INTEGERS, "bool")
MOST = 4096
"""Elements of the largest value that stays."""
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 1e30, -1e30, 0.5, 1.5, -2.5)


@dataclass(eq=False)
class Grown:
    """A value: its arrays, None where a set of inputs is given up; whether all readers know it."""

    name: str
    arrays: list[Array | None]
    constant: bool = False

    @property
    def first(self) -> Array:
        array = self.arrays[0]
        assert array is not None
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.first.shape

    @property
    def rank(self) -> int:
        return self.first.ndim

    @property
    def kind(self) -> str:
        return self.first.dtype.name

    @property
    def known(self) -> list[Array]:
        return [array for array in self.arrays if array is not None]


@dataclass
class Draft:
    """A node to try: operands (None is left out), attributes, how many results."""

    op_type: str
    operands: Sequence[Grown | None]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    results: int = 1
    captured: Sequence[Grown] = ()
    """Values that bodies read from outside."""


class Grower:
    """A graph on its way.

    Attributes:
        values: What may be read, inputs and constants among it.
        sizes: The extents of each name, by set.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.numbers = np.random.default_rng(rng.randrange(1 << 32))
        self.b = Builder(rng.choice((*range(OLDEST, NEWEST + 1), 13, 17, 18, 21)))
        self.opened = rng.random() < 0.45
        self.sizes = {
            name: [rng.randint(1, 5), rng.choice((1, 2, 4)), rng.choice((0, 1, 3))]
            for name in "nmk"
        }
        self.alive = [True, *(self.opened for _ in range(SETS - 1))]
        self.values: list[Grown] = []
        self.inputs: list[Grown] = []
        self.made: dict[str, Grown] = {}

    # ---- drawing ------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, *of: Any) -> Any:
        return self.rng.choice(of)

    def kind(self) -> str:
        if self.chance(0.55):
            return "float32"
        return self.pick(*KINDS, "int64", "int32", "float16", "bool")

    def extents(self, rank: int | None = None) -> tuple[int, ...]:
        count: int = self.pick(0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6) if rank is None else rank
        return tuple(
            0 if self.chance(0.03) else self.pick(1, 1, 2, 2, 3, 3, 4, 5) for _ in range(count)
        )

    def data(self, kind: str, shape: Sequence[int]) -> Array:
        """Returns random numbers; at times with what is not a number, and ends of the type."""
        size, rng, dtype = int(np.prod(shape)), self.numbers, np.dtype(kind)
        if dtype.kind == "b":
            return (rng.random(size) < 0.5).reshape(shape)
        style = self.rng.random()
        if dtype.kind == "f":
            drawn = rng.integers(-16, 17, size) / 4 if style < 0.5 else rng.normal(size=size) * 2
            if style > 0.88:
                chosen = rng.choice(np.array(SPECIAL), size)
                drawn = np.where(rng.random(size) < 0.3, chosen, drawn)
            with np.errstate(over="ignore"):
                return drawn.astype(dtype).reshape(shape)
        info = np.iinfo(dtype)
        low, high = max(-6, int(info.min)), 7
        drawn = rng.integers(low, high, size).astype(dtype)
        if style > 0.85:
            ends = np.array([info.min, info.max, info.max // 2, info.min + 1], dtype)
            drawn = np.where(rng.random(size) < 0.3, rng.choice(ends, size), drawn)
        return drawn.astype(dtype).reshape(shape)

    # ---- values -------------------------------------------------------------------------------

    def constant(self, array: Any) -> Grown:
        """Adds a constant: an initializer, or a node that makes one."""
        array = np.asarray(array)
        same = array.size > 1 and array.dtype.kind != "b" and len(np.unique(array)) == 1
        if same and self.chance(0.5) and self.b.opset >= 9 and array.dtype.kind in "fiu":
            shape = self.b.init(np.array(array.shape, np.int64))
            value = numpy_helper.from_array(array.reshape(-1)[:1])
            name = self.b.op("ConstantOfShape", shape, value=value)
        elif self.chance(0.2):
            name = self.b.op("Constant", value=numpy_helper.from_array(array))
        else:
            name = self.b.init(array)
        grown = Grown(name, [array if alive else None for alive in self.alive], constant=True)
        self.made[name] = grown
        return grown

    def ints(self, *numbers: int) -> Grown:
        """Adds numbers that are mostly constant, at times an input that only the run knows."""
        array = np.array(numbers, np.int64)
        return self.input_of(array) if self.chance(0.12) else self.constant(array)

    def input_of(self, array: Array) -> Grown:
        """Adds an input that has the same numbers in every set."""
        return self._input([*array.shape], [array if alive else None for alive in self.alive])

    def input(self, kind: str, shape: Sequence[int] | None = None) -> Grown:
        """Adds an input; extents are open where the graph is."""
        extents: list[int | str] = [*(self.extents() if shape is None else shape)]
        if self.opened:
            for axis, extent in enumerate(extents):
                fits = [name for name, sizes in self.sizes.items() if sizes[0] == extent]
                if shape is None and self.chance(0.4):
                    extents[axis] = self.pick(*self.sizes)
                elif fits and self.chance(0.4):
                    extents[axis] = self.pick(*fits)
        sized = [
            [self.sizes[e][i] if isinstance(e, str) else e for e in extents] for i in range(SETS)
        ]
        arrays = [
            self.data(kind, each) if alive else None
            for each, alive in zip(sized, self.alive, strict=True)
        ]
        return self._input(extents, arrays)

    def _input(self, extents: list[Any], arrays: list[Array | None]) -> Grown:
        first = arrays[0]
        assert first is not None
        name = f"in{len(self.inputs)}"
        self.b.input(name, extents, helper.np_dtype_to_tensor_dtype(first.dtype))
        grown = Grown(name, arrays)
        self.inputs.append(grown)
        self.values.append(grown)
        self.made[name] = grown
        return grown

    def any(self, kinds: Sequence[str] = (), *, ranks: Sequence[int] = ()) -> Grown:
        """Returns a value of such an element type and rank, the newest most often, or makes one."""
        fits = [
            v
            for v in self.values
            if (not kinds or v.kind in kinds) and (not ranks or v.rank in ranks)
        ]
        if fits and self.chance(0.9):
            return fits[-1] if self.chance(0.4) else self.rng.choice(fits)
        kind = self.kind()
        kind = kind if not kinds or kind in kinds else self.rng.choice(list(kinds))
        rank = self.rng.choice(list(ranks)) if ranks else None
        if len(self.inputs) < 4 and self.chance(0.7):
            shape = None if rank is None or self.opened else self.extents(rank)
            if rank is not None and self.opened:
                shape = self.extents(rank)
            return self.input(kind, shape)
        return self.constant(self.data(kind, self.extents(rank)))

    def like(self, x: Grown, kind: str | None = None) -> Grown:
        """Returns an operand that broadcasts with ``x``: read again, a constant, or an input."""
        kind = kind or x.kind
        fits = [v for v in self.values if v.kind == kind and _broadcasts(v, x)]
        if fits and self.chance(0.6):
            return self.rng.choice(fits)
        shape = [1 if self.chance(0.35) else e for e in x.shape]
        shape = shape[self.rng.randrange(len(shape) + 1) if self.chance(0.3) else 0 :]
        if len(self.inputs) < 4 and self.chance(0.25):
            return self.input(kind, shape)
        return self.constant(self.data(kind, shape))

    def like_constant(self, kind: str, shape: Sequence[int]) -> Grown:
        """Returns an operand of a shape: mostly a constant, at times a value or an input."""
        fits = [v for v in self.values if v.kind == kind and v.shape == tuple(shape)]
        if fits and self.chance(0.3):
            return self.rng.choice(fits)
        if len(self.inputs) < 4 and self.chance(0.2):
            return self.input(kind, shape)
        return self.constant(self.data(kind, shape))

    # ---- nodes --------------------------------------------------------------------------------

    def has(self, op_type: str) -> bool:
        return self.schema(op_type) is not None

    def schema(self, op_type: str) -> Any:
        """Returns the operator of this opset, or None."""
        try:
            found = defs.get_schema(op_type, self.b.opset)
        except defs.SchemaError:
            return None
        return None if found.deprecated else found

    def kinds_of(self, op_type: str, index: int = 0) -> list[str]:
        """Returns the element types that an operand may have."""
        schema = self.schema(op_type)
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        kinds = [t[len("tensor(") : -1] for t in formal.types if t.startswith("tensor(")]
        names = {"float": "float32", "double": "float64"}
        if op_type == "Gelu":  # its definition has constants of float32
            kinds.remove("double")
        return [kind for kind in KINDS if kind in {names.get(k, k) for k in kinds}]

    def attribute(self, op_type: str, name: str) -> bool:
        return name in self.schema(op_type).attributes

    def put(self, draft: Draft) -> list[Grown] | None:
        """Adds a node where the judge runs it on the first set; returns its results."""
        results = self._judged(draft)
        if results is None:
            return None
        names = [v.name if v is not None else "" for v in draft.operands]
        first = self.b.op(draft.op_type, *names, outputs=draft.results, **draft.attributes)
        grown = [
            Grown(
                f"{first}:{i}" if i else first, [r[i] if r is not None else None for r in results]
            )
            for i in range(draft.results)
        ]
        self.alive = [r is not None for r in results]
        self.values += grown
        self.made |= {g.name: g for g in grown}
        return grown

    def _judged(self, draft: Draft) -> list[list[Array] | None] | None:
        operands = {v.name: v for v in (*draft.operands, *draft.captured) if v is not None}
        names = [v.name if v is not None else "" for v in draft.operands]
        node = helper.make_node(
            draft.op_type, names, [f"r{i}" for i in range(draft.results)], "node"
        )
        for key, value in draft.attributes.items():
            if value is not None:
                node.attribute.append(helper.make_attribute(key, value))
        judge = Judge(node, operands, self.b.opset)
        results: list[list[Array] | None] = []
        for index, alive in enumerate(self.alive):
            arrays = {name: v.arrays[index] for name, v in operands.items()}
            given = [None if v is None else v.arrays[index] for v in draft.operands]
            found = None
            runs = alive and all(array is not None for array in arrays.values())
            if runs and not aborts(draft.op_type, given, draft.attributes):
                found = judge.run({name: array for name, array in arrays.items()})
            if found is not None and any(np.size(each) > MOST for each in found):
                found = None
            if found is not None and undefined(draft.op_type, given, draft.attributes):
                found = None
            if index == 0 and found is None:
                return None
            results.append(found)
        return results

    def feeds(self, index: int) -> dict[str, Array]:
        """Returns the inputs of a set."""
        feeds = {v.name: v.arrays[index] for v in self.inputs}
        return {name: array for name, array in feeds.items() if array is not None}


def _broadcasts(v: Grown, x: Grown) -> bool:
    try:
        for one, other in zip(v.arrays, x.arrays, strict=True):
            if one is not None and other is not None:
                np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        return False
    return True


class Judge:
    """One node in onnxruntime, or in ONNX's reference."""

    def __init__(self, node: NodeProto, operands: Mapping[str, Grown], opset: int) -> None:
        inputs, constants = [], []
        for name, v in operands.items():
            if v.constant:
                constants.append(numpy_helper.from_array(v.first, name))
            else:
                kind = helper.np_dtype_to_tensor_dtype(v.first.dtype)
                inputs.append(helper.make_tensor_value_info(name, kind, [None] * v.rank))
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "judge", inputs, outputs, initializer=constants)
        self.model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
        )
        self.names = [v.name for v in inputs]
        self.runner: Any = None
        self._prepare()

    def _prepare(self) -> None:
        try:
            inferred = onnx.shape_inference.infer_shapes(self.model, strict_mode=True)
            types = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.output}
            for value in self.model.graph.output:
                value.CopyFrom(helper.make_tensor_value_info(value.name, types[value.name], None))
            self.runner = runner(self.model)
        except Exception:  # the node is dropped, whatever is wrong with it
            self.runner = None

    def run(self, arrays: Mapping[str, Any]) -> list[Array] | None:
        if self.runner is None:
            return None
        feeds = {name: arrays[name] for name in self.names}
        try:
            return [np.asarray(each) for each in self.runner(feeds)]
        except Exception:  # the set of inputs is given up
            return None


def runner(model: onnx.ModelProto) -> Any:
    """Returns a function of the inputs: onnxruntime's, or that of ONNX's reference."""
    import onnxruntime as ort
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except NoKernel:
        return lambda feeds: _referenced(model, feeds)
    return lambda feeds: session.run(None, dict(feeds))


class NoJudge(Exception):
    """Neither onnxruntime nor ONNX's reference has all operators of a model."""


def _referenced(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        try:
            return [*ReferenceEvaluator(model).run(None, dict(feeds))]
        except Exception as error:  # it says in many ways what it does not have
            raise NoJudge(str(error)) from error
