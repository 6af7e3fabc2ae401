"""What two revisions make of the same files: "equal", or a line for each thing that moved.

``scripts/checks/oracle.py BASE [--quick]`` compares the working tree with a commit, before a
change that must move nothing. Both read the same files (collections given with ``--folder``,
``models/``, random models) and each records, through the public functions only:

- the digest under every reading option, or the error;
- the SHA-256 of the file of every export profile, and what its rules find;
- the digest behind Relax and back;
- the bits that the interpreter computes from fixed random inputs, and those of TVM;
- what ``quantize`` decides for the float models of ``models/``, by target;
- whole tier: the machine code of the compiled networks of ``scripts/bench run``, by processor.

``--quick`` has TVM and the interpreter for 150 files, 200 random models, and no quantizer: ten
minutes on two cores. A record is kept by commit in ``--cache``, so that a base is run once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ("ort", "portable", "tensorrt", "qnn", "qnn-v73", "openvino", "qoperator")
OPTIONS = ("decomposed", "fold_affine", "fuse", "optional_inputs")
TARGETS = (
    "ort",
    "ort-s8",
    "tensorrt",
    "qnn",
    "a16w8",
    "openvino",
    "tflite",
    "weight-only",
    "dynamic",
)
PROCESSORS = ("haswell", "cascadelake", "sapphirerapids")
NETWORKS = ("resnet18", "mobilenet", "unet", "resnet50", "bert2x256")
OPEN = 2
"""What an open extent is when a model is run."""
LARGEST = 64 << 20
"""Bytes of a file that is run; larger ones are read and written only."""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def outcome(step: Callable[[], str]) -> str:
    """Returns what a step gives, or its error: the class and the whole text."""
    import qdqbridge as qb

    try:
        return step()
    except qb.QdqBridgeError as error:
        return f"{type(error).__name__} {sha(str(error).encode())}: {error.what[:100]}"
    except Exception as error:  # a fault of the revision: it counts as what it gives
        return f"CRASH {type(error).__name__}: {error}"[:160]


def record_file(path: Path, *, run: bool, relax: bool) -> dict[str, str]:
    """Returns what the revision on the path makes of one file."""
    import qdqbridge as qb

    flow = sys.modules[qb.load.__module__]
    rows = {"raw": outcome(lambda: qb.load(path, canonical=False).digest)}
    for option in OPTIONS:
        rows[f"load {option}"] = outcome(lambda o=option: qb.load(path, **{o: True}).digest)
    try:
        graph = qb.load(path)
    except Exception:  # whatever it is, it is recorded
        return rows | {"load": outcome(lambda: qb.load(path).digest)}
    rows["load"] = graph.digest
    for profile in PROFILES:
        rows[f"save {profile}"] = outcome(lambda p=profile: saved(graph, "x.onnx", profile=p))
        rows[f"check {profile}"] = outcome(lambda p=profile: findings(flow.check(path, p)))
    rows["save recentered"] = outcome(lambda: saved(graph, "x.onnx", recenter=True))
    rows["save tflite"] = outcome(lambda: saved(graph, "x.tflite"))
    if relax:
        rows["relax"] = outcome(lambda: qb.from_relax(*qb.to_relax(graph)).digest)
    if run and path.stat().st_size < LARGEST:
        inputs = inputs_of(graph)
        rows["interpreter"] = outcome(lambda: bits(qb.evaluate(graph, inputs)))
        rows["tvm"] = outcome(lambda: bits(qb.compile(graph).run(inputs)))
    return rows


def saved(graph: Any, name: str, **options: Any) -> str:
    import qdqbridge as qb

    with tempfile.TemporaryDirectory() as folder:
        qb.save(graph, Path(folder) / name, **options)
        return " ".join(sha(file.read_bytes()) for file in sorted(Path(folder).iterdir()))


def findings(found: Any) -> str:
    listed = [f"{f.rule} {f.effect} {f.operator} {f.node} {f.reason}" for f in found]
    return f"{len(listed)} {sha(repr(listed).encode())}"


def bits(outputs: Any) -> str:
    listed = [(name, str(a.dtype), a.shape, sha(a.tobytes())) for name, a in outputs.items()]
    return sha(repr(listed).encode())


def inputs_of(graph: Any) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for value in graph.inputs:
        shape = [extent if isinstance(extent, int) else OPEN for extent in value.type.shape or ()]
        kind = value.type.dtype.numpy
        if value.type.dtype.is_float:
            arrays[value.name] = rng.normal(0, 1, shape).astype(kind)
        elif kind in (np.int64, np.int32, np.bool_):
            arrays[value.name] = rng.integers(0, 2, shape).astype(kind)
        else:
            arrays[value.name] = rng.integers(0, 100, shape).astype(kind)
    return arrays


def record_decision(path: Path, target: str) -> dict[str, str]:
    """Returns what ``quantize`` decides for a float model of ``models/``."""
    import numpy as np

    import qdqbridge as qb

    images = np.load(path.with_name("digits_test.npz"))["x"][:64]
    name = qb.load(path).inputs[0].name
    made = outcome(lambda: qb.quantize(path, {name: images}, target=target).digest)
    return {f"quantize {target}": made}


def record_code(network: str, processor: str) -> dict[str, str]:
    """Returns the machine code that one network of the benchmark becomes."""
    sys.path.insert(0, str(ROOT / "scripts" / "benches"))
    import numpy as np
    import run_networks
    from onnx import save_model

    import qdqbridge as qb

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "float.onnx"
        model = run_networks.NETWORKS[network]()
        save_model(model, file)
        shape = [d.dim_value or 1 for d in model.graph.input[0].type.tensor_type.shape.dim]
        data = {model.graph.input[0].name: np.random.default_rng(0).normal(0, 1, shape)}
        graph = qb.quantize(
            file, {k: v.astype(np.float32) for k, v in data.items()}, repair=(), chooser="minmax"
        )

        def code() -> str:
            library = Path(folder) / "library.so"
            qb.compile(graph, target={"kind": "llvm", "mcpu": processor}).save(library)
            text = Path(folder) / "text"
            command = ["objcopy", "-O", "binary", "--only-section=.text", library, text]
            subprocess.run(command, check=True)
            return sha(text.read_bytes())

        return {f"code {processor}": outcome(code)}


def work() -> None:
    """Answers jobs from standard input, a line of JSON each."""
    import warnings

    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    for line in sys.stdin:
        job = json.loads(line)
        kind, path = job.pop("kind"), Path(job.pop("path"))
        if kind == "file":
            rows = record_file(path, **job)
        elif kind == "decision":
            rows = record_decision(path, **job)
        else:
            rows = record_code(**job)
        answers.write(json.dumps(rows) + "\n")


class Revision:
    """A tree whose package records, in two processes that are begun again when one dies."""

    def __init__(self, tree: Path, python: str) -> None:
        self.tree, self.python = tree, python

    def _process(self) -> subprocess.Popen[str]:
        environment = dict(os.environ, PYTHONPATH=str(self.tree), OPENBLAS_NUM_THREADS="1")
        command = [self.python, str(Path(__file__).resolve()), "--work"]
        return subprocess.Popen(
            command, cwd=self.tree, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def record(self, jobs: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, str]]:
        waiting: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        found: dict[str, dict[str, str]] = {}
        threads = [threading.Thread(target=self._drain, args=(waiting, found)) for _ in range(2)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(30)
                done = len(jobs) - waiting.qsize()
                print(f"  {done} of {len(jobs)}, {time.monotonic() - start:.0f} s", file=sys.stderr)
        return found

    def _drain(self, waiting: queue.SimpleQueue[Any], found: dict[str, dict[str, str]]) -> None:
        process = self._process()
        while not waiting.empty():
            try:
                name, job = waiting.get_nowait()
            except queue.Empty:
                break
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if line:
                found.setdefault(name, {}).update(json.loads(line))
            else:
                found.setdefault(name, {})["process"] = f"DIED with {process.wait()}"
                process = self._process()
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def jobs_of(
    arguments: argparse.Namespace, random_models: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields what is recorded, by a name for it."""
    folders = [ROOT / "models", *(folder.resolve() for folder in arguments.folder)]
    files = [
        (f, p) for f in folders for p in sorted(f.rglob("*")) if p.suffix in (".onnx", ".tflite")
    ]
    every = max(1, len(files) // 150) if arguments.quick else 1
    for index, (folder, path) in enumerate(files):
        name = f"{folder.name}/{path.relative_to(folder)}"
        run = index % every == 0
        yield name, {"kind": "file", "path": str(path), "run": run, "relax": run}
    for path in sorted(random_models.glob("*.onnx")):
        job = {"kind": "file", "path": str(path), "run": False, "relax": True}
        yield f"random/{path.name}", job
    if arguments.quick:
        return
    for path in sorted((ROOT / "models").glob("*_float.onnx")):
        for target in TARGETS:
            yield f"models/{path.name}", {"kind": "decision", "path": str(path), "target": target}
    for network in NETWORKS:
        for processor in PROCESSORS:
            job = {"kind": "code", "path": "", "network": network, "processor": processor}
            yield f"network {network}", job


def make_random_models(folder: Path, count: int) -> None:
    """Writes random models, once for both revisions."""
    sys.path.insert(0, str(ROOT))
    import onnx

    from tests.onnx_io.random_models import random_model

    for seed in range(count):
        onnx.save(random_model(seed), folder / f"{seed:04}.onnx")


def run_git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout


def base_record(arguments: argparse.Namespace, jobs: list[Any]) -> dict[str, dict[str, str]]:
    """Returns the record of the base, from the cache where this commit was recorded before."""
    commit = run_git("rev-parse", arguments.base).strip()
    key = sha(json.dumps([commit, jobs], sort_keys=True).encode())
    kept = arguments.cache / f"{commit[:12]}-{key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        run_git("worktree", "add", "--detach", str(tree), commit)
        try:
            print(f"recording {commit[:12]}", file=sys.stderr)
            record = Revision(tree, sys.executable).record(jobs)
        finally:
            run_git("worktree", "remove", "--force", str(tree))
    arguments.cache.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(record, indent=0, sort_keys=True))
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, action="append", default=[], help="more files")
    parser.add_argument("--cache", type=Path, default=ROOT / ".oracle")
    parser.add_argument("--random", type=int, help="random models (200 with --quick, 2000 without)")
    arguments = parser.parse_args()
    count = arguments.random or (200 if arguments.quick else 2000)
    models = arguments.cache.resolve() / f"random-{count}"
    if not models.exists():
        models.mkdir(parents=True)
        make_random_models(models, count)
    jobs = list(jobs_of(arguments, models))
    before = base_record(arguments, jobs)
    print("recording the working tree", file=sys.stderr)
    after = Revision(ROOT, sys.executable).record(jobs)
    moved = 0
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, {}), after.get(name, {})
        for what in sorted(old.keys() | new.keys()):
            if old.get(what) != new.get(what):
                moved += 1
                print(f"{name}: {what}\n  was {old.get(what)}\n  is  {new.get(what)}")
    rows = sum(map(len, after.values()))
    print(f"{len(after)} files, {rows} figures: " + (f"{moved} moved" if moved else "equal"))
    return int(moved > 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        raise SystemExit(main())
