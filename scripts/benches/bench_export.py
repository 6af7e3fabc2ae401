"""onnxruntime on what we export against onnxruntime on the original file.

``scripts/bench export [NETWORK ...]``: a network (see run_networks.py; ``--model`` for files of
one's own) goes through ``load`` and ``save``, and through TVM's own ONNX importer, ``from_relax``
and ``save``. onnxruntime runs the original and what came back with all its optimizations, in one
process, on one thread, call after call in turn; what is printed are medians of the ratios of calls
made next to each other, how outputs differ, and the operators that onnxruntime runs where those
are not the original's. Exits with 1 where a ratio is above 1.05.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bench_run import Feeds, feeds, measure, onnxruntime, quantize
from run_networks import NETWORKS

RATIO = 1.05
USUAL = ("resnet18", "mobilenet", "bert2x256")


def files(arguments: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """Yields the files to measure; they are made where the folder does not have them."""
    for name in arguments.networks or USUAL:
        real = folder / f"{name}.onnx"
        if not real.exists():
            onnx.save(NETWORKS[name](), real)
        yield real
        if arguments.quantized:
            quantized = folder / f"{name}_u8s8.onnx"
            if not quantized.exists():
                quantize(real, quantized, "u8s8")
            yield quantized
    yield from arguments.model


def exported(path: Path, folder: Path, *, fuse: bool) -> dict[str, Path]:
    """Writes a model again, by each way; returns the files by the way's name."""
    from tvm.relax.frontend.onnx import from_onnx

    import qdqbridge as qb

    with contextlib.redirect_stdout(io.StringIO()):
        module = from_onnx(onnx.load(path))
    graphs = {
        "load": qb.load(path, fuse=fuse),
        "TVM": qb.from_relax(module, fuse=fuse),
    }
    made = {name: folder / f"{path.stem}_{name}.onnx" for name in graphs}
    for name, graph in graphs.items():
        qb.save(graph, made[name])
    return made


def operators(path: Path, folder: Path) -> Counter[str]:
    """Returns how often onnxruntime runs which operator, after its optimizations."""
    import onnxruntime as ort

    optimized = folder / f"{path.stem}_optimized.onnx"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(optimized)
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(optimized).graph.node)


def row(path: Path, seconds: float, *, fuse: bool) -> dict[str, Any]:
    """Measures one model."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = exported(path, folder, fuse=fuse)
        wanted = operators(path, folder)
        data: Feeds = feeds(path)
        calls = {"original": onnxruntime(path, data, 1)}
        calls |= {name: onnxruntime(file, data, 1) for name, file in made.items()}
        found: dict[str, Any] = {"network": path.stem}
        reference = calls["original"]()
        for name, file in made.items():
            found[f"{name} differs"] = _distance(reference, calls[name]())
            others = operators(file, folder)
            found[f"{name} operators"] = {
                op: others[op] - wanted[op]
                for op in sorted({*wanted, *others})
                if others[op] != wanted[op]
            }
        times = measure(calls, seconds)
    found["ms"] = round(float(np.median(times["original"])) * 1e3, 2)
    for name in made:
        ratios = np.divide(times[name], times["original"])
        found[name] = round(float(np.median(ratios)), 3)
    return found


def _distance(first: Sequence[Any], second: Sequence[Any]) -> float:
    """Returns the largest difference of two lists of outputs, in units of the largest value."""
    worst = 0.0
    for a, b in zip(first, second, strict=True):
        scale = max(float(np.abs(a).max(initial=0)), 1e-30)
        worst = max(worst, float(np.abs(a.astype(float) - b.astype(float)).max(initial=0)) / scale)
    return worst


def show(found: Mapping[str, Any]) -> None:
    """Prints one row."""
    text = f"{found['network']:<24} {found['ms']:8.2f} ms"
    for name in ("load", "TVM"):
        text += f"   {name} {found[name]:6.3f} (differs {found[f'{name} differs']:.1e})"
    print(text, flush=True)
    for name in ("load", "TVM"):
        others = found[f"{name} operators"]
        if others:
            listed = ", ".join(f"{op} {count:+}" for op, count in others.items())
            print(f"    {name}: {listed}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(prog="bench export", description=(__doc__ or "").strip())
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    parser.add_argument("--model", nargs="*", type=Path, default=[], help="files of one's own")
    parser.add_argument("--quantized", action="store_true", help="add the networks in u8s8")
    parser.add_argument("--fuse", action="store_true", help="read steps as one operator")
    parser.add_argument("--seconds", type=float, default=10.0, help="per network")
    parser.add_argument("--folder", type=Path, help="where networks are kept between runs")
    arguments = parser.parse_args(argv)
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for path in files(arguments, folder):
            found = row(path, arguments.seconds, fuse=arguments.fuse)
            show(found)
            if max(found["load"], found["TVM"]) > RATIO:
                missed.append(str(found["network"]))
    print("limits: " + ("; ".join(missed) if missed else "all met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
