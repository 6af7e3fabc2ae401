"""How graphs are put for OpenVINO: the same numbers in forms that it reads.

Measured on OpenVINO 2026.4.1; each legalization keeps a rule of :mod:`.openvino`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.elementwise import ADD, SUB
from qdqbridge.targets.profiles.legalization import Cost, Legalization, replace_operand
from qdqbridge.targets.profiles.openvino.reductions import guarded_reductions


def whole_blocks(graph: Graph) -> Iterator[Cost]:
    """Cuts blocks of weights whose last one is shorter into smaller ones of the same scales."""
    editor, cut = Editor(graph), dict[Value, Value]()
    for node in graph.nodes:
        for value in node.inputs:
            if value is None or value.constant is None or value.quant is None or value in cut:
                continue
            params = _divided(value.quant.params, value.constant.shape)
            if params is not None:
                cut[value] = constant(value.constant, params, value.name)
    for old, new in cut.items():
        editor.replace_value(old, new)
    yield from ()


def _divided(params: QuantParams, shape: tuple[int, ...]) -> QuantParams | None:
    """Returns parameters in blocks that divide the extent; None where they do already."""
    size, axis = params.block_size, params.axis
    if size is None or axis is None or shape[axis] % size == 0:
        return None
    smaller = math.gcd(shape[axis], size)
    kept = [slice(None)] * len(shape)
    kept[axis] = slice(shape[axis] // smaller)
    scale, zero_point = (
        np.repeat(each, size // smaller, axis)[tuple(kept)]
        for each in (params.scale, params.zero_point)
    )
    return replace(params, scale=scale, zero_point=zero_point, block_size=smaller)


def float_terms(graph: Graph) -> Iterator[Cost]:
    """Makes vectors that are added to floats floats: stored, they end the process."""
    for node in list(graph.nodes):
        if node.op is not DEQUANTIZE or node.output.type.dtype is not DType.FLOAT32:
            continue
        stored = node.operand(0)
        if stored.constant is None or stored.quant is None or len(stored.constant.shape) != 1:
            continue
        readers = [(user, index) for user, index in node.output.users if user.op in (ADD, SUB)]
        if readers:
            real = dequantize(stored.constant.numpy(), stored.quant.params)
            value = constant(real, None, stored.name)
            for user, index in readers:
                replace_operand(user, index, value)
    yield from ()


LEGALIZATIONS: tuple[Legalization, ...] = (
    Legalization("whole-blocks", whole_blocks),
    Legalization("stored-terms", float_terms),
    Legalization("rounded-extremes", guarded_reductions),
)
