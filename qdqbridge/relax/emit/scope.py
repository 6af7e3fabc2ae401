"""What an emission function works with: the builder, and an expression for every value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.numerics import quantize
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import Shape
from qdqbridge.relax.dialect import call
from qdqbridge.relax.emit.transposition import fill

Expr = Any
op: Any = relax.op
"""Relax's operators; their annotations deny the lists and numbers that they take."""
HOLDABLE = frozenset(
    (
        DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT64, DType.INT32,
        DType.INT16, DType.INT8, DType.UINT64, DType.UINT32, DType.UINT16, DType.UINT8, DType.BOOL,
    )
)  # fmt: skip
"""Element types that TVM 0.27 stores in tensors."""

_SUB_BYTE = {DType.INT4: np.int8, DType.INT2: np.int8, DType.UINT4: np.uint8, DType.UINT2: np.uint8}


class Scope:
    """Emits into one function.

    Args:
        builder: The block builder, inside the function's dataflow block.
        extents: TIR variables of the symbolic extents, by name.
        lift: Makes a parameter of a large constant; None embeds every constant.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        extents: dict[str, tirx.Var],
        lift: Any = None,
    ) -> None:
        self.builder, self.extents, self._lift = builder, extents, lift
        self.exprs: dict[Value, Expr] = {}
        self._constants: dict[Constant, Expr] = {}

    # ---- values -------------------------------------------------------------------------------

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

    def constant(self, constant: Constant, name: str) -> Expr:
        """Returns a constant expression; one per Constant object, copied into TVM once."""
        if constant not in self._constants:
            lifted = None if self._lift is None else self._lift(constant, name)
            self._constants[constant] = (
                relax.const(to_tensor(constant)) if lifted is None else lifted
            )
        return self._constants[constant]

    def shape(self, shape: Shape) -> list[Any]:
        """Returns extents as Relax wants them.

        Raises:
            UnsupportedTargetError: The rank is unknown.
        """
        if shape is None:
            raise UnsupportedTargetError(
                "TVM needs the rank of every tensor",
                why="the shape of a tensor is unknown",
                fix="run onnx shape inference on the model, or fix its input shapes",
            )
        return [dim if isinstance(dim, int) else self.extent(dim) for dim in shape]

    def extent(self, name: str) -> tirx.Var:
        """Returns the TIR variable of a symbolic extent."""
        if name not in self.extents:
            self.extents[name] = tirx.Var(name, "int64")
        return self.extents[name]

    # ---- building -----------------------------------------------------------------------------

    def emit(self, expr: Expr, name: str = "") -> Expr:
        """Binds an expression to a new variable of the block."""
        return self.builder.emit(expr, name)

    def qnn(
        self, name: str, args: Sequence[Any], attrs: dict[str, Any] | None = None, hint: str = ""
    ) -> Expr:
        """Emits a call of the QNN dialect."""
        return self.emit(call(f"qnn.{name}", args, attrs), hint)

    def scale(self, params: QuantParams) -> Expr:
        """Returns the scale as a float32 constant of rank 0 or 1."""
        return number(params.scale.astype(np.float32))

    def zero_point(self, params: QuantParams) -> Expr:
        """Returns the zero point as an int32 constant of the scale's shape."""
        return number(params.zero_point)

    def quantize(self, real: Expr, params: QuantParams, hint: str = "") -> Expr:
        """Emits ``qnn.quantize`` and the clamp of a narrower range."""
        if params.blocked:
            zero_point, scale = self._along_blocks(real, params)
            rounded = self.emit(op.round(self.emit(op.divide(real, scale))))
            real = self.emit(op.add(rounded, self.cast(zero_point, "float32")))
            args = [real, number(np.ones((), np.float32)), number(np.zeros((), np.int32))]
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
            return number(quantize(value.constant.numpy().astype(np.float32), params))
        source = value.quant.params
        if source.same_mapping(params):
            return self.clamp(self.value(value), params)
        if not source.per_tensor or not params.per_tensor:
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
        if params.blocked:
            return self._dequantize_blocks(stored, params)
        axis = -1 if params.axis is None else params.axis
        args = [stored, self.scale(params), self.zero_point(params)]
        return self.qnn("dequantize", args, {"axis": axis})

    def _dequantize_blocks(self, stored: Expr, params: QuantParams) -> Expr:
        """Blocked parameters: repeat them along the axis, then one subtraction and product."""
        zero_point, scale = self._along_blocks(stored, params)
        centred = self.emit(op.subtract(self.cast(stored, "int32"), zero_point))
        return self.emit(op.multiply(self.cast(centred, "float32"), scale))

    def _along_blocks(self, data: Expr, params: QuantParams) -> list[Expr]:
        """Returns zero points and scales of blocks, repeated to the extent of ``data``."""
        assert params.axis is not None and params.block_size is not None
        extent = int(data.ty.shape.values[params.axis])
        parts: list[Expr] = []
        for array in (params.zero_point, params.scale.astype(np.float32)):
            repeated = self.emit(op.repeat(number(array), params.block_size, axis=params.axis))
            parts.append(
                self.emit(op.strided_slice(repeated, axes=[params.axis], begin=[0], end=[extent]))
            )
        return parts

    def clamp(self, stored: Expr, params: QuantParams) -> Expr:
        """Emits ``clip`` where the range is narrower than the storage type."""
        if params.full_range and params.storage_dtype.bits >= 8:
            return stored
        return self.emit(op.clip(stored, params.qmin, params.qmax))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Emits a change of element type where there is one."""
        return expr if str(expr.ty.dtype) == dtype else self.emit(op.astype(expr, dtype))


def storage(params: QuantParams) -> str:
    """Returns the TVM element type that holds ``params``' stored values."""
    dtype = params.storage_dtype
    return str(np.dtype(_SUB_BYTE[dtype])) if dtype in _SUB_BYTE else tvm_dtype(dtype)


def tvm_dtype(dtype: DType) -> str:
    """Returns TVM's name of an element type.

    Raises:
        UnsupportedTargetError: TVM 0.27 has no tensors of it.
    """
    if dtype in _SUB_BYTE:
        return str(np.dtype(_SUB_BYTE[dtype]))
    if dtype not in HOLDABLE:
        raise UnsupportedTargetError(
            f"TVM cannot hold tensors of {dtype}",
            why="this is a limit of TVM 0.27, not of the model",
            fix="run it with the interpreter or onnxruntime, or export the graph",
        )
    return str(dtype)


def to_tensor(constant: Constant) -> Any:
    """Returns constant data as a TVM tensor; a transposed or mapped array is copied just once."""
    dtype = tvm_dtype(constant.dtype)
    tensor = tvm.runtime.empty(constant.shape, dtype)
    view = np.from_dlpack(tensor)
    if view.flags.writeable:
        fill(view, constant.numpy())
        return tensor
    array = np.empty(view.shape, view.dtype)  # NumPy 1 takes no memory of others to write into
    fill(array, constant.numpy())
    return tvm.runtime.tensor(array)


def number(array: NDArray[Any]) -> Expr:
    """Returns a small constant (a scale, a zero point, indices)."""
    return relax.const(np.ascontiguousarray(array).reshape(array.shape), str(array.dtype))


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
    lines = [line.strip() for line in str(error).splitlines()]
    stated = [line.removeprefix("why").strip() for line in lines if line.startswith("why ")]
    return next(iter([*stated, *lines]), type(error).__name__)
