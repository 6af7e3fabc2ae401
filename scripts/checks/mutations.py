"""Damages models and saved modules, and reads what comes out as a user would; or makes models up.

``python scripts/checks/mutations.py KIND --count 20000 -o findings FOLDER …`` where KIND is
``bytes``, ``structured`` or ``modules``; ``verbs``, structured ones that go through every verb of
the command line; ``tflite``, where FOLDER holds ``.tflite`` files; or
``nodes`` or ``graphs``, random operators and random graphs that are also compiled and run
(``tests/fuzzing/random_models.py``).

Every case comes from the seed and its number alone. Cases run in forked children whose memory is
limited; a child that ends, or uses more than a minute for a case, is a finding and the next child
goes on behind it. What a child has written to stderr by then, and where Python was, is part of the
finding. The counts lie in the folder of the findings, so that a run that was stopped is taken up
where it was.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pickle
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzzing import flatbuffer_mutations, modules, mutations
from tests.fuzzing.measured import run
from tests.fuzzing.random_models import random_graph, random_node
from tests.fuzzing.target import (
    VERBS,
    put_module_through,
    put_on_tvm,
    put_tflite_through,
    put_through,
    put_through_verbs,
    seeds,
    tflite_seeds,
)
from tests.onnx_models import conv_model

SILENCE = 60.0
WORDS = 6000
"""Characters of a child's stderr that a finding keeps."""
BLOCK = 200
ADDRESS_SPACE = 8 << 30

Seed = tuple[str, bytes]
"""The suffix of a file, and what it holds."""
RANDOM = {"nodes": random_node, "graphs": random_graph}
KINDS = ("bytes", "structured", "verbs", "modules", "tflite", *RANDOM)


def case(kind: str, valid: Sequence[Seed], seed: int, number: int) -> Seed:
    """Returns the damaged file of one case."""
    rng = Random(f"{kind}/{seed}/{number}")
    if kind in RANDOM:
        return ".onnx", RANDOM[kind](rng)
    suffix, data = rng.choice(valid)
    if kind == "bytes":
        return suffix, mutations.damaged(data, rng)
    if kind == "tflite":
        return suffix, flatbuffer_mutations.restructured(data, _sites(data), rng)
    if kind in ("structured", "verbs"):
        return suffix, mutations.restructured(data, rng)
    text = modules.mutated(data.decode(), suffix, rng)
    return suffix, text.encode("utf-8", "surrogatepass")


@cache
def _sites(data: bytes) -> list[flatbuffer_mutations.Site]:
    with tempfile.TemporaryDirectory() as folder:
        return flatbuffer_mutations.sites(data, Path(folder))


def _put(kind: str, suffix: str) -> Callable[[bytes, Path], str]:
    if kind in RANDOM:
        return put_on_tvm
    if kind == "verbs":
        return partial(put_through_verbs, verbs=len(VERBS))
    if suffix == ".onnx":
        return put_through
    if suffix == ".tflite":
        return put_tflite_through
    return lambda data, folder: put_module_through(data, folder, suffix)


def _child(
    kind: str, valid: Sequence[Seed], seed: int, numbers: range, pipe: int, log: Path
) -> None:
    """Runs cases and tells of each; what the current one writes is in ``log``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 2)
    faulthandler.enable(2)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder, os.fdopen(pipe, "w") as stream:
        for suffix in dict.fromkeys(suffix for suffix, _ in valid):
            data = next(data for other, data in valid if other == suffix)
            found = run(data, Path(folder), _put(kind, suffix))  # imports are not the case's memory
            if not any(word in found["result"] for word in ("written", "same on TVM")):
                raise AssertionError(f"undamaged files are not read: {found}")
        for number in numbers:
            print(json.dumps({"at": number}), file=stream, flush=True)
            os.ftruncate(2, 0)
            faulthandler.dump_traceback_later(SILENCE - 5, file=2)
            suffix, data = case(kind, valid, seed, number)
            found = run(data, Path(folder), _put(kind, suffix))
            print(json.dumps({**found, "number": number}), file=stream, flush=True)


class Run:
    """The counts of one kind and seed, kept in a file.

    Attributes:
        state: What is in the file.
    """

    def __init__(self, kind: str, seed: int, folder: Path) -> None:
        self.kind, self.seed, self.folder = kind, seed, folder
        self.path = folder / f"{kind}_{seed}.json"
        self.log = folder / f"{kind}_{seed}.stderr"
        self.state: dict[str, Any] = {"next": 0, "results": {}, "findings": {}, "seconds": 0.0,
                                      "bytes": 0, "slowest": -1, "largest": -1}  # fmt: skip
        if self.path.exists():
            self.state |= json.loads(self.path.read_text())

    def block(self, valid: Sequence[Seed], numbers: range) -> None:
        """Runs cases in one child, up to the first that ends it."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            status = 1
            try:
                _child(self.kind, valid, self.seed, numbers, writing, self.log)
                status = 0
            except BaseException:  # the child's own; a case's are findings
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writing)
        at = self._listen(reading, child)
        _, status = os.waitpid(child, 0)
        if status:
            told = self.state["findings"].get(str(at))
            told = told or f"the process ended with {os.waitstatus_to_exitcode(status)}"
            words = self.log.read_text(errors="replace")[-WORDS:]
            self._find(at, f"{told}\n{words}".rstrip())
            self.state["next"] = at + 1
        self.path.write_text(json.dumps(self.state, indent=1))

    def _listen(self, reading: int, child: int) -> int:
        at, kept = self.state["next"], b""
        with os.fdopen(reading, "rb", buffering=0) as stream:
            while True:
                if not select.select([stream], [], [], SILENCE)[0]:
                    self._find(at, f"nothing for {SILENCE} s")
                    os.kill(child, signal.SIGKILL)
                    return at
                data = stream.read(1 << 16)
                if not data:
                    return at
                *lines, kept = (kept + data).split(b"\n")
                for line in lines:
                    at = self._take(json.loads(line), at)

    def _take(self, told: dict[str, Any], at: int) -> int:
        if "at" in told:
            return int(told["at"])
        number = told["number"]
        self.state["next"] = number + 1
        result = told["result"] or "FINDING"
        results = self.state["results"]
        results[result] = results.get(result, 0) + 1
        for key, which in (("seconds", "slowest"), ("bytes", "largest")):
            if told[key] > self.state[key]:
                self.state |= {key: told[key], which: number}
        if told["finding"]:
            self._find(number, told["finding"])
        return at

    def _find(self, number: int, text: str) -> None:
        self.state["findings"][str(number)] = text

    def line(self) -> str:
        """Returns the counts in words."""
        state, counts = self.state, Counter(self.state["results"])
        return (
            f"{self.kind}: {state['next']} cases, {len(state['findings'])} findings; "
            f"worst {state['seconds']:.2f} s ({state['slowest']}), {state['bytes'] >> 20} MB "
            f"({state['largest']}); {dict(counts.most_common())}"
        )


def valid_files(kind: str, folders: list[Path], kept: Path) -> list[Seed]:
    """Returns what cases are made from; modules are made in a process of their own, once."""
    if kind in RANDOM:
        return [(".onnx", conv_model().SerializeToString())]
    if kind == "tflite":
        return [(".tflite", data) for data in tflite_seeds(folders)]
    if kind != "modules":
        return [(".onnx", data) for data in seeds(folders)]
    if not kept.exists():
        child = os.fork()
        if child == 0:
            found = [(suffix, text.encode()) for suffix, text in modules.modules(seeds(folders))]
            kept.write_bytes(pickle.dumps(found))
            os._exit(0)
        os.waitpid(child, 0)
    found = pickle.loads(kept.read_bytes())
    return [*{data: (suffix, data) for suffix, data in found}.values()]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folders", nargs="*", type=Path, help="more models, up to 80 kB each")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run one case here, and show what comes out")
    parser.add_argument("-o", "--output", type=Path, default=Path("findings"))
    arguments = parser.parse_intermixed_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    valid = valid_files(arguments.kind, arguments.folders, arguments.output / "modules.pickle")
    if arguments.only is not None:
        suffix, data = case(arguments.kind, valid, arguments.seed, arguments.only)
        path = arguments.output / f"{arguments.kind}_{arguments.seed}_{arguments.only}{suffix}"
        path.write_bytes(data)
        with tempfile.TemporaryDirectory() as folder:
            print(path, run(data, Path(folder), _put(arguments.kind, suffix)))
        return 0
    this, start = Run(arguments.kind, arguments.seed, arguments.output), time.monotonic()
    while this.state["next"] < arguments.count:
        first = this.state["next"]
        this.block(valid, range(first, min(first + BLOCK, arguments.count)))
        print(this.line(), flush=True)
        if time.monotonic() - start > arguments.seconds:
            break
    for number, text in this.state["findings"].items():
        print(f"--- {number}\n{text}")
    return 1 if this.state["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
