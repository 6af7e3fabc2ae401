"""Puts decided parameters into a graph: every value is rounded once, the rules do the rest."""

from __future__ import annotations

from qdqbridge.autoquant.biases import is_rounded, product_of, stored_bias
from qdqbridge.autoquant.decide import Decision
from qdqbridge.autoquant.plan import Derived, Weight
from qdqbridge.canonical import canonicalize
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.copying import copied
from qdqbridge.graph.edit import Editor, rewire
from qdqbridge.graph.graph import NO_ORIGIN, Graph, Node, Value
from qdqbridge.graph.numerics import quantize
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.ops.build import constant, dequantized, quantized


def apply(decision: Decision) -> Graph:
    """Returns the plan's graph quantized, canonical; the float graph is not changed.

    ``quantize`` and ``dequantize`` go behind every value with parameters and before every weight;
    the canonical rules move them into the types. A bias whose sum nobody rounds is stored as well:
    kernels add it as an integer.
    """
    copy = copied(decision.plan.graph)
    graph = copy.graph
    editor = Editor(graph)
    for weight, params in decision.weights.items():
        _store(copy.nodes[weight.node], weight, params, decision)
    for weight in decision.plan.weights:
        if isinstance(weight.spec, Derived):
            _store_bias(copy.nodes[weight.node], weight, decision)
    unrounded = {(copy.nodes[node], index) for node, index in decision.plan.unrounded}
    for value, params in decision.values.items():
        _round(editor, copy.values[value], params, unrounded)
    editor.finish()
    graph.canonical, graph.notes = False, []  # what stood in the way of integers stands no more
    return canonicalize(graph)


def stored_integers(weight: Weight, params: QuantParams, decision: Decision) -> Constant:
    """Returns the stored integers of a weight: those decided, else the nearest ones."""
    constant_ = weight.value.constant
    assert constant_ is not None
    integers = decision.integers.get(weight)
    if integers is not None:
        return Constant.of(integers)
    return constant_.map(lambda array: quantize(array, params), dtype=params.storage_dtype)


def _store(node: Node, weight: Weight, params: QuantParams, decision: Decision) -> None:
    value = weight.value
    stored = stored_integers(weight, params, decision)
    real = dequantized(
        constant(stored, params, value.name), value.type.dtype, node.origin, value.name
    )
    rewire(node, weight.index, real)


def _store_bias(node: Node, bias: Weight, decision: Decision) -> None:
    """Stores the bias of a sum that leaves as a real number; where it is rounded the rules do."""
    product, value = product_of(bias), bias.value
    if product is None or value.constant is None or is_rounded(product, decision):
        return
    stored = stored_bias(bias, decision, value.constant.numpy())
    if stored is not None:
        data = constant(Constant.of(stored[0]), stored[1], value.name)
        rewire(node, bias.index, dequantized(data, value.type.dtype, node.origin, value.name))


def _round(
    editor: Editor, value: Value, params: QuantParams, unrounded: set[tuple[Node, int]]
) -> None:
    """Makes all readers of ``value`` but a few read ``dequantize(quantize(value))``."""
    origin = NO_ORIGIN if value.producer is None else value.producer.origin
    stored = quantized(value, params, origin, f"{value.name}_quantized")
    real = dequantized(stored, value.type.dtype, origin, value.name)
    kept = [user for user in value.users if user in unrounded]
    editor.replace_value(value, real)
    editor.insert(real)
    for node, index in kept:
        rewire(node, index, value)
