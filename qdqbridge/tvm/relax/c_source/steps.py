"""A compiled module as steps: which function is called with which arrays, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.emit.emitter import reason
from qdqbridge.tvm.relax.c_source.functions import C_TYPES, CFunction, Memory, c_function
from qdqbridge.tvm.relax.c_source.scalars import NoCError
from qdqbridge.tvm.relax.tensors import to_array
from qdqbridge.tvm.relax.threads import BUILDING, raise_interrupt

_SAME_BYTES = (
    "relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten",
)  # fmt: skip
"""Operators whose result is what they read, with other extents."""


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array that steps read and write.

    Attributes:
        memory: Its type and size.
        constant: Its elements where they are constant.
        argument: The number of the input that it is; -1 of others.
    """

    memory: Memory
    constant: NDArray[Any] | None = None
    argument: int = -1


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call.

    Attributes:
        function: What is called; None to copy the first array to the second.
        arrays: Its arguments but for its rooms.
        results: How many of the last ones it writes.
    """

    function: CFunction | None
    arrays: tuple[Array, ...]
    results: int

    @property
    def written(self) -> tuple[Array, ...]:
        """The arrays that it writes."""
        return self.arrays[len(self.arrays) - self.results :]


@dataclass(frozen=True, slots=True)
class KernelCalls:
    """What a module computes.

    Attributes:
        inputs: The arrays of its inputs.
        steps: The calls, in order.
        outputs: The arrays of its outputs, each written by one step.
    """

    inputs: tuple[Array, ...]
    steps: tuple[KernelCall, ...]
    outputs: tuple[Array, ...]


@dataclass(slots=True)
class _Reading:
    module: Any
    inputs: list[Array] = field(default_factory=list)
    steps: list[KernelCall] = field(default_factory=list)
    values: dict[Any, Any] = field(default_factory=dict)
    functions: dict[Any, CFunction] = field(default_factory=dict)
    constants: dict[tuple[str, tuple[int, ...], bytes], Array] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)


def steps_of(module: ir.IRModule) -> tuple[KernelCalls, list[str]]:
    """Returns the steps of a module, and what in it has no C.

    Args:
        module: What would be compiled, see :func:`..lowering.lowered`.
    """
    with BUILDING:
        made: Any = tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(skip_ops=list(_SAME_BYTES)),
                relax.transform.FoldConstant(),
                relax.transform.DeadCodeElimination(),
            ]
        )(module)
    reading = _Reading(made)
    main = made["main"]
    for number, variable in enumerate(main.params):
        own = Array(_memory(reading, variable.ty), argument=number)
        reading.inputs.append(own)
        reading.values[variable] = own
    for block in main.body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            reading.values[binding.var] = _value(reading, value, binding.var)
    found = _value(reading, main.body.body, None)
    outputs = _outputs(reading, found if isinstance(found, list) else [found])
    steps = KernelCalls(tuple(reading.inputs), tuple(reading.steps), outputs)
    return steps, list(reading.problems)


def _memory(reading: _Reading, type_: Any) -> Memory:
    extents = getattr(getattr(type_, "shape", None), "values", None)
    dtype = str(getattr(type_, "dtype", None))
    if extents is None or not all(isinstance(e, tirx.IntImm) for e in extents):
        reading.problems["a tensor whose extents only the run knows"] = None
        return Memory("uint8", 0)
    if dtype not in C_TYPES:
        reading.problems[f"elements of {dtype}"] = None
        return Memory("uint8", 0)
    return Memory(dtype, prod(int(extent) for extent in extents))


def _value(reading: _Reading, value: Any, variable: Any) -> Any:
    """Returns the array of an expression, or a list of those of a tuple."""
    if isinstance(value, ir.GenericConst):
        return _constant(reading, to_array(value.value))
    if isinstance(value, ir.Tuple):
        return [_value(reading, part, None) for part in value.fields]
    if isinstance(value, relax.TupleGetItem):
        return _value(reading, value.tuple_value, None)[int(value.index)]
    if isinstance(value, ir.Var):
        return reading.values[value]
    if isinstance(value, ir.Call):
        return _call(reading, value)
    reading.problems[f"an expression {type(value).__name__}"] = None
    return _unknown(variable)


def _unknown(variable: Any) -> Any:
    fields = getattr(getattr(variable, "ty", None), "fields", None)
    one = Array(Memory("uint8", 0))
    return one if fields is None else [one] * len(fields)


def _constant(reading: _Reading, array: NDArray[Any]) -> Array:
    """Returns a constant's array; equal ones are one."""
    if str(array.dtype) not in C_TYPES:
        reading.problems[f"elements of {array.dtype}"] = None
        return Array(Memory("uint8", 0))
    key = str(array.dtype), (array.size,), array.tobytes()
    known = reading.constants.get(key)
    if known is None:
        known = Array(Memory(str(array.dtype), array.size), array.reshape(-1))
        reading.constants[key] = known
    return known


def _call(reading: _Reading, call: Any) -> Any:
    name = str(getattr(call.op, "name", call.op))
    if name in _SAME_BYTES:
        return _value(reading, call.args[0], None)
    if name != "relax.call_tir" or len(call.args) > 2:
        what = name if name != "relax.call_tir" else "a loop whose extents only the run knows"
        if name.startswith("relax.call_pure_packed") or name.startswith("relax.call_dps_packed"):
            what = f"TVM's runtime function {getattr(call.args[0], 'global_symbol', call.args[0])}"
        reading.problems[what] = None
        return _unknown(call)
    variable, operands = call.args
    given = [_value(reading, operand, None) for operand in operands.fields]
    (own,) = call.ty_args
    types = list(own.fields) if isinstance(own, ir.TupleType) else [own]
    results = [Array(_memory(reading, type_)) for type_ in types]
    function = _function(reading, variable, len(results))
    if function is not None:
        reading.steps.append(KernelCall(function, (*given, *results), len(results)))
    return results if isinstance(own, ir.TupleType) else results[0]


def _function(reading: _Reading, variable: Any, results: int) -> CFunction | None:
    if variable not in reading.functions:
        name = str(variable.name_hint)
        try:
            made = c_function(name, reading.module[variable], results)
        except NoCError as error:
            reading.problems[f"{name}: {error}"] = None
            return None
        except Exception as error:  # whatever a pass of TVM or its generator of C raises
            raise_interrupt(error)
            reading.problems[f"{name}: {reason(error)}"] = None
            return None
        reading.functions[variable] = made
    return reading.functions[variable]


def _outputs(reading: _Reading, found: Sequence[Array]) -> tuple[Array, ...]:
    """Returns the arrays of the outputs; what is no step's own result is copied."""
    written = {array for step in reading.steps for array in step.written}
    outputs: list[Array] = []
    for array in found:
        if array in written and array not in outputs:
            outputs.append(array)
            continue
        copy = Array(array.memory)
        reading.steps.append(KernelCall(None, (array, copy), 1))
        outputs.append(copy)
    return tuple(outputs)


def lifetimes(steps: KernelCalls) -> Mapping[Array, tuple[int, int]]:
    """Returns the first and the last step of every array that is neither given nor constant."""
    found: dict[Array, tuple[int, int]] = {}
    outside = {*steps.inputs, *steps.outputs}
    for number, step in enumerate(steps.steps):
        for array in step.arrays:
            if array.constant is None and array not in outside:
                found[array] = found.get(array, (number, number))[0], number
    return found


# ---- Where arrays lie in one block of memory: those that are needed at the same time apart -------


ALIGNED = 8
"""Bytes: what the largest element type wants."""


@dataclass(frozen=True, slots=True)
class ArenaNeed:
    """An array, and when it is needed.

    Attributes:
        nbytes: Its size.
        first: The step that writes it.
        last: The last step that reads it.
    """

    nbytes: int
    first: int
    last: int

    def meets(self, other: ArenaNeed) -> bool:
        """True where both are needed in one step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    """Where arrays lie.

    Attributes:
        offsets: One per array, in bytes.
        nbytes: The size of the whole.
    """

    offsets: tuple[int, ...]
    nbytes: int


def arena(needs: Sequence[ArenaNeed]) -> Arena:
    """Returns a place for every array, the largest ones first, each as low as it can be.

    Raises:
        GraphError: Two that are needed together overlap, which would be an error of this function.
    """
    offsets = [0] * len(needs)
    done: list[int] = []
    for index in sorted(range(len(needs)), key=lambda i: (-needs[i].nbytes, i)):
        own = needs[index]
        taken = sorted(
            (offsets[i], offsets[i] + needs[i].nbytes) for i in done if needs[i].meets(own)
        )
        place = 0
        for begin, end in taken:
            if place + own.nbytes <= begin:
                break
            place = max(place, -(-end // ALIGNED) * ALIGNED)
        offsets[index] = place
        done.append(index)
    size = max((o + n.nbytes for o, n in zip(offsets, needs, strict=True)), default=0)
    found = Arena(tuple(offsets), -(-size // ALIGNED) * ALIGNED)
    _prove(needs, found)
    return found


def _prove(needs: Sequence[ArenaNeed], found: Arena) -> None:
    """Sees that no two arrays share a byte in a step in which both are needed."""
    for i, one in enumerate(needs):
        begin, end = found.offsets[i], found.offsets[i] + one.nbytes
        if begin % ALIGNED or end > found.nbytes:
            raise GraphError("an array lies outside of the arena", where=f"array {i}")
        for j in range(i):
            other = found.offsets[j]
            apart = end <= other or other + needs[j].nbytes <= begin
            if not apart and one.meets(needs[j]):
                raise GraphError("two arrays of the arena overlap", where=f"arrays {j} and {i}")
