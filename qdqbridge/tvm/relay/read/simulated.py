"""TVM's own auto-quantization after calibration: ``simulated_quantize`` as Q and DQ.

``simulated_quantize(x, dom_scale, clip_min, clip_max; kind, sign, rounding)`` is
``round(clip(x / dom_scale, clip_min, clip_max)) * dom_scale`` in float32 (TVM,
``python/tvm/relay/quantize/_annotation.py``), halves rounded away from zero. Constants are rounded
here as TVM rounds them; activations become Q and DQ, whose halves go to even.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, per_tensor
from qdqbridge.core.ops.attributes import IN_FLOAT32, ClipAttrs
from qdqbridge.tvm.qnn.read.reader import CallReader

NAME = "relay.op.annotation.simulated_quantize"
_IDENTITY, _WEIGHT = 0, 2
_STORED = (DType.INT8, DType.INT16)

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Grid:
    """What a ``simulated_quantize`` rounds to: ``k * scale`` for ``low <= k <= high``."""

    scale: np.float32
    low: int
    high: int

    @property
    def storage(self) -> DType | None:
        """The smallest integer type that files can hold for it; None where there is none."""
        return next((t for t in _STORED if t.qmin <= self.low and self.high <= t.qmax), None)

    def params(self, storage: DType) -> QuantParams:
        """Returns it as quantization parameters."""
        return per_tensor(storage, self.scale, qmin=self.low, qmax=self.high)

    def integers(self, x: Floats) -> NDArray[np.int32]:
        """Returns constants as TVM rounds them: float32 division, halves away from 0."""
        ratio = np.clip(x / self.scale, np.float32(self.low), np.float32(self.high))
        whole = np.trunc(ratio)
        away = np.abs(ratio - whole) >= np.float32(0.5)
        return (whole + np.where(away, np.sign(ratio), np.float32(0))).astype(np.int32)


def simulated_quantize(reader: CallReader) -> Value:
    """``simulated_quantize(x)`` -> ``DQ(Q(x))`` over the narrow range, a constant -> ``DQ(const)``.

    More than 16 bits (TVM's default for additions) cannot be stored in a file and are finer than
    float32 resolves near the threshold: what is left of them is the clamp.
    """
    x = reader.real(0)
    if reader.integer("kind") == _IDENTITY:
        return x
    grid = _grid(reader)
    storage, data = grid.storage, reader.array(0)
    if data is not None and reader.integer("kind") == _WEIGHT:
        return _dequantized_constant(reader, grid, np.asarray(data, np.float32))
    if storage is None:
        reader.note(
            "simulated-bits",
            f"its {grid.high + 1:.0f} steps do not fit 16 bits: it is read as a clamp",
        )
        bounds = (
            float(np.float32(grid.low) * grid.scale),
            float(np.float32(grid.high) * grid.scale),
        )
        return reader.emit("Clip", [x], ClipAttrs(*bounds))
    type_ = QuantType(grid.params(storage), x.type.shape)
    stored = reader.reading.node("quantize", IN_FLOAT32, [x], type_, reader.call)
    counter: list[Value] = reader.reading.memory.setdefault((NAME,), [])
    counter.append(stored)
    stored.name = f"simulated_quantize_{len(counter)}"
    return reader.reading.node(
        "dequantize", NO_ATTRIBUTES, [stored], TensorType(x.type.dtype, x.type.shape)
    )


def _dequantized_constant(reader: CallReader, grid: Grid, data: Floats) -> Value:
    """Returns the dequantized constant: a weight in 8 or 16 bits, a bias as int32 integers.

    A vector of channels is a bias; int32 is the type in which Q/DQ files hold one.
    """
    bias = data.ndim <= 1 or all(extent == 1 for extent in data.shape[1:])
    storage = DType.INT32 if bias else grid.storage or DType.INT32
    params = per_tensor(storage, grid.scale)
    integers = Constant.of(grid.integers(data).astype(storage.numpy))
    value = Value(QuantType(params, integers.shape), constant=integers)
    return reader.reading.node(
        "dequantize", NO_ATTRIBUTES, [value], TensorType(DType.FLOAT32, integers.shape), reader.call
    )


def _grid(reader: CallReader) -> Grid:
    if not reader.flag("sign", default=True) or reader.text("rounding", "round") != "round":
        raise reader.refusal("it is unsigned or rounds in another way than 'round'")
    numbers = [reader.array(index) for index in (1, 2, 3)]
    if any(number is None or number.size != 1 for number in numbers):
        raise reader.refusal("its scale and bounds are no numbers: it is not calibrated yet")
    scale, low, high = (float(np.asarray(number).reshape(())) for number in numbers)
    if low != round(low) or high != round(high) or low > high or not scale > 0:
        raise reader.refusal(f"scale {scale}, bounds {low} and {high} make no grid of integers")
    return Grid(np.float32(scale), int(low), int(high))
