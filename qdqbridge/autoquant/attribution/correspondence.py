"""Which values of a float graph are quantized in another one, and how.

Nodes correspond if they can be paired one by one. The quantized graph has conversions
that the float one has not, and has taken activations into the ranges of what they clamp; so a
quantized result stands for the value behind the activations that only the float graph has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from qdqbridge.core.graph.edit import link, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.ops.data_movement import (
    FLATTEN,
    IDENTITY,
    RESHAPE,
    SQUEEZE,
    TRANSPOSE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.dynamic import (
    DYNAMIC_BLOCK_DENSE,
    DYNAMIC_CONV,
    DYNAMIC_DENSE,
    UNROUNDED,
    rounding_of,
)
from qdqbridge.core.ops.matmul import OPERATORS as MATRIX_PRODUCTS
from qdqbridge.core.ops.selection import SPLIT
from qdqbridge.core.ops.table import PRODUCTS
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs

# ---- A float original written in the operators of a quantized graph, node by node ----------------
# Both graphs are brought to one form (:mod:`.common_form`) and aligned there. Where one node of the
# form stands for several of the quantized graph - a norm in steps, each of them rounded - the
# original gets these steps as well, so that each rounding has a place in it.


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
    """
    if _splits(reference) != _splits(quantized):
        reference, quantized = with_slices(reference), with_slices(quantized)
    met = _met(reference, without_arithmetic(quantized).graph)
    # A file that a channels-last converter wrote has Transposes that the float model has not;
    # brought to channels-first they may vanish, and the nodes around them meet.
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


# ---- Which values of a float graph are quantized in another one, and how -------------------------


Array = NDArray[Any]
_BIAS = 2
_LAST_BITS = 2.0**-21
"""By what part of itself a float is another number: scaled channels are divided in float32."""
BODY = "body"


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """One tensor of the float graph that the quantized graph rounds.

    Attributes:
        kind: ``activation``, ``weight``, ``bias``, ``constant``, or ``body``: the result of a node
            whose body (of an If, a Loop or a Scan) is another one.
        value: The tensor of the float graph.
        node: The node of the float graph that makes it, or that reads the constant.
        theirs: The tensor of the quantized graph.
        their_node: The node of the quantized graph likewise.
        params: How an activation is rounded; None for constants, which are rounded already, and
            for what a product rounds while it runs.
        replaced: What a constant has become, as real numbers in the shape of ``value``.
        operands: What the node of the quantized graph reads, as values of the float graph; of a
            body alone.
        running: What a product that quantizes while it runs makes of the activation.
    """

    kind: str
    value: Value
    node: Node | None
    theirs: Value
    their_node: Node | None
    params: QuantParams | None = None
    replaced: Array | None = None
    operands: tuple[Value | Array | None, ...] = ()
    running: Callable[[Array], Array] | None = None

    @property
    def name(self) -> str:
        """The tensor's name, in the float model where it has one."""
        return self.value.name or self.theirs.name


@dataclass(slots=True)
class Correspondence:
    """What corresponds.

    Attributes:
        reference: The float graph, in the operators of the quantized one.
        quantized: The quantized graph, where quantization is in types alone.
        nodes: Nodes of the quantized graph by those of the float graph.
        values: For values of the quantized graph, those of the float graph.
        rounded: What is rounded, in the order of the quantized graph; last what products round
            while they run.
        running: What products round while they run: of each of them, the rounded tensor.
        unknown: Quantized nodes to which nothing corresponds, conversions left out.
    """

    reference: Graph
    quantized: Graph
    nodes: Alignment
    values: dict[Value, Value] = field(default_factory=dict[Value, Value])
    rounded: list[Rounded] = field(default_factory=list[Rounded])
    running: dict[Node, Rounded] = field(default_factory=dict[Node, Rounded])
    unknown: list[Node] = field(default_factory=list[Node])


def correspondence(reference: Graph, quantized: Graph) -> Correspondence:
    """Aligns a quantized graph with its float original.

    Args:
        reference: The float graph.
    """
    met = paired_graphs(reference, quantized)
    found = Correspondence(met.reference, met.quantized, met.nodes)
    for index, value in enumerate(met.quantized.inputs):
        if index < len(met.reference.inputs):
            found.values[value] = _input(met.reference, value.name, index)
    for node in met.quantized.nodes:
        _follow(node, found)
    _read_rounded(found)
    return found


def _input(reference: Graph, name: str, index: int) -> Value:
    named = [value for value in reference.inputs if value.name == name]
    return named[0] if len(named) == 1 else reference.inputs[index]


def _follow(node: Node, found: Correspondence) -> None:
    partner = found.nodes.backward.get(node)
    if partner is None:
        source = main_operand(node)
        if source in found.values and keeps_elements(node):
            own = found.values[source]
            own = _behind_clamps(own, node.output, found.nodes)
            found.values[node.output] = own
            if node.op.flow is Flow.CONVERT:
                _activation(own, node.output, node, found)
        elif computes(node):
            found.unknown.append(node)
        return
    for mine, theirs in zip(partner.outputs, node.outputs, strict=False):
        own = _behind_clamps(mine, theirs, found.nodes)
        found.values[theirs] = own
        if node.op.flow is not Flow.MOVE:
            _activation(own, theirs, node, found)
    found.rounded.extend(_constants(partner, node))
    found.rounded.extend(_bodies(partner, node, found))


def _bodies(partner: Node, node: Node, found: Correspondence) -> Iterator[Rounded]:
    """Yields the results of a node that is kept as it is, and holds something else."""
    pair = partner.attributes, node.attributes
    if not all(isinstance(each, OpaqueAttrs) for each in pair) or pair[0] == pair[1]:
        return
    operands: list[Value | Array | None] = []
    for value in node.inputs:
        if value is not None and value.constant is None and value not in found.values:
            return
        operands.append(
            None if value is None
            else found.values[value] if value.constant is None
            else value.constant.numpy()
        )  # fmt: skip
    for own, theirs in zip(partner.outputs, node.outputs, strict=False):
        yield Rounded(BODY, own, partner, theirs, node, operands=tuple(operands))


def _read_rounded(found: Correspondence) -> None:
    """Gives products that quantize while they run a value of their own, which they alone read.

    Products that round one value in one way share it.
    """
    shared: dict[Hashable, Rounded] = {}
    behind: dict[Node | None, list[Node]] = {}
    for node, partner in found.nodes.backward.items():
        running, own = rounding_of(node), partner.optional(0)
        if running is None or own is None or own.constant is not None:
            continue
        key = (own, node.op, None if node.op is DYNAMIC_CONV else node.attributes)
        if key not in shared:
            read = Value(own.type, own.name)
            identity = Node(IDENTITY, NO_ATTRIBUTES, [own], [read], partner.origin)
            link(identity)
            behind.setdefault(own.producer, []).append(identity)
            shared[key] = Rounded(
                "activation", read, identity, node.operand(0), node, running=running
            )
        rewire(partner, 0, shared[key].value)
        found.running[node] = shared[key]
    found.rounded.extend(shared.values())
    nodes = [n for node in found.reference.nodes for n in (node, *behind.get(node, ()))]
    found.reference.nodes = [*behind.get(None, ()), *nodes]


def _activation(own: Value, theirs: Value, node: Node, found: Correspondence) -> None:
    if theirs.quant is not None:
        params = theirs.quant.params
        own = _of_one_reader(own, theirs, found.nodes)
        found.rounded.append(Rounded("activation", own, own.producer, theirs, node, params))


def _of_one_reader(own: Value, theirs: Value, nodes: Alignment) -> Value:
    """Returns the moved value where only what is moved is rounded, and others read it as it is."""
    while len(own.users) > 1 and len(theirs.users) == 1:
        ((user, _),) = theirs.users
        partner = nodes.backward.get(user)
        if partner is None or user.op.flow is not Flow.MOVE or len(partner.outputs) != 1:
            break
        own, theirs = partner.output, user.output
    return own


def _behind_clamps(own: Value, theirs: Value, nodes: Alignment) -> Value:
    """Returns the value behind clamps of the float graph that are a type in the quantized one."""
    if theirs.quant is None or _clamped_later(theirs):
        return own
    while len(own.users) == 1:
        ((user, _),) = own.users
        if user in nodes.forward or user.op not in CLAMPS:
            break
        own = user.output
    return own


def _clamped_later(theirs: Value) -> bool:
    """True where a value with negative numbers is rounded once more, perhaps behind moves."""
    if theirs.quant is None or (theirs.quant.params.zero_point <= theirs.quant.params.qmin).any():
        return False
    while len(theirs.users) == 1:
        ((user, _),) = theirs.users
        if user.op is REQUANTIZE:
            return True
        if user.op.flow is not Flow.MOVE or len(user.outputs) != 1:
            break
        theirs = user.output
    return False


def _constants(partner: Node, node: Node) -> Iterator[Rounded]:
    product = node.op in PRODUCTS or node.op in UNROUNDED
    if partner.op is not node.op and not (product and partner.op in PRODUCTS):
        return
    for index, theirs in enumerate(node.inputs):
        own = _facing(partner, index)
        if theirs is None or theirs.constant is None or own is None or own.constant is None:
            continue
        kind = ("bias" if index == _BIAS else "weight") if product else "constant"
        yield from _match_rounded_constant(kind, own, partner, theirs, node)


def _facing(partner: Node, index: int) -> Value | None:
    """Returns the operand in a place; of those that may change places, the constant one."""
    if index < partner.op.commuting:
        operands = partner.inputs[: partner.op.commuting]
        constants = [v for v in operands if v is not None and v.constant is not None]
        if len(constants) == 1:
            return constants[0]
    return partner.optional(index)


def _match_rounded_constant(
    kind: str, own: Value, partner: Node, theirs: Value, node: Node
) -> Iterator[Rounded]:
    assert own.constant is not None
    original, real = own.constant.numpy(), _dequantize_constant_array(theirs)
    if original.dtype.kind != "f" or real.dtype.kind != "f":
        return
    laid = _as_laid(original, real)
    if laid is not None and not _is_same(laid, original, exactly=theirs.quant is not None):
        yield Rounded(kind, own, partner, theirs, node, None, laid)


def _is_same(laid: Array, original: Array, *, exactly: bool) -> bool:
    if exactly:
        return np.array_equal(laid, original)
    return bool(np.isclose(laid, original, _LAST_BITS, 0.0, equal_nan=True).all())


def _dequantize_constant_array(value: Value) -> Array:
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
    distance = [float(np.square(choice - original, dtype=np.float64).sum()) for choice in choices]
    return choices[int(np.argmin(distance))] if choices else None


def share(found: Correspondence) -> float:
    """Returns the share of the quantized graph's nodes to which one corresponds."""
    computing = [node for node in found.quantized.nodes if node.op.flow is not Flow.CONVERT]
    return 1.0 - len(found.unknown) / len(computing) if computing else 1.0


def fed(graph: Graph, found: Correspondence, data: Mapping[str, Array]) -> dict[str, Array]:
    """Returns data of the float graph for the quantized one: integers where it takes integers.

    Args:
        graph: The quantized graph, or what was made of it.
        found: What corresponds.
        data: One array per input of the float graph.
    """
    fed: dict[str, Array] = {}
    for value, theirs in zip(graph.inputs, found.quantized.inputs, strict=True):
        array = np.asarray(data[found.values[theirs].name])
        real = value.quant is not None and array.dtype.kind == "f"
        half = value.quant is None and {array.dtype.kind, value.type.dtype.numpy.kind} == {"f"}
        if real and value.quant is not None:
            array = quantize(array.astype(np.float32), value.quant.params)
        elif half:
            array = array.astype(value.type.dtype.numpy)
        fed[value.name] = array
    return fed
