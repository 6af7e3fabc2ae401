"""What channel scales cost: networks that compute the same, quantized by us and by onnxruntime.

Every hidden channel of a ReLU network may be multiplied by a factor that the next layer divides by.
The function stays; what quantization finds does not. The factors are drawn as ``10^U(-w, w)``.
The answer is known: undone, all seeds give the scales of the network without sabotage.

The weights are scaled here with NumPy in the ONNX file, by none of our code.

Samples are spoiled too: a few of them, one that is huge, features that are constant, all of another
scale. With ``--folder`` that is done to the networks of ``quantization_networks.py`` alone, beside
onnxruntime and the tools whose Pythons are given.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bench_networks import Case, cases_in, results
from bench_quantize_figures import Figures, integers, row, top1
from bench_quantize_tools import ORT as ORT_NAME
from bench_quantize_tools import OTHERS, Method, by_other, ours
from bench_quantize_tools import OURS as OURS_NAME
from bench_quantize_tools import by_onnxruntime as ort
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION = 200
LIMITS = {"digits_mlp": (96.5, 38.0), "digits_mobile": (96.5, 31.0)}
"""By network what we have to reach at every seed: top-1 in percent, and dB."""
SAME = 1e-5
"""How far scales of weights may be apart from seed to seed."""
FEATURES = 2
"""The axis of pictures along which some are made constant; of other arrays the last one."""
KINDS = ("4 samples", "an outlier", "constant features")
RESTORED = 0.2
"""How far the SQNR of a sabotaged network, equalized, may lie below the plain one's, equalized: by
one chooser, for which of several is taken hangs on single roundings."""
ORT = {
    "ort minmax/tensor": ("MinMax", False),
    "ort minmax/channel": ("MinMax", True),
    "ort percentile/channel": ("Percentile", True),
    "ort entropy/channel": ("Entropy", True),
}
ALWAYS = ("always",)
OURS: dict[str, tuple[str, ...] | None] = {
    "ours, no repair": (),
    "ours equalized, always": ALWAYS,
    "ours equalize": ("equalize",),
    "ours default": None,
}


@dataclass(frozen=True)
class Digits:
    """Images to calibrate with, and others with labels to measure with."""

    seen: np.ndarray
    fresh: np.ndarray
    labels: np.ndarray


def load_digits() -> Digits:
    arrays = np.load(ROOT / "models" / "digits_test.npz")
    x, labels = arrays["x"], arrays["labels"]
    return Digits(x[:CALIBRATION], x[CALIBRATION:], labels[CALIBRATION:])


def sabotaged(model: onnx.ModelProto, seed: int, width: float) -> onnx.ModelProto:
    """Returns a chain of products and ReLUs with its hidden channels scaled."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    held = {tensor.name: tensor for tensor in changed.graph.initializer}
    products = [n for n in changed.graph.node if n.op_type in ("Conv", "Gemm")]
    rng = np.random.default_rng(seed)
    factor = None
    for node in products:
        weight = numpy_helper.to_array(held[node.input[1]]).astype(np.float64)
        bias = numpy_helper.to_array(held[node.input[2]]).astype(np.float64)
        depthwise = node.op_type == "Conv" and weight.shape[1] == 1 and weight.shape[0] > 1
        tail = (1,) * (weight.ndim - 2)
        if factor is not None:
            inverse = 1 / factor
            along = (-1, 1) if depthwise and factor.size > 1 else (1, -1)
            weight = weight * inverse.reshape(*along, *tail)
        if node is not products[-1]:
            factor = 10 ** rng.uniform(-width, width, weight.shape[0])
            weight, bias = weight * factor.reshape(-1, 1, *tail), bias * factor
        for name, array in ((node.input[1], weight), (node.input[2], bias)):
            held[name].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    return changed


def logits(path: Path, x: np.ndarray) -> np.ndarray:
    """Returns what onnxruntime computes, graph optimizations disabled."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x})[0]
    return np.asarray(found).astype(np.float64)


def figures(digits: Digits, reference: np.ndarray, path: Path) -> tuple[float, float]:
    """Returns top-1 in percent and SQNR in dB."""
    got = logits(path, digits.fresh)
    noise = np.sum((got - reference) ** 2)
    ratio = np.inf if not noise else 10 * np.log10(np.sum(reference**2) / noise)
    return 100 * float(np.mean(got.argmax(1) == digits.labels)), float(ratio)


def by_onnxruntime(source: Path, out: Path, digits: Digits, method: str, per_channel: bool) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.samples = iter([{"input": digits.seen[i : i + 1]} for i in range(CALIBRATION)])

        def get_next(self) -> Any:
            return next(self.samples, None)

    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(out),
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
        calibrate_method=CalibrationMethod[method],
    )


def by_us(source: Path, out: Path, digits: Digits, repair: tuple[str, ...] | None) -> list[Any]:
    """Quantizes; returns the scales of the weights in order."""
    import qdqbridge
    from qdqbridge.autoquant.profiling.collect import prepared
    from qdqbridge.autoquant.quantize import QuantizeOptions, quantized
    from qdqbridge.autoquant.repair.equalize import equalized

    graph = qdqbridge.load(source)
    options = QuantizeOptions() if repair is None else QuantizeOptions(repair=repair)
    if repair == ALWAYS:
        graph = equalized(prepared(graph), {})[0]
        options = QuantizeOptions(chooser="mse", repair=())
    found = quantized(graph, {"input": digits.seen}, options)
    qdqbridge.save(found.graph, out, overwrite=True)
    return [p.scale for w, p in found.decision.weights.items() if w.index == 1]


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Silences onnxruntime's remarks about files it wrote itself."""
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(None):
        yield
    logging.disable(logging.NOTSET)


def measured(name: str, seeds: int, folder: Path) -> list[str]:
    """Prints the table of one network; returns what misses its limits."""
    digits, missed = load_digits(), []
    model = onnx.load(ROOT / "models" / f"{name}_float.onnx")
    reference = logits(ROOT / "models" / f"{name}_float.onnx", digits.fresh)
    known: list[Any] = []
    plain_ratio = 0.0
    for width, runs in ((0, 1), (1, seeds), (2, seeds)):
        rows: dict[str, list[tuple[float, float]]] = {}
        for seed in range(runs):
            source, out = folder / "source.onnx", folder / "out.onnx"
            onnx.save(sabotaged(model, seed, width), source)
            rows.setdefault("float", []).append(figures(digits, reference, source))
            for label, (method, per_channel) in ORT.items():
                with quiet():
                    by_onnxruntime(source, out, digits, method, per_channel)
                rows.setdefault(label, []).append(figures(digits, reference, out))
            for label, repair in OURS.items():
                scales = by_us(source, out, digits, repair)
                rows.setdefault(label, []).append(figures(digits, reference, out))
                if width and repair == ("equalize",):
                    known = known or scales
                    apart = max(np.abs(a / b - 1).max() for a, b in zip(scales, known, strict=True))
                    if apart > SAME:
                        missed.append(f"{name} 10^±{width} seed {seed}: scales {apart:.1e} apart")
        title = "plain" if not width else f"10^U(-{width}, {width}), {runs} seeds"
        print(f"\n{name}, {title}")
        for label, found in rows.items():
            tops, ratios = zip(*found, strict=True)
            print(
                f"  {label:<24} top-1 {min(tops):6.2f} .. {max(tops):6.2f} %"
                f"   {min(ratios):7.2f} .. {max(ratios):7.2f} dB",
                flush=True,
            )
        if not width:
            plain_ratio = rows["ours equalized, always"][0][1]
        for label in ("ours equalize", "ours default"):
            worst = [min(column) for column in zip(*rows[label], strict=True)]
            for value, limit in zip(worst, LIMITS[name], strict=True):
                if value < limit:
                    missed.append(f"{name} {title}, {label}: {value:.2f} < {limit}")
        worst_ratio = min(ratio for _, ratio in rows["ours equalized, always"])
        if worst_ratio < plain_ratio - RESTORED:
            missed.append(f"{name} {title}: {worst_ratio:.2f} dB, plain {plain_ratio:.2f}")
    return missed


def poor(seen: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Returns samples that say little or something wrong of others, by what ails them."""
    rng = np.random.default_rng(seed)
    outlier, constant = seen[:64].copy(), seen[:64].copy()
    outlier[rng.integers(len(outlier))] *= 1000
    along = np.moveaxis(constant, FEATURES if seen.ndim > FEATURES else -1, 0)
    along[rng.permutation(len(along))[:2]] = 0
    few = seen[rng.permutation(len(seen))[:4]]
    return {"4 samples": few, "an outlier": outlier, "constant features": constant}


def calibrated_poorly(name: str, seeds: int, folder: Path) -> list[str]:
    """Prints what poor samples cost our defaults; returns what costs more than a point."""
    import qdqbridge

    digits, missed = load_digits(), []
    source, out = ROOT / "models" / f"{name}_float.onnx", folder / "out.onnx"
    reference = logits(source, digits.fresh)
    usual = figures(digits, reference, source)[0]
    tops: dict[str, list[float]] = {}
    for seed in range(seeds):
        for kind, seen in poor(digits.seen, seed).items():
            qdqbridge.save(qdqbridge.quantize(source, {"input": seen}), out, overwrite=True)
            tops.setdefault(kind, []).append(figures(digits, reference, out)[0])
    for kind, found in tops.items():
        told = f"{min(found):.2f} .. {max(found):.2f} %, float {usual:.2f}"
        print(f"{name}, {kind}: {told}", flush=True)
        if min(found) < usual - 1:
            missed.append(f"{name}, {kind}: {min(found):.2f} %")
    return missed


def spoiled(case: Case, seed: int) -> dict[str, Case]:
    """Returns a network with its samples as they are, and spoiled in every way.

    Of several inputs the first is spoiled; of a few samples all have as many.
    """
    first, *others = case.calibration
    found = {"as they are": case}
    for kind, array in poor(case.calibration[first], seed).items():
        rest = {name: case.calibration[name][: len(array)] for name in others}
        found[kind] = replace(case, calibration={first: array, **rest})
    for told, factor in (("a tenth", 0.1), ("ten times", 10.0)):
        array = case.calibration[first] * np.float32(factor)
        found[told] = replace(case, calibration=case.calibration | {first: array})
    return found


class Told(logging.Handler):
    """Remembers whether another scale was told of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.scale = False

    def emit(self, record: logging.LogRecord) -> None:
        self.scale = self.scale or "another scale" in record.getMessage()


def beside_others(folder: Path, names: list[str], seeds: int, pythons: dict[str, str]) -> list[str]:
    """Prints what spoiled samples cost us and others; returns where we lose more than a point."""
    ways = [Method(OURS_NAME, "", our_defaults), Method(ORT_NAME, "MinMax", ort("MinMax", None))]
    ways += [
        Method(tool, OTHERS[tool][0], by_other(tool, python, OTHERS[tool][0]))
        for tool, python in pythons.items()
    ]
    missed: list[str] = []
    for case in cases_in(folder, names):
        found: dict[tuple[str, str], list[Figures]] = {}
        told: dict[str, list[bool]] = {}
        for seed in range(seeds):
            for kind, spoilt in spoiled(case, seed).items():
                if seed and kind not in KINDS:
                    continue  # nothing is drawn
                with listening() as heard:
                    figures_of = row(spoilt, ways, integers).figures
                told.setdefault(kind, []).append(heard.scale)
                for way, figure in figures_of.items():
                    found.setdefault((kind, str(way)), []).append(figure)
        usual = None if case.labels is None else top1(case, results(case.path, case.measured))
        print(case.name + ("" if usual is None else f", float {usual:.2f} %"))
        for (kind, way), runs in found.items():
            ratios, tops = ([getattr(f, k) for f in runs] for k in ("decibels", "top1"))
            line = f"  {kind:<18} {way:<22} {min(ratios):7.2f} .. {max(ratios):7.2f} dB"
            if None not in tops:
                line += f"   {min(tops):6.2f} .. {max(tops):6.2f} %"
            ours = way.startswith(OURS_NAME)
            print(line + ("  scale told" if ours and any(told[kind]) else ""), flush=True)
            if ours and kind in KINDS and usual is not None and min(tops) < usual - 1:
                missed.append(f"{case.name}, {kind}: {min(tops):.2f} %")
    return missed


def our_defaults(case: Case, out: Path) -> str:
    """Quantizes with qdqbridge, whatever it logs being heard."""
    logging.disable(logging.NOTSET)
    return ours("ort", None, None)(case, out)


@contextlib.contextmanager
def listening() -> Generator[Told]:
    """Hears what is logged."""
    heard, logger = Told(), logging.getLogger("qdqbridge")
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)


def bench(
    seeds: int, networks: Path | None = None, names: list[str] | None = None,
    pythons: dict[str, str] | None = None,
) -> int:  # fmt: skip
    """Prints the tables, returns 1 where a limit is missed.

    Args:
        seeds: How often factors and samples are drawn.
        networks: A folder of trained networks, whose samples alone are spoiled.
        names: Of these; all where there is none.
        pythons: Other tools for these, and the Pythons that have them.
    """
    missed: list[str] = []
    if networks is not None:
        missed = beside_others(networks, names or [], seeds, pythons or {})
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name in LIMITS:
                missed += measured(name, seeds, Path(folder))
            print()
            for name in ("digits_mlp", "digits_cnn", "digits_mobile", "digits_attention"):
                missed += calibrated_poorly(name, seeds, Path(folder))
    print("\nlimits: " + ("; ".join(missed) if missed else "all met"))
    return 1 if missed else 0
