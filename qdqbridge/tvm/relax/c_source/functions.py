"""A kernel as a function of C: TVM's generator writes its body, what its runtime needs is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import ir, relax, s_tir, tirx

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.arithmetic import kind_of
from qdqbridge.tvm.qnn.emit.emitter import reason
from qdqbridge.tvm.relax.c_source.scalars import (
    NoCError,
    Scalars,
    literals_in,
    nothing,
    sequence,
    without_unused,
)
from qdqbridge.tvm.relax.files import to_array
from qdqbridge.tvm.relax.kernels.codegen.passes import of_kernels
from qdqbridge.tvm.relax.threads import BUILDING, raise_interrupt

C_TYPES = {
    "bool": "bool", "float32": "float", "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Names of element types in C."""
_ON_STACK = 64
"""Bytes of the largest array that a kernel has on the stack."""
PREFIX = "qdq_"
"""What names of kernels begin with, which are those of functions of C otherwise (``exp``)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """An array that is used within one call, or between calls.

    Attributes:
        dtype: Element type.
        count: Elements.
    """

    dtype: str
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class CFunction:
    """A kernel in C.

    Attributes:
        text: Its definition.
        rooms: Arrays that it wants behind its other arguments.
    """

    name: str
    text: str
    rooms: tuple[Memory, ...]


def c_function(name: str, function: Any, results: int) -> CFunction:
    """Returns a PrimFunc as a function of C.

    Args:
        name: A C identifier.
        function: The PrimFunc, as kernels are built, or as TVM legalizes operators.
        results: How many of its last arguments it writes to.

    Raises:
        NoCError: Something in it has no C.
    """
    for parameter in function.params:
        if kind_of(parameter) not in C_TYPES:
            raise NoCError(f"elements of {kind_of(parameter)}")
    named = function.with_attr("global_symbol", PREFIX + name).with_attr("target", _TARGET)
    lowered = _loops()(ir.IRModule({ir.GlobalVar(name): named}))
    (loops,) = lowered.functions.values()
    scalars = Scalars()
    body = scalars.statement(without_unused(loops.body))
    large: list[Any] = []
    # A microcontroller's stack is a few kilobytes: the arena has these arrays, whose size is
    # printed.
    body = _without_large_arrays(body, large)
    # Plain pointers instead of TVM's packed arguments: there is no runtime to pack them.
    pointers = [_pointer(buffer) for buffer in (*loops.params, *large)]
    buffers = zip((*loops.params, *large), pointers, strict=True)
    views = [tirx.DeclBuffer(buffer, data=pointer) for buffer, pointer in buffers]
    plain = tirx.PrimFunc(pointers, sequence([*views, body]), loops.ret_type, loops.attrs)
    module = tirx.transform.LowerIntrin()(ir.IRModule({ir.GlobalVar(name): plain}))
    generate: Any = tvm_ffi.get_global_func("target.build.c")
    text = literals_in(str(generate(module, _TARGET).inspect_source()))
    rooms = tuple(Memory(kind_of(buffer), _count(buffer)) for buffer in large)
    inputs = len(loops.params) - results
    return CFunction(PREFIX + name, _plain_c(text, PREFIX + name, inputs), rooms)


_TARGET = tvm.target.Target("c")


def _loops() -> Any:
    return tvm.transform.Sequential(
        [
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerInitBlock(),
            of_kernels(vectors=False),
        ]
    )


def _count(buffer: Any) -> int:
    total = 1
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            raise NoCError("an array whose size only the run knows")
        total *= int(extent)
    return total


def _pointer(buffer: Any) -> Any:
    return tirx.Var(buffer.name, ir.PointerType(ir.PrimType(kind_of(buffer))))


def _without_large_arrays(stmt: Any, found: list[Any]) -> Any:
    """Returns a statement without its large arrays, which become arguments."""
    match type(stmt).__name__:
        case "SeqStmt":
            return sequence([_without_large_arrays(one, found) for one in stmt.seq])
        case "For":
            body = _without_large_arrays(stmt.body, found)
            return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body)
        case "IfThenElse":
            then = _without_large_arrays(stmt.then_case, found)
            other = stmt.else_case and _without_large_arrays(stmt.else_case, found)
            return tirx.IfThenElse(stmt.condition, then, other)
        case "AllocBuffer":
            nbytes = Memory(kind_of(stmt.buffer), _count(stmt.buffer)).nbytes
            if nbytes <= _ON_STACK:
                return stmt
            found.append(stmt.buffer)
            return nothing()
        case _:
            return stmt


def _plain_c(text: str, name: str, inputs: int) -> str:
    """Returns the definition of a function in what TVM writes for its runtime."""
    # The last one is the definition; TVM declares the function before.
    begin = text.rindex(f" {name}(")
    end = text.index(") {", begin)
    body = text[end + len(") {") :]
    names: list[str] = []
    parameters: list[str] = []
    for number, parameter in enumerate(text[begin + len(name) + 2 : end].split(", ")):
        kind, _, own = parameter.rpartition(" ")
        # TVM marks no argument as read only; constants in flash have to be.
        constant = "const " if number < inputs else ""
        parameters.append(f"{constant}{kind.removesuffix('*')} *restrict {own}")
        names.append(own)
    # -Wextra -Werror refuses parameters that nothing reads.
    unused = [own for own in names if not re.search(rf"\b{own}\b", body)]
    ignored = "".join(f"\n  (void){own};" for own in unused)
    return f"static QDQ_APART void {name}({', '.join(parameters)}) {{{ignored}{body.rstrip()}\n"


def used_functions(texts: Sequence[str]) -> frozenset[str]:
    """Returns which functions with our prefix bodies call."""
    return frozenset(found for text in texts for found in re.findall(r"\bqdq_\w+(?=\()", text))


# ---- The few functions that kernels in C call, each with what it stands for ----------------------


_NEAREST = """\
/* float32 to int32, rounded half to even */
static QDQ_WITHIN int32_t qdq_nearest(float x)
{
#if defined(__arm__) && defined(__ARM_FP) && (__ARM_FP & 4)
  __asm__("vcvtr.s32.f32 %0, %0" : "+t"(x));
  int32_t whole;
  memcpy(&whole, &x, sizeof whole);
  return whole;
#elif defined(__aarch64__)
  int32_t whole;
  __asm__("fcvtns %w0, %s1" : "=r"(whole) : "w"(x));
  return whole;
#else
  const float far = x < 0.0f ? -8388608.0f : 8388608.0f; /* beyond it all are integers */
  const float whole = (x + far) - far;
  return (int32_t)((x < 0.0f ? x > far : x < far) ? whole : x);
#endif
}
"""
_DOT4 = """\
/* four products of a uint8 and an int8, the lowest bytes first, are added to a sum */
static QDQ_WITHIN int32_t qdq_dot4(int32_t sum, int32_t codes, int32_t weights)
{
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP && defined(__arm__)
  int32_t even, odd, low, high;
  __asm__("uxtb16 %0, %1" : "=r"(even) : "r"(codes));
  __asm__("uxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(codes));
  __asm__("sxtb16 %0, %1" : "=r"(low) : "r"(weights));
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(high) : "r"(weights));
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(even), "r"(low));
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(odd), "r"(high));
  return sum;
#else
  for (int i = 0; i < 32; i += 8)
    sum += (int32_t)(uint8_t)((uint32_t)codes >> i) * (int8_t)(uint8_t)((uint32_t)weights >> i);
  return sum;
#endif
}
"""
_WORD = """\
/* four bytes, the lowest first */
static QDQ_WITHIN uint32_t qdq_word(const void *bytes)
{
  uint32_t word;
  memcpy(&word, bytes, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "these sources are for little-endian processors"
#endif
  return word;
}
"""


def _bits(name: str, source: str, result: str) -> str:
    return f"""\
/* the same bits as another type */
static QDQ_WITHIN {result} {name}({source} value)
{{
  {result} bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}}
"""


def _extremes() -> Iterator[tuple[str, str]]:
    for dtype, type_ in C_TYPES.items():
        for name, sign in (("qdq_max", ">"), ("qdq_min", "<")):
            head = f"static QDQ_WITHIN {type_} {name}_{dtype}({type_} a, {type_} b)"
            yield f"{name}_{dtype}", f"{head}\n{{\n  return a {sign} b ? a : b;\n}}\n"


_SUPPORT = {
    "qdq_nearest": _NEAREST,
    "qdq_dot4": _DOT4,
    "qdq_word": _WORD,
    "qdq_bits32": _bits("qdq_bits32", "float", "uint32_t"),
    "qdq_bits64": _bits("qdq_bits64", "double", "uint64_t"),
    "qdq_float32": _bits("qdq_float32", "uint32_t", "float"),
    "qdq_float64": _bits("qdq_float64", "uint64_t", "double"),
    **dict(_extremes()),
}


_INLINING = """\
/* Kernels stay apart: registers do not suffice for several. What they call is put into them. */
#if defined(__GNUC__)
#define QDQ_APART __attribute__((noinline))
#define QDQ_WITHIN inline __attribute__((always_inline))
#else
#define QDQ_APART
#define QDQ_WITHIN inline
#endif
"""


def support(texts: Sequence[str]) -> str:
    """Returns the definitions of those that some bodies call, and how all are inlined."""
    used = used_functions(texts)
    return "\n".join([_INLINING, *(text for name, text in _SUPPORT.items() if name in used)])


# ---- steps ---------------------------------------------------------------------------------------
# A compiled module as steps: which function is called with which arrays, one after the other.


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
