"""What quantizing takes: CPU seconds and peak memory, ``scripts/bench cost --folder FOLDER``.

Every network of ``quantization_networks.py`` (and of ``small_language_model.py train``, whose files
may lie in the same folder) is quantized with the defaults by a fresh process that has one core, so
that its CPU seconds are those that a user waits there, whatever else the machine does. What it
imports on the way is counted. ``--beside CHECKOUT`` measures another checkout in turn, and says
whether both quantize to the same digest.

``--processors`` makes the table of what is delivered: the networks of ``models/`` and of the
folder, what ``quantize`` says of each, what its file gives in a default session of onnxruntime on
other samples, on this processor and on x86 with AVX2 and without VNNI (under qemu-user, where this
one has it), and CPU seconds and peak memory beside onnxruntime's ``quantize_static`` (MinMax).
``--given 32 --draw 1`` gives that many of all samples, drawn, and measures on 128 others.
``--here`` leaves the emulated processor out. ``--preset fast`` is another preset of ``quantize``.
The package's compiled files are used, as where it is installed: what compiling it takes is not
counted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from bench_networks import MEASURED, ROOT, Case, cases, cases_in, results
from bench_quantize_tools import quantize_static

OURS, STATIC = "ours", "quantize_static"


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        seconds: Of CPU, from the start of the process on.
        megabytes: Peak memory of the process, in MiB.
        digest: Of the quantized graph.
        told: What is said of the outputs.
    """

    seconds: float
    megabytes: float
    digest: str = ""
    told: str = ""

    def least(self, other: Cost) -> Cost:
        """Returns the shorter of two runs; the rest of the machine only ever adds."""
        return self if self.seconds <= other.seconds else other


def measured(case: Case, tool: str, out: Path | None, preset: str) -> Cost:
    """Quantizes a network in this process, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    logging.disable(logging.WARNING)
    if tool == STATIC:
        assert out is not None
        quantize_static(case, out, "MinMax", ("QUInt8", "QInt8"), per_channel=True)
        return _so_far()
    import qdqbridge
    from qdqbridge.app.quantizing import quantization

    made = quantization(case.path, case.calibration, preset=preset)
    shown = made.delivered()
    assert shown is not None
    low, high = shown.likely or (shown.expected, shown.expected)
    if out is not None:
        qdqbridge.save(made.graph, out, overwrite=True)
    told = f"{shown.expected:.1f} ({low:.0f} to {high:.0f}) | {shown.metrics.sqnr:.1f}"
    return replace(_so_far(), digest=made.graph.digest, told=told)


def _so_far() -> Cost:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def cost(
    case: Drawn, checkout: Path, tool: str = OURS, out: Path | None = None, preset: str = "balanced"
) -> Cost:
    """Quantizes a network in a process of its own with the code of a checkout."""
    options = ["--tool", tool, *([] if out is None else ["--out", str(out)])]
    if preset != "balanced":  # an older checkout has none
        options += ["--preset", preset]
    return Cost(**_asked(case, options, checkout))


@dataclass(frozen=True)
class Drawn(Case):
    """A network with samples that are drawn of all.

    Attributes:
        given: How many; 0 for those that there are to calibrate with.
        draw: Another number draws others.
    """

    given: int = 0
    draw: int = 0

    @staticmethod
    def of(case: Case, given: int, draw: int) -> Drawn:
        """Returns a network with so many samples to calibrate with, and 128 to measure with."""
        seen, fresh = case.calibration, case.measured
        if given:
            every = {name: np.concatenate([seen[name], fresh[name]]) for name in seen}
            count = len(next(iter(every.values())))
            order = np.random.default_rng(draw).permutation(count)[: given + MEASURED]
            seen = {name: array[order[:given]] for name, array in every.items()}
            fresh = {name: array[order[given:]] for name, array in every.items()}
        return Drawn(case.name, case.path, seen, fresh, None, given, draw)


def _asked(case: Drawn, options: Sequence[str], checkout: Path, start: Sequence[str] = ()) -> Any:
    """Returns what this file says of a network, run by itself."""
    command = [*start, sys.executable, __file__, "--only", case.name, *options]
    if case.path.parent != ROOT / "models":
        command += ["--folder", str(case.path.parent)]
    if case.given:
        command += ["--given", str(case.given), "--draw", str(case.draw)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def delivered(case: Case, file: Path) -> float:
    """Returns what a file gives in a default session of onnxruntime on other samples, in dB."""
    wanted, found = (
        results(path, case.measured, optimized=path == file) for path in (case.path, file)
    )
    shares = [
        float(np.sum((y - z) ** 2) / np.sum(y**2)) for y, z in zip(wanted, found, strict=True)
    ]
    return float(-10 * np.log10(np.mean(shares)))


def show(case: Case, found: Sequence[Cost]) -> None:
    """Prints what a network took, this checkout first."""
    row = "; ".join(f"{each.seconds:6.1f} s {each.megabytes:6.0f} MiB" for each in found)
    same = len({each.digest for each in found}) == 1
    print(f"{case.name:<16}{row}" + ("" if same else "  other digests"), flush=True)


def show_delivered(case: Drawn, rounds: int, preset: str, *, emulated: bool) -> None:
    """Prints a row of the table of what is delivered."""
    from qdqbridge.targets.engines.processors import start_without_vnni

    with tempfile.TemporaryDirectory() as folder:
        file, other = Path(folder) / "made.onnx", Path(folder) / "static.onnx"
        runs = [
            [cost(case, ROOT, tool, out, preset) for _ in range(rounds)]
            for tool, out in ((OURS, file), (STATIC, other))
        ]
        ours, static = (reduce(Cost.least, each) for each in runs)
        starts = (
            (file, ()),
            (file, start_without_vnni("bench") if emulated else None),
            (other, ()),
        )
        here, there, theirs = (
            "" if start is None else f"{_asked(case, ['--deliver', str(path)], ROOT, start):.1f}"
            for path, start in starts
        )
    print(
        f"| {case.name} | {ours.told} | {here} | {there} | {theirs} | "
        f"{ours.seconds:.1f} | {static.seconds:.1f} | {ours.megabytes:.0f} | "
        f"{static.megabytes:.0f} |",
        flush=True,
    )


def _cases(
    folder: Path | None, networks: Sequence[str], given: int = 0, draw: int = 0
) -> Iterator[Drawn]:
    held = cases(networks, 0) if folder is None else cases_in(folder, networks)
    return (Drawn.of(case, given, draw) for case in held)


def main(given: Sequence[str]) -> int:
    """Measures networks of a folder, in turn."""
    parser = argparse.ArgumentParser(prog="bench cost", description=__doc__)
    parser.add_argument("networks", nargs="*", help="names; by default all there are")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--processors", action="store_true", help="print what is delivered")
    parser.add_argument("--here", action="store_true", help="the same on this processor alone")
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=2, help="the shortest of so many runs counts")
    parser.add_argument("--given", type=int, default=0, help="samples; by default the first ones")
    parser.add_argument("--draw", type=int, default=0, help="which of all samples these are")
    parser.add_argument("--preset", default="balanced", choices=("balanced", "full", "fast"))
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--tool", default=OURS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--deliver", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    drawn = arguments.given, arguments.draw
    if arguments.only is not None:
        case = next(_cases(arguments.folder, [arguments.only], *drawn))
        if arguments.deliver is not None:
            print(json.dumps(delivered(case, arguments.deliver)))
        else:
            made = measured(case, arguments.tool, arguments.out, arguments.preset)
            print(json.dumps(vars(made)))
        return 0
    if arguments.processors or arguments.here:
        names = [path.stem for path in sorted((ROOT / "models").glob("digits_*_float.onnx"))]
        named = [name for name in names if name in (arguments.networks or names)]
        own = _cases(None, named, *drawn) if named else ()
        others = _cases(arguments.folder, arguments.networks, *drawn) if arguments.folder else ()
        columns = "network printed left-out here without-VNNI theirs s theirs MiB theirs"
        print(f"| {' | '.join(columns.split())} |")
        for case in chain(own, others):
            show_delivered(case, arguments.rounds, arguments.preset, emulated=arguments.processors)
        return 0
    if arguments.folder is None:
        parser.error("--folder is needed without --processors or --here")
    checkouts = [ROOT, *([arguments.beside] if arguments.beside else [])]
    for case in _cases(arguments.folder, arguments.networks, *drawn):
        preset = arguments.preset
        found = [cost(case, checkout, preset=preset) for checkout in checkouts]
        for _ in range(arguments.rounds - 1):
            found = [
                each.least(cost(case, checkout, preset=preset))
                for each, checkout in zip(found, checkouts, strict=True)
            ]
        show(case, found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
