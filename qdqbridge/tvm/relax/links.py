"""Which tensor of the float model an expression of a Relax module is, whatever passes did to it.

Emission names the variable of a tensor after its id (:func:`emit_linked`). Names alone do not
outlive every pass, so :mod:`qdqbridge.tvm.relax.links` follows a module from pass to pass: a
variable is known by its name, by being the same object as before, or by computing the same from the
same operands, looked at through every call of a function. What is not known is said to be unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import mutator

from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.printer import id_of, tensor_id
from qdqbridge.tvm.qnn.origin import provenance_of
from qdqbridge.tvm.relax.emit.module import ModuleEmitter
from qdqbridge.tvm.relax.traces import Trace, TraceStep

Relation: TypeAlias = Literal["is", "part", "holds", "one of"]
_PREFIX = "p_"
_NAME = re.compile(r"p_([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class Link:
    """What an expression has to do with tensors of the float model.

    Attributes:
        relation: ``is``: it has the values of this tensor, perhaps in another layout or element
            type (of all of them, where there are several); ``part``: it is computed on the way to
            these tensors; ``holds``: it calls a function in which these tensors
            are computed; ``one of``: it stands in a function called from several places, and is
            one of these tensors at each.
        ids: The tensors.
        result: For ``holds``: those that the call returns.
    """

    relation: Relation
    ids: tuple[str, ...]
    result: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BindingPlace:
    """A binding of a module.

    Attributes:
        function: The name of its function; one within another comes behind a slash.
        variable: The name of its variable; several may have the same.
        expression: What is bound.
        link: What it has to do with the float model; None is unknown.
    """

    function: str
    variable: str
    expression: Any
    link: Link | None

    @property
    def is_call(self) -> bool:
        """True where something is computed."""
        return isinstance(self.expression, ir.Call)


@dataclass(slots=True)
class Links:
    """All that is known about one stage of a module.

    Attributes:
        places: Its bindings, and the parameters of its entry functions.
        known: Links by the hash of a variable, which is kept so that no other takes its address.
        values: Tensors by the number of a value.
        sizes: Number of elements of each tensor, where it was seen first.
        numbers: What stands behind the numbers of values, see :mod:`qdqbridge.tvm.relax.traces`.
    """

    places: list[BindingPlace] = field(default_factory=list[BindingPlace])
    known: dict[int, tuple[Any, Link]] = field(default_factory=dict[int, tuple[Any, Link]])
    values: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    sizes: dict[str, str] = field(default_factory=dict[str, str])
    numbers: dict[Any, int] = field(default_factory=dict[Any, int])

    @property
    def entries(self) -> set[str]:
        """The functions of the module that no other one calls."""
        return {place.function for place in self.places if place.expression is None}

    @property
    def share(self) -> tuple[int, int]:
        """How many calls are linked, and how many there are."""
        calls = [place for place in self.places if place.is_call]
        return sum(place.link is not None for place in calls), len(calls)

    def lookup(self, what: Any) -> list[BindingPlace]:
        """Returns the places of a variable or its name, or of an expression that is bound.

        A place without a link is unknown; no place means that there is no such thing.
        """
        if isinstance(what, str):
            return [place for place in self.places if place.variable == what]
        if isinstance(what, relax.Var):
            known = self.known.get(hash(what))
            link = None if known is None else known[1]
            return [BindingPlace("", what.name, what, link)]
        return [place for place in self.places if _is_same_expr(place.expression, what)]


def _is_same_expr(a: Any, b: Any) -> bool:
    return isinstance(a, ir.Expr) and bool(a.same_as(b))


# ---- emission ----------------------------------------------------------------------------------


def emit_linked(
    graph: Graph, ids: Callable[[Value], str | None] = tensor_id
) -> tuple[ir.IRModule, Links]:
    """Returns ``graph`` as a Relax module whose variables are named after tensors.

    Args:
        graph: A canonical graph.
        ids: The id of a tensor; None for one that has none. A graph that was made from the float
            model looks its tensors up there.

    Raises:
        UnsupportedTargetError: TVM cannot express the graph.
    """
    emitter = _Emitter()
    module, _ = emitter.emit(graph)
    names: dict[int, str] = {}
    for value, variable in emitter.variables.items():
        found = ids(value)
        if found is not None:
            # TVM makes objects of Python anew for one object of its own: the hash is that of the
            # latter.
            names.setdefault(hash(variable), _PREFIX + found)
    named = _renamed(module, names)
    return named, links_of(named)


class _Emitter(ModuleEmitter):
    variables: dict[Value, relax.Var]

    def results(self, outputs: Sequence[Value]) -> list[Any]:
        self.variables = {
            value: expr
            for value, expr in self.emitter.exprs.items()
            if isinstance(expr, relax.Var) and value.constant is None and value.name
        }
        return super().results(outputs)


@mutator
class _Namer(relax.PyExprMutator):
    def __init__(self, module: ir.IRModule, names: Mapping[int, str]) -> None:
        super().__init__(module)
        self.names = names

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._named(var, relax.Var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._named(var, relax.DataflowVar)

    def _named(self, var: relax.Var, kind: type[relax.Var]) -> relax.Var:
        name = self.names.get(hash(var))
        if name is None:
            return var
        renamed = kind(name, var.ty)
        self.set_var_remap(var, renamed)
        return renamed


def _renamed(module: ir.IRModule, names: Mapping[int, str]) -> ir.IRModule:
    namer = _Namer(module, names)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            renamed: Any = namer.visit_expr(function)
            namer.builder_.update_func(variable, renamed)
    return namer.builder_.get()


# ---- finding out -------------------------------------------------------------------------------


def links_of(module: ir.IRModule, before: Links | None = None) -> Links:
    """Returns what is known about a module.

    Args:
        module: A Relax module.
        before: What was known before the last pass; without it, names and spans are all there is.
    """
    before = before or Links()
    trace = Trace.of(module, before.numbers)
    finder = _Finder(trace, before)
    return finder.links()


class _Finder:
    def __init__(self, trace: Trace, before: Links) -> None:
        self.trace, self.before = trace, before
        self.sizes = dict(before.sizes)
        self.ids: dict[int, dict[str, None]] = {}
        self.targets: dict[int, dict[str, None]] = {}

    def links(self) -> Links:
        for step in self.trace.steps:
            self._learn(step)
        for step in self.trace.steps:
            self._moved(step)
        for step in reversed(self.trace.steps):
            self._moved_back(step)
        for step in reversed(self.trace.steps):
            if step.inner is not None:
                continue  # what happens inside says which operand is for what
            wanted = self.ids.get(step.number) or self.targets.get(step.number, {})
            for operand in step.operands:
                self.targets.setdefault(operand, {}).update(wanted)
        return self._collected()

    def _learn(self, step: TraceStep) -> None:
        """Takes what a variable's name, its identity or what it computes says."""
        found: dict[str, None] = {}
        if not step.shared:
            match = _NAME.match(step.variable.name)
            known = self.before.known.get(hash(step.variable))
            found.update(dict.fromkeys([match[1]] if match else []))
            if known is not None:
                link = known[1]
                ids = link.ids if link.relation == "is" else link.result
                found.update(dict.fromkeys(ids))
        found.update(dict.fromkeys(self.before.values.get(step.number, ())))
        size = _size(step.variable)
        right = {id_: None for id_ in found if self.sizes.setdefault(id_, size) == size}
        if right:
            self.ids.setdefault(step.number, {}).update(right)

    def _moved(self, step: TraceStep) -> None:
        if step.moved is not None and step.number not in self.ids and step.moved in self.ids:
            self.ids[step.number] = dict(self.ids[step.moved])

    def _moved_back(self, step: TraceStep) -> None:
        if step.moved is not None and step.moved not in self.ids and step.number in self.ids:
            self.ids[step.moved] = dict(self.ids[step.number])

    def _link(self, step: TraceStep) -> Link | None:
        ids = tuple(self.ids.get(step.number, ()))
        if step.inner is not None:
            held = self._held(step)
            if held:
                return Link("holds", held, ids)
        known = self.before.known.get(hash(step.variable))
        if known is not None and known[1].relation == "holds" and not step.shared:
            return known[1]  # a call of what is no Relax function any more
        if ids:
            return Link("is", ids)
        if known is not None and known[1].relation == "part" and not step.shared:
            return known[1]
        wanted = self.targets.get(step.number) or dict.fromkeys(_stated_ids(step))
        return Link("part", tuple(wanted)) if wanted else None

    def _held(self, step: TraceStep) -> tuple[str, ...]:
        given = {id_ for operand in step.operands for id_ in self.ids.get(operand, ())}
        held: dict[str, None] = {}
        assert step.inner is not None
        for inner in self.trace.steps[step.inner.start : step.inner.stop]:
            if inner.operator:
                held.update(self.ids.get(inner.number, {}))
        return tuple(id_ for id_ in held if id_ not in given)

    def _collected(self) -> Links:
        places: dict[int, BindingPlace] = {}
        known: dict[int, tuple[Any, Link]] = {}
        for step in self.trace.steps:
            if step.is_inner_parameter:
                continue
            key, link = hash(step.variable), self._link(step)
            if key in places:
                link = _either(places[key].link, link)
            places[key] = BindingPlace(step.function, step.variable.name, step.expression, link)
            # The variable is kept beside its link: a freed one's address may be that of another.
            if link is not None:
                known[key] = (step.variable, link)
        values = {number: tuple(ids) for number, ids in self.ids.items()}
        numbers = self.trace.numbers
        return Links(list(places.values()), known, values, self.sizes, numbers)


def _either(a: Link | None, b: Link | None) -> Link | None:
    """The link of what stands in a function called from several places."""
    if a is None or b is None or a == b:
        return None if a is None or b is None else a
    ids = tuple(dict.fromkeys((*a.ids, *b.ids)))
    relations = {a.relation, b.relation} - {"one of"}
    if relations <= {"is"}:
        return Link("one of", ids)
    return Link("part" if relations == {"part"} else "holds", ids)


def _stated_ids(step: TraceStep) -> Iterator[str]:
    """The ids that the span of a call tells: those of the node it was emitted for."""
    span = getattr(step.expression, "span", None)
    provenance = None if span is None else provenance_of(span.source_name.name)
    for index, name in enumerate(() if provenance is None else provenance.names):
        if name and provenance is not None:
            yield id_of(name, provenance.op, index)


def _size(variable: relax.Var) -> str:
    """Number of elements, as a text that is the same however the axes lie."""
    shape = getattr(variable.ty, "shape", None)
    if shape is None or not hasattr(shape, "values"):
        return ""
    number, symbols = 1, list[str]()
    for extent in shape.values:
        whole = getattr(extent, "value", None)
        if whole is None:
            symbols.append(str(extent))
        else:
            number *= int(whole)
    return "*".join([str(number), *sorted(symbols)])


# ---- Following a Relax module through passes, so that its tensors stay known

_T = relax.transform
_LEGALIZED = (_T.FoldConstant, _T.DecomposeOpsForInference, _T.LegalizeOps)
_FUSED = (*_LEGALIZED, _T.AnnotateTIROpPattern, _T.FoldConstant, _T.FuseOps)


def _channels_last() -> Any:
    return _T.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})


def _half() -> Any:
    return _T.ToMixedPrecision("float16")


STAGES: dict[str, tuple[Callable[[], Any], ...]] = {
    "emitted": (),
    "folded": (_T.FoldConstant,),
    "channels-last": (_T.FoldConstant, _channels_last),
    "mixed": (_T.FoldConstant, _half),
    "legalized": _LEGALIZED,
    "fused": _FUSED,
    "fused-tir": (*_FUSED, _T.FuseTIR),
}
"""Stages of TVM's standard pipeline by name, and the passes that lead there from emission."""


@tvm.instrument.pass_instrument
class Tracker:
    """A pass instrument: after every pass it says what the module's expressions are.

    Use it for one module: ``with tvm.transform.PassContext(instruments=[tracker]): …``.

    Attributes:
        links: What is known after the last pass that left a Relax module.
        passes: The names of the passes, each with the calls that are linked and all calls.
    """

    def __init__(self, links: Links) -> None:
        """Takes what is known of the module before the first pass."""
        self.links = links
        self.passes: list[tuple[str, tuple[int, int]]] = []

    def run_after_pass(self, module: ir.IRModule, info: Any) -> None:
        """Follows the module; TVM calls this."""
        if not self._is_ours(module):
            return
        self.links = links_of(module, self.links)
        self.passes.append((str(info.name), self.links.share))

    def _is_ours(self, module: ir.IRModule) -> bool:
        """False for the small modules of kernels that some passes compile meanwhile."""
        names = {v.name_hint for v, f in module.functions.items() if isinstance(f, relax.Function)}
        return bool(names & self.links.entries)


def tracked(
    graph: Graph,
    passes: Iterable[Callable[[], Any]],
    ids: Callable[[Value], str | None] = tensor_id,
) -> tuple[ir.IRModule, Tracker]:
    """Returns a graph as a Relax module after passes, and what followed it there.

    Args:
        graph: A canonical graph.
        passes: What makes each pass, for example an entry of :data:`STAGES`.
        ids: The id of a tensor, as for :func:`qdqbridge.tvm.relax.links.emit_linked`.

    Raises:
        UnsupportedTargetError: TVM cannot express the graph.
    """
    module, links = emit_linked(graph, ids)
    tracker = Tracker(links)
    with tvm.transform.PassContext(opt_level=3, instruments=[tracker]):
        for make in passes:
            module = make()(module)
    return module, tracker
