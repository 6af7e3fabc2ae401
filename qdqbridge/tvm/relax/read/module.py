"""A function of a Relax module as a graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import Attributes, Flow, Operator
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import GraphError, InputDataError, InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.control_flow.conditional import conditional
from qdqbridge.onnx_io.opaque.spans import opaque_of_span
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.origin import (
    Provenance,
    constants_of,
    dtype_of,
    is_function,
    params_of,
    plain_dtype_of,
    provenance_of,
)
from qdqbridge.tvm.qnn.read import CALLS, Call, Entry, Reading, Row, resize
from qdqbridge.tvm.qnn.read.call import constant_of
from qdqbridge.tvm.qnn.read.reading import flat
from qdqbridge.tvm.qnn.read.rules import FROM_RELAX
from qdqbridge.tvm.relax.read import arithmetic, calls, reshape_permute, standard
from qdqbridge.tvm.relax.read.calls import Extents, decoded, plain, results_of
from qdqbridge.tvm.relax.read.module_errors import ReaderPlace, explained_errors
from qdqbridge.tvm.relax.read.reshape_permute import generated

# ---- Regions, which a code generator has taken: nodes where the rest of a module is compiled -----


@dataclass(frozen=True, slots=True)
class RegionAttrs(Attributes):
    """A function that a code generator makes.

    Attributes:
        symbol: Its name in the module.
    """

    symbol: str


def is_region(function: Any) -> bool:
    """True for a function that a code generator has taken."""
    return function.attrs is not None and "Codegen" in function.attrs


def _region_node(reading: Reading, symbol: str, arguments: Sequence[Entry], type_: Any) -> Entry:
    """Returns the results of a call of a region, on stored integers."""
    operands = [reading.plain(entry) for entry in arguments]
    types = [TensorType(dtype_of(r.dtype), r.shape) for r in results_of(type_)]
    values = reading.several(_region(symbol), RegionAttrs(symbol), operands, types)
    return values if hasattr(type_, "fields") else values[0]


@cache
def _region(symbol: str) -> Operator:
    return Operator(
        name=f"region::{symbol}", flow=Flow.FLOAT, attributes=RegionAttrs, compute=_by_its_code
    )


def _by_its_code(attributes: Attributes, operands: Any) -> tuple[NDArray[Any], ...]:
    raise GraphError(
        "a region is computed by the code that is made of it",
        why="the interpreter has the module's operators, not a backend's code",
        fix="give the graph that was partitioned first, the executable second; "
        "byoc.compare_regions(module) compares region by region",
    )


# ---- ``If`` whose condition is known at run time only --------------------------------------------


def chosen(reader: FunctionReader, expr: Any, condition: Value, type_: Any) -> Entry:
    """Returns the results of an If: of either branch where both are one graph, else of ONNX's If.

    Args:
        reader: Reads the function that has it.
        expr: The If.
        type_: The type of its result where it is bound to a variable.
    """
    bodies = (expr.true_branch, expr.false_branch)
    captured: dict[Any, Value] = {}
    for body in bodies:
        captured |= reader.captured(body)
    # By meaning: frontends write one branch in other operators than the other.
    if len({_digest(reader.inside(body, captured)) for body in bodies}) == 1:
        return reader.sequence(expr.true_branch)
    return _if(reader, [reader.inside(body, captured) for body in bodies], condition, captured)


def _digest(graph: Graph) -> str:
    return canonicalize(graph).digest


def _if(
    reader: FunctionReader, branches: list[Graph], condition: Value, captured: Mapping[Any, Value]
) -> Entry:
    given = [value for value in captured.values() if not value.is_constant]
    op, attributes, order = conditional(*branches)
    plain = [reader.reading.plain(value) for value in given]
    operands = [reader.reading.plain(condition), *(plain[i] for i in order)]
    types = [value.type for value in branches[0].outputs]
    values = reader.reading.several(op, attributes, operands, types)
    return values[0] if len(values) == 1 else values


def opaque_node(
    reading: Reading, provenance: Provenance, arguments: Sequence[Entry], expr: Any
) -> list[Value] | Value | None:
    """Returns the results of the node that a span holds; None where it does not hold all of it."""
    row = BY_NAME.get(provenance.op)
    found = opaque_of_span(provenance.raw)
    if row is not None and provenance.attributes is not None:
        found = row, provenance.attributes
    constants = constants_of(provenance)
    if constants is None or found is None:
        return None
    given = iter(arguments)
    operands: list[Value | None] = []
    for index in range(len(provenance.operands)):
        if index in provenance.more["absent"]:
            operands.append(None)
        elif index in constants:
            operands.append(reading.constant(constants[index]))
        else:
            operands.append(reading.plain(next(given)))
    results = tuple(results_of(expr.ty))
    types = [
        TensorType(dtype_of(name), result.shape)
        for name, result in zip(provenance.more["types"], results, strict=False)
    ]
    call = Call(provenance.op, tuple(arguments), {}, results, provenance)
    values = reading.several(*found, operands, types, call)
    return values[0] if len(values) == 1 else values


# ---- A function of a Relax module as a graph -----------------------------------------------------


_PLAIN: Mapping[str, Row] = {
    **standard.STANDARD,  # an operator that has a row of the table becomes that
    **read.ROWS,
    **resize.ROWS,
    **resize.HOST_RESIZE,
    **arithmetic.ROWS,
    **calls.ROWS,
}
_WITH_OWN: Mapping[str, Row] = {
    **_PLAIN,
    **arithmetic.rows(_PLAIN),
    **reshape_permute.rows(_PLAIN),
}
ROWS: Mapping[str, Row] = MappingProxyType({**_WITH_OWN, **arithmetic.dynamic_rows(_WITH_OWN)})
"""One row per operator, by Relay's name where that has it, else by Relax's."""


def from_relax(
    module: ir.IRModule,
    params: Arrays | None = None,
    *,
    function: str = "main",
    regions: bool = False,
) -> Graph:
    """Reads a module: of TVM's frontends, of the QNN dialect as emission writes it, or of both.

    Functions that the function calls (composites, partitioned regions) are read through. Passes
    that keep operators may have been applied; what they have lowered is refused.

    Args:
        params: Arrays of parameters by name, where the module keeps them apart and does not carry
            them in its attribute ``params``; or what ``relax.frontend.detach_params`` returns.
        function: Which of its functions.
        regions: Make a node of each call of a region that a code generator has taken.

    Returns:
        The raw graph; :func:`qdqbridge.core.canonical.canonicalize` makes it canonical.

    Raises:
        InvalidModelError: Its parts do not fit each other.
        UnsupportedModelError: It has calls without a counterpart; every one is listed.
        InputDataError: ``params`` do not fit the function.
    """
    reader = FunctionReader(module, f"function '{function}'", regions=regions)
    with explained_errors(reader.place):
        body = module[function]
        arrays = {} if params is None else named_params(body, function, params)
        return reader.graph(body, arrays)


def read_function(
    function: relax.Function,
    module: ir.IRModule | None = None,
    *,
    params: Arrays | None = None,
    output_names: Sequence[str] = (),
    where: str = "",
) -> Graph:
    """Reads one function, a partitioned region say.

    Args:
        function: The function; its tensor parameters are the graph's inputs, by their names.
        module: Where the functions live that it calls.
        params: Constants by parameter name; these parameters are no inputs.
        output_names: Names of the results; by default ``output_names`` of its attributes, or
            ``output_0`` and so on.
        where: Names the function in messages.

    Raises:
        UnsupportedModelError: It has calls without a counterpart; every one is listed.
    """
    return FunctionReader(module, where).graph(function, params or {}, output_names)


_LOWERED = "TVM has lowered it to a kernel; read the module before LegalizeOps and fusion"
_OPAQUE = "it calls a function outside of the module; read the module before it is partitioned"
_RECURSIVE = "the function calls itself, which no graph can say"
_INLINED = 1 << 16
"""Calls of functions that are read: a module in which each calls the next one twice has 2^n."""

_OPAQUE_CALLS = ("call_tir", "call_tir_inplace", "call_tir_with_grad", "vm.call_tir_dyn")


class FunctionReader:
    """Reads the bindings of one function, and of those it calls."""

    def __init__(self, module: ir.IRModule | None, where: str, *, regions: bool = False) -> None:
        self.module, self.where, self.regions = module, where, regions
        self.place = ReaderPlace(where)
        self.reading = Reading(ROWS, CALLS, where, FROM_RELAX)
        self.entries: dict[Any, Entry] = {}
        self.constants: dict[Any, Value] = {}
        self.functions: dict[Any, relax.Function] = {}
        self.matched: dict[Any, Entry] = {}
        self.extents = Extents(self.reading)
        self.inlined = 0
        self.open: list[relax.Function] = []
        """The functions that are being read, each called by the one before it."""

    def graph(self, function: Any, params: Arrays, output_names: Sequence[str] = ()) -> Graph:
        """Returns the function as a graph; arguments as those of :func:`read_function`."""
        attrs = function.attrs
        given = [] if attrs is None else [str(n) for n in attrs.get("input_names", ())]
        types = [] if attrs is None else [str(t) for t in attrs.get("input_types", ())]
        names = list(output_names)
        if not names and attrs is not None:
            names = [str(n) for n in attrs.get("output_names", ())]
        params = {**attached_params(function), **params}
        inputs: list[Value] = []
        for index, variable in enumerate(function.params):
            if str(variable.name) in params:
                array = fitting(variable, params[str(variable.name)])
                self.entries[variable] = self.reading.constant(array, str(variable.name))
                continue
            # A parameter that nobody gave would become an input by mistake; a module that says how
            # many inputs it has can tell.
            self._need_no_params(attrs, index, variable)
            name = given[len(inputs)] if len(inputs) < len(given) else str(variable.name)
            value = self._input(variable, name)
            # Relax has tensors of plain integers only. What our emission knew of an input's
            # quantization is an attribute of the function.
            if len(inputs) < len(types):
                self.reading.hints[value] = params_of(types[len(inputs)])
                plain_dtype = plain_dtype_of(types[len(inputs)])
                if plain_dtype is not None:
                    value.type = TensorType(plain_dtype, value.type.shape)
            inputs.append(value)
        self.open = [function]
        outputs = flat([self.sequence(function.body)])
        if not names:
            names = [f"output_{i}" for i in range(len(outputs))]
        if len(names) != len(outputs):
            raise InvalidModelError(
                "the outputs have other names than there are outputs",
                where=self.where,
                why=f"the function returns {len(outputs)} tensors, and names {names}",
                fix="correct the function's attribute output_names, or remove it",
            )
        return self.reading.finish(inputs, outputs, names)

    def _need_no_params(self, attrs: Any, index: int, variable: Any) -> None:
        count = None if attrs is None else plain(attrs.get("num_input"))
        if count is not None and not isinstance(count, int):
            raise InvalidModelError(
                "the function's attribute num_input is not a number",
                where=self.where,
                why=f"it is {count!r:.100}",
                fix="correct it, or remove it",
            )
        if count is not None and index >= count:
            raise UnsupportedModelError(
                f"the parameter '{variable.name}' has no value",
                where=self.where,
                why=f"the function takes {count} inputs; the parameters after them are kept "
                "apart from the module",
                fix="give params, the arrays that came with the module",
            )

    def _input(self, variable: Any, name: str) -> Value:
        result = results_of(variable.ty)
        if not isinstance(variable.ty, relax.TensorType):
            raise UnsupportedModelError(
                f"the parameter '{variable.name}' is not a tensor",
                where=self.where,
                why=f"its type is {variable.ty}",
                fix="give the function one parameter for each tensor",
            )
        value = self.reading.input(name, result[0].dtype, result[0].shape)
        self.extents.note(value, variable.ty)
        self.entries[variable] = value
        return value

    # ---- bindings -----------------------------------------------------------------------------

    def sequence(self, body: Any) -> Entry:
        """Returns what a sequence of bindings comes to."""
        if not isinstance(body, relax.SeqExpr):
            return self._entry(body)
        for block in body.blocks:
            for binding in block.bindings:
                self.place.variable = binding.var
                self.entries[binding.var] = self._binding(binding)
        return self._entry(body.body)

    def _binding(self, binding: Any) -> Entry:
        if isinstance(binding, relax.MatchCast):
            entry = self._entry(binding.value)
            extents = getattr(binding.ty, "values", None)
            if extents is not None:  # the extents that a vector holds at run time
                self.matched.update((e, entry) for e in extents if isinstance(e, tirx.Var))
            elif isinstance(entry, Value):
                if entry.type.shape is None:  # the module knows more than the operator tells
                    entry.type = entry.type.with_shape(results_of(binding.ty)[0].shape)
                self.extents.note(entry, binding.ty)
            return entry
        return self._entry(binding.value, binding.var)

    def _entry(self, expr: Any, variable: Any = None) -> Entry:
        if isinstance(expr, relax.Function):
            self.functions[variable] = expr
            return []
        if isinstance(expr, relax.Var):
            return self.entries.get(expr, [])
        if isinstance(expr, relax.Tuple):
            return [self._entry(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return _fields(self._entry(expr.tuple_value))[int(expr.index)]
        if isinstance(expr, ir.GenericConst):
            return self._constant(expr)
        if isinstance(expr, ir.Call):
            return self._call(expr, variable)
        if isinstance(expr, relax.If):
            return self._branch(expr, variable)
        if isinstance(expr, relax.ShapeExpr):
            known = all(map(self.extents.knows, expr.values))
            return self.extents.vector(expr.values) if known else []
        return self._unknown(expr, variable)

    def _unknown(self, expr: Any, variable: Any, why: str = "") -> Entry:
        """An argument that is no tensor is none; a binding of something else is refused later."""
        number = plain(expr)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return self.reading.constant(np.asarray(number, str(expr.ty)))
        if variable is None:
            return []
        results = tuple(results_of(variable.ty))
        name = type(expr).__name__
        call = Call(name, (), {}, results, None, str(variable.name), self.where)
        return self.reading.unread(call, why)

    def _constant(self, expr: Any) -> Value:
        if expr not in self.constants:
            array = _array(expr.value)
            if array.dtype.kind in "OSU":
                raise InvalidModelError(
                    "a constant is not a tensor of numbers",
                    where=self.where,
                    why=f"it holds {str(array)[:100]!r}",
                    fix="save the module anew",
                )
            self.constants[expr] = self.reading.constant(array)
        return self.constants[expr]

    # ---- branches -----------------------------------------------------------------------------

    def _branch(self, expr: Any, variable: Any) -> Entry:
        """An If whose condition is known, or whose branches are equal, is a branch."""
        condition = self.reading.value(self._entry(expr.cond))
        known = constant_of(condition)
        if known is not None:
            return self.sequence(expr.true_branch if bool(known.all()) else expr.false_branch)
        return chosen(self, expr, condition, None if variable is None else variable.ty)

    def inside(self, branch: Any, captured: Mapping[Any, Value]) -> Graph:
        """Returns a branch as a graph of its own, whose inputs are what it captures."""
        inner = FunctionReader(self.module, self.where)
        inner.functions.update(self.functions)
        # A branch counts what is inlined, and what is open, with the function around it.
        inner.open, inner.inlined = [*self.open], self.inlined
        inner.place = self.place
        inputs: list[Value] = []
        for outer, value in captured.items():
            own = Value(value.type, value.name, constant=value.constant)
            inner.entries[outer] = own
            inputs += [] if value.is_constant else [own]
            if isinstance(outer.ty, relax.TensorType):
                inner.extents.note(own, outer.ty)
        outputs = flat([inner.sequence(branch)])
        self.inlined = inner.inlined
        names = [f"output_{i}" for i in range(len(outputs))]
        return inner.reading.finish(inputs, outputs, names)

    def captured(self, branch: Any) -> dict[Any, Value]:
        """Returns the tensors outside of a branch that it reads, by their variables."""
        free = [v for v in relax.analysis.free_vars(branch) if v in self.entries]
        return {v: self.reading.value(self.entries[v]) for v in free}

    # ---- calls --------------------------------------------------------------------------------

    def _call(self, expr: Any, variable: Any) -> Entry:
        callee, provenance = self._callee(expr.op), _provenance(expr)
        if callee is not None and provenance is not None and is_function(provenance.op):
            found = opaque_node(self.reading, provenance, [self._entry(a) for a in expr.args], expr)
            if found is not None:
                return found
        if callee is not None and self.regions and is_region(callee):
            entries = [self._entry(arg) for arg in expr.args]
            return _region_node(self.reading, _symbol(expr), entries, expr.ty)
        if callee is not None:
            return self._inlined(callee, expr, variable)
        if not isinstance(expr.op, ir.Op):
            return self._outside(expr, variable)
        return self._operator(expr, variable, provenance)

    def _inlined(self, callee: Any, expr: Any, variable: Any) -> Entry:
        """Reads a function of the module in the place of its call."""
        arguments = [self._entry(arg) for arg in expr.args]
        # Only one that is being read already: a function may be called many times.
        if any(callee.same_as(function) for function in self.open):
            return self._stand_in(expr, variable, arguments, _RECURSIVE)
        self.inlined += 1
        if self.inlined > _INLINED:
            raise UnsupportedModelError(
                "the module is too large",
                where=self.where,
                why=f"its functions call each other more than {_INLINED} times",
                fix="give each layer its own operators, or call functions less deeply",
            )
        self.open.append(callee)
        self.entries.update(zip(callee.params, arguments, strict=True))
        result = self.sequence(callee.body)
        self.open.pop()
        return result

    def _operator(self, expr: Any, variable: Any, provenance: Provenance | None) -> Entry:
        type_ = expr.ty if variable is None else variable.ty
        label = "" if variable is None else str(variable.name)
        why, found = "", decoded(expr)
        if found[0] in _OPAQUE_CALLS:
            kernel = self._kernel(expr)
            why = "" if kernel is not None else _LOWERED
            found = found if kernel is None else kernel
        name, args, attrs = found
        entries = [self._entry(arg) for arg in args]
        wanted = attrs.get("newshape" if name == "reshape" else "shape", ())
        if name == "broadcast_to" and attrs.get("implied"):
            return entries[0]  # the operator that reads it broadcasts
        if isinstance(wanted, tuple):
            entries += self._vector(name, wanted, entries, provenance)
        where = (label, self.where)
        call = Call(name, tuple(entries), attrs, tuple(results_of(type_)), provenance, *where)
        return self._unread(call, why) if why else self.reading.call(call)

    def _unread(self, call: Call, why: str) -> Entry:
        results = self.reading.unread(call, why)
        return results[0] if len(results) == 1 else results

    def _vector(
        self,
        name: str,
        wanted: tuple[Any, ...],
        entries: list[Entry],
        provenance: Provenance | None,
    ) -> list[Entry]:
        """Returns the vector of a target shape that is known at run time only."""
        if provenance is not None and getattr(provenance.attributes, "shape", None) is not None:
            return []  # the node had a target in its attributes
        unknown = [e for e in wanted if e in self.matched]
        # Of a module that is not ours an extent of an input can be asked of that input.
        if provenance is None and name == "reshape":
            unknown = [e for e in unknown if e not in self.extents.sources]
        held = [self.matched[extent] for extent in unknown][:1]
        data = entries[0] if entries else None
        if held or name != "broadcast_to" or provenance is not None or not isinstance(data, Value):
            return held
        found = self.extents.target(wanted, data.type.shape or ())
        return [] if found is None else [found]

    def _kernel(self, expr: Any) -> Any:
        """Returns the operator that a frontend has written as a kernel of its own."""
        callee = expr.args[0]
        known = self.module is not None and isinstance(callee, ir.GlobalVar)
        if not known or not isinstance(expr.args[1], relax.Tuple):
            return None
        return generated(self.module[callee], list(expr.args[1].fields), expr.ty)  # type: ignore[index] # known

    def _outside(self, expr: Any, variable: Any) -> Entry:
        """A call of what is not an operator: a packed function, a variable that holds a closure."""
        if _symbol(expr).endswith("tensor_to_shape"):
            return self._entry(expr.args[0])
        return self._stand_in(expr, variable, [self._entry(arg) for arg in expr.args], _OPAQUE)

    def _stand_in(self, expr: Any, variable: Any, entries: list[Entry], why: str) -> Entry:
        """Returns what stands for the call of a function that cannot be read."""
        results = tuple(results_of(expr.ty if variable is None else variable.ty))
        label = "" if variable is None else str(variable.name)
        name = _symbol(expr) or type(expr.op).__name__
        call = Call(name, tuple(entries), {}, results, None, label, self.where)
        return self._unread(call, why)

    def _callee(self, op: Any) -> Any:
        """Returns the function that a call calls, None for an operator."""
        if isinstance(op, relax.Function):
            return op
        if isinstance(op, ir.GlobalVar) and self.module is not None:
            found = self.module[op]
            return found if isinstance(found, relax.Function) else None
        return self.functions.get(op) if isinstance(op, relax.Var) else None


def _symbol(expr: Any) -> str:
    """Returns the name of the function that a call calls."""
    return str(getattr(expr.op, "global_symbol", getattr(expr.op, "name_hint", "")))


def _provenance(expr: Any) -> Provenance | None:
    span = expr.span
    return None if span is None else provenance_of(str(span.source_name.name))


def _fields(entry: Entry) -> Sequence[Entry]:
    return [entry] if not isinstance(entry, Sequence) else entry


def _array(tensor: Any) -> NDArray[Any]:
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)


# ---- Parameters that are kept apart from their function: by name, or as TVM's frontends do it

Arrays: TypeAlias = "Mapping[str, Any]"


def entry_name(module: Any) -> str:
    """Returns the function of a module to read: ``main``, or the only one, else nothing."""
    names = [str(g.name_hint) for g, f in module.functions.items() if isinstance(f, relax.Function)]
    if "main" in names:
        return "main"
    return names[0] if len(names) == 1 else ""


def named_params(function: Any, name: str, params: Arrays) -> dict[str, Any]:
    """Returns the parameters of a function by their names.

    Args:
        function: The Relax function.
        name: Its name in the module.
        params: Arrays by parameter name, or what ``relax.frontend.detach_params`` returns: lists
            of arrays by function name, for the last parameters of each.

    Raises:
        InputDataError: There are more arrays than parameters.
    """
    own = dict(params)
    detached = own.get(name)
    names = [str(v.name) for v in function.params]
    if name not in names and isinstance(detached, Sequence):
        values = list(cast("Sequence[Any]", detached))
        if len(values) > len(names):
            raise InputDataError(
                f"{len(values)} arrays are given for '{name}'",
                why=f"the function has {len(names)} parameters",
                fix="give the arrays that came with the module",
            )
        own = dict(zip(names[len(names) - len(values) :], values, strict=True))
    return _as_printed(own, names)


def _as_printed(own: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Adds parameters under the names that TVMScript gave them: ``a_b`` for ``a.b``."""
    # Names of frameworks have dots, which are none in Python's.
    printed = {re.sub(r"\W", "_", name): array for name, array in own.items()}
    return {name: printed[name] for name in names if name in printed} | own


def attached_params(function: Any) -> dict[str, Any]:
    """Returns the parameters that a frontend has put into the function's attributes.

    The TFLite frontend puts constants there which are in the function itself, and no parameters.
    """
    attrs = function.attrs
    values = [] if attrs is None else list(attrs.get("params", ()) or ())
    names = [str(v.name) for v in function.params]
    if attrs is not None and attrs.get("num_input") == len(names):
        return {}
    return dict(zip(names[len(names) - len(values) :], values, strict=True))


def fitting(variable: Any, tensor: Any) -> NDArray[Any]:
    """Returns the array of a parameter.

    Args:
        variable: The parameter as the function declares it.
        tensor: Its array, or a tensor of TVM.

    Raises:
        InputDataError: It has another element type or shape than the parameter.
    """
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    declared = results_of(variable.ty)
    if len(declared) != 1:
        return array
    dtype, shape = declared[0].dtype, declared[0].shape
    fits = shape is None or (
        len(shape) == array.ndim
        and all(isinstance(e, str) or e == n for e, n in zip(shape, array.shape, strict=True))
    )
    if fits and str(array.dtype) == dtype:
        return array
    raise InputDataError(
        f"the array for the parameter '{variable.name}' does not fit",
        why=f"it is {array.dtype} {list(array.shape)}, the function takes {dtype} "
        f"{'of any shape' if shape is None else list(shape)}",
        fix="give the arrays that came with the module",
    )
