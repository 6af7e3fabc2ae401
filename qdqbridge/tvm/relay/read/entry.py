"""The ways in: a Relay module as a canonical graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, per_tensor
from qdqbridge.core.ops.attributes import IN_FLOAT32, ClipAttrs
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.rewrite import Rule, run
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read import resize
from qdqbridge.tvm.qnn.read.reader import CallReader, Read, rows_of
from qdqbridge.tvm.qnn.read.reading import Row
from qdqbridge.tvm.qnn.read.rules import WHOLE
from qdqbridge.tvm.qnn.read.transposes import cancel
from qdqbridge.tvm.relay.read import data_movement, elementwise, stored
from qdqbridge.tvm.relay.read.module import read_module

# ---- TVM's own auto-quantization after calibration: ``simulated_quantize`` as Q and DQ -----------
# ``simulated_quantize(x, dom_scale, clip_min, clip_max; kind, sign, rounding)`` is ``round(clip(x /
# dom_scale, clip_min, clip_max)) * dom_scale`` in float32 (TVM,
# ``python/tvm/relay/quantize/_annotation.py``), halves rounded away from zero. Constants are
# rounded here as TVM rounds them; activations become Q and DQ, whose halves go to even.


NAME = "relay.op.annotation.simulated_quantize"
_IDENTITY, _WEIGHT = 0, 2
_SIMULATED_STORED = (DType.INT8, DType.INT16)

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
        return next(
            (t for t in _SIMULATED_STORED if t.qmin <= self.low and self.high <= t.qmax), None
        )

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


# ---- what each Relay operator becomes: the rows that hosts share, and those of Relay's own -------

_OWN: Mapping[str, Callable[[CallReader], Read]] = {
    **elementwise.DYNAMIC_ROWS,
    **elementwise.ROWS,
    **data_movement.ROWS,
    **elementwise.REDUCTIONS_ROWS,
    NAME: simulated_quantize,
}
_PLAIN: Mapping[str, Row] = {**read.ROWS, **resize.ROWS, **resize.HOST_RESIZE, **rows_of(_OWN)}
_FLOAT: Mapping[str, Row] = {
    **_PLAIN,
    "add": data_movement.channels_last_bias(_PLAIN["add"]),
    **{
        name: data_movement.channels_last_pool(_PLAIN[name]) for name in ("mean", "qnn.mean", "max")
    },
}
_STORED: Mapping[str, Row] = {**_FLOAT, **stored.rows(_FLOAT)}
ROWS: Mapping[str, Row] = MappingProxyType(
    {**_STORED, "cast": data_movement.channels_last_cast(_STORED["cast"])}
)
"""One row per operator, by Relay's name."""
CALLS: tuple[Rule, ...] = (data_movement.needless_bias, *stored.CLAMPED, *read.CALLS)
"""The rules of calls that decide types, those of Relay's own first."""


def from_relay(mod: Any, params: Mapping[str, Any] | None = None) -> Graph:
    """Reads a Relay module.

    That may be what ``relay.emit`` wrote in any variant and layout, a float or QNN module of
    Relay's importers (Q/DQ ones of the ONNX importer, integer ones of the TFLite, PyTorch and
    MXNet importers), or one behind ``FakeQuantizationToInteger``. Parameters are compared with
    those of neighbours bit for bit; where TVM truncates or rounds between the parts of one
    operator (averages, interpolation), the graph rounds its real result once.

    Args:
        mod: An ``IRModule`` whose ``main`` is one flow of operators, or a function.
        params: Values of parameters of ``main`` by name; the others are the graph's inputs.

    Returns:
        The canonical graph. Its inputs are named as the function's parameters; its outputs as the
        function's attribute ``output_names`` says, else ``output``, ``output_1`` and so on.

    Raises:
        UnsupportedModelError: Operators without a counterpart, or control flow; lists every one.
        InvalidModelError: An operator's operands break its rules.
    """
    return canonicalize(_raw(mod, params))


def from_simulated(mod: Any, params: Mapping[str, Any] | None = None) -> Graph:
    """Reads a module that ``relay.quantize`` has annotated and calibrated.

    That is the module before constants are folded, as
    :func:`~qdqbridge.tvm.relay.read.export.calibrated` returns it. The result of
    ``relay.quantize.quantize`` with ``do_simulation=True`` is read too, but its last pass has made
    float constants of the weights; they stay float.

    Args:
        mod: An ``IRModule`` or a function.
        params: Values of parameters by name.

    Returns:
        The canonical graph; activations have the narrow range -127..127.

    Raises:
        UnsupportedModelError: It has no ``simulated_quantize`` with numbers for its scale, or an
            operator without a counterpart.
    """
    graph = _raw(mod, params)
    if not any(node.op is QUANTIZE for node in graph.nodes):
        raise UnsupportedModelError(
            "the module is not annotated by relay.quantize",
            why=f"it has no {NAME}",
            fix="run relay.quantize with do_simulation=True, or use export_quantized",
        )
    return canonicalize(graph)


def _raw(mod: Any, params: Mapping[str, Any] | None) -> Graph:
    graph, ranks = read_module(mod, params, ROWS, CALLS)
    cancel(graph, ranks)
    run(graph, WHOLE)
    verify(graph)
    return graph
