"""Kernels without vectors: a vector of TIR becomes a loop over its lanes, LLVM's intrinsics C.

TVM's generator of C has no vectors of other types than OpenCL's and no functions of LLVM. A
description of a processor with one lane leaves few of them (:mod:`..kernels.codegen.processors`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from qdqbridge.tvm.qnn.dialect.arithmetic import kind_of

Prim = Any
"""A TIR expression."""
_UNROLLED = 2
"""Lanes up to which statements stand one behind the other."""


class NoCError(Exception):
    """Something in a kernel that has no C; its text says what."""


@cache
def _number_of(name: str) -> int:
    return int(tvm.target.codegen.llvm_lookup_intrinsic_id(name))


def _fused(dtype: str, args: Sequence[Prim]) -> Prim:
    return tirx.call_pure_extern(dtype, "fmaf" if dtype == "float32" else "fma", *args)


def _of_two(name: str, a: Prim, b: Prim) -> Prim:
    dtype = kind_of(a)
    return tirx.call_pure_extern(dtype, name + ("f" if dtype == "float32" else ""), a, b)


def _extreme(kind: str, a: Prim, b: Prim) -> Prim:
    """Returns a maximum or minimum as a function's result.

    TVM's generator keeps an operand of its own ones in a variable, by its text, and takes that
    variable again behind a store to what was read.
    """
    dtype = _element(a)
    return tirx.call_pure_extern(dtype, f"{_EXTREMES[kind]}_{dtype}", a, b)


_FUNCTIONS: dict[str, Callable[[str, Sequence[Prim]], Prim]] = {
    "llvm.lrint": lambda dtype, args: tirx.call_pure_extern(dtype, "qdq_nearest", *args),
    "llvm.arithmetic.fence": lambda _, args: args[0],  # the sources forbid contraction
    "llvm.fma": _fused,
}
"""LLVM's intrinsics of one lane in C."""
_EXTREMES = {"Max": "qdq_max", "Min": "qdq_min"}
_MATH = {
    **{
        f"tirx.{name}": name
        for line in (
            "acos acosh asin asinh atan atanh atan2 ceil cos cosh erf exp exp2 fabs floor fmod",
            "hypot ldexp log log10 log1p log2 nearbyint pow sin sinh sqrt tan tanh trunc",
        )
        for name in line.split()
    },
    "tirx.round": "rint",
}
"""Functions of ``math.h`` by TIR's operators; ``round`` is half to even in TVM."""
_REDUCTIONS: dict[str, Callable[[Prim, Prim], Prim]] = {
    "llvm.vector.reduce.add": lambda a, b: a + b,
    "llvm.vector.reduce.umax": lambda a, b: _extreme("Max", a, b),
    "llvm.vector.reduce.smax": lambda a, b: _extreme("Max", a, b),
    "llvm.vector.reduce.fmax": lambda a, b: _of_two("fmax", a, b),
    "llvm.vector.reduce.fmin": lambda a, b: _of_two("fmin", a, b),
}
_HINTS = ("llvm.prefetch",)
"""What a kernel may ask for that changes no result."""


def _known(names: Any, call: Any) -> str | None:
    number = int(call.args[0])
    return next((name for name in names if _number_of(name) == number), None)


def lanes_of(value: Prim) -> int:
    """Returns how many lanes an expression has."""
    return int(value.ty.dtype.lanes)


def _element(value: Prim) -> str:
    return kind_of(value).partition("x")[0]


def _bits(dtype: str) -> int:
    return {"bool": 8}.get(dtype) or int("".join(c for c in dtype if c.isdigit()))


def _is_float(dtype: str) -> bool:
    return dtype.startswith("float")


class Scalars:
    """Rewrites the body of one function."""

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}
        self._words: dict[Any, Any] = {}
        self._before: list[Any] = []
        self._totals: list[tuple[Any, Any]] = []
        self._views: dict[Any, Any] = {}
        self._names: Iterator[int] = count()

    # ---- statements -----------------------------------------------------------------------------

    def statement(self, stmt: Any) -> Any:
        """Returns a statement without vectors.

        Raises:
            NoCError: It has something for which there is no C.
        """
        # What an expression needs before it belongs to its own statement, also inside of a loop.
        outer = self._before, self._totals
        self._before, self._totals = [], []
        made = self._of_lanes(stmt)
        made = sequence([*self._before, made]) if self._before else made
        self._before, self._totals = outer
        return made

    def _of_lanes(self, stmt: Any) -> Any:
        """Returns a statement without vectors, before which ``_before`` belongs."""
        match type(stmt).__name__:
            case "SeqStmt":
                return sequence([self.statement(one) for one in stmt.seq])
            case "For":
                if stmt.step is not None and int(stmt.step) != 1:
                    raise NoCError("a loop with a step")
                return self._loop(stmt)
            case "IfThenElse":
                other = None if stmt.else_case is None else self.statement(stmt.else_case)
                return tirx.IfThenElse(
                    self.lane(stmt.condition, 0), self.statement(stmt.then_case), other
                )
            case "AttrStmt":
                return self.statement(stmt.body)
            case "Bind":
                return self._bind(stmt)
            case "BufferStore":
                return self._store(stmt)
            case "Evaluate":
                return self._evaluate(stmt)
            case "AllocBuffer":
                return stmt
            case "DeclBuffer":
                self._views[stmt.buffer] = self._root(stmt.data)
                return stmt
            case other:
                raise NoCError(f"a statement {other}")

    def _loop(self, stmt: Any) -> Any:
        low, extent = self.lane(stmt.min, 0), self.lane(stmt.extent, 0)
        body = self.statement(stmt.body)
        return tirx.For(stmt.loop_var, low, extent, tirx.ForKind.SERIAL, body)

    def _bind(self, stmt: Any) -> Any:
        lanes = lanes_of(stmt.value)
        if lanes == 1:
            return tirx.Bind(stmt.var, self.lane(stmt.value, 0))
        if _op(stmt.value) == "tirx.reinterpret" and lanes_of(stmt.value.args[0]) < lanes:
            # parts of words are taken from the words, and words of them are these
            words = stmt.value.args[0]
            self._words[stmt.var] = tirx.Var(stmt.var.name, words.ty)
            return self._bind(tirx.Bind(self._words[stmt.var], words))
        held = tirx.decl_buffer((lanes,), _element(stmt.value), name=stmt.var.name)
        self._held[stmt.var] = held
        filling = self._each(lanes, stmt.value, lambda i: [i], held)
        return sequence([tirx.AllocBuffer(held), filling])

    def _store(self, stmt: Any) -> Any:
        index = stmt.indices[0]
        lanes = lanes_of(index)
        if lanes == 1:
            return tirx.BufferStore(stmt.buffer, self.lane(stmt.value, 0), [self.lane(index, 0)])
        return self._each(lanes, stmt.value, lambda i: [self.lane(index, i)], stmt.buffer, index)

    def _each(
        self, lanes: int, value: Prim, at: Callable[[Prim], list[Prim]], buffer: Any,
        index: Prim = None,
    ) -> Any:  # fmt: skip
        """Writes the lanes of a vector, of which none is read behind its writing."""
        # A vector is read whole before any of it is stored; lane by lane a store would change what
        # a later lane reads.
        if self._reads_elsewhere(value, buffer, index):
            held = tirx.decl_buffer((lanes,), _element(value), name=f"held{next(self._names)}")
            first = self._each(lanes, value, lambda i: [i], held)
            second = self._lane_loop(lanes, lambda i: tirx.BufferLoad(held, [i]), at, buffer)
            return sequence([tirx.AllocBuffer(held), first, second])
        # A loop is shorter code; a few lanes, or lanes that differ, are written out.
        if lanes <= _UNROLLED or not self._same_for_all(value):
            return sequence(
                [tirx.BufferStore(buffer, self.lane(value, i), at(i)) for i in range(lanes)]
            )
        return self._lane_loop(lanes, lambda i: self.lane(value, i), at, buffer)

    def _lane_loop(
        self, lanes: int, of: Callable[[Prim], Prim], at: Callable[[Prim], list[Prim]], buffer: Any
    ) -> Any:
        i = tirx.Var(f"lane{next(self._names)}", "int32")
        body = tirx.BufferStore(buffer, of(i), at(i))
        return tirx.For(i, _int32(0), _int32(lanes), tirx.ForKind.SERIAL, body)

    def _reads_elsewhere(self, value: Prim, buffer: Any, index: Prim) -> bool:
        """True where a lane of a value may be what another one has written."""
        for part in _inside(value):
            if type(part).__name__ != "TensorLoad" or self._root(part.source) != self._root(buffer):
                continue
            own = part.indices[0]
            if index is None or not tvm_ffi.structural_equal(own, index, map_free_vars=True):
                return True
        return False

    def _root(self, data: Any) -> Any:
        """Returns the buffer, or the argument, whose memory this is."""
        while type(data).__name__ == "Call" and data.args:
            data = data.args[0]
        return self._views.get(data, data)

    def _same_for_all(self, value: Prim) -> bool:
        """True where one expression says what every lane is."""
        for part in _inside(value):
            match type(part).__name__:
                case "Shuffle" if lanes_of(part) > 1:
                    return False
                case "Call" if _op(part) == "tirx.reinterpret":
                    if lanes_of(part) != lanes_of(part.args[0]):
                        return False
                case _:
                    pass
        return True

    def _evaluate(self, stmt: Any) -> Any:
        value = stmt.value
        if type(value).__name__ == "Call" and "call_llvm" in _op(value) and _known(_HINTS, value):
            return nothing()
        return tirx.Evaluate(self.lane(value, 0))

    # ---- expressions ----------------------------------------------------------------------------

    def lane(self, value: Prim, i: Prim) -> Prim:
        """Returns one lane of an expression; an expression of one lane has no other.

        Args:
            value: The expression.
            i: Which lane: a number, or a variable of int32 where all lanes are alike.
        """
        kind = type(value).__name__
        if kind in ("IntImm", "StringImm"):
            return value
        if kind == "FloatImm":
            return _literal(value)
        if kind == "Var":
            if value in self._words:
                return self._reinterpreted(self._words[value], _element(value), i)
            held = self._held.get(value)
            return value if held is None else tirx.BufferLoad(held, [i])
        if kind == "TensorLoad":
            return tirx.BufferLoad(value.source, [self.lane(value.indices[0], i)])
        if kind == "Ramp":
            base, stride = self.lane(value.base, 0), self.lane(value.stride, 0)
            step = (
                tirx.const(i, _element(value)) if isinstance(i, int) else i.astype(_element(value))
            )
            return base + step * stride
        if kind == "Broadcast":
            return self.lane(value.value, 0)
        if kind == "Cast":
            return self.lane(value.value, i).astype(_element(value))
        if kind == "Select":
            return tirx.Select(*(self.lane(p, i) for p in (value.condition, *_branches(value))))
        if kind == "Shuffle":
            return self._shuffled(value, i)
        if kind in ("Not", "BitwiseNot"):
            return type(value)(self.lane(value.a, i))
        if kind == "Call":
            return self._call(value, i)
        if kind in _EXTREMES:
            return _extreme(kind, self.lane(value.a, i), self.lane(value.b, i))
        if hasattr(value, "a") and hasattr(value, "b"):
            return type(value)(self.lane(value.a, i), self.lane(value.b, i))
        raise NoCError(f"an expression {kind}")

    def _shuffled(self, value: Any, i: Prim) -> Prim:
        vectors = list(value.vectors)
        place = int(value.indices[i if isinstance(i, int) else 0])
        for vector in vectors:
            lanes = lanes_of(vector)
            if place < lanes:
                return self.lane(vector, place)
            place -= lanes
        raise NoCError("a shuffle beyond its vectors")

    def _call(self, value: Any, i: Prim) -> Prim:
        name, dtype = _op(value), _element(value)
        # C has no vectors: of words and their parts one is computed from the other by shifts.
        if name == "tirx.reinterpret":
            return self._reinterpreted(value.args[0], dtype, i)
        if name in ("tirx.call_llvm_pure_intrin", "tirx.call_llvm_intrin"):
            reduction = _known(_REDUCTIONS, value)
            if reduction is not None:
                return self._reduced(value.args[1], _REDUCTIONS[reduction])
            function = _known(_FUNCTIONS, value)
            if function is None:
                raise NoCError(f"LLVM's intrinsic {int(value.args[0])}")
            return _FUNCTIONS[function](dtype, [self.lane(arg, i) for arg in value.args[1:]])
        args = [self.lane(arg, i) for arg in value.args]
        if name in _MATH and _is_float(dtype):
            return tirx.call_pure_extern(
                dtype, _MATH[name] + ("f" if dtype == "float32" else ""), *args
            )
        type_ = value.ty if lanes_of(value) == 1 else tvm.ir.PrimType(dtype)
        return tvm.ir.Call(value.op, args, value.attrs, value.ty_args, ret_ty=type_)

    def _reduced(self, vector: Prim, of_two: Callable[[Prim, Prim], Prim]) -> Prim:
        """Returns the reduction of a vector, of more than a few lanes written before the statement.

        An expression would have every lane as often as TVM's passes put it for its name.
        """
        lanes = lanes_of(vector)
        if lanes <= _UNROLLED:
            total = self.lane(vector, 0)
            for i in range(1, lanes):
                total = of_two(total, self.lane(vector, i))
            return total
        for known, total in self._totals:
            if tvm_ffi.structural_equal(known, vector):
                return total
        held = tirx.decl_buffer((1,), _element(vector), name=f"total{next(self._names)}")
        so_far = tirx.BufferLoad(held, [_int32(0)])

        def added(i: Prim) -> Any:
            return tirx.BufferStore(held, of_two(so_far, self.lane(vector, i)), [_int32(0)])

        first = tirx.BufferStore(held, self.lane(vector, 0), [_int32(0)])
        if self._same_for_all(vector):
            i = tirx.Var(f"lane{next(self._names)}", "int32")
            rest = [tirx.For(i, _int32(1), _int32(lanes - 1), tirx.ForKind.SERIAL, added(i))]
        else:
            rest = [added(i) for i in range(1, lanes)]
        self._before += [tirx.AllocBuffer(held), first, *rest]
        self._totals.append((vector, so_far))
        return so_far

    def _reinterpreted(self, value: Prim, dtype: str, i: Prim) -> Prim:
        """Returns bits as another type, the lowest byte first."""
        value = self._words.get(value, value) if type(value).__name__ == "Var" else value
        own, wanted = _bits(_element(value)), _bits(dtype)
        if own == wanted:
            return _converted(self.lane(value, i), dtype)
        if own > wanted:
            ratio = own // wanted
            word = self.lane(value, i // ratio).astype(f"uint{own}")
            shift = tirx.const(wanted * (i % ratio), f"uint{own}")
            return _converted((word >> shift).astype(f"uint{wanted}"), dtype)
        ratio = wanted // own
        # Four bytes that lie side by side are one load of a word.
        if type(value).__name__ == "TensorLoad" and _consecutive(value.indices[0]) and wanted == 32:
            first = tirx.BufferLoad(value.source, [self.lane(value.indices[0], i * ratio)])
            word = tirx.call_pure_extern("uint32", "qdq_word", tirx.address_of(first))
            return _converted(word, dtype)
        word: Prim = tirx.const(0, f"uint{wanted}")
        for part in range(ratio):
            bits = _converted(self.lane(value, i * ratio + part), f"uint{own}")
            moved = bits.astype(f"uint{wanted}") << tirx.const(part * own, f"uint{wanted}")
            word = word | moved
        return _converted(word, dtype)


def sequence(statements: Sequence[Any]) -> Any:
    """Returns statements one behind the other; TVM has no sequence of one."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def nothing() -> Any:
    """Returns a statement that does nothing."""
    return tirx.Evaluate(_int32(0))


def _int32(value: int) -> Prim:
    return tirx.const(value, "int32")


def without_unused(stmt: Any) -> Any:
    """Returns a statement without variables and arrays that nothing reads."""
    return _read(stmt, set()) or nothing()


def _read(stmt: Any, used: set[Any]) -> Any:
    """Returns a statement without what is not read behind it; None where nothing is left.

    Args:
        stmt: The statement; expressions have no effect beside their value.
        used: What is read behind it; what it reads is added.
    """
    match type(stmt).__name__:
        case "SeqStmt":
            # From the end: by then it is known what is read behind a statement.
            kept = [_read(one, used) for one in reversed(stmt.seq)]
            left = [one for one in reversed(kept) if one is not None]
            return sequence(left) if left else None
        case "For":
            body = _read(stmt.body, used)
            _note(used, stmt.min, stmt.extent)
            if body is None:
                return None
            return tirx.For(
                stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding,
                stmt.annotations, stmt.step,
            )  # fmt: skip
        case "IfThenElse":
            cases = [
                None if case is None else _read(case, used)
                for case in (stmt.then_case, stmt.else_case)
            ]
            _note(used, stmt.condition)
            return tirx.IfThenElse(stmt.condition, cases[0] or nothing(), cases[1])
        case "Bind":
            if stmt.var not in used:
                return None
            _note(used, stmt.value)
        case "AllocBuffer" | "DeclBuffer":
            if stmt.buffer not in used:
                return None
            if type(stmt).__name__ == "DeclBuffer":
                _note(used, stmt.data)
        case "BufferStore":
            used.add(stmt.buffer)
            _note(used, stmt.value, *stmt.indices)
        case "Evaluate":
            _note(used, stmt.value)
        case "AttrStmt":
            return _read(stmt.body, used)
        case _:
            pass
    return stmt


def _note(used: set[Any], *values: Prim) -> None:
    for value in values:
        for part in _inside(value):
            match type(part).__name__:
                case "Var":
                    used.add(part)
                case "TensorLoad":
                    used.add(part.source)
                case _:
                    pass


def _branches(select: Any) -> tuple[Prim, Prim]:
    return select.true_value, select.false_value


def _op(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", ""))


LITERAL = "QDQ_NUMBER_"
"""What the name of a function begins with that stands for a float, whose bits follow:
TVM's generator of C writes seven digits of floats."""


def _literal(value: Any) -> Prim:
    dtype, number = _element(value), float(value.value)
    if number == 0.0:
        return value
    bits = struct.pack(">d", number).hex()
    return tirx.call_pure_extern(dtype, f"{LITERAL}{dtype}_{bits}")


def literals_in(text: str) -> str:
    """Returns C with the floats that functions stand for."""

    def number(found: re.Match[str]) -> str:
        (own,) = struct.unpack(">d", bytes.fromhex(found[2]))
        if not math.isfinite(own):
            return "NAN" if math.isnan(own) else "INFINITY" if own > 0 else "(-INFINITY)"
        return f"({own.hex()}{'f' if found[1] == 'float32' else ''})"

    return re.sub(rf"{LITERAL}(float\d+)_([0-9a-f]+)\(\)", number, text)


def _consecutive(index: Prim) -> bool:
    return type(index).__name__ == "Ramp" and int(index.stride) == 1


def _converted(value: Prim, dtype: str) -> Prim:
    """Returns the bits of a scalar as another type of the same size."""
    own = _element(value)
    if own == dtype:
        return value
    if _is_float(own) or _is_float(dtype):
        bits = _bits(dtype)
        if _is_float(own):
            word = tirx.call_pure_extern(f"uint{bits}", f"qdq_bits{bits}", value)
            return _converted(word, dtype)
        word = _converted(value, f"uint{bits}")
        return tirx.call_pure_extern(dtype, f"qdq_float{bits}", word)
    return value.astype(dtype)


def _inside(value: Prim) -> Iterator[Prim]:
    """Yields the parts of an expression, itself among them."""
    yield value
    match type(value).__name__:
        case "TensorLoad":
            parts: Any = value.indices
        case "Call":
            parts = value.args
        case "Shuffle":
            parts = value.vectors
        case "Select":
            parts = (value.condition, *_branches(value))
        case "Ramp":
            parts = (value.base, value.stride)
        case "Broadcast" | "Cast":
            parts = (value.value,)
        case _:
            parts = [getattr(value, name) for name in ("a", "b") if hasattr(value, name)]
    for part in parts:
        yield from _inside(part)
