"""Operators that others stand for, as ONNX's functions: computed, emitted and recognized by them.

The body of an operator is a chain of others, as its forms are, made of its attributes and of its
first operand's shape; a step of several attributes has its record behind its operands::

    def _euclidean(a: ReduceAttrs, shape: Open) -> Pattern:
        return ("Sqrt", ("ReduceSum", ("Mul", "x", "x"), a))

``"x"`` is the operand, ``"a"``, ``"b"`` and so on are those of several; a number has the
element type of the first. ``"c?"`` may be left out, and then is what the step makes of the other
operand. Steps that are equal are one. From the body follow the reference function, what hosts are
given, and what is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias, TypeVar

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import (
    NO_ATTRIBUTES,
    AnyAttributes,
    Array,
    Attributes,
    Compute,
    Contract,
    Flow,
    Form,
    OnnxOp,
    Operands,
    Operator,
    Row,
    Types,
)
from qdqbridge.core.graph.patterns import (
    AnyPattern,
    Part,
    Pattern,
    PatternMatch,
    match_value_pattern,
    near,
    scalar,
)
from qdqbridge.core.graph.types import Shape, TensorType, static_shape
from qdqbridge.core.ops.attributes import AxesAttrs, PoolAttrs, ReduceAttrs
from qdqbridge.core.ops.shapes import (
    Open,
    broadcast_open_shapes,
    reduced_shape,
    result_shape,
    windows_shape,
)

# ---- forms ---------------------------------------------------------------------------------------
# The forms of an operator, recognized: one matcher for files, for hosts, and for fusion rules.
#
# A row lists the ways in which its operator is written with others (``Operator.forms``). What a
# chain of nodes comes to, by these forms, is found here; whoever reads such a chain asks here.


OPERANDS = ("", "x", "ab")
"""The letters of the operands in a form, by the operator's arity."""
OPERAND_LETTERS = frozenset("xab")


@dataclass(frozen=True, slots=True)
class Written:
    """An operator that a chain of nodes comes to.

    Attributes:
        op: Its row.
        nodes: The chain, its end first.
    """

    op: Operator
    attributes: Attributes
    operands: list[Value]
    nodes: list[Node]


def written(
    op: Operator, value: Value, *, forms: Sequence[Form] | None = None,
    either_order: bool = False, stated: Attributes | None = None,
) -> Written | None:  # fmt: skip
    """Returns ``op`` where ``value`` is computed by one of its forms, else None.

    Args:
        op: The operator that is looked for.
        value: The end of the chain.
        forms: Those to look for; by default all of them.
        either_order: As for :func:`qdqbridge.core.graph.patterns.match_value_pattern`.
        stated: Attributes that the chain is said to have: taken where its numbers are the same
            in float32, which is all that a chain of float32 operators shows (or in float16).
    """
    for form in op.forms if forms is None else forms:
        found = PatternMatch()
        if match_value_pattern(value, form.pattern, found, either_order=either_order):
            operands = [found.values[letter] for letter in OPERANDS[op.arity]]
            attributes = _attributes_of_match(op, form, found, stated, value.type.dtype)
            return Written(op, attributes, operands, found.nodes)
    return None


def _attributes_of_match(
    op: Operator, form: Form, found: PatternMatch, stated: Attributes | None, dtype: DType
) -> Attributes:
    values = {name: form.given.get(name, found.numbers.get(name)) for name in op.fields}
    if isinstance(stated, op.attributes):
        said = op.values(stated)
        if all(_equal_attribute(values[name], said[name], dtype) for name in op.fields):
            return stated
    return op.attributes(**values)


def _equal_attribute(a: object, b: object, dtype: DType) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return near(a, b, dtype)
    return a == b


def outermost_forms(op: Operator) -> tuple[Form, ...]:
    """Returns the forms that are no part of another one.

    Whoever reads a chain from its begin, as readers of hosts do, meets the part first.
    """
    patterns = [form.pattern for form in op.forms]
    return tuple(
        form for form in op.forms if not any(_is_part(form.pattern, other) for other in patterns)
    )


def _is_part(pattern: Pattern, whole: Pattern) -> bool:
    """Returns whether some steps of ``whole``, but not all, look like ``pattern``."""
    if not isinstance(whole, tuple):
        return False
    return any(_patterns_overlap(pattern, part) or _is_part(pattern, part) for part in whole[1:])


def _patterns_overlap(pattern: Pattern, other: Pattern) -> bool:
    if isinstance(pattern, tuple) and isinstance(other, tuple) and len(pattern) == len(other):
        return pattern[0] == other[0] and all(map(_patterns_overlap, pattern[1:], other[1:]))
    return pattern in OPERAND_LETTERS or pattern == other


def ends(op: Operator) -> tuple[str, ...]:
    """Returns the operators with which the forms of ``op`` end."""
    patterns = (form.pattern for form in op.forms)
    return tuple(dict.fromkeys(str(p[0]) for p in patterns if isinstance(p, tuple)))


def form_for(op: Operator, attributes: Attributes) -> Form | None:
    """Returns the first form in which an operator with these attributes can be written."""
    values = op.values(attributes)
    for form in op.forms:
        if all(values[name] == number for name, number in form.given.items()):
            return form
    return None


# ---- Operators that others stand for: computed, emitted and recognized by their bodies -----------


T = TypeVar("T")
Body: TypeAlias = "Callable[[Any, Open], Pattern]"
"""From the attributes and the shape of the first operand, whose open extents are named or None."""
LETTERS = "abcdefgh"


def function(
    name: str, body: Body, check: Callable[[Node, Any], Iterator[str]], *,
    attributes: type[AnyAttributes], onnx: tuple[OnnxOp, ...], numerics: str,
    flow: Flow = Flow.ROUND,
) -> Row[AnyAttributes]:  # fmt: skip
    """Returns the row of an operator that others stand for.

    Args:
        name: ONNX's name.
        body: The chain of others.
        check: What is wrong with a node.
        attributes: The record of its attributes.
        onnx: How ONNX writes it.
        numerics: The contract in words.
        flow: How quantization flows through it.
    """
    return Row(
        name=name, flow=flow, attributes=attributes, compute=computed(body), check=check,
        onnx=onnx, body=body, numerics=numerics,
    )  # fmt: skip


def parts(body: tuple[Any, ...]) -> tuple[Operator, tuple[Pattern, ...], Attributes]:
    """Returns the last operator of a body, the bodies of its operands, and its attributes."""
    from qdqbridge.core.ops.table import BY_NAME  # which is made of the rows that have bodies

    name, *rest = body
    row = BY_NAME[name]
    if rest and isinstance(rest[-1], Attributes):
        return row, tuple(rest[:-1]), rest[-1]
    return row, tuple(rest), NO_ATTRIBUTES


def folded(
    body: Pattern,
    operands: Sequence[T],
    step: Callable[[Operator, Attributes, list[T]], T],
    number: Callable[[float], T],
    made: dict[Pattern, T] | None = None,
) -> T:
    """Returns what a body comes to, one step after the other.

    Args:
        operands: Those of the whole.
        step: Makes a result of an operator, its attributes and its operands.
        number: Makes an operand of a number.
        made: What steps have come to already, for several parts of one body.
    """
    known: dict[Pattern, T] = {} if made is None else made

    def value(part: Pattern) -> T:
        if isinstance(part, str):
            return operands[max(LETTERS.find(part), 0)]
        if not isinstance(part, tuple):
            return number(part)
        if part not in known:
            row, inner, attributes = parts(part)
            known[part] = step(row, attributes, [value(each) for each in inner])
        return known[part]

    return value(body)


def body_of(row: Operator, attributes: Attributes, shape: Open | None, count: int) -> Pattern:
    """Returns the body of a row with the steps of so many operands as are given."""
    assert row.body is not None
    return _of_operands(row.body(attributes, shape or ()), count)


def _of_operands(body: Pattern, count: int) -> Pattern:
    if not isinstance(body, tuple) or not str(body[-1]).endswith("?"):
        return body
    step, inner, left_out = body
    letter = left_out.removesuffix("?")
    return (step, inner, letter) if LETTERS.find(letter) < count else inner


def computed(body: Body) -> Compute:
    """Returns the reference function of a body: its rows', in the operands' element type."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        steps = _of_operands(body(attributes, first_shape(operands)), len(operands))
        return (results(steps, operands)[-1],)

    return compute


def contract_of_step(body: Body) -> Contract:
    """Returns the contract of a body of one step: that of its operator."""

    def contract(
        attributes: Any, operands: Operands, types: Types, results: Types
    ) -> tuple[Array, ...] | None:
        step = body(attributes, first_shape(operands))
        assert isinstance(step, tuple)
        row, _, own = parts(step)
        return None if row.contract is None else row.contract(own, operands, types, results)

    return contract


def first_shape(operands: Operands) -> Open:
    """Returns the shape of the first operand."""
    return () if operands[0] is None else operands[0].shape


def results(body: Pattern, operands: Operands) -> list[Array]:
    """Returns the results of all steps of a body, the last one last."""
    found: list[Array] = []
    dtype = next(operand.dtype for operand in operands if operand is not None)

    def step(row: Operator, attributes: Attributes, values: list[Array | None]) -> Array:
        with np.errstate(all="ignore"):
            found.append(row.compute(attributes, trimmed(values))[0])
        return found[-1]

    padded = [*operands, *[None] * len(LETTERS)]
    last = folded(body, padded, step, lambda value: np.asarray(value, dtype))
    return found or [operand for operand in (last,) if operand is not None]


def trimmed(values: Sequence[T]) -> list[T]:
    """Returns operands without those at the end that are left out."""
    last = max((i for i, value in enumerate(values) if value is not None), default=-1)
    return list(values[: last + 1])


def float_steps(node: Node, dtype: DType) -> list[Node]:
    """Returns the nodes that a node stands for, which compute in ``dtype``; none is in a graph.

    The last one has a result of the node's own type and name.
    """

    def number(value: float) -> Value:
        data = Constant.of(np.asarray(value, dtype.numpy))
        return Value(TensorType(dtype, ()), "", constant=data)

    made: list[Node] = []

    def step(row: Operator, attributes: Attributes, values: list[Value | None]) -> Value:
        operands = trimmed(values)
        shapes = [None if v is None else v.type.shape for v in operands]
        type_ = TensorType(dtype, named(step_shape(row, attributes, shapes)))
        made.append(Node(row, attributes, operands, [Value(type_)]))
        return made[-1].output

    inputs = node.inputs
    body = body_of(node.op, node.attributes, node.operand(0).type.shape, len(inputs))
    folded(body, [*inputs, *[None] * len(LETTERS)], step, number)
    made[-1] = Node(
        made[-1].op, made[-1].attributes, made[-1].inputs,
        [Value(node.output.type, node.output.name)], node.origin,
    )  # fmt: skip
    return made


def named(shape: Open | None) -> Shape:
    """Returns a shape; None where an extent of it is not known."""
    known = [dim for dim in shape or () if dim is not None]
    return None if shape is None or len(known) < len(shape) else tuple(known)


def step_shape(row: Operator, attributes: Attributes, shapes: Sequence[Open | None]) -> Open | None:
    """Returns the shape of a step's result from those of its operands; None where it is open."""
    first = shapes[0] if shapes else None
    if first is None:
        return None
    if row.body is not None:
        body = body_of(row, attributes, first, len(shapes))
        return folded(body, [*shapes, *[()] * len(LETTERS)], step_shape, lambda _: ())
    if isinstance(attributes, ReduceAttrs):
        return reduced_shape(attributes, first)
    if isinstance(attributes, PoolAttrs):
        return windows_shape(attributes, named(first), attributes.kernel_shape, first[1])
    if row.flow is Flow.MOVE:
        return result_shape(row.name, attributes, [named(shape) for shape in shapes], None)
    if row.flow not in (Flow.ELEMENTWISE, Flow.ROUND):
        return None
    return reduce(broadcast_open_shapes, [shape for shape in shapes if shape is not None])


def matched(value: Value | None, body: Pattern, operands: dict[str, Value]) -> bool:
    """True where ``value`` is computed as a body says; fills in the operands by their letters."""
    if value is None:
        return False
    if isinstance(body, str):
        return operands.setdefault(body, value) is value
    if not isinstance(body, tuple):
        number = scalar(value)
        return number is not None and near(number, body, value.type.dtype)
    row, inner, attributes = parts(body)
    if value.constant is not None:
        before = _constant_before(row, attributes, value)
        return before is not None and matched(before, inner[0], operands)
    given = _step_operands(value, row, attributes)
    if given is None or len(given) != len(inner):
        return False
    return all(matched(v, part, operands) for v, part in zip(given, inner, strict=True))


def _constant_before(row: Operator, attributes: Attributes, value: Value) -> Value | None:
    """Returns the constant that got axes of one element when the module was read."""
    data, shape = value.constant, static_shape(value.type.shape)
    if row.name != "Unsqueeze" or not isinstance(attributes, AxesAttrs) or value.quant is not None:
        return None
    if data is None or shape is None or any(shape[axis] != 1 for axis in attributes.axes):
        return None
    own = tuple(extent for axis, extent in enumerate(shape) if axis not in attributes.axes)
    reshaped = data.map(lambda array: array.reshape(own), shape=own)
    return Value(value.type.with_shape(own), value.name, constant=reshaped)


def _step_operands(value: Value, row: Operator, attributes: Attributes) -> list[Value] | None:
    """Returns the operands of a step behind a value, which may be written with others itself."""
    node = value.producer
    if node is not None and node.op is row and node.attributes == attributes:
        return [operand for operand in node.inputs if operand is not None]
    if node is not None and node.op.body is not None:  # a global pool is a reduction
        whole = body_of(node.op, node.attributes, node.operand(0).type.shape, len(node.inputs))
        if whole == (row.name, "x", attributes):
            return [node.operand(0)]
    if row.body is not None:
        found: dict[str, Value] = {}
        body = body_of(row, attributes, value.type.shape, len(LETTERS))
        return in_order(found) if matched(value, body, found) else None
    form = written(row, value, stated=attributes) if row.forms else None
    return form.operands if form is not None and form.attributes == attributes else None


def steps_of(row: Operator) -> Pattern:
    """Returns the body of a row for attributes that it hands on as they are, named ``#axes``."""
    assert row.body is not None
    return row.body(row.attributes(**{field: f"#{field}" for field in row.fields}), ())


def steps_pattern(row: Operator) -> Pattern:
    """Returns :func:`steps_of` a row as a pattern.

    Each step names the attributes of its own (``step0.axes``, ``step1.axes``), so that a rule can
    say where they differ. Steps that are equal in the body are one value.
    """
    steps: dict[Pattern, str] = {}

    def part(pattern: Pattern) -> AnyPattern:
        if not isinstance(pattern, tuple):
            return pattern
        if pattern in steps:
            return steps[pattern]
        name = steps[pattern] = f"step{len(steps)}"
        op, inner, attributes = parts(pattern)
        stated = {
            field: f"#{name}.{value[1:]}" if isinstance(value, str) else value
            for field, value in op.values(attributes).items()
        }
        return Part(name, (op.name, *map(part, inner), stated))

    whole = part(steps_of(row))
    assert isinstance(whole, Part) and isinstance(whole.pattern, tuple)
    return whole.pattern


def in_order(operands: Mapping[str, Value]) -> list[Value]:
    """Returns operands in the order of their letters."""
    return [operands[letter] for letter in sorted(operands)]
