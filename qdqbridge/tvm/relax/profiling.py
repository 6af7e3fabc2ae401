"""A float module that returns statistics of its tensors instead of results.

The tensors themselves never leave it: behind each of them stands a call of a kernel in
:mod:`qdqbridge.tvm.relax.profiling`, and they die as soon as in any other module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import ir, relax
from tvm import tirx as tensor_ir
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as tensor_ir_builder

from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import check_inputs
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.emitter import Expr, reason
from qdqbridge.tvm.relax.emit.module import ModuleEmitter
from qdqbridge.tvm.relax.executable import compiled
from qdqbridge.tvm.relax.kernels.codegen.processors import target_of
from qdqbridge.tvm.relax.lowering import lowered
from qdqbridge.tvm.relax.threads import raise_interrupt

# ---- Statistics of a tensor as machine code: one pass for the extremes, one for the histogram ----
# Values are compared as whole numbers: the bits of a float32, those of a negative one turned round,
# order as the values do, with NaN beyond the infinities. So nothing depends on an order, and
# :mod:`qdqbridge.autoquant.profiling.stats` in NumPy finds the same, bit for bit.


tirx: Any = tensor_ir  # TVM's annotations are narrower than what it takes
T: Any = tensor_ir_builder
Broadcast, BufferLoad, Ramp = tirx.Broadcast, tirx.BufferLoad, tirx.Ramp
TirExpr = Any
SIDE = 2048
SPLIT = 4
"""Tables that are counted in by turns: a counter just written is not read again at once."""
FACTS = (
    "zeros",
    "low",
    "high",
    "exponent",
    "nans",
    "positive_infinities",
    "negative_infinities",
    "size",
)
"""What :func:`extremes` says of a whole tensor; ``low`` and ``high`` are keys."""
_LANES = 16
_LARGEST, _SMALLEST = 0x7FFFFFFF, -0x80000000
_FINITE = (-0x7F800000, 0x7F7FFFFF)
_INFINITE = (-0x7F800001, 0x7F800000)


# ---- writing loops -----------------------------------------------------------------------------


def _int(value: int) -> TirExpr:
    return tirx.const(value, "int32")


def _simd_load(buffer: TirExpr, start: TirExpr) -> TirExpr:
    return BufferLoad(buffer, [Ramp(start, 1, _LANES)])


def _key(bits: TirExpr, number: Callable[[int], TirExpr]) -> TirExpr:
    # Negative floats have their bits turned, so that integers compare as the floats do.
    turned = tirx.bitwise_and(tirx.shift_right(bits, number(31)), number(_LARGEST))
    return tirx.bitwise_xor(bits, turned)


def _all_lanes(value: int) -> TirExpr:
    return Broadcast(_int(value), _LANES)


def _put(buffer: TirExpr, value: TirExpr, *index: TirExpr) -> None:
    T.buffer_store(buffer, value, list(index))


def _loop(extent: TirExpr) -> AbstractContextManager[TirExpr]:
    return T.serial(extent)


class _Tensor:
    """The float32 tensor that a kernel reads, as ``outer * channels * inner`` values in a row."""

    def __init__(self, rank: int, axis: int | None) -> None:
        shape = [tirx.Var(f"d{i}", "int64") for i in range(rank)]
        self._data = T.arg("x", T.buffer(shape, "float32", align=4))
        one = tirx.const(1, "int64")
        self.outer, self.channels, self.inner = one, one, one
        for i, extent in enumerate(shape):
            if axis is None or i > axis:
                self.inner = self.inner * extent
            elif i < axis:
                self.outer = self.outer * extent
            else:
                self.channels = extent
        self.size = self.outer * self.channels * self.inner

    def declare(self) -> None:
        """Makes the values visible in a row; all arguments of the kernel come before."""
        memory = self._data.data
        self.values = T.decl_buffer((self.size,), "float32", data=memory, align=4)
        self.bits = T.decl_buffer((self.size,), "int32", data=memory, align=4)


def _declare_primfunc(name: str) -> None:
    T.func_name(name)
    T.func_attr({"tirx.noalias": True, "global_symbol": name, "op_pattern": 8})


class _Extremes:
    def __init__(self, x: _Tensor, keys: TirExpr, facts: TirExpr) -> None:
        self.x, self.keys, self.facts = x, keys, facts
        self.lanes = [T.alloc_buffer((_LANES,), "int32", scope="local") for _ in range(3)]
        self.cells = [T.alloc_buffer((1,), "int32", scope="local") for _ in range(3)]
        self.whole = [T.alloc_buffer((1,), "int64", scope="local") for _ in range(4)]

    def write(self) -> None:
        zeros = self.whole[0]
        for cell in self.whole:
            _put(cell, tirx.const(0, "int64"), 0)
        self._clear_keys()
        with T.If(self.x.inner == 1):
            with T.Then():
                self._across()
            with T.Else():
                self._along()
        self._join()
        low, high = self.cells[0][0], self.cells[1][0]
        # NaN and infinities are beyond every finite key: the fast pass meets them as extremes.
        with T.If(tirx.any(low < _int(_FINITE[0]), high > _int(_FINITE[1]))), T.Then():
            self._clear_keys()
            self._finite_only()
            self._join()
        for i, cell in ((0, zeros), (4, self.whole[1]), (5, self.whole[2]), (6, self.whole[3])):
            _put(self.facts, cell[0], i)
        _put(self.facts, self.x.size, 7)
        _put(self.facts, tirx.Cast("int64", low), 1)
        _put(self.facts, tirx.Cast("int64", high), 2)
        _put(self.facts, tirx.Cast("int64", _exponent(low, high)), 3)

    def _clear_keys(self) -> None:
        with _loop(self.x.channels) as channel:
            _put(self.keys, _int(_LARGEST), 0, channel)
            _put(self.keys, _int(_SMALLEST), 1, channel)

    def _along(self) -> None:
        """Each channel's values lie in a row."""
        x, (low, high, zeros) = self.x, self.lanes
        _put(zeros, _all_lanes(0), Ramp(0, 1, _LANES))
        with _loop(x.outer) as outer, _loop(x.channels) as channel:
            start = (outer * x.channels + channel) * x.inner
            _put(low, _all_lanes(_LARGEST), Ramp(0, 1, _LANES))
            _put(high, _all_lanes(_SMALLEST), Ramp(0, 1, _LANES))
            with _loop(x.inner // _LANES) as j:
                key = _key(_simd_load(x.bits, start + j * _LANES), _all_lanes)
                _put(low, tirx.min(_simd_load(low, 0), key), Ramp(0, 1, _LANES))
                _put(high, tirx.max(_simd_load(high, 0), key), Ramp(0, 1, _LANES))
                self._count_zeros(start + j * _LANES)
            least, most = self.cells[0], self.cells[1]
            _put(least, low[0], 0)
            _put(most, high[0], 0)
            for lane in range(1, _LANES):
                _put(least, tirx.min(least[0], low[lane]), 0)
                _put(most, tirx.max(most[0], high[lane]), 0)
            with _loop(x.inner % _LANES) as j:
                at = start + x.inner // _LANES * _LANES + j
                key = _key(x.bits[at], _int)
                _put(least, tirx.min(least[0], key), 0)
                _put(most, tirx.max(most[0], key), 0)
                self._count_zero(at)
            self._into_channel(channel, least[0], most[0])
        self._add_lanes()

    def _across(self) -> None:
        """Channels lie side by side."""
        x, keys = self.x, self.keys
        _put(self.lanes[2], _all_lanes(0), Ramp(0, 1, _LANES))
        with _loop(x.outer) as outer:
            with _loop(x.channels // _LANES) as j:
                first = j * _LANES
                at = outer * x.channels + first
                key = _key(_simd_load(x.bits, at), _all_lanes)
                for row, better in ((0, tirx.min), (1, tirx.max)):
                    held = BufferLoad(keys, [row, Ramp(first, 1, _LANES)])
                    _put(keys, better(held, key), row, Ramp(first, 1, _LANES))
                self._count_zeros(at)
            with _loop(x.channels % _LANES) as j:
                channel = x.channels // _LANES * _LANES + j
                at = outer * x.channels + channel
                key = _key(x.bits[at], _int)
                self._into_channel(channel, key, key)
                self._count_zero(at)
        self._add_lanes()

    def _into_channel(self, channel: TirExpr, low: TirExpr, high: TirExpr) -> None:
        _put(self.keys, tirx.min(self.keys[0, channel], low), 0, channel)
        _put(self.keys, tirx.max(self.keys[1, channel], high), 1, channel)

    def _count_zeros(self, start: TirExpr) -> None:
        nothing = Broadcast(tirx.const(0.0, "float32"), _LANES)
        is_zero = _simd_load(self.x.values, start) == nothing
        more = tirx.Select(is_zero, _all_lanes(1), _all_lanes(0))
        _put(self.lanes[2], _simd_load(self.lanes[2], 0) + more, Ramp(0, 1, _LANES))

    def _count_zero(self, at: TirExpr) -> None:
        self._count(0, self.x.values[at] == tirx.const(0.0, "float32"))

    def _count(self, which: int, condition: TirExpr) -> None:
        one, none = tirx.const(1, "int64"), tirx.const(0, "int64")
        cell = self.whole[which]
        _put(cell, cell[0] + tirx.Select(condition, one, none), 0)

    def _add_lanes(self) -> None:
        for lane in range(_LANES):
            _put(self.whole[0], self.whole[0][0] + tirx.Cast("int64", self.lanes[2][lane]), 0)

    def _join(self) -> None:
        """The extremes of all channels."""
        least, most = self.cells[0], self.cells[1]
        _put(least, _int(_LARGEST), 0)
        _put(most, _int(_SMALLEST), 0)
        with _loop(self.x.channels) as channel:
            _put(least, tirx.min(least[0], self.keys[0, channel]), 0)
            _put(most, tirx.max(most[0], self.keys[1, channel]), 0)

    def _finite_only(self) -> None:
        """Again, one by one, past what is not finite; that is seldom needed."""
        x = self.x
        with _loop(x.outer) as outer, _loop(x.channels) as channel, _loop(x.inner) as j:
            at = (outer * x.channels + channel) * x.inner + j
            _put(self.cells[2], _key(x.bits[at], _int), 0)
            key = self.cells[2][0]
            negative, positive = key == _int(_INFINITE[0]), key == _int(_INFINITE[1])
            finite = tirx.all(key >= _int(_FINITE[0]), key <= _int(_FINITE[1]))
            self._count(1, tirx.Not(tirx.any(finite, negative, positive)))
            self._count(2, positive)
            self._count(3, negative)
            with T.If(finite), T.Then():
                self._into_channel(channel, key, key)


def _exponent(low: TirExpr, high: TirExpr) -> TirExpr:
    """The exponent of the histogram whose bins reach beyond keys ``low`` and ``high``."""
    magnitude = tirx.max(high, _int(-1) - low)
    exponent = tirx.max(tirx.shift_right(magnitude, _int(23)) - _int(126 + 11), _int(-126))
    return tirx.Select(low > high, _int(-126), exponent)


# ---- the histogram -----------------------------------------------------------------------------


def _write_bins(x: _Tensor, facts: TirExpr, counts: TirExpr) -> None:
    bins = T.alloc_buffer((_LANES,), "int32", scope="local")
    scale = T.alloc_buffer((1,), "float32", scope="local")
    # 2 to the negated exponent, by its bits.
    bits = tirx.shift_left(_int(127) - tirx.Cast("int32", facts[3]), _int(23))
    _put(scale, tirx.reinterpret("float32", bits), 0)
    with T.If(facts[4] + facts[5] + facts[6] == tirx.const(0, "int64")):
        with T.Then():
            with _loop(x.size // _LANES) as j:
                found = _vector_bins(x, scale, j * _LANES)
                _put(bins, found, Ramp(0, 1, _LANES))
                for lane in range(_LANES):
                    _increment(counts, bins[lane] + _int(lane % SPLIT * 2 * SIDE))
            with _loop(x.size % _LANES) as j:
                _count_one(x, scale, counts, x.size // _LANES * _LANES + j)
        with T.Else(), _loop(x.size) as j:
            key = _key(x.bits[j], _int)
            finite = tirx.all(key >= _int(_FINITE[0]), key <= _int(_FINITE[1]))
            with T.If(finite), T.Then():
                _count_one(x, scale, counts, j)


def _vector_bins(x: _Tensor, scale: TirExpr, start: TirExpr) -> TirExpr:
    """Bins of values; the floor of a negative one is below zero, however small it gets."""
    value = _simd_load(x.values, start)
    scaled = value * Broadcast(scale[0], _LANES)
    below = Broadcast(tirx.const(-1e-30, "float32"), _LANES)
    negative = value < Broadcast(tirx.const(0.0, "float32"), _LANES)
    scaled = tirx.Select(negative, tirx.min(scaled, below), scaled)
    return tirx.Cast(f"int32x{_LANES}", tirx.floor(scaled)) + _all_lanes(SIDE)


def _count_one(x: _Tensor, scale: TirExpr, counts: TirExpr, at: TirExpr) -> None:
    value = x.values[at]
    scaled = value * scale[0]
    below = tirx.min(scaled, tirx.const(-1e-30, "float32"))
    scaled = tirx.Select(value < tirx.const(0.0, "float32"), below, scaled)
    _increment(counts, tirx.Cast("int32", tirx.floor(scaled)) + _int(SIDE))


def _increment(counts: TirExpr, at: TirExpr) -> None:
    _put(counts, counts[at] + _int(1), at)


# ---- kernels -----------------------------------------------------------------------------------


def extremes(rank: int, axis: int | None) -> Any:
    """Returns the kernel ``(x, keys, facts)``.

    ``x`` is a float32 tensor of ``rank`` axes of any extents, ``keys`` (int32, 2 x channels) gets
    the smallest and largest finite value of each channel, ``facts`` (int64) what :data:`FACTS`
    says.

    Args:
        rank: Number of axes.
        axis: The axis that numbers the channels; None for a single channel.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        _declare_primfunc("extremes")
        x = _Tensor(rank, axis)
        keys, facts = _keys(x), _facts()
        with T.sblock("root"):
            x.declare()
            _Extremes(x, keys, facts).write()
    return builder.get()


def bins(rank: int, axis: int | None) -> Any:
    """Returns the kernel ``(x, facts, counts)``, which counts finite values, zeros among them.

    ``counts`` (int32) holds :data:`SPLIT` tables whose sums are the histogram of the exponent in
    ``facts``; it is added to. No finite value may lie outside of it.

    Args:
        rank: Number of axes.
        axis: As for :func:`extremes`.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        _declare_primfunc("bins")
        x, facts, counts = _Tensor(rank, axis), _facts(), _tables()
        with T.sblock("root"):
            x.declare()
            _write_bins(x, facts, counts)
    return builder.get()


def both(rank: int, axis: int | None) -> Any:
    """Returns the kernel ``(x, keys, facts, counts)``: :func:`extremes`, then :func:`bins` of it.

    Args:
        rank: Number of axes.
        axis: As for :func:`extremes`.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        _declare_primfunc("statistics")
        x = _Tensor(rank, axis)
        keys, facts, counts = _keys(x), _facts(), _tables()
        with T.sblock("root"):
            x.declare()
            _Extremes(x, keys, facts).write()
            with _loop(SPLIT * 2 * SIDE) as i:
                _put(counts, _int(0), i)
            _write_bins(x, facts, counts)
    return builder.get()


def _keys(x: _Tensor) -> TirExpr:
    return T.arg("keys", T.buffer((2, x.channels), "int32", align=4))


def _facts() -> TirExpr:
    return T.arg("facts", T.buffer((len(FACTS),), "int64", align=4))


def _tables() -> TirExpr:
    return T.arg("counts", T.buffer((SPLIT * 2 * SIDE,), "int32", align=4))


class StatisticsKernels:
    """Both kernels for NumPy arrays of shape (outer, channels, inner), on this machine."""

    def __init__(self) -> None:
        functions = {"extremes": extremes(3, 1), "bins": bins(3, 1)}
        library = tvm.compile(tvm.IRModule(functions), target=_host())
        self._extremes, self._bins = library["extremes"], library["bins"]

    @staticmethod
    def view(array: NDArray[Any]) -> Any:
        """Returns the memory of a contiguous array as the kernels take it."""
        compact = array.reshape(-1)  # NumPy leaves odd strides where an extent is 1
        compact = compact if compact.flags.writeable else compact.copy()
        return tvm_ffi.from_dlpack(compact.reshape(array.shape))

    def extremes(self, x: Any, keys: Any, facts: Any) -> None:
        """See :func:`extremes`."""
        self._extremes(x, keys, facts)

    def bins(self, x: Any, facts: Any, counts: Any) -> None:
        """See :func:`bins`."""
        self._bins(x, facts, counts)


@lru_cache(maxsize=1)
def kernels() -> StatisticsKernels:
    """Returns the kernels, compiled on first use (a fraction of a second)."""
    return StatisticsKernels()


def _host() -> Any:
    from tvm.target import codegen

    name = codegen.llvm_get_system_cpu()
    return tvm.target.Target({"kind": "llvm", "mcpu": name} if name else "llvm")


# ---- A float module that returns statistics of its tensors instead of results --------------------


Array = NDArray[Any]
Watched = tuple[Value, "int | None"]
"""A tensor, and the axis that numbers its channels."""


class _ProfilingEmitter(ModuleEmitter):
    def __init__(self, watched: Sequence[Watched], *, histograms: bool) -> None:
        super().__init__()
        self._watched, self._histograms = watched, histograms
        self._functions: dict[tuple[int, int | None], relax.GlobalVar] = {}

    def results(self, outputs: Sequence[Value]) -> list[Expr]:
        """Returns keys, facts and (with histograms) tables of each tensor, in turn."""
        del outputs
        return [part for value, axis in self._watched for part in self._statistics(value, axis)]

    def _statistics(self, value: Value, axis: int | None) -> list[Expr]:
        real = self.emitter.cast(self.emitter.value(value), "float32")
        rank = int(real.ty.ndim)
        channels = 1 if axis is None else real.ty.shape.values[axis]
        types = [_type((2, channels), "int32"), _type((len(FACTS),), "int64")]
        if self._histograms:
            types.append(_type((SPLIT * 2 * SIDE,), "int32"))
        operands: Any = [real]
        found = self.builder.emit(relax.call_tir(self._function(rank, axis), operands, types))
        return [self.builder.emit(relax.TupleGetItem(found, i)) for i in range(len(types))]

    def _function(self, rank: int, axis: int | None) -> relax.GlobalVar:
        key = (rank, axis)
        if key not in self._functions:
            kernel = both(rank, axis) if self._histograms else extremes(rank, axis)
            name = f"statistics_{rank}_{'all' if axis is None else axis}"
            kernel = kernel.with_attr("global_symbol", name)
            self._functions[key] = self.builder.add_func(kernel, name)
        return self._functions[key]


def _type(shape: Any, dtype: str) -> relax.TensorType:
    return relax.TensorType(shape, dtype)


class ProfilingModule:
    """A compiled module of statistics.

    Attributes:
        module: The Relax module before lowering.
    """

    def __init__(
        self, graph: Graph, watched: Sequence[Watched], *, histograms: bool, target: Any = "llvm"
    ) -> None:
        """Emits and compiles.

        Args:
            graph: A canonical float graph.
            watched: The tensors to look at.
            histograms: Count values as well.
            target: A TVM target for CPUs.

        Raises:
            UnsupportedTargetError: TVM cannot express or build the module.
        """
        self.graph = graph
        self._parts = 3 if histograms else 2
        emitter = _ProfilingEmitter(watched, histograms=histograms)
        self.module: ir.IRModule = emitter.emit(graph)[0]
        resolved = target_of(target)
        try:
            library = compiled(lowered(self.module), resolved)
        except Exception as error:  # whatever a pass or LLVM raises
            raise_interrupt(error)
            raise UnsupportedTargetError(
                "TVM cannot build the module that takes statistics",
                why=reason(error),
                fix="profile with onnxruntime",
            ) from error
        self._device: Any = tvm.cpu()
        self._machine = relax.VirtualMachine(library, self._device)

    def run(self, sample: Mapping[str, Array]) -> list[list[Array]]:
        """Returns what the kernels say of each tensor: keys, facts, tables.

        Raises:
            InputDataError: An input is missing, unknown, or of the wrong dtype or shape.
        """
        arrays = check_inputs(self.graph.inputs, sample)
        tensors = [tvm.runtime.tensor(np.asarray(a, order="C"), self._device) for a in arrays]
        result = list(self._machine["main"](*tensors))
        found = [np.from_dlpack(tensor) for tensor in result]
        step = self._parts
        return [found[i : i + step] for i in range(0, len(found), step)]
