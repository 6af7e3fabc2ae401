"""Nodes that kernels match, many in one module, next to what the operator table says of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tvm

from qdqbridge.core.graph.attribute_codecs import permuted_attributes
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes, Flow
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType
from qdqbridge.core.layout import channels_first
from qdqbridge.core.layout import channels_last as to_last
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.executable import compiled
from qdqbridge.tvm.relax.kernels.codegen.processors import (
    AVX2,
    NEON_DOT,
    PROCESSORS,
    Cpu,
    cpu_features,
    cpu_of,
    host_architecture,
    host_target,
)
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelMatch, KernelPlace
from tests.tvm.dialect.contract import Array, contract


def _bytes_summed(sums: Any, activations: Any, weights: Any) -> Any:
    """What ``sdot`` does, of plain vectors."""
    codes = tirx.reinterpret("int8x16", activations)
    for first in range(4):
        chosen = list(range(first, 16, 4))
        left, right = (tirx.Shuffle([vector], chosen) for vector in (codes, weights))
        sums = sums + left.astype("int32x4") * right.astype("int32x4")
    return sums


_ANYWHERE: dict[str, Any] = {
    "fuses": False, "packing": None, "lookup": None, "barrier": AVX2.barrier,
}  # fmt: skip
LIKE_DOT = replace(
    NEON_DOT, name="like neon_dot", dot=replace(NEON_DOT.dot, added=_bytes_summed), **_ANYWHERE
)
"""Arm's dot product, of instructions that every CPU has: all else kernels do as they do there, and
as they do on a CPU of plain vectors."""
HOST = cpu_of(host_target())
_OF_HOST = [cpu for cpu in PROCESSORS if cpu.architecture == HOST.architecture]
_HOST_FEATURES = cpu_features(host_target())
CPUS = (HOST, *(cpu for cpu in _OF_HOST[-1:] if cpu != HOST), LIKE_DOT)
"""Classes of CPUs whose code runs here: the host's, and the plainest one of its architecture."""
DOT_CPUS = (
    *CPUS,
    *((replace(HOST, amx=False),) if HOST.amx else ()),
    *(cpu for cpu in _OF_HOST if cpu not in CPUS and _HOST_FEATURES.issuperset(cpu.features)),
)
"""Those, and those whose dot product the host has as well."""
_PLAIN = {"x86_64": "x86-64", "aarch64": "generic"}
"""LLVM's model of a CPU that has what all of its architecture have."""


def target_of(cpu: Cpu) -> Any:
    """A target of a class of CPUs: the host's own, or the least one that has the features."""
    if cpu == HOST:
        return host_target()
    features = [f"+{name}" for name in cpu.features if cpu in PROCESSORS]
    plain = {"kind": "llvm", "mcpu": _PLAIN[host_architecture()]}
    return tvm.target.Target({**plain, **({"mattr": features} if features else {})})


@dataclass(frozen=True, eq=False)
class Operand:
    """Stored values, with parameters where they are codes."""

    array: Array
    params: QuantParams | None = None
    fixed: bool = False


@dataclass(frozen=True, eq=False)
class Case:
    kernel: Kernel
    inputs: list[Array]
    expected: Array
    text: str


@dataclass
class Cases:
    """Kernels of one CPU; equal descriptions are compiled once."""

    match: KernelMatch
    cpu: Cpu = HOST
    threads: int = 1
    opened: bool = False
    """Whether the first extent of fed operands and of the result is known at run time only."""
    names: dict[Hashable, str] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list["Case"])
    refused: int = 0

    def node(
        self,
        name: str,
        attributes: Attributes,
        operands: Sequence[Operand | None],
        result: QuantParams | None,
        *,
        last: bool = False,
    ) -> tuple[Node, Array, Any]:
        """Returns a node, carried channels-last where asked for, and its expected result."""
        types = [None if o is None else o.params for o in operands]
        arrays = [None if o is None else o.array for o in operands]
        if result is None:
            plain = TensorType(DType.FLOAT32, None)
            kinds = [plain if t is None else QuantType(t, None) for t in types]
            row = BY_NAME[name]
            found = row.contract(attributes, arrays, kinds, (plain,)) if row.contract else None
            (expected,) = found or row.compute(attributes, arrays)
        else:
            expected = contract(name, attributes, arrays, types, result)
        weighted = BY_NAME[name].flow is Flow.ACCUMULATE  # weights stay as they are
        values = [
            None
            if o is None
            else _value(o, last=last and not (weighted and i), opened=self._opened(o, expected))
            for i, o in enumerate(operands)
        ]
        permuted = _permuted(expected, last=last)
        shape = _shape(permuted, opened=self.opened and expected.ndim > 0)
        type_ = (
            TensorType(DType.of(expected.dtype), shape)
            if result is None
            else QuantType(result, shape)
        )
        rank = expected.ndim
        own = permuted_attributes(attributes, to_last(rank)) if last else attributes
        node = Node(BY_NAME[name], own, values, [Value(type_, "y")])
        return node, permuted, own

    def _opened(self, operand: Operand, expected: Array) -> bool:
        own, rank = operand.array.shape, expected.ndim
        whole = len(own) == rank and own[:1] == expected.shape[:1]
        return self.opened and whole and not operand.fixed and rank > 0

    def add(
        self,
        name: str,
        attributes: Attributes,
        operands: Sequence[Operand | None],
        result: QuantParams | None,
        *,
        last: bool = False,
        needed: bool = True,
    ) -> Kernel | None:
        """Adds a node; its operands and expected result are channels-first."""
        node, expected, own = self.node(name, attributes, operands, result, last=last)
        kernel = self.match(node, KernelPlace(self.cpu, last, self.threads))
        shapes = [None if operand is None else operand.array.shape for operand in operands]
        text = f"{self.cpu.name} {name} {own} {shapes}"
        if kernel is None:
            assert not needed, text
            self.refused += 1
            return None
        feeds = {
            value: _permuted(operand.array, last=last and operand.array.ndim == expected.ndim)
            for value, operand in zip(node.inputs, operands, strict=True)
            if operand is not None
        }
        self.take(kernel, [feeds[value] for value in kernel.inputs], expected, text)
        return kernel

    def take(self, kernel: Kernel, inputs: list[Array], expected: Array, text: str) -> None:
        """Adds one call of a kernel."""
        key = (type(kernel.description), kernel.description)
        if key not in self.names:
            name = f"kernel{len(self.names)}"
            self.names[key] = name
            function = kernel.build(kernel.description)
            self.functions[name] = function.with_attr("global_symbol", name)
        self.cases.append(Case(kernel, inputs, expected, text))

    def check(self) -> int:
        """Compiles, runs and demands equal bits; returns the number of cases."""
        library = compiled(tvm.IRModule(self.functions), target_of(self.cpu))
        assert self.cases
        for case in self.cases:
            got = run(
                library, self.names[type(case.kernel.description), case.kernel.description], case
            )
            assert got.dtype == case.expected.dtype, case.text
            different = np.flatnonzero(got.reshape(-1) != case.expected.reshape(-1))
            assert not different.size, (
                f"{case.text}: {different.size} of {got.size} differ, first at {different[:4]}: "
                f"{got.reshape(-1)[different[:4]]} for {case.expected.reshape(-1)[different[:4]]}"
            )
        return len(self.cases)


def run(library: Any, name: str, case: Case) -> Array:
    """Runs one kernel; its result is filled with a pattern first."""
    arrays = [*case.inputs, *case.kernel.constants]
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
    begin = np.full(case.expected.shape, 0x5A).astype(case.expected.dtype)
    result = tvm.runtime.tensor(begin)
    library[name](*tensors, result)
    return result.numpy()


def _permuted(array: Array, *, last: bool) -> Array:
    if not last or array.ndim < 3:
        return array
    return np.ascontiguousarray(array.transpose(to_last(array.ndim)))


def _shape(array: Array, *, opened: bool) -> tuple[int | str, ...]:
    return ("N", *array.shape[1:]) if opened else array.shape


def _value(operand: Operand, *, last: bool, opened: bool) -> Value:
    array = _permuted(operand.array, last=last)
    constant = Constant.of(array) if operand.fixed else None
    own = operand.params
    if own is not None and own.axis is not None and last:
        own = own.with_axis(channels_first(array.ndim)[own.axis])
    shape = _shape(array, opened=opened)
    type_ = TensorType(DType.of(array.dtype), shape) if own is None else QuantType(own, shape)
    return Value(type_, "x", constant=constant)
