"""onnxruntime as the reference: node by node, optimizations off, any tensor visible."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import ValueType
from qdqbridge.errors import InputDataError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.onnx_io.control_flow.subgraph_names import nodes_inside
from qdqbridge.onnx_io.reading.functions import inline_functions
from qdqbridge.onnx_io.reading.model_file import read_model
from qdqbridge.onnx_io.runtime.products import keep_byte_products, keep_half_products, saturates
from qdqbridge.onnx_io.tensors import (
    constant_from_proto,
    dtype_to_onnx,
    from_bytes,
    proto_from_constant,
    raw_bytes,
)

# ---- Arrays of every element type through onnxruntime's Python interface -------------------------
# ``InferenceSession.run`` takes and gives what NumPy itself knows. bfloat16, the 8-bit and 4-bit
# floats and the integers below 8 bits go through ``OrtValue``, whose memory is written and read
# here: elements of fewer than 8 bits lie packed in it, as they do in a file.


Array = NDArray[Any]
_OF_ONNX = {
    "float8e4m3fn": DType.FLOAT8_E4M3FN, "float8e4m3fnuz": DType.FLOAT8_E4M3FNUZ,
    "float8e5m2": DType.FLOAT8_E5M2, "float8e5m2fnuz": DType.FLOAT8_E5M2FNUZ,
    "float8e8m0": DType.FLOAT8_E8M0, "float4e2m1": DType.FLOAT4_E2M1,
    "float6e2m3": DType.FLOAT6_E2M3, "float6e3m2": DType.FLOAT6_E3M2, "bfloat16": DType.BFLOAT16,
    "int4": DType.INT4, "uint4": DType.UINT4, "int2": DType.INT2, "uint2": DType.UINT2,
}  # fmt: skip
"""Element types that NumPy does not have, by onnxruntime's names of them."""
_EXTENDED = frozenset(dtype.numpy for dtype in _OF_ONNX.values())


def run(session: Any, feeds: Mapping[str, Any], names: Sequence[str] | None = None) -> list[Any]:
    """Returns what ``InferenceSession.run`` would, of whatever element types.

    Args:
        session: An ``InferenceSession``.
        feeds: An array for each input; a list for a sequence, None for an empty optional.
        names: The outputs wanted; all by default.
    """
    types = {value.name: _element(value.type) for value in session.get_outputs()}
    wanted = list(types) if names is None else list(names)
    given = (each.dtype for each in feeds.values() if isinstance(each, np.ndarray))
    extended = any(dtype in _EXTENDED for dtype in given)
    if not extended and not any(types.get(name) for name in wanted):
        return session.run(wanted, dict(feeds))
    values = session.run_with_ort_values(
        wanted, {name: _to_value(np.asarray(array)) for name, array in feeds.items()}
    )
    return [_from_value(value) for value in values]


def _element(type_: str) -> DType | None:
    """Returns the element type of a tensor where NumPy does not have it."""
    return _OF_ONNX.get(type_.removeprefix("tensor(").removesuffix(")"))


def _to_value(array: Array) -> Any:
    import onnxruntime as ort

    if array.dtype not in _EXTENDED:
        return ort.OrtValue.ortvalue_from_numpy(array)
    constant = Constant.of(array)
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, dtype_to_onnx(constant.dtype))
    data = raw_bytes(constant)
    if data:
        ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _from_value(value: Any) -> Array:
    dtype = _element(value.data_type())
    if dtype is None:
        return value.numpy()
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return from_bytes(np.frombuffer(data, np.uint8), dtype, tuple(value.shape())).numpy()


# ---- onnxruntime as the reference: node by node, optimizations off, any tensor visible -----------


_LAST_IS_READ = {"QLinearSigmoid": 5, "QLinearLeakyRelu": 5}
"""Operators of com.microsoft whose kernels (1.32) read their last operand even where there is none,
which ends the process; where it is there by an empty name, they take it for left out."""
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class OnnxRuntimeSession:
    """A model file in onnxruntime on the CPU.

    Graph optimizations are disabled, so that every QuantizeLinear and DequantizeLinear of the file
    is computed as it is written; products of bytes do not saturate on any processor
    (:mod:`qdqbridge.onnx_io.runtime.products`).

    Attributes:
        label: ``onnxruntime``, for reports.
        path: The model file.
        names: The tensors of the main graph that can be asked for.
        inputs: The names of the graph inputs.
        types: Empty: what a tensor means is known to graphs only.
    """

    label = "onnxruntime"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model = read_model(path)
        graph = self._model.graph
        constants = {tensor.name for tensor in graph.initializer}
        self.outputs: Sequence[str] = [value.name for value in graph.output]
        self.inputs = [value.name for value in graph.input if value.name not in constants]
        results = [name for node in graph.node for name in node.output if name]
        self.names: Sequence[str] = list(dict.fromkeys([*self.outputs, *results]))
        self.types: Mapping[str, ValueType] = {}
        self._sessions: dict[tuple[str, ...], Any] = {}

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Returns the tensors ``names``, intermediate ones included.

        Raises:
            InputDataError: onnxruntime refuses the inputs.
            UnsupportedTargetError: onnxruntime cannot load or run the model.
        """
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

        session = self.load(names)
        try:
            results = run(session, inputs, names)
        except (InvalidArgument, ValueError) as error:  # of onnxruntime, and of its Python part
            raise self._error(InputDataError, "does not take these inputs", error) from error
        except Exception as error:  # onnxruntime has no common error of its own
            raise self._error(UnsupportedTargetError, "cannot run the model", error) from error
        return {
            name: array if _is_nested(array) else np.asarray(array)
            for name, array in zip(names, results, strict=True)
        }

    def load(self, names: Sequence[str]) -> Any:
        """Returns onnxruntime's own session that gives some tensors.

        Raises:
            UnsupportedTargetError: onnxruntime cannot load the model.
        """
        names = tuple(names)
        if names not in self._sessions:
            import onnxruntime as ort

            options = ort.SessionOptions()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.log_severity_level = 4
            options.add_session_config_entry(_EXTERNAL_FOLDER, str(self.path.resolve().parent))
            try:
                self._sessions[names] = ort.InferenceSession(
                    self._exposing(names), options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:  # onnxruntime has no common error of its own
                raise self._error(UnsupportedTargetError, "cannot load the model", error) from error
        return self._sessions[names]

    def _exposing(self, names: Sequence[str]) -> bytes:
        """Returns the model with ``names`` among its outputs; onnxruntime infers their types."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        for node in model.graph.node:
            for each in (node, *nodes_inside(node)):
                most = _LAST_IS_READ.get(each.op_type, 0)
                each.input.extend([""] * (most - len(each.input)))
                _name_parts(each)
        extra = [name for name in names if name not in self.outputs]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        keep_half_products(model.graph)
        if saturates():
            keep_byte_products(model.graph)
        return model.SerializeToString()

    def _error(self, kind: type[QdqBridgeError], what: str, error: Exception) -> QdqBridgeError:
        message = " ".join(str(error).split())
        return kind(
            f"onnxruntime {what}",
            where=str(self.path),
            why=message if len(message) <= 400 else message[:400] + " …",
            fix="the reference must run by itself; try another version of onnxruntime"
            if kind is UnsupportedTargetError
            else f"the model's inputs are: {', '.join(self.inputs)}",
        )


def _name_parts(node: onnx.NodeProto) -> None:
    """Names the parts of a Split that have no name: the kernel (1.32) ends the process there."""
    if node.op_type == "Split":
        known = next(name for name in node.output if name)
        for index, name in enumerate(node.output):
            node.output[index] = name or f"{known}/unread_part_{index}"


def _is_nested(result: Any) -> bool:
    """Returns whether a result is a sequence, or an optional that holds nothing."""
    return result is None or isinstance(result, list)


# ---- prepared ------------------------------------------------------------------------------------
# A model file made ready for somebody else's engine: shapes fixed, tensors shown, data inside.


_ROUNDING = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits")
"""Operators that round floats while the model runs."""
Shape = tuple[int | str | None, ...]


class PreparedModel:
    """A model file, with other shapes and outputs on demand; the file is not changed.

    Attributes:
        inputs: The names of its inputs.
        outputs: The names of its outputs.
        stored: The tensors of stored integers that may be shown: results of QuantizeLinear.
        results: Those that operators of stored integers give.
        rounded: Floats that operators round while the model runs: they need them whole.
    """

    def __init__(self, path: Path, shapes: Mapping[str, Shape]) -> None:
        """Reads the file.

        Args:
            path: The ONNX file.
            shapes: The shapes of inputs, by name, where they are to be others.

        Raises:
            ModelFileError: The file, or its external data, cannot be read.
            InvalidModelError: It breaks ONNX's rules.
        """
        self._path = path
        self._model = inline_functions(read_model(path), str(path))
        graph = self._model.graph
        for index, tensor in enumerate(graph.initializer):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                constant = constant_from_proto(tensor, folder=path.parent, where=str(path))
                graph.initializer[index].CopyFrom(proto_from_constant(tensor.name, constant))
        _fix(graph, shapes)
        constants = {tensor.name for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input if value.name not in constants]
        self.outputs = [value.name for value in graph.output]
        shown = set(self.outputs)
        self.stored = [
            node.output[0]
            for node in graph.node
            if node.op_type == "QuantizeLinear" and node.output[0] not in shown
        ]
        shown.update(self.stored)
        made = [name for node in graph.node for name in node.output[:1] if _gives_stored(node)]
        self.results = [name for name in made if name not in shown]
        shown.update(self.results)
        self.rounded = [name for name in dict.fromkeys(_rounded(graph)) if name not in shown]

    def showing(self, names: Sequence[str]) -> bytes:
        """Returns the file's bytes with tensors as further outputs.

        Raises:
            UnsupportedTargetError: It takes more than the 2 GB of one message.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        try:
            return model.SerializeToString()
        except (EncodeError, ValueError) as error:  # by the version of protobuf
            raise UnsupportedTargetError(
                "the model is too large to be given to an engine whole",
                where=str(self._path),
                why="it takes more than 2 GB, which is what one ONNX message holds",
                fix="give a part of it",
            ) from error


def _gives_stored(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith("QLinear") or node.op_type == "QGemm"


def _rounded(graph: onnx.GraphProto) -> Iterator[str]:
    made_by = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        weight = made_by.get(node.input[1]) if len(node.input) > 1 else None
        packed = weight is not None and weight.op_type == "DequantizeLinear"
        if node.op_type in _ROUNDING or (packed and node.op_type in ("MatMul", "Gemm")):
            before = made_by.get(node.input[0])
            if before is not None and before.op_type != "DequantizeLinear":
                yield node.input[0]


def _fix(graph: onnx.GraphProto, shapes: Mapping[str, Shape]) -> None:
    """Writes numbers over open extents; what was inferred from these is no longer so."""
    numbers: dict[str, int] = {}
    for value in graph.input:
        wanted = shapes.get(value.name, ())
        for dim, number in zip(value.type.tensor_type.shape.dim, wanted, strict=False):
            if isinstance(number, int) and not dim.HasField("dim_value"):
                if dim.dim_param:
                    numbers[dim.dim_param] = number
                dim.dim_value = number
                graph.ClearField("value_info")
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in numbers:
                dim.dim_value = numbers[dim.dim_param]


# ---- Indices kept inside of their data, for runtimes that read and write where an index says

_BOUND = "bound"
"""Begins the names of what is put before the node; its own are ``in_0`` and so on."""


def bound_indices(model: onnx.ModelProto, extents: NDArray[Any]) -> None:
    """Takes the indices of a model's only node modulo extents; those inside stay what they mean.

    Args:
        model: One node, whose second operand are indices; it is changed.
        extents: Of the axes that they go along, in their element type.
    """
    (node,) = model.graph.node
    model.graph.initializer.append(numpy_helper.from_array(extents, _BOUND))
    within = helper.make_node("Mod", [node.input[1], _BOUND], [f"{_BOUND}_indices"])
    node.input[1] = within.output[0]
    model.graph.node.insert(0, within)
