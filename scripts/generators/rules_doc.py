"""Writes docs/rules.md: every set of rules of the rewriter, with the text cases of its room.

Run as ``python scripts/generators/rules_doc.py``; with ``--check`` it only says whether the page
is current.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from qdqbridge.autoquant.attribution.common_form import (
    dense_bias,
    matrix_is_dense,
    split_is_slices,
)
from qdqbridge.autoquant.planning import batch_norms
from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical.form import RULES, rules_with
from qdqbridge.core.canonical.linear import parts_of_one_product
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.rules import ENCODINGS
from qdqbridge.onnx_io.reading.older_operators import OLDER
from qdqbridge.onnx_io.writer import fused
from qdqbridge.targets.profiles.hexagon import legalizations as hexagon
from qdqbridge.targets.profiles.openvino import reductions
from qdqbridge.targets.profiles.ort import legalizations as ort
from qdqbridge.tflite_io.writer import expansion, rules
from qdqbridge.tflite_io.writer.rules import ethos
from qdqbridge.tvm.byoc.rewrites import NAMED, named, rules_for
from qdqbridge.tvm.qnn.read import CALLS
from qdqbridge.tvm.qnn.read.rules import FROM_RELAX, FROM_RELAY, RECORDED, WHOLE
from qdqbridge.tvm.qnn.read.transposes import BEFORE_THE_CUT, BEHIND_THE_CUT
from scripts.generators.generated_page import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rules.md"
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules that are applied together.

    Attributes:
        title: What the page calls them.
        room: The room that has them; its tests hold their text cases.
        rules: In the order in which they look at a node.
        exact: Outputs keep every bit; else floats may be rounded once less, or codes once more.
        spans: They look for the operator that the spans of calls name.
        variants: They look for what the file had, which no text says.
        onnx: They look at nodes of a file: the first text is one, in ONNX's own text form.
    """

    title: str
    room: str
    rules: tuple[Rule, ...]
    exact: bool = True
    spans: bool = False
    variants: bool = False
    onnx: bool = False

    def case(self, rule: Rule) -> Path:
        """Returns where the text case of a rule is, if it has one."""
        return ROOT / "tests" / self.room / "text_cases" / f"{rule.name}.txt"


def _of_option(field: str) -> RuleSet:
    added = rules_with(ReadingOptions(**{field: True}))[: -len(RULES)]
    return RuleSet(f"Reading with `{field}`", "core/canonical", added, exact=False)


_COMMON_FORM = (split_is_slices, matrix_is_dense, dense_bias)

SETS: tuple[RuleSet, ...] = (
    RuleSet("Read from ONNX: other encodings", "onnx_io", ENCODINGS, onnx=True),
    RuleSet("Read from ONNX: older opsets", "onnx_io", OLDER, onnx=True),
    RuleSet("Canonical form", "core/canonical", RULES),
    *(_of_option(field.name) for field in dataclasses.fields(ReadingOptions)),
    RuleSet(
        "Reading with `channels_first`",
        "core/canonical",
        rules_with(ReadingOptions(), channels_first=True)[: -len(RULES)],
    ),
    RuleSet(
        "Written for others than onnxruntime, and compared with floats",
        "core/canonical",
        (parts_of_one_product,),
        exact=False,
    ),
    RuleSet("TFLite: what it requires", "tflite_io", rules.RULES, exact=False),
    RuleSet("TFLite: operators written out", "tflite_io", expansion.RULES, exact=False),
    RuleSet("Ethos-U", "tflite_io", (*ethos.WEIGHTS, *ethos.RULES), exact=False),
    RuleSet("Written for onnxruntime", "onnx_io", fused.FUSED, variants=True),
    RuleSet("Written for onnxruntime: weights left float", "targets", ort.LEGALIZATIONS),
    RuleSet("Written for Hexagon", "targets", hexagon.LEGALIZATIONS, exact=False),
    RuleSet("Written for OpenVINO", "targets", reductions.LEGALIZATIONS, exact=False),
    RuleSet("Prepared for a backend of TVM", "tvm/byoc", rules_for(named(NAMED)), exact=False),
    RuleSet("Read from TVM: calls that decide types", "tvm/qnn", CALLS, exact=False),
    RuleSet("Read from TVM, by spans", "tvm/qnn", RECORDED, exact=False, spans=True),
    RuleSet("Read from Relax", "tvm/qnn", FROM_RELAX[len(RECORDED) :], exact=False),
    RuleSet("Read from Relay", "tvm/qnn", FROM_RELAY[len(RECORDED) :], exact=False),
    RuleSet("Read from TVM: products of steps", "tvm/qnn", WHOLE, exact=False),
    RuleSet(
        "Read from TVM: around layouts", "tvm/qnn", (*BEFORE_THE_CUT, *BEHIND_THE_CUT), exact=True
    ),
    RuleSet("Quantizing: batch norms folded", "autoquant", batch_norms.FOLDS, exact=False),
    RuleSet("Comparing graphs: one form of floats", "autoquant", _COMMON_FORM, exact=False),
)
"""Every set, in the order of the page. A room that gets one adds its line here."""

_INTRODUCTION = """\
# Rules

Every rule that the rewriter (`qdqbridge/core/rewrite.py`) applies, by set, in the order in which
rules look at a node. A rule of several sets is shown once. Made by
`python scripts/generators/rules_doc.py` from the rules' docstrings and from
`tests/<room>/text_cases/`, which are tests: a rule alone makes exactly the second text of the
first. [Adding a rule](adding_a_rule.md) says how to write one.

The texts are what `qdqbridge.parse` reads (behind a first line, `qnn-raw 1`): inputs, then one node
per line with its operands, attributes and result type, then outputs.
`quant<uint8, 0.03125, 128>[n,4]` is a tensor of n times 4 stored uint8 with scale 0.03125 and zero
point 128; `range=128..255` says which codes occur; a constant is written where it is read.
Rules of reading look at the nodes of a file, before these are nodes of a graph: what stands in
front of `becomes` is a file in ONNX's text form.

What rewrites without being a rule is listed in
[the architecture](architecture.md#what-rewrites).
"""


def page() -> str:
    """Returns the page as it should be."""
    lines, shown = [_INTRODUCTION], set[str]()
    for each in SETS:
        lines += _section(each, shown)
        shown |= {rule.name for rule in each.rules}
    return "\n".join(lines).rstrip() + "\n"


def _section(each: RuleSet, shown: set[str]) -> Iterator[str]:
    yield from (f"## {each.title}", "", _about(each), "")
    for rule in each.rules:
        if rule.name in shown:
            continue
        yield from (f"### {rule.name}", "", _prose(rule), "")
        case = each.case(rule)
        if case.exists():
            before, after = case.read_text("utf-8").split("\n---\n")
            yield from ("```text", before.strip(), "```", "")
            yield from ("becomes", "", "```text", after.strip(), "```", "")


def _about(each: RuleSet) -> str:
    if each.onnx:
        return "What a node of the file means, as the nodes that are read in its place."
    if each.exact:
        return "Outputs keep every bit."
    return "Beyond what keeps every bit: floats may be rounded once less, or codes once more."


def _prose(rule: Rule) -> str:
    """Returns a rule's docstring in Markdown."""
    return _ROLE.sub(r"`\1`", (inspect.getdoc(rule.apply) or "").replace("``", "`"))


if __name__ == "__main__":
    sys.exit(main(PAGE, page, __doc__))
