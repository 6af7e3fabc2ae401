"""QuantizeLinear and DequantizeLinear of every opset and domain, as quantization parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Note, Value
from qdqbridge.core.graph.types import QuantParams, Shape, sound_scales
from qdqbridge.errors import (
    InvalidModelError,
    ScalesError,
    UnsupportedQuantization,
    UnusableScaleError,
)
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS
from qdqbridge.onnx_io.tensors import dtype_of

SCALE_DTYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E8M0)
STORAGE_DTYPES = (
    DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT4, DType.UINT4,
    DType.INT2, DType.UINT2, DType.INT32,
    DType.FLOAT8_E4M3FN, DType.FLOAT8_E4M3FNUZ, DType.FLOAT8_E5M2, DType.FLOAT8_E5M2FNUZ,
    DType.FLOAT6_E2M3, DType.FLOAT6_E3M2, DType.FLOAT4_E2M1,
)  # fmt: skip

SINCE = {
    DType.INT16: 21, DType.UINT16: 21, DType.INT4: 21, DType.UINT4: 21,
    DType.INT2: 25, DType.UINT2: 25,
    DType.FLOAT8_E4M3FN: 19, DType.FLOAT8_E4M3FNUZ: 19,
    DType.FLOAT8_E5M2: 19, DType.FLOAT8_E5M2FNUZ: 19, DType.FLOAT4_E2M1: 23,
    DType.FLOAT8_E8M0: 24, DType.FLOAT6_E2M3: 28, DType.FLOAT6_E3M2: 28,
}  # fmt: skip
"""The opset that brought an element type to QuantizeLinear and DequantizeLinear."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a Q or DQ node says about its parameters, before it is checked.

    Attributes:
        where: File, node and tensor, for messages.
        storage: The integer (or 8-bit float) side's element type.
        scale: As the file holds it, any rank.
        zero_point: As the file holds it, or None where it is left out.
        axis: The attribute, possibly negative.
        block_size: The attribute, 0 where absent.
        shape: Shape of the data, as far as known.
        expressed: Element type of the real side; that of the scale where the node does not say.
        saturate: The attribute of QuantizeLinear.
        precision: The type in which a QuantizeLinear divides, None for float32.
    """

    where: str
    storage: DType
    scale: NDArray[Any]
    zero_point: NDArray[Any] | None
    axis: int
    block_size: int
    shape: Shape
    expressed: DType | None = None
    saturate: bool = True
    precision: DType | None = None

    @property
    def expressed_dtype(self) -> DType:
        """The element type of the real values whose quantization this is."""
        own = DType.of(self.scale.dtype)
        return (self.expressed or DType.FLOAT32) if own is DType.FLOAT8_E8M0 else own

    @property
    def needs_rank(self) -> bool:
        """True where only the rank of the data says what its axis or blocks are, and is unknown."""
        if self.shape is not None or self.scale.size <= 1:
            return False
        return self.axis < 0 or self.scale.ndim > 1

    def key(self) -> tuple[object, ...]:
        """Returns what :meth:`params` depends on: equal keys have equal parameters."""
        scale, zero_point = self.scale, self.zero_point
        stored = None if zero_point is None else (zero_point.dtype, zero_point.tobytes())
        shapes = (scale.shape, None if zero_point is None else zero_point.shape, self.shape)
        # By bits: equal numbers of another type, or -0 for 0, would be other parameters.
        kind = (self.storage, self.expressed, self.saturate, self.axis, self.block_size)
        return (scale.dtype, scale.tobytes(), stored, shapes, kind)

    def params(self) -> QuantParams:
        """Returns the checked parameters.

        Raises:
            ScalesError: Shapes, dtypes or axis contradict each other.
            UnsupportedQuantization: Scales that stand for no finite real numbers.
        """
        self._check_dtypes()
        scale = self._squeezed(self.scale)
        zero_point = np.zeros(scale.shape, np.int32)
        if self.zero_point is not None:
            given = self._squeezed(self.zero_point)
            if given.ndim and given.shape != scale.shape:
                self._granularity(scale)  # a scale of no use is the first thing to say
                raise self._invalid(
                    f"the zero point has shape {self.zero_point.shape} and the scale "
                    f"{self.scale.shape}",
                    "give both the same shape",
                )
            if self.storage.is_integer:
                zero_point = np.broadcast_to(given.astype(np.int32), scale.shape)
            # The numbers of such a type are not evenly spaced: to be moved by one means nothing.
            elif given.astype(np.float32).any():
                raise self._invalid(
                    "the zero point of a floating-point storage must be 0", "set it to 0"
                )
        axis, block_size = self._granularity(scale)
        self._check_scale(scale)
        return QuantParams(
            self.storage,
            scale,
            zero_point,
            axis=axis,
            block_size=block_size,
            expressed_dtype=self.expressed_dtype,
            saturate=self.saturate or self.storage.is_integer,
        )

    def _squeezed(self, array: NDArray[Any]) -> NDArray[Any]:
        # Producers write one-element parameters with any rank (idioms A2, A3).
        return array.reshape(()) if array.size == 1 else array

    def _check_dtypes(self) -> None:
        if self.storage not in STORAGE_DTYPES:
            raise UnsupportedQuantization(
                f"quantization to {self.storage} is not supported",
                where=self.where,
                why=f"supported storage types: {', '.join(map(str, STORAGE_DTYPES))}",
                fix="export with one of them",
            )
        if DType.of(self.scale.dtype) not in SCALE_DTYPES:
            raise self._invalid(
                f"the scale is {self.scale.dtype}",
                "a scale is float32, float16, bfloat16 or float8_e8m0fnu",
            )
        if self.zero_point is not None and DType.of(self.zero_point.dtype) is not self.storage:
            raise self._invalid(
                f"the zero point is {self.zero_point.dtype} and the stored data {self.storage}",
                "give the zero point the element type of the quantized data",
            )
        if self.scale.size == 0:
            raise self._invalid("the scale has no elements", "give one scale, or one per channel")
        if self.block_size < 0:
            raise self._invalid(
                f"block_size is {self.block_size}", "give a positive block_size, or leave it out"
            )

    def _granularity(self, scale: NDArray[Any]) -> tuple[int | None, int | None]:
        if scale.ndim == 0:
            return None, None
        # Without a rank blocks cannot be told from channels: one axis is all that is known then.
        if self.shape is None:
            return self.axis, None
        rank = len(self.shape)
        axis = self.axis + rank if self.axis < 0 else self.axis
        if not 0 <= axis < rank:
            raise self._invalid(
                f"axis {self.axis} is outside of the data's {rank} axes",
                f"give an axis from {-rank} to {rank - 1}",
            )
        if self.block_size or (scale.ndim == rank and scale.ndim > 1):
            return self._blocks(scale, axis)
        if scale.ndim > 1:
            raise self._invalid(
                f"the scale has shape {scale.shape} without a block_size",
                "give a scalar, one scale per channel, or block_size with a scale of full rank",
            )
        extent = self._extents()[axis]
        if isinstance(extent, int) and extent != len(scale):
            raise self._invalid(
                f"scale has shape {scale.shape} but axis {axis} of the data has length {extent}",
                "set the axis that has one scale per index, or export with per-tensor parameters",
            )
        return axis, None

    def _extents(self) -> tuple[int | str, ...]:
        assert self.shape is not None
        return self.shape

    def _blocks(self, scale: NDArray[Any], axis: int) -> tuple[int, int]:
        extents = self._extents()
        if scale.ndim != len(extents):
            raise self._invalid(
                f"blocked scales have rank {scale.ndim}, the data rank {len(extents)}",
                "give the scale the rank of the data",
            )
        if not self.block_size:  # idiom B12: the attribute is left out
            differing = [i for i, d in enumerate(extents) if d != scale.shape[i]]
            axis = differing[0] if len(differing) == 1 else axis
        for index, (extent, count) in enumerate(zip(extents, scale.shape, strict=True)):
            if not isinstance(extent, int):
                raise self._invalid(
                    f"axis {index} has an unknown extent", "blocked data needs static shapes"
                )
            size = 1
            if index == axis:
                size = self.block_size or max(1, -(-extent // max(count, 1)))
            if count == 0 or -(-extent // size) != count:
                raise self._invalid(
                    f"scale has shape {scale.shape}, which does not divide data of shape "
                    f"{extents} into blocks of {self.block_size or size} along axis {axis}",
                    "block_size must be between ceil(extent / blocks) and its largest fit",
                )
        size = self.block_size or -(-int(extents[axis]) // scale.shape[axis])
        return axis, size

    def _check_scale(self, scale: NDArray[Any]) -> None:
        sound = sound_scales(scale, self.storage)
        if not sound.all():
            bad = scale.reshape(-1)[np.argmin(sound.reshape(-1))]
            raise UnusableScaleError(
                "a scale stands for no usable real numbers",
                where=self.where,
                why=f"it is {float(bad):.6g}: scales must be finite, not 0, not subnormal, and the "
                "largest stored value must have a finite float32 real value",
                fix="calibrate this tensor again, or replace the scale by a small positive number",
            )

    def _invalid(self, why: str, fix: str) -> ScalesError:
        return ScalesError(
            "cannot read the quantization parameters", where=self.where, why=why, fix=fix
        )


# ---- What a QuantizeLinear or DequantizeLinear node says, with its parameters looked up ----------


HALVES = (DType.FLOAT16, DType.BFLOAT16)
PRECISION = 23
"""The opset whose QuantizeLinear says in which type it divides."""


def encoding_of(view: NodeView, data: Value, storage: DType | None) -> Encoding | None:
    """Returns what the node says about its parameters; None where they are run-time values.

    Args:
        view: The node.
        data: What it reads.
        storage: The stored element type of a DequantizeLinear; None where the node decides.

    Raises:
        InvalidModelError: The node contradicts itself or its opset.
    """
    where = f"{view.file}, {view.describe()}"
    scale = _parameter(view, 1)
    if scale is None:
        return None
    zero_point = None
    if view.optional(2) is not None:
        zero_point = _parameter(view, 2)
        if zero_point is None:
            return None
    if storage is None:
        storage = _storage(view, zero_point, where)
    _check_since(view, storage, where)
    _check_since(view, scale.dtype, where)
    return Encoding(
        where,
        storage,
        scale.numpy(),
        None if zero_point is None else zero_point.numpy(),
        view.int_("axis", 1),
        view.int_("block_size", 0),
        data.type.shape,
        _expressed(view, data, where),
        bool(view.int_("saturate", 1)),
        division_of(view, scale.dtype) if view.proto.op_type == "QuantizeLinear" else None,
    )


def _check_since(view: NodeView, dtype: DType, where: str) -> None:
    since = SINCE.get(dtype, 0)
    if view.proto.domain in ONNX_DOMAINS and view.opset < since:
        raise InvalidModelError(
            f"{dtype} does not exist in opset {view.opset}",
            where=where,
            why=f"ONNX has it since opset {since}",
            fix=f"declare opset {since} or newer, or use the domain com.microsoft",
        )


def division_of(view: NodeView, scale: DType) -> DType | None:
    """Returns the type in which a QuantizeLinear divides; None for float32.

    Before opset 23 no sentence says it of halves: it is float32 here, as in onnxruntime. Since then
    it is ``precision``, or else the type of the scale.

    Raises:
        InvalidModelError: ``precision`` names another type than those of scales.
    """
    declared, dtype = view.int_("precision", 0), scale
    if declared:
        dtype = dtype_of(declared, f"{view.file}, {view.describe()}")
        if dtype not in (DType.FLOAT32, *HALVES):
            raise view.fault(
                f"precision is {dtype}", why="a division is in float32, float16 or bfloat16"
            )
    elif view.opset < PRECISION or view.proto.domain not in ONNX_DOMAINS:
        return None
    return dtype if dtype in HALVES else None


def _expressed(view: NodeView, data: Value, where: str) -> DType | None:
    """Returns the real side's element type where the node itself says it."""
    if view.proto.op_type == "QuantizeLinear":
        return data.type.dtype if data.type.dtype.is_float else None
    declared = view.int_("output_dtype", 0)
    return dtype_of(declared, where) if declared else None


def _storage(view: NodeView, zero_point: Constant | None, where: str) -> DType:
    declared = view.int_("output_dtype", 0)
    dtype = dtype_of(declared, where) if declared else None
    if zero_point is None:
        return dtype or DType.UINT8
    if dtype is not None and dtype is not zero_point.dtype:
        raise InvalidModelError(
            "output_dtype and the zero point disagree",
            where=where,
            why=f"output_dtype is {dtype}, the zero point is {zero_point.dtype}",
            fix="drop output_dtype, or give the zero point that element type",
        )
    return zero_point.dtype


def _parameter(view: NodeView, index: int) -> Constant | None:
    return view.folding.constant(view.operand(index))


def params_of(
    encoding: Encoding, data: Value, known: dict[tuple[object, ...], QuantParams]
) -> QuantParams:
    """Returns the checked parameters of ``data``.

    Args:
        encoding: What the node says.
        data: What it quantizes or dequantizes.
        known: Parameters that were checked before, by :meth:`Encoding.key`; grows.

    Raises:
        InvalidModelError: As :meth:`Encoding.params`.
        UnsupportedQuantization: As :meth:`Encoding.params`, or a negative scale on an activation.
    """
    key = encoding.key()
    if key not in known:
        known[key] = encoding.params()
    params = known[key]
    if data.constant is None and (params.scale.astype(np.float32) < 0).any():
        raise UnsupportedQuantization(
            "a negative scale on an activation",
            where=encoding.where,
            why=f"the scale is {float(params.scale.min()):.6g}",
            fix="negate the scale and mirror the zero point in the exporter",
        )
    return params


# ---- qdq remarks ---------------------------------------------------------------------------------
# What the parameters of a Q or DQ node say that somebody should know, though they can be read.


_HUGE = 1e30
_TINY = 2.0**-24
"""The smallest float16 number: what producers write where a range is empty (idiom A28)."""


def remarks(view: NodeView, encoding: Encoding, params: QuantParams, data: Value) -> Iterator[Note]:
    """Yields a note for each oddity; its culprits are the names of data and scale.

    Args:
        view: The node.
        encoding: What it says.
        params: What that means.
        data: What the node reads.
    """
    culprits = (data.name, view.operand(1).name)
    node = view.proto.name or view.proto.output[0]
    for rule, reason in (*_about_variant(view, encoding, params), *_about_scale(encoding, params)):
        yield Note(rule, node, reason, culprits)


def _about_variant(
    view: NodeView, encoding: Encoding, params: QuantParams
) -> Iterator[tuple[str, str]]:
    if params.blocked and not encoding.block_size:
        yield (
            "inferred-block-size",
            f"block_size is left out; the shape of the scale, {encoding.scale.shape}, makes it "
            f"{params.block_size}",
        )
    half = encoding.scale.dtype != np.float32
    if half and view.opset < 19 and view.proto.domain in ONNX_DOMAINS:
        yield (
            "scale-before-its-opset",
            f"its scale is {encoding.scale.dtype}, which ONNX has since opset 19, not {view.opset}",
        )
    if params.storage_dtype is DType.INT32 and not params.symmetric:
        yield (
            "bias-zero-point",
            "int32 data has a zero point, which ONNX wants to be 0; it is subtracted",
        )


def _about_scale(encoding: Encoding, params: QuantParams) -> Iterator[tuple[str, str]]:
    scale = np.abs(params.scale.astype(np.float64)).reshape(-1)
    if (scale > _HUGE).any():
        yield (
            "huge-scale",
            f"a scale is {scale.max():.3g}: a mask of -inf or -3.4e38 was calibrated as data, and "
            "nothing else of the tensor is left",
        )
    small = int((scale <= _TINY).sum())
    if small and params.storage_dtype.bits <= 16:
        which = "its scale is" if scale.size == 1 else f"{small} of its {scale.size} scales are"
        yield (
            "degenerate-scale",
            f"{which} {scale.min():.3g}, as producers write where they saw no values but 0",
        )
    if (params.scale.astype(np.float32) < 0).any():
        yield "negative-scale", "a scale is negative; the integers are mirrored where they fit"
