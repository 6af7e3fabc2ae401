"""The verbs ``doctor`` and ``completion``: what is installed here, and the shell's help."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from shutil import which
from typing import Literal

from rich.table import Table
from rich.text import Text

import qdqbridge
from qdqbridge.app.cli import output
from qdqbridge.app.cli.parameters import Json
from qdqbridge.errors import QdqBridgeError

_PACKAGES = {
    "numpy": "", "onnx": "", "onnxruntime": "", "apache-tvm": "relax", "tflite": "tflite",
    "matplotlib": "plots", "ray": "ray", "torch": "torch",
}  # fmt: skip
"""What is looked for, and the extra that installs it."""
_COMPILERS = ("cc", "c++", "clang", "aarch64-linux-gnu-g++", "arm-none-eabi-gcc")


def doctor(*, json: Json = False) -> None:
    """Show what is installed here: packages, engines, compilers, and what this CPU saturates."""
    packages = {name: _version(name) for name in _PACKAGES}
    hosts = [host for host in ("relax", "relay") if _has_host(host)]
    engines, compilers, processor = _engines(), {n: which(n) for n in _COMPILERS}, _processor()
    if json:
        output.show_json({
            "qdqbridge": qdqbridge.__version__, "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}", "packages": packages,
            "tvm": hosts, "engines": engines, "compilers": compilers, "processor": processor,
        })  # fmt: skip
        return
    table = Table(show_header=False, box=None)
    table.add_row("qdqbridge", f"{qdqbridge.__version__}, Python {platform.python_version()}")
    table.add_row("platform", f"{platform.system()} {platform.machine()}")
    for name, extra in _PACKAGES.items():
        fix = f"not installed: pip install 'qdqbridge[{extra}]'" if extra else "not installed"
        table.add_row(name, Text(packages[name] or fix))
    table.add_row("TVM has", Text(", ".join(hosts) or "neither Relax nor Relay"))
    for name, missing in engines.items():
        table.add_row(f"engine {name}", Text(missing or "here"))
    for name, path in compilers.items():
        table.add_row(f"compiler {name}", Text(path or "not on the PATH"))
    for name, text in processor.items():
        table.add_row(name, Text(text))
    output.show(table)


def completion(shell: Literal["bash", "zsh", "fish"] = "bash", /) -> None:
    """Print the completion script of a shell: eval "$(qdqbridge completion bash)"."""
    from qdqbridge.app.cli.verbs import app

    sys.stdout.write(app.generate_completion(prog_name="qdqbridge", shell=shell))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _has_host(host: str) -> bool:
    return find_spec("tvm") is not None and find_spec(f"tvm.{host}") is not None


def _engines() -> dict[str, str | None]:
    """Returns why an engine cannot run here, by name; None where it can."""
    from qdqbridge.targets.engines.kinds import ENGINES

    found: dict[str, str | None] = {}
    for name, kind in ENGINES.items():
        missing = kind.missing()
        if missing:
            found[name] = f"not installed: {kind.install}"
            continue
        try:
            kind.start()
            found[name] = None
        except QdqBridgeError as error:
            found[name] = error.what
    return found


def _processor() -> dict[str, str]:
    from qdqbridge.onnx_io.runtime.products import saturates

    found = {"processor": platform.processor() or platform.machine()}
    if sys.platform == "linux" and platform.machine() == "x86_64":
        from qdqbridge.targets.engines.processors import processor

        own = processor()
        features = {"AVX2": own.avx2, "VNNI": own.vnni, "AMX": own.amx}
        has = ", ".join(name for name, there in features.items() if there)
        found["processor"] = f"{own.brand} ({has or 'none of AVX2, VNNI, AMX'})"
    said = "pairs of uint8 and int8 saturate at 16 bits: quantize with --avoid-pairs"
    found["onnxruntime"] = said if saturates() else "products of uint8 and int8 are exact"
    return found
