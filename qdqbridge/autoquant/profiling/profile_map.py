"""Which entries of a profile belong to an expression of a module, at any stage of its lowering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qdqbridge.autoquant.profiling.collect import check_profile
from qdqbridge.autoquant.profiling.profile import Profile, ProfileEntry
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.printer import tensor_id
from qdqbridge.errors import InputDataError, UnsupportedTargetError


@dataclass(frozen=True, slots=True)
class BindingStatistics:
    """What a profile knows of one binding of a module.

    Attributes:
        function: The name of the function it stands in.
        variable: The name of its variable.
        expression: What is bound, in short.
        relation: ``is``, ``part``, ``holds`` or ``one of`` (see :mod:`qdqbridge.tvm.relax.links`);
            ``unknown`` where nothing ties it to the float model.
        ids: The profile ids.
        entries: What the profile has of them.
        result: The ids of what a call that ``holds`` tensors returns.
    """

    function: str
    variable: str
    expression: str
    relation: str
    ids: tuple[str, ...]
    entries: tuple[ProfileEntry, ...]
    result: tuple[str, ...] = ()


def lookup(
    profile: Profile, graph: Graph, stage: str, name: str | None = None
) -> list[BindingStatistics]:
    """Returns what ``profile`` knows of the bindings of a module.

    Args:
        profile: A profile of ``graph``.
        graph: A canonical float graph.
        stage: A stage of TVM's pipeline, see :data:`qdqbridge.tvm.relax.links.STAGES`.
        name: Only bindings of variables of this name, or of tensors of this name in the model.

    Raises:
        InputDataError: The profile is of another model, or there is nothing of that name.
        UnsupportedTargetError: There is no such stage, or TVM cannot express the graph.
    """
    from qdqbridge.tvm.relax.links import STAGES, tracked

    check_profile(profile, graph)
    if stage not in STAGES:
        raise UnsupportedTargetError(
            f"there is no stage {stage!r}", why=f"there are {', '.join(STAGES)}", fix="use one"
        )
    _, tracker = tracked(graph, STAGES[stage])
    found: list[BindingStatistics] = []
    for place in tracker.links.places:
        link = place.link
        ids = () if link is None else link.ids
        entries = tuple(profile.tensors[id_] for id_ in ids if id_ in profile.tensors)
        if name is not None and name != place.variable and name not in {e.name for e in entries}:
            continue
        relation = "unknown" if link is None else link.relation
        result = () if link is None else link.result
        text = "parameter" if place.expression is None else " ".join(str(place.expression).split())
        found.append(
            BindingStatistics(place.function, place.variable, text, relation, ids, entries, result)
        )
    if name is not None and not found:
        raise InputDataError(
            f"there is neither a variable nor a tensor called {name!r} at this stage",
            why="it may have been folded away, or is no float tensor",
            fix="leave the name out to see all of them",
        )
    return found


def ids_by_name(profile: Profile) -> Callable[[Value], str | None]:
    """Returns what looks up the id of a tensor of a graph made from the profiled one.

    Quantizing a graph keeps the names of its tensors but may change their operators; what has no
    name of a profiled tensor gets none.
    """
    known = {entry.name: id_ for id_, entry in profile.tensors.items()}

    def id_of(value: Value) -> str | None:
        exact = tensor_id(value)
        return exact if exact in profile.tensors else known.get(value.name)

    return id_of
