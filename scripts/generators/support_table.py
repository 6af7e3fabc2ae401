"""Writes the table of Relax's operators and what ``from_relax`` makes of them.

Run as ``python scripts/generators/support_table.py``; with ``--check`` it only says whether the
table is current. What TVM has is listed by TVM; what we have are the rows of the reader, and the
ONNX operators named in the code of a row are what it can become.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import onnx
import tvm
from tvm import ir, relax  # noqa: F401 (registers the operators)

sys.path.insert(0, str(Path(__file__).parents[2]))

from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.tvm.qnn.read.rules.activations import RELAX
from qdqbridge.tvm.relax.read.calls import _NAMES
from qdqbridge.tvm.relax.read.module import ROWS
from scripts.generators.generated_page import main

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "qdqbridge" / "tvm" / "relax" / "README.md"
_BEGIN, _END = "<!-- support table -->", "<!-- end of the support table -->"
_ONNX = {schema.name for schema in onnx.defs.get_all_schemas()}
_OURS = {"Dense": "Gemm", "quantize": "QuantizeLinear", "dequantize": "DequantizeLinear"}

_REASONS: tuple[tuple[str, str], ...] = (
    (r"call_tir$", "only loop nests that a frontend generates and that are known by their shape"),
    (r"(call_tir_|vm\.|memory\.|builtin\.|call_builtin)", "made by lowering; read before it"),
    (r"call_|invoke_|make_closure", "calls a function that the module does not hold"),
    (r"(dist|ccl)\.", "several devices; ONNX has one"),
    (r"grad\.|.*nll_loss|.*cross_entropy|collapse_sum", "training; ONNX files are for inference"),
    (r"inspect\.|hint_on_device|to_vdevice|wrap_param|null_value", "about memory and devices"),
    (r"print|assert_op", "has an effect beside its result"),
    (r"vision\.(roi_align|all_class)", "no row yet"),
    (r"vision\.|nn\.attention_var_len|layout_transform", "no ONNX operator computes the same"),
    (r"atan2|cumprod|median|bucketize|multinomial", "no ONNX operator computes the same"),
)
_ELSE = "no row yet"
_FOLLOWED = ("qdqbridge.core.ops.", "qdqbridge.tvm.qnn.read.parameters")
"""Modules beside a row's own whose functions make nodes for it."""

Row = Callable[..., Any]


def operators() -> list[str]:
    """Returns Relax's operators, without the prefix."""
    names = (str(name) for name in ir.Op.list_op_names())
    return sorted(name.removeprefix("relax.") for name in names if name.startswith("relax."))


def becomes(name: str) -> list[str] | None:
    """Returns the ONNX operators that an operator can become, None where it has no row."""
    row = ROWS.get(_NAMES.get(name, name))
    return None if row is None else list(dict.fromkeys([*_named(row, set(), 2), *_ended_by(name)]))


def _ended_by(name: str) -> Iterator[str]:
    """Yields the operators that hosts and frontends write out with this one as the last step."""
    steps = {row.name for row in OPERATORS if row.tvm == name}
    for row in OPERATORS:
        if any(form.pattern[0] in steps for form in row.forms):
            yield row.name
    for rule in RELAX:
        if rule.ops is not None and rule.ops & steps:
            yield from _named(inspect.unwrap(rule.apply), set(), 1)


def _named(part: Any, seen: set[int], depth: int) -> Iterator[str]:
    """Yields ONNX operators named in a function, in what it encloses and in what it calls."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, str):
        name = _OURS.get(part, part)
        if name in _ONNX:
            yield name
    elif isinstance(part, Operator):
        yield from _named(part.name, seen, depth)
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _named(item, seen, depth)
    elif inspect.isfunction(part):
        yield from _of_function(part, seen, depth)


def _of_function(function: Any, seen: set[int], depth: int) -> Iterator[str]:
    for cell in function.__closure__ or ():
        yield from _named(cell.cell_contents, seen, depth)
    yield from _of_code(function.__code__, seen)
    if not depth:
        return
    for name in _globals(function.__code__):
        known = function.__globals__.get(name)
        near = str(getattr(known, "__module__", "")).startswith((function.__module__, *_FOLLOWED))
        if isinstance(known, Operator) or (inspect.isfunction(known) and near):
            yield from _named(known, seen, depth - 1)


def _of_code(code: CodeType, seen: set[int]) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant, seen)
        elif isinstance(constant, str) and len(constant) < 40:
            yield from (n for n in [_OURS.get(constant, constant)] if n in _ONNX)


def _globals(code: CodeType) -> list[str]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [*code.co_names, *(name for c in inner for name in _globals(c))]


def reason(name: str) -> str:
    """Returns why an operator without a row has none."""
    return next((why for pattern, why in _REASONS if re.match(pattern, name)), _ELSE)


def table() -> str:
    """Returns the table."""
    names = operators()
    found = {name: becomes(name) for name in names}
    count = sum(result is not None for result in found.values())
    lines = [
        f"{count} of the {len(names)} operators of Relax {_version()} are read.", "",
        "| Relax operator | read | what its row can make of it, or why not |", "|---|---|---|",
    ]  # fmt: skip
    for name in names:
        result = found[name]
        made = "none: a constant, or its operand" if result == [] else ", ".join(result or ())
        said = reason(name) if result is None else made
        lines.append(f"| `{name}` | {'no' if result is None else 'yes'} | {said} |")
    return "\n".join(lines)


def _version() -> str:
    return ".".join(tvm.__version__.split(".")[:2])


def page() -> str:
    """Returns the page with the table as it should be."""
    text = TABLE.read_text("utf-8")
    head, _, rest = text.partition(_BEGIN)
    return f"{head}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    sys.exit(main(TABLE, page, __doc__))
