"""Quantization of integers that only move: it comes from those who read them (idioms J4, G10).

Data movement, graph inputs and clips of integers do not say what these mean; the nodes behind
them do. ``propagate_parameters`` carries the parameters back from ``reinterpret`` nodes to where
the integers come from. Where nobody reads an input, and no node makes an output, nothing says what
the integers mean: ``release_interface`` makes them plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, per_tensor
from qdqbridge.core.ops.attributes import ClipAttrs, PadAttrs
from qdqbridge.core.ops.conversion import REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.ops.unary import CLIP

Hints: TypeAlias = "Mapping[Value, QuantParams | None]"


def propagate_parameters(graph: Graph, hints: Hints = MappingProxyType({})) -> bool:
    """Types integers by their readers, in place; returns whether any were.

    Args:
        graph: A raw graph.
        hints: What the graph said that moved integers mean; None where they are plain numbers.
    """
    wanted: dict[Value, set[QuantParams]] = {}
    chosen: dict[Value, QuantParams] = {}
    for node in reversed(graph.nodes):
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.op is REINTERPRET and source.quant is None:
            target = node.output.quant
            if target is not None:
                wanted.setdefault(source, set()).add(target.params.widened())
        elif _carries(node) and not any(hints.get(v, _UNTOLD) is None for v in node.outputs):
            found = {p for v in node.outputs for p in wanted.get(v, ())}
            hinted = [hints.get(v) for v in node.outputs]
            found = found or {p.widened() for p in hinted if p is not None}
            if len(found) != 1:
                continue
            (params,) = found
            if not params.per_tensor or float(params.scale) <= 0:  # negative ones turn maxima over
                continue
            chosen.update(dict.fromkeys(node.outputs, params))
            for value in _carried(node):
                wanted.setdefault(value, set()).add(params)
    for value in graph.inputs:
        hinted = hints.get(value)
        found = wanted.get(value) or (
            {hinted.widened()} if hinted is not None else set[QuantParams]()
        )
        if len(found) == 1 and value.quant is None and _only_moved(value, chosen):
            (params,) = found
            if params.storage_dtype is value.type.dtype or _holds(value, params):
                chosen[value] = params
    if chosen:
        _Typing(graph, chosen).run()
    return bool(chosen)


def release_interface(graph: Graph) -> None:
    """Makes plain integers of quantized inputs that no node reads, and of outputs that none makes.

    No file could say more of such inputs, nor of outputs that are quantized constants.
    """
    for value in graph.inputs:
        if value.quant is not None and not value.users:
            value.type = TensorType(value.type.dtype, value.type.shape)
    plain: dict[Value, Value] = {}
    for value in graph.outputs:
        if value.quant is not None and value.constant is not None and value not in plain:
            type_ = TensorType(value.type.dtype, value.type.shape)
            plain[value] = Value(type_, value.name, constant=value.constant)
    graph.outputs[:] = [plain.get(value, value) for value in graph.outputs]


def leave_as_stored(graph: Graph) -> bool:
    """Gives what an output reinterprets for that output; returns whether any did.

    A file says the same of both: integers that leave.
    """
    found = [_as_made(value) for value in graph.outputs]
    if found == graph.outputs:
        return False
    graph.outputs[:] = found
    Editor(graph).finish()
    return True


def _as_made(value: Value) -> Value:
    """Returns the value whose stored integers ``value`` gives another meaning; else ``value``."""
    node = value.producer
    if node is None or node.op is not REINTERPRET:
        return value
    source = node.operand(0)
    return source if source.type.dtype is value.type.dtype else value


_UNTOLD = per_tensor(DType.INT8, 1.0)


def _only_moved(value: Value, chosen: Mapping[Value, QuantParams]) -> bool:
    """True where nobody reads a value as plain numbers."""
    return all(n.op in (REINTERPRET, SHAPE) or n.outputs[0] in chosen for n, _ in value.users)


def _holds(value: Value, params: QuantParams) -> bool:
    """True where a host's bytes hold a sub-byte type."""
    wide, narrow = value.type.dtype, params.storage_dtype
    return narrow.bits < 8 and wide.bits == 8 and narrow.is_signed == wide.is_signed


def _carries(node: Node) -> bool:
    """True for a node that moves plain integers."""
    first = node.inputs[0]
    if first is None or first.quant is not None or not first.type.dtype.is_integer:
        return False
    if any(v.quant is not None or v.type.dtype is not first.type.dtype for v in node.outputs):
        return False
    moves = node.op.flow is Flow.MOVE or node.op is CONCAT
    return moves or CLIP.of(node) is not None


def _carried(node: Node) -> list[Value]:
    if node.op is CONCAT:
        return [v for v in node.inputs if v is not None]
    return [node.operand(0)]


class _Typing:
    def __init__(self, graph: Graph, chosen: dict[Value, QuantParams]) -> None:
        self.graph, self.chosen = graph, chosen
        self.editor = Editor(graph)
        self.new: dict[Value, Value] = {}

    def run(self) -> None:
        for value in self.graph.inputs:
            if value in self.chosen:
                self._type_input(value)
        for node in list(self.graph.nodes):
            if any(value in self.chosen for value in node.outputs):
                self._retype(node)
        self.editor.finish()

    def _type_input(self, value: Value) -> None:
        params = self.chosen[value]
        plain = value.type
        value.type = QuantType(params, plain.shape)
        self._serve(value, value, TensorType(plain.dtype, plain.shape))

    def _retype(self, node: Node) -> None:
        params = self.chosen[node.outputs[0]]
        carried = set(_carried(node))
        operands = [self._typed(v, params) if v in carried else v for v in node.inputs]
        attributes, op = node.attributes, node.op
        if isinstance(attributes, ClipAttrs):
            low = params.qmin if attributes.low is None else int(attributes.low)
            high = params.qmax if attributes.high is None else int(attributes.high)
            params = params.with_range(max(low, params.qmin), min(high, params.qmax))
            attributes, op = NO_ATTRIBUTES, REQUANTIZE
        elif isinstance(attributes, PadAttrs) and attributes.mode == "constant":
            code = np.asarray([attributes.value]).astype(params.storage_dtype.numpy)
            attributes = replace(attributes, value=float(dequantize(code, params)[0]))
        outputs = [Value(QuantType(params, v.type.shape), v.name) for v in node.outputs]
        Node(op, attributes, operands, outputs, node.origin)
        for old, new in zip(node.outputs, outputs, strict=True):
            self.editor.insert(new)
            self._serve(old, new, old.type)

    def _typed(self, value: Value | None, params: QuantParams) -> Value | None:
        if value is None:
            return None
        if value.constant is not None:
            data, kind = value.constant, params.storage_dtype
            if data.dtype is not kind:
                data = data.map(lambda array: array.astype(kind.numpy), dtype=kind)
            return Value(QuantType(params, value.type.shape), value.name, constant=data)
        value = self.new.get(value, value)
        if value.quant is not None and value.quant.params.same_mapping(params):
            return value
        typed = Value(QuantType(params, value.type.shape))
        Node(REINTERPRET, NO_ATTRIBUTES, [value], [typed])
        return typed

    def _serve(self, old: Value, new: Value, plain: object) -> None:
        """Makes readers of ``old`` read ``new``: as it is where they move it or type it."""
        self.new[old] = new
        readers = list(old.users)
        others = [(n, i) for n, i in readers if not self._takes(n, i)]
        if old is not new:
            self.editor.replace_value(old, new)
        for node, _ in readers:
            if node.op is REINTERPRET and node.output.quant is not None:
                self._drop(node, new)
        if others and isinstance(plain, TensorType):
            integers = Value(plain)
            Node(REINTERPRET, NO_ATTRIBUTES, [new], [integers])
            self.editor.insert(integers)
            for node, index in others:
                rewire(node, index, integers)

    def _drop(self, node: Node, new: Value) -> None:
        target, have = node.output.quant, new.quant
        if target is not None and have is not None and target.params.same_mapping(have.params):
            self.editor.replace_value(node.output, new)

    def _takes(self, node: Node, index: int) -> bool:
        if node.op is REINTERPRET:
            return True
        return node.outputs[0] in self.chosen and node.inputs[index] in _carried(node)
