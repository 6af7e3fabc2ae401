"""Rewrites of how a model writes its operators and constants (see scrambler.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, version_converter

from tests.onnx_io.model_views import (
    DQ,
    Model,
    Q,
    add,
    array,
    attribute,
    fresh,
    insert,
    opset,
    parameters,
    readers,
    set_attribute,
)

_SOME = 0.5
_PAIRS = ("Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Mean", "BitwiseAnd", "BitwiseOr")
_EXTREMES = ("Min", "Max")
_BROADCASTING = 8
"""The opset since which all of these broadcast by themselves."""
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_HALF = 128


def swapped_operands(model: Model, rng: random.Random) -> None:
    """Operands of sums, products and extremes in another order."""
    if opset(model) < _BROADCASTING:
        return
    for node in model.graph.node:
        if node.domain or rng.random() < _SOME:
            continue
        if node.op_type in _PAIRS and len(node.input) > 1:
            node.input[:2] = [node.input[1], node.input[0]]
        elif node.op_type in _EXTREMES:
            order = list(node.input)
            rng.shuffle(order)
            node.input[:] = order


def identities(model: Model, rng: random.Random) -> None:
    """An Identity between two nodes."""
    made = {name for node in model.graph.node for name in node.output if name}
    made |= {value.name for value in model.graph.input}
    for node in list(model.graph.node):
        for index, name in enumerate(node.input):
            if name in made and rng.random() < _SOME / 3:
                link = helper.make_node("Identity", [name], [fresh("same")])
                node.input[index] = insert(model, link)


def initializers(model: Model, rng: random.Random) -> None:
    """Constant nodes become initializers."""
    for node in list(model.graph.node):
        tensor = attribute(node, "value", None)
        if node.op_type == "Constant" and tensor is not None and rng.random() < _SOME:
            named = onnx.TensorProto()
            named.CopyFrom(tensor)
            named.name = node.output[0]
            model.graph.initializer.append(named)
            model.graph.node.remove(node)


# ---- reshapes ---------------------------------------------------------------------------------


def reshape_targets(model: Model, rng: random.Random) -> None:
    """0, -1 and numbers in the target of a Reshape, wherever they mean the same."""
    shapes = _shapes(model)
    for node in model.graph.node:
        given = array(model, node.input[1]) if node.op_type == "Reshape" else None
        if given is None or attribute(node, "allowzero", 0):
            continue
        before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
        if before is None or after is None:
            continue
        if given.ndim != 1 or len(after) != len(given) or 0 in (*before, *after):
            continue
        target = _written(given.tolist(), before, after, rng)
        node.input[1] = add(model, np.array(target, np.int64))


def _written(
    given: list[int], before: list[int | str], after: list[int | str], rng: random.Random
) -> list[int]:
    left = {i for i, extent in enumerate(after) if not isinstance(extent, int)}
    target: list[int] = []
    for index, entry in enumerate(given):
        extent, source = after[index], before[index] if index < len(before) else None
        choices = [entry] if entry != -1 else []
        if isinstance(extent, int):
            choices.append(extent)
        if source is not None and source == extent:
            choices.append(0)
        target.append(rng.choice(choices) if choices else -1)
    if -1 in target or len(left - {i for i, entry in enumerate(target) if entry == 0}) > 0:
        return target if -1 in target else given
    if rng.random() < _SOME:
        target[rng.randrange(len(target))] = -1
    return target


def _shapes(model: Model) -> dict[str, list[int | str]]:
    """Extents by name: numbers, names, or a name of one's own for what is unknown."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found: dict[str, list[int | str]] = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        if not value.type.tensor_type.HasField("shape"):
            continue
        found[value.name] = [
            d.dim_value if d.HasField("dim_value") else d.dim_param or f"{value.name}:{i}"
            for i, d in enumerate(value.type.tensor_type.shape.dim)
        ]
    for tensor in model.graph.initializer:
        found[tensor.name] = list(tensor.dims)
    return found


def flatten_as_reshape(model: Model, rng: random.Random) -> None:
    """``Flatten(axis=1)`` becomes ``Reshape([0, -1])``, also with the extents as numbers."""
    shapes = _shapes(model)
    for node in model.graph.node:
        shape = shapes.get(node.input[0]) if node.op_type == "Flatten" else None
        if not shape or attribute(node, "axis", 1) != 1 or rng.random() < _SOME or 0 in shape:
            continue
        rest = [d for d in shape[1:] if isinstance(d, int)]
        first = shape[0] if isinstance(shape[0], int) and rng.random() < _SOME else 0
        known = len(rest) == len(shape) - 1 and rng.random() < _SOME
        target = [first, math.prod(rest) if known else -1]
        node.op_type = "Reshape"
        del node.attribute[:]
        node.input.append(add(model, np.array(target, np.int64)))


# ---- constants --------------------------------------------------------------------------------


def _stored(model: Model) -> Iterator[tuple[onnx.NodeProto, np.ndarray[Any, Any]]]:
    """Yields the DQ nodes of 8-bit constants with the integers, whose parameters are constants."""
    for node in list(model.graph.node):
        stored = array(model, node.input[0]) if node.op_type == DQ else None
        scale, zero_point = (None, None) if stored is None else parameters(model, node)
        computed = len(node.input) > 2 and node.input[2] and zero_point is None
        if stored is None or scale is None or computed or stored.dtype not in (np.int8, np.uint8):
            continue
        yield node, stored


def other_signedness(model: Model, rng: random.Random) -> None:
    """Constants of uint8 become int8 and the other way round, the zero point shifted.

    Those that something is multiplied by only where the zero point is 0 or 128: others have more
    than one signed form.
    """
    for node, stored in _stored(model):
        scale, zero_point = parameters(model, node)
        zeros = np.zeros(scale.shape, stored.dtype) if zero_point is None else zero_point
        middle = _HALF if stored.dtype == np.uint8 else 0
        weight = any(_weighs(r, node.output[0]) for r in readers(model, node.output[0]))
        if rng.random() < _SOME or (weight and (zeros != middle).any()):
            continue
        other, shift = (np.int8, -_HALF) if stored.dtype == np.uint8 else (np.uint8, _HALF)
        node.input[0] = add(model, (stored.astype(np.int16) + shift).astype(other))
        shifted = (zeros.astype(np.int16) + shift).astype(other)
        del node.input[2:]
        node.input.append(add(model, shifted))


def _weighs(reader: onnx.NodeProto, name: str) -> bool:
    moved = reader.op_type in ("Transpose", "Reshape", "Identity", "Cast", "Squeeze", "Unsqueeze")
    norm = "Normalization" in reader.op_type
    return moved or norm or (reader.op_type in _WEIGHTED and name in reader.input[1:])


def quantized_twice(model: Model, rng: random.Random) -> None:
    """``DQ(const)`` becomes ``DQ(Q(DQ(const)))`` with the same parameters."""
    for node, stored in _stored(model):
        if attribute(node, "block_size", 0) or node.domain or rng.random() < _SOME:
            continue
        scale, zero_point = parameters(model, node)
        if str(scale.dtype) != "float32" or not (scale > np.finfo(np.float32).tiny).all():
            continue
        zeros = np.zeros(scale.shape, stored.dtype) if zero_point is None else zero_point
        operands = [node.input[1], add(model, zeros)]
        real, again = fresh("real"), fresh("again")
        first = helper.make_node(DQ, [node.input[0], *operands], [real])
        second = helper.make_node(Q, [real, *operands], [again])
        for made in (second, first):
            if scale.ndim:
                set_attribute(made, "axis", attribute(node, "axis", 1))
            insert(model, made)
        node.input[0] = again


# ---- opsets -----------------------------------------------------------------------------------


def raised_opset(model: Model, rng: random.Random) -> None:
    """A later opset, by ONNX's own converter; a model that it cannot convert stays."""
    own = opset(model)
    if any(e.domain not in ("", "ai.onnx") for e in model.opset_import) or own < _BROADCASTING:
        return
    names = {tensor.name for tensor in model.graph.initializer}
    if names & {value.name for value in model.graph.input}:
        return
    target = rng.randint(own, max(own, 21))
    try:
        converted = version_converter.convert_version(model, target)
        onnx.checker.check_model(converted)
    except Exception:  # whatever the converter raises, the model is left as it is
        return
    if len(converted.graph.input) == len(model.graph.input):
        model.CopyFrom(converted)


def no_shapes(model: Model, rng: random.Random) -> None:
    """Intermediate tensors without declared types."""
    del rng
    del model.graph.value_info[:]
