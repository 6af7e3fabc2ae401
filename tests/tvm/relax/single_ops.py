"""Models of many independent single-operator branches, compiled once and compared bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import tvm
from onnx import helper

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.types import QuantParams
from tests.onnx_models import Builder
from tests.tvm.relax.read_cases import same

if TYPE_CHECKING:  # the models serve the tests of Relay too, where there is no Relax
    from qdqbridge.tvm.relax.executable import Executable

Array = np.ndarray[Any, Any]
CONVERSIONS = {"quantize", "dequantize", "requantize", "reinterpret"}


def params(dtype: str, scale: Any, zero_point: Any = 0, axis: int | None = None) -> QuantParams:
    return QuantParams(
        DType.of(np.dtype(dtype)),
        np.asarray(scale, np.float32),
        np.asarray(zero_point, np.int32),
        axis=axis,
    )


def codes(shape: Sequence[int], dtype: str, seed: int = 0) -> Array:
    """Random codes over the whole range; both ends occur."""
    info = np.iinfo(dtype)
    data = np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)
    if data.size > 1:
        data.flat[0], data.flat[-1] = info.min, info.max
    return data


@dataclass(frozen=True, eq=False)
class X:
    """An operand: codes with parameters, or plain values.

    Attributes:
        values: Stored integers, or plain values.
        params: How they stand for real numbers; None for plain values.
        fixed: True to write it as an initializer, False to feed it.
        shape: The declared shape of a fed operand where it is not that of ``values``.
        block: Elements per block of blocked parameters.
    """

    values: Array
    params: QuantParams | None = None
    fixed: bool = False
    shape: Sequence[int | str | None] | None = None
    block: int = 0

    def feed(self, **fields: Any) -> X:
        return X(self.values, self.params, **fields)


def const(values: Any, dtype: Any = None) -> X:
    """A plain initializer."""
    return X(np.asarray(values, dtype), None, fixed=True)


@dataclass(frozen=True)
class Branch:
    """What a branch must become.

    Attributes:
        label: What it tests.
        row: The operator it must hold in canonical form; empty where nothing is asked.
        outputs: Names of its results.
        whole: True where the operator must have absorbed all of its quantization.
    """

    label: str
    row: str
    outputs: tuple[str, ...]
    whole: bool


@dataclass
class Model:
    """Collects branches; every operand is an input or an initializer of its own."""

    opset: int = 21
    builder: Builder = field(init=False)
    branches: list[Branch] = field(default_factory=list["Branch"])
    inputs: dict[str, Array] = field(default_factory=dict["str", "Array"])

    def __post_init__(self) -> None:
        self.builder = Builder(self.opset)

    def operand(self, x: X | None) -> str:
        """Writes an operand; returns the name of its real value."""
        if x is None:
            return ""
        b = self.builder
        if x.fixed:
            name = b.init(x.values)
        else:
            kind = helper.np_dtype_to_tensor_dtype(x.values.dtype)
            name = b.name("in")
            b.input(name, x.values.shape if x.shape is None else x.shape, kind)
            self.inputs[name] = x.values
        if x.params is None:
            return name
        axis = {} if x.params.axis is None else {"axis": x.params.axis}
        block = {"block_size": x.block} if x.block else {}
        dtype = x.params.storage_dtype.numpy
        return b.dq(name, x.params.scale, x.params.zero_point, dtype, **axis, **block)

    def finish(self, name: str, result: QuantParams | None, dtype: int | None = None) -> str:
        """Quantizes a value and makes it an output; returns the output's name."""
        b = self.builder
        if result is None:
            b.output(name, None, dtype or onnx.TensorProto.FLOAT)
            return name
        kind = result.storage_dtype.numpy
        stored = b.q(name, result.scale, result.zero_point, kind)
        b.output(stored, None, helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
        return stored

    def add(
        self,
        op: str,
        operands: Sequence[X | None],
        *results: QuantParams | None,
        row: str | None = None,
        label: str = "",
        whole: bool = True,
        dtype: int | None = None,
        then: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> Branch:
        """Adds ``DequantizeLinear -> op -> QuantizeLinear``.

        Args:
            op: ONNX operator.
            operands: Its operands.
            results: Parameters of its results; None for float ones.
            row: The row it must become, where that is not ``op``; empty where it is all one.
            label: What is special about it.
            whole: False where a float island is allowed to stay.
            dtype: Element type of float results, if not float32.
            then: An operator without attributes put after it, a Relu say.
            domain: The operator's domain.
            attributes: The operator's attributes.
        """
        b = self.builder
        names = [self.operand(x) for x in operands]
        results = results or (None,)
        first = b.op(op, *names, outputs=len(results), domain=domain, **attributes)
        ends: list[str] = []
        for i, result in enumerate(results):
            name = first if i == 0 else f"{first}:{i}"
            name = b.op(then, name) if then else name
            ends.append(self.finish(name, result, dtype))
        wanted = op if row is None else row
        branch = Branch(f"{op} {label} {attributes}", wanted, tuple(ends), whole)
        self.branches.append(branch)
        return branch

    def proto(self) -> onnx.ModelProto:
        return self.builder.model()

    def load(self) -> Graph:
        return load(self.proto())

    def check(self) -> tuple[Graph, Executable]:
        """Loads, asserts the canonical form, compiles, runs, and demands equal bits.

        What is compiled is the plain legalization, to which kernels are compared. The module is
        also read back: it must be the same graph.
        """
        graph = self.load()
        absorbed(self, graph)
        executable = qb.compile(graph, kernels="reference")
        same(qb.from_relax(executable.module), graph)
        equal(executable, self.inputs, {n: b.label for b in self.branches for n in b.outputs})
        return graph, executable


def load(model: onnx.ModelProto) -> Graph:
    """The public way from a file to a canonical graph."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        graph = qb.load(path)
        for value in graph.values():  # constants are read when they are first looked at
            if value.constant is not None:
                value.constant.numpy()
        return graph


def upstream(value: Value) -> list[Node]:
    """Returns every node that a value depends on, nearest first."""
    found: dict[Node, None] = {}
    waiting = [value]
    while waiting:
        node = waiting.pop(0).producer
        if node is not None and node not in found:
            found[node] = None
            waiting += [v for v in node.inputs if v is not None]
    return list(found)


def absorbed(model: Model, graph: Graph) -> None:
    """Asserts that every branch holds its row, and no conversion where it is to be whole."""
    ends = dict(zip(graph.output_names, graph.outputs, strict=True))
    problems: list[str] = []
    for branch in model.branches:
        names = [node.op.name for end in branch.outputs for node in upstream(ends[end])]
        if branch.row and branch.row not in names:
            problems.append(f"{branch.label}: no {branch.row} in {names}")
        if branch.whole and (CONVERSIONS - {branch.row}) & set(names):
            problems.append(f"{branch.label}: {names}")
    assert not problems, "\n".join(problems)


def equal(
    executable: Executable, inputs: dict[str, Array], labels: dict[str, str] | None = None
) -> dict[str, Array]:
    """Asserts that TVM returns what the interpreter returns, bit for bit; returns it."""
    expected = qb.evaluate(executable.graph, inputs)
    got = executable.run(inputs)
    assert list(got) == list(expected) == executable.output_names
    problems: list[str] = []
    for name, wanted in expected.items():
        have, label = got[name], (labels or {}).get(name, name)
        if have.dtype != wanted.dtype or have.shape != wanted.shape:
            problems.append(f"{label}: {have.dtype}{have.shape}, not {wanted.dtype}{wanted.shape}")
        elif have.tobytes() != np.ascontiguousarray(wanted).tobytes():
            wrong = np.flatnonzero((have != wanted).ravel())
            some = wrong[:3]
            problems.append(
                f"{label}: {wrong.size} of {have.size} differ, {have.flat[some]} instead of "
                f"{wanted.flat[some]} at {some}"
            )
    assert not problems, "\n".join(problems)
    return got


def calls(module: Any) -> list[Any]:
    """Returns the calls of ``main`` in the order in which they are bound."""
    return [
        binding.value
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call)
    ]


def _operators(module: Any) -> list[Any]:
    return [c.op for c in calls(module) if isinstance(c.op, tvm.ir.Op)]


def call_names(module: Any) -> list[str]:
    """Returns the names of the operators that ``main`` calls."""
    return [str(operator.name) for operator in _operators(module)]


def qnn_calls(module: Any) -> list[Any]:
    """Returns the calls of the dialect."""
    return [c for c in calls(module) if str(getattr(c.op, "name", "")).startswith("qnn.")]


def number(expr: Any) -> Array:
    """Returns the elements of a constant of a module."""
    assert isinstance(expr, tvm.ir.GenericConst)
    value: Any = expr
    return np.asarray(value.value.numpy())
