"""Vela, Arm's compiler for Ethos-U, asked about a file that the writer made: NPU or CPU, and why.

Vela is the package ``ethos-u-vela``; it runs in a process of its own. What it says is read from the
tables that it writes and the warnings that it prints.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tflite_io.writer.flatbuffer import ModelRecord, OperatorRecord

# ---- Programs of other projects, which may be in an environment of their own ---------------------


_SAID = 600


def installed_program(name: str) -> str | None:
    """Returns where a program is: on the PATH, or beside this Python."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else None)


class ProgramFailedError(RuntimeError):
    """A program ended with an error; the text says which, how, and what it said.

    Attributes:
        said: All of that.
    """

    def __init__(self, name: str, code: int, said: str) -> None:
        ended = f"exit code {code}" if code > 0 else f"signal {-code}"
        words = " ".join(line for line in said.splitlines() if not line.startswith("[WARNING]"))
        own = re.sub(r'"[^"]*/(model\.\w+)"', r'"\1"', words)  # not of a scratch folder
        super().__init__(f"{name} fails ({ended}): {own[:_SAID]}")
        self.said = said


def run_program(name: str, *arguments: str, seconds: float | None = None) -> str:
    """Runs a program to its end, without this package in its way; returns what it printed.

    Args:
        name: The program; :func:`installed_program` finds it.
        arguments: Of its command line.
        seconds: How long it may take.

    Raises:
        OSError: It does not start.
        subprocess.TimeoutExpired: It does not end.
        ProgramFailedError: It ends with an error.
    """
    done = subprocess.run(
        [installed_program(name) or name, *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", check=False, timeout=seconds,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )  # fmt: skip
    if done.returncode:
        raise ProgramFailedError(name, done.returncode, done.stdout + done.stderr)
    return done.stdout


# ---- Vela asked about a file that the writer made ------------------------------------------------


ACCELERATORS = (
    "ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256", "ethos-u65-256",
    "ethos-u65-512", "ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024",
    "ethos-u85-2048",
)  # fmt: skip
_SECONDS = 1800
_WARNING = re.compile(r"^Warning \(supported operators\) operator: (\S+), ofm: '(.*)'$")
_NOT_A_REASON = ("Warning", "#", "Performance", "Original Operator", "Network summary")


@dataclass(frozen=True, slots=True)
class VelaOperator:
    """Where an operator of a file runs.

    Attributes:
        name: TFLite's name of it.
        result: The name of its first result.
        npu: It runs on the NPU.
        reason: Why it does not, in Vela's words.
        macs: Its multiplications with addition.
    """

    name: str
    result: str
    npu: bool
    reason: str
    macs: int


@dataclass(frozen=True, slots=True)
class VelaReport:
    """What Vela makes of a file.

    Attributes:
        version: Vela's version.
        accelerator: For which NPU.
        operators: Every operator of the file.
        sram: Bytes of SRAM that it uses.
        cycles: Cycles that Vela estimates for one inference.
    """

    version: str
    accelerator: str
    operators: tuple[VelaOperator, ...]
    sram: int
    cycles: int

    @property
    def macs(self) -> int:
        """The multiplications of all operators."""
        return sum(operator.macs for operator in self.operators)

    @property
    def share(self) -> float:
        """The part of the multiplications that runs on the NPU."""
        done = sum(operator.macs for operator in self.operators if operator.npu)
        return done / self.macs if self.macs else 1.0


def compiled(
    model: ModelRecord, accelerator: str = "ethos-u55-128", *, data: bytes | None = None
) -> VelaReport:
    """Compiles a file with Vela and returns what it says.

    Args:
        model: The file's tensors and operators.
        accelerator: The NPU, one of ``ACCELERATORS``.
        data: The file; by default it is made of ``model``.

    Raises:
        UnsupportedTargetError: There is no such NPU, Vela is not installed, or it fails.
    """
    if accelerator not in ACCELERATORS:
        raise UnsupportedTargetError(
            f"there is no accelerator '{accelerator}'",
            why=f"Vela knows {', '.join(ACCELERATORS)}",
            fix="use one of them",
        )
    if installed_program("vela") is None:
        raise UnsupportedTargetError(
            "asking about Ethos-U needs Vela, which is not installed",
            why="there is no program 'vela'",
            fix="pip install ethos-u-vela, or put it on the PATH from an environment of its own",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(model.tobytes() if data is None else data)
        said = _said_by_vela(
            "--accelerator-config", accelerator, "--output-dir", folder,
            "--verbose-performance", str(path),
        )  # fmt: skip
        layers = _read_vela_csv(Path(folder), "*_per-layer.csv")
        summary = next(iter(_read_vela_csv(Path(folder), "*_summary_*.csv")), {})
    return VelaReport(
        _said_by_vela("--version").strip(),
        accelerator,
        tuple(_operators(model, layers, _reasons(said))),
        round(float(summary.get("sram_memory_used", 0)) * 1024),
        round(float(summary.get("cycles_total", 0))),
    )


def _said_by_vela(*arguments: str) -> str:
    try:
        return run_program("vela", *arguments, seconds=_SECONDS)
    except ProgramFailedError as error:
        words = error.said.strip().splitlines()[-6:]
        raise UnsupportedTargetError(
            "Vela cannot compile the file",
            why="; ".join(words)[:500] or str(error),
            fix="fix open extents, or see which operators it names",
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:  # not started; not ended
        raise UnsupportedTargetError("Vela does not run", why=str(error)[:500]) from error


def _read_vela_csv(folder: Path, pattern: str) -> list[dict[str, str]]:
    for path in sorted(folder.glob(pattern)):
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    return []


def _reasons(said: str) -> dict[str, str]:
    """Returns why operators stay on the CPU, by the name of their result."""
    found: dict[str, str] = {}
    current = ""
    for line in said.splitlines():
        start = _WARNING.match(line.strip())
        if start is not None:
            current = start.group(2)
        elif not line.strip() or line.startswith(_NOT_A_REASON):
            current = ""
        elif current:
            words = line.strip().removeprefix("Reason: ").removeprefix("- ")
            found[current] = f"{found[current]} {words}" if current in found else words
    return found


def _operators(
    model: ModelRecord, layers: list[dict[str, str]], reasons: Mapping[str, str]
) -> Iterator[VelaOperator]:
    on_cpu = {layer["Name"].strip() for layer in layers if layer["Target"].strip() == "CPU"}
    for operator in model.operators:
        result = model.tensors[operator.outputs[0]].name
        stays = result in on_cpu or result in reasons
        reason = reasons.get(result, "Vela does not say why") if stays else ""
        yield VelaOperator(operator.name, result, not stays, reason, macs_of(model, operator))


def macs_of(model: ModelRecord, operator: OperatorRecord) -> int:
    """Returns the multiplications with addition of an operator; 0 for those that have none."""
    shapes: list[tuple[int, ...]] = [
        model.tensors[index].shape if index >= 0 else () for index in operator.inputs
    ]
    made = math.prod(model.tensors[operator.outputs[0]].shape)
    match operator.name:
        case "CONV_2D":
            return made * math.prod(shapes[1][1:])
        case "DEPTHWISE_CONV_2D":
            return made * math.prod(shapes[1][1:3])
        case "TRANSPOSE_CONV":
            return math.prod(shapes[2]) * math.prod(shapes[1][:3])
        case "FULLY_CONNECTED":
            return made * shapes[1][1]
        case "BATCH_MATMUL":
            return made * shapes[0][-2 if operator.fields.get("AdjX") else -1]
        case _:
            return 0
