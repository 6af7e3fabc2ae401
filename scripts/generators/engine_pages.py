"""Writes a page per runtime: what its engine takes, what it computes wrongly, how we write it.

Run as ``python scripts/generators/engine_pages.py``; with ``--check`` it only says whether the
pages are current. Everything on them comes from ``tests/targets/engines/patterns_*.csv``
(``engine_patterns.py``), ``models_*.csv`` (``engine_models.py``), ``winml_*.csv``
(``winml_tables.py``) and from the rules of the export profiles.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from qdqbridge.onnx_io.runtime.products import PRODUCTS_OF_BYTES
from qdqbridge.targets.profiles import PROFILES
from qdqbridge.targets.profiles.ort.pairs import CONVOLUTIONS

ROOT = Path(__file__).resolve().parents[2]
TABLES, PAGES = ROOT / "tests" / "targets" / "engines", ROOT / "docs"
LIMIT = 2
TYPES = ("u8", "s8", "u16", "s16")


class Runtime(NamedTuple):
    """A page.

    Attributes:
        engine: Whose table.
        title: Of the page.
        about: What the figures are of, in Markdown.
        profile: The export profile; empty where there is none.
        export: What writes files for it.
    """

    engine: str
    title: str
    about: str
    profile: str
    export: str

    @property
    def page(self) -> Path:
        """The file."""
        return PAGES / f"engine_{self.engine.replace('-', '_')}.md"


RUNTIMES = (
    Runtime(
        "qnn-htp",
        "QDQ models on Qualcomm's Hexagon NPU",
        "All figures are for the **host build of the NPU's backend**, which computes on x86 what "
        "the NPU should compute; no phone was used. *Taken* means that no operator is left to "
        "the CPU.",
        "qnn",
        "export --profile qnn",
    ),
    Runtime(
        "qnn-htp-v73",
        "QDQ models on Hexagon v73 and later",
        "All figures are for the **host build of the NPU's backend**, configured for v73 (provider "
        "option `htp_arch`); v75, v79 and v81 had the same numbers. [v68's results for the same "
        "models](engine_qnn_htp.md) differ only in 16-bit products: from v73 on these are off by "
        "some 256 units of scale x * scale w, whatever they sum and however the result is encoded, "
        "so that results with 200 times that scale or more are right. The export writes 8-bit "
        "weights in the smallest scale that they allow, and 16-bit weights as two of 8 bits.",
        "qnn-v73",
        "export --profile qnn-v73",
    ),
    Runtime(
        "openvino",
        "QDQ models on OpenVINO",
        "All figures are for the CPU plugin on x86 with AVX-512. *Taken* means that every layer "
        "between DequantizeLinear and QuantizeLinear runs on integers, according to the runtime "
        "model. The rest is computed in float32, correctly unless the table says otherwise.",
        "openvino",
        "export --profile openvino",
    ),
    Runtime(
        "onnxruntime-optimized",
        "QDQ models on onnxruntime, as users run it",
        "All figures are for onnxruntime's CPU kernels on x86 with all graph optimizations on. "
        "*Taken* means that every operator between DequantizeLinear and QuantizeLinear became an "
        "integer operator. The rest is computed in float, correctly except for products with a "
        "dequantized matrix whose activation does not have 8 bits. These become MatMulNBits, which "
        "rounds the activation to 8 bits at run time (rule `rounded-activation`).",
        "ort",
        "export --profile ort",
    ),
    Runtime(
        "onnxruntime-web",
        "QDQ models on onnxruntime-web",
        "All figures are for the WebAssembly build of browsers with all graph optimizations, in "
        "Node. It says nothing of what it makes of a model, so *taken* means that it runs.",
        "ort",
        "export --profile ort",
    ),
    Runtime(
        "onnxruntime-avx2",
        "QDQ models on onnxruntime without VNNI",
        "All figures are for onnxruntime's CPU kernels on x86 with AVX2 and without VNNI, emulated "
        "by QEMU (Haswell), with all graph optimizations. It takes what it takes [with "
        "VNNI](engine_onnxruntime_optimized.md), but adds products of uint8 by int8 in pairs of 16 "
        "bits, which saturate. Rule `pairs-fit` is true of each file that is wrong, and of some "
        "whose weights would let pairs saturate that these data do not reach. What `quantize` "
        "makes avoids such pairs; these patterns have weights of the whole range.",
        "ort",
        "export --profile ort",
    ),
    Runtime(
        "onnxruntime-arm",
        "QDQ models on onnxruntime for 64-bit Arm",
        "All figures are for onnxruntime's CPU kernels, under QEMU (Neoverse N1), with all graph "
        "optimizations. Unlike [on x86](engine_onnxruntime_optimized.md) int8 activations become "
        "integer operators too: rule `element-types` is of x86 only. Products are exact.",
        "ort",
        "export --profile ort",
    ),
    Runtime(
        "litert",
        "QDQ models on LiteRT",
        "All figures are for LiteRT's own CPU kernels on x86, without a delegate. The models are "
        "QDQ ONNX files with integer inputs and outputs, which LiteRT cannot read, so the figures "
        "are for the files that `export -o model.tflite` writes. *Not written* are models with "
        "16-bit inputs or outputs that have a zero point: LiteRT has only symmetric 16-bit "
        "kernels, and the export says so by name. [How its kernels round](tflite.md) is known "
        "bit for bit; a 16-bit Softmax in its own scale uses tables, and the export says how far "
        "that is off.",
        "",
        "export -o model.tflite",
    ),
    Runtime(
        "tosa",
        "QDQ models as TOSA",
        "All figures are for TOSA's reference model, which computes what the specification says, "
        "bit for bit. The models are QDQ ONNX files with integer inputs and outputs; they become "
        "TFLite, and Arm's converter makes [TOSA](tosa.md) of that. *Not written* are models with "
        "16-bit inputs or outputs that have a zero point.",
        "",
        "export -o model.tosa",
    ),
)


TOSA = """\
## Cycles of Ethos-U

`vela --verbose-performance` (5.2) of the digits CNN (s8s8, `--io int8`). A RESCALE behind a
product costs nothing; the three around an ADD become operators of their own, and a MEAN becomes
two sums with transposes.

| | TFLite | TOSA | RESCALEs of the ADD | MEAN |
|---|---|---|---|---|
| Ethos-U55-128 | 34,720 | 51,245 | 16,384 (4 MUL, 2 ADD) | 768, then 877 |
| Ethos-U85-256 | 14,754 | 28,118 | 9,088, and 2,592 that TFLite's ADD fuses | 1,562, then 3,748 |

## What RESCALE adds

`python scripts/benches/tosa_choice.py models/digits_cnn_float.onnx models/digits_mlp_float.onnx`:
decibels that RESCALE adds to a plan's, mean and deviation over plans from 120 draws of samples.
What it adds on 24 given samples says nothing of what it adds on 160 others, so a search that
computed it would choose by chance: `quantize --target tosa` rounds floats.

| network | given samples | others | correlation | of both decibels, others |
|---|---|---|---|---|
| digits_cnn_float | -0.05 ± 0.33 | -0.01 ± 0.11 | 0.04 | 0.992 |
| digits_mlp_float | 0.00 ± 0.08 | 0.00 ± 0.04 | 0.00 | 1.000 |

## Tables of 16 bits

TOSA's TABLE of 16 bits has 513 integers, and lines between them. How far that is from the nearest
integers depends on the range (-R to R) of the operand: LSB at most, with the converter's entries,
with the nearest ones, and with any.

| R | 2 | 4 | 8 | 16 |
|---|---|---|---|---|
| Sigmoid | 2, 1, 1 | 2, 1, 1 | 2, 1, 1 | 4, 2, 1 |
| Tanh | 2, 1, 1 | 4, 2, 1 | 6, 4, 2 | 13, 13, 9 |

So no table brings a Tanh of more than ±4 to 1 LSB. The converter fills tables as TFLite does, with
a correction that costs a Sigmoid 1 LSB. A GATHER of 65,536 integers would be exact; Ethos-U55 and
U65 have none."""


def rows(engine: str) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the comments of a table, and its rows."""
    lines = (TABLES / f"patterns_{engine}.csv").read_text("utf-8").splitlines()
    comments = [line[2:] for line in lines if line.startswith("#")]
    return comments, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def verdict(each: Sequence[dict[str, str]], prefix: str) -> str:
    """Returns one cell: how many are taken and right, and the largest difference."""
    if not each:
        return "–"
    taken = [row for row in each if row[f"{prefix}taken"] == "yes"]
    refused = sum(row[f"{prefix}taken"] == "refused" for row in each)
    left = [int(row[f"{prefix}lsb"] or 0) for row in each if row[f"{prefix}taken"] == "no"]
    off = [steps for steps in left if steps > LIMIT]
    rough = f"{len(off)} not taken and wrong, up to {max(off)} LSB" if off else ""
    if not taken:
        return "not written" if refused == len(each) else rough or "not taken"
    worst = max(int(row[f"{prefix}lsb"]) for row in taken)
    right = sum(int(row[f"{prefix}lsb"]) <= LIMIT for row in taken)
    share = "" if len(taken) == len(each) else f"{len(taken)} of {len(each)} taken"
    wrong = "" if right == len(taken) else f"{len(taken) - right} wrong, up to {worst} LSB"
    return ", ".join(filter(None, (share, wrong, rough))) or f"taken, {worst} LSB"


def grid(found: Sequence[dict[str, str]], prefix: str) -> list[str]:
    """Returns the lines of a table: operators by types."""
    lines = [f"| operator | {' | '.join(TYPES)} |", "|---" * (len(TYPES) + 1) + "|"]
    for operator in dict.fromkeys(row["operator"] for row in found):
        of = [row for row in found if row["operator"] == operator]
        cells = (verdict([row for row in of if row["dtype"] == t], prefix) for t in TYPES)
        lines.append(f"| {operator} | {' | '.join(cells)} |")
    return lines


def clamps(found: Sequence[dict[str, str]], prefix: str) -> list[str]:
    """Returns the lines of a table: forms of clamps by zero points, 8 bits, products."""
    zeros = tuple(dict.fromkeys(row["zero"] for row in found))
    eight = [row for row in found if row["dtype"] in ("u8", "s8") and row["bias"] != "-"]
    lines = [f"| clamp | {' | '.join(zeros)} |", "|---" * (len(zeros) + 1) + "|"]
    for clamp in dict.fromkeys(row["clamp"] for row in found):
        of = [row for row in eight if row["clamp"] == clamp]
        cells = (verdict([row for row in of if row["zero"] == zero], prefix) for zero in zeros)
        lines.append(f"| {clamp} | {' | '.join(cells)} |")
    return lines


def words(found: Sequence[dict[str, str]], prefix: str) -> list[str]:
    """Returns the lines of a table: what the engine says where it does not take a file."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in found:
        if row[f"{prefix}taken"] in ("no", "refused") and row[f"{prefix}words"]:
            counts[_general(row[f"{prefix}words"]), row["operator"]] += 1
    said: dict[str, list[str]] = {}
    for (text, operator), number in counts.most_common():
        said.setdefault(text.replace("|", "/"), []).append(f"{operator} {number}")
    lines = ["| in its words | operators, patterns |", "|---|---|"]
    return lines + [f"| {text} | {', '.join(listed)} |" for text, listed in said.items()]


def _general(words: str) -> str:
    """Returns what is said without the names and numbers that are the model's."""
    refused = _REFUSED.match(words)
    if refused is None:
        return words.partition("'")[0].strip()
    return re.sub(r"zero point -?\d+", "a zero point", words[refused.end() :].partition(";")[0])


_REFUSED = re.compile(r"\w+ \(\d+, '[^']*'\): '[^']*' ")


def page(runtime: Runtime) -> str:
    """Returns a page."""
    comments, found = rows(runtime.engine)
    first = next(each for each in RUNTIMES if each.profile == runtime.profile)
    own, written = (
        sum(r[f"{prefix}taken"] == "yes" and int(r[f"{prefix}lsb"]) <= LIMIT for r in found)
        for prefix in ("", "export_")
    )
    if runtime.profile:
        right = f"Unchanged, {own} of the {len(found)} are taken and right"
        exported = f"as `{runtime.export}` writes them {written}"
    else:
        right = f"{written} of the {len(found)} are written, taken and right"
        refused = sum(row["export_taken"] == "refused" for row in found)
        exported = f"{refused} are not written"
    parts = [
        f"# {runtime.title}",
        f"Which of {len(found)} small models {comments[0]} takes, and what it computes from them, "
        f"measured by `{comments[1]}`. "
        "This page is written by `scripts/generators/engine_pages.py`.",
        runtime.about,
        f"{right} (at most {LIMIT} LSB from the numbers that the file means); {exported}.",
    ]
    if runtime.profile:
        parts += ["## As producers write them", "\n".join(grid(found, ""))]
    whole = TABLES / f"models_{runtime.engine}.csv"
    if whole.exists():
        parts += ["## Whole models, by producer", *producers(whole)]
    if (TABLES / f"winml_{runtime.engine}.csv").exists():
        parts += ["## Beside what winml-cli measured", *measured(runtime.engine)]
    prefix = "" if runtime.profile else "export_"
    parts += [
        f"## As `{runtime.export}` writes them",
        "\n".join(grid(found, "export_")),
        "## Clamps after 8-bit products, by the position of the zero point",
        "`relu` and `clip` act on the float result; `q-…` follow a Q/DQ pair and are followed by "
        "another QuantizeLinear.",
        "\n".join(clamps(found, prefix)),
        f"## What {'it refuses, in its words' if runtime.profile else 'is not written, and why'}",
        "\n".join(words(found, prefix)),
    ]
    if runtime.profile and runtime != first:
        parts += [f"The rules are on the page of [`{first.engine}`]({first.page.name})."]
    elif runtime.profile:
        parts += [f"## The rules of `--profile {runtime.profile}`", "\n".join(rules(runtime))]
    if runtime == first and runtime.profile == "ort":
        parts += ["## Which products saturate, by processor", SATURATE, "\n".join(saturating())]
    if runtime.engine == "tosa":
        parts += [TOSA]
    return "\n\n".join(parts) + "\n"


WHOLE = (
    "By `scripts/engines/engine_models.py ENGINE FOLDER --out TABLE` and `--by-producer TABLE`: "
    "*run* is "
    "how many of the *files* run; *floats* how many of their *products* are computed in float; "
    "*equal* how many of the *samples* have the interpreter's argmax; *within* how many files have "
    "no operator more than 2 LSB off; *lsb* is the largest difference."
)


def producers(table: Path) -> list[str]:
    """Returns what a table of whole models is of, and its lines."""
    lines = table.read_text(encoding="utf-8").splitlines()
    files = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    head, *rest = list(csv.reader(line for line in lines if not line.startswith("#")))
    rows = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest)]
    ours = "" if "--by-producer" in files else f" {WHOLE}"
    return [f"{files}{ours}", "\n".join(rows)]


MEASURED = (
    "The wheel of Microsoft's winml-cli (MIT) contains tables of what an NPU takes, measured on a "
    "device with an older runtime: one operator between DequantizeLinear and QuantizeLinear, with "
    "scale 1 and zero point 0 throughout. `scripts/engines/winml_tables.py` builds the model of "
    "each row "
    "with the wheel's own generator and compares it with the rules below that say *refused* or "
    "*elsewhere*; the tables do not cover numerical differences. Where rule and table differ, the "
    "host build is asked, without graph optimizations (as the tables were made) and as users run "
    "it. Models that differ only in the opset are asked about once."
)
CAUSES = {
    "another runtime": "the host build agrees with the rules; the table's runtime, or the device, "
    "does not",
    "another opset": "the same, and the tables themselves disagree about the same model at "
    "another opset",
    "graph optimizations": "left out by onnxruntime's graph optimizations, which the tables are "
    "without",
    "rules": "the host build agrees with the table, not with the rules",
    "not asked": "the host build was not asked",
}


def measured(engine: str) -> list[str]:
    """Returns what the tables of others are, how far they agree, and why they do not."""
    lines = (TABLES / f"winml_{engine}.csv").read_text("utf-8").splitlines()
    comments = [line[2:] for line in lines if line.startswith("#")]
    found = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    whole, same = (sum(int(row[name]) for row in found) for name in ("rows", "agree"))
    causes = {name: sum(int(row[name]) for row in found) for name in CAUSES}
    ours = causes["rules"] + causes["not asked"]
    sums = ["| rows | share | |", "|---|---|---|"]
    sums += [f"| {same} | {100 * same / whole:.2f} % | rule and table agree |"]
    sums += [
        f"| {causes[name]} | {100 * causes[name] / whole:.2f} % | {text} |"
        for name, text in CAUSES.items()
        if causes[name]
    ]
    listed = [
        f"| operator | rows | agree | {' | '.join(CAUSES)} |",
        "|---" * (3 + len(CAUSES)) + "|",
    ]
    listed += [
        f"| {row['operator']} | {row['rows']} | {agreement(row)} | {' | '.join(shown(row))} |"
        for row in found
    ]
    right = f"{whole - ours} of the {whole} rows ({100 * (whole - ours) / whole:.2f} %)"
    return [
        f"{MEASURED} ({'; '.join(comments)}.)",
        f"In {right} the rules agree with the table or with the host build:",
        "\n".join(sums),
        "\n".join(listed),
        "Each class of disagreement, with the words of the host build, is in "
        f"`tests/targets/engines/winml_classes_{engine}.csv`.",
    ]


def agreement(row: dict[str, str]) -> str:
    """Returns how many of an operator's rows agree."""
    return f"{100 * int(row['agree']) / int(row['rows']):.1f} %"


def shown(row: dict[str, str]) -> list[str]:
    """Returns the rows of each cause, empty where there are none."""
    return [row[name] if row[name] != "0" else "" for name in CAUSES]


SATURATE = (
    "Of uint8 by int8; operands are counted from 0. Between Q and DQ, Conv, Gemm and MatMul become "
    "the first three, and int8 activations that one operator reads become uint8. uint8 by uint8, "
    "int8 by int8 and MatMulNBits are exact everywhere. Measured on 1.32: 10,260 values of "
    "108 nodes of all signs, in 2,452 of which pairs saturate with AVX2, on a processor with AMX, "
    "under `qemu-x86_64 -cpu Haswell` and `-cpu Nehalem`, `qemu-aarch64 -cpu neoverse-n1` and "
    "`-cpu max,sve=off`: each value is what is predicted. AVX-512 without VNNI was read in the "
    "source."
)


def saturating() -> list[str]:
    """Returns the lines of a table: operators on bytes, and where their pairs saturate."""
    kinds = ("SSE4.1", "AVX2, AVX-512 without VNNI", "VNNI, AMX", "64-bit Arm")
    lines = [f"| operator | int8 operand | uint8 operand | {' | '.join(kinds)} |", "|---" * 7 + "|"]
    for name, operands in PRODUCTS_OF_BYTES.items():
        signed = ", ".join(str(index) for index, _ in operands.signed)
        unsigned = "made by it" if operands.unsigned is None else str(operands.unsigned[0])
        alone = "; exact of one channel to one" if name in CONVOLUTIONS else ""
        cells = ("exact", f"pairs saturate{alone}", "exact", "exact")
        lines.append(f"| {name} | {signed} | {unsigned} | {' | '.join(cells)} |")
    return lines


def rules(runtime: Runtime) -> list[str]:
    """Returns the lines of a table: the rules of the export profile."""
    lines = ["| rule | applies to | what happens | do | source |", "|---|---|---|---|---|"]
    return lines + [
        f"| {r.name} | {r.applies_to} | {r.effect.value} | {r.fix} | {r.source} |"
        for r in PROFILES[runtime.profile].rules
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [r for r in RUNTIMES if not r.page.exists() or r.page.read_text("utf-8") != page(r)]
    for runtime in stale:
        if not check:
            runtime.page.write_text(page(runtime), "utf-8")
        print(f"{runtime.page.name} {'is not current' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
