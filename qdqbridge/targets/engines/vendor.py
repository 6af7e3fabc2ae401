"""A model file, opened by an engine in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.copying import symbolic_extents
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import Dim, ValueType
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.targets.comparison.compare import OwnArithmetic
from qdqbridge.targets.engines.kinds import (
    EngineKind,
    EngineVerdict,
    NodeTime,
    Placement,
    engine_kind,
)
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits

if TYPE_CHECKING:
    from qdqbridge.tflite_io.litert import Kernels


Array = NDArray[Any]


class VendorEngine:
    """A model in somebody else's engine; see :class:`~qdqbridge.targets.engines.kinds.Judge`.

    Outputs alone come from the model as it is. Intermediate values come from a copy that has them
    as outputs too, which an engine may fuse otherwise; they are the stored integers behind a
    QuantizeLinear, because to show a real number between two operators is to part them.

    Attributes:
        kind: Which engine.
        label: Its name in reports.
        graph: The model as qdqbridge reads it, with the shapes that the engine gets.
        names: The tensors it can return.
        outputs: The names of the model's outputs.
        operands: Floats that it can return beside these: what its operators round.
        types: Empty: what a tensor means is known to graphs only.
        own: What the engine's arithmetic gives for a node where that is not the contract's; None
            for engines of which nothing is known.
        rewritten: Gives the model that the engine has made of the one that it ran last; None for
            engines that do not tell.
    """

    def __init__(self, kind: EngineKind, path: Path, graph: Graph, limits: ProcessLimits) -> None:
        """Starts the engine; the model is loaded when something is asked of it.

        Args:
            kind: Which engine.
            path: The model file.
            graph: What it holds; open extents of its inputs may be numbers here.
            limits: What it may take.

        Raises:
            ModelFileError: The file cannot be read.
            UnsupportedTargetError: The engine needs another kind of file, or fixed shapes; or it
                does not start.
        """
        self.kind, self.label, self.graph = kind, kind.label, graph
        self._path, self._limits = path, limits
        self.types: Mapping[str, ValueType] = {}
        self.own: OwnArithmetic | None = None
        self.rewritten: Callable[[], Graph | None] | None = None
        self._source = _source(kind, path, graph)
        self.outputs: Sequence[str] = self._source.outputs
        ours = kind.package == "onnxruntime"
        stored = (*self._source.stored, *(self._source.results if ours else ()))
        self.names: Sequence[str] = [*self.outputs, *(stored if kind.shows else ())]
        self.operands: Sequence[str] = self._source.rounded if ours else ()
        self._loaded: dict[tuple[str, ...], str] = {}
        self.shown: tuple[str, ...] = ()
        self._placed: tuple[list[Placement], int] | None = None
        self._process = self._started()
        self._folder = tempfile.TemporaryDirectory()
        self.version = self._process.version

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Returns the tensors ``names`` as they are stored.

        Raises:
            UnsupportedTargetError: The engine cannot load or run the model, crashes or hangs.
        """
        self.shown = shown = tuple(name for name in names if name not in self.outputs)
        key = self._load(shown)
        asked = [*self.outputs, *shown]
        found = self._process.ask("run the model", "run", key, self._ordered(inputs), asked)
        self._check(found, asked)
        return {name: found[name] for name in names}

    def showing(self) -> bytes:
        """Returns the model file as it was run last: what was asked for are outputs."""
        return self._source.showing(self.shown)

    def taken(self) -> EngineVerdict:
        """Returns what the engine takes of the model, node by node.

        Raises:
            UnsupportedTargetError: The engine cannot load the model, crashes or hangs.
        """
        self._load(())
        assert self._placed is not None
        placements, partitions = self._placed
        return EngineVerdict(self.label, self.version, tuple(placements), partitions)

    def times(
        self, inputs: Mapping[str, Array], repeats: int, threads: int | None = None
    ) -> list[NodeTime]:
        """Returns what each node takes that the engine has made of the model, in its order.

        Args:
            inputs: One array per input of the model.
            repeats: Runs, of which the shortest counts.
            threads: How many the engine may use; None for its default.

        Raises:
            UnsupportedTargetError: The engine tells no times, cannot load or run the model,
                crashes or hangs.
        """
        if self.kind.untimed:
            raise UnsupportedTargetError(
                f"{self.label} cannot time nodes",
                why=self.kind.untimed,
                fix="use tvm, onnxruntime or openvino",
            )
        key = self._load(())
        ordered = self._ordered(inputs)
        rows = self._process.ask("time its nodes", "times", key, ordered, repeats, threads or 0)
        return [NodeTime(*row) for row in rows]

    def close(self) -> None:
        """Ends the engine's process."""
        self._process.close()
        self._folder.cleanup()

    def __enter__(self) -> VendorEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, found: Any, asked: Sequence[str]) -> None:
        """Refuses results that are no tensors, or outputs of another shape than the model's.

        Raises:
            UnsupportedTargetError: Naming the first one.
        """
        given = cast("dict[str, Any]", found) if isinstance(found, dict) else dict[str, Any]()
        types = dict(zip(self.graph.output_names, self.graph.outputs, strict=True))
        for name in asked:
            array, shape = given.get(name), types[name].type.shape if name in types else None
            own: tuple[int, ...] = getattr(array, "shape", ())
            why = ""
            if not isinstance(array, np.ndarray):
                why = f"it gives no tensor '{name}'"
            elif shape is not None and not _fits(own, shape):
                why = f"it gives '{name}' of shape {list(own)}, not {list(shape)}"
            if why:
                raise UnsupportedTargetError(
                    f"{self.label} does not compute the model",
                    where=str(self._path),
                    why=why,
                    fix="this is a fault of the engine: export for it, or change the model there",
                )

    def _started(self) -> EngineProcess:
        kind = self.kind
        return EngineProcess(kind.worker, kind.label, self._limits, kind.install, kind.python())

    def _ordered(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the arrays in the model's order: some engines name inputs otherwise."""
        missing = [name for name in self._source.inputs if name not in inputs]
        if missing:
            raise InputDataError(
                f"no data for input '{missing[0]}'",
                why=f"the model's inputs are {', '.join(self._source.inputs)}",
                fix="give one array per input, by name",
            )
        return {name: inputs[name] for name in self._source.inputs}

    def _load(self, shown: tuple[str, ...]) -> str:
        if not self._process.alive:  # a run crashed or hung; the next one gets another process
            self._process = self._started()
            self._loaded.clear()
        if shown not in self._loaded:
            key = f"model{len(self._loaded)}"
            file = Path(self._folder.name) / f"{key}{self.kind.suffix}"
            file.write_bytes(self._source.showing(shown))
            rows, partitions = self._process.ask("load the model", "load", key, str(file))
            if not shown:
                self._placed = [Placement(*row) for row in rows], partitions
            self._loaded[shown] = key
        return self._loaded[shown]


def _fits(own: Sequence[int], meant: Sequence[Dim | None]) -> bool:
    pairs = zip(own, meant, strict=False)
    return len(own) == len(meant) and all(m == o for o, m in pairs if isinstance(m, int))


class _OnnxSource:
    """An ONNX file with the shapes that it shall have."""

    def __init__(self, path: Path, graph: Graph) -> None:
        from qdqbridge.onnx_io.runtime.session import PreparedModel

        shapes = {value.name: value.type.shape or () for value in graph.inputs}
        self._model = PreparedModel(path, shapes)
        self.inputs, self.outputs = self._model.inputs, self._model.outputs
        self.stored, self.results = self._model.stored, self._model.results
        self.rounded = self._model.rounded

    def showing(self, shown: Sequence[str]) -> bytes:
        return self._model.showing(shown)


class _TfliteSource:
    """A TFLite file: it goes to the engine as it is."""

    def __init__(self, path: Path, graph: Graph) -> None:
        self.inputs = [value.name for value in graph.inputs]
        self.outputs = list(graph.output_names)
        self.stored: Sequence[str] = ()
        self.results: Sequence[str] = ()
        self.rounded: Sequence[str] = ()
        self._data = path.read_bytes()

    def showing(self, shown: Sequence[str]) -> bytes:
        assert not shown
        return self._data


def _source(kind: EngineKind, path: Path, graph: Graph) -> _OnnxSource | _TfliteSource:
    if kind.fixed:
        refuse_open_shapes(kind.label, str(path), graph)
    if path.suffix == ".tflite" or kind.suffix == ".tflite":
        if path.suffix != kind.suffix:
            raise UnsupportedTargetError(
                f"{kind.label} reads {kind.suffix} files only",
                where=str(path),
                fix=f"give a {kind.suffix} file, or another engine",
            )
        return _TfliteSource(path, graph)
    return _OnnxSource(path, graph)


def refuse_open_shapes(label: str, where: str, graph: Graph) -> None:
    """Refuses a graph whose inputs have open extents.

    Args:
        label: What takes none.
        where: The graph's file, or its name.
        graph: The graph.

    Raises:
        UnsupportedTargetError: Naming the input and what gives numbers.
    """
    for value in graph.inputs:
        shape = value.type.shape
        if shape is None or any(not isinstance(dim, int) for dim in shape):
            numbers = " ".join(f"--extent {name}=1" for name in symbolic_extents(graph))
            listed = "" if shape is None else f" [{', '.join(map(str, shape))}]"
            raise UnsupportedTargetError(
                f"{label} takes fixed shapes only",
                where=where,
                why=f"input '{value.name}' has an open shape{listed}",
                fix=f"give numbers: {numbers}" if numbers else "export it with fixed shapes",
            )


def open_engine(
    name: str | EngineKind, path: Path, graph: Graph, *, limits: ProcessLimits | None = None
) -> VendorEngine:
    """Opens a model file in an engine.

    Args:
        name: A name of ``ENGINES``, or a row of your own.
        path: The model file.
        graph: What it holds; open extents of its inputs may be numbers here.
        limits: What the engine's process may take.

    Raises:
        ModelFileError: The file cannot be read.
        UnsupportedTargetError: There is no such engine, it is not installed, does not start, or
            takes no such file.
    """
    return VendorEngine(engine_kind(name), path, graph, limits or ProcessLimits())


# ---- recording -----------------------------------------------------------------------------------
# An engine of TFLite files in a process of its own that gives every tensor, not outputs alone.


class ChildRecorder:
    """Runs TFLite files where a crash takes nothing along.

    The process starts when a file is to be run, and ends with this object.

    Args:
        name: The engine, ``litert`` or ``tosa``.
        limits: What the engine may take.

    Raises:
        UnsupportedTargetError: The engine is not installed.
    """

    def __init__(self, name: str = "litert", limits: ProcessLimits | None = None) -> None:
        self._kind, self._limits = engine_kind(name), limits or ProcessLimits()
        self._process: EngineProcess | None = None

    def __call__(
        self, data: bytes, kernels: Kernels, inputs: Mapping[int, Array], wanted: list[int]
    ) -> dict[int, Array]:
        """Runs a file once and returns tensors by index, those that it still has.

        Raises:
            UnsupportedTargetError: The engine refuses the file, crashes or hangs.
        """
        kind = self._kind
        if self._process is None or not self._process.alive:
            self._process = EngineProcess(kind.worker, kind.label, self._limits, kind.install)
        asked = (data, kernels.name, dict(inputs), wanted)
        return self._process.ask("run the model", "record", *asked)
