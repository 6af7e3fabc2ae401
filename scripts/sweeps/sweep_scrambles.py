"""Files rewritten at random into other forms of the same network: the digest must stay.

``scripts/sweeps/sweep_scrambles FOLDER --seeds 5``: every ``.onnx`` file below the folder, each
rewritten five times by some of the rewrites of ``tests/onnx_io/scrambler.py`` (names, order of
nodes and of operands, storage of constants, forms of reshapes, Identity nodes, opsets,
conversions). A file that cannot be read is left out and counted. Every scramble that moves the
digest is printed with its seed and the first rewrite after which it is another one.

``--tools`` also sends each file, and with ``--random 200`` so many models of
``tests/onnx_io/random_models.py``, through the tools of ``tests/onnx_io/rewriting_tools.py`` that
are installed. What a tool moves is printed with what it does to the results: where their bits stay,
there is another form to be read; where they do not, it is another network. Inputs that nothing
reads and a tool takes away are left out before digests are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[2]))

import qdqbridge as qb
from qdqbridge.core.canonical.form import canonicalize
from qdqbridge.core.graph.copying import copied
from tests.onnx_io.model_views import copy_of
from tests.onnx_io.random_models import random_model
from tests.onnx_io.rewriting_tools import TOOLS
from tests.onnx_io.scrambler import ANYWHERE, scrambled

_WIDTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 10.0, 100.0)
"""How large inputs are: large ones saturate wherever numbers are quantized."""


def digest(model: onnx.ModelProto, folder: Path) -> str:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        return qb.load(path).digest
    except qb.QdqBridgeError as error:
        return f"refused: {error}".replace("\n", "; ")[:200]


def first_mover(model: onnx.ModelProto, seed: int, expected: str, folder: Path) -> str:
    """Returns the first rewrite of a scramble after which the digest is another one."""
    _, names = scrambled(model, seed, ANYWHERE)
    rng, result = random.Random(seed), copy_of(model)
    order = list(ANYWHERE)
    rng.shuffle(order)
    rng.randint(1, len(order))
    for name in names:
        ANYWHERE[name](result, rng)
        if (found := digest(result, folder)) != expected:
            return f"{name} ({found})" if found.startswith("refused") else name
    return "none of them alone"


def meaning(graph: qb.Graph, other: qb.Graph) -> str:
    """Returns what becomes of a graph's results in another one, on random inputs of any size."""
    if [v.type.shape for v in graph.inputs] != [v.type.shape for v in other.inputs]:
        return "other inputs"
    rng, extents = np.random.default_rng(0), dict[str, int]()
    for width in _WIDTHS:
        arrays: list[Any] = []
        for value in graph.inputs:
            shape = [
                d if isinstance(d, int) else extents.setdefault(d, 2)
                for d in value.type.shape or ()
            ]
            arrays.append((rng.normal(size=shape) * width).astype(value.type.dtype.numpy))
        try:
            results = [
                [
                    *qb.evaluate(
                        g, dict(zip((v.name for v in g.inputs), arrays, strict=True))
                    ).values()
                ]
                for g in (graph, other)
            ]
        except Exception as error:  # inputs at random are not what every model takes
            return f"not run: {type(error).__name__}"
        pairs = zip(*results, strict=True)
        if not all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in pairs):
            return "other results"
    scales, others = (
        {value.quant.params.scale.tobytes() for node in g.nodes for value in node.outputs
         if value.quant}
        for g in (graph, other)
    )  # fmt: skip
    return "the same bits" if others <= scales else "the same bits on other scales"


def _rest(graph: qb.Graph, other: qb.Graph) -> str:
    """Returns a graph's digest without inputs that nothing reads and another graph lacks."""
    kept, rest = {value.name for value in other.inputs}, copied(graph).graph
    read = {*rest.outputs, *(value for value in rest.inputs if value.users)}
    rest.inputs[:] = [value for value in rest.inputs if value.name in kept or value in read]
    return canonicalize(rest).digest  # operands are in the order of the inputs behind them


def through_tools(
    model: onnx.ModelProto, folder: Path, names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yields every tool's name as it begins, and again with what becomes of the digest in it."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph = qb.load(path)
    for name in names:
        yield name, "ended the process"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                data = TOOLS[name](model).SerializeToString()
        except Exception:  # tools do not know all that there is
            yield name, "failed"
            continue
        path.write_bytes(data)
        try:
            other = qb.load(path)
        except qb.QdqBridgeError as error:
            yield name, f"refused: {str(error).splitlines()[0]}"
            continue
        if other.digest == graph.digest:
            yield name, "kept"
        elif other.digest == _rest(graph, other):
            yield name, "kept, but for unread inputs"
        else:
            yield name, f"moved, {meaning(graph, other)}"


def outcomes(model: onnx.ModelProto, folder: Path) -> dict[str, str]:
    """Returns what tools do to a model, in processes of their own: some end theirs."""
    found: dict[str, str] = {}
    while names := [name for name in TOOLS if name not in found]:
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as stream, contextlib.suppress(qb.QdqBridgeError):
                for row in through_tools(model, folder, names):
                    print(json.dumps(row), file=stream, flush=True)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            told = dict(json.loads(line) for line in stream)
        os.waitpid(child, 0)
        if not told:
            break  # it is refused
        found |= told
    return found


def told(label: str, model: onnx.ModelProto, folder: Path, counts: Counter[str]) -> None:
    """Counts and tells what tools do to a model."""
    for name, outcome in outcomes(model, folder).items():
        counts[f"{name} {outcome}"] += 1
        if outcome.startswith(("moved", "refused")):
            print(f"{label}: {name} {outcome}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="*")
    parser.add_argument("--tools", action="store_true", help="files of other tools too")
    parser.add_argument("--random", type=int, default=0, help="models at random for the tools")
    parser.add_argument("--seeds", type=int, default=5, help="scrambles of each file")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stride", type=int, default=1, help="every how manieth file")
    parser.add_argument("--largest", type=int, default=4 << 20, help="bytes of a file at most")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    files = sorted(p for folder in arguments.folder for p in folder.rglob("*.onnx"))
    counts, movements, start = Counter[str](), Counter[str](), time.perf_counter()
    tools = Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number, path in enumerate(files[:: arguments.stride]):
            if path.stat().st_size > arguments.largest:
                counts["too large"] += 1
                continue
            try:
                expected, model = qb.load(path).digest, onnx.load(path)
            except Exception:  # what cannot be read is another sweep's concern
                counts["unread"] += 1
                continue
            counts["files"] += 1
            if number % 50 == 49:
                seconds = time.perf_counter() - start
                print(f"{dict(counts)}, {seconds:.0f} s", file=sys.stderr, flush=True)
            if arguments.tools:
                told(str(path), model, folder, tools)
            for seed in range(arguments.first, arguments.first + arguments.seeds):
                own = seed * 7919 + number
                try:
                    twin, _ = scrambled(model, own, ANYWHERE)
                except Exception as error:  # a rewrite that does not know what it finds
                    counts["not scrambled"] += 1
                    print(f"{path} seed {own}: {error!r}"[:200], file=sys.stderr, flush=True)
                    continue
                counts["scrambles"] += 1
                if digest(twin, folder) == expected:
                    continue
                counts["moved"] += 1
                movement = first_mover(model, own, expected, folder)
                movements[movement.partition(" ")[0]] += 1
                print(f"{path} seed {own}: {movement}", flush=True)
        for seed in range(arguments.first, arguments.first + arguments.random):
            told(f"random {seed}", random_model(seed), folder, tools)
    for outcome, count in sorted(tools.items()):
        print(f"{outcome}: {count}")
    print(", ".join(f"{name} {count}" for name, count in movements.most_common()))
    seconds = time.perf_counter() - start
    print(", ".join(f"{count} {name}" for name, count in counts.items()), f"in {seconds:.0f} s")
    return int(counts["moved"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
