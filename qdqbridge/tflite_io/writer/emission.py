"""One graph on its way into a TFLite file: its values as tensors, its nodes as operators.

A node whose operands and result are quantized, and whose row says that TFLite has an integer kernel
for them, becomes operators on stored integers. Every other node is a float region: operands are
dequantized, the result is quantized again, which is what the graph means by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import AnyAttributes, Flow, Row
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, ValueType
from qdqbridge.core.ops.elementwise import DIV, POW
from qdqbridge.core.ops.unary import EXP, RECIPROCAL
from qdqbridge.core.rewrite import stored_behind
from qdqbridge.tflite_io.writer.flatbuffer import ModelRecord, OperatorRecord, TensorRecord
from qdqbridge.tflite_io.writer.tensors import (
    TYPE_NAMES,
    NoCounterpart,
    axis_in,
    extents,
    is_late,
    narrowed,
    quantization_of,
    refuse_other_floats,
)

WriteRow: TypeAlias = "Callable[[Emission, Node, Sequence[int], Sequence[int]], None]"
"""Adds the operators of a node, from its operands' tensors (-1: left out) to its results'."""
Write: TypeAlias = "Callable[[Emission, Node, AnyAttributes, Sequence[int], Sequence[int]], None]"
"""The same, of a node whose attributes are known."""
Integers: TypeAlias = "Callable[[Node], bool]"
"""Whether TFLite has an integer kernel for a node."""


@dataclass(frozen=True, slots=True)
class WriterRow:
    """How a node of the graph is said in TFLite.

    Attributes:
        write: Adds its operators.
        integers: Whether they run on the stored integers of its operands and results.
        fused: Its last operator takes a fused activation, by :attr:`Emission.activation`.
        own: Operands whose tensors it makes itself: weights in TFLite's layout, configuration.
    """

    write: WriteRow
    integers: Integers
    fused: bool = False
    own: tuple[int, ...] = ()


def written(
    row: Row[AnyAttributes],
    write: Write[AnyAttributes],
    integers: Integers,
    *,
    fused: bool = False,
    own: tuple[int, ...] = (),
) -> tuple[str, WriterRow]:
    """Returns the entry of a row whose function takes the attributes that the row has.

    Args:
        row: The operator.
        write: Adds its operators.
        integers: As in :class:`WriterRow`.
        fused: Likewise.
        own: Likewise.
    """

    def add(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        write(e, node, node.record(row.attributes), x, y)

    return row.name, WriterRow(add, integers, fused, own)


class Emission:
    """The tensors and operators of one graph.

    Args:
        rows: How nodes are said, by the operator's name.
        layouts: For nodes that are stored channels-last, whether operand and result are.
    """

    def __init__(
        self, rows: Mapping[str, WriterRow], layouts: Mapping[Node, tuple[bool, bool]]
    ) -> None:
        self.rows, self.layouts = rows, layouts
        self.model = ModelRecord()
        self.tensors: dict[Value, int] = {}
        self.reals: dict[Value, int] = {}
        self.sources: dict[int, Value] = {}
        """What a tensor stands for."""
        self.names: set[str] = set()
        self._reserved: set[str] = set()
        self.activation = Activation.NONE
        """What the row that is being written shall fuse into its last operator."""
        self.integers = False
        """Whether the row that is being written computes on stored integers."""

    # ---- tensors ------------------------------------------------------------------------------

    def tensor(self, value: Value) -> int:
        """Returns the tensor of a value as the graph stores it."""
        # A dequantized constant has no operator in its own place: the first that reads its floats
        # gets one.
        if value not in self.tensors and is_late(value.producer):
            stored = stored_behind(value)
            assert stored is not None
            self.tensors[value] = self.real(stored)
        if value not in self.tensors:
            index = self._typed(value.type, value.name, value.constant)
            self.tensors[value] = index
            self.sources[index] = value
        return self.tensors[value]

    def real(self, value: Value) -> int:
        """Returns a value's real numbers; those of a quantized one are dequantized once."""
        if value.quant is None:
            return self.tensor(value)
        if value not in self.reals:
            made = self.temporary(TensorType(DType.FLOAT32, value.type.shape), f"{value.name}:real")
            self.add("DEQUANTIZE", [self.tensor(value)], [made], version=2)
            self.reals[value] = made
        return self.reals[value]

    def operand(self, value: Value) -> int:
        """Returns a value as the row that is being written computes on it."""
        return self.tensor(value) if self.integers else self.real(value)

    def weight(self, value: Value, shape: tuple[int, ...], order: tuple[int, ...]) -> int:
        """Returns a weight reshaped and then permuted; quantized only where the row is."""
        value = stored_behind(value) or value
        data, quant = value.constant, value.quant
        if data is None:
            raise NoCounterpart(f"its weight '{value.name}' is computed while the model runs")
        moved = tuple(shape[axis] for axis in order)
        data = data.map(lambda array: array.reshape(shape).transpose(order), shape=moved)
        if quant is None:
            return self._typed(TensorType(data.dtype, moved), value.name, data)
        params = quant.params
        if params.axis is not None:
            params = params.with_axis(order.index(axis_in(shape, value, params.axis)))
        index = self._typed(QuantType(params, moved), value.name, data)
        return index if self.integers else self.dequantized(index)

    def dequantized(self, index: int) -> int:
        """Returns a tensor's real numbers."""
        shape = self.type_of(index)[1]
        made = self.plain("FLOAT32", shape, f"{self.model.tensors[index].name}:real")
        self.add("DEQUANTIZE", [index], [made], version=2)
        return made

    def plain(self, type_: str, shape: Sequence[int], name: str = "") -> int:
        """Returns a new tensor that is not quantized; -1 is an open extent."""
        given = tuple(1 if extent < 0 else extent for extent in shape)
        signature = tuple(shape) if -1 in shape else ()
        self.model.tensors.append(TensorRecord(self._name(name), type_, given, signature))
        return len(self.model.tensors) - 1

    def temporary(self, type_: ValueType, name: str = "") -> int:
        """Returns a new tensor for a result that is no value of the graph."""
        return self._typed(type_, name, None)

    def constant(self, array: NDArray[Any] | Sequence[int], name: str = "constant") -> int:
        """Returns a plain constant; sequences are int32."""
        data = array if isinstance(array, np.ndarray) else np.asarray(narrowed(array), np.int32)
        constant = Constant.of(data)
        return self._typed(TensorType(constant.dtype, data.shape), name, constant)

    def quantized_constant(self, data: Constant, params: QuantParams, name: str = "") -> int:
        """Returns a quantized constant."""
        return self._typed(QuantType(params, data.shape), name, data)

    def type_of(self, index: int) -> tuple[str, tuple[int, ...]]:
        """Returns a tensor's element type, as TFLite names it, and its extents."""
        tensor = self.model.tensors[index]
        return tensor.type, tensor.signature or tensor.shape

    def version(self, index: int) -> int:
        """Returns the version of an operator whose second has 8 bits, and whose third has 16."""
        return {"INT8": 2, "INT16": 3}.get(self.type_of(index)[0], 1)

    def like(self, index: int, shape: Sequence[int], name: str = "") -> int:
        """Returns a new tensor of another tensor's type; -1 is an open extent."""
        old = self.model.tensors[index]
        open_ = -1 in shape
        self.model.tensors.append(
            TensorRecord(
                self._name(name or old.name), old.type, tuple(1 if e < 0 else e for e in shape),
                tuple(shape) if open_ else (), old.quantization,
            )
        )  # fmt: skip
        return len(self.model.tensors) - 1

    def _typed(self, type_: ValueType, name: str, data: Constant | None) -> int:
        dtype = type_.dtype
        if dtype not in TYPE_NAMES:
            raise NoCounterpart(f"'{name}' is {dtype.label}")
        if type_.shape is None:
            raise NoCounterpart(
                f"the rank of '{name}' is not known", "fix the shapes of the model's inputs"
            )
        shape = tuple(narrowed([1 if isinstance(e, str) else e for e in type_.shape]))
        signature = tuple(-1 if isinstance(e, str) else e for e in type_.shape)
        quantization = quantization_of(type_.params) if isinstance(type_, QuantType) else None
        self.model.tensors.append(
            TensorRecord(
                self._name(name), TYPE_NAMES[dtype], shape, signature if -1 in signature else (),
                quantization, data,
            )
        )  # fmt: skip
        return len(self.model.tensors) - 1

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps names for the results, which :meth:`rename` gives them."""
        self._reserved.update(names)
        self.names.update(names)

    def rename(self, index: int, name: str) -> None:
        """Gives a tensor another name, where no other has it."""
        tensor = self.model.tensors[index]
        # A reserved name is taken from the start, but for the one tensor that it was kept for.
        if tensor.name != name and (name in self._reserved or name not in self.names):
            self._reserved.discard(name)
            self.names.add(name)
            self.model.tensors[index] = replace(tensor, name=name)

    def _name(self, name: str) -> str:
        """Returns a name that no tensor has yet."""
        name = name or "tensor"
        found, count = name, 0
        while found in self.names:
            count += 1
            found = f"{name}:{count}"
        self.names.add(found)
        return found

    def shape_operand(self, value: Value, source: int) -> int:
        """Returns a value's extents as an operand: -1 where one is open, several asked for.

        Args:
            source: A tensor whose extents it may share.
        """
        wanted = extents(value)
        # RESHAPE computes one extent from the number of elements.
        if wanted.count(-1) <= 1:
            return self.constant(list(wanted), "shape")
        return self.whole_shape(value, source)

    def whole_shape(self, value: Value, source: int) -> int:
        """Returns a value's extents as an operand; the open ones are asked for."""
        names = value.type.shape or ()
        if not any(isinstance(extent, str) for extent in names):
            return self.constant(list(extents(value)), "shape")
        origin = self.sources.get(source)
        known = () if origin is None else origin.type.shape or ()
        parts: list[int] = []
        whole = self.plain("INT32", (len(known),), "shape")
        self.add("SHAPE", [source], [whole], "ShapeOptions", OutType=2)
        for extent in names:
            if not isinstance(extent, str):
                parts.append(self.constant([extent], "extent"))
                continue
            if extent not in known:
                raise NoCounterpart(
                    f"several extents of '{value.name}' are open", "fix them with --extent"
                )
            place = known.index(extent)
            part = self.plain("INT32", (1,), "extent")
            cut = [self.constant([number]) for number in (place, place + 1, 1)]
            self.add("STRIDED_SLICE", [whole, *cut], [part], "StridedSliceOptions")
            parts.append(part)
        made = self.plain("INT32", (len(parts),), "shape")
        self.add("CONCATENATION", parts, [made], "ConcatenationOptions", Axis=0)
        return made

    # ---- operators ----------------------------------------------------------------------------

    def transposed(self, index: int, order: Sequence[int]) -> int:
        """Returns a tensor with its axes permuted."""
        shape = self.type_of(index)[1]
        made = self.like(index, [shape[axis] for axis in order])
        version = {"INT8": 2, "INT16": 3}.get(self.type_of(index)[0], 1)
        perm = self.constant(list(order), "perm")
        self.add("TRANSPOSE", [index, perm], [made], "TransposeOptions", version)
        return made

    def cast(self, source: int, result: int) -> None:
        """Adds a change of the element type."""
        numbers = [
            getattr(import_module("tflite").TensorType, self.type_of(i)[0])
            for i in (source, result)
        ]
        self.add(
            "CAST", [source], [result], "CastOptions", InDataType=numbers[0],
            OutDataType=numbers[1],
        )  # fmt: skip

    def add(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str = "",
        version: int = 1,
        **fields: Any,
    ) -> None:
        """Adds an operator; ``fields`` are its options by their names in TFLite's schema."""
        self.model.operators.append(
            OperatorRecord(name, version, tuple(inputs), tuple(outputs), options, fields)
        )

    def channels_last(self, node: Node) -> bool:
        """True where a node's data operand and results are stored channels-last."""
        return any(self.layouts.get(node, (False, False)))

    def node(self, node: Node) -> None:
        """Adds a node's operators.

        Raises:
            NoCounterpart: TFLite has none for it.
        """
        row = self.rows.get(node.op.name)
        if row is None:
            raise NoCounterpart("TFLite has no counterpart")
        refuse_other_floats(node)
        # Nothing is written in its place: whoever reads its floats dequantizes them there.
        if is_late(node):
            return
        # All refusals are listed together, so that writing goes on behind this node; half of its
        # operators would make a later message wrong.
        before = len(self.model.operators)
        try:
            self._written(row, node)
        except NoCounterpart:
            del self.model.operators[before:]
            raise

    def _written(self, row: WriterRow, node: Node) -> None:
        integers = self.integers = row.integers(node)
        x = [
            -1 if value is None or place in row.own else self.operand(value)
            for place, value in enumerate(node.inputs)
        ]
        y: list[int] = []
        finish: list[tuple[Value, int]] = []
        self.activation = Activation.NONE
        for value in node.outputs:
            wanted, made = self._result(row, node, value, integers)
            y.append(made)
            if made != wanted:
                finish.append((value, made))
        row.write(self, node, x, y)
        self.activation = Activation.NONE
        for value, made in finish:
            self._finish(value, made)

    def _result(self, row: WriterRow, node: Node, value: Value, integers: bool) -> tuple[int, int]:
        """Returns a value's tensor, and the one that the operator gives: before clamp and Q."""
        wanted, quant = self.tensor(value), value.quant
        if quant is None:
            return wanted, wanted
        if not integers:
            real = TensorType(DType.FLOAT32, value.type.shape)
            return wanted, self.temporary(real, f"{value.name}:float")
        # What only moves codes gives none that its operand has not, whatever the range says.
        if quant.params.full_range or node.op.flow is Flow.MOVE:
            return wanted, wanted
        fused = fusable(quant.params) if row.fused else None
        if fused is not None:
            self.activation = fused
            return wanted, wanted
        return wanted, self.temporary(
            QuantType(quant.params.widened(), value.type.shape), value.name
        )

    def _finish(self, value: Value, made: int) -> None:
        """Quantizes a float result, and clamps to a range that no operator has fused."""
        quant = value.quant
        assert quant is not None
        params = quant.params
        if self.type_of(made)[0] == "FLOAT32":
            # LiteRT's QUANTIZE of infinity or NaN is whatever the cast of the processor gives.
            made = self._finite(made, params) if _may_overflow(value) else made
            if params.full_range:
                self.add("QUANTIZE", [made], [self.tensor(value)], version=1)
                return
            wide = self.temporary(QuantType(params.widened(), value.type.shape), value.name)
            self.add("QUANTIZE", [made], [wide], version=1)
            made = wide
        self.clamped(made, self.tensor(value), params)

    def _finite(self, made: int, params: QuantParams) -> int:
        """Returns floats that LiteRT quantizes rightly: it has no number for what is not finite.

        The bounds lie a step outside the type's range. Of NaN the extreme whose first operand it
        is makes the other one: the lowest number, as everywhere.
        """
        storage, zero = params.storage_dtype, params.zero_point.astype(np.float64)
        for name, end in (("MINIMUM", storage.qmax + 1.0), ("MAXIMUM", storage.qmin - 1.0)):
            bound = np.asarray((end - zero) * params.scale.astype(np.float64), np.float32).reshape(
                ()
            )
            pair = [self.constant(bound, "bound"), made]
            made = self.like(made, self.type_of(made)[1])
            pair = pair if name == "MINIMUM" else pair[::-1]
            self.add(name, pair, [made], "MaximumMinimumOptions")
        return made

    def clamped(self, made: int, result: int, params: QuantParams) -> None:
        """Clamps stored integers to a type's range: as a Relu, or by one or two extremes."""
        if not params.per_tensor:
            raise NoCounterpart(
                f"it clamps to {params.qmin} and {params.qmax} with scales of channels",
                "quantize it per tensor, or over the whole range of its storage type",
            )
        kind = fusable(params)
        if kind is not None:
            name, version = CLAMPS[kind]
            self.add(name, [made], [result], version=version)
            return
        storage = params.storage_dtype
        steps = [
            (name, bound)
            for name, bound, end in (
                ("MAXIMUM", params.qmin, storage.qmin), ("MINIMUM", params.qmax, storage.qmax),
            )
            if bound != end
        ]  # fmt: skip
        for place, (name, bound) in enumerate(steps):
            data = Constant.of(np.asarray(bound, storage.numpy))
            limit = self.quantized_constant(data, params.widened(), "bound")
            last = place == len(steps) - 1
            after = result if last else self.like(made, self.type_of(made)[1])
            self.add(name, [made, limit], [after], "MaximumMinimumOptions", version=2)
            made = after


_UNBOUNDED = frozenset((DIV, EXP, POW, RECIPROCAL))


def _may_overflow(value: Value) -> bool:
    """True for what is infinite for operands that are not."""
    params = value.quant.params if value.quant is not None else None
    made = value.producer is not None and value.producer.op in _UNBOUNDED
    return made and params is not None and params.per_tensor


# ---- Activations that TFLite fuses into an operator, and what they are of stored integers


class Activation:
    """TFLite's numbers of fused activations."""

    NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)


CLAMPS: Mapping[int, tuple[str, int]] = {
    Activation.RELU: ("RELU", 2),
    Activation.RELU6: ("RELU6", 2),
    Activation.RELU_N1_TO_1: ("RELU_N1_TO_1", 1),
}
"""The operators that do what a fused activation does, and their versions on integers."""
_INTERVALS = (
    (Activation.RELU, 0.0, np.inf),
    (Activation.RELU6, 0.0, 6.0),
    (Activation.RELU_N1_TO_1, -1.0, 1.0),
)


_FAR = 1 << 40
"""Beyond every stored number."""


def fused_range(params: QuantParams, low: float, high: float) -> tuple[int, int]:
    """Returns the stored bounds of a fused activation, as TFLite computes them."""
    kind = params.storage_dtype
    scale, zero = np.float32(params.scale), int(params.zero_point)

    def stored(bound: float) -> int:
        with np.errstate(over="ignore", divide="ignore"):
            real = float(np.clip(np.float32(bound) / scale, -_FAR, _FAR))
        return zero + int(np.trunc(real + np.copysign(0.5, real)))

    qmin = max(kind.qmin, stored(low)) if np.isfinite(low) else kind.qmin
    qmax = min(kind.qmax, stored(high)) if np.isfinite(high) else kind.qmax
    return qmin, qmax


def fusable(params: QuantParams) -> int | None:
    """Returns the fused activation that clamps to a type's range; None where none does."""
    for kind, low, high in _INTERVALS:
        if fused_range(params, low, high) == (params.qmin, params.qmax):
            return kind
    return None
