"""A test that lets numbers differ says why, beside the tolerance or where it has its name."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
LOOSE = {"allclose", "assert_allclose", "isclose", "approx"}
ABOVE = 6
"""How many lines above a tolerance its reason may begin: what it is about stands between."""
REASON = re.compile(r"#(?! (noqa|fmt|type:))")


def unexplained(source: str) -> list[int]:
    """Returns the lines of tolerances that are numbers without a comment."""
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _name(node.func) in LOOSE and not _named(node):
            near = lines[max(0, node.lineno - 1 - ABOVE) : node.end_lineno]
            if not any(map(REASON.search, near)):
                found.append(node.lineno)
    return sorted(found)


def _name(expression: ast.expr) -> str:
    return getattr(expression, "attr", getattr(expression, "id", ""))


def _named(call: ast.Call) -> bool:
    """Returns whether a tolerance is a constant, whose reason stands where it is defined."""
    return any(_name(keyword.value).isupper() for keyword in call.keywords)


def test_a_tolerance_has_a_reason() -> None:
    found = {
        str(path.relative_to(TESTS)): lines
        for path in sorted(TESTS.rglob("*.py"))
        if (lines := unexplained(path.read_text("utf-8")))
    }
    assert found == {}


def test_one_without_is_found() -> None:
    assert unexplained("assert np.allclose(a, b, rtol=1e-3)  # noqa: X") == [1]
    assert unexplained("assert np.allclose(a, b, **CLOSE)") == []
    assert unexplained("# sums\nassert np.allclose(a, b)\nassert a == pytest.approx(1)") == []
