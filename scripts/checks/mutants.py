"""Which mistakes in the package's source the tests find: each mutant is one small change of a line.

    python scripts/checks/mutants.py record DATA tests/core  # which test reaches which line, once
    python scripts/checks/mutants.py run DATA --count 500  # a table by room, DATA/mutants_SEED.csv

`record` needs the package `coverage`; run it folder by folder, each adds to DATA. `run` changes a
copy of what is committed, not the checkout, and runs the tests that reach the line: those of the
same part of the package first, then the cheapest, until one fails. The same seed gives the same
mutants as long as the source is the same; what is in the table already is not run again.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_SECONDS, _TESTS = 20.0, 300
"""What the tests of one mutant may take when nothing is wrong, and how many they are at most."""


class _Recorder:
    """Gives coverage the name of each test, and notes how long it takes."""

    def __init__(self, measured: Any) -> None:
        self.measured, self.seconds, self.failed = measured, dict[str, float](), set[str]()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.measured.switch_context(item.nodeid)
        begin = time.process_time()
        yield
        self.seconds[item.nodeid] = round(time.process_time() - begin, 3)
        self.measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def record(data: Path, arguments: list[str]) -> int:
    import coverage

    data.mkdir(parents=True, exist_ok=True)
    name = f"{len(list(data.glob('*.coverage')))}.coverage"
    measured = coverage.Coverage(str(data / name), source=["qdqbridge"], config_file=False)
    recorder = _Recorder(measured)
    measured.start()
    code = pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *arguments], [recorder])
    measured.stop()
    measured.save()
    passed = {test: s for test, s in recorder.seconds.items() if test not in recorder.failed}
    (data / name).with_suffix(".json").write_text(json.dumps(passed))
    return int(code)


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.stmt]]:
    """Yields what can be changed, how, and the statement it stands in."""

    def visit(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[ast.AST, str, ast.stmt]]:
        match node:
            case ast.Compare(ops=[op]) if type(op) in _SWAPPED:
                yield node, "compare", statement
            case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _SWAPPED:
                yield node, "operator", statement
            case ast.Constant(value=bool() | int()):
                yield node, "constant", statement
            case ast.If() | ast.While() | ast.IfExp():
                yield node, "negated", statement
            case ast.Return(value=value) if value and not isinstance(value, ast.Constant):
                yield node, "return", statement
            case ast.Call(args=[first, second, *_]) if ast.dump(first) != ast.dump(second):
                yield node, "swapped", statement
            case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
                yield node, "removed", statement
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    inner = child if isinstance(child, ast.stmt) else statement
                    yield from visit(child, inner)

    for top in tree.body:
        if not (isinstance(top, ast.If) and "TYPE_CHECKING" in ast.dump(top.test)):
            yield from visit(top, top)


def changed_source(text: str, number: int) -> str:
    """Returns the source with one of its :func:`places` changed."""
    tree = ast.parse(text)
    node: Any
    node, kind, _ = list(places(tree))[number]
    match kind:
        case "compare":
            node.ops = [_SWAPPED[type(node.ops[0])]()]
        case "operator":
            node.op = _SWAPPED[type(node.op)]()
        case "constant":
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        case "negated":
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "return":
            node.value = ast.Constant(None)
        case "swapped":
            node.args[:2] = node.args[1::-1]
        case _:  # a statement that is left out; `pass` has the fields of none
            node.__class__, node._fields = ast.Pass, ()
    return ast.unparse(ast.fix_missing_locations(tree))


def _mutants(package: Path, seed: int) -> list[tuple[str, int]]:
    """Returns every mutant as its file and its number there, in the order of this seed."""
    found = [
        (str(path.relative_to(package.parent)), index)
        for path in sorted(package.rglob("*.py"))
        for index, _ in enumerate(places(ast.parse(path.read_text())))
    ]
    random.Random(seed).shuffle(found)
    return found


class _Reach:
    """Which tests reach a line, those that are most about it and cheapest first."""

    def __init__(self, data: Path) -> None:
        from coverage import CoverageData

        self.files = [CoverageData(str(path)) for path in sorted(data.glob("*.coverage"))]
        self.seconds: dict[str, float] = {}
        for path in data.glob("*.json"):
            self.seconds |= json.loads(path.read_text())
        for file in self.files:
            file.read()

    def tests(self, source: str, lines: tuple[int, ...]) -> list[str]:
        found, imported = set[str](), False
        for file in self.files:
            for measured in (m for m in file.measured_files() if m.endswith("/" + source)):
                contexts = file.contexts_by_lineno(measured)
                # A part of a statement may have no line of its own.
                at = next((contexts[line] for line in lines if contexts.get(line)), [])
                imported |= at == [""]
                found |= set(at)
        # What runs when the package is imported is reached by all; the nearest tests are about it.
        reached = found & self.seconds.keys() or (self.seconds.keys() if imported else set())
        return sorted(reached, key=lambda test: (self._distance(source, test), self.seconds[test]))

    @staticmethod
    def _distance(source: str, test: str) -> int:
        parts = Path(source).with_suffix("").parts[1:]
        there = Path(test.partition("::")[0]).with_suffix("").parts[1:]
        return -sum(1 for a, b in zip(parts, there, strict=False) if a in b)


class _Failed:
    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(f"import of {report.nodeid}")


def _killer(copy: Path, tests: list[str], seconds: float) -> str:
    """Runs the tests in a child that has the slow libraries already; returns which one failed."""
    failed = copy.parent / "failed"
    failed.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        limit = int(30 + 4 * seconds)  # another CPU may be slower
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        log = os.open(copy.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], [_Failed(failed)])
        os._exit(int(code))
    end = time.monotonic() + 10 * (30 + 4 * seconds)
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    if not done[0]:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "time"
    if failed.exists():
        return failed.read_text()
    code = os.waitstatus_to_exitcode(done[1])
    return (
        "" if code == 0 else "time" if -code in (signal.SIGXCPU, signal.SIGKILL) else f"exit {code}"
    )


def _outcome(copy: Path, mutant: tuple[str, int], reach: _Reach, second: int) -> dict[str, Any]:
    path = copy / mutant[0]
    text, state = path.read_text(), path.stat()
    node, kind, statement = list(places(ast.parse(text)))[mutant[1]]
    lines = (getattr(node, "lineno", 0), statement.lineno)
    tests = reach.tests(mutant[0], lines)
    row = dict(file=mutant[0], number=mutant[1], line=lines[0], kind=kind, reached=len(tests))
    chosen, seconds = list[str](), 0.0
    for test in tests[:_TESTS]:
        if chosen and seconds + reach.seconds[test] > _SECONDS:
            break
        chosen, seconds = [*chosen, test], seconds + reach.seconds[test]
    row["source"] = " ".join(ast.unparse(node).split())[:100]
    if not chosen:
        return row | dict(outcome="not reached", tests=0, killer="")
    killer = ""
    try:
        path.write_text(changed_source(text, mutant[1]))
        # Bytecode goes by size and full seconds: no two mutants have the same second.
        os.utime(path, (second, second))
        for part in (chosen[:20], chosen[20:]):
            if part and not killer:
                killer = _killer(copy, part, seconds)
    finally:
        path.write_text(text)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    return row | dict(outcome="killed" if killer else "survived", tests=len(chosen), killer=killer)


def run(data: Path, under: tuple[str, ...], count: int, seed: int) -> None:
    sys.path.insert(0, "")
    for slow in ("numpy", "onnx", "onnxruntime", "ml_dtypes", "tvm", "rich"):
        __import__(slow)
    table = data / f"mutants_{seed}.csv"
    rows = list(csv.DictReader(table.open())) if table.exists() else []
    done = {(row["file"], int(row["number"])) for row in rows}
    reach = _Reach(data.resolve())
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "copy"
        copy.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", copy], input=archive.stdout, check=True)
        table = table.resolve()
        os.chdir(copy)
        # Processes that tests start have to find the changed package as well.
        os.environ["PYTHONPATH"], sys.dont_write_bytecode = str(copy), False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        mutants = [m for m in _mutants(copy / "qdqbridge", seed) if m[0].startswith(under)]
        for second, mutant in enumerate(mutants[:count], 10**9):
            if mutant not in done:
                row = _outcome(copy, mutant, reach, second)
                with table.open("a", newline="") as out:
                    writer = csv.DictWriter(out, row)
                    if not rows:
                        writer.writeheader()
                    writer.writerow(row)
                rows.append(row)
    rooms = defaultdict[str, Counter[str]](Counter)
    for row in rows:
        rooms[row["file"].split("/")[1]][row["outcome"]] += 1
    print(f"{'room':20} killed survived not reached")
    for room, each in sorted(rooms.items()):
        print(f"{room:20} {each['killed']:6} {each['survived']:8} {each['not reached']:11}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="notes which test reaches which line")
    recording.add_argument("data", type=Path)
    recording.add_argument("arguments", nargs=argparse.REMAINDER, help="what pytest is given")
    running = verbs.add_parser("run", help="runs the tests on mutants")
    running.add_argument("data", type=Path)
    running.add_argument("under", nargs="*", default=["qdqbridge/"], help="folders or files")
    running.add_argument("--count", type=int, default=500)
    running.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.verb == "record":
        return record(given.data, given.arguments)
    run(given.data, tuple(given.under), given.count, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
