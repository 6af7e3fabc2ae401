"""An engine on the conformance cases: what it computes, beside what ONNX's text says."""

from __future__ import annotations

import fnmatch
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import InputDataError

if TYPE_CHECKING:
    from qdqbridge.targets.conformance.case import ConformanceCase

OUTCOMES = ("equal", "within the text's freedom", "wrong", "refused", "crashed")


@dataclass(frozen=True)
class ConformanceResult:
    """What an engine did with a case.

    Attributes:
        name: Of the case.
        situation: Of the case.
        outcome: One of ``OUTCOMES``.
        cause: The reading of the text that it follows, the first wrong value, or its error.
    """

    name: str
    situation: str
    outcome: str
    cause: str = ""


def conform(
    engine: str, only: str = "*", report: Callable[[int, int], None] | None = None
) -> Iterator[ConformanceResult]:
    """Runs the cases on an engine, in a process that may die.

    Args:
        engine: ``interpreter``, ``tvm``, ``onnxruntime``, ``onnxruntime-basic``,
            ``onnx.reference``, or an engine of :func:`qdqbridge.open_engine`.
        only: A pattern of the names of cases.
        report: Is told how many are done, and of how many.

    Raises:
        InputDataError: No case has such a name.
    """
    from qdqbridge.targets.conformance.situations import cases

    pattern = f"*{only}*" if only.isidentifier() else only
    chosen = [case for case in cases() if fnmatch.fnmatchcase(case.name, pattern)]
    if not chosen:
        raise InputDataError(
            f"no case of the conformance suite is named like '{only}'",
            why=f"there are {len(cases())}, such as '{cases()[0].name}'",
            fix="give a part of a name, or a pattern with *",
        )
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context)
    try:
        for done, case in enumerate(chosen, 1):
            model, inputs = case.body.model.SerializeToString(), dict(case.body.inputs)
            names = case.body.output_names
            try:
                found = pool.submit(outputs_of, engine, model, inputs, names).result()
            except BrokenProcessPool:
                pool = ProcessPoolExecutor(1, context)
                found = None
            yield judged(case, found)
            if report is not None:
                report(done, len(chosen))
    finally:
        pool.shutdown()


def outputs_of(
    engine: str, model: bytes, inputs: dict[str, NDArray[Any]], names: list[str]
) -> list[NDArray[Any]] | str:
    """Returns what an engine computes, or its error."""
    try:
        return [np.asarray(each) for each in _run(engine, model, inputs, names)]
    except Exception as error:  # whatever an engine raises is its way of refusing
        return f"{type(error).__name__}: {error}".split("\n", 1)[0]


def _run(engine: str, model: bytes, inputs: dict[str, NDArray[Any]], names: list[str]) -> list[Any]:
    from qdqbridge.targets.conformance.running import LEVELS, REFERENCE, run_directly

    if engine in (*LEVELS, REFERENCE):
        return run_directly(engine, model, inputs)
    from qdqbridge.app import hosting, pipeline
    from qdqbridge.app.judging import open_engine

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        graph = pipeline.load(path)
        if engine == "interpreter":
            found = pipeline.evaluate(graph, inputs)
        elif engine == "tvm":
            found = hosting.compile(graph).run(inputs)
        else:
            with open_engine(engine, path) as opened:
                found = opened.run(inputs, names)
        return [found[name] for name in names]


def judged(case: ConformanceCase, found: list[NDArray[Any]] | str | None) -> ConformanceResult:
    """Returns how what an engine computed stands to what the text says.

    Args:
        case: The case.
        found: What it computed, its error, or None if its process died.
    """
    name, situation = case.name, case.situation.name
    if found is None:
        return ConformanceResult(name, situation, "crashed", "the process died")
    if isinstance(found, str):
        return ConformanceResult(name, situation, "refused", found)
    for reading, wanted in case.body.allowed:
        if len(found) == len(wanted) and all(map(_same, found, wanted)):
            outcome = OUTCOMES[1] if case.is_open else OUTCOMES[0]
            return ConformanceResult(name, situation, outcome, reading)
    wanted = case.body.allowed[0][1]
    return ConformanceResult(name, situation, "wrong", _first_difference(found, wanted))


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
