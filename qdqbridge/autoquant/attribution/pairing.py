"""A float original written in the operators of a quantized graph, node by node.

Both graphs are brought to one form (:mod:`.common_form`) and aligned there. Where one node of the
form stands for several of the quantized graph - a norm in steps, each of them rounded - the
original gets these steps as well, so that each rounding has a place in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from qdqbridge.autoquant.attribution.common_form import (
    CommonForm,
    common_form,
    distance,
    in_place_of,
    is_conversion,
    unfolded,
    with_slices,
    without_arithmetic,
)
from qdqbridge.autoquant.planning.units import CLAMPS
from qdqbridge.core.graph.alignment import Alignment, align, main_operand
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, SQUEEZE, TRANSPOSE, UNSQUEEZE
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE, DYNAMIC_DENSE
from qdqbridge.core.ops.matmul import OPERATORS as MATRIX_PRODUCTS
from qdqbridge.core.ops.selection import SPLIT
from qdqbridge.core.ops.table import PRODUCTS

RESHAPES = (RESHAPE, FLATTEN, SQUEEZE, UNSQUEEZE)
_MATRIX_PRODUCTS = (*MATRIX_PRODUCTS, DYNAMIC_DENSE, DYNAMIC_BLOCK_DENSE)
_PRODUCTS = frozenset((*PRODUCTS, *_MATRIX_PRODUCTS))


@dataclass(frozen=True, slots=True)
class PairedGraphs:
    """Two graphs in the same operators.

    Attributes:
        reference: The float original, in the operators of the other one.
        quantized: The quantized graph, where quantization is in types alone.
        nodes: What corresponds, from nodes of ``reference`` to those of ``quantized``.
    """

    reference: Graph
    quantized: Graph
    nodes: Alignment


def paired_graphs(reference: Graph, quantized: Graph) -> PairedGraphs:
    """Brings a float original and a quantized graph together; neither is changed.

    Args:
        reference: The float graph.
        quantized: The quantized one.
    """
    if _splits(reference) != _splits(quantized):
        reference, quantized = with_slices(reference), with_slices(quantized)
    met = _met(reference, without_arithmetic(quantized).graph)
    if not any(node.op is TRANSPOSE for node in _unmet(met)):
        return met
    other = _met(reference, without_arithmetic(quantized, channels_first=True).graph)
    return other if len(_unmet(other)) < len(_unmet(met)) else met


def _splits(graph: Graph) -> int:
    return sum(node.op is SPLIT for node in graph.nodes)


def _unmet(met: PairedGraphs) -> list[Node]:
    return [n for n in met.quantized.nodes if computes(n) and n not in met.nodes.backward]


def _met(reference: Graph, quantized: Graph) -> PairedGraphs:
    own, theirs = common_form(reference), common_form(quantized)
    whole = _aligned(own, theirs)
    left = [
        [n for n in form.whole.nodes if n not in found and len(n.origin.nodes) > 1]
        for form, found in ((own, whole.forward), (theirs, whole.backward))
    ]
    if left[0] or left[1]:  # what is whole in one of them only: its steps may correspond
        own, theirs = unfolded(own, left[0]), unfolded(theirs, left[1])
        whole = _aligned(own, theirs)
    copy = copied(own.whole)
    pairs = Alignment()
    steps: dict[Node, list[Node]] = {}
    for a, b in whole.forward.items():
        made = _replacement_nodes(copy.nodes[a], own.parts(a), theirs.parts(b))
        steps[copy.nodes[a]] = made
        parts = theirs.parts(b) if len(made) > 1 else theirs.parts(b)[-1:]
        for node, step in zip(made, parts, strict=False):
            source = theirs.stands[step]
            # A step stands for its node where it gives the node's result, not what is before it.
            if any(theirs.values[value] in step.outputs for value in source.outputs):
                pairs.pair(node, source)
    copy.graph.nodes = [part for node in copy.graph.nodes for part in steps.get(node, [node])]
    return PairedGraphs(copy.graph, theirs.source, pairs)


def _aligned(own: CommonForm, theirs: CommonForm) -> Alignment:
    found = align(own.whole, theirs.whole, kin=_kin, replaced=False, apart=_apart)
    found.apart = None
    _pair_clamps(found, own.whole, theirs.whole)
    return found


def _pair_clamps(found: Alignment, a: Graph, b: Graph) -> None:
    """Pairs the clamps that stand behind pairs; a clamp in a type has no partner."""
    behind: dict[Value, Value] = dict(zip(b.inputs, a.inputs, strict=False))
    for node in b.nodes:
        source = main_operand(node)
        if node in found.backward:
            behind.update(zip(node.outputs, found.backward[node].outputs, strict=False))
        elif source in behind and keeps_elements(node):
            behind[node.output] = behind[source]
        elif source in behind and node.op in CLAMPS:
            partner = _clamp_of(behind[source], node, found)
            if partner is not None and found.pair(partner, node):
                behind[node.output] = partner.output


def _clamp_of(value: Value, like: Node, found: Alignment) -> Node | None:
    """Returns a free clamp of a value, of the same operator where there is one."""
    readers = list(value.users)
    while len(readers) == 1 and keeps_elements(readers[0][0]):
        readers = list(readers[0][0].output.users)
    free = [n for n, _ in readers if n.op in CLAMPS and n not in found.forward]
    return min(free, key=lambda node: node.op is not like.op, default=None)


def computes(node: Node) -> bool:
    """True of nodes that something has to correspond to: neither conversions nor reshapes."""
    return not keeps_elements(node)


def keeps_elements(node: Node) -> bool:
    """True of conversions, and of what only one graph reshapes: the elements and their order."""
    return is_conversion(node) or node.op in RESHAPES


def _kin(node: Node) -> tuple[str, int] | None:
    """Products of matrices are one operator, whatever computes them, of weights of one size.

    Clamps are looked through: a quantized graph may have them in the ranges of its types.
    """
    if keeps_elements(node) or node.op in CLAMPS:
        return None
    if node.op not in _PRODUCTS:
        return node.op.name, 0
    weight = node.optional(1)
    size = 0 if weight is None or weight.constant is None else weight.constant.size
    return ("product" if not _is_image(node) else node.op.name), size


def _is_image(node: Node) -> bool:
    geometry = None if node.op in _MATRIX_PRODUCTS else geometry_of(node)
    return geometry is not None and geometry.image


def _apart(a: Node, b: Node) -> float | None:
    """Returns how far the largest constants of two nodes are apart; None where they have none."""
    pair = _largest(a), _largest(b)
    if pair[0] is None or pair[1] is None:
        return None
    return distance(*(value.constant.numpy() for value in pair if value and value.constant))


def _largest(node: Node) -> Value | None:
    found = [v for v in node.inputs if v is not None and v.constant is not None]
    floats = [v for v in found if v.type.dtype.is_float and v.constant and v.constant.size > 1]
    return max(floats, key=lambda v: v.constant.size if v.constant else 0, default=None)


def _replacement_nodes(node: Node, own: Sequence[Node], theirs: Sequence[Node]) -> list[Node]:
    """Returns the nodes that stand in the place of one of the original: itself, or steps."""
    if len(theirs) == 1:
        return [node]
    alike = _wiring(own) == _wiring(theirs)
    made = in_place_of(node, own if alike else theirs, own=alike)
    return [node] if made is None else made


def _wiring(steps: Sequence[Node]) -> list[tuple[Hashable, ...]]:
    """Returns what steps compute from which: theirs, what is outside, or constants of a size."""
    places = {step.output: index for index, step in enumerate(steps)}

    def operand(value: Value | None) -> Hashable:
        if value is None or value.constant is None:
            return None if value is None else places.get(value, -1)
        data = value.constant
        return ("constant", data.size, data.numpy().item() if data.size == 1 else None)

    return [(step.op.name, step.attributes, *map(operand, step.inputs)) for step in steps]
