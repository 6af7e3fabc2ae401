"""A Relax module as one list of steps: every call of a function looked into, every value numbered.

Two steps have the same number where the same operators compute them from the same operands,
whatever function they stand in: the call of a fused function and the last binding in it, and the
binding that there was before the function was cut out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

_SAME_VALUES = ("relax.permute_dims", "relax.layout_transform", "relax.astype")
"""Operators whose result has the values of the operand, elsewhere or in another element type."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """A binding, or a parameter, at one place where its function is called.

    Attributes:
        function: The name of the function.
        variable: What is bound.
        expression: What it is bound to; None for a parameter.
        number: The number of its value.
        operands: The numbers of the operands.
        operator: The name of the operator, where it is the call of one.
        inner: The steps of the function that it calls.
        shared: Its function is called from several places.
        is_inner_parameter: It is a parameter of a function that is called.
    """

    function: str
    variable: Any
    expression: Any
    number: int
    operands: tuple[int, ...] = ()
    operator: str = ""
    inner: range | None = None
    shared: bool = False
    is_inner_parameter: bool = False

    @property
    def moved(self) -> int | None:
        """The number of the value that this one is, in another place or element type."""
        return self.operands[0] if self.operator in _SAME_VALUES and self.operands else None


@dataclass(slots=True)
class Trace:
    """The steps of a module.

    Attributes:
        steps: In the order in which they happen; those of a called function before the call.
        numbers: What stands behind each number, to number the module after the next pass alike.
    """

    steps: list[TraceStep]
    numbers: dict[Any, int]

    @staticmethod
    def of(module: ir.IRModule, numbers: dict[Any, int]) -> Trace:
        """Returns the trace of a module.

        Args:
            module: Any Relax module.
            numbers: Those of an earlier trace; they are added to.
        """
        tracer = _Tracer(module, numbers)
        for name in tracer.entries():
            tracer.enter(name)
        shared = {name for name, times in tracer.times.items() if times > 1}
        steps = [
            replace(step, shared=any(_is_nested_function(step.function, name) for name in shared))
            for step in tracer.steps
        ]
        return Trace(steps, numbers)


def _is_nested_function(function: str, outer: str) -> bool:
    return function == outer or function.startswith(outer + "/")


class _Tracer:
    def __init__(self, module: ir.IRModule, numbers: dict[Any, int]) -> None:
        self.numbers = numbers
        self.functions: dict[str, relax.Function] = {
            variable.name_hint: function
            for variable, function in module.functions.items()
            if isinstance(function, relax.Function)
        }
        self.steps: list[TraceStep] = []
        self.times: Counter[str] = Counter()
        self._opaque = 0

    def entries(self) -> Iterator[str]:
        """Yields the functions that no other one calls."""
        called: set[str] = set()

        def note(expr: Any) -> None:
            if isinstance(expr, ir.GlobalVar):
                called.add(expr.name_hint)

        for function in self.functions.values():
            relax.analysis.post_order_visit(function, note)
        yield from (name for name in self.functions if name not in called)

    def number(self, key: Any) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def enter(self, name: str) -> None:
        function = self.functions[name]
        values: dict[int, Any] = {}
        for index, parameter in enumerate(function.params):
            number = self.number(("parameter", name, index))
            values[hash(parameter)] = number
            self.steps.append(TraceStep(name, parameter, None, number))
        _TracedBody(self, name, values).run(function)

    def call(self, name: str, function: relax.Function, given: list[Any], outer: Any) -> Any:
        """Follows a call; returns the number of the result."""
        self.times[name] += 1
        values: dict[int, Any] = dict(outer)
        for parameter, number in zip(function.params, given, strict=True):
            values[hash(parameter)] = number
            if isinstance(number, int):
                step = TraceStep(name, parameter, None, number, is_inner_parameter=True)
                self.steps.append(step)
        return _TracedBody(self, name, values).run(function)

    def opaque(self) -> int:
        """Returns the number of a value that nothing is known about."""
        self._opaque += 1
        return self.number(("opaque", object()))


class _TracedBody:
    """One function, at one place where it is called."""

    def __init__(self, tracer: _Tracer, name: str, values: dict[int, Any]) -> None:
        self.tracer, self.name, self.values = tracer, name, values

    def run(self, function: relax.Function) -> Any:
        body = function.body
        if not isinstance(body, relax.SeqExpr):
            return self.value(body)
        for block in body.blocks:
            for binding in block.bindings:
                self._bind(binding)
        return self.value(body.body)

    def _bind(self, binding: Any) -> None:
        variable, expression = binding.var, binding.value
        if isinstance(expression, relax.Function):
            self.values[hash(variable)] = (f"{self.name}/{variable.name}", expression)
            return
        first = len(self.tracer.steps)
        callee = self._callee(expression)
        if callee is None:
            operands, operator = self._operands(expression), _operator(expression)
            number = self.value(expression)
            inner = None
        else:
            operands = [self.value(argument) for argument in expression.args]
            number = self.tracer.call(*callee, operands, self.values)
            operator, inner = "", range(first, len(self.tracer.steps))
        self.values[hash(variable)] = number
        if not isinstance(number, int):
            number = self.tracer.number(number)
        whole = tuple(o for o in operands if isinstance(o, int))
        self.tracer.steps.append(
            TraceStep(self.name, variable, expression, number, whole, operator, inner)
        )

    def _callee(self, expression: Any) -> tuple[str, relax.Function] | None:
        if not isinstance(expression, ir.Call):
            return None
        op = expression.op
        if isinstance(op, ir.GlobalVar) and op.name_hint in self.tracer.functions:
            return op.name_hint, self.tracer.functions[op.name_hint]
        held = self.values.get(hash(op)) if isinstance(op, relax.Var) else None
        if isinstance(held, tuple) and len(held) == 2 and isinstance(held[1], relax.Function):
            return held
        return None

    def _operands(self, expression: Any) -> list[Any]:
        """The numbers of all values that an expression reads."""
        if isinstance(expression, ir.Call):
            return [number for argument in expression.args for number in self._operands(argument)]
        if isinstance(expression, relax.Tuple):
            return [number for item in expression.fields for number in self._operands(item)]
        if isinstance(expression, relax.TupleGetItem):
            return [*self._operands(expression.tuple_value), self.value(expression)]
        if isinstance(expression, relax.Var):
            value = self.value(expression)
            return list(value[1]) if isinstance(value, tuple) and value[0] == "tuple" else [value]
        return []

    def value(self, expression: Any) -> Any:
        """Returns the number of an expression's value; a tuple's is a tuple of them."""
        number = self.tracer.number
        if isinstance(expression, relax.Var):
            known = self.values.get(hash(expression))
            # A number of its own, so that nothing is taken for equal that may differ.
            return self.tracer.opaque() if known is None else known
        if isinstance(expression, relax.Tuple):
            return ("tuple", tuple(self.value(item) for item in expression.fields))
        if isinstance(expression, relax.TupleGetItem):
            source = self.value(expression.tuple_value)
            if isinstance(source, tuple) and source[0] == "tuple":
                return source[1][expression.index]
            return number(("item", source, expression.index))
        if isinstance(expression, ir.GenericConst):
            return number(("constant", _content(expression)))
        if isinstance(expression, ir.Call):
            arguments = tuple(self.value(argument) for argument in expression.args)
            # Equal calls of equal values have one number: this is how values are found again behind
            # a pass that renamed them.
            return number((_operator(expression), str(expression.attrs), arguments))
        if isinstance(expression, (relax.If, relax.Function)):
            return self.tracer.opaque()
        return number((type(expression).__name__, str(expression)))


def _content(constant: Any) -> str:
    if not isinstance(constant.value, tvm.runtime.Tensor):
        return str(constant.value)
    array = constant.value.numpy()
    sha = hashlib.sha1(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"{array.dtype} {array.shape} {sha.hexdigest()}"


def _operator(expression: Any) -> str:
    op = getattr(expression, "op", None)
    if isinstance(op, ir.Op):
        return op.name
    return op.global_symbol if isinstance(op, relax.ExternFunc) else ""
