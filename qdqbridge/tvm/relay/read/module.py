"""A Relay module as calls in plain Python, in the order in which they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relay

from qdqbridge.core.graph.graph import Graph, Note, Value
from qdqbridge.core.graph.types import Dim, QuantType
from qdqbridge.core.ops.normalization import NORMS
from qdqbridge.core.rewrite import Rule
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.qnn.origin import Provenance, layout_of, params_of, provenance_of
from qdqbridge.tvm.qnn.read.call import Call, Entry, Result
from qdqbridge.tvm.qnn.read.reader import AS_WRITTEN, CONVERTED, CallReader
from qdqbridge.tvm.qnn.read.reading import Reading, Row, flat
from qdqbridge.tvm.qnn.read.rules import FROM_RELAY
from qdqbridge.tvm.relay.build import arrays_of, module_of

# ---- relay's calls under the names and attributes that the shared rows know ----------------------

_OWN = "qnn.qdq_"
"""Prefix of our operators where Relay has one of the name that cannot carry the call."""


def normalized(call: Call, context_of: Callable[[Call], CallReader]) -> Call:
    """Returns a call as the shared rows expect it.

    Args:
        call: The call as Relay has it.
        context_of: Makes the view of a call, to look at constants.

    Raises:
        UnsupportedModelError: The call has a form that no row knows.
    """
    if call.op.startswith(_OWN):
        call = replace(call, op="qnn." + call.op.removeprefix(_OWN))
    _check_out_layout(call, context_of(call))
    change = _CHANGES.get(call.op)
    return call if change is None else change(call, context_of(call))


def _check_out_layout(call: Call, reader: CallReader) -> None:
    """Relay can state another layout for a result than for the data."""
    stated, own = reader.text("out_layout"), reader.text("data_layout") or reader.text("layout")
    if stated not in ("", own):
        raise reader.refusal(f"its data has layout {own}, its result {stated}")


def _pad_value_to_attribute(call: Call, reader: CallReader) -> Call:
    """The pad value is Relay's second argument, here an attribute."""
    if len(call.args) < 2:
        return call
    value = reader.array(1)
    if value is None:
        raise reader.refusal("the number that it pads with is computed")
    number = float(np.asarray(value).reshape(-1)[0])
    return replace(call, args=call.args[:1], attrs={**call.attrs, "pad_value": number})


def _norm(call: Call, reader: CallReader) -> Call:
    """Relay says with ``center`` and ``scale`` whether beta and gamma count."""
    data, gamma, beta, *rest = call.args
    if not reader.flag("scale", default=True):
        gamma = reader.constant(np.ones(reader.static(reader.value(1)), np.float32))
    if not reader.flag("center", default=True):
        beta = reader.constant(np.zeros(reader.static(reader.value(2)), np.float32))
    return replace(call, args=(data, gamma, beta, *rest))


def _reduction(call: Call, reader: CallReader) -> Call:
    """``exclude`` reduces the axes that are not listed; an empty list reduces none or all."""
    if not reader.flag("exclude"):
        return call
    rank = len(reader.shape(reader.value(0)))
    kept = {axis % rank for axis in reader.ints("axis")}
    axes = tuple(axis for axis in range(rank) if axis not in kept)
    return replace(call, attrs={**call.attrs, "axis": axes, "exclude": False})


def _order_clip_bounds(call: Call, reader: CallReader) -> Call:
    """Where the bounds are swapped, every element becomes the first of them."""
    low, high = float(call.attrs["a_min"]), float(call.attrs["a_max"])
    del reader
    return call if not low > high else replace(call, attrs={"a_min": low, "a_max": low})


_CHANGES: Mapping[str, Callable[[Call, CallReader], Call]] = {
    "nn.pad": _pad_value_to_attribute,
    "clip": _order_clip_bounds,
    **dict.fromkeys((row.tvm for row in NORMS if row.tvm), _norm),
    **dict.fromkeys(("mean", "sum", "max", "min"), _reduction),
}


Array = NDArray[Any]


def read_module(
    mod: Any, params: Mapping[str, Any] | None, rows: Mapping[str, Row], calls: Sequence[Rule]
) -> tuple[Graph, dict[Value, int]]:
    """Returns the raw graph of ``main``, and how many axes the file gave to some constants.

    Args:
        mod: A Relay ``IRModule`` (or a function).
        params: Values of parameters of ``main`` by name.
        rows: What each operator becomes.
        calls: The rules that are asked before the rows.

    Raises:
        InputDataError: It is no well-typed module, or a parameter does not fit it.
        UnsupportedModelError: Something in it has no counterpart; all of it is listed.
    """
    main = module_of(mod, "reading")["main"]
    walk = _FunctionWalk(main, arrays_of(params, main), rows, calls)
    return walk.graph(), walk.reading.ranks


class _FunctionWalk:
    def __init__(
        self, function: Any, params: Mapping[str, Array], rows: Mapping[str, Row],
        calls: Sequence[Rule],
    ) -> None:  # fmt: skip
        self.function, self.params = function, params
        self.reading = Reading(rows, calls, "Relay module, function main", FROM_RELAY)
        self.entries: dict[Any, Entry] = {}
        self.dims: dict[str, int] = {}
        self.others: dict[str, int] = {}

    def graph(self) -> Graph:
        inputs = [v for v in map(self._parameter, self.function.params) if v is not None]
        self._describe(inputs)
        _tell_apart(inputs)
        relay.analysis.post_order_visit(self.function.body, self._visit)
        if self.others:
            raise UnsupportedModelError(
                "the module is more than one flow of operators",
                where="Relay module, function main",
                why=", ".join(f"{count} {name}" for name, count in self.others.items()),
                fix="inline functions and remove control flow before reading",
            )
        output = self.entries[self.function.body]
        results = flat([output])
        names = self._strings("output_names") or [
            "output" if i == 0 else f"output_{i}" for i in range(len(results))
        ]
        graph = self.reading.finish(inputs, results, names, "main")
        notes: list[Note] = self.reading.memory.get(("notes",), [])
        graph.notes.extend(note for note in notes if note not in graph.notes)
        return graph

    def _strings(self, attribute: str) -> list[str]:
        """Returns what an attribute of the function lists; nothing where it has no such one."""
        attrs = self.function.attrs
        if attrs is not None and attribute in attrs.keys():  # noqa: SIM118 (no mapping)
            return [str(name) for name in attrs[attribute]]
        return []

    def _describe(self, inputs: list[Value]) -> None:
        """Gives inputs the names and the meaning that the function's attributes state."""
        names, types = self._strings("input_names"), self._strings("input_types")
        if names and len(inputs) > len(names):
            raise UnsupportedModelError(
                f"the parameter '{inputs[len(names)].name}' has no value",
                where="Relay module, function main",
                why=f"the function takes {len(names)} inputs; the parameters after them are kept "
                "apart from the module",
                fix="give params, the arrays that came with the module",
            )
        for value, name in zip(inputs, names, strict=False):
            value.name = name
        for value, text in zip(inputs, types, strict=False):
            params = params_of(text)
            if params is not None and params.storage_dtype is value.type.dtype:
                value.type = QuantType(params, value.type.shape)
            else:
                self.reading.hints[value] = params

    def _parameter(self, var: Any) -> Value | None:
        """Enters a parameter; returns it where it is an input of the graph."""
        name = str(var.name_hint)
        given = self.params.get(name)
        if given is not None:
            self.entries[var] = self.reading.constant(given, name)
            return None
        (result,) = self._results(var.checked_type)
        value = self.reading.input(name, result.dtype, result.shape)
        self.entries[var] = value
        return value

    def _visit(self, expr: Any) -> None:
        if expr in self.entries or isinstance(expr, tvm.ir.Op):
            return
        match expr:
            case relay.Constant():
                self.entries[expr] = self.reading.constant(
                    expr.data.numpy(), _relay_span_name(expr)
                )
            case relay.Tuple():
                self.entries[expr] = [self.entries[field] for field in expr.fields]
            case relay.TupleGetItem():
                entry = self.entries[expr.tuple_value]
                assert not isinstance(entry, Value)
                self.entries[expr] = list(entry)[expr.index]  # type: ignore[arg-type]
            case relay.Call() if isinstance(expr.op, tvm.ir.Op):
                self.entries[expr] = self._call(expr)
            case relay.Var() | relay.GlobalVar():
                pass
            case _:
                kind = type(expr).__name__
                self.others[kind] = self.others.get(kind, 0) + 1

    def _call(self, call: Any) -> Entry:
        name = _relay_span_name(call)
        provenance = _marked(provenance_of(name))
        args = tuple(self.entries[arg] for arg in call.args if arg in self.entries)
        if len(args) != len(call.args):
            return self.reading.unread(Call(call.op.name, (), {}, self._results(call.checked_type)))
        made = Call(
            call.op.name,
            args,
            _relay_call_attrs(call.attrs),
            self._results(call.checked_type),
            provenance,
            provenance.name if provenance is not None else name or call.op.name,
        )
        try:
            made = normalized(made, lambda call: CallReader(self.reading, call))
        except UnsupportedModelError as error:
            return self.reading.unread(made, error.why)
        return self.reading.call(made)

    def _results(self, type_: Any) -> tuple[Result, ...]:
        if isinstance(type_, tvm.ir.TupleType):
            return tuple(r for field in type_.fields for r in self._results(field))
        return (Result(str(type_.dtype), tuple(self._dim(dim) for dim in type_.shape)),)

    def _dim(self, dim: Any) -> Dim:
        if isinstance(dim, tvm.tir.IntImm):
            return int(dim)
        return f"d{self.dims.setdefault(str(dim), len(self.dims))}"


def _tell_apart(inputs: list[Value]) -> None:
    """Relay's variables may share a name, or have none; the inputs of a graph may not."""
    taken = {value.name for value in inputs}
    seen: set[str] = set()
    for value in inputs:
        name, count = value.name or "input", 1
        # A numbered name may be the own name of another input.
        while name in seen or (count > 1 and name in taken):
            count += 1
            name = f"{value.name or 'input'}_{count}"
        value.name = name
        seen.add(name)


def _marked(provenance: Provenance | None) -> Provenance | None:
    """Returns provenance whose nodes say whether a layout plan had converted them."""
    if provenance is None:
        return None
    variant = AS_WRITTEN if layout_of(provenance) is None else CONVERTED
    return replace(provenance, origin=replace(provenance.origin, variant=variant))


def _relay_span_name(expr: Any) -> str:
    """Returns the name in a span, as the importers write it: ``node`` or ``tensor@@node``."""
    span = getattr(expr, "span", None)
    source = getattr(span, "source_name", None)
    if source is None:
        return ""
    return str(source.name)


def _relay_call_attrs(attrs: Any) -> dict[str, Any]:
    if attrs is None:
        return {}
    return {str(key): _python_attribute(attrs[str(key)]) for key in attrs.keys()}  # noqa: SIM118 (no mapping)


def _python_attribute(value: Any) -> Any:
    """Returns an attribute as Python numbers, strings and tuples; None where it is none of them."""
    match value:
        case tvm.tir.IntImm():
            return int(value)
        case tvm.tir.FloatImm():
            return float(value)
        case bool() | int() | float():
            return value
        case tvm.ir.Array() | tuple() | list():
            return tuple(_python_attribute(entry) for entry in value)
        case str() | tvm.runtime.String():
            return str(value)
        case _:
            return None
