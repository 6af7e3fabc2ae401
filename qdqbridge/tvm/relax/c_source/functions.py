"""A kernel as a function of C: TVM's generator writes its body, what its runtime needs is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from qdqbridge.tvm.qnn.dialect.arithmetic import kind_of
from qdqbridge.tvm.relax.c_source.scalars import (
    NoCError,
    Scalars,
    literals_in,
    nothing,
    sequence,
    without_unused,
)
from qdqbridge.tvm.relax.kernels.codegen.passes import of_kernels

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
        name: Its name.
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
    body = _without_large_arrays(body, large)
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
    begin = text.rindex(f" {name}(")
    end = text.index(") {", begin)
    body = text[end + len(") {") :]
    names: list[str] = []
    parameters: list[str] = []
    for number, parameter in enumerate(text[begin + len(name) + 2 : end].split(", ")):
        kind, _, own = parameter.rpartition(" ")
        constant = "const " if number < inputs else ""
        parameters.append(f"{constant}{kind.removesuffix('*')} *restrict {own}")
        names.append(own)
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
