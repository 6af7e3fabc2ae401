"""What engines take of small models, and what they compute from them: a table per engine.

``scripts/engines/engine_patterns.py qnn-htp`` runs every pattern of ``pattern_models.py`` twice,
as it is written and as the engine's export profile writes it, and adds a row for each to
``tests/targets/engines/patterns_qnn-htp.csv``; rows that are there are not run again. ``--random
COUNT --seed S`` runs patterns at random that are not in the table and prints where the profile's
rules are wrong about them: "kept" of what the engine refuses or computes more than 2 LSB off, and
alarms about what it takes and computes right. ``--every N`` runs one of N patterns. ``--judge``
says the same of the table, by the rules as they are now, and writes these into it. ``--facts``
runs every operator alone, of every type and of two to five axes, and writes ``hexagon.csv``, which
the rules read. Run it in the environment of ``scripts/engines_env``.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from pattern_models import FIELDS, Pattern, data, drawn, facts, model, patterns

import qdqbridge
from qdqbridge.app.pipeline import check
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import QdqBridgeError, UnsupportedTargetError
from qdqbridge.targets.engines.kinds import ENGINES, EngineKind, engine_kind
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits
from qdqbridge.targets.profiles import Effect
from qdqbridge.targets.profiles.predicates import COLUMNS as COLUMN_TYPES
from qdqbridge.targets.profiles.predicates import LEFT, REFUSED

TABLES = Path(__file__).resolve().parents[2] / "tests" / "targets" / "engines"
MORE = frozenset({"qnn-htp", "qnn-htp-v73"})
"""Engines whose tables have the further patterns."""
FACTS_FILES = {
    "qnn-htp": Path(qdqbridge.__file__).parent / "targets" / "profiles" / "hexagon.csv",
}
"""Where the package has what was measured of an engine's operators."""
FLOATS = "whole-node-unit"
LIMIT = 2
"""Steps that an engine may be off: it rounds in ways of its own."""
OUTCOME = ("taken", "lsb", "share", "rules", "words")
COLUMNS = (*FIELDS, *OUTCOME, *(f"export_{name}" for name in OUTCOME))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file.

    Attributes:
        taken: ``yes``, ``no``, or ``refused`` where the profile does not write such a graph.
        lsb: The largest difference from the interpreter, in steps; empty where nothing ran.
        share: Of elements that differ, in percent.
        rules: The profile's rules that the file breaks; ``rule<=N`` where one says how far
            results may be off.
        words: Why it is not taken, in the engine's words.
    """

    taken: str
    lsb: str = ""
    share: str = ""
    rules: str = ""
    words: str = ""

    @property
    def right(self) -> bool:
        """True where the engine takes it and computes it."""
        return self.taken == "yes" and int(self.lsb) <= LIMIT


class Asked:
    """One engine, asked about file after file; one that crashes is started again."""

    def __init__(self, name: str) -> None:
        self.kind = engine_kind(name)
        self.process = self._start()

    def _start(self) -> EngineProcess:
        limits = ProcessLimits(seconds=120)
        return EngineProcess(self.kind.worker, self.kind.label, limits, python=self.kind.python())

    def about(self, file: Path, graph: Graph, feeds: dict[str, Any], rules: str) -> Outcome:
        if not self.process.alive:
            self.process = self._start()
        try:
            rows, _ = self.process.ask("load it", "load", "model", str(file))
            names = list(graph.output_names)
            found = self.process.ask("run it", "run", "model", feeds, names)
        except UnsupportedTargetError as error:
            return Outcome("no", rules=rules, words=_short(error.why))
        left = [row for row in rows if not row[3]]
        expected = qdqbridge.evaluate(graph, feeds)
        steps = [
            np.abs(found[name].astype(np.int64) - expected[name].astype(np.int64)) for name in names
        ]
        lsb, share = max(int(s.max()) for s in steps), max(100 * np.mean(s > 0) for s in steps)
        words = next((row[4] for row in left if row[4]), left[0][1] if left else "")
        return Outcome("no" if left else "yes", str(lsb), f"{share:.1f}", rules, _short(str(words)))


def _short(words: str) -> str:
    flat = " ".join(words.split())
    return flat if len(flat) <= 90 else flat[:90] + "…"


def outcomes(asked: Asked, pattern: Pattern, folder: Path) -> tuple[Outcome, Outcome]:
    """Returns what becomes of a pattern as it is written, and as the profile writes it."""
    file = folder / "pattern.onnx"
    made = model(pattern)
    onnx.save(made, file)
    feeds, graph = data(made), qdqbridge.load(file)
    native = asked.kind.suffix == ".tflite"
    own = (
        Outcome("-") if native else asked.about(file, graph, feeds, broken_rules(file, asked.kind))
    )
    written = folder / f"written{asked.kind.suffix}"
    try:
        qdqbridge.save(graph, written, asked.kind.profile, overwrite=True)
        read_back = qdqbridge.load(written)
    except QdqBridgeError as error:
        return own, Outcome("refused", words=_short(error.why))
    rules = "" if native else broken_rules(written, asked.kind)
    return own, asked.about(written, read_back, feeds, rules)


def broken_rules(file: Path, kind: EngineKind) -> str:
    """Returns the rules of a profile that a file breaks, with their bounds."""
    most: dict[str, int] = {}
    for finding in check(file, kind.profile):
        if finding.effect is Effect.PROCESSOR and not kind.pairs_saturate():
            continue
        most[finding.rule] = max(finding.steps, most.get(finding.rule, 0))
    return " ".join(f"{rule}<={n}" if n else rule for rule, n in sorted(most.items()))


def table_of(engine: str) -> Path:
    """Returns the file of an engine's table."""
    return TABLES / f"patterns_{engine}.csv"


def read(engine: str) -> Iterator[tuple[Pattern, Outcome, Outcome]]:
    """Yields the rows of a table."""
    with table_of(engine).open(encoding="utf-8", newline="") as file:
        for row in csv.reader(line for line in file if not line.startswith("#")):
            if row[0] != FIELDS[0]:
                facts, rest = row[: len(FIELDS)], row[len(FIELDS) :]
                yield (
                    Pattern(*facts),
                    Outcome(*rest[: len(OUTCOME)]),
                    Outcome(*rest[len(OUTCOME) :]),
                )


def complete(engine: str, wanted: Iterable[Pattern], every: int = 1) -> None:
    """Adds the rows that a table does not have."""
    asked, path = Asked(engine), table_of(engine)
    known = {pattern for pattern, _, _ in read(engine)} if path.exists() else set[Pattern]()
    with path.open("a", encoding="utf-8", newline="") as file, tempfile.TemporaryDirectory() as at:
        rows = csv.writer(file, lineterminator="\n")
        if not known:
            command = f"{engine} --every {every}" if every > 1 else engine
            file.write(
                f"# {asked.process.version}\n# scripts/engines/engine_patterns.py {command}\n"
            )
            rows.writerow(COLUMNS)
        for pattern in wanted:
            if pattern not in known:
                both = outcomes(asked, pattern, Path(at))
                rows.writerow([*astuple(pattern), *astuple(both[0]), *astuple(both[1])])
                file.flush()
    asked.process.close()


def facts_of(asked: Asked) -> Iterator[tuple[str, ...]]:
    """Yields the rows of an engine's table of facts: the most axes that are taken of each type."""
    found: dict[str, dict[str, dict[int, str]]] = {}
    with tempfile.TemporaryDirectory() as at:
        file = Path(at) / "fact.onnx"
        for pattern in facts():
            made = model(pattern)
            onnx.save(made, file)
            of_type = found.setdefault(pattern.operator, {}).setdefault(pattern.dtype, {})
            with suppress(QdqBridgeError):  # onnxruntime has no such form to compare with
                own = asked.about(file, qdqbridge.load(file), data(made), "")
                cell = LEFT if own.lsb else REFUSED
                of_type[int(pattern.rank)] = pattern.rank if own.taken == "yes" else cell
    for operator, types in sorted(found.items()):
        yield operator, *(_cell(list(types[dtype].values())) for dtype in COLUMN_TYPES)


def _cell(by_rank: list[str]) -> str:
    """Returns the most axes; else that no file loads, or that some do and are left."""
    axes = [cell for cell in by_rank if cell.isdigit()]
    return max(axes) if axes else REFUSED if REFUSED in by_rank else LEFT


def write_facts(engine: str) -> None:
    """Writes an engine's table of facts, which the package has."""
    asked = Asked(engine)
    version, rows = asked.process.version, list(facts_of(asked))
    asked.process.close()
    with FACTS_FILES[engine].open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {version}\n# scripts/engines/engine_patterns.py {engine} --facts\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("operator", *COLUMN_TYPES))
        table.writerows(rows)


def misjudged(rows: Iterable[tuple[str, Outcome]]) -> tuple[list[str], list[str]]:
    """Returns of which files the rules say falsely that they are kept, and falsely that not."""
    kept, alarms = [], []
    for key, outcome in rows:
        if outcome.rules == "no-quantization":
            continue  # what is left of it only moves integers
        # FLOATS says that floats are computed, not that they are refused or wrong
        rules = [rule for rule in outcome.rules.split() if rule != FLOATS]
        bounds = [rule.partition("<=")[2] for rule in rules]
        if bounds and all(bounds):  # they say how far results may be off, not that they are
            if outcome.taken != "yes" or int(outcome.lsb) > max(map(int, bounds)):
                kept.append(f"{key}: taken {outcome.taken}, {outcome.lsb} LSB, {outcome.words}")
        elif outcome.taken in ("yes", "no") and outcome.right and rules:
            alarms.append(f"{key}: {outcome.rules}")
        elif outcome.taken in ("yes", "no") and not outcome.right and not rules:
            kept.append(f"{key}: taken {outcome.taken}, {outcome.lsb} LSB, {outcome.words}")
    return kept, alarms


def show_misjudged(kept: list[str], alarms: list[str], show: int) -> None:
    """Prints what the rules are wrong about."""
    for word, found in (("false 'kept'", kept), ("false alarms", alarms)):
        print(f"{word}: {len(found)}")
        for line in found[:show]:
            print(f"  {line}")


def report(rows: Iterable[tuple[Pattern, Outcome, Outcome]], show: int) -> None:
    """Prints what the rules are wrong about, and how far exports are taken and right."""
    all_rows = list(rows)
    files = [(p.key, own) for p, own, _ in all_rows]
    files += [(f"exported {p.key}", written) for p, _, written in all_rows]
    show_misjudged(*misjudged(files), show)
    count = len(all_rows)
    for name, each in (
        ("as written", [r[1] for r in all_rows]),
        ("exported", [r[2] for r in all_rows]),
    ):
        taken = sum(outcome.taken == "yes" for outcome in each)
        refused = sum(outcome.taken == "refused" for outcome in each)
        right = sum(outcome.right for outcome in each)
        print(f"{name}: {count} patterns, {refused} refused, {taken} taken, {right} right")


def judged_again(engine: str) -> list[tuple[Pattern, Outcome, Outcome]]:
    """Returns a table's rows with what today's rules say of their files, and writes them."""
    kind, path = ENGINES[engine], table_of(engine)
    rows: list[tuple[Pattern, Outcome, Outcome]] = []
    with tempfile.TemporaryDirectory() as folder:
        file, written = Path(folder) / "pattern.onnx", Path(folder) / "written.onnx"
        for pattern, own, exported in read(engine):
            onnx.save(model(pattern), file)
            again = exported
            try:
                qdqbridge.save(qdqbridge.load(file), written, kind.profile, overwrite=True)
            except QdqBridgeError as error:
                again = Outcome("refused", words=_short(error.why))
            else:
                again = replace(exported, rules=broken_rules(written, kind))
            rows.append((pattern, replace(own, rules=broken_rules(file, kind)), again))
    comments = [line for line in path.read_text("utf-8").splitlines(True) if line[0] == "#"]
    with path.open("w", encoding="utf-8", newline="") as out:
        out.writelines(comments)
        table = csv.writer(out, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([*astuple(p), *astuple(own), *astuple(other)] for p, own, other in rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=[*ENGINES])
    parser.add_argument("--random", type=int, default=0, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one of N patterns")
    parser.add_argument("--facts", action="store_true", help="write the package's table of facts")
    parser.add_argument("--show", type=int, default=40)
    given = parser.parse_args()
    more = given.engine in MORE
    if given.facts:
        write_facts(given.engine)
    elif given.random:
        asked = Asked(given.engine)
        with tempfile.TemporaryDirectory() as at:
            chosen = drawn(given.seed, given.random, more=more)
            report(((p, *outcomes(asked, p, Path(at))) for p in chosen), given.show)
        asked.process.close()
    elif given.judge:
        report(judged_again(given.engine), given.show)
    else:
        complete(given.engine, list(patterns(more=more))[:: given.every], given.every)
        report(read(given.engine), given.show)


if __name__ == "__main__":
    main()
