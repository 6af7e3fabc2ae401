"""``Loop`` and ``Scan`` whose steps the run counts: functions that halve what is left of them.

::

    main(count, going, ...)    count > 0 and going ? steps(0, count, ...) : nothing
    steps(first, last, ...)    one left ? one(first, ...) : halves(first, last, ...)
    halves(first, last, ...)   steps of the first half, then: going ? second(...) : what there is
    second(middle, last, ...)  steps of the second half; the rows of both behind each other

TVM's runtime has no loops, and a function that called itself at each step would fill the stack.
This one is as deep as the logarithm of the number of steps; so often are rows copied that steps
give. Every function takes what the steps hand on, and what they only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax, tirx

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.types import Dim, TensorType
from qdqbridge.onnx_io.control_flow.bodies import Body, first_types, read_body
from qdqbridge.onnx_io.control_flow.conditional import branch_of, branches_of
from qdqbridge.onnx_io.control_flow.unrolling import stays_true
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr, tvm_dtype, unsupported
from qdqbridge.tvm.qnn.emit.graph import unique_identifier
from qdqbridge.tvm.relax.emit.broadcasting import equal
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter, added

EmitBody = Callable[[Graph], ir.IRModule]
op: Any = relax.op
_MOST = np.iinfo(np.int64).max
"""How many steps a Loop without a number of them makes, unless its condition ends it."""
_PLACE = "step/"
_CARRIED = "carried_"
"""With what the names of extents begin that change from step to step."""


def repeated_module(node: Node, emit_body: EmitBody) -> ir.IRModule:
    """Returns a module whose ``main`` takes what a Loop or Scan takes, constants left out.

    Args:
        node: The opaque node.
        emit_body: Emits its body as a module.

    Raises:
        QdqBridgeError: The body cannot be read, or not be emitted, or what it carries changes its
            rank.
    """
    form = _FORMS[node.record(OpaqueAttrs).op_type](node)
    types = first_types(node, "body")
    # A wider type of one carried value may widen another one, so the body is read until none
    # changes. It ends: an extent that has got a name keeps it.
    while True:
        body = read_body(node, "body", types, _PLACE, canonicalize)
        made = _Repetition(node, form, body, emit_body)
        wider = made.wider()
        if not wider:
            return made.module()
        types = [wider.get(index, type_) for index, type_ in enumerate(types)]


# ---- the two operators --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scanned:
    """An operand of which every step reads a slice, along an axis, perhaps the last one first."""

    operand: int
    axis: int
    backwards: bool


@dataclass(frozen=True, slots=True)
class _Form:
    """Where a node has what.

    Attributes:
        first: The first operand that is carried, and the first input of the body that is.
        states: How many there are.
        scanned: The operands that are read slice by slice.
        conditions: How many of the body's results stand before the carried ones.
        ends: Whether the body may end the repetition.
        stacks: Along which axis each of the other results is stacked, and whether the last one
            comes first.
    """

    first: int
    states: int
    scanned: tuple[_Scanned, ...]
    conditions: int
    ends: bool
    stacks: tuple[tuple[int, bool], ...]


def _loop(node: Node) -> _Form:
    record = node.record(OpaqueAttrs)
    (body,) = (a.g for a in record.node.proto().attribute if a.name == "body")
    # A Loop's first operands are the number of steps and the condition, its body's first result is
    # the condition; all others are carried or stacked.
    states = len(node.inputs) - len(record.captures) - 2
    stacks = ((0, False),) * (len(body.output) - 1 - states)
    return _Form(2, states, (), 1, not stays_true(body), stacks)


def _scan(node: Node) -> _Form:
    record = node.record(OpaqueAttrs)
    given = record.stated()
    count = given["num_scan_inputs"]
    states = len(node.inputs) - len(record.captures) - count
    stacked = len(given["body"].output) - states
    scanned = zip(
        range(states, states + count),
        given.get("scan_input_axes") or [0] * count,
        map(bool, given.get("scan_input_directions") or [0] * count),
        strict=True,
    )
    stacks = zip(
        given.get("scan_output_axes") or [0] * stacked,
        map(bool, given.get("scan_output_directions") or [0] * stacked),
        strict=True,
    )
    return _Form(0, states, tuple(_Scanned(*each) for each in scanned), 0, False, tuple(stacks))


_FORMS = {"Loop": _loop, "Scan": _scan}


# ---- the functions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a function gives: whether to go on (where the body says that), what is carried, rows."""

    going: tuple[Any, ...]
    carried: tuple[Any, ...]
    rows: tuple[Any, ...]

    @property
    def all(self) -> list[Any]:
        """One behind the other."""
        return [*self.going, *self.carried, *self.rows]


class _Repetition:
    """The functions of one node, made from the innermost one on."""

    def __init__(self, node: Node, form: _Form, body: Body, emit_body: EmitBody) -> None:
        self.node, self.form = node, form
        inputs, last = body.graph.inputs, form.first + form.states
        self.numbers, self.carried = inputs[: form.first], inputs[form.first : last]
        self.operands = [*(each.operand for each in form.scanned), *body.captured]
        self.read = [*(node.operand(s.operand) for s in form.scanned), *inputs[body.own :]]
        named = node.record(OpaqueAttrs).node.proto().output
        self.given = [index for index, name in enumerate(named) if name]
        self.stacked = [index - form.states for index in self.given if index >= form.states]
        self.builder = relax.BlockBuilder()
        self.body = added(self.builder, emit_body(body.graph), "body")
        self.one = self._one()

    def wider(self) -> dict[int, TensorType]:
        """Returns types of the body's inputs that hold for what it gives as well.

        Raises:
            UnsupportedTargetError: What is carried has another rank behind a step.
        """
        one: Any = self.builder.get()[self.one]
        found: dict[int, TensorType] = {}
        pairs = zip(
            self.carried, one.params[1:], self._parts(one.ret_ty.fields).carried, strict=False
        )
        for index, (value, own, type_) in enumerate(pairs):
            if type_.ndim < 0:  # the run says whether it stays
                continue
            if type_.ndim != value.rank:
                why = f"what it carries has rank {value.rank} before a step, {type_.ndim} behind it"
                raise unsupported(self.node, why)
            shape = _common(value, own.ty, type_, f"{_CARRIED}{index}")
            if shape != value.type.shape:
                found[self.form.first + index] = TensorType(value.type.dtype, shape)
        return found

    def module(self) -> ir.IRModule:
        """Returns all functions, and the ``main`` that calls them."""
        builder = self.builder
        steps = builder.add_func(self._declared(), "steps")
        halves = self._halves(steps, self._second(steps))
        # The functions call each other in a circle, so "steps" is declared before it has a body.
        # That is made in another builder: in this one its name is taken.
        self.builder = relax.BlockBuilder()
        name = self._steps(halves)
        chosen: Any = self.builder.get()[name]
        self.builder = builder
        builder.update_func(steps, chosen.without_attr("global_symbol"))
        self._main(steps)
        return builder.finalize()

    # ---- one function each

    def _one(self) -> ir.GlobalVar:
        """One step: its number, what is carried, what is read."""
        emitter, carried, read = self._parameters()
        number = _int64_var("number")
        with self.builder.function("one", [number, *carried, *read]):
            with self.builder.dataflow():
                parts = self._parts(self._called_body(emitter, number, carried, read))
                going = [op.reshape(each, _ones(0)) for each in parts.going]
                kept = [
                    each if each.ty.ndim >= 0 else self.builder.match_cast(each, own.ty)
                    for each, own in zip(parts.carried, carried, strict=True)
                ]
                rows = [
                    emitter.emit(
                        op.expand_dims(
                            self._shaped(emitter, index, row), self._axis(index, row.ty.ndim + 1)
                        )
                    )
                    for index, row in zip(self.stacked, parts.rows, strict=True)
                ]
                result = self.builder.emit_output(relax.Tuple([*going, *kept, *rows]))
            return self.builder.emit_func_output(result)

    def _shaped(self, emitter: RelaxEmitter, index: int, row: Expr) -> Expr:
        """Returns a row with a shape, without which TVM does not build what follows."""
        if row.ty.shape is not None or row.ty.ndim < 0:
            return row
        shape: list[Any] = [emitter.extent(f"made_{index}_{axis}") for axis in range(row.ty.ndim)]
        return self.builder.match_cast(row, relax.TensorType(shape, str(row.ty.dtype)))

    def _called_body(
        self, emitter: RelaxEmitter, number: Expr, carried: list[Expr], read: list[Expr]
    ) -> list[Expr]:
        """Returns the results of the body that are wanted."""
        slices: list[Expr] = []
        for each, x in zip(self.form.scanned, read, strict=False):
            axis, place = each.axis % x.ty.ndim, number
            if each.backwards:
                last = op.subtract(emitter.run_time_extent(x, axis, "int64"), _int(1))
                place = emitter.emit(op.subtract(emitter.emit(last), number))
            slices.append(emitter.emit(op.take(x, place, axis=axis, mode="clip")))
        # A step is only made where the condition held, so that is what the body is told.
        numbers: list[Expr] = [number, relax.const(True)][: self.form.first]
        numbers = [
            emitter.emit(op.reshape(each, _ones(value.rank))) if value.rank else each
            for each, value in zip(numbers, self.numbers, strict=True)
        ]
        captured = read[len(self.form.scanned) :]
        called = emitter.emit(relax.Call(self.body, [*numbers, *carried, *slices, *captured]))
        results = [called]
        if isinstance(called.ty, relax.TupleType):
            results = [
                emitter.emit(relax.TupleGetItem(called, i)) for i in range(len(called.ty.fields))
            ]
        # A condition that stays true is not handed on: then no half has to ask for it.
        results = results[0 if self.form.ends else self.form.conditions :]
        first = len(results) - len(self.form.stacks)
        return [*results[:first], *(results[first + index] for index in self.stacked)]

    def _declared(self) -> relax.Function:
        """Returns ``steps`` without what it does, which calls it."""
        _, carried, read = self._parameters()
        one: Any = self.builder.get()[self.one]
        parts = self._parts(one.ret_ty.fields)
        kept = [
            _of_rank(own.ty) if _changes(value) else own.ty
            for value, own in zip(self.carried, carried, strict=True)
        ]
        types = relax.TupleType([*parts.going, *kept, *map(_of_rank, parts.rows)])
        return relax.Function.create_empty([*_span(), *carried, *read], types)

    def _steps(self, halves: ir.GlobalVar) -> ir.GlobalVar:
        """Some steps, one at least: one, or two halves."""
        _, carried, read = self._parameters()
        first, last = _span()
        with self.builder.function("steps", [first, last, *carried, *read]):
            with self.builder.dataflow():
                left = self.builder.emit(op.subtract(last, first))
                alone = self.builder.emit_output(op.less(left, _int(2)))
            one = relax.Call(self.one, [first, *carried, *read])
            more = relax.Call(halves, [first, last, *carried, *read])
            return self.builder.emit_func_output(self.builder.emit(relax.If(alone, one, more)))

    def _halves(self, steps: ir.GlobalVar, second: ir.GlobalVar) -> ir.GlobalVar:
        """Two steps at least: those of the first half, and the others unless these end it."""
        emitter, carried, read = self._parameters()
        first, last = _span()
        with self.builder.function("halves", [first, last, *carried, *read]):
            with self.builder.dataflow():
                left = self.builder.emit(op.subtract(last, first))
                half = self.builder.emit(op.right_shift(left, _int(1)))
                # Not (first + last) / 2: where nobody says how many steps there are, last is the
                # largest int64.
                middle = self.builder.emit_output(op.add(first, half))
            early = self._called(emitter, steps, [first, middle, *carried, *read])
            rest = relax.Call(second, [middle, last, *early.rows, *early.carried, *read])
            if early.going:
                rest = relax.If(early.going[0], rest, relax.Tuple(early.all))
            return self.builder.emit_func_output(self.builder.emit(rest))

    def _second(self, steps: ir.GlobalVar) -> ir.GlobalVar:
        """The steps of the second half; their rows behind those of the first."""
        emitter, carried, read = self._parameters()
        rows = [
            relax.Var(f"rows_{index}", type_)
            for index, type_ in zip(
                self.stacked, self._row_types(emitter, "early", "row"), strict=True
            )
        ]
        middle, last = _span()
        with self.builder.function("second", [middle, last, *rows, *carried, *read]):
            late = self._called(emitter, steps, [middle, last, *carried, *read], "late", "row")
            joined = [
                self._joined(i, *two) for i, *two in zip(self.stacked, rows, late.rows, strict=True)
            ]
            result = relax.Tuple([*late.going, *late.carried, *joined])
            return self.builder.emit_func_output(result)

    def _joined(self, index: int, early: Expr, late: Expr) -> Expr:
        _, backwards = self.form.stacks[index]
        parts = [late, early] if backwards else [early, late]
        return self.builder.emit(op.concat(parts, axis=self._axis(index, early.ty.ndim)))

    def _main(self, steps: ir.GlobalVar) -> None:
        """All steps, of which there may be none."""
        emitter = RelaxEmitter(self.builder, {})
        params: list[relax.Var] = []
        for value in self.node.inputs:
            # An operand may be given twice, and is one parameter.
            if value is not None and value.constant is None and value not in emitter.exprs:
                emitter.exprs[value] = _variable(emitter, value)
                params.append(emitter.exprs[value])
        with self.builder.function("main", params):
            first = self.form.first
            carried = [self._operand(emitter, first + i) for i in range(self.form.states)]
            read = [self._operand(emitter, index) for index in self.operands]
            count, condition = self._limits(emitter)
            all_ = relax.Call(steps, [_int(0), count, *carried, *read])
            if condition is not None:
                none = self._nothing(emitter, carried, read)
                all_ = relax.If(condition, all_, relax.Tuple(none))
            results = self._parts(_fields(emitter, emitter.emit(all_)))
            wanted = [*(results.carried[i] for i in self.given if i < self.form.states)]
            self.builder.emit_func_output(relax.Tuple([*wanted, *results.rows]))

    def _limits(self, emitter: RelaxEmitter) -> tuple[Expr, Expr | None]:
        """Returns how many steps there are at most, and whether any; None where that is certain."""
        if self.form.scanned:
            count, asked = self._length(emitter), None
        else:
            count, asked = (self._scalar(emitter, index) for index in range(2))
        count = _int(_MOST) if count is None else count
        known = _constant_int(count)
        some = emitter.emit(op.greater(count, _int(0))) if known is None else relax.const(known > 0)
        unsure = [each for each in (some, asked) if each is not None and not _constant_int(each)]
        if len(unsure) == 2:
            return count, emitter.emit(op.logical_and(*unsure))
        return count, unsure[0] if unsure else None

    def _length(self, emitter: RelaxEmitter) -> Expr:
        """Returns the extent that is scanned; all are equal."""
        found: list[tuple[Expr, int]] = []
        for each in self.form.scanned:
            x = self._operand(emitter, each.operand)
            found.append((x, each.axis % x.ty.ndim))
        extents = [emitter.extents(x)[axis] for x, axis in found]
        for extent in extents[1:]:
            emitter.need_same(extent, extents[0])
        return emitter.run_time_extent(*found[0], "int64")

    def _scalar(self, emitter: RelaxEmitter, index: int) -> Expr | None:
        """Returns the number of steps or the condition; None where it is left out."""
        value = self.node.inputs[index]
        if value is None:
            return None
        if value.constant is not None:
            return emitter.number(value.constant.numpy().reshape(()))
        return emitter.emit(op.reshape(emitter.value(value), _ones(0)))

    def _nothing(self, emitter: RelaxEmitter, carried: list[Expr], read: list[Expr]) -> list[Expr]:
        """Returns what no steps give: rows that are none, as wide as one would be."""
        called: Any = self.builder.normalize(relax.Call(self.one, [_int(0), *carried, *read]))
        parts = self._parts(called.ty.fields)
        rows: list[Expr] = []
        for index, type_ in zip(self.stacked, parts.rows, strict=True):
            extents = [0] * type_.ndim if type_.shape is None else list(type_.shape.values)
            extents[self._axis(index, type_.ndim)] = 0
            rows.append(emitter.emit(op.zeros(relax.ShapeExpr(extents), str(type_.dtype))))
        return [*(relax.const(False) for _ in parts.going), *carried, *rows]

    # ---- what they have in common

    def _parameters(self) -> tuple[RelaxEmitter, list[relax.Var], list[relax.Var]]:
        """Returns an emitter with new variables for what is carried and what is read."""
        emitter = RelaxEmitter(self.builder, {})
        carried, read = (
            [_variable(emitter, v) for v in part] for part in (self.carried, self.read)
        )
        return emitter, carried, read

    def _operand(self, emitter: RelaxEmitter, index: int) -> Expr:
        return emitter.value(self.node.operand(index))

    def _parts(self, results: Sequence[Any]) -> _Parts:
        first = int(self.form.ends)
        last = first + self.form.states
        return _Parts(tuple(results[:first]), tuple(results[first:last]), tuple(results[last:]))

    def _called(
        self,
        emitter: RelaxEmitter,
        steps: ir.GlobalVar,
        arguments: list[Expr],
        count: str = "made",
        row: str = "made",
    ) -> _Parts:
        """Returns what a call of ``steps`` gives, with names for the extents that only it tells."""
        parts = self._parts(_fields(emitter, emitter.emit(relax.Call(steps, arguments))))
        carried = [
            self.builder.match_cast(expr, _type(emitter, value, "_next"))
            if _changes(value)
            else expr
            for value, expr in zip(self.carried, parts.carried, strict=True)
        ]
        types = self._row_types(emitter, count, row)
        rows = [
            self.builder.match_cast(x, type_) for x, type_ in zip(parts.rows, types, strict=True)
        ]
        return _Parts(parts.going, tuple(carried), tuple(rows))

    def _row_types(self, emitter: RelaxEmitter, count: str, row: str) -> list[relax.TensorType]:
        """Returns types of stacked rows.

        Args:
            emitter: A function's. TVMScript wants other names where a function binds them itself.
            count: What to call how many there are.
            row: What to call extents of one, where only the run tells them.
        """
        one: Any = self.builder.get()[self.one]
        found: list[relax.TensorType] = []
        for index, type_ in zip(self.stacked, self._parts(one.ret_ty.fields).rows, strict=True):
            known = [None] * type_.ndim if type_.shape is None else list(type_.shape.values)
            shape: list[Any] = [
                int(e)
                if isinstance(e, int | tirx.IntImm)
                else emitter.extent(f"{row}_{index}_{axis}")
                for axis, e in enumerate(known)
            ]
            shape[self._axis(index, type_.ndim)] = emitter.extent(f"{count}_{index}")
            found.append(relax.TensorType(shape, str(type_.dtype)))
        return found

    def _axis(self, index: int, rank: int) -> int:
        return self.form.stacks[index][0] % rank


def _common(value: Value, own: Any, other: Any, name: str) -> tuple[Dim, ...]:
    """Returns a shape for what is carried before a step and behind it."""
    extents = [None] * own.ndim if other.shape is None else other.shape.values
    return tuple(
        dim if _open(dim) or (b is not None and equal(a, b)) else f"{name}_{axis}"
        for axis, (dim, a, b) in enumerate(
            zip(value.type.shape or (), own.shape.values, extents, strict=True)
        )
    )


def _open(dim: Dim) -> bool:
    return isinstance(dim, str) and dim.startswith(_CARRIED)


def _changes(value: Value) -> bool:
    return any(map(_open, value.type.shape or ()))


def _type(emitter: RelaxEmitter, value: Value, behind: str = "") -> relax.TensorType:
    """Returns the type of a value in a function; ``behind`` is said of extents that change."""
    shape = value.type.shape
    named = None if shape is None else tuple(f"{e}{behind}" if _open(e) else e for e in shape)
    return relax.TensorType(emitter.shape(named), tvm_dtype(value.type.dtype))


def _variable(emitter: RelaxEmitter, value: Value) -> relax.Var:
    return relax.Var(unique_identifier(value.name or "x", set()), _type(emitter, value))


def _of_rank(type_: Any) -> relax.TensorType:
    return relax.TensorType(ndim=type_.ndim, dtype=str(type_.dtype))


def _int64_var(name: str) -> relax.Var:
    return relax.Var(name, relax.TensorType([], "int64"))


def _span() -> tuple[relax.Var, relax.Var]:
    return _int64_var("first"), _int64_var("last")


def _ones(rank: int) -> Any:
    """Returns the shape of a single element."""
    extents: Any = [1] * rank
    return relax.ShapeExpr(extents)


def _constant_int(expr: Expr) -> int | None:
    """Returns the value of a constant."""
    return int(expr.value.numpy()) if isinstance(expr, ir.GenericConst) else None


def _int(value: int) -> Expr:
    return relax.const(value, "int64")


def _fields(emitter: RelaxEmitter, called: Expr) -> list[Expr]:
    return [emitter.emit(relax.TupleGetItem(called, i)) for i in range(len(called.ty.fields))]


# ---- ``If`` whose condition is known at run time only: a function for each branch, one that
# chooses
#
# TVM's own importer takes all but the last operator of a branch out of it: both are computed
# then.

EmitBranch = Callable[[Graph], ir.IRModule]
_BRANCHES = ("then_branch", "else_branch")


def conditional_module(node: Node, emit_branch: EmitBranch) -> ir.IRModule:
    """Returns a module whose ``main`` takes what an If takes, constants left out.

    Results whose extents are others in the other branch have no extents in its type.

    Args:
        node: An opaque If.
        emit_branch: Emits a branch as a module.

    Raises:
        QdqBridgeError: A branch cannot be read, or not be emitted.
    """
    condition = node.operand(0)
    if condition.constant is not None:  # the other branch need not be one of these extents
        return emit_branch(canonicalize(branch_of(node, bool(condition.constant.numpy().all()))))
    modules = [emit_branch(canonicalize(graph)) for graph in branches_of(node)]
    builder = relax.BlockBuilder()
    pairs = zip(modules, _BRANCHES, strict=True)
    branches = [added(builder, module, name) for module, name in pairs]
    parameters: Any = _branch_parameters(node)
    chosen, captured = parameters[0], parameters[1:]
    with builder.function("main", parameters):
        scalar: Any = relax.op.reshape(chosen, relax.ShapeExpr([])) if condition.rank else chosen
        then, other = (relax.Call(branch, captured) for branch in branches)
        result = builder.emit(relax.If(builder.normalize(scalar), then, other))
        builder.emit_func_output(result)
    return builder.finalize()


def _branch_parameters(node: Node) -> list[relax.Var]:
    """Returns a parameter per operand that is not constant; a branch may want more of extents."""
    extents: dict[str, tirx.Var] = {}
    found: list[relax.Var] = []
    for value in node.inputs:
        if value is None or value.constant is not None:
            continue
        shape: Any = [
            extents.setdefault(extent, tirx.Var(extent, "int64"))
            if isinstance(extent, str)
            else extent
            for extent in value.type.shape or ()
        ]
        found.append(relax.Var(value.name, relax.TensorType(shape, tvm_dtype(value.type.dtype))))
    return found
