"""Integer graph inputs that are only dequantized carry the parameters in their type (idiom J4)."""

from __future__ import annotations

from qdqbridge.graph.edit import Editor
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.types import QuantType


def type_inputs(graph: Graph) -> None:
    """Gives every integer input the quantized type that all of its readers agree on."""
    editor = Editor(graph)
    changed = False
    for value in graph.inputs:
        if value.quant or not value.type.dtype.is_integer or editor.is_output(value):
            continue
        readers = [node for node, _ in value.users]
        if not readers or any(node.op.name != "reinterpret" for node in readers):
            continue
        types = {node.output.type for node in readers}
        target = next(iter(types))
        if len(types) != 1 or not isinstance(target, QuantType):
            continue
        value.type = target
        for node in readers:
            editor.replace_value(node.output, value)
        changed = True
    if changed:
        editor.finish()
