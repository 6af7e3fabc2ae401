"""Who is right, and whose fault it is: engines as sides of comparisons, and blame for errors."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from qdqbridge.core.arguments import checked, path_of
from qdqbridge.core.graph.copying import with_numbers
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.errors import InputDataError, QdqBridgeError
from qdqbridge.options import EngineName

if TYPE_CHECKING:
    from qdqbridge.app.pipeline import Side
    from qdqbridge.autoquant.attribution import Attribution
    from qdqbridge.targets.engines.kinds import EngineKind, NodeTime
    from qdqbridge.targets.engines.process import ProcessLimits
    from qdqbridge.targets.engines.vendor import VendorEngine

File: TypeAlias = "str | PathLike[str]"
LEAST, MOST = 5, 100
"""How often a model is run in one round of being timed."""
ROUNDS, MOST_ROUNDS = 3, 12
"""How many rounds it is timed in."""
SETTLED = 0.98
"""A round that shortens no node to less than this share of what it took before changes nothing."""
_COUNTED = 0.1
"""Nodes that take at least this share of the slowest one's time have to settle; the counters of
engines tell whole microseconds."""


@checked
def open_engine(
    name: EngineName | EngineKind,
    source: Graph | File,
    *,
    extents: Mapping[str, int] | None = None,
    limits: ProcessLimits | None = None,
) -> VendorEngine:
    """Opens a model in a vendor's engine, which runs in a process of its own.

    The result can be a side of :func:`qdqbridge.compare`. ``run(inputs, names)`` returns what the
    engine computes; ``taken()`` says node by node what it takes, and why not the rest. Close it, or
    use ``with``.

    Args:
        name: ``onnxruntime`` (graph optimizations off), ``onnxruntime-optimized``,
            ``onnxruntime-avx2`` (on x86 without VNNI, emulated where
            this one has it), ``onnxruntime-arm``, ``onnxruntime-web`` (in Node), ``iree``,
            ``qnn-htp``, ``qnn-htp-v73`` (the host build of the NPU's backend), ``openvino``,
            ``litert`` or ``tosa`` (the reference model of TOSA); or an engine of your own.
        source: A model file, which the engine gets as it is; or a graph, which is written with
            the engine's export profile.
        extents: Numbers for symbolic extents, by name.
        limits: Limits on the time and memory of the engine's process, in seconds and bytes.

    Raises:
        InputDataError: ``extents`` do not fit.
        UnsupportedTargetError: There is no such engine, it is not installed (the error has the pip
            line), does not start, or takes no such model.
        QdqBridgeError: The file cannot be read.
    """
    from qdqbridge.app.sources import load_model
    from qdqbridge.targets.engines.kinds import engine_kind

    engine_kind(name)  # before anything costly
    if isinstance(source, Graph):
        return opened(name, None, with_numbers(source, extents or {}), limits)
    path = path_of(source)
    graph = with_numbers(load_model(path), extents or {})
    return opened(name, path, graph, limits)


def opened(
    name: str | EngineKind, path: Path | None, graph: Graph, limits: ProcessLimits | None = None
) -> VendorEngine:
    """Opens a model whose graph is known; see :func:`open_engine`.

    Args:
        name: The engine.
        path: Its file; None for a graph that is in none, or in one that the engine does not read.
        graph: The graph; extents may be numbers that the file leaves open.
        limits: What the engine's process may take.
    """
    from qdqbridge.app.pipeline import save
    from qdqbridge.targets.engines.kinds import engine_kind

    kind = engine_kind(name)
    if path is not None and reads(kind, path):
        return _judge(name, path, graph, limits)
    # The engine gets a file of its own kind, written by the profile that is made for it.
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / f"model{kind.suffix}"
        save(graph, written, kind.profile)
        return _judge(name, written, graph, limits)


def _judge(
    name: str | EngineKind, path: Path, graph: Graph, limits: ProcessLimits | None
) -> VendorEngine:
    from qdqbridge.targets.engines.vendor import open_engine

    engine = open_engine(name, path, graph, limits=limits)
    if engine.kind.package == "onnxruntime" and not engine.kind.reference:
        tell_of_onnxruntime(engine)
    return engine


def tell_of_onnxruntime(engine: VendorEngine) -> None:
    """Lets comparisons know what onnxruntime makes of a file, and how it computes that.

    Args:
        engine: An onnxruntime that has the file.
    """
    from qdqbridge.autoquant.hardware.arithmetic import beyond_int32, without_vnni
    from qdqbridge.onnx_io.runtime.products import StoredWeights, optimized, saturating_products
    from qdqbridge.targets.engines.softmax_table import softmax_by_table

    @cache
    def saturating(shown: tuple[str, ...]) -> Mapping[str, StoredWeights]:
        # On processors with VNNI products of bytes are exact, so nothing has to be looked for.
        # Others make signed activations unsigned where one node reads them; what is shown has two.
        del shown
        return saturating_products(engine.showing()) if engine.kind.pairs_saturate() else {}

    def own(
        node: Node, operands: Sequence[NDArray[Any] | None]
    ) -> tuple[str, Sequence[NDArray[Any]]] | None:
        found = without_vnni(saturating(engine.shown), node, operands) or softmax_by_table(
            node, operands
        )
        return beyond_int32(node, operands, found) or found

    @cache
    def made_of(shown: bytes) -> Graph | None:
        from qdqbridge.app.sources import load_model

        model = optimized(shown, layouts=False)
        if model is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "optimized.onnx"
            written.write_bytes(model.SerializeToString())
            try:
                return load_model(written)
            except QdqBridgeError:  # there are operators that only onnxruntime knows
                return None

    engine.own, engine.rewritten = own, lambda: made_of(engine.showing())


@checked
def node_times(
    engine: str,
    graph: Graph,
    inputs: Mapping[str, NDArray[Any]],
    *,
    seconds: float = 0.15,
    threads: int | None = None,
) -> list[NodeTime]:
    """Returns what each node takes that an engine makes of a graph, in its order.

    Args:
        engine: ``tvm`` (kernels of :func:`qdqbridge.compile`), ``onnxruntime`` (its profiler, with
            its optimizations), ``openvino`` (its performance counters).
        graph: A canonical graph; it is written as the engine's export profile writes it.
        inputs: One array per input; open extents have these numbers.
        seconds: How long to run it in :data:`ROUNDS` rounds, but at least :data:`LEAST` times in
            each and at most :data:`MOST`. Of each node the shortest run of all rounds counts: what
            else the machine does is not a time of the engine's. Where the last rounds still made
            nodes faster, more follow, up to :data:`MOST_ROUNDS`.
        threads: How many the engine may use; None for its default.

    Raises:
        InputDataError: The inputs do not fit.
        UnsupportedTargetError: There is no such engine, it is not installed, tells no times or
            takes no such model.
    """
    from qdqbridge.core.graph.interpreter import check_inputs
    from qdqbridge.targets.engines.kinds import NodeTime

    if engine == "tvm":
        from qdqbridge.app.hosting import compile
        from qdqbridge.tvm.relax.kernel_times import call_times

        executable = compile(graph, threads=threads)

        def kernels(repeats: int) -> list[NodeTime]:
            called = call_times(executable, inputs, repeats, min)
            return [
                NodeTime(c.tensor or c.kernel, c.kernel, c.seconds, (c.tensor,)) for c in called
            ]

        return _shortest(kernels, seconds)
    check_inputs(graph.inputs, inputs)
    with opened("onnxruntime-optimized" if engine == "onnxruntime" else engine, None, graph) as own:
        return _shortest(partial(own.times, inputs, threads=threads), seconds)


def _shortest(times: Callable[[int], list[NodeTime]], seconds: float) -> list[NodeTime]:
    """Returns the shortest time of each node in rounds, the last two of which changed nothing.

    An engine compiles the model anew in each: how its tensors happen to lie in memory counts too.
    """
    found = times(LEAST)
    fit = seconds / ROUNDS / max(sum(each.seconds for each in found), 1e-9)
    repeats, settled = max(LEAST, min(MOST, int(fit))), 0
    for _ in range(MOST_ROUNDS - 1):
        before, found = found, _shorter(found, times(repeats))
        settled = settled + 1 if _is_settled(before, found) else 0
        if settled == ROUNDS - 1:
            break
    return found


def _shorter(before: Sequence[NodeTime], after: Sequence[NodeTime]) -> list[NodeTime]:
    """Returns the nodes of the second of two rounds with the shorter time of each."""
    known = {key: each.seconds for key, each in _numbered(before)}
    return [
        replace(each, seconds=min(each.seconds, known.get(key, each.seconds)))
        for key, each in _numbered(after)
    ]


def _numbered(times: Sequence[NodeTime]) -> Iterator[tuple[tuple[str, str, int], NodeTime]]:
    """Yields nodes with what tells each from the others, of those with one name its place."""
    # Engines call several nodes alike, or nothing; their order is the same in every round.
    counts: Counter[tuple[str, str]] = Counter()
    for each in times:
        name = each.node, each.operator
        yield (*name, counts[name]), each
        counts[name] += 1


def _is_settled(before: Sequence[NodeTime], after: Sequence[NodeTime]) -> bool:
    """True where no node of those that take long has become faster."""
    known = {key: each.seconds for key, each in _numbered(before)}
    least = _COUNTED * max((each.seconds for each in after), default=0.0)
    return all(
        each.seconds >= SETTLED * known.get(key, each.seconds)
        for key, each in _numbered(after)
        # Short nodes never settle: a timer's step is a large share of them, and they decide
        # nothing.
        if each.seconds >= least
    )


def reads(kind: EngineKind, path: Path) -> bool:
    """Returns whether an engine reads a file as it is; a graph of others is written for it."""
    from qdqbridge.app.sources import is_onnx

    return path.suffix == kind.suffix or (kind.suffix == ".onnx" and is_onnx(path))


@checked
def blame(
    reference: Graph | File,
    quantized: Graph | File | None,
    data: Mapping[str, NDArray[Any]],
    *,
    repairs: int = 5,
    nodes: bool = True,
    engine: Side | None = None,
) -> Attribution:
    """Finds which tensors of a quantized model lose its accuracy, why, and what helps.

    The models are aligned by structure: they may come from different tools and use different
    names. With an engine, deviations of its kernels from the numeric contract are attributed to
    them as well; without a quantized model, these are all that is reported (two runtimes of one
    model).

    Args:
        reference: The float model, or the only one.
        quantized: Its quantized version; None to compare an engine with the contract.
        data: One array per input of the float model.
        repairs: How many of the worst tensors to try repairs for.
        nodes: Also report for every node the error that it adds and inherits.
        engine: What runs the quantized model (:func:`open_engine`), or its ONNX file, which
            onnxruntime runs.

    Raises:
        InputDataError: The data does not fit.
        UnsupportedModelError: The inputs or outputs differ, or no nodes correspond.
        UnsupportedTargetError: The engine cannot run the model.
        QdqBridgeError: A file cannot be read.
    """
    from qdqbridge.app.pipeline import engine_of
    from qdqbridge.app.sources import is_onnx, load_model
    from qdqbridge.autoquant.attribution import attribute, attribute_to_kernels
    from qdqbridge.onnx_io.runtime.products import saturating_products

    ran = None if engine is None else engine_of(engine)
    original = reference if isinstance(reference, Graph) else load_model(path_of(reference))
    if quantized is None:
        if ran is None:
            raise InputDataError(
                "one model has nothing to be blamed against",
                fix="give the float model and the quantized one, or an engine",
            )
        return attribute_to_kernels(original, ran, data)
    theirs = quantized if isinstance(quantized, Graph) else load_model(path_of(quantized))
    file = None if isinstance(quantized, Graph) else path_of(quantized)
    paired = None if file is None or not is_onnx(file) else saturating_products(file)
    return attribute(original, theirs, data, repaired=repairs, nodes=nodes, engine=ran,
                     saturating=paired)  # fmt: skip
