"""What an emission function works with: the host's operators, and an expression per value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.origin import written

# ---- Element types of TVM's tensors --------------------------------------------------------------


HOLDABLE = frozenset(
    (
        DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT64, DType.INT32,
        DType.INT16, DType.INT8, DType.UINT64, DType.UINT32, DType.UINT16, DType.UINT8, DType.BOOL,
    )
)  # fmt: skip
"""Element types that TVM stores in tensors."""

_SUB_BYTE = {DType.INT4: np.int8, DType.INT2: np.int8, DType.UINT4: np.uint8, DType.UINT2: np.uint8}
_MINIFLOATS = frozenset(dtype for dtype in DType if dtype.is_small_float)


def as_bytes(array: NDArray[Any]) -> NDArray[Any]:
    """Returns floats of 8 bits and fewer as the bytes that TVM holds; any other array as it is."""
    return array.view(np.uint8) if DType.of(array.dtype) in _MINIFLOATS else array


def from_tvm_array(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Returns an array of TVM's in the element type that it stands for."""
    if dtype in _MINIFLOATS:
        return array.view(dtype.numpy)
    return array.astype(dtype.numpy, copy=False)


def storage(params: QuantParams) -> str:
    """Returns the TVM element type that holds ``params``' stored values."""
    return tvm_dtype(params.storage_dtype)


def tvm_dtype(dtype: DType) -> str:
    """Returns TVM's name of an element type.

    A byte holds an element of a sub-byte type, and the bits of an 8- or 4-bit float.

    Raises:
        UnsupportedTargetError: TVM has no tensors of it.
    """
    if dtype in _SUB_BYTE:
        return str(np.dtype(_SUB_BYTE[dtype]))
    if dtype in _MINIFLOATS:
        return "uint8"
    if dtype not in HOLDABLE:
        raise UnsupportedTargetError(
            f"TVM cannot hold tensors of {dtype}",
            why="this is a limit of TVM, not of the model",
            fix="run it with the interpreter or onnxruntime, or export the graph",
        )
    return str(dtype)


# ---- The choices between equivalent forms that differ from table to table ------------------------


Row = Callable[["FunctionEmitter", Node], Any]
"""Emits a node whose data is quantized; returns None where its form does not apply."""


def add_bias(emitter: FunctionEmitter, acc: Any, bias: NDArray[Any], axis: int) -> Any:
    """``add(acc, bias)``, the bias shaped to broadcast along ``axis``."""
    trailing = emitter.rank(acc) - 1 - axis
    column = bias.reshape(-1, *([1] * trailing)) if trailing and axis >= 0 else bias
    return emitter.emit(emitter.op.add(acc, emitter.number(column)))


def requantize(
    emitter: FunctionEmitter, acc: Any, scale: NDArray[np.float32], axis: int, params: QuantParams
) -> Any:
    """``requantize(acc, scale, 0, sy, zy)`` and the clamp of a narrower range."""
    attrs = {
        "axis": axis, "rounding": "TONEAREST_EVEN", "compute_dtype": "float32",
        "out_dtype": storage(params),
    }  # fmt: skip
    zero = emitter.number(np.zeros((), np.int32))
    args = [acc, emitter.number(scale), zero, emitter.scale(params), emitter.zero_point(params)]
    return emitter.clamp(emitter.qnn("requantize", args, attrs), params)


def clip(emitter: FunctionEmitter, stored: Any, params: QuantParams) -> Any:
    """``clip(stored, qmin, qmax)``."""
    return emitter.emit(emitter.op.clip(stored, params.qmin, params.qmax))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Variant:
    """How equivalent things are written; the defaults are the canonical form.

    Attributes:
        name: What it is called.
        bias: Adds an integer bias along an axis of the accumulator (-1: the last).
        zero_bias: True to add a bias of zeros where a convolution or product has none.
        scalar_zero_point: True to give a kernel zero point that is all zeros as one number.
        requantize: Rounds an accumulator into the result's type.
        clamp: Limits stored values to a range narrower than their type.
        kernel_layout: ``(depthwise, transposed) -> layout`` of 2-D kernels under channels-last
            data; None keeps the graph's.
        rows: Forms of quantized operators that come before the canonical ones, by operator.
    """

    name: str = "canonical"
    bias: Callable[[FunctionEmitter, Any, NDArray[Any], int], Any] = add_bias
    zero_bias: bool = False
    scalar_zero_point: bool = False
    requantize: Callable[[FunctionEmitter, Any, NDArray[np.float32], int, QuantParams], Any] = (
        requantize
    )
    clamp: Callable[[FunctionEmitter, Any, QuantParams], Any] = clip
    kernel_layout: Callable[[bool, bool], str] | None = None
    rows: Mapping[Operator, Row] = field(default_factory=lambda: MappingProxyType({}))


CANONICAL = Variant()


# ---- What an emission function works with: the host's operators, and an expression per value -----


Expr = Any
"""An expression of the host."""


class FunctionEmitter(ABC):
    """Emits into one function of a host.

    Attributes:
        op: The host's operators under Relax's names and with Relax's arguments.
        variant: The choices between equivalent forms.
        channels_last: The nodes whose data operand and results are channels-last.
        exprs: The expression of every value that is emitted.
    """

    op: Any
    only_images = False
    """True where a convolution of one spatial axis is to be one of an image of height 1."""
    only_matrices = False
    """True where products take matrices and stacks of matrices only, the second one (N, K)."""
    reduces_nothing = False
    """True where a reduction of no elements is what ONNX says; elsewhere what the memory held."""
    raises_integers = False
    """True where ``power`` of integers is exact; elsewhere it goes through float64."""

    def __init__(
        self, variant: Variant = CANONICAL, channels_last: frozenset[Node] = frozenset()
    ) -> None:
        self.variant, self.channels_last = variant, channels_last
        self.exprs: dict[Value, Expr] = {}
        self.origin = ""
        """What a host writes into the spans of its calls: see :mod:`qdqbridge.tvm.qnn.origin`."""
        self._described: tuple[Node, tuple[bool, bool] | None] | None = None

    # ---- what a host gives --------------------------------------------------------------------

    @abstractmethod
    def emit(self, expr: Expr, name: str = "") -> Expr:
        """Makes an expression an operand of others, with a type."""

    @abstractmethod
    def qnn(
        self, name: str, args: Sequence[Any], attrs: dict[str, Any] | None = None, hint: str = ""
    ) -> Expr:
        """Emits a call of the QNN dialect."""

    @abstractmethod
    def number(self, array: NDArray[Any]) -> Expr:
        """Returns a small constant (a scale, a zero point, indices)."""

    @abstractmethod
    def constant(self, constant: Constant, name: str) -> Expr:
        """Returns a constant expression; one per Constant object, copied into TVM once."""

    @abstractmethod
    def extents(self, expr: Expr) -> list[Any]:
        """Returns the shape of an expression: ints, and the host's symbols."""

    @abstractmethod
    def dtype(self, expr: Expr) -> str:
        """Returns the element type of an expression."""

    @abstractmethod
    def item(self, expr: Expr, index: int) -> Expr:
        """Returns a field of a tuple."""

    @abstractmethod
    def run_time_extent(self, expr: Expr, axis: int, dtype: str) -> Expr:
        """Returns the length of an axis as a scalar; a constant where it is known."""

    @abstractmethod
    def run_time_shape(self, node: Node, expr: Expr) -> Expr:
        """Returns the shape that the last operand of a Reshape or Expand gives at run time."""

    @abstractmethod
    def shape_vector(self, expr: Expr) -> Expr:
        """Returns the extents of an expression as an int64 vector."""

    def at_most(self, extents: Sequence[Any], count: int) -> None:
        """Lets a run end with an error where open extents give more than ``count`` elements."""
        del extents, count  # a host of known extents needs no check

    def rest_of(self, extents: Sequence[Any], target: list[Any]) -> list[Any]:
        """Returns the target of a reshape of ``extents`` with -1 as what is left, if known."""
        del extents
        return target

    def reshape(self, expr: Expr, extents: Sequence[Any]) -> Expr:
        """Returns data in a shape of which every extent is known, 0 as well."""
        return self.op.reshape(expr, extents)

    def larger_bound(self, extent: Any, bound: int, other: int) -> Any:
        """Returns a bound of a slice, or another one that is further from the first element."""
        del extent, other  # a host of known extents compares numbers
        return bound

    def need_indices(self, indices: Expr, data: Expr, axis: int) -> None:
        """Lets a run end with an error where an index is beyond an axis of the data."""
        del indices, data, axis

    def at_least(self, extent: Any, count: int) -> None:
        """Lets a run end with an error where an open extent is less than ``count``."""
        del extent, count

    def broadcast(self, expr: Expr, shape: Any) -> Expr:
        """Returns an expression repeated to a shape, which may be known at run time only."""
        return self.op.broadcast_to(expr, shape)

    def aligned(self, exprs: Sequence[Expr], trailing: int = 0) -> list[Expr]:
        """Returns operands that broadcast; a host may decide at run time which extents are 1.

        Args:
            exprs: The operands.
            trailing: How many of the last axes do not broadcast.
        """
        del trailing
        return list(exprs)

    def fitted(self, expr: Expr, shape: Sequence[Any]) -> Expr:
        """Returns an operand that broadcasts to a shape; a host may decide at run time whether."""
        del shape
        return expr

    def joinable(self, exprs: Sequence[Expr], axis: int) -> list[Expr]:
        """Returns operands of a concat; a host may decide at run time whether extents fit."""
        del axis
        return list(exprs)

    # ---- spans --------------------------------------------------------------------------------

    def describe(self, node: Node, layout: tuple[bool, bool] | None = None) -> None:
        """Makes the spans of what follows say that it comes from ``node``.

        Args:
            node: The node as the file has it.
            layout: See :func:`qdqbridge.tvm.qnn.origin.written`.
        """
        self._described = node, layout
        self.origin = written(node, layout=layout)

    def swap(self) -> None:
        """Makes the spans of what follows say that the node's two operands are swapped."""
        if self._described is not None:
            node, layout = self._described
            self.origin = written(node, layout=layout, swapped=True)

    # ---- values -------------------------------------------------------------------------------

    def function(self, name: str) -> Any:
        """Returns a host operator by its dotted name.

        Raises:
            ValueError: The host has none of that name.
        """
        try:
            return attrgetter(name)(self.op)
        except AttributeError as error:
            raise ValueError(f"it has no operator {name}") from error

    def rank(self, expr: Expr) -> int:
        """Returns the number of axes of an expression."""
        return len(self.extents(expr))

    def channel(self, node: Node, rank: int) -> int:
        """Returns the channel axis of a node's data of ``rank`` axes."""
        return rank - 1 if node in self.channels_last else 1

    def spatial(self, node: Node, rank: int) -> list[int]:
        """Returns the axes of a node's data that are neither batch nor channel."""
        first = 1 if node in self.channels_last else 2
        return list(range(first, first + rank - 2))

    def layout(self, node: Node, rank: int) -> str:
        """Returns the layout of a node's data of ``rank`` axes, in TVM's letters."""
        axes = "DHW"[5 - rank :]
        return f"N{axes}C" if node in self.channels_last else f"NC{axes}"

    def value(self, value: Value) -> Expr:
        """Returns the expression of a value as it is stored."""
        if value.constant is not None:
            return self.constant(value.constant, value.name)
        return self.exprs[value]

    def real(self, value: Value) -> Expr:
        """Returns the float expression of a value; dequantizes where it is quantized."""
        if value.quant is None:
            return self.value(value)
        params = value.quant.params
        return self.cast(
            self.dequantize(self.value(value), params), tvm_dtype(params.expressed_dtype)
        )

    def scale(self, params: QuantParams) -> Expr:
        """Returns the scale as a float32 constant of rank 0 or 1."""
        return self.number(params.scale.astype(np.float32))

    def zero_point(self, params: QuantParams) -> Expr:
        """Returns the zero point as an int32 constant of the scale's shape."""
        return self.number(params.zero_point)

    # ---- conversions --------------------------------------------------------------------------

    def quantize(self, real: Expr, params: QuantParams, hint: str = "") -> Expr:
        """Emits ``qnn.quantize`` and the clamp of a narrower range."""
        if params.storage_dtype.is_small_float:
            return self._quantize_minifloat(real, params, hint)
        if params.blocked:
            real = self._rounded_in_blocks(real, params)
            # It is divided, rounded and moved already: what is left to the call is to saturate.
            args = [real, self.number(np.ones((), np.float32)), self.number(np.zeros((), np.int32))]
            attrs = {"axis": -1, "out_dtype": storage(params)}
            return self.clamp(self.qnn("quantize", args, attrs, hint), params)
        axis = -1 if params.axis is None else params.axis
        attrs = {"axis": axis, "out_dtype": storage(params)}
        args = [real, self.scale(params), self.zero_point(params)]
        return self.clamp(self.qnn("quantize", args, attrs, hint), params)

    def converted(self, value: Value, params: QuantParams) -> Expr:
        """Returns a value in the quantized type of ``params``: as it is, or rounded once."""
        if value.quant is None:
            if value.constant is None:
                return self.quantize(self.cast(self.value(value), "float32"), params)
            stored = quantize(value.constant.numpy().astype(np.float32), params)
            return self.number(as_bytes(stored))
        source = value.quant.params
        if source.same_mapping(params):
            return self.clamp(self.value(value), params)
        integers = source.storage_dtype.is_integer and params.storage_dtype.is_integer
        if not (source.per_tensor and params.per_tensor and integers):
            return self.quantize(self.real(value), params)
        attrs = {
            "rounding": "TONEAREST_EVEN",
            "compute_dtype": "float32",
            "out_dtype": storage(params),
        }
        args = [self.value(value), self.scale(source), self.zero_point(source)]
        args += [self.scale(params), self.zero_point(params)]
        return self.clamp(self.qnn("requantize", args, attrs), params)

    def dequantize(self, stored: Expr, params: QuantParams) -> Expr:
        """Emits ``qnn.dequantize`` to float32."""
        if params.storage_dtype.is_small_float:
            return self._dequantize_minifloat(stored, params)
        if params.blocked:
            return self._dequantize_blocks(stored, params)
        axis = -1 if params.axis is None else params.axis
        args = [stored, self.scale(params), self.zero_point(params)]
        return self.qnn("dequantize", args, {"axis": axis})

    def _dequantize_blocks(self, stored: Expr, params: QuantParams) -> Expr:
        """Blocked parameters: repeat them along the axis, then one subtraction and product."""
        zero_point, scale = self._along_blocks(stored, params)
        centred = self.emit(self.op.subtract(self.cast(stored, "int32"), zero_point))
        return self.emit(self.op.multiply(self.cast(centred, "float32"), scale))

    def quotient(self, real: Expr, params: QuantParams, precision: DType) -> Expr:
        """Returns ``real / scale`` as a type holds it; what quantizes it has a scale of 1."""
        if params.blocked:
            return self.divided(real, self._along_blocks(real, params)[1], precision)
        lined = params.aligned(params.scale, (1,) * len(self.extents(real)))
        return self.divided(real, self.number(lined.astype(np.float32)), precision)

    def divided(self, real: Expr, scale: Expr, precision: DType) -> Expr:
        """Returns the quotient that a type holds, as float32.

        Float32's has more than twice the digits of float16 and bfloat16, and two: rounded to these,
        it is their own.
        """
        dtype = tvm_dtype(precision)
        numbers = [self.cast(self.cast(each, dtype), "float32") for each in (real, scale)]
        quotient = self.emit(self.op.divide(*numbers))
        return self.cast(self.cast(quotient, dtype), "float32")

    def _rounded_in_blocks(self, real: Expr, params: QuantParams) -> Expr:
        """Divides by repeated scales, in float32 whatever the numbers are, rounds and shifts."""
        zero_point, scale = self._along_blocks(real, params)
        quotient = self.emit(self.op.divide(self.cast(real, "float32"), scale))
        rounded = self.emit(self.op.round(quotient))
        return self.emit(self.op.add(rounded, self.cast(zero_point, "float32")))

    def _quantize_minifloat(self, real: Expr, params: QuantParams, hint: str) -> Expr:
        """Floats of 8 bits and fewer: their bits as bytes."""
        axis, scale = -1 if params.axis is None else params.axis, self.scale(params)
        if params.blocked:
            scale = self._along_blocks(real, params)[1]
            real = self.emit(self.op.divide(self.cast(real, "float32"), scale))
            axis, scale = -1, self.number(np.ones((), np.float32))
        saturate = params.saturate or params.storage_dtype.is_finite
        attrs = {"axis": axis, "format": params.storage_dtype.label, "saturate": saturate}
        return self.qnn("quantize_minifloat", [real, scale], attrs, hint)

    def _dequantize_minifloat(self, stored: Expr, params: QuantParams) -> Expr:
        axis, scale = -1 if params.axis is None else params.axis, self.scale(params)
        if params.blocked:
            axis, scale = -1, self.number(np.ones((), np.float32))
        attrs = {"axis": axis, "format": params.storage_dtype.label}
        number = self.qnn("dequantize_minifloat", [stored, scale], attrs)
        if not params.blocked:
            return number
        return self.emit(self.op.multiply(number, self._along_blocks(stored, params)[1]))

    def _along_blocks(self, data: Expr, params: QuantParams) -> list[Expr]:
        """Returns zero points and scales of blocks, repeated to the extent of ``data``."""
        assert params.axis is not None and params.block_size is not None
        extent = int(self.extents(data)[params.axis])
        parts: list[Expr] = []
        for array in (params.zero_point, params.scale.astype(np.float32)):
            number = self.number(array)
            repeated = self.emit(self.op.repeat(number, params.block_size, axis=params.axis))
            parts.append(
                self.emit(
                    self.op.strided_slice(repeated, axes=[params.axis], begin=[0], end=[extent])
                )
            )
        return parts

    def clamp(self, stored: Expr, params: QuantParams) -> Expr:
        """Emits the clamp where the range is narrower than the storage type."""
        if params.storage_dtype.is_small_float:
            return stored
        if fills(params):
            return stored
        return self.variant.clamp(self, stored, params)

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Emits a change of element type where there is one."""
        return expr if self.dtype(expr) == dtype else self.emit(self.op.astype(expr, dtype))


def fills(params: QuantParams) -> bool:
    """True where integers have the whole range of the type in which hosts hold them."""
    return params.full_range and params.storage_dtype.bits >= 8


def unsupported(node: Node, why: str) -> UnsupportedTargetError:
    """Returns the error of a node that TVM cannot run."""
    return UnsupportedTargetError(
        f"{node.op.name} cannot be emitted for TVM",
        where=f"node '{node.name}'",
        why=why,
        fix="run it with onnxruntime, or change the model",
    )


def reason(error: Exception) -> str:
    """Returns in one line what TVM says; it hands our own errors back as their text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    stated = [line.removeprefix("why").strip() for line in lines if line.startswith("why ")]
    traced = lines[-1:] if lines and lines[0].startswith("Traceback") else []
    return next(iter([*stated, *traced, *lines]), type(error).__name__)
