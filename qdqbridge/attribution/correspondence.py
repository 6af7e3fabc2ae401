"""Which values of a float graph are quantized in another one, and how.

Nodes correspond by :func:`qdqbridge.graph.alignment.align`. The quantized graph has conversions
that the float one has not, and has taken activations into the ranges of what they clamp; so a
quantized result stands for the value behind the activations that only the float graph has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.alignment import Alignment, align, main_operand
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.numerics import dequantize
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.ops.composition import CompositionAttrs
from qdqbridge.ops.data_movement import FLATTEN, RESHAPE, SQUEEZE, UNSQUEEZE
from qdqbridge.ops.elementwise import ADD
from qdqbridge.ops.matmul import OPERATORS as MATRIX_PRODUCTS
from qdqbridge.ops.table import PRODUCTS

Array = NDArray[Any]
_BIAS = 2
_RESHAPES = (RESHAPE, FLATTEN, SQUEEZE, UNSQUEEZE)


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """One tensor of the float graph that the quantized graph rounds.

    Attributes:
        kind: ``activation``, ``weight``, ``bias`` or ``constant``.
        value: The tensor of the float graph.
        node: The node of the float graph that makes it, or that reads the constant.
        theirs: The tensor of the quantized graph.
        their_node: The node of the quantized graph likewise.
        params: How an activation is rounded; None for constants, which are rounded already.
        replaced: What a constant has become, as real numbers in the shape of ``value``.
    """

    kind: str
    value: Value
    node: Node | None
    theirs: Value
    their_node: Node | None
    params: QuantParams | None = None
    replaced: Array | None = None

    @property
    def name(self) -> str:
        """The tensor's name, in the float model where it has one."""
        return self.value.name or self.theirs.name


@dataclass(slots=True)
class Correspondence:
    """What corresponds.

    Attributes:
        nodes: Nodes of the quantized graph by those of the float graph.
        values: For values of the quantized graph, those of the float graph.
        rounded: What is rounded, in the order of the quantized graph.
        unknown: Quantized nodes to which nothing corresponds, conversions left out.
    """

    nodes: Alignment
    values: dict[Value, Value] = field(default_factory=dict[Value, Value])
    rounded: list[Rounded] = field(default_factory=list[Rounded])
    unknown: list[Node] = field(default_factory=list[Node])


def correspondence(reference: Graph, quantized: Graph) -> Correspondence:
    """Aligns a quantized graph with its float original.

    Args:
        reference: The float graph.
        quantized: The quantized one.
    """
    nodes = align(reference, quantized, kin=_kin, replaced=False)
    found = Correspondence(nodes)
    behind: dict[Value, Value] = {}
    for index, value in enumerate(quantized.inputs):
        if index < len(reference.inputs):
            found.values[value] = _input(reference, value.name, index)
    for node in quantized.nodes:
        _follow(node, found, behind)
    return found


def _kin(node: Node) -> str | None:
    """Products of matrices are one operator; a composition is what it ends with."""
    if _keeps_elements(node):
        return None
    if isinstance(node.attributes, CompositionAttrs):
        return node.attributes.steps[-1].op.name
    return "product" if node.op in MATRIX_PRODUCTS else node.op.name


def _input(reference: Graph, name: str, index: int) -> Value:
    named = [value for value in reference.inputs if value.name == name]
    return named[0] if len(named) == 1 else reference.inputs[index]


def _follow(node: Node, found: Correspondence, behind: dict[Value, Value]) -> None:
    partner = found.nodes.backward.get(node)
    if partner is None:
        source = main_operand(node)
        if source in found.values and _keeps_elements(node):
            own = found.values[source]
            found.values[node.output] = own
            if node.op.flow is Flow.CONVERT:
                _activation(own, node.output, node, found)
        elif node.op.flow is not Flow.CONVERT:
            found.unknown.append(node)
        return
    bias = _bias_add(partner, node, found.nodes)
    for mine, theirs in zip(partner.outputs, node.outputs, strict=False):
        own = mine if bias is None else bias.output
        own = _behind_activations(own, found.nodes) if theirs.quant is not None else own
        found.values[theirs] = own
        if node.op.flow is not Flow.MOVE:
            _activation(own, theirs, node, found)
    found.rounded.extend(_constants(partner, node))
    if bias is not None:
        constant = next(v for v in bias.inputs if v is not None and v.constant is not None)
        found.rounded.extend(_constant("bias", constant, bias, node.operand(_BIAS), node))


def _bias_add(partner: Node, node: Node, nodes: Alignment) -> Node | None:
    """Returns the Add that is the bias of a product which only the quantized graph has in it."""
    if node.op not in PRODUCTS or node.optional(_BIAS) is None:
        return None
    if partner.optional(_BIAS) is not None or len(partner.output.users) != 1:
        return None
    ((user, _),) = partner.output.users
    constant = [v for v in user.inputs if v is not None and v.constant is not None]
    return user if user.op is ADD and constant and user not in nodes.forward else None


def _keeps_elements(node: Node) -> bool:
    """True of conversions, and of what only one graph reshapes: the elements and their order."""
    return node.op.flow is Flow.CONVERT or node.op in _RESHAPES


def _activation(own: Value, theirs: Value, node: Node, found: Correspondence) -> None:
    if theirs.quant is not None:
        params = theirs.quant.params
        found.rounded.append(Rounded("activation", own, own.producer, theirs, node, params))


def _behind_activations(value: Value, nodes: Alignment) -> Value:
    """Returns the value behind activations of the float graph to which nothing corresponds."""
    while len(value.users) == 1:
        ((user, _),) = value.users
        if user in nodes.forward or user.op.arity != 1 or len(user.outputs) != 1:
            return value
        value = user.output
    return value


def _constants(partner: Node, node: Node) -> Iterator[Rounded]:
    for index, theirs in enumerate(node.inputs):
        own = partner.optional(index)
        if theirs is None or theirs.constant is None or own is None or own.constant is None:
            continue
        if own.constant.size <= 1 and theirs.quant is None:
            continue
        product = node.op in PRODUCTS
        kind = ("bias" if index == _BIAS else "weight") if product else "constant"
        yield from _constant(kind, own, partner, theirs, node)


def _constant(kind: str, own: Value, partner: Node, theirs: Value, node: Node) -> Iterator[Rounded]:
    assert own.constant is not None
    original, real = own.constant.numpy(), _real(theirs)
    if original.dtype.kind != "f" or real.dtype.kind != "f":
        return
    laid = _as_laid(original, real)
    if laid is not None and not np.array_equal(laid, original):
        yield Rounded(kind, own, partner, theirs, node, None, laid)


def _real(value: Value) -> Array:
    assert value.constant is not None
    stored = value.constant.numpy()
    return stored if value.quant is None else dequantize(stored, value.quant.params)


def _as_laid(original: Array, real: Array) -> Array | None:
    """Returns a constant in the original's layout: products may hold their weight transposed."""
    if real.shape == original.shape and not (real.ndim == 2 and real.shape[0] == real.shape[1]):
        return real
    choices = [real] if real.shape == original.shape else []
    if real.ndim == 2 and real.T.shape == original.shape:
        choices.append(real.T)
    if not choices and real.size == original.size:
        choices.append(real.reshape(original.shape))
    distance = [float(np.square(choice - original).sum()) for choice in choices]
    return choices[int(np.argmin(distance))] if choices else None


def share(found: Correspondence, quantized: Graph) -> float:
    """Returns the share of the quantized graph's nodes to which one corresponds."""
    computing = [node for node in quantized.nodes if node.op.flow is not Flow.CONVERT]
    return 1.0 - len(found.unknown) / len(computing) if computing else 1.0
