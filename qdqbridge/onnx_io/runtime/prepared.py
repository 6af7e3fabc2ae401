"""A model file made ready for somebody else's engine: shapes fixed, tensors shown, data inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.reading.functions import inline_functions
from qdqbridge.onnx_io.reading.model_file import read_model
from qdqbridge.onnx_io.tensors import constant_from_proto, proto_from_constant

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
