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
    "complex64": tflite.TensorType.COMPLEX64,
    "float16": tflite.TensorType.FLOAT16,
    "float32": tflite.TensorType.FLOAT32,
    "int4": tflite.TensorType.INT4,
    "int16": tflite.TensorType.INT16,
    "int32": tflite.TensorType.INT32,
    "int64": tflite.TensorType.INT64,
    "int8": tflite.TensorType.INT8,
    "resource": tflite.TensorType.RESOURCE,
    "uint8": tflite.TensorType.UINT8,
}


@dataclass
class Tensor:
    """One tensor: ``scale`` and ``zero_point`` are numbers or vectors along ``axis``.

    ``data`` are the elements of a constant, packed where narrower than a byte; ``sparsity`` are
    traversal order, block map and levels: a dense size, or segments and indices. ``signature``
    are the extents with -1 where they are open. A ``variable`` keeps its data between runs.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: Any = None
    zero_point: Any = 0
    axis: int = 0
    data: NDArray[Any] | None = None
    variable: bool = False
    signature: Sequence[int] = ()
    sparsity: tuple[Sequence[int], Sequence[int], Sequence[Any]] | None = None


@dataclass
class Operator:
    """One operator: number, custom name, version; the fields of its options, or their bytes."""

    code: tuple[int, str, int]
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: str
    fields: dict[str, Any] = field(default_factory=dict)
    custom: bytes = b""


class Model:
    """Collects tensors and operators; ``tobytes`` writes the file.

    Subgraphs that operators call are models themselves. ``names`` are those that a signature gives
    to the model's tensors.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self.subgraphs: list[tuple[Model, Sequence[int], Sequence[int]]] = []
        self.names: dict[int, str] = {}

    def subgraph(self, body: Model, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        self.subgraphs.append((body, inputs, outputs))
        return len(self.subgraphs)

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
                 options: str = "", version: int = 1, **fields: Any) -> int:  # fmt: skip
        code = getattr(tflite.BuiltinOperator, name)
        return self._add((code, "", version), inputs, output, options, fields)

    def custom(self, name: str, inputs: Sequence[int], output: int | Sequence[int],
               options: bytes) -> int:  # fmt: skip
        return self._add((tflite.BuiltinOperator.CUSTOM, name, 1), inputs, output, "", {}, options)

    def _add(self, code: tuple[int, str, int], inputs: Sequence[int], output: int | Sequence[int],
             options: str, fields: dict[str, Any], custom: bytes = b"") -> int:  # fmt: skip
        outputs = [output] if isinstance(output, int) else list(output)
        self.operators.append(Operator(code, inputs, outputs, options, fields, custom))
        return outputs[0] if outputs else -1

    def tobytes(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        return _Writer([(self, inputs, outputs), *self.subgraphs]).file(self.names)


class _Writer:
    def __init__(self, graphs: Sequence[tuple[Model, Sequence[int], Sequence[int]]]) -> None:
        self.graphs, self.builder = graphs, flatbuffers.Builder(1 << 16)
        self.buffers = [self.table("Buffer")]
        operators = [operator for model, _, _ in graphs for operator in model.operators]
        self.codes = list(dict.fromkeys(operator.code for operator in operators))

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

    def tensor(self, tensor: Tensor) -> int:
        fields: dict[str, Any] = {
            "Shape": np.array(tensor.shape, np.int32),
            "Type": _TYPES[tensor.dtype],
            "Buffer": 0,
            "Name": tensor.name,
            "IsVariable": tensor.variable,
        }
        if tensor.data is not None:
            data = np.atleast_1d(tensor.data).view(np.uint8)
            self.buffers.append(self.table("Buffer", Data=data))
            fields["Buffer"] = len(self.buffers) - 1
        if tensor.signature:
            fields["ShapeSignature"] = np.array(tensor.signature, np.int32)
        if tensor.scale is not None:
            fields["Quantization"] = self.table(
                "QuantizationParameters",
                Scale=np.atleast_1d(np.asarray(tensor.scale, np.float32)),
                ZeroPoint=np.atleast_1d(np.asarray(tensor.zero_point, np.int64)),
                QuantizedDimension=tensor.axis,
            )
        if tensor.sparsity is not None:
            order, blocks, levels = tensor.sparsity
            fields["Sparsity"] = self.table(
                "SparsityParameters",
                TraversalOrder=np.array(order, np.int32),
                BlockMap=np.array(blocks, np.int32),
                DimMetadata=[self.level(level) for level in levels],
            )
        return self.table("Tensor", **fields)

    def level(self, level: Any) -> int:
        """Writes a level of a sparse constant: its dense size, or its segments and indices."""
        if isinstance(level, int):
            return self.table("DimensionMetadata", Format=0, DenseSize=level)
        fields: dict[str, Any] = {"Format": 1}
        for name, numbers in zip(("ArraySegments", "ArrayIndices"), level, strict=True):
            fields[f"{name}Type"] = tflite.SparseIndexVector.Int32Vector
            fields[name] = self.table("Int32Vector", Values=np.array(numbers, np.int32))
        return self.table("DimensionMetadata", **fields)

    def operator(self, operator: Operator) -> int:
        options: dict[str, Any] = {}
        if operator.options:
            second = "" if hasattr(tflite.BuiltinOptions, operator.options) else "2"
            kinds = getattr(tflite, f"BuiltinOptions{second}")
            options[f"BuiltinOptions{second}Type"] = getattr(kinds, operator.options)
            options[f"BuiltinOptions{second}"] = self.table(operator.options, **operator.fields)
        if operator.custom:
            options["CustomOptions"] = np.frombuffer(operator.custom, np.uint8)
        return self.table(
            "Operator",
            OpcodeIndex=self.codes.index(operator.code),
            Inputs=np.array(operator.inputs, np.int32),
            Outputs=np.array(operator.outputs, np.int32),
            **options,
        )

    def graph(self, model: Model, inputs: Sequence[int], outputs: Sequence[int], name: str) -> int:
        return self.table(
            "SubGraph",
            Tensors=[self.tensor(tensor) for tensor in model.tensors],
            Inputs=np.array(inputs, np.int32),
            Outputs=np.array(outputs, np.int32),
            Operators=[self.operator(operator) for operator in model.operators],
            Name=name,
        )

    def code(self, code: int, custom: str, version: int) -> int:
        named = {"CustomCode": custom} if custom else {}
        return self.table(
            "OperatorCode", DeprecatedBuiltinCode=min(code, 127), BuiltinCode=code,
            Version=version, **named,
        )  # fmt: skip

    def file(self, names: dict[int, str]) -> bytes:
        graphs = [
            self.graph(*graph, name="main" if place == 0 else f"body{place}")
            for place, graph in enumerate(self.graphs)
        ]
        more: dict[str, Any] = {}
        if names:
            entries = [
                [
                    self.table("TensorMap", Name=names[i], TensorIndex=i)
                    for i in tensors if i in names
                ]
                for tensors in self.graphs[0][1:]
            ]  # fmt: skip
            more["SignatureDefs"] = [
                self.table(
                    "SignatureDef", Inputs=entries[0], Outputs=entries[1], SubgraphIndex=0,
                    SignatureKey="serving_default",
                )
            ]  # fmt: skip
        opcodes = [self.code(*code) for code in self.codes]
        root = self.table(
            "Model", Version=3, OperatorCodes=opcodes, Subgraphs=graphs, Buffers=self.buffers,
            **more,
        )  # fmt: skip
        self.builder.Finish(root, b"TFL3")
        return bytes(self.builder.Output())
