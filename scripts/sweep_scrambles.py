"""Files rewritten at random into other forms of the same network: the digest must stay.

``scripts/sweep_scrambles FOLDER --seeds 5``: every ``.onnx`` file below the folder, each rewritten
five times by some of the rewrites of ``tests/onnx_io/scrambler.py`` (names, order of nodes and of
operands, storage of constants, forms of reshapes, Identity nodes, opsets, conversions). A file
that cannot be read is left out and counted. Every scramble that moves the digest is told with its
seed and the first rewrite after which it is another one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

import qdqbridge as qb
from tests.onnx_io.model_views import copy_of
from tests.onnx_io.scrambler import ANYWHERE, scrambled


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5, help="scrambles of each file")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stride", type=int, default=1, help="every how manieth file")
    parser.add_argument("--largest", type=int, default=4 << 20, help="bytes of a file at most")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    files = sorted(p for folder in arguments.folder for p in folder.rglob("*.onnx"))
    counts, movements, start = Counter[str](), Counter[str](), time.perf_counter()
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
    print(", ".join(f"{name} {count}" for name, count in movements.most_common()))
    seconds = time.perf_counter() - start
    print(", ".join(f"{count} {name}" for name, count in counts.items()), f"in {seconds:.0f} s")
    return int(counts["moved"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
