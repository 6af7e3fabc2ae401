"""What the span of a call says of the node that it became, and operators that take its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Origin, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, AnyAttributes, Attributes, Operator
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, ValueType
from qdqbridge.core.ops.attributes import PadAttrs, PoolAttrs, ResizeAttrs
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REINTERPRET
from qdqbridge.core.ops.elementwise import MAX, MIN
from qdqbridge.core.ops.selection import GATHER
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.ops.unary import CLIP, RELU
from qdqbridge.core.rewrite import Replace, Rule, RuleContext, rule
from qdqbridge.tvm.qnn.origin import Provenance, folded_params

# ---- Operands of a node as its span writes them: other element types, quantized constants --------


def as_written(
    op: Operator, operands: Sequence[Value | None], provenance: Provenance | None
) -> list[Value | None]:
    """Returns the operands of a node as its span writes them, where they are the same numbers."""
    if provenance is None or op.name != provenance.op or len(operands) != len(provenance.operands):
        return list(operands)
    return [
        None if v is None else _restore_operand(v, i, provenance) for i, v in enumerate(operands)
    ]


def _restore_operand(value: Value, index: int, provenance: Provenance) -> Value:
    if value.quant is not None:
        return value
    if not provenance.operands[index]:
        dtype = provenance.plain.get(index)
        return (
            value
            if dtype is None or value.constant is None
            else _cast_constant_exactly(value, dtype)
        )
    node = value.producer
    if node is not None and node.op is DEQUANTIZE:
        source = node.operand(0)
        if source.constant is not None or not any(provenance.results):
            return source
    params = folded_params(provenance, index)
    if params is None or value.constant is None or not value.type.dtype.is_float:
        return value
    return _unfold_quantized(value, params)


def _cast_constant_exactly(value: Value, dtype: DType) -> Value:
    """Returns a constant in another element type, if that holds its numbers exactly."""
    assert value.constant is not None
    if value.type.dtype is dtype:
        return value
    array = value.constant.numpy()
    with np.errstate(all="ignore"):
        cast = array.astype(dtype.numpy)
        if not np.array_equal(cast.astype(array.dtype), array):
            return value
    return Value(TensorType(dtype, cast.shape), value.name, constant=Constant.of(cast))


def _unfold_quantized(value: Value, params: QuantParams) -> Value:
    """Returns a float constant as the quantized one that it was folded from."""
    assert value.constant is not None
    array = value.constant.numpy()
    if params.blocked or (params.axis is not None and array.shape != params.scale.shape):
        return value
    stored = quantize(array.astype(np.float32), params)
    if not np.array_equal(dequantize(stored, params).astype(array.dtype), array):
        return value
    return Value(QuantType(params, array.shape), value.name, constant=Constant.of(stored))


# ---- What the span of a call says of the node that it became, and operators that take its place --


UNREAD = "unread:"
"""Begins the name of the operator of a call that has no row."""


@dataclass(frozen=True, slots=True)
class RecordedOrigin(Origin):
    """The origin of a node while a module is read.

    Attributes:
        provenance: What the span of its call says.
    """

    provenance: Provenance | None = None


def recorded_origin(provenance: Provenance) -> RecordedOrigin:
    """Returns the origin of a node whose call has a span."""
    own = provenance.origin
    return RecordedOrigin(
        **{f.name: getattr(own, f.name) for f in fields(Origin)}, provenance=provenance
    )


def provenance_of_node(node: Node | None) -> Provenance | None:
    """Returns what the span of the node's call says, None where it has none."""
    origin = None if node is None else node.origin
    return origin.provenance if isinstance(origin, RecordedOrigin) else None


def candidates(node: Node) -> list[Provenance]:
    """Returns what a node's calls may come to: the recorded operator, or a step that has forms.

    There are none where the node is that operator already. A Min or Max of several operands ends
    with one of two.
    """
    provenance = provenance_of_node(node)
    if provenance is None or (provenance.op == node.op.name and node.op not in (MIN, MAX)):
        return []
    if not isinstance(provenance.attributes, CompositionAttrs):
        return [provenance]
    steps = {(step.op.name, step.attributes): step for step in provenance.attributes.steps}
    return [
        replace(provenance, op=step.op.name, attributes=step.attributes)
        for step in steps.values()
        if step.op.forms
    ]


def says(node: Node, *names: str) -> bool:
    """True where a node's calls may come to one of these operators."""
    return any(one.op in names for one in candidates(node))


def stated(node: Node, op: str, kind: type[AnyAttributes]) -> AnyAttributes | None:
    """Returns the attributes of the operator that a node's calls may come to."""
    for one in candidates(node):
        if one.op == op and isinstance(one.attributes, kind):
            return one.attributes
    return None


def completed(
    node: Node,
    op: Operator | str,
    operands: Sequence[Value | None],
    attributes: Attributes = NO_ATTRIBUTES,
) -> Replace:
    """Returns that an operator takes the place of the last of its calls."""
    row = op if isinstance(op, Operator) else BY_NAME[op]
    result = Value(node.output.type, node.output.name)
    Node(
        row, attributes, as_written(row, operands, provenance_of_node(node)), [result], node.origin
    )
    return Replace({node.output: result})


def made_by_unread(value: Value, name: str) -> bool:
    """True where a value is the result of a call without a row."""
    return value.producer is not None and value.producer.op.name == f"{UNREAD}{name}"


def present(node: Node) -> list[Value]:
    """Returns the operands that are not left out."""
    return [value for value in node.inputs if value is not None]


# ---- Operators that a span records and a sample proves: long chains of one operand
#
# A Resize of floats is one weighted sum of shifted values per axis; an average pool whose last
# windows reach beyond counted padding is a quotient of two; a Pad that wraps is a Gather.

_SAMPLE = 1 << 20
_CLAMPS = (RELU, CLIP, MAX, MIN)
_ONE = 3
"""Extent with which an unknown one is tried."""


@rule("operator-of-sample")
def operator_of_sample(node: Node, context: RuleContext) -> Replace | None:
    """``Add(Mul(Gather(x), w0), Mul(Gather(x), w1)) -> Resize(x)``, and pools of averages.

    The chain is the operator that its span records where both compute the same on a sample.
    """
    provenance, shape = provenance_of_node(node), node.outputs[0].type.shape
    attributes = None if provenance is None else provenance.attributes
    if provenance is None or not isinstance(attributes, ResizeAttrs | PoolAttrs | PadAttrs):
        return None
    if provenance.op in ("MaxPool", node.op.name) or node.op is QUANTIZE or len(node.outputs) != 1:
        return None
    if isinstance(attributes, PadAttrs) and node.op is not GATHER:
        return None
    inside: list[Node] = []
    read = source = _source_of_recorded(node.output, provenance, inside)
    if not inside or read is None or source is None:
        return None
    if source.type.shape is None or shape is None or len(source.type.shape) != len(shape):
        return None
    if any(step.op in _CLAMPS for step in inside):
        return None  # of its result, and so behind it: a sample need not reach the bounds
    given = tuple(d if isinstance(d, int) else _ONE for d in source.type.shape)
    static = [d if isinstance(d, int) else None for d in shape]
    if np.prod(given) + np.prod([d or _ONE for d in static]) > _SAMPLE:
        return None
    (source,) = as_written(BY_NAME[provenance.op], [source], provenance)
    assert source is not None
    dtype = node.output.type.dtype
    kind = dtype if dtype.is_float else source.type.dtype  # integers are rounded later
    sample = np.random.default_rng(0).normal(size=given).astype(kind.numpy)
    (expected,) = BY_NAME[provenance.op].compute(attributes, (sample,))
    found = _sampled_result(inside, read, sample.astype(read.type.dtype.numpy))
    fits = all(d in (e, None) for d, e in zip(static, expected.shape, strict=True))
    if not fits or found.shape != expected.shape:
        return None
    if not np.allclose(found, expected, rtol=1e-2, atol=1e-3):
        return None
    plain = _reinterpreted(source, TensorType(source.type.dtype, source.type.shape))
    if node.output.quant is None:
        return completed(node, provenance.op, [plain], attributes)
    # What the calls copy of a quantized value are its stored numbers.
    copied = Value(TensorType(dtype, node.output.type.shape))
    Node(BY_NAME[provenance.op], attributes, [plain], [copied], node.origin)
    if context.is_output(node.output) and not any(provenance.results):
        return Replace({node.output: copied})
    return Replace({node.output: _reinterpreted(copied, node.output.type)})


def _reinterpreted(value: Value, type_: ValueType) -> Value:
    if value.type == type_:
        return value
    result = Value(type_, value.name)
    Node(REINTERPRET, NO_ATTRIBUTES, [value], [result])
    return result


def _source_of_recorded(value: Value, provenance: Provenance, inside: list[Node]) -> Value | None:
    """Returns the one value that the recorded node's calls read; lists them in their order."""
    done: set[Node] = set()
    sources: dict[Value, None] = {}

    def visit(current: Value) -> None:
        node = current.producer
        if current.constant is not None or (node is not None and node in done):
            return
        if node is None or node.op is DEQUANTIZE or provenance_of_node(node) != provenance:
            sources[current] = None
            return
        done.add(node)
        for operand in node.inputs:
            if operand is not None:
                visit(operand)
        inside.append(node)

    visit(value)
    if not sources and inside and inside[0].operand(0).constant is not None:
        return inside[0].operand(0)  # first comes what is moved or averaged, then how much of it
    return next(iter(sources)) if len(sources) == 1 else None


def _sampled_result(nodes: list[Node], source: Value, sample: NDArray[Any]) -> NDArray[Any]:
    values: dict[Value, NDArray[Any]] = {source: sample}
    for node in nodes:
        operands = [
            values[v] if v in values else None if v is None or v.constant is None
            else v.constant.numpy()
            for v in node.inputs
        ]  # fmt: skip
        values[node.output] = np.asarray(evaluate_node(node, operands)[0])
    return np.asarray(values[nodes[-1].output])


RULES: tuple[Rule, ...] = (operator_of_sample,)
