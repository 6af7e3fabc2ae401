"""Rewrites of how a model writes its weights (see scrambler.py)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.onnx_io.model_views import (
    Model,
    Q,
    add,
    attribute,
    axis_of,
    fresh,
    insert,
    parameters,
    readers,
    set_attribute,
    weights,
)

_SOME = 0.5
_WEIGHTED = ("Conv", "Gemm", "MatMul", "Transpose")


def float_weights(model: Model, rng: random.Random) -> None:
    """``int -> DQ`` becomes ``float -> Q -> DQ`` with values that round back to the integers."""
    for node, stored in list(weights(model)):
        scale, zero_point = parameters(model, node)
        if scale is None or zero_point is None or rng.random() < _SOME or (scale <= 0).any():
            continue
        if attribute(node, "block_size", 0):
            continue
        shape = [1] * stored.ndim
        if scale.size > 1:
            shape[axis_of(node, stored.ndim)] = scale.size
        centered = stored.astype(np.float64) - zero_point.astype(np.float64).reshape(
            shape if zero_point.size > 1 else ()
        )
        noise = np.random.default_rng(rng.randrange(2**32)).uniform(-0.4, 0.4, stored.shape)
        real = ((centered + noise) * scale.reshape(shape if scale.size > 1 else ())).astype(
            np.float32
        )
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        twin.op_type, twin.name = Q, ""
        twin.input[0], twin.output[0] = add(model, real), fresh("wq")
        node.input[0] = insert(model, twin)


def unsigned_weights(model: Model, rng: random.Random) -> None:
    """Symmetric int8 weights become uint8 ones around 128."""
    for node, stored in list(weights(model)):
        scale, zero_point = parameters(model, node)
        computed = len(node.input) > 2 and node.input[2] and zero_point is None
        if stored.dtype != np.int8 or scale is None or computed or rng.random() < _SOME:
            continue
        if zero_point is not None and zero_point.any():
            continue
        if any(r.op_type not in _WEIGHTED for r in readers(model, node.output[0])):
            continue
        zeros = np.full(scale.shape, 128, np.uint8)
        node.input[0] = add(model, (stored.astype(np.int16) + 128).astype(np.uint8))
        del node.input[2:]
        node.input.append(add(model, zeros))


def _swapped(model: Model, node: onnx.NodeProto, stored: np.ndarray[Any, Any]) -> str:
    """A DQ of the transposed matrix, with its axis moved along; returns its result."""
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    twin.name = ""
    twin.input[0] = add(model, np.ascontiguousarray(stored.T))
    twin.output[0] = fresh("wt")
    scale, _ = parameters(model, node)
    if scale is not None and scale.size > 1:
        set_attribute(twin, "axis", 1 - axis_of(node, 2))
    return insert(model, twin)


def _matrices(
    model: Model,
) -> Iterator[tuple[onnx.NodeProto, np.ndarray[Any, Any], onnx.NodeProto]]:
    """Yields DQ, integers and reader of matrices that a Gemm or MatMul has as second operand."""
    for node, stored in list(weights(model)):
        found = readers(model, node.output[0])
        scale, _ = parameters(model, node)
        if stored.ndim != 2 or len(found) != 1 or scale is None:
            continue
        if attribute(node, "block_size", 0):
            continue
        if found[0].op_type in ("Gemm", "MatMul") and found[0].input[1] == node.output[0]:
            yield node, stored, found[0]


def trans_b(model: Model, rng: random.Random) -> None:
    for node, stored, reader in _matrices(model):
        if reader.op_type == "Gemm" and rng.random() < _SOME:
            reader.input[1] = _swapped(model, node, stored)
            set_attribute(reader, "transB", 1 - attribute(reader, "transB", 0))


def transpose_behind(model: Model, rng: random.Random) -> None:
    """``DQ(w) -> DQ(w transposed) -> Transpose``."""
    for node, stored, reader in _matrices(model):
        if rng.random() < _SOME:
            swapped = _swapped(model, node, stored)
            made = helper.make_node("Transpose", [swapped], [fresh("t")])
            set_attribute(made, "perm", rng.choice([None, [1, 0]]))
            reader.input[1] = insert(model, made)


def gemm_as_matmul(model: Model, rng: random.Random) -> None:
    """``Gemm(x, w, b)`` becomes ``Add(MatMul(x, w), b)``, and a MatMul a Gemm."""
    for _, _, reader in list(_matrices(model)):
        if rng.random() < _SOME:
            continue
        if reader.op_type == "Gemm" and not attribute(reader, "transB", 0):
            if attribute(reader, "alpha", 1.0) != 1 or attribute(reader, "beta", 1.0) != 1:
                continue
            product = fresh("mm")
            made = helper.make_node("MatMul", reader.input[:2], [product])
            if len(reader.input) > 2:
                addends = [product, reader.input[2]]
                rng.shuffle(addends)
                insert(model, helper.make_node("Add", addends, [reader.output[0]]))
            else:
                made.output[0] = reader.output[0]
            model.graph.node.remove(reader)
            insert(model, made)
