"""Small TFLite files, written with the schema's own builders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite
from numpy.typing import NDArray

_TYPES = {
    "bool": tflite.TensorType.BOOL,
    "float16": tflite.TensorType.FLOAT16,
    "float32": tflite.TensorType.FLOAT32,
    "int16": tflite.TensorType.INT16,
    "int32": tflite.TensorType.INT32,
    "int64": tflite.TensorType.INT64,
    "int8": tflite.TensorType.INT8,
    "uint8": tflite.TensorType.UINT8,
}


@dataclass
class Tensor:
    """One tensor: ``scale`` and ``zero_point`` are numbers or vectors along ``axis``."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: Any = None
    zero_point: Any = 0
    axis: int = 0
    data: NDArray[Any] | None = None


@dataclass
class Operator:
    """One operator, with the fields of its options table."""

    code: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: str
    fields: dict[str, Any] = field(default_factory=dict)


class Model:
    """Collects tensors and operators; ``tobytes`` writes the file."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []

    def tensor(self, name: str, shape: Sequence[int], dtype: str, scale: Any = None,
               zero_point: Any = 0, axis: int = 0) -> int:  # fmt: skip
        self.tensors.append(Tensor(name, tuple(shape), dtype, scale, zero_point, axis))
        return len(self.tensors) - 1

    def constant(self, name: str, data: NDArray[Any], scale: Any = None, axis: int = 0,
                 zero_point: Any = 0) -> int:  # fmt: skip
        index = self.tensor(name, data.shape, str(data.dtype), scale, zero_point, axis)
        if np.ndim(scale) and not np.ndim(zero_point):
            self.tensors[index].zero_point = np.zeros(np.shape(scale), np.int64)
        self.tensors[index].data = data
        return index

    def operator(self, name: str, inputs: Sequence[int], output: int | Sequence[int],
                 options: str = "", **fields: Any) -> int:  # fmt: skip
        code = getattr(tflite.BuiltinOperator, name)
        outputs = [output] if isinstance(output, int) else list(output)
        self.operators.append(Operator(code, inputs, outputs, options, fields))
        return outputs[0]

    def tobytes(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        return _Writer(self).file(inputs, outputs)


class _Writer:
    def __init__(self, model: Model) -> None:
        self.model, self.builder = model, flatbuffers.Builder(1 << 16)

    def table(self, name: str, **fields: Any) -> int:
        """Writes a table; strings, arrays and lists of offsets become vectors before it."""
        ready = {key: self.value(item) for key, item in fields.items()}
        getattr(tflite, f"{name}Start")(self.builder)
        for key, item in ready.items():
            getattr(tflite, f"{name}Add{key}")(self.builder, item)
        return getattr(tflite, f"{name}End")(self.builder)

    def value(self, item: Any) -> Any:
        if isinstance(item, str):
            return self.builder.CreateString(item)
        if isinstance(item, np.ndarray):
            return self.builder.CreateNumpyVector(np.ascontiguousarray(item).reshape(-1))
        if isinstance(item, list):
            self.builder.StartVector(4, len(item), 4)
            for offset in reversed(item):
                self.builder.PrependUOffsetTRelative(offset)
            return self.builder.EndVector()
        return item

    def tensor(self, tensor: Tensor, buffer: int) -> int:
        fields: dict[str, Any] = {
            "Shape": np.array(tensor.shape, np.int32),
            "Type": _TYPES[tensor.dtype],
            "Buffer": buffer,
            "Name": tensor.name,
        }
        if tensor.scale is not None:
            fields["Quantization"] = self.table(
                "QuantizationParameters",
                Scale=np.atleast_1d(np.asarray(tensor.scale, np.float32)),
                ZeroPoint=np.atleast_1d(np.asarray(tensor.zero_point, np.int64)),
                QuantizedDimension=tensor.axis,
            )
        return self.table("Tensor", **fields)

    def operator(self, operator: Operator, codes: list[int]) -> int:
        options: dict[str, Any] = {}
        if operator.options:
            options["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, operator.options)
            options["BuiltinOptions"] = self.table(operator.options, **operator.fields)
        return self.table(
            "Operator",
            OpcodeIndex=codes.index(operator.code),
            Inputs=np.array(operator.inputs, np.int32),
            Outputs=np.array(operator.outputs, np.int32),
            **options,
        )

    def file(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        buffers, tensors = [self.table("Buffer")], []
        for tensor in self.model.tensors:
            if tensor.data is not None:
                buffers.append(self.table("Buffer", Data=tensor.data.view(np.uint8)))
            tensors.append(self.tensor(tensor, len(buffers) - 1 if tensor.data is not None else 0))
        codes = list(dict.fromkeys(operator.code for operator in self.model.operators))
        graph = self.table(
            "SubGraph",
            Tensors=tensors,
            Inputs=np.array(inputs, np.int32),
            Outputs=np.array(outputs, np.int32),
            Operators=[self.operator(operator, codes) for operator in self.model.operators],
            Name="main",
        )
        opcodes = [
            self.table(
                "OperatorCode", DeprecatedBuiltinCode=min(code, 127), BuiltinCode=code, Version=1
            )
            for code in codes
        ]
        root = self.table(
            "Model", Version=3, OperatorCodes=opcodes, Subgraphs=[graph], Buffers=buffers
        )
        self.builder.Finish(root, b"TFL3")
        return bytes(self.builder.Output())
