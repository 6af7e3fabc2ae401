"""Sparse initializers and constants of ONNX, made dense before anything else looks at them.

onnxruntime does the same when it loads a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.reading.structure import all_nodes, subgraphs
from qdqbridge.onnx_io.tensors import constant_from_proto, proto_from_constant

_MOST, _SPARSEST = 1 << 22, 100
"""A dense tensor may have so many elements, and so many for each that is stored."""
_ATTRIBUTE = "sparse_value"


def densify(graph: onnx.GraphProto, folder: Path, file: str) -> None:
    """Replaces the sparse tensors of a graph and of the bodies of its nodes by dense ones.

    Args:
        graph: The graph; changed in place.
        folder: Where its external data lies.
        file: File name, for messages.

    Raises:
        ModelFileError: External data cannot be read.
        InvalidModelError: Indices do not fit the values, the shape, or each other.
        UnsupportedModelError: Dense it would be out of proportion to the file.
    """
    _initializers(graph, folder, file)
    for node in all_nodes(graph.node):
        for inner in subgraphs(node):
            _initializers(inner, folder, file)
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            for attribute in node.attribute:
                if attribute.name == _ATTRIBUTE:
                    where = f"{file}, Constant '{node.output[0]}'"
                    dense = _densified(attribute.sparse_tensor, folder, where)
                    attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _initializers(graph: onnx.GraphProto, folder: Path, file: str) -> None:
    for tensor in graph.sparse_initializer:
        graph.initializer.append(_densified(tensor, folder, f"{file}, sparse initializer"))
    graph.ClearField("sparse_initializer")


def _densified(tensor: onnx.SparseTensorProto, folder: Path, where: str) -> onnx.TensorProto:
    """Source: ONNX's ``SparseTensorProto``: indices are places in order, or one per axis."""
    name = tensor.values.name
    stored = constant_from_proto(tensor.values, folder, where)
    where = f"{where} '{name}'" if name else where
    indices = constant_from_proto(tensor.indices, folder, where).numpy()
    shape, count = tuple(tensor.dims), int(np.prod(list(tensor.dims), dtype=object))
    if stored.dtype is DType.STRING or min(shape, default=0) < 0 or len(stored.shape) != 1:
        raise _invalid(where, f"it has {stored.dtype}{list(stored.shape)} for {list(shape)}")
    if count > _MOST + _SPARSEST * stored.size:
        raise UnsupportedModelError(
            "a sparse tensor is too sparse to be made dense",
            where=where,
            why=f"it would have {count} elements, and stores {stored.size}",
            fix="replace it by operators on what it stores",
        )
    places = _places(indices, shape, stored.size, where)
    if len(places) and not 0 <= places.min() <= places.max() < count:
        raise _invalid(where, f"an index lies outside of {list(shape)}")
    if len(np.unique(places)) != len(places):
        raise _invalid(where, "an index is there twice")
    values = stored.numpy()
    dense = np.zeros(count, values.dtype)
    dense[places] = values
    return proto_from_constant(name, Constant.of(dense.reshape(shape)))


def _places(
    indices: NDArray[Any], shape: tuple[int, ...], count: int, where: str
) -> NDArray[np.int64]:
    """Returns the places of the stored elements in the dense tensor, in row-major order."""
    if indices.shape == (count,) and indices.dtype == np.int64:
        return indices
    if indices.shape != (count, len(shape)) or indices.dtype != np.int64:
        raise _invalid(where, f"its indices are {indices.dtype}{list(indices.shape)}")
    if ((indices < 0) | (indices >= np.asarray(shape, np.int64))).any():
        raise _invalid(where, f"an index lies outside of {list(shape)}")
    return np.asarray(np.ravel_multi_index(tuple(indices.T), shape), np.int64)


def _invalid(where: str, why: str) -> InvalidModelError:
    return InvalidModelError(
        "a sparse tensor makes no sense", where=where, why=why, fix="export the model again"
    )
