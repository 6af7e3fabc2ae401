"""Reasons stand beside what lets much pass: tolerances of tests, and wide excepts."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
LOOSE = {"allclose", "assert_allclose", "isclose", "approx"}
ABOVE = 6
"""How many lines above a tolerance its reason may begin: what it is about stands between."""
MANY = 2
"""Errors that an except may name without a word."""
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


def endless(source: str) -> list[int]:
    """Returns the lines where a program is run that may take for ever."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "subprocess.run"
        if not any(keyword.arg == "timeout" for keyword in node.keywords)
    ]


def test_a_program_that_hangs_is_ended() -> None:
    files = [*TESTS.rglob("*.py"), *(ROOT / "qdqbridge").rglob("*.py")]
    sources = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}
    run = {name: source for name, source in sources.items() if "subprocess.run" in source}
    assert run and not [name for name, source in run.items() if endless(source)]


def wide(source: str) -> list[int]:
    """Returns the lines of excepts of anything, or of many things, without a comment at them."""
    lines = source.splitlines()
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ExceptHandler) and _is_wide(node.type)
        if not any(map(REASON.search, lines[node.lineno - 2 : node.body[0].lineno]))
    ]


def _is_wide(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return len(caught.elts) > MANY or any(map(_is_wide, caught.elts))
    return caught is None or _name(caught) in {"Exception", "BaseException"}


def test_a_wide_except_has_a_reason() -> None:
    files = [*(ROOT / "qdqbridge").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted(files)
        if (lines := wide(path.read_text("utf-8")))
    }
    assert found == {}


def test_one_without_is_found() -> None:
    assert unexplained("assert np.allclose(a, b, rtol=1e-3)  # noqa: X") == [1]
    assert unexplained("assert np.allclose(a, b, **CLOSE)") == []
    assert wide("try:\n    f()\nexcept Exception:\n    pass") == [3]
    assert wide("try:\n    f()\nexcept Exception:  # of a plug-in\n    pass") == []
    assert unexplained("# sums\nassert np.allclose(a, b)\nassert a == pytest.approx(1)") == []
