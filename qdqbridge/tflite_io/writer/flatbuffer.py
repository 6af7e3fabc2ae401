"""A TFLite model as records, and the flatbuffer of them.

The package ``tflite`` (generated from TFLite's schema) knows the tables; what it does not know is
that TFLite wants the bytes of constants at multiples of 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.errors import UnsupportedTargetError

_ALIGNMENT = 16
"""Bytes; TFLite's schema says ``force_align: 16`` of a buffer's data."""
_LARGEST = (1 << 31) - (1 << 20)
"""Bytes that a flatbuffer with offsets of 32 bits may have."""
_LAST_OLD_CODE = 127
"""Operators behind it have their number in a wider field of its own."""


@dataclass(frozen=True, slots=True)
class TensorQuantization:
    """Scales and zero points of a tensor: one each, or one per index along ``axis``."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    axis: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TensorRecord:
    """One tensor to be written.

    Attributes:
        type: The element type as TFLite names it.
        shape: Its extents; 1 where they are open.
        signature: Its extents with -1 where they are open; empty where none is.
        quantization: Its parameters.
        data: What a constant holds; its elements are read when the file is written.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    signature: tuple[int, ...] = ()
    quantization: TensorQuantization | None = None
    data: Constant | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OperatorRecord:
    """One operator to be written: TFLite's name, version, operands (-1: left out) and options."""

    name: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class ModelRecord:
    """A whole model with one graph.

    Attributes:
        tensors: Its tensors; operators name them by their place.
        operators: In the order of their execution.
        inputs: Tensors that are given.
        outputs: Tensors that are results.
        input_names: The inputs' names in the signature.
        output_names: The results' names in the signature.
        name: The graph's name.
        description: What wrote the file, or the model's own.
        metadata: What the file says beside its graph, by name.
    """

    tensors: list[TensorRecord] = field(default_factory=list[TensorRecord])
    operators: list[OperatorRecord] = field(default_factory=list[OperatorRecord])
    inputs: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    input_names: list[str] = field(default_factory=list[str])
    output_names: list[str] = field(default_factory=list[str])
    name: str = "main"
    description: str = ""
    metadata: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def tobytes(self) -> bytes:
        """Returns the file.

        Raises:
            UnsupportedTargetError: It is larger than a flatbuffer can be, or the packages that
                know the format are not installed.
        """
        size = sum(t.data.nbytes for t in self.tensors if t.data is not None)
        if size > _LARGEST:
            raise UnsupportedTargetError(
                "the model is too large for a TFLite file",
                why=f"its constants take {size:,} bytes; a flatbuffer ends at 2 GB",
                fix="write it in parts, or store its weights in 8 or 4 bits",
            )
        return _FlatbufferBuilder(self, *_packages()).file()


def _packages() -> tuple[Any, Any]:
    try:
        return import_module("tflite"), import_module("flatbuffers")
    except ModuleNotFoundError as error:
        raise UnsupportedTargetError(
            "writing TFLite files needs tflite, which is not installed",
            why=str(error),
            fix="pip install tflite",
        ) from error


class _FlatbufferBuilder:
    def __init__(self, model: ModelRecord, schema: Any, flatbuffers: Any) -> None:
        self.model, self.schema = model, schema
        self.builder = flatbuffers.Builder(1 << 16)
        # Buffer 0 is empty by convention: tensors without data name it.
        self.buffers = [self.table("Buffer", {})]
        self.known: dict[object, int] = {}
        codes = ((op.name, op.version) for op in model.operators)
        self.codes = {code: place for place, code in enumerate(dict.fromkeys(codes))}

    def file(self) -> bytes:
        root = self.table(
            "Model",
            {
                "Version": 3,
                "OperatorCodes": [self._code(*code) for code in self.codes],
                "Subgraphs": [self._graph()],
                "Description": self.model.description,
                "SignatureDefs": [self._signature()],
                "Metadata": [self._entry(*entry) for entry in self.model.metadata.items()],
                "Buffers": self.buffers,
            },
        )
        self.builder.Finish(root, b"TFL3")
        return bytes(self.builder.Output())

    # ---- tables -------------------------------------------------------------------------------

    def table(self, name: str, fields: Mapping[str, Any]) -> int:
        """Writes a table; strings, arrays and lists of offsets become vectors before it."""
        # A flatbuffer grows backwards and tables cannot be nested while they are open: all parts of
        # one stand before it.
        ready = {key: self._value(item) for key, item in fields.items()}
        getattr(self.schema, f"{name}Start")(self.builder)
        for key, item in ready.items():
            getattr(self.schema, f"{name}Add{key}")(self.builder, item)
        return getattr(self.schema, f"{name}End")(self.builder)

    def _value(self, item: Any) -> Any:
        if isinstance(item, str):
            return self.builder.CreateString(item)
        if isinstance(item, np.ndarray):
            return self.builder.CreateNumpyVector(np.ascontiguousarray(item).reshape(-1))
        if isinstance(item, list):
            return self._offsets(item)
        return item

    def _offsets(self, tables: Sequence[int]) -> int:
        self.builder.StartVector(4, len(tables), 4)
        # Vectors are filled from their end.
        for offset in reversed(tables):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def _bytes(self, data: bytes) -> int:
        """Writes a vector of bytes that begins at a multiple of 16."""
        builder = self.builder
        builder.StartVector(1, len(data), _ALIGNMENT)
        # As CreateByteVector does, which knows no alignment.
        builder.head -= len(data)
        builder.Bytes[builder.head : builder.head + len(data)] = data
        return builder.EndVector()

    # ---- records ------------------------------------------------------------------------------

    def _graph(self) -> int:
        model = self.model
        return self.table(
            "SubGraph",
            {
                "Tensors": [self._tensor(tensor) for tensor in model.tensors],
                "Inputs": np.asarray(model.inputs, np.int32),
                "Outputs": np.asarray(model.outputs, np.int32),
                "Operators": [self._operator(operator) for operator in model.operators],
                "Name": model.name,
            },
        )

    def _entry(self, name: str, data: bytes) -> int:
        self.buffers.append(self.table("Buffer", {"Data": self._bytes(data)}))
        return self.table("Metadata", {"Name": name, "Buffer": len(self.buffers) - 1})

    def _code(self, name: str, version: int) -> int:
        number = getattr(self.schema.BuiltinOperator, name)
        # Old readers know a field of 8 bits only; newer ones take the larger of the two.
        old = min(number, _LAST_OLD_CODE)
        return self.table(
            "OperatorCode",
            {"DeprecatedBuiltinCode": old, "BuiltinCode": number, "Version": version},
        )

    def _signature(self) -> int:
        model = self.model
        pairs = (model.inputs, model.input_names), (model.outputs, model.output_names)
        inputs, outputs = (
            [
                self.table("TensorMap", {"Name": name, "TensorIndex": index})
                for index, name in zip(indices, names, strict=True)
            ]
            for indices, names in pairs
        )
        return self.table(
            "SignatureDef",
            {
                "Inputs": inputs,
                "Outputs": outputs,
                "SignatureKey": "serving_default",
                "SubgraphIndex": 0,
            },
        )

    def _tensor(self, tensor: TensorRecord) -> int:
        fields: dict[str, Any] = {
            "Shape": np.asarray(tensor.shape, np.int32),
            "Type": getattr(self.schema.TensorType, tensor.type),
            "Buffer": self._buffer(tensor),
            "Name": tensor.name,
            "HasRank": True,
        }
        if tensor.signature:
            fields["ShapeSignature"] = np.asarray(tensor.signature, np.int32)
        if tensor.quantization is not None:
            fields["Quantization"] = self.table(
                "QuantizationParameters",
                {
                    "Scale": np.atleast_1d(tensor.quantization.scale),
                    "ZeroPoint": np.atleast_1d(tensor.quantization.zero_point),
                    "QuantizedDimension": tensor.quantization.axis,
                },
            )
        return self.table("Tensor", fields)

    def _buffer(self, tensor: TensorRecord) -> int:
        """Returns the place of a constant's bytes; equal small ones are written once."""
        if tensor.data is None:
            return 0
        if tensor.data in self.known:
            return self.known[tensor.data]
        data = packed(tensor.data)
        # Long constants are told apart by identity: comparing all their bytes with each other would
        # keep every one in memory.
        key: object = data if len(data) <= _SMALL else tensor.data
        if key not in self.known:
            self.buffers.append(self.table("Buffer", {"Data": self._bytes(data)}))
            self.known[key] = len(self.buffers) - 1
        self.known[tensor.data] = self.known[key]
        return self.known[key]

    def _operator(self, operator: OperatorRecord) -> int:
        fields: dict[str, Any] = {
            "OpcodeIndex": self.codes[operator.name, operator.version],
            "Inputs": np.asarray(operator.inputs, np.int32),
            "Outputs": np.asarray(operator.outputs, np.int32),
        }
        if operator.options:
            second = "" if hasattr(self.schema.BuiltinOptions, operator.options) else "2"
            kinds = getattr(self.schema, f"BuiltinOptions{second}")
            fields[f"BuiltinOptions{second}Type"] = getattr(kinds, operator.options)
            fields[f"BuiltinOptions{second}"] = self.table(operator.options, operator.fields)
        return self.table("Operator", fields)


_SMALL = 1 << 12


def packed(constant: Constant) -> bytes:
    """Returns a constant's bytes as TFLite stores them: two 4-bit numbers in a byte, low first."""
    array = np.ascontiguousarray(constant.numpy())
    if constant.dtype.bits >= 8:
        return array.tobytes()
    per_byte = 8 // constant.dtype.bits
    mask = (1 << constant.dtype.bits) - 1
    # Two's complement first: a negative number of 4 bits is the low half of its byte.
    numbers = array.reshape(-1).astype(np.int8).view(np.uint8) & mask
    numbers = np.pad(numbers, (0, -numbers.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * constant.dtype.bits
    return np.bitwise_or.reduce(numbers << shifts, axis=1).astype(np.uint8).tobytes()
