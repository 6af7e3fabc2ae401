"""Low-rank adapters in files of onnxruntime: arrays by the names of a model's inputs.

Such a model reads the matrices of its adapters from inputs, which may have initializers without
elements as defaults: without an adapter it computes what it was adapted from.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from qdqbridge.errors import InputDataError, ModelFileError
from qdqbridge.onnx_io.inference.shapes import declared_types

Array = NDArray[Any]


def read_adapter(path: Path) -> dict[str, Array]:
    """Returns the arrays of an ``.onnx_adapter`` file by the names of the inputs they are for.

    Raises:
        ModelFileError: The file cannot be read, or is none.
    """
    from onnxruntime import AdapterFormat

    name: Any = str(path)  # what it takes, whatever its annotation says
    try:
        held = AdapterFormat.read_adapter(name).get_parameters()
        return {key: np.array(value.numpy()) for key, value in sorted(held.items())}
    except Exception as error:  # onnxruntime has no common error of its own
        raise ModelFileError(
            "the adapter cannot be read",
            where=str(path),
            why=(str(error).splitlines() or [""])[0],
            fix="give the .onnx_adapter file that onnxruntime or Olive wrote",
        ) from error


def adapt(model: onnx.ModelProto, adapter: Mapping[str, Array], where: str) -> None:
    """Makes the arrays of an adapter constants of a model.

    Args:
        model: The model; it is changed.
        adapter: What :func:`read_adapter` returns.
        where: The adapter's file.

    Raises:
        InputDataError: The adapter is another model's.
    """
    graph, inputs = model.graph, declared_types(model.graph.input)
    for name, array in adapter.items():
        element, shape = inputs.get(name, (0, None))
        tensor = numpy_helper.from_array(array, name)
        fits = shape is None or (
            len(shape) == array.ndim
            and all(isinstance(a, str) or a == b for a, b in zip(shape, array.shape, strict=True))
        )
        if element != tensor.data_type or not fits:
            raise InputDataError(
                "the adapter does not fit the model",
                where=f"{where}, '{name}'",
                why="the model has no such input"
                if name not in inputs
                else f"it is {array.dtype}{list(array.shape)}, the input has the shape "
                f"{shape} and ONNX's element type {element}",
                fix="give the adapter that was made with this model",
            )
        defaults = [each for each in graph.initializer if each.name == name]
        for each in defaults:
            graph.initializer.remove(each)
        graph.initializer.append(tensor)
