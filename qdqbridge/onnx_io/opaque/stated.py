"""What an opaque node states though ONNX says that it holds anyway: it is left out.

Runtimes and optimizers that save a file write every attribute; exporters write some.
"""

from __future__ import annotations

from typing import Any

from onnx import AttributeProto, NodeProto

from qdqbridge.onnx_io.codecs.schema import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies
from qdqbridge.onnx_io.domains import plain_domain

_ALL_ONE = frozenset(("dilations", "strides"))
_ALL_ZERO = frozenset(("pads", "output_padding"))
_POOLS = frozenset(("LpPool", "MaxPool", "AveragePool"))
_WINDOWED = _POOLS | {"Conv", "ConvInteger", "ConvTranspose", "MaxUnpool"}
_ACTIVATIONS = {
    "GRU": [b"Sigmoid", b"Tanh"], "LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "RNN": [b"Tanh"],
}  # fmt: skip


def leave_out_defaults(node: NodeProto, opset: int) -> None:
    """Takes out of a node, and of those in its bodies, what it says without saying it.

    Args:
        node: The node; it is changed.
        opset: The version of its domain.
    """
    schema = schema_of(node.op_type, plain_domain(node.domain), opset)
    defaults = {} if schema is None else schema.attributes
    kept: list[AttributeProto] = []
    for attribute in node.attribute:
        known = defaults.get(attribute.name)
        if known is not None and (_is_default(attribute, known) or _is_implied(node, attribute)):
            continue
        for body in bodies(attribute):
            for inner in body.node:
                # no other domain says its version in a body, and defaults may differ
                leave_out_defaults(inner, 0 if inner.domain or node.domain else opset)
        kept.append(attribute)
    if len(kept) < len(node.attribute):
        kept = [AttributeProto.FromString(each.SerializeToString()) for each in kept]
        del node.attribute[:]
        node.attribute.extend(kept)


def _is_default(attribute: AttributeProto, known: Any) -> bool:
    """True where an attribute has the value that its schema gives it, bit for bit."""
    default = known.default_value
    if default.type != attribute.type or attribute.ref_attr_name:
        return False
    if attribute.type == AttributeProto.INT:
        return bool(default.i == attribute.i)
    if attribute.type == AttributeProto.FLOAT:
        return bool(default.f == attribute.f)
    return attribute.type == AttributeProto.STRING and bool(default.s == attribute.s)


def _is_implied(node: NodeProto, attribute: AttributeProto) -> bool:
    """True for what ONNX assumes in words: a window's steps, a recurrent layer's activations."""
    if node.op_type in _WINDOWED and attribute.name in _ALL_ONE | _ALL_ZERO:
        return set(attribute.ints) <= {int(attribute.name in _ALL_ONE)}
    activations = _ACTIVATIONS.get(node.op_type)
    if activations is None or attribute.name != "activations":
        return False
    named = [name.lower() for name in attribute.strings]
    return named in ([a.lower() for a in activations], [a.lower() for a in activations * 2])
