"""ONNX's whole node suite through reading, interpreter, saved file, TVM and onnxruntime.

``scripts/checks/node_suite.py --csv suite.csv``: each of the installed onnx's node cases (1,884 of
onnx 1.23) goes through the stages

    ort     onnxruntime on the case's own model, optimizations disabled: what can be expected
    load    ``qdqbridge.load``
    eval    the interpreter
    save    ``qdqbridge.save``, and the written file in onnxruntime, optimizations disabled; in
            ONNX's own reference where onnxruntime has no kernel for it
    tvm     ``qdqbridge.compile`` and a run (only with ``--tvm``: seconds per case)

in forked children with limits of time and memory, a few dozen cases each; a child that dies or
hangs is charged to the stage it was in, and another goes on behind it. Numbers are compared as
ONNX's runner does (rtol, atol of the case), and exactly where they are integers or have 8 bits or
fewer. The CSV file has one row per case and stage; rows that it holds already are not run again
(``--again STAGE`` runs a stage anew). In the end totals are printed, and every case that
onnxruntime runs and reading, interpreter or saved file do not; ``--gaps
tests/conformance/node_suite_gaps.csv`` writes these to the list that a test holds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

import qdqbridge as qb
from qdqbridge.onnx_io.runtime.session import run

STAGES = ("ort", "load", "eval", "save", "tvm")
OWN = ("load", "eval", "save")
"""What has to pass wherever onnxruntime does."""
_GIBIBYTE = 1 << 30
_BFLOAT16_RTOL = 2**-6  # as ONNX's runner has it


class Outcome(NamedTuple):
    """What became of a case in a stage: ``pass``, ``refused``, ``wrong``, ``error``, ``crash`` …"""

    outcome: str
    reason: str = ""


class Wrong(Exception):
    """A result differs from ONNX's."""


# ---- one case ---------------------------------------------------------------------------------


def cases(pattern: str = "") -> list[Any]:
    """Returns ONNX's node cases whose name matches."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # making the inputs divides by zero
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return sorted((c for c in found if re.search(pattern, c.name)), key=lambda c: c.name)


def plain(given: Any) -> Any:
    """Returns an input or output as arrays; ONNX writes what NumPy cannot hold as TensorProto."""
    if given is None:
        return None
    if isinstance(given, (list, tuple)):
        return [plain(each) for each in given]
    return np.asarray(
        numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given
    )


class Run:
    """A case on its way through the stages; a stage keeps what the next one needs."""

    def __init__(self, case: Any, folder: Path) -> None:
        self.case = case
        self.file, self.saved = folder / "model.onnx", folder / "saved.onnx"
        fed, wanted = case.data_sets[0]
        self.model: onnx.ModelProto = case.model
        self.inputs = _named(self.model.graph.input, fed)
        self.wanted = _named(self.model.graph.output, wanted)
        onnx.save(self.model, self.file)
        self.graph: qb.Graph | None = None

    def stage(self, name: str) -> Outcome:
        """Returns what becomes of the case in a stage."""
        steps: Mapping[str, Callable[[], Mapping[str, Any] | None]] = {
            "ort": self._ort, "load": self._load, "eval": self._eval, "save": self._save,
            "tvm": self._tvm,
        }  # fmt: skip
        try:
            found = steps[name]()
            if found is not None:
                self._check(found)
        except Wrong as error:
            return Outcome("wrong", str(error))
        except qb.QdqBridgeError as error:
            return Outcome("refused", f"{error.what}: {_line(error.why)}")
        except MemoryError as error:
            return Outcome("memory", _line(error))
        except Exception as error:  # onnxruntime's, or a bug of ours: an outcome, distinguished
            kind = "refused" if "onnxruntime" in type(error).__module__ else "error"
            return Outcome(kind, f"{type(error).__name__}: {_line(error)}")
        return Outcome("pass")

    def _loaded(self) -> qb.Graph:
        if self.graph is None:
            self.graph = qb.load(self.file)
        return self.graph

    def _load(self) -> None:
        self._loaded()

    def _eval(self) -> Mapping[str, Any]:
        return qb.evaluate(self._loaded(), self.inputs)

    def _ort(self) -> Mapping[str, Any]:
        return run_onnxruntime(self.file, self.inputs)

    def _save(self) -> Mapping[str, Any]:
        graph = self._loaded()
        # The default profile writes what onnxruntime 1.31 reads: newer opsets on demand.
        newer = graph.opset if graph.opset > 26 else None
        qb.save(graph, self.saved, overwrite=True, opset=newer)
        onnx.checker.check_model(str(self.saved))
        try:
            return run_onnxruntime(self.saved, self.inputs)
        except NotImplemented:
            reference = ReferenceEvaluator(str(self.saved))
            results = reference.run(None, dict(self.inputs))
            return dict(zip(map(str, reference.output_names), results, strict=True))

    def _tvm(self) -> Mapping[str, Any]:
        return qb.compile(self._loaded(), threads=1).run(self.inputs)

    def _check(self, found: Mapping[str, Any]) -> None:
        for name, expected in self.wanted.items():
            if name not in found:
                raise Wrong(f"no output '{name}', but {sorted(found)}")
            compare(name, found[name], expected, self.case.rtol, self.case.atol)


def _named(infos: Sequence[onnx.ValueInfoProto], given: Sequence[Any]) -> dict[str, Any]:
    return {info.name: plain(each) for info, each in zip(infos, given, strict=False)}


def compare(name: str, found: Any, expected: Any, rtol: float, atol: float) -> None:
    """Compares one output as ONNX's runner does, integers exactly.

    Raises:
        Wrong: They differ.
    """
    if isinstance(expected, list):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            raise Wrong(f"{name}: no sequence of {len(expected)}")
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            compare(f"{name}[{index}]", one, other, rtol, atol)
        return
    if expected is None or found is None:
        if found is not expected:
            raise Wrong(f"{name}: {found} instead of {expected}")
        return
    found = np.asarray(found)
    if found.shape != expected.shape:
        raise Wrong(f"{name}: shape {found.shape} instead of {expected.shape}")
    if expected.dtype.kind in "OUST":
        if [str(each) for each in found.ravel()] != [str(each) for each in expected.ravel()]:
            raise Wrong(f"{name}: {found} instead of {expected}")
        return
    if found.dtype != expected.dtype:
        raise Wrong(f"{name}: {found.dtype} instead of {expected.dtype}")
    exact = expected.dtype.kind in "iub" or expected.itemsize == 1
    if expected.dtype.kind not in "iubfc":
        rtol = max(rtol, _BFLOAT16_RTOL) if expected.itemsize > 1 else rtol
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    close = np.isclose(found, expected, 0 if exact else rtol, 0 if exact else atol, equal_nan=True)
    if not close.all():
        count, one = int((~close).sum()), np.argwhere(~np.atleast_1d(close))[0]
        values = np.atleast_1d(found)[tuple(one)], np.atleast_1d(expected)[tuple(one)]
        raise Wrong(
            f"{name}: {count} of {close.size} differ, first {values[0]} instead of {values[1]}"
        )


def run_onnxruntime(path: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what onnxruntime computes, nothing optimized."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    feeds = {value.name: inputs[value.name] for value in session.get_inputs()}
    return dict(zip(names, run(session, feeds), strict=True))


# ---- children ---------------------------------------------------------------------------------


def work(queue: Sequence[tuple[Any, list[str]]], write: Callable[[object], None]) -> None:
    """Runs cases in a child, telling each stage before it begins and when it is done."""
    for case, stages in queue:
        with tempfile.TemporaryDirectory() as folder:
            write([case.name, stages[0], None, ""])
            ours = Run(case, Path(folder))
            for stage in stages:
                write([case.name, stage, None, ""])
                outcome = ours.stage(stage)
                write([case.name, stage, *outcome])


class Child:
    """A forked process that runs a queue."""

    def __init__(self, queue: Sequence[tuple[Any, list[str]]], memory: float) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _quiet(memory)
            with os.fdopen(writing, "w") as stream:
                try:
                    work(queue, lambda row: print(json.dumps(row), file=stream, flush=True))
                finally:
                    stream.flush()
                    os._exit(0)
        os.close(writing)
        self._pipe = reading

    def rows(self, seconds: float) -> Iterator[list[Any]]:
        """Yields what it tells, until it ends or is silent for too long."""
        data = b""
        while select.select([self._pipe], [], [], seconds)[0]:
            read = os.read(self._pipe, 1 << 16)
            if not read:
                return
            *lines, data = (data + read).split(b"\n")
            yield from map(json.loads, lines)
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> Outcome:
        """Returns how it ended."""
        os.close(self._pipe)
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSIGNALED(status):
            return Outcome("error", f"the process ended with status {status}")
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return Outcome("timeout")
        return Outcome("crash", f"signal {number}")


def _quiet(memory: float) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    limit = int(memory * _GIBIBYTE)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_all(
    queue: list[tuple[Any, list[str]]],
    keep: Callable[[str, str, Outcome], None],
    *,
    size: int,
    seconds: float,
    memory: float,
) -> None:
    """Runs all cases, ``size`` per child; what kills a child is charged to its case and stage."""
    left = [(case, list(stages)) for case, stages in queue if stages]
    while left:
        child = Child(left[:size], memory)
        current: tuple[str, str] | None = None
        for name, stage, outcome, reason in child.rows(seconds):
            current = None if outcome is not None else (name, stage)
            if outcome is not None:
                keep(name, stage, Outcome(outcome, reason))
                _strike(left, name, stage)
        ended = child.end()
        if current is not None:
            keep(*current, ended)
            _strike(left, *current)


def _strike(left: list[tuple[Any, list[str]]], name: str, stage: str) -> None:
    index = next(i for i, (case, _) in enumerate(left) if case.name == name)
    left[index][1].remove(stage)
    if not left[index][1]:
        del left[index]


# ---- the file ---------------------------------------------------------------------------------


def _line(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " …"


def read_csv(path: Path) -> dict[tuple[str, str], Outcome]:
    """Returns what a file of this script holds."""
    if not path.exists():
        return {}
    with path.open(newline="") as stream:
        return {
            (row["case"], row["stage"]): Outcome(row["outcome"], row["reason"])
            for row in csv.DictReader(stream)
        }


def write_csv(path: Path, found: Mapping[tuple[str, str], Outcome]) -> None:
    """Writes outcomes in the order of the cases."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("case", "stage", "outcome", "reason"))
        writer.writerows((*key, *outcome) for key, outcome in sorted(found.items()))


def gaps(found: Mapping[tuple[str, str], Outcome]) -> dict[tuple[str, str], Outcome]:
    """Returns where a stage of ours does not pass and onnxruntime does."""
    return {
        (case, stage): outcome
        for (case, stage), outcome in sorted(found.items())
        if stage in OWN and outcome.outcome != "pass"
        and found.get((case, "ort"), outcome).outcome == "pass"
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--csv", type=Path, default=Path("node_suite.csv"), help="what to write")
    parser.add_argument("--match", default="", help="only cases whose name has this pattern")
    parser.add_argument("--tvm", action="store_true", help="compile with TVM as well")
    parser.add_argument("--again", action="append", default=[], choices=STAGES,
                        help="run this stage anew")  # fmt: skip
    parser.add_argument("--failed", action="store_true", help="run what did not pass anew")
    parser.add_argument("--gaps", type=Path, help="write what onnxruntime runs and we do not")
    parser.add_argument("--size", type=int, default=40, help="cases per child")
    parser.add_argument("--seconds", type=float, default=60, help="limit of a stage")
    parser.add_argument("--memory", type=float, default=8, help="limit of a child in GiB")
    arguments = parser.parse_args()
    stages = [stage for stage in STAGES if stage != "tvm" or arguments.tvm]
    selected = cases(arguments.match)
    names = {case.name for case in selected}
    found = read_csv(arguments.csv)
    done = {
        key: outcome
        for key, outcome in found.items()
        if not (key[0] in names and key[1] in arguments.again)
        and not (key[0] in names and arguments.failed and outcome.outcome != "pass")
    }
    queue = [(c, [s for s in stages if (c.name, s) not in done]) for c in selected]
    start, total = time.perf_counter(), sum(len(each) for _, each in queue)
    _import_all(arguments.tvm)
    ran = 0
    with arguments.csv.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("case", "stage", "outcome", "reason"))
        writer.writerows((*key, *outcome) for key, outcome in sorted(done.items()))

        def keep(name: str, stage: str, outcome: Outcome) -> None:
            nonlocal ran
            done[name, stage] = outcome
            writer.writerow((name, stage, *outcome))
            stream.flush()
            ran += 1
            if ran % 500 == 0:
                seconds = time.perf_counter() - start
                print(f"{ran} of {total}, {seconds:.0f} s", file=sys.stderr, flush=True)

        run_all(
            queue, keep, size=arguments.size, seconds=arguments.seconds, memory=arguments.memory
        )
    chosen = {key: outcome for key, outcome in done.items() if key[0] in names}
    write_csv(arguments.csv, done)  # in order
    if arguments.gaps is not None:
        write_csv(arguments.gaps, gaps(chosen))
    show(chosen, stages, len(selected))
    return 0


def show(found: Mapping[tuple[str, str], Outcome], stages: Sequence[str], count: int) -> None:
    """Prints totals, and what onnxruntime runs and we do not."""
    for (case, stage), outcome in gaps(found).items():
        print(f"{case} {stage} {outcome.outcome}: {outcome.reason}")
    print(f"{count} cases, qdqbridge {qb.__version__}, onnx {onnx.__version__}")
    for stage in stages:
        counts = Counter(o.outcome for (_, s), o in found.items() if s == stage)
        others = ", ".join(f"{n} {name}" for name, n in counts.most_common() if name != "pass")
        print(f"  {stage:<5} {counts['pass']:>5}   {others}")
    missing = {case for case, _ in gaps(found)}
    print(f"  onnxruntime passes and load, interpreter or saved file do not: {len(missing)}")


def _import_all(tvm: bool) -> None:
    """Imports once, before children are forked."""
    import onnxruntime

    assert onnxruntime
    if tvm:
        import qdqbridge.tvm.relax.executable

        assert qdqbridge.tvm.relax.executable


if __name__ == "__main__":
    raise SystemExit(main())
