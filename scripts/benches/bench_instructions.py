"""Executed instructions of a run on processors that are not this machine's, one thread, under qemu.

``scripts/bench instructions --arm FOLDER [NETWORK ...]``: networks of ``bench run`` (see there), as
compiled for a 64-bit Arm processor, in onnxruntime on the same file, and in LiteRT with XNNPACK on
our TFLite export of it. FOLDER is what ``scripts/arm_python FOLDER`` makes, a Python for 64-bit
Arm; the wheels of apache-tvm, apache-tvm-ffi and ai-edge-litert for it (``pip download --platform
manylinux_2_28_aarch64 --no-deps``) have to be unpacked into ``FOLDER/site``. ``--x86`` does the
same for an x86 processor without VNNI (Haswell), with the engines of this environment (LiteRT is
not among them, OpenVINO is with ``--openvino``). Counts are those of count_instructions.c, of the
third run, and do not depend on what else the machine does. They are not time: a miss in a cache is
not in them, and instructions do not all take as long.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from bench_microcontroller import plugin
from bench_run import KINDS, feeds, quantize
from run_networks import NETWORKS

import qdqbridge as qb
from qdqbridge.targets.engines.processors import HASWELL

HERE = Path(__file__).parent
WHOLE = ("resnet18", "resnet50", "mobilenet", "unet", "bert2x256")
_SECONDS = 3600
"""Longest run of a program."""


@dataclass(frozen=True)
class Machine:
    """A processor that QEMU has.

    Attributes:
        target: What ours are compiled for.
        qemu: The command that runs its programs, without the plugin.
        compiler: Of C++.
        site: The folder of its Python packages.
        python: The interpreter.
    """

    target: Mapping[str, Any]
    qemu: Sequence[str]
    compiler: str
    site: Path
    python: str

    def counts(self, program: Sequence[str], counter: Path) -> dict[str, int]:
        """Returns the instructions of the last run of each file that a program names."""
        command = [self.qemu[0], "-plugin", str(counter), *self.qemu[1:], *program]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
        found: dict[str, int] = {}
        for part in re.split(r"^file: ", done.stderr, flags=re.MULTILINE)[1:]:
            name, _, rest = part.partition("\n")
            marks = re.findall(r"since the mark before: (\d+)", rest)
            found[name] = int(marks[3])
        return found


def arm(folder: Path, cpu: str, llvm: str) -> Machine:
    """Returns a 64-bit Arm processor by the names of QEMU and of LLVM."""
    target: dict[str, Any] = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": llvm}
    if "+" in llvm:
        target |= {"mcpu": "generic", "mattr": llvm.split(",")}
    root = folder / "root"
    libraries = root / "usr/lib/aarch64-linux-gnu"
    packages = folder / "site"
    paths = f"{libraries}:{packages}/tvm/lib:{packages}/tvm_ffi/lib"
    qemu = [
        "qemu-aarch64", "-cpu", cpu, "-L", str(root), "-E", "TVM_NUM_THREADS=1", "-E",
        "OMP_NUM_THREADS=1", "-E", f"PYTHONPATH={packages}", "-E", f"LD_LIBRARY_PATH={paths}",
    ]  # fmt: skip
    python = str(root / "usr/bin/python3.11")
    return Machine(target, qemu, "aarch64-linux-gnu-g++", packages, python)


def x86() -> Machine:
    """Returns an x86 processor without VNNI, with the packages of this environment."""
    found = find_spec("tvm")
    assert found is not None and found.origin is not None
    site = Path(found.origin).parents[1]
    paths = f"{site}/tvm/lib:{site}/tvm_ffi/lib"
    qemu = [
        "qemu-x86_64", "-cpu", HASWELL, "-E", "TVM_NUM_THREADS=1", "-E", f"LD_LIBRARY_PATH={paths}",
    ]  # fmt: skip
    return Machine({"kind": "llvm", "mcpu": "haswell"}, qemu, "g++", site, sys.executable)


def loader(machine: Machine, folder: Path) -> Path:
    """Returns the program that runs a library, built in a folder."""
    program = folder / f"marked_runs-{machine.compiler}"
    if not program.exists():
        subprocess.run(
            [
                machine.compiler, "-std=c++17", "-O1", str(HERE / "marked_runs.cc"), "-o",
                str(program), f"-I{machine.site}/tvm_ffi/include", f"-L{machine.site}/tvm_ffi/lib",
                "-ltvm_ffi", f"-L{machine.site}/tvm/lib", "-ltvm_runtime",
                "-Wl,--allow-shlib-undefined",
            ],
            check=True, timeout=600,
        )  # fmt: skip
    return program


def ours(machine: Machine, file: Path, folder: Path, counter: Path) -> tuple[int, float]:
    """Returns the instructions of a run of ours, and CPU seconds of compiling."""
    began = time.process_time()
    executable = qb.compile(qb.load(file), machine.target, threads=1)
    seconds = time.process_time() - began
    library, data = folder / f"{file.stem}.so", folder / f"{file.stem}.bin"
    executable.save(library)
    (array,) = feeds(file).values()
    np.ascontiguousarray(array, np.float32).tofile(data)
    program = [str(loader(machine, folder)), str(library), str(data), *map(str, array.shape)]
    return machine.counts(program, counter)[str(library)], seconds


def engines(machine: Machine, files: Sequence[str], counter: Path) -> dict[str, int]:
    """Returns the instructions of a run of files in their engines."""
    return machine.counts([machine.python, str(HERE / "marked_runs.py"), *files], counter)


def main(argv: Sequence[str]) -> int:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(prog="bench instructions", description=__doc__)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--arm", type=Path, help="the folder of scripts/arm_python")
    parser.add_argument("--cpu", default="neoverse-n1", help="QEMU's model of the Arm processor")
    parser.add_argument("--llvm", help="LLVM's name of it, or what it has: +neon,+dotprod,+i8mm")
    parser.add_argument("--x86", action="store_true", help="x86 without VNNI instead")
    parser.add_argument("--openvino", action="store_true", help="OpenVINO too, with --x86")
    parser.add_argument("--ours", action="store_true", help="nobody else's")
    parser.add_argument("--folder", type=Path, help="where networks are kept between runs")
    given = parser.parse_args(argv)
    if given.arm is None and not given.x86:
        parser.error("give --arm FOLDER or --x86")
    machine = x86() if given.x86 else arm(given.arm.resolve(), given.cpu, given.llvm or given.cpu)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        counter = plugin(folder)
        other = "OpenVINO" if given.x86 else "LiteRT"
        print(f"| network | ours | onnxruntime | {other} | ours over the better | compiled in |")
        print("|---|---|---|---|---|---|")
        for name in given.networks or WHOLE:
            for kind in given.kinds:
                print(_row(machine, name, kind, folder, counter, given), flush=True)
    return 0


def _row(
    machine: Machine, name: str, kind: str, folder: Path, counter: Path, given: argparse.Namespace
) -> str:
    import onnx

    real, file = folder / f"{name}.onnx", folder / f"{name}_{kind}.onnx"
    if not file.exists():
        onnx.save(NETWORKS[name](), real)
        quantize(real, file, kind)
    own, seconds = ours(machine, file, folder, counter)
    others: dict[str, int] = {}
    if not given.ours:
        files = [str(file)]
        if given.openvino:
            files.append(f"openvino={file}")
        elif not given.x86:
            exported = file.with_suffix(".tflite")
            qb.save(qb.load(file), exported, overwrite=True)
            files.append(str(exported))
        others = engines(machine, files, counter)
    counts = [*others.values(), None, None][:2]
    told = ["–" if count is None else f"{count / 1e6:.1f} M" for count in counts]
    ratio = f"{own / min(others.values()):.2f}" if others else "–"
    return f"| {name} {kind} | {own / 1e6:.1f} M | {' | '.join(told)} | {ratio} | {seconds:.1f} s |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
