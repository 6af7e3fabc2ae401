"""The import rule of the design: graph <- ops <- its users <- pipeline, hosting <- cli."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.syntax import FILES, PACKAGE, tree

LEVELS = {
    "control_characters": -1,
    "errors": 0,
    "options": 0,
    "graph": 1,
    "arguments": 2,
    "ops": 2,
    "canonical": 3,
    "text": 3,
    "onnx_io": 4,
    "qnn": 4,
    "report": 4,
    "tflite_io": 5,
    "viewer": 5,
    "engines": 6,
    "relax": 6,
    "relay": 6,
    "byoc": 7,
    "autoquant": 7,
    "attribution": 8,
    "hosting": 8,
    "sources": 9,
    "pipeline": 10,
    "judging": 11,
    "profiling": 11,
    "viewing": 11,
    "quantizing": 12,
    "__init__": 13,
    "cli": 14,
    "__main__": 15,
}
ALLOWED = {
    "onnx": {"onnx_io"},
    "onnx_graphsurgeon": {"onnx_io"},
    "tflite": {"tflite_io"},
    "flatbuffers": {"tflite_io"},
    "onnxruntime_qnn": {"engines"},
    "openvino": {"engines"},
    "ai_edge_litert": {"engines"},
    "tvm": {"qnn", "relax", "relay", "byoc"},
    "cyclopts": {"cli"},
    "rich": {"cli", "report"},
}
WITHOUT_TVM = ("emit", "layout", "read", "ranges", "__init__")
"""Parts of ``qnn`` that have to work without TVM; ``qnn.dialect`` is what needs it."""


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yields the modules a file imports, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide the layer"
            yield node.module or ""
            if node.module == "qdqbridge":
                yield from (f"qdqbridge.{alias.name}" for alias in node.names)


def violations(path: Path) -> list[str]:
    here, found = part(path), []
    for module in imports(path):
        top, _, rest = module.partition(".")
        if top in ALLOWED and here not in ALLOWED[top]:
            found.append(f"{here} imports {top}")
        if top != "qdqbridge":
            continue
        there = rest.partition(".")[0] or "__init__"
        if there in LEVELS and here != there and LEVELS[there] >= LEVELS[here]:
            found.append(f"{here} imports {there}")
    return found


def test_imports_run_downwards():
    assert {str(path): found for path in FILES if (found := violations(path))} == {}


def test_what_hosts_share_needs_no_tvm():
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] == "qnn" and parts[1].removesuffix(".py") in WITHOUT_TVM:
            used = {module.partition(".")[0] for module in imports(path)}
            assert "tvm" not in used, path
            assert not any(m.startswith("qdqbridge.qnn.dialect") for m in imports(path)), path


def test_every_part_has_a_level():
    assert {part(path) for path in FILES} <= LEVELS.keys()


def test_the_rule_finds_violations(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "graph").mkdir()
    bad = tmp_path / "graph" / "bad.py"
    bad.write_text("def f():\n    import tvm.relax\n    from qdqbridge.canonical import rule\n")
    assert violations(bad) == ["graph imports tvm", "graph imports canonical"]
