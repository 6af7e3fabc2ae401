"""How inputs and outputs of a graph are stored: as real numbers, or as quantized integers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from qdqbridge.core.canonical.form import canonicalize
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, shiftable, shifted_params
from qdqbridge.core.ops.build import dequantized, quantized, requantized
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.rewrite import stored_behind
from qdqbridge.errors import InputDataError, UnsupportedTargetError

Interface: TypeAlias = Literal["float", "as-stored", "int8", "uint8"]
"""``float``: real numbers; ``as-stored``: the integers that the graph computes with; ``int8`` and
``uint8``: these, shifted by 128 where they have the other signedness."""

SCHEMA = "qdqbridge-interface 1"
METADATA = "qdqbridge.interface"
"""Where the metadata of a graph has its record, if its interface was chosen."""


def with_interface(graph: Graph, interface: Interface) -> Graph:
    """Returns a graph whose inputs and outputs are stored otherwise; results mean the same.

    ``float`` adds a quantize behind each quantized input and a dequantize before each output. The
    others drop the quantize of each input that nothing reads unquantized, and the dequantize of
    each output. Inputs and outputs that are not quantized stay as they are.

    Args:
        graph: A canonical graph; it is not changed.
        interface: How.

    Raises:
        InputDataError: There is no such interface.
        UnsupportedTargetError: 8 bits are asked for, and an input or output has another width.
    """
    if interface not in get_args(Interface):
        raise InputDataError(
            "there is no such interface",
            why=f"it is {interface!r}",
            fix=f"give one of {', '.join(get_args(Interface))}",
        )
    own = copied(graph).graph
    if interface == "float":
        _as_floats(own, Editor(own))
    else:
        _as_stored(own, Editor(own))
        if interface != "as-stored":
            _in_bytes(own, Editor(own), DType.of(np.dtype(interface)))
    Editor(own).finish()
    own = canonicalize(own)
    own.metadata[METADATA] = json.dumps(interface_record(own))
    return own


def _as_floats(graph: Graph, editor: Editor) -> None:
    for value in graph.inputs:
        if value.quant is not None:
            params = value.quant.params
            value.type = TensorType(params.expressed_dtype, value.type.shape)
            _insert_behind(editor, value, quantized(value, params))
    for slot, value in enumerate(graph.outputs):
        if value.quant is not None:
            graph.outputs[slot] = dequantized(value, value.quant.params.expressed_dtype)
            editor.insert(graph.outputs[slot])


def _as_stored(graph: Graph, editor: Editor) -> None:
    for value in graph.inputs:
        quantizes = [node for node, _ in value.users if node.op is QUANTIZE]
        asked = [node.output.quant.params for node in quantizes if node.output.quant is not None]
        others = any(node.op not in (QUANTIZE, SHAPE) for node, _ in value.users)
        if not asked or others or asked.count(asked[0]) != len(asked) or value in graph.outputs:
            continue
        params = asked[0]
        wide = params.widened()  # integers that come from outside may be any
        value.type = QuantType(wide, value.type.shape)
        ranged = value if wide == params else requantized(value, params)
        for node in quantizes:
            editor.replace_value(node.output, ranged)
        editor.insert(ranged)
    for slot, value in enumerate(graph.outputs):
        graph.outputs[slot] = stored_behind(value) or value


def _in_bytes(graph: Graph, editor: Editor, dtype: DType) -> None:
    for value in graph.inputs:
        params = _other_signedness(value, dtype, "input", value.name)
        if params is not None and value.quant is not None:
            stored = value.quant.params
            value.type = QuantType(params, value.type.shape)
            _insert_behind(editor, value, requantized(value, stored))
    for slot, (name, value) in enumerate(zip(graph.output_names, graph.outputs, strict=True)):
        params = _other_signedness(value, dtype, "output", name)
        if params is not None:
            graph.outputs[slot] = requantized(value, params)
            editor.insert(graph.outputs[slot])


def _other_signedness(value: Value, dtype: DType, what: str, name: str) -> QuantParams | None:
    """Returns the parameters that a value has as ``dtype``; None where it has them already."""
    if value.quant is None or value.quant.params.storage_dtype is dtype:
        return None
    params = value.quant.params
    shifted = shifted_params(params) if shiftable(params) else params
    if shifted.storage_dtype is not dtype:
        raise UnsupportedTargetError(
            f"the {what} cannot be {dtype}",
            where=name,
            why=f"it is stored as {params.storage_dtype}, whose numbers do not fit",
            fix="give as-stored, or quantize it to 8 bits",
        )
    return shifted


def _insert_behind(editor: Editor, value: Value, new: Value) -> None:
    """Makes the readers of ``value`` read ``new``, which is made of it."""
    editor.replace_value(value, new)
    editor.insert(new)


def interface_record(graph: Graph) -> Mapping[str, Any]:
    """Returns what a program needs to feed a graph: each input and output with its parameters.

    Per input and output: ``name``, ``dtype``, ``shape``, and for quantized ones ``scale``,
    ``zero_point`` and ``axis`` (None: one scale). An integer ``q`` is the real number
    ``scale * (q - zero_point)``.

    Args:
        graph: Any graph.
    """
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    return {
        "schema": SCHEMA,
        "inputs": [_record(value.name, value) for value in graph.inputs],
        "outputs": [_record(name, value) for name, value in outputs],
    }


def _record(name: str, value: Value) -> Mapping[str, Any]:
    shape = value.type.shape
    found: dict[str, Any] = {
        "name": name,
        "dtype": str(value.type.dtype),
        "shape": None if shape is None else list(shape),
    }
    if value.quant is not None:
        params = value.quant.params
        found["scale"] = params.scale.tolist()
        found["zero_point"] = params.zero_point.tolist()
        found["axis"] = params.axis
    return found
