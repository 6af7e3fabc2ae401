"""Types of values: plain tensors, and quantized tensors that carry their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.quantization import QuantParams

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
