"""Float networks quantized by us, by onnxruntime and by NNCF: ``scripts/bench quantize``.

Every method gets the same calibration samples; what is measured are other samples. All quantized
files run in onnxruntime with graph optimizations disabled, which computes what they say. Figures
are output SQNR in dB and, where there are labels, top-1 in percent.

NNCF is run by a Python of its own, for it may want other versions of our libraries:
``python -m venv nncf; nncf/bin/pip install nncf onnx onnxruntime`` and ``--nncf nncf/bin/python``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # where NNCF's Python runs this file

from bench_networks import Array, Case, cases, modern, results

ORT_METHODS = ("MinMax", "Percentile", "Entropy")
PRESETS = ("mixed", "performance")
WITHIN = 0.1
"""How far below the best of onnxruntime's methods we may be, in dB."""
OURS, ORT, NNCF = "ours", "onnxruntime", "NNCF"
FLOAT = "float"


@dataclass(frozen=True)
class Figures:
    """What a quantized file is like, or why there is none."""

    decibels: float = float("-inf")
    top1: float | None = None
    seconds: float = 0.0
    remark: str = ""


@dataclass(frozen=True)
class Method:
    """A way to quantize: ``run(case, out)`` writes a file and returns what there is to remark."""

    tool: str
    name: str
    run: Callable[[Case, Path], str]

    def __str__(self) -> str:
        return f"{self.tool} {self.name}".strip()


@dataclass(frozen=True)
class Row:
    """The figures of one network by method."""

    case: Case
    top1: float | None
    figures: Mapping[Method, Figures] = field(default_factory=dict[Method, Figures])

    def best(self, *tools: str) -> float:
        """Returns the largest SQNR that a tool reaches."""
        found = [f.decibels for m, f in self.figures.items() if m.tool in tools]
        return max(found, default=float("-inf"))

    @property
    def ours(self) -> float:
        """The SQNR of the first of our methods."""
        return next(f.decibels for m, f in self.figures.items() if m.tool == OURS)


# ---- methods ------------------------------------------------------------------------------------


def ours(target: str, chooser: str | None) -> Callable[[Case, Path], str]:
    """Returns what quantizes with qdqbridge."""

    def run(case: Case, out: Path) -> str:
        import qdqbridge

        graph = qdqbridge.quantize(case.path, case.calibration, target=target, chooser=chooser)
        qdqbridge.save(graph, out, overwrite=True)
        return ""

    return run


def by_onnxruntime(method: str) -> Callable[[Case, Path], str]:
    """Returns what quantizes with onnxruntime: uint8 activations, int8 weights per channel."""

    def run(case: Case, out: Path) -> str:
        try:
            quantize_static(case, out, method, per_channel=True)
        except ValueError:  # 1.31 cannot compare scales per channel with that of a bias
            quantize_static(case, out, method, per_channel=False)
            return "per tensor; it fails per channel"
        return ""

    return run


def quantize_static(case: Case, out: Path, method: str, *, per_channel: bool) -> None:
    """Quantizes with onnxruntime."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            ((name, array),) = case.calibration.items()
            self.samples = iter([{name: array[i : i + 1]} for i in range(len(array))])

        def get_next(self) -> Any:
            return next(self.samples, None)

    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(str(modern(case.path, out.parent)), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared),
        str(out),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=per_channel,
        calibrate_method=quantization.CalibrationMethod[method],
    )


def by_nncf(python: str, preset: str) -> Callable[[Case, Path], str]:
    """Returns what quantizes with NNCF in another Python."""

    def run(case: Case, out: Path) -> str:
        data, model = out.with_suffix(".npz"), modern(case.path, out.parent)
        np.savez(data, **case.calibration)  # pyright: ignore[reportArgumentType]
        command = [python, __file__, str(model), str(data), str(out), preset]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "failed")
        return done.stdout.strip().splitlines()[-1]

    return run


def nncf_job(model: str, data: str, out: str, preset: str) -> str:
    """Quantizes with NNCF; runs in the Python that has it."""
    import nncf  # pyright: ignore[reportMissingImports]
    import onnx

    ((name, array),) = dict(np.load(data)).items()
    dataset: Any = nncf.Dataset([{name: array[i : i + 1]} for i in range(len(array))])
    for fast in (False, True):
        try:
            quantized: Any = nncf.quantize(
                onnx.load(model),
                dataset,
                preset=nncf.QuantizationPreset[preset.upper()],
                subset_size=len(array),
                fast_bias_correction=fast,
            )
        except Exception:  # NNCF raises what it likes: the fast correction works of more models
            if fast:
                raise
        else:
            onnx.save(quantized, out)
            return "fast bias correction; the full one fails" if fast else "full bias correction"
    raise AssertionError


def methods(
    target: str, choosers: Sequence[str], nncf: str | None, *, others: bool
) -> list[Method]:
    """Returns what quantizes; ours first."""
    found = [Method(OURS, c, ours(target, None if c == "default" else c)) for c in choosers]
    if others:
        found += [Method(ORT, name, by_onnxruntime(name)) for name in ORT_METHODS]
        found += [Method(NNCF, preset, by_nncf(nncf, preset)) for preset in PRESETS if nncf]
    return found


# ---- measuring ----------------------------------------------------------------------------------


def row(case: Case, ways: Sequence[Method]) -> Row:
    """Returns the figures of one network by method."""
    reference = results(case.path, case.measured)
    found: dict[Method, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            out, start = Path(folder) / "quantized.onnx", time.perf_counter()
            try:
                with quiet():
                    remark = way.run(case, out)
                seconds = time.perf_counter() - start
                got = results(out, case.measured)
            except Exception as error:  # whatever another tool raises is a result
                found[way] = Figures(remark=" ".join(str(error).split())[:160])
                continue
            found[way] = Figures(decibels(reference, got), top1(case, got), seconds, remark)
    return Row(case, top1(case, reference), found)


def decibels(reference: Array, other: Array) -> float:
    """Returns the SQNR of ``other``."""
    noise = float(np.sum((reference - other) ** 2))
    return float("inf") if not noise else 10 * np.log10(float(np.sum(reference**2)) / noise)


def top1(case: Case, outputs: Array) -> float | None:
    """Returns the share of right classes in percent, where there are labels."""
    if case.labels is None:
        return None
    return 100 * float(np.mean(outputs.argmax(1) == case.labels))


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """Keeps warnings and chatter of other tools from the table."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), open(os.devnull, "w") as sink:
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            yield
    logging.disable(logging.NOTSET)


# ---- the table ----------------------------------------------------------------------------------


def show(found: Row) -> None:
    """Prints the figures of one network."""
    accuracy = "" if found.top1 is None else f", float top-1 {found.top1:.2f} %"
    print(f"{found.case.name}{accuracy}")
    for method, figures in found.figures.items():
        number = f"{figures.decibels:7.2f} dB" if np.isfinite(figures.decibels) else "    no file"
        accuracy = "" if figures.top1 is None else f"  top-1 {figures.top1:6.2f} %"
        print(f"    {method!s:<24}{number}{accuracy}  {figures.seconds:6.1f} s  {figures.remark}")
    margin = found.ours - found.best(ORT, NNCF)
    if np.isfinite(margin):
        print(f"    ours over the best of the others: {margin:+.2f} dB")
    sys.stdout.flush()


def as_json(rows: Sequence[Row]) -> str:
    """Returns the figures for programs."""
    return json.dumps(
        {
            found.case.name: {
                "float top-1": found.top1,
                **{
                    str(m): {"dB": f.decibels, "top-1": f.top1, "seconds": f.seconds}
                    for m, f in found.figures.items()
                },
            }
            for found in rows
        },
        indent=1,
    )


def bench(networks: Sequence[str], seed: int, ways: Sequence[Method], out: Path | None) -> int:
    """Prints the tables.

    Args:
        networks: Names; all where there is none.
        seed: Of the drawn pictures.
        ways: Methods.
        out: A file for the figures.

    Returns:
        1 where onnxruntime is better than we are by more than 0.1 dB.
    """
    rows: list[Row] = []
    for case in cases(networks, seed):
        rows.append(row(case, ways))
        show(rows[-1])
    if out is not None:
        out.write_text(as_json(rows))
    below = [r.case.name for r in rows if r.ours < r.best(ORT, NNCF)]
    missed = [r.case.name for r in rows if r.ours < r.best(ORT) - WITHIN]
    print("below the best of the others: " + (", ".join(below) or "none"))
    print(f"below onnxruntime by more than {WITHIN} dB: " + (", ".join(missed) or "none"))
    return 1 if missed else 0


if __name__ == "__main__":
    print(nncf_job(*sys.argv[1:]))
