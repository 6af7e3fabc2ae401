"""An engine on the conformance cases: what it computes, beside what ONNX's text says."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.workers import WorkerDiedError, WorkerProcess
from qdqbridge.errors import InputDataError, QdqBridgeError
from qdqbridge.targets.engines.kinds import ENGINES, OWN, engine_kind
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits

if TYPE_CHECKING:
    from qdqbridge.targets.conformance.case import CaseBody, ConformanceCase

IMPORTER = "tvm-importer"
"""TVM's own importer of ONNX, and its own kernels."""
_SECONDS = 60.0
"""What an engine may take to load or to run a case."""
OUTCOMES = ("equal", "within the text's freedom", "wrong", "refused", "crashed")


@dataclass(frozen=True)
class ConformanceResult:
    """What an engine did with a case.

    Attributes:
        name: Of the case.
        situation: Of the case.
        outcome: One of ``OUTCOMES``.
        cause: The reading of the text that it follows, the first wrong value, or its error.
        computed: What it computed, if that is wrong.
    """

    name: str
    situation: str
    outcome: str
    cause: str = ""
    computed: tuple[NDArray[Any], ...] = field(default=(), repr=False, compare=False)


def conform(
    engine: str,
    only: str = "*",
    report: Callable[[int, int], None] | None = None,
    *,
    exported: bool = False,
) -> Iterator[ConformanceResult]:
    """Runs the cases on an engine, in a process that may die.

    Args:
        engine: ``interpreter``, ``tvm``, ``tvm-importer``, ``onnxruntime``, ``onnxruntime-basic``,
            ``onnx.reference``, or an engine of :func:`qdqbridge.open_engine`.
        only: A pattern of the names of cases.
        report: Takes how many are done, and of how many.
        exported: The engine, one of :func:`qdqbridge.open_engine`, gets what its export profile
            makes of each case. Those of TFLite files always do.

    Raises:
        InputDataError: No case has such a name, or nothing is exported for the engine.
    """
    from qdqbridge.targets.conformance.situations import cases

    # A word is a part of a name; what has signs in it is a pattern.
    pattern = f"*{only}*" if only.isidentifier() else only
    chosen = [case for case in cases() if fnmatch.fnmatchcase(case.name, pattern)]
    if not chosen:
        raise InputDataError(
            f"no case of the conformance suite is named like '{only}'",
            why=f"there are {len(cases())}, such as '{cases()[0].name}'",
            fix="give a part of a name, or a pattern with *",
        )
    apart = engine in ENGINES and engine not in OWN
    if exported and not apart:
        raise InputDataError(
            f"nothing is exported for '{engine}'",
            why=f"these engines have an export profile: {', '.join(ENGINES)}",
            fix="name one of them, or give it the cases as they are",
        )
    with _EngineRun(engine, exported) if apart else _ConformanceProcess(engine) as runner:
        for done, case in enumerate(chosen, 1):
            yield judged(case, runner.outputs_of(case.body))
            if report is not None:
                report(done, len(chosen))


def engine_version(engine: str) -> str:
    """Returns what computes the cases, and of which version.

    Args:
        engine: As for :func:`conform`.
    """
    if engine not in ENGINES or engine in OWN:
        package = {"interpreter": "qdqbridge", "tvm": "qdqbridge", "tvm-importer": "apache-tvm"}
        name = package.get(engine, engine.partition("-")[0].partition(".")[0])
        return f"{name} {version(name)}"
    with _EngineRun(engine) as runner:
        return runner.process.version


@dataclass(frozen=True)
class _CasesOf:
    """A process's work: an engine that is a function of Python, on models, inputs and names."""

    engine: str

    def worker(self) -> _CasesOf:
        """Returns what does it."""
        return self

    def seen(self, share: Sequence[Any]) -> list[NDArray[Any]] | str:
        """Returns what is computed of one case, or its error."""
        return outputs_of(self.engine, *share)


class _ConformanceProcess:
    """What runs in Python here, in a process that may die."""

    def __init__(self, engine: str) -> None:
        self._cases = _CasesOf(engine)
        self._process = WorkerProcess(self._cases)

    def outputs_of(self, body: CaseBody) -> list[NDArray[Any]] | str | None:
        """Returns what is computed, its error, or None where the process died."""
        model, inputs = body.model.SerializeToString(), dict(body.inputs)
        try:
            self._process.give([model, inputs, body.output_names])
            return self._process.found()
        except WorkerDiedError:
            self._process.close()
            self._process = WorkerProcess(self._cases)
            return None

    def __enter__(self) -> _ConformanceProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.close()


class _EngineRun:
    """An engine whose one process takes every case as a file that it reads."""

    def __init__(self, engine: str, exported: bool = False) -> None:
        self._kind = engine_kind(engine)
        self._exports = exported or self._kind.suffix != ".onnx"
        self._folder = TemporaryDirectory()
        self.process = self._started()

    def _started(self) -> EngineProcess:
        kind, limits = self._kind, ProcessLimits(seconds=_SECONDS)
        return EngineProcess(kind.worker, kind.label, limits, kind.install, kind.python())

    def outputs_of(self, body: CaseBody) -> list[NDArray[Any]] | str | None:
        """Returns what the engine computes, its error, or None where its process died."""
        # A case that killed the engine says nothing of the next one.
        if not self.process.alive:
            self.process = self._started()
        file = Path(self._folder.name) / "model.onnx"
        try:
            file.write_bytes(body.fixed() if self._kind.fixed else body.model.SerializeToString())
            if self._exports:
                file = self._written(file)
            self.process.ask("load the model", "load", "case", str(file))
            names, inputs = body.output_names, dict(body.inputs)
            found = self.process.ask("run the model", "run", "case", inputs, names)
            # By name: engines give results in an order of their own.
            return [np.asarray(found[name]) for name in names]
        except QdqBridgeError as error:
            return f"{error.what}: {error.why}" if self.process.alive else None
        except Exception as error:  # a fault of ours is no crash of the engine
            return f"{type(error).__name__}: {error}"

    def _written(self, file: Path) -> Path:
        from qdqbridge.app import pipeline

        written = file.with_name(f"written{self._kind.suffix}")
        pipeline.save(pipeline.load(file), written, self._kind.profile, overwrite=True)
        return written

    def __enter__(self) -> _EngineRun:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.close()
        self._folder.cleanup()


def outputs_of(
    engine: str, model: bytes, inputs: dict[str, NDArray[Any]], names: list[str]
) -> list[NDArray[Any]] | str:
    """Returns what an engine computes, or its error."""
    try:
        return [np.asarray(each) for each in _run(engine, model, inputs, names)]
    except Exception as error:  # whatever an engine raises is its way of refusing
        return f"{type(error).__name__}: {error}".split("\n", 1)[0]


def _run(engine: str, model: bytes, inputs: dict[str, NDArray[Any]], names: list[str]) -> list[Any]:
    from qdqbridge.targets.conformance.case import LEVELS, REFERENCE, proto_of, run_directly

    if engine in (*LEVELS, REFERENCE):
        return run_directly(engine, model, inputs)
    if engine == IMPORTER:
        from qdqbridge.tvm.relax.frontends import run_imported

        return run_imported(proto_of(model), list(inputs.values()))
    from qdqbridge.app import hosting, pipeline

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        graph = pipeline.load(path)
        if engine == "interpreter":
            found = pipeline.evaluate(graph, inputs)
        else:
            found = hosting.compile(graph).run(inputs)
        return [found[name] for name in names]


def judged(case: ConformanceCase, found: list[NDArray[Any]] | str | None) -> ConformanceResult:
    """Returns how what an engine computed stands to what the text says.

    Args:
        found: What it computed, its error, or None if its process died.
    """
    name, situation = case.name, case.situation.name
    if found is None:
        return ConformanceResult(name, situation, "crashed", "the process died")
    if isinstance(found, str):
        return ConformanceResult(name, situation, "refused", found)
    for reading, wanted in case.body.allowed:
        # Where the text may be read in several ways each of them is right, the first one being the
        # usual.
        if len(found) == len(wanted) and all(map(_same, found, wanted)):
            outcome = OUTCOMES[1] if case.is_open else OUTCOMES[0]
            return ConformanceResult(name, situation, outcome, reading)
    wanted = case.body.allowed[0][1]
    cause = _first_difference(found, wanted)
    return ConformanceResult(name, situation, "wrong", cause, tuple(found))


def _same(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    return found.dtype == wanted.dtype and np.array_equal(found, wanted)


def _first_difference(found: list[NDArray[Any]], wanted: tuple[NDArray[Any], ...]) -> str:
    for number, (got, right) in enumerate(zip(found, wanted, strict=False)):
        if got.dtype != right.dtype or got.shape != right.shape:
            is_, not_ = (f"{each.dtype}{list(each.shape)}" for each in (got, right))
            return f"output {number} is {is_}, not {not_}"
        differing = np.argwhere(np.asarray(got != right))
        if len(differing):
            at = tuple(int(i) for i in differing[0])
            return (
                f"expected {right[at]}, got {got[at]} at {list(at)} of output {number}"
                f" ({len(differing)} of {right.size} differ)"
            )
    return f"{len(found)} outputs, not {len(wanted)}"
