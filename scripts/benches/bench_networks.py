"""Float networks to quantize, with samples to calibrate with and others to measure with.

The digits networks read the held-out digits of ``models/digits_test.npz``; mnist-conv reads the
same digits enlarged to 28x28. There are no samples for the other networks of the collection, so
these read seeded pictures (or signals) whose spectrum falls as 1/f, as that of photographs does.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Data = dict[str, Array]
ROOT = Path(__file__).resolve().parents[2]
CALIBRATION, MEASURED = 64, 128
LARGE, FEW = 30_000, 48
"""Inputs of more elements have fewer samples."""
COLLECTION = {
    "mnist-conv": "mnist-conv/model.onnx",
    "ESPCN resize": "espcn/nn_resize/float_model.onnx",
    "ESPCN subpixel": "espcn/subpixel/float_model.onnx",
    "CCT": "FP32/CCT_1_16_16_128/network.onnx",
    "TinyViT": "TinyViT/Demo/network.onnx",
    "Autoencoder1D": "Autoencoder1D/network.onnx",
    "residual block": "residual_block_clean.onnx",
}
STANDARDIZED = ("CCT", "TinyViT")
"""Networks that want pictures of mean 0 and deviation 1."""


@dataclass(frozen=True)
class Case:
    """A float network, samples to calibrate with, and samples to measure with."""

    name: str
    path: Path
    calibration: Data
    measured: Data
    labels: Array | None = None


def cases(wanted: Collection[str], seed: int) -> Iterator[Case]:
    """Yields the networks that there are; the collection's where QDQBRIDGE_CORPUS is known."""
    with np.load(ROOT / "models" / "digits_test.npz") as held:
        digits, labels = held["x"], held["labels"]
    for path in sorted((ROOT / "models").glob("digits_*_float.onnx")):
        if not wanted or path.stem in wanted:
            yield _case(path.stem, path, digits, labels)
    folder = Path(os.environ.get("QDQBRIDGE_CORPUS", ROOT.parent / "shared" / "models"))
    manifest = folder / "manifest.csv"
    rows = list(csv.DictReader(manifest.open())) if manifest.exists() else []
    for name, end in COLLECTION.items():
        files = [folder / row["file"] for row in rows if row["path"].endswith(end)]
        if not files or (wanted and name not in wanted):
            continue
        if name == "mnist-conv":
            yield _case(name, files[0], enlarged(digits), labels)
        else:
            yield _case(name, files[0], _drawn(name, files[0], seed), None)


def _case(name: str, path: Path, array: Array, labels: Array | None) -> Case:
    (input_,) = {i.name for i in session(path).get_inputs()}
    cut = min(CALIBRATION, len(array) // 3)
    end = None if labels is not None else cut + MEASURED
    kept = None if labels is None else labels[cut:end]
    return Case(name, path, {input_: array[:cut]}, {input_: array[cut:end]}, kept)


def enlarged(digits: Array) -> Array:
    """Returns 8x8 digits in 0..1 as 28x28 ones in 0..255 with a margin."""
    large = digits.repeat(3, axis=2).repeat(3, axis=3)
    return (np.pad(large, [(0, 0), (0, 0), (2, 2), (2, 2)]) * 255).astype(np.float32)


def _drawn(name: str, path: Path, seed: int) -> Array:
    (input_,) = session(path).get_inputs()
    shape = [d if isinstance(d, int) else 1 for d in input_.shape[1:]]
    count = FEW if np.prod(shape) > LARGE else CALIBRATION + MEASURED
    drawn = natural(np.random.default_rng(seed), (count, *shape))
    if len(shape) == 3:  # pictures in 0..1 of different contrast
        drawn = np.clip(0.5 + drawn / 4, 0, 1)
    if name in STANDARDIZED:
        drawn = (drawn - 0.5) / 0.25
    return drawn.astype(np.float32)


def natural(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns noise whose amplitude falls as 1/f along the axes behind the channels."""
    axes = tuple(range(2, len(shape)))
    spectrum = np.fft.fftn(rng.standard_normal(shape), axes=axes)
    grids = np.meshgrid(*[np.fft.fftfreq(shape[a]) * shape[a] for a in axes], indexing="ij")
    radius = np.maximum(np.sqrt(np.sum([grid**2 for grid in grids], axis=0)), 1)
    drawn = np.fft.ifftn(spectrum / radius, axes=axes).real
    loudness = rng.lognormal(0, 0.3, (shape[0], *[1] * (len(shape) - 1)))
    return drawn / drawn.std(axis=axes, keepdims=True).mean() * loudness


def modern(path: Path, folder: Path) -> Path:
    """Returns a file that other tools can quantize per channel: of opset 13 or newer.

    What ONNX's own converter does not know is written anew by qdqbridge, in float as it is.
    """
    import onnx
    from onnx import version_converter

    model = onnx.load(path)
    version = next(o.version for o in model.opset_import if not o.domain)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in constants]
    if version >= 13 and len(inputs) == len(model.graph.input):
        return path
    out = folder / "modern.onnx"
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 8)
    try:
        onnx.save(model if version >= 13 else version_converter.convert_version(model, 17), out)
    except (RuntimeError, ValueError):  # no converter for an operator; too large for one message
        _rewritten(path, out)
    return out


def _rewritten(path: Path, out: Path) -> None:
    import qdqbridge
    from qdqbridge.autoquant.profiling.collect import prepared

    qdqbridge.save(prepared(qdqbridge.load(path)), out, overwrite=True)


def session(
    path: Path, *, optimized: bool = False, written: Path | None = None, threads: int = 0
) -> Any:
    """Returns a file in onnxruntime, graph optimizations disabled unless they are asked for.

    What these make of it is ``written`` to another file. It has so many ``threads``, 0 for as many
    as there are cores.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if written is not None:
        options.optimized_model_filepath = str(written)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def results(path: Path, data: Data, *, optimized: bool = False) -> list[Array]:
    """Returns the outputs for every sample, one sample at a time."""
    runner = session(path, optimized=optimized)
    count = len(next(iter(data.values())))
    rows = [runner.run(None, {k: a[i : i + 1] for k, a in data.items()}) for i in range(count)]
    return [np.concatenate(parts).astype(np.float64) for parts in zip(*rows, strict=True)]


def cases_in(folder: Path, wanted: Collection[str]) -> Iterator[Case]:
    """Yields the networks that ``quantization_networks.py`` wrote."""
    for path in sorted(folder.glob("*.onnx")):
        if wanted and path.stem not in wanted:
            continue
        with np.load(path.with_suffix(".npz")) as held:
            arrays = dict(held)
        seen, fresh = (
            {name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)}
            for start in ("seen_", "fresh_")
        )
        yield Case(path.stem, path, seen, fresh, arrays.get("labels"))
