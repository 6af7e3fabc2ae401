"""What a damaged model is put through, and where the good ones to damage come from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import qdqbridge as qb
from qdqbridge.app.cli.failures import DONE, MODEL, NOT_MET, run
from qdqbridge.app.pipeline import diff
from qdqbridge.app.sources import inspect_model, load_model
from tests.onnx_io.scrambler import scrambled
from tests.onnx_io.test_equivalence import BASES
from tests.onnx_models import conv_input, conv_model
from tests.places import TESTS

LARGEST_SEED = 80_000


def put_through(data: bytes, folder: Path) -> str:
    """Reads an ONNX file as a user would: text, explanation, inspection; writes and reads again.

    Returns:
        How far it came: the name of the error that refused it, ``not written`` or ``written``;
        a file whose declared shapes contradict what its nodes compute may read as another graph.

    Raises:
        Exception: Whatever is no ``QdqBridgeError``; that is a finding.
    """
    return _put(data, folder / "damaged.onnx", qb.load)


def put_tflite_through(data: bytes, folder: Path) -> str:
    """Reads a TFLite file likewise.

    Raises:
        Exception: Whatever is no ``QdqBridgeError``.
    """
    return _put(data, folder / "damaged.tflite", qb.load)


def put_module_through(data: bytes, folder: Path, suffix: str = ".json") -> str:
    """Reads a saved Relax module likewise, through both of its ways in.

    Raises:
        Exception: Whatever is no ``QdqBridgeError``.
    """
    path = folder / f"damaged{suffix}"
    result = _put(data, path, load_model)
    try:
        from qdqbridge.tvm.relax.saved import read_module

        module = read_module(path)
        qb.from_relax(module)
    except qb.QdqBridgeError as error:
        _worded(error)
    return result


def put_on_tvm(data: bytes, folder: Path) -> str:
    """Reads a model and runs it: interpreter, Relax and back, TVM on one kind of kernels.

    Returns:
        How far it came.

    Raises:
        AssertionError: TVM's results are not the interpreter's, or Relax changes the digest.
        Exception: Whatever else is no ``QdqBridgeError``; a finding, as the end of the process.
    """
    rng, path = Random(data), folder / "random.onnx"
    path.write_bytes(data)
    steps: dict[str, Callable[[], Any]] = {
        "evaluated": lambda: qb.evaluate(graph, feeds),
        "through Relax": lambda: qb.from_relax(qb.to_relax(graph)[0]),
        "compiled": lambda: qb.compile(graph, kernels=rng.choice(("fast", "reference"))),
    }
    try:
        graph = qb.load(path)
        feeds = _feeds(graph, rng)
    except qb.QdqBridgeError as error:
        return f"not read: {_worded(error)}"
    done: dict[str, Any] = {}
    for name, step in steps.items():
        try:
            done[name] = step()
        except qb.QdqBridgeError as error:
            _worded(error)
    words = [name for name in steps if name not in done]
    if "through Relax" in done and done["through Relax"].digest != graph.digest:
        raise AssertionError("not the digest through Relax")
    if "compiled" in done:
        try:
            results = done["compiled"].run(feeds)
        except qb.QdqBridgeError as error:
            _worded(error)
            words.append("run")
        else:
            if "evaluated" in done and not _near(done["evaluated"], results):
                raise AssertionError("not the same on TVM")
    return f"not {', '.join(words)}" if words else "the same on TVM"


VERBS: dict[str, tuple[str, ...]] = {
    "inspect": ("FILE",),
    "canonicalize": ("FILE",),
    "explain": ("FILE",),
    "export": ("FILE", "--profile", "ort", "-o", "OUT.onnx"),
    "quantize": ("FILE", "--data", "DATA", "-o", "OUT.onnx"),
    "compare": ("FILE", "--data", "DATA"),
    "blame": ("FILE", "FILE", "--data", "DATA"),
    "fix": ("FILE", "--for", "ort", "-o", "OUT.onnx"),
    "partition": ("FILE",),
    "view": ("FILE", "-o", "OUT.html"),
}
"""Verbs of the command line, and what they are given."""
CODES = (DONE, NOT_MET, MODEL)


def put_through_verbs(data: bytes, folder: Path, verbs: int = 1) -> str:
    """Puts an ONNX file through some verbs of the command line, as the file's bytes choose.

    Returns:
        The exit codes.

    Raises:
        AssertionError: One is none that a file may lead to, or a verb leaves something unfinished.
        Exception: Whatever escapes.
    """
    path, samples, rng = folder / "damaged.onnx", folder / "data.npz", Random(data)
    path.write_bytes(data)
    np.savez(samples, x=conv_input()["x"])
    said: list[str] = []
    for verb in rng.sample([*VERBS], verbs):
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        places = {"FILE": str(path), "DATA": str(samples)}
        places |= {f"OUT.{kind}": str(out / f"out.{kind}") for kind in ("onnx", "html")}
        code = run([verb, *(places.get(word, word) for word in VERBS[verb])])
        left = [each.name for each in out.iterdir()]
        assert code in CODES, f"{verb}: exit code {code}"
        assert left in ([], ["out.onnx"], ["out.html"]), f"{verb} leaves {left}"
        assert code != MODEL or not left, f"{verb} fails, and leaves {left}"
        if left == ["out.onnx"]:
            qb.load(out / "out.onnx")
        said.append(str(code))
    return f"written, codes {' '.join(sorted(said))}"


def _feeds(graph: qb.Graph, rng: Random) -> dict[str, Any]:
    """Returns arrays for the inputs; at times an open extent is not the same everywhere."""
    extents: dict[str, int] = {}
    random = np.random.default_rng(rng.randrange(1 << 32))
    feeds: dict[str, Any] = {}
    for value in graph.inputs:
        shape: list[int] = []
        for extent in value.type.shape or ():
            size = rng.choice((1, 2, 3))
            fixed = extents.setdefault(extent, size) if isinstance(extent, str) else extent
            shape.append(size if isinstance(extent, str) and rng.random() < 0.1 else fixed)
        dtype = value.type.dtype.numpy
        feeds[value.name] = (random.normal(size=shape) * 3).astype(dtype)
    return feeds


def _near(meant: dict[str, Any], got: dict[str, Any]) -> bool:
    """Returns whether results agree up to the roundings of float32, and one code of 0.1."""
    for name, array in meant.items():
        a, b = np.asarray(array, np.float64), np.asarray(got[name], np.float64)
        # The scale of the random models is 0.1, and a tie goes either way.
        if a.shape != b.shape or not np.allclose(a, b, 1e-3, 0.11, equal_nan=True):
            return False
    return True


def _put(data: bytes, path: Path, read: Callable[[Path], qb.Graph]) -> str:
    path.write_bytes(data)
    try:
        graph = read(path)
    except qb.QdqBridgeError as error:
        return _worded(error)
    copy = path.with_name("copy.onnx")
    graph.text()
    for note in qb.explain(graph):
        str(note)
    inspect_model(path)
    try:
        qb.save(graph, copy, overwrite=True)
    except qb.QdqBridgeError as error:
        _worded(error)
        return "not written"
    try:
        again = qb.load(copy)
    except qb.QdqBridgeError:  # declared shapes hid a contradiction, and are not written
        return "written, not read"
    if again.digest == graph.digest:
        return "written"
    for difference in diff(graph, again):
        str(difference)
    return "written, another digest"


def _worded(error: qb.QdqBridgeError) -> str:
    if not (error.what and str(error)):
        raise AssertionError("an error without words") from error
    return type(error).__name__


def seeds(folders: list[Path]) -> list[bytes]:
    """Returns valid models: our own, and the small ones of ``folders``."""
    return [*_built(), *(path.read_bytes() for path in _files(folders))]


def tflite_seeds(folders: list[Path]) -> Iterator[bytes]:
    """Yields valid TFLite files: a whole network, single operators, small ones of ``folders``."""
    from tests.tflite_io.test_against_litert import CASES
    from tests.tflite_io.test_hard_forms import CASES as HARD

    yield (TESTS / "tflite_io/data/int8_network.tflite").read_bytes()
    for build in (*CASES.values(), *HARD.values()):
        for seed in range(2):
            case = build(seed)
            yield case.model.tobytes(case.inputs, case.outputs)
    yield from (path.read_bytes() for path in _files(folders, ".tflite"))


def _built() -> Iterator[bytes]:
    for opset in (10, 13, 21):
        yield conv_model(opset).SerializeToString()
    for base in BASES.values():
        yield base().SerializeToString()
        for seed in range(3):
            yield scrambled(base(), seed)[0].SerializeToString()


def _files(folders: list[Path], suffix: str = ".onnx") -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob(f"*{suffix}")):
            if os.path.getsize(path) <= LARGEST_SEED:
                yield path
