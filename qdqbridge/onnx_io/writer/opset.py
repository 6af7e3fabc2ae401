"""Which opset a graph is written for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import LinearAttrs, QuantizeAttrs
from qdqbridge.core.ops.bodies import float_steps
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.conversion import QUANTIZE, REQUANTIZE
from qdqbridge.core.ops.run_time_parameters import QUANTIZE_LINEAR, SimulatedAttrs
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs import BY_ROW, since
from qdqbridge.onnx_io.codecs.codec import schema_of, schema_type
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.reading.operators_known import can_be_moved
from qdqbridge.onnx_io.reading.qdq import PRECISION
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, plain_domain, subgraphs
from qdqbridge.onnx_io.runtime.operators import runtime_operator
from qdqbridge.onnx_io.tensors import onnx_name
from qdqbridge.onnx_io.writer.fused import packed_weights
from qdqbridge.onnx_io.writer.spec import GraphSpec

OLDEST = 13
OUTPUT_DTYPE_SINCE = 21
"""The opset whose QuantizeLinear says its type (``output_dtype``); before, the zero point does."""
_NONE = "none"
_METADATA_IR = 10
_CONSTANTS_IR = 4
"""The first IR version whose initializers need not be graph inputs."""
CONTRIB = frozenset({DType.INT16, DType.UINT16, DType.INT4, DType.UINT4})
"""Storage types that com.microsoft's Q and DQ have at every opset."""
_STORAGE = {
    DType.INT16: 21, DType.UINT16: 21, DType.INT4: 21, DType.UINT4: 21,
    DType.INT2: 25, DType.UINT2: 25, DType.FLOAT4_E2M1: 23,
    DType.FLOAT8_E4M3FN: 19, DType.FLOAT8_E4M3FNUZ: 19,
    DType.FLOAT8_E5M2: 19, DType.FLOAT8_E5M2FNUZ: 19,
    DType.FLOAT6_E2M3: 28, DType.FLOAT6_E3M2: 28,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Need:
    """What one part of a graph asks of the opset, and why."""

    reason: str
    accepts: Callable[[int], bool]


def choose_opset(
    graph: Graph,
    *,
    contrib: bool = False,
    newest: int | None = None,
    reader: str = "ONNX",
    packed: bool = False,
) -> int:
    """Returns the source's opset where it can say everything, else the lowest that can.

    Activations in float8 take at least the opset whose QuantizeLinear says its type, if others can:
    where the zero point says it, onnxruntime's fusions take the float8 for an integer.

    Args:
        graph: What is to be written.
        contrib: 16-bit and 4-bit types may be written in ``com.microsoft``.
        newest: The newest opset to take, and the first to try where the source's is newer.
        reader: Who reads no newer one, for messages.
        packed: The runtime has operators of its own, and files keep them.

    Raises:
        UnsupportedTargetError: No opset can; the message lists what contradicts.
    """
    needs = _needs(graph, contrib=contrib, packed=packed)
    preferred = [graph.opset] if newest is None or graph.opset <= newest else [graph.opset, newest]
    if graph.opset < OUTPUT_DTYPE_SINCE and any(map(_is_small_float, graph.values())):
        preferred.insert(0, OUTPUT_DTYPE_SINCE)
    newest = newest or onnx.defs.onnx_opset_version()
    for opset in (*preferred, *range(OLDEST, newest + 1)):
        if OLDEST <= opset <= newest and all(need.accepts(opset) for need in needs):
            return opset
    tightest = {need.reason: _span(need, newest) for need in needs}
    missing = {reason: span for reason, span in tightest.items() if span == _NONE}
    raise UnsupportedTargetError(
        f"no opset up to {newest} can express this graph",
        where=graph.name,
        why="; ".join(f"{reason}: {span}" for reason, span in (missing or tightest).items()),
        fix=f"{reader} reads no newer one: change one of these, or say --opset for another reader",
    )


def _is_small_float(value: Value) -> bool:
    return value.quant is not None and value.quant.dtype.is_small_float and not value.is_constant


def check_opset(graph: Graph, opset: int, *, contrib: bool = False, packed: bool = False) -> int:
    """Returns an opset that the user chose.

    Args:
        graph: What is to be written.
        contrib: 16-bit and 4-bit types may be written in ``com.microsoft``.
        packed: The runtime has operators of its own, and files keep them.

    Raises:
        UnsupportedTargetError: It cannot say everything, or there is no such opset.
    """
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise UnsupportedTargetError(
            f"there is no opset {opset} to write",
            why=f"opsets {OLDEST} to {newest} are written (onnx {onnx.__version__})",
            fix="choose one of these",
        )
    needs = _needs(graph, contrib=contrib, packed=packed)
    missing = {need.reason: _span(need, newest) for need in needs if not need.accepts(opset)}
    if missing:
        raise UnsupportedTargetError(
            f"opset {opset} cannot express this graph",
            where=graph.name,
            why="; ".join(f"{reason}: {span}" for reason, span in missing.items()),
            fix="choose an opset that can, or leave the choice out",
        )
    return opset


def untaken(spec: GraphSpec) -> str:
    """Returns which operator of a spec does not take an operand's element type; else nothing.

    Operators grow by element types from opset to opset, which needs of attributes do not show.
    """
    types = {name: schema_type(type_) for name, type_ in spec.types.items()}
    constants = spec.constants.items()
    types |= {name: f"tensor({onnx_name(constant.dtype)})" for name, constant in constants}
    for row in spec.nodes:
        schema = schema_of(row.op_type, row.domain, spec.imports.get(row.domain, 1))
        formals = schema.inputs if schema is not None else ()
        for name, formal in zip(row.inputs, formals, strict=False):
            if name in types and types[name] not in formal.types:
                return f"{row.op_type} '{row.name}' of {types[name]} '{name}'"
    return ""


def needs_contrib(graph: Graph, opset: int) -> bool:
    """True where Q and DQ of an opset cannot store a type that com.microsoft's can."""
    storages = (v.type.dtype for v in graph.values() if isinstance(v.type, QuantType))
    return any(storage in CONTRIB and _STORAGE[storage] > opset for storage in storages)


def imports_of(nodes: Iterable[Node], opset: int) -> dict[str, int]:
    """Returns the opset version of every domain that written nodes use."""
    versions = {"": opset}
    for node in nodes:
        attributes = node.attributes
        if not isinstance(attributes, OpaqueAttrs):
            continue
        if attributes.domain and versions.get(attributes.domain, attributes.version) != (
            attributes.version
        ):
            raise UnsupportedTargetError(
                f"two versions of the domain '{attributes.domain}' meet in one graph",
                where=f"node '{node.name}'",
                why=f"{versions[attributes.domain]} and {attributes.version}",
                fix="export both parts with one version",
            )
        versions.setdefault(attributes.domain, attributes.version)
        for proto in _all(attributes.node.proto()):
            # Nodes inside a body may be of domains that no node of the graph itself has.
            versions.setdefault(plain_domain(proto.domain), 1)
    return versions


def ir_version_of(imports: dict[str, int], *, with_metadata: bool) -> int:
    """Returns the lowest IR version that has these opsets (and ``metadata_props`` of nodes)."""
    known = onnx.helper.OP_SET_ID_VERSION_MAP
    version = max(int(known.get(("ai.onnx", imports[""]), onnx.IR_VERSION)), _CONSTANTS_IR)
    return max(version, _METADATA_IR) if with_metadata else version


def _span(need: Need, newest: int) -> str:
    accepted = [opset for opset in range(OLDEST, newest + 1) if need.accepts(opset)]
    return f"{accepted[0]} to {accepted[-1]}" if accepted else _NONE


def _at_least(opset: int, reason: str) -> Need:
    return Need(reason, _AtLeast(opset))


@dataclass(frozen=True, slots=True)
class _AtLeast:
    opset: int

    def __call__(self, opset: int) -> bool:
        return opset >= self.opset


@dataclass(frozen=True, slots=True)
class _SameSchema:
    """The operator means at an opset what it means at the version it was written for."""

    op_type: str
    version: int

    def __call__(self, opset: int) -> bool:
        return can_be_moved(self.op_type, self.version, opset)


@dataclass(frozen=True, slots=True)
class _IntegerQuantize:
    """QuantizeLinear of integers with a scale of a float type."""

    def __call__(self, opset: int) -> bool:
        return opset >= 23 or opset < 19


def _needs(graph: Graph, *, contrib: bool, packed: bool) -> list[Need]:
    """Returns each need once."""
    own, held = set[Node](), set[Value]()
    if packed:
        own = {node for node in graph.nodes if runtime_operator(node)}
        held = packed_weights(graph.values())
    needs = list[Need]()
    for value in graph.values():
        if isinstance(value.type, QuantType) and value not in held:
            needs += _type_needs(value.type.params, contrib=contrib)
    for node in graph.nodes:
        if node not in own:
            needs += _node_needs(node, graph.opset)
    return list(dict.fromkeys(needs))


def _type_needs(params: QuantParams, *, contrib: bool) -> Iterator[Need]:
    storage = params.storage_dtype
    if storage in _STORAGE and not (contrib and storage in CONTRIB):
        yield _at_least(_STORAGE[storage], f"tensors stored as {storage}")
    if params.expressed_dtype is not DType.FLOAT32:
        yield _at_least(19, f"{params.expressed_dtype} scales")
    if params.scale_dtype is DType.FLOAT8_E8M0:
        yield _at_least(24, f"{params.scale_dtype} scales")
    if params.blocked:
        yield _at_least(21, "scales per block")


def _node_needs(node: Node, source: int) -> Iterator[Need]:
    attributes = node.attributes
    if isinstance(attributes, OpaqueAttrs):
        for proto in _all(attributes.node.proto()):
            if proto.domain in ONNX_DOMAINS:
                version = source if attributes.domain else attributes.version
                reason = f"{proto.op_type} '{node.name}' as in opset {version}"
                yield Need(reason, _SameSchema(proto.op_type, version))
    elif isinstance(attributes, SimulatedAttrs):
        if attributes.floats:
            yield _at_least(_STORAGE[DType.FLOAT8_E4M3FN], f"{node.op.name} of float8")
    elif node.op.flow in (Flow.CONVERT, Flow.REINTERPRET):
        yield from _conversion_needs(node)
    else:
        parts = [(node.op.name, attributes)]
        if isinstance(attributes, CompositionAttrs):
            parts += [(step.op.name, step.attributes) for step in attributes.steps]
        elif node.op.name not in BY_ROW and node.op.body is not None:
            steps = float_steps(node, DType.FLOAT32)
            parts = [(step.op.name, step.attributes) for step in steps]
        for name, own in parts:
            lowest = since(name, own) if name in BY_ROW else OLDEST
            if lowest > OLDEST:
                yield _at_least(lowest, f"{name} '{node.name}'")
        if isinstance(attributes, LinearAttrs):
            yield from _linear_needs(node, attributes)


def _linear_needs(node: Node, attributes: LinearAttrs) -> Iterator[Need]:
    """What Q and DQ with parameters of run time need for the types of their operands."""
    data, scale = (node.operand(i).type.dtype for i in (0, 1))
    what = f"{node.op.name} '{node.name}'"
    quantizes = node.op is QUANTIZE_LINEAR
    real, stored = (data, attributes.to) if quantizes else (attributes.to, data)
    if stored in _STORAGE:
        yield _at_least(_STORAGE[stored], f"{what} with {stored} data")
    if scale is DType.FLOAT8_E8M0:
        yield _at_least(24, f"{what} with {scale} scales")
    elif real.is_integer:
        yield Need(f"a {scale} scale for {real} data", _IntegerQuantize())
    elif real is not scale:
        yield _at_least(23, f"{what} with {real} data and {scale} scales")
    elif scale is not DType.FLOAT32:
        yield _at_least(19, f"{what} with {scale} scales")


def _conversion_needs(node: Node) -> Iterator[Need]:
    source, target = node.operand(0).type, node.output.type
    if not isinstance(target, QuantType):
        own = source.params.expressed_dtype if isinstance(source, QuantType) else target.dtype
        if own is not target.dtype and own.bits <= target.dtype.bits:
            yield _at_least(23, f"a {own} scale for {target.dtype} results")
        return
    own = target.params.expressed_dtype
    if isinstance(source, QuantType):
        if node.op is REQUANTIZE and source.params.expressed_dtype is not own:
            yield _at_least(23, "a requantization between scales of two element types")
        return
    if isinstance(node.attributes, QuantizeAttrs) and node.attributes.precision is not None:
        yield _at_least(PRECISION, f"a division in {node.attributes.precision}")
    if node.op is QUANTIZE and source.dtype.is_integer:
        yield Need(f"a {own} scale for {source.dtype} data", _IntegerQuantize())
    elif node.op is QUANTIZE and own not in (source.dtype, DType.FLOAT32):
        yield _at_least(23, f"a {own} scale for {source.dtype} data")


def _all(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    yield proto
    for body in subgraphs(proto):
        for inner in body.node:
            yield from _all(inner)
