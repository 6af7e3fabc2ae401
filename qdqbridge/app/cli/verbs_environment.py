"""The verbs about what is here: ``doctor``, ``completion``, ``processors``, ``conformance``."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

import qdqbridge
from qdqbridge.app import hosting
from qdqbridge.app.cli import output
from qdqbridge.app.cli.parameters import Json
from qdqbridge.app.conforming import ConformanceResult
from qdqbridge.errors import QdqBridgeError
from qdqbridge.options import EngineName

# ---- The verbs ``doctor`` and ``completion``: what is installed here, and the shell's help -------


_PACKAGES = {
    "numpy": "", "onnx": "", "onnxruntime": "", "apache-tvm": "relax", "tflite": "tflite",
    "matplotlib": "plots", "ray": "ray", "torch": "torch",
}  # fmt: skip
"""What is looked for, and the extra that installs it."""
_COMPILERS = ("cc", "c++", "clang", "aarch64-linux-gnu-g++", "arm-none-eabi-gcc")


def doctor(*, json: Json = False) -> None:
    """Show what is installed here: packages, engines, compilers, and what this CPU saturates."""
    packages = {name: _version(name) for name in _PACKAGES}
    hosts = [host for host in ("relax", "relay") if has_host(host)]
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


def has_host(host: str) -> bool:
    """True where TVM is installed, with Relax or with Relay."""
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
            kind.python()
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


# ---- verbs processors ----------------------------------------------------------------------------
# The verb ``processors``: which classes of processors have kernels, and what a library needs.


Library = Annotated[
    Path | None, Parameter(help="A compiled .so: what it needs is shown, and if this CPU has it.")
]


def processors(library: Library = None, /, *, json: Json = False) -> None:
    """Show the classes of processors that compiled models have kernels for, best ones first.

    The class of this machine is marked; other processors run kernels of LLVM's plain vectors.
    """
    if library is not None:
        found = hosting.library_needs(library)
        if json:
            output.show_json({"library": str(library), **found})
            return
        lacking = ", ".join(found["missing"])
        output.show_text(f"needs {', '.join(found['features'])}")
        output.show_text(f"this CPU lacks {lacking}" if lacking else "this CPU has all of it")
        return
    rows = hosting.processors()
    if json:
        output.show_json({"processors": rows})
        return
    table = Table("class", "here", "processors and their dot product", "LLVM's features", box=None)
    for row in rows:
        here = "yes" if row["host"] else ""
        table.add_row(row["name"], here, row["about"], " ".join(row["features"]))
    output.show(table)


# ---- verbs conformance ---------------------------------------------------------------------------
# The verb ``conformance``: an engine on small models of which ONNX's text says what is right.


TestedEngine = Annotated[
    Literal[
        "interpreter",
        "tvm",
        "tvm-importer",
        "onnxruntime-basic",
        "onnx.reference",
        EngineName,
    ],
    Parameter(help="What runs the cases."),
]
Only = Annotated[str, Parameter(help="A part of the names of cases, or a pattern with *.")]


Exported = Annotated[
    bool, Parameter(help="Give it what its export profile makes of each case.", negative=())
]


def conformance(
    *,
    engine: TestedEngine = "interpreter",
    only: Only = "*",
    exported: Exported = False,
    json: Json = False,
) -> int:
    """Run an engine on small models whose exact results ONNX's text says.

    Each case is equal, within the text's freedom, wrong, refused or crashed. Exits with 1 if any is
    wrong or crashed.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET
    from qdqbridge.app.conforming import OUTCOMES, conform, engine_version

    with output.progress(f"running {engine}") as report:
        results = list(conform(engine, only, report, exported=exported))
    counts = Counter(result.outcome for result in results)
    if json:
        totals = {outcome: counts[outcome] for outcome in OUTCOMES}
        output.show_json(
            {
                "engine": engine,
                "version": engine_version(engine),
                "counts": totals,
                "cases": [_shown(each) for each in results],
            }
        )
        return NOT_MET if counts["wrong"] + counts["crashed"] else DONE
    table = Table("situation", *OUTCOMES, "first of them", box=None)
    for situation in dict.fromkeys(result.situation for result in results):
        own = [result for result in results if result.situation == situation]
        of = Counter(result.outcome for result in own)
        bad = [f"{r.name}: {r.cause}" for r in own if r.outcome in OUTCOMES[2:]]
        table.add_row(situation, *(str(of[o] or "") for o in OUTCOMES), *bad[:1])
    table.add_row("all", *(str(counts[outcome]) for outcome in OUTCOMES))
    output.show(table)
    return NOT_MET if counts["wrong"] + counts["crashed"] else DONE


def _shown(result: ConformanceResult) -> dict[str, str]:
    """Returns a result without the arrays that it was judged by."""
    return {name: value for name, value in asdict(result).items() if name != "computed"}
