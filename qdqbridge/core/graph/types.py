"""Types of values: plain tensors, and quantized ones with the parameters of their integers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import UnsupportedQuantization

# ---- uint8 as int8 or back, zero points shifted by 128: the same real numbers, bit for bit -------
# So for any type that has one of the other signedness and the same width.

_PAIRS = (
    (DType.UINT2, DType.INT2),
    (DType.UINT4, DType.INT4),
    (DType.UINT8, DType.INT8),
    (DType.UINT16, DType.INT16),
)
_OTHER = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


def shiftable(params: QuantParams) -> bool:
    """True where the storage type has a twin of the other signedness."""
    return params.storage_dtype in _OTHER


def shifted_params(params: QuantParams) -> QuantParams:
    """Returns parameters of the same real values in the type of the other signedness."""
    target = _OTHER[params.storage_dtype]
    shift = target.qmin - params.storage_dtype.qmin
    return replace(
        params,
        storage_dtype=target,
        zero_point=params.zero_point + shift,
        qmin=params.qmin + shift,
        qmax=params.qmax + shift,
    )


def shifted_constant(constant: Constant) -> Constant:
    """Returns stored integers in the type of the other signedness, shifted when looked at."""
    return constant.other_signedness(_OTHER[constant.dtype])


@dataclass(frozen=True, slots=True, eq=False)
class QuantParams:
    """``real = (stored - zero_point) * scale``, per tensor, per axis or per block.

    Invariants (checked on creation):

    * ``scale`` is a rank-0 array (per tensor), a rank-1 array of ``shape[axis]`` entries (per
      axis), or an array of the value's rank whose extent along ``axis`` counts blocks of
      ``block_size`` elements (blocked).
    * ``scale`` has the dtype ``expressed_dtype`` and its bits are those of the file; only powers of
      two stored as float8_e8m0fnu (the microscaling formats) keep that type instead.
    * ``zero_point`` has the shape of ``scale``; int32 for integer storage.
    * ``qmin <= qmax`` lie within the storage type; the storage may be wider than the range. An
      empty range (the default) stands for all that the storage type holds.
    * ``saturate`` is False where a float8 storage takes values beyond its largest finite one as
      NaN or infinity (ONNX's attribute of QuantizeLinear); True for every other storage.
    * equality and hash are by value, bit for bit.
    * arrays are read-only. Large scales that nobody can write to are the given ones, a view on a
      mapped file for example; a large zero point that is the same everywhere is one element.

    Vocabulary as in MLIR's ``quant`` dialect.
    """

    storage_dtype: DType
    scale: NDArray[np.generic]
    zero_point: NDArray[np.int32]
    axis: int | None = None
    block_size: int | None = None
    qmin: int = 0
    qmax: int = -1
    expressed_dtype: DType = DType.FLOAT32
    saturate: bool = True
    _key: tuple[object, ...] = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        power = np.asarray(self.scale).dtype == DType.FLOAT8_E8M0.numpy
        dtype = DType.FLOAT8_E8M0 if power else self.expressed_dtype
        scale = _kept(np.asarray(self.scale), dtype.numpy)
        zero_point = _broadcast_zero_point(np.asarray(self.zero_point), scale.shape)
        set_(self, "scale", scale)
        set_(self, "zero_point", zero_point)
        if self.qmax < self.qmin:
            whole = self.storage_dtype.is_integer
            set_(self, "qmin", self.storage_dtype.qmin if whole else 0)
            set_(self, "qmax", self.storage_dtype.qmax if whole else 0)
        self._check_range()
        if (self.axis is None) != (scale.ndim == 0):
            raise UnsupportedQuantization(
                "the shape of the scale does not agree with the axis",
                why=f"scale has shape {scale.shape} and axis is {self.axis}",
                fix="give a scalar scale for per-tensor, or an axis for per-channel parameters",
            )
        key = (
            self.storage_dtype, self.expressed_dtype, dtype, self.saturate, self.axis,
            self.block_size, self.qmin, self.qmax, scale.shape,
        )  # fmt: skip
        set_(self, "_key", key)
        set_(self, "_hash", hash((key, _beginning(scale), _beginning(zero_point))))

    def _check_range(self) -> None:
        kind = self.storage_dtype
        if kind.is_integer and not kind.qmin <= self.qmin <= self.qmax <= kind.qmax:
            raise UnsupportedQuantization(
                "the range of stored values does not fit their type",
                why=f"{self.qmin} to {self.qmax} is not within {kind.label}'s "
                f"{kind.qmin} to {kind.qmax}",
                fix="give a range within the type, or a wider type",
            )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, QuantParams)
            and self._hash == other._hash
            and self._key == other._key
            and _same_bits(self.scale, other.scale)
            and _same_bits(self.zero_point, other.zero_point)
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def per_tensor(self) -> bool:
        """One scale and one zero point for the whole tensor."""
        return self.axis is None

    @property
    def blocked(self) -> bool:
        """Scales vary along ``axis`` every ``block_size`` elements."""
        return self.block_size is not None

    @property
    def scale_dtype(self) -> DType:
        """The element type in which the scale is stored: ``expressed_dtype`` or float8_e8m0fnu."""
        return DType.of(self.scale.dtype)

    @property
    def full_range(self) -> bool:
        """True where ``qmin``/``qmax`` are those of the storage type."""
        if not self.storage_dtype.is_integer:
            return True
        return (self.qmin, self.qmax) == (self.storage_dtype.qmin, self.storage_dtype.qmax)

    @property
    def round_trips(self) -> bool:
        """True where ``quantize(dequantize(q))`` is q: the expressed type tells the codes apart."""
        return self.round_trips_in(self.expressed_dtype)

    def round_trips_in(self, real: DType) -> bool:
        """True where real numbers of a float type tell the codes apart."""
        return self.storage_dtype.bits <= (16 if real.bits >= DType.FLOAT32.bits else 8)

    @property
    def symmetric(self) -> bool:
        """True where every zero point is 0."""
        return not self.zero_point.any()

    @property
    def real_range(self) -> tuple[float, float]:
        """The real numbers of the least and the largest code, of one scale and zero point."""
        scale, zero = float(self.scale.reshape(())), int(self.zero_point.reshape(()))
        return (self.qmin - zero) * scale, (self.qmax - zero) * scale

    def with_range(self, qmin: int, qmax: int) -> QuantParams:
        """Returns the same mapping with another range of stored values."""
        return replace(self, qmin=qmin, qmax=qmax)

    def widened(self) -> QuantParams:
        """Returns the same mapping over the whole range of the storage type."""
        if self.full_range and self.saturate:
            return self
        return replace(self, qmin=0, qmax=-1, saturate=True)

    def unscaled(self) -> QuantParams:
        """Returns what quantizes numbers that are divided by the scale already."""
        ones = np.ones(self.scale.shape, np.float32)
        return replace(self, scale=ones, expressed_dtype=DType.FLOAT32)

    def same_mapping(self, other: QuantParams) -> bool:
        """True where both map every stored value to the same real one (ranges may differ)."""
        return self.widened() == other.widened()

    def with_axis(self, axis: int | None) -> QuantParams:
        """Returns the same parameters along another axis (after a transposition)."""
        return self if axis == self.axis else replace(self, axis=axis)

    def aligned(self, array: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Returns ``array`` (a scale or zero point) shaped to broadcast against ``shape``.

        Args:
            array: ``self.scale``, ``self.zero_point`` or anything of their shape.
            shape: The shape of the tensor that these parameters describe.
        """
        if self.axis is None:
            return array
        if self.block_size is not None:
            repeated = np.repeat(array, self.block_size, axis=self.axis)
            return repeated.take(range(shape[self.axis]), axis=self.axis)
        return array.reshape([-1 if i == self.axis else 1 for i in range(len(shape))])


_LARGE = 1 << 16
"""Bytes from which an array is not copied where that can be helped."""

_LOOKED_AT = 64
"""Elements of an array that are hashed."""


def _kept(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns a read-only array: a copy in C order, unless it is a large one without gaps."""
    fits = array.dtype == dtype and array.flags.forc and not array.flags.writeable
    # Read-only and without gaps it cannot change; a copy would double what large models take.
    if fits and array.nbytes >= _LARGE:
        return array
    copy = np.array(array, dtype=dtype, order="C")
    copy.flags.writeable = False
    return copy


def _broadcast_zero_point(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Returns a zero point as read-only int32 of a shape; a large equal one takes no memory."""
    if 4 * math.prod(shape) < _LARGE:
        return _kept(np.broadcast_to(array, shape), np.dtype(np.int32))
    first = array[(slice(0, 1),) * array.ndim]
    if array.size > 1 and any(array.strides) and not (array == first).all():
        return _kept(np.broadcast_to(array, shape), np.dtype(np.int32))
    return np.broadcast_to(first.astype(np.int32).reshape(()), shape)


def _beginning(array: NDArray[Any]) -> bytes:
    """Returns what is hashed of an array: all of a small one."""
    # Hashing everything would cost more than it saves: equality looks at all bits.
    line = array[(0,) * (array.ndim - 1)] if array.size > _LOOKED_AT and array.ndim else array
    return line[:_LOOKED_AT].tobytes() if line.ndim == 1 else line.tobytes()


def _same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """True for arrays of one type and shape whose elements are the same, bit for bit."""
    if a is b or a.__array_interface__ == b.__array_interface__:
        return True
    if a.nbytes < _LARGE:
        return a.tobytes() == b.tobytes()
    # As floats NaN would differ from itself, and -0 be 0.
    if a.dtype.kind not in "iu":
        kind = np.dtype(f"u{a.dtype.itemsize}")
        a, b = a.view(kind), b.view(kind)
    return np.array_equal(a, b)


def per_tensor(
    storage_dtype: DType,
    scale: float | np.generic,
    zero_point: int = 0,
    *,
    qmin: int = 0,
    qmax: int = -1,
) -> QuantParams:
    """Returns per-tensor parameters with a float32 scale."""
    return QuantParams(
        storage_dtype,
        np.asarray(scale, np.float32),
        np.asarray(zero_point, np.int32),
        qmin=qmin,
        qmax=qmax,
    )


def sound_scales(scale: NDArray[Any], storage: DType) -> NDArray[np.bool_]:
    """Returns which scales stand for real numbers that float32 has.

    They are finite, not 0, not subnormal, and the largest stored value times them is finite.
    """
    wide = np.abs(scale.astype(np.float64))
    span = max(abs(storage.qmin), storage.qmax) if storage.is_integer else storage.largest
    span = 1 if storage.bits >= 32 else span
    float32 = np.finfo(np.float32)
    with np.errstate(invalid="ignore"):
        return (wide >= float(float32.tiny)) & (wide * span <= float(float32.max))


def params_of_interval(interval: tuple[float, float], storage_dtype: DType) -> QuantParams:
    """Returns the parameters under which the codes of a type fill an interval, but for its end."""
    low, high = interval
    scale = (high - low) / (1 << storage_dtype.bits)
    return per_tensor(storage_dtype, scale, int(storage_dtype.qmin) - round(low / scale))


# ---- Types of values: plain tensors, and quantized tensors that carry their parameters -----------


Dim: TypeAlias = "int | str"
"""A known extent, or the name of a symbolic one (``batch``)."""

Shape: TypeAlias = "tuple[Dim, ...] | None"
"""Extents of a tensor; None where even the rank is unknown."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A plain tensor: its numbers are what they say."""

    dtype: DType
    shape: Shape

    def with_shape(self, shape: Shape) -> TensorType:
        """Returns this type for another shape."""
        return TensorType(self.dtype, shape)

    def __str__(self) -> str:
        return f"{self.dtype}{_shape_text(self.shape)}"


@dataclass(frozen=True, slots=True)
class NestedType(TensorType):
    """No tensor, but a sequence of tensors, or an optional of a tensor or a sequence.

    Operators without a row make and take such values; they have no shape.

    Attributes:
        layers: ``sequence`` and ``optional``, the outermost first.
    """

    layers: tuple[str, ...] = ()

    def with_shape(self, shape: Shape) -> NestedType:
        """Returns this type: what is not a tensor has no shape."""
        del shape
        return self

    def __str__(self) -> str:
        text = str(self.dtype)
        for layer in reversed(self.layers):
            text = f"{layer}<{text}>"
        return text


@dataclass(frozen=True, slots=True)
class QuantType:
    """A quantized tensor: stored integers that stand for real numbers by ``params``."""

    params: QuantParams
    shape: Shape

    @property
    def dtype(self) -> DType:
        """The storage type."""
        return self.params.storage_dtype

    def with_shape(self, shape: Shape) -> QuantType:
        """Returns this type for another shape."""
        return QuantType(self.params, shape)

    def with_params(self, params: QuantParams) -> QuantType:
        """Returns this type with other parameters."""
        return QuantType(params, self.shape)

    def misfit(self) -> str:
        """Returns in words how the scales do not fit the shape; empty where they do."""
        params, shape = self.params, self.shape
        if shape is None or params.axis is None:
            return ""
        if not 0 <= params.axis < len(shape):
            return f"axis {params.axis} of {len(shape)}"
        have = list(params.scale.shape)
        want: list[Dim] = list(shape) if params.blocked else [shape[params.axis]]
        along = params.axis if params.blocked else 0
        if params.block_size is not None:
            dim = want[along]
            want[along] = -(-dim // params.block_size) if isinstance(dim, int) else dim
        fits = len(have) == len(want) and all(
            isinstance(b, str) or a == b for a, b in zip(have, want, strict=True)
        )
        return "" if fits else f"scales of shape {have}, {want} are expected"

    def __str__(self) -> str:
        params = self.params
        if params.per_tensor:
            described = f"scale={float(params.scale):.9g} zero_point={int(params.zero_point)}"
        else:
            described = f"{params.scale.size} scales axis={params.axis}"
        return f"{self.dtype}{_shape_text(self.shape)} {described}"


ValueType: TypeAlias = "TensorType | QuantType"


def _shape_text(shape: Shape) -> str:
    return "[*]" if shape is None else f"[{','.join(map(str, shape))}]"


def static_shape(shape: Shape) -> tuple[int, ...] | None:
    """Returns the shape where every extent is a known number, else None."""
    if shape is None or any(isinstance(dim, str) for dim in shape):
        return None
    return tuple(dim for dim in shape if isinstance(dim, int))
