"""onnxruntime as the reference: node by node, optimizations off, any tensor visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqbridge.core.graph.types import ValueType
from qdqbridge.errors import InputDataError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.onnx_io.control_flow.subgraph_names import nodes_inside
from qdqbridge.onnx_io.reading.model_file import read_model
from qdqbridge.onnx_io.runtime.byte_products import keep_byte_products, saturates
from qdqbridge.onnx_io.runtime.half_products import keep_half_products
from qdqbridge.onnx_io.runtime.ort_values import run

Array = NDArray[Any]
_LAST_IS_READ = {"QLinearSigmoid": 5, "QLinearLeakyRelu": 5}
"""Operators of com.microsoft whose kernels (1.32) read their last operand even where there is none,
which ends the process; where it is there by an empty name, they take it for left out."""
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class OnnxRuntimeSession:
    """A model file in onnxruntime on the CPU.

    Graph optimizations are disabled, so that every QuantizeLinear and DequantizeLinear of the file
    is computed as it is written; products of bytes do not saturate on any processor
    (:mod:`qdqbridge.onnx_io.runtime.byte_products`).

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

        session = self._session(tuple(names))
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

    def _session(self, names: tuple[str, ...]) -> Any:
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
