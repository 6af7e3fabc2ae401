"""The import rules: a room imports what lies below it, and parts of a room have an order too."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.syntax import FILES, PACKAGE, tree

ROOMS = ("core", "onnx_io", "tflite_io", "targets", "tvm", "autoquant", "app")
"""From the ground up."""
BELOW_ROOMS, ABOVE_ROOMS = ("control_characters", "errors", "options"), ("__init__", "__main__")
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "core": (
        ("graph",), ("arguments", "ops"), ("rewrite", "text", "layout"), ("canonical",),
    ),
    "targets": (
        ("profiles", "comparison", "encodings", "conformance"), ("running", "engines"), ("tosa",),
    ),
    "tvm": (("qnn",), ("relax", "relay"), ("byoc",)),
    "app": (
        ("report",), ("viewer",), ("hosting",), ("sources",), ("pipeline",),
        ("judging", "profiling", "viewing", "verdict"),
        ("quantizing", "conforming"), ("fixing",), ("cli",),
    ),
}  # fmt: skip
"""Parts of a room, from the ground up; parts of one row do not import each other."""
ALLOWED = {
    "onnx": {"onnx_io", "targets"},
    "onnx_graphsurgeon": {"onnx_io"},
    "onnxruntime_qnn": {"targets"},
    "openvino": {"targets"},
    "tflite": {"tflite_io"},
    "flatbuffers": {"tflite_io"},
    "ai_edge_litert": {"targets"},
    "iree": {"targets"},
    "tvm": {"tvm"},
    "cyclopts": {"app"},
    "rich": {"targets", "app"},
}
CORE_NEEDS = {"numpy", "ml_dtypes", "qdqbridge"}
WITHOUT_TVM = ("emit", "read", "ranges", "__init__")
"""Parts of ``tvm.qnn`` that have to work without TVM; ``qnn.dialect`` is what needs it."""


def imports(path: Path) -> Iterator[str]:
    """Yields the modules a file imports, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide the layer"
            yield node.module or ""
            if node.module in ("qdqbridge", *(f"qdqbridge.{room}" for room in ROOMS)):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def level(room: str) -> int:
    if room in BELOW_ROOMS:
        return -1
    return ROOMS.index(room) if room in ROOMS else len(ROOMS)


def row(room: str, part: str) -> int:
    """Returns how high a part stands in its room; a room's own face stands above its parts."""
    rows = PARTS.get(room, ())
    return next((index for index, parts in enumerate(rows) if part in parts), len(rows))


def violations(path: Path) -> list[str]:
    here = path.relative_to(PACKAGE).with_suffix("").parts
    found: list[str] = []
    for module in imports(path):
        top, *there = module.split(".")
        if top in ALLOWED and here[0] not in ALLOWED[top]:
            found.append(f"{here[0]} imports {top}")
        if here[0] == "core" and top not in CORE_NEEDS | sys.stdlib_module_names:
            found.append(f"core imports {top}")
        if top != "qdqbridge" or not there:
            continue
        if level(there[0]) > level(here[0]):
            found.append(f"{here[0]} imports {there[0]}")
        if there[0] != here[0] or len(there) == 1 or here[1:2] == tuple(there[1:2]):
            continue
        if row(there[0], there[1]) >= row(here[0], here[1]) and here[0] in PARTS:
            found.append(f"{'.'.join(here[:2])} imports {'.'.join(there[:2])}")
    return found


def test_imports_run_downwards():
    assert {str(path): found for path in FILES if (found := violations(path))} == {}


def test_what_hosts_share_needs_no_tvm():
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        if parts[:2] == ("tvm", "qnn") and parts[2].removesuffix(".py") in WITHOUT_TVM:
            used = list(imports(path))
            assert "tvm" not in {module.partition(".")[0] for module in used}, path
            assert not any(m.startswith("qdqbridge.tvm.qnn.dialect") for m in used), path


def test_every_file_is_in_a_room():
    tops = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in FILES}
    assert tops == {*BELOW_ROOMS, *ROOMS, *ABOVE_ROOMS}


def test_the_parts_of_rooms_are_there():
    for room, rows in PARTS.items():
        parts = {each.stem for each in (PACKAGE / room).iterdir() if each.suffix in ("", ".py")}
        assert parts - {"__init__", "__pycache__"} == {part for parts in rows for part in parts}


def test_every_room_has_a_page():
    assert [room for room in ROOMS if not (PACKAGE / room / "README.md").is_file()] == []


def test_the_rule_finds_violations(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    bad = tmp_path / "core" / "graph" / "bad.py"
    bad.parent.mkdir(parents=True)
    lines = ("import tvm.relax", "from qdqbridge.core.ops import x", "from qdqbridge.app import y")
    bad.write_text("\n".join(lines))
    assert violations(bad) == [
        "core imports tvm",
        "core imports tvm",
        "core.graph imports core.ops",
        "core imports app",
        "core imports app",
    ]
