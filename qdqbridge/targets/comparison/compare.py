"""Two engines, one model, the same data: every output and every intermediate value."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard

from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.batches import batches
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import check_inputs, evaluate
from qdqbridge.core.graph.printer import params_text
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.targets.comparison.causes import MISREAD, UNEXPLAINED
from qdqbridge.targets.comparison.difference import Tally, TensorDifference

# ---- What can run a model and show its intermediate values ---------------------------------------


Array = NDArray[Any]
OwnArithmetic: TypeAlias = (
    "Callable[[Node, Sequence[Array | None]], tuple[str, Sequence[Array]] | None]"
)
"""What an engine gives for a node and stored operands, bit for bit, and the cause of it; None where
it keeps the contract."""


class Engine(Protocol):
    """Something that runs a model.

    Attributes:
        label: Its name in reports.
        names: The tensors it can return: outputs first, then intermediate values.
        outputs: The names of the model's outputs.
        types: The types of its tensors, as far as it knows them.
    """

    label: str
    names: Sequence[str]
    outputs: Sequence[str]
    types: Mapping[str, ValueType]

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Returns the tensors ``names`` as they are stored."""
        ...


def is_engine(side: object) -> TypeGuard[Engine]:
    """Returns whether something runs a model by names, and needs no engine to do it."""
    return hasattr(side, "names") and hasattr(side, "outputs")


class Interpreter:
    """A graph in NumPy."""

    label = "interpreter"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs: Sequence[str] = list(graph.output_names)
        self._values = visible_values(graph)
        self.names: Sequence[str] = list(self._values)
        self.types: Mapping[str, ValueType] = {n: v.type for n, v in self._values.items()}

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Evaluates the numeric contract."""
        wanted = [self._values[name] for name in names]
        _, values = evaluate(self.graph, inputs, wanted=wanted)
        return {name: values[self._values[name]] for name in names}


class Runnable(Protocol):
    """An executable: a graph built for some machine."""

    @property
    def graph(self) -> Graph:
        """The graph that was built; its outputs are what ``run`` returns."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Returns the outputs by name."""
        ...


class Built:
    """An executable made by TVM; it shows what it was built to show."""

    label = "TVM"

    def __init__(self, executable: Runnable) -> None:
        self.executable = executable
        graph = executable.graph
        self.names: Sequence[str] = list(graph.output_names)
        self.outputs: Sequence[str] = list(graph.output_names)
        pairs = zip(graph.output_names, graph.outputs, strict=True)
        self.types: Mapping[str, ValueType] = {name: value.type for name, value in pairs}

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Runs the executable."""
        results = self.executable.run(inputs)
        return {name: results[name] for name in names}


def visible_values(graph: Graph) -> dict[str, Value]:
    """Returns what can be compared, by name: the outputs, then named results of nodes."""
    values = dict(zip(graph.output_names, graph.outputs, strict=True))
    values.update((v.name, v) for v in graph.intermediates() if v.name not in values)
    return values


# ---- Two engines, one model, the same data: every output and every intermediate value ------------


Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found.

    Attributes:
        a: Name of one engine.
        b: Name of the other, the reference.
        local: True where every node was fed with the operands that ``b`` recorded.
        values: One entry per tensor that both know: intermediate ones in execution order, then
            the outputs.
        unmatched: Tensors of ``a`` that ``b`` does not have, or has in another type.
    """

    a: str
    b: str
    local: bool
    values: tuple[TensorDifference, ...]
    unmatched: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True where something was compared and no element differs."""
        return bool(self.values) and all(value.equal for value in self.values)

    @property
    def outputs(self) -> tuple[TensorDifference, ...]:
        """The entries of the model's outputs."""
        return tuple(value for value in self.values if value.is_output)

    @property
    def worst(self) -> TensorDifference | None:
        """The entry with the largest difference in LSB, then the largest share of mismatches."""
        return max(
            self.values,
            key=lambda v: (v.max_lsb or 0, not v.equal, v.fraction, v.max_abs),
            default=None,
        )

    @property
    def max_lsb(self) -> int:
        """The largest difference of stored integers anywhere."""
        return max((value.max_lsb or 0 for value in self.values), default=0)

    @property
    def unexplained(self) -> int:
        """Differing elements without a known cause (local comparison)."""
        return self._caused(UNEXPLAINED)

    @property
    def misread(self) -> int:
        """Differing elements that are faults of the engine, which computes another model."""
        return self._caused(MISREAD)

    def _caused(self, cause: str) -> int:
        return sum(value.causes.get(cause, 0) for value in self.values)

    def __str__(self) -> str:

        return comparison_text(self)


def compare_engines(
    a: Engine,
    b: Engine,
    graph: Graph,
    data: Mapping[str, Array],
    *,
    size: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Runs both engines freely on the same data.

    Args:
        a: One engine.
        b: The reference.
        graph: A graph that has the model's inputs and knows the types of tensors.
        data: One array per graph input.
        size: Examples per batch.
        progress: Called with the batches done and their number.

    Raises:
        InputDataError: The data does not fit.
    """
    types = {name: value.type for name, value in visible_values(graph).items()}
    names, unmatched = _common(a, b)
    tallies: dict[str, Tally] = {}
    for number, batch in enumerate(batches(graph.inputs, data, size), 1):
        check_inputs(graph.inputs, batch.inputs)
        ours, theirs = a.run(batch.inputs, names), b.run(batch.inputs, names)
        for name in names:
            x, y = ours[name], theirs[name]
            # Neither side is wrong by that: they show different tensors under one name.
            if x.dtype != y.dtype or x.shape != y.shape or x.dtype == object:
                unmatched[name] = None
                continue
            if name not in tallies:
                # An engine knows types only of what it was given; the graph knows the rest.
                type_ = a.types.get(name) or b.types.get(name) or types.get(name)
                tallies[name] = Tally(name, "", type_, name in b.outputs)
            tallies[name].add(x, y)
        if progress is not None:
            progress(number, batch.count)
    made_by = producers(graph)
    for tally in tallies.values():
        tally.node = made_by.get(tally.name, "")
    return Comparison(a.label, b.label, False, ordered(tallies.values()), tuple(unmatched))


def producers(graph: Graph) -> dict[str, str]:
    """Returns operator and name of the node behind each visible value."""
    return {
        name: f"{value.producer.op.name} {value.producer.name}"
        for name, value in visible_values(graph).items()
        if value.producer is not None
    }


def ordered(tallies: Sequence[Tally] | Any) -> tuple[TensorDifference, ...]:
    """Returns the finished tallies, outputs last."""
    differences = [tally.finish() for tally in tallies]
    return tuple(sorted(differences, key=lambda d: d.is_output))


def _common(a: Engine, b: Engine) -> tuple[list[str], dict[str, None]]:
    """Returns the tensors of ``a`` that ``b`` has too, and those that it does not."""
    known = set(b.names)
    names: list[str] = []
    unmatched: dict[str, None] = {}
    for name in a.names:
        if name in known and same_meaning(a.types.get(name), b.types.get(name)):
            names.append(name)
        else:
            unmatched[name] = None
    return names, unmatched


def same_meaning(a: ValueType | None, b: ValueType | None) -> bool:
    """True where stored values of both types can be compared as they are."""
    if a is None or b is None:
        return True
    if isinstance(a, QuantType) and isinstance(b, QuantType):
        return a.params.same_mapping(b.params)
    return type(a) is type(b) and a.dtype is b.dtype


# ---- Comparisons as tables for people ------------------------------------------------------------


_LISTED = 8
_FAR = 1000


def comparison_text(comparison: Comparison, width: int = 140) -> str:
    """Returns a comparison as plain text."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, no_color=True, legacy_windows=False)
    for part in comparison_parts(comparison):
        console.print(part)
    return visible(buffer.getvalue())


def comparison_parts(comparison: Comparison, *, everything: bool = True) -> list[RenderableType]:
    """Returns a table of the values, and a line for each thing to know beside it.

    Args:
        comparison: What to show.
        everything: Show equal intermediate values as well.
    """
    shown = [v for v in comparison.values if everything or v.is_output or not v.equal]
    parts: list[RenderableType] = []
    if shown:
        parts.append(_differences_table(comparison, shown))
    parts.append(Text(summary(comparison)))
    if comparison.unmatched:
        parts.append(Text(_unmatched(comparison), style="dim"))
    return parts


def _differences_table(comparison: Comparison, shown: list[TensorDifference]) -> Table:
    mode = ", each node on recorded operands" if comparison.local else ""
    table = Table(title=f"{comparison.a} against {comparison.b}{mode}", title_justify="left")
    table.add_column("value", overflow="fold", ratio=4)
    table.add_column("made by", no_wrap=True)
    table.add_column("type", overflow="fold", ratio=2)
    for heading in ("elements", "differ", "max", "SQNR dB"):
        table.add_column(heading, justify="right", no_wrap=True)
    if comparison.local:
        table.add_column("cause", overflow="fold", ratio=2)
    else:
        table.add_column("top-1", justify="right", no_wrap=True)
    for value in shown:
        last = _causes(value) if comparison.local else _top1(value)
        table.add_row(
            Text(value.name, style="bold" if value.is_output else ""),
            Text(value.operator),
            Text(type_text(value.type)),
            str(value.count),
            Text(_share(value), style="" if value.equal else "yellow"),
            _largest(value),
            _decibels(value.sqnr_db),
            Text(last, style="bold red" if UNEXPLAINED in last or MISREAD in last else ""),
        )
    return table


def summary(comparison: Comparison) -> str:
    """Returns one sentence that says how the comparison ended."""
    if not comparison.values:
        return "nothing was compared: the two sides share no tensor names"
    different = [value for value in comparison.values if not value.equal]
    if not different:
        total = sum(value.count for value in comparison.values)
        return f"all {len(comparison.values)} values are equal ({total} elements)"
    worst = comparison.worst
    assert worst is not None
    text = f"{len(different)} of {len(comparison.values)} values differ; worst: '{worst.name}'"
    text += f", {_share(worst)}, at most {_largest(worst)}"
    if comparison.local:
        text += f"; {comparison.unexplained} elements unexplained"
        text += f", {comparison.misread} {MISREAD}" if comparison.misread else ""
    return text


def _unmatched(comparison: Comparison) -> str:
    names = comparison.unmatched
    listed = ", ".join(names[:_LISTED]) + (" …" if len(names) > _LISTED else "")
    return f"not in {comparison.b}, or there in another type: {listed}"


def type_text(type_: ValueType | None) -> str:
    """Returns the element type of a value, with scales in decimal."""
    if type_ is None:
        return "?"
    if not isinstance(type_, QuantType):
        return str(type_.dtype)
    params = type_.params
    if not params.per_tensor:
        axis, dtype = params.axis, params.storage_dtype
        size = f" blocks of {params.block_size}" if params.blocked else ""
        return f"{dtype} axis={axis}{size}"
    return short_params(type_)


def short_params(type_: QuantType) -> str:
    """Returns per-tensor parameters in decimal, e.g. ``uint8 0.0157 z=128``."""
    params = type_.params
    if not params.per_tensor:
        return params_text(params)
    text = f"{params.storage_dtype} {float(params.scale):.6g} z={int(params.zero_point)}"
    return text if params.full_range else f"{text} {params.qmin}..{params.qmax}"


def _share(value: TensorDifference) -> str:
    return "0" if value.equal else f"{value.mismatches} ({value.fraction:.2%})"


def _largest(value: TensorDifference) -> str:
    if value.equal:
        return "0"
    if value.max_lsb is not None:
        return f"{value.max_lsb} LSB"
    near = value.max_ulp is not None and value.max_ulp < _FAR
    return f"{value.max_abs:.3g}" + (f" ({value.max_ulp} ulp)" if near else "")


def _decibels(number: float) -> str:
    return "∞" if number == float("inf") else f"{number:.1f}"


def _top1(value: TensorDifference) -> str:
    return "" if value.top1 is None else f"{value.top1:.2%}"


def _causes(value: TensorDifference) -> str:
    return ", ".join(f"{number} {cause}" for cause, number in value.causes.items())
