"""How far the rules of profile ``qnn-v73`` agree with what winml-cli measured on Qualcomm's NPU.

The wheel of Microsoft's ``winml-cli`` (MIT) brings tables of what the NPU takes: 123,680 rows, of
one operator between DequantizeLinear and QuantizeLinear each, with whether the whole file was
compiled for the NPU (fallback to the CPU forbidden, graph optimizations disabled), and whether it
ran. A row says which types and attributes a model has, and not which shapes; the wheel's own
generator makes the models that a row stands for, and is asked for the first of them here::

    scripts/engines/winml_tables.py FOLDER --read   # each row's models, into FOLDER/tables.sqlite
    scripts/engines/winml_tables.py FOLDER --judge  # what the rules say of each model
    scripts/engines/winml_tables.py FOLDER --ask N  # the host build: all disagreements, N others
    scripts/engines/winml_tables.py FOLDER --write  # tests/targets/engines/winml_*.csv
    scripts/engines/winml_tables.py FOLDER          # agreement by operator, and the classes

What is in FOLDER is not done again, but for the rules. Run it in the environment of
``scripts/engines_env``. Reading the tables, and nothing else, needs an environment that has more::

    pip install pyarrow pandas colorama pydantic && pip install --no-deps winml-cli==0.4.0

Only refusals are compared: that the NPU computes other numbers is not what the tables are about.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import random
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.engines.kinds import engine_kind
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits
from qdqbridge.targets.profiles import PROFILES
from qdqbridge.targets.profiles.finding import Effect, check_model

TABLES = Path(__file__).resolve().parents[2] / "tests" / "targets" / "engines"
PROFILE, ENGINE = "qnn-v73", "qnn-htp-v73"
"""The tables name no device; what they take is what the host build takes from v73 on."""
_KIT = "winml.modelkit"
PROVIDER = "QNNExecutionProvider_NPU"
IR = 11
"""The version that onnx 1.18 writes, which winml-cli requires."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (source TEXT, number INTEGER, operator TEXT, opset INTEGER,
    taken INTEGER, ran INTEGER, facts TEXT, model TEXT, PRIMARY KEY (source, number));
CREATE TABLE IF NOT EXISTS models (digest TEXT PRIMARY KEY, body TEXT, proto BLOB, rules TEXT,
    other TEXT, host INTEGER, words TEXT, optimized INTEGER);
CREATE INDEX IF NOT EXISTS bodies ON models (body);
CREATE TABLE IF NOT EXISTS drawn (model TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
"""


# ---- the tables ----------------------------------------------------------------------------------


class Row(NamedTuple):
    """What a table says of one pattern.

    Attributes:
        number: Of the row in its table.
        taken: The whole file was compiled for the NPU.
        ran: It ran, whoever computed it.
        facts: Types and attributes, as the table has them.
        model: The first model that the row stands for.
    """

    number: int
    taken: bool
    ran: bool
    facts: dict[str, Any]
    model: onnx.ModelProto


def read_tables(base: sqlite3.Connection) -> None:
    """Puts the models of all tables into the base, but for those that are there."""
    kit = Path(str(import_module(_KIT).__file__)).parent
    rules = kit / "analyze" / "rules" / "runtime_check_rules"
    known = {source for (source,) in base.execute("SELECT DISTINCT source FROM rows")}
    for file in sorted((rules / PROVIDER).glob("*_qdq.parquet")):
        if file.stem in known:
            continue
        operator, _, _, domain, opset = re.split(r"_(?!qdq)", file.stem.removesuffix("_qdq"))
        domain = "" if domain == "ai.onnx" else domain
        version = int(opset.removeprefix("opset"))
        name = f"{domain}::{operator}" if domain else operator
        count = 0
        for row in models_of(file, operator, domain, version):
            proto = row.model.SerializeToString(deterministic=True)
            digest = hashlib.sha256(proto).hexdigest()
            facts = json.dumps(row.facts, sort_keys=True)
            at = (file.stem, row.number, name, version, row.taken, row.ran, facts, digest)
            base.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", at)
            values = (digest, body_of(row.model), proto)
            base.execute(
                "INSERT OR IGNORE INTO models (digest, body, proto) VALUES (?, ?, ?)", values
            )
            count += 1
        base.commit()
        print(f"{file.stem}: {count} rows", flush=True)


def body_of(model: onnx.ModelProto) -> str:
    """Returns what a model and the same one at another opset have in common."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


def models_of(file: Path, operator: str, domain: str, version: int) -> Iterator[Row]:
    """Yields the rows of a table, each with the first model that the generator makes for it."""
    parquet: Any = import_module("pyarrow.parquet")
    processing: Any = import_module(f"{_KIT}.analyze.runtime_checker.result_processor")
    encoding: Any = import_module(f"{_KIT}.analyze.utils.model_utils")
    domains: Any = import_module(f"{_KIT}.onnx")
    making: Any = import_module(f"{_KIT}.pattern.op_input_gen")
    quantized: Any = import_module(f"{_KIT}.pattern.op_input_gen.qdq_gen")

    table: dict[str, list[Any]] = parquet.read_table(file).to_pydict()
    outcomes = table.pop("compile_run_success")
    names = list(table)
    wanted = {key: number for number, key in enumerate(zip(*table.values(), strict=True))}
    schema = domains.ONNXDomain.from_str(domain).get_op_schema(operator, version)
    quantizing = quantized.QDQGenerator(1, domains.ONNXDomain.COM_MICROSOFT)
    generator = making.get_runtime_checker_op(operator, domain=domain)(
        schema, qdq_generator=quantizing
    )
    cases, models = [], []
    with contextlib.redirect_stdout(io.StringIO()):  # it prints every case
        for inputs, tags in generator.iter():
            for model, case in generator.iter_const_and_dynamic_models(inputs, tags):
                cases.append(case)
                models.append(model)
        frame, _ = processing._build_op_rule_dataframe(cases, generator, use_qdq=True)
    encode = encoding.encode_rule_condition_value_for_parquet
    keys = zip(*(map(encode, frame[name]) for name in names), strict=True)
    for key, model in zip(keys, models, strict=True):
        number = wanted.pop(key, None)
        if number is not None:
            model.ir_version = IR
            facts = {n: json.loads(v).get("v") for n, v in zip(names, key, strict=True)}
            taken, ran = map(bool, outcomes[number])
            yield Row(number, taken, ran, facts, model)
    if wanted:
        print(f"{file.stem}: no model for {len(wanted)} rows")


# ---- what the rules say --------------------------------------------------------------------------


def judge(base: sqlite3.Connection) -> None:
    """Writes which rules each model breaks: those that say it is refused, and the others."""
    todo = base.execute("SELECT digest, proto FROM models")
    found = [(*judged(proto), digest) for digest, proto in todo]
    base.executemany("UPDATE models SET rules = ?, other = ? WHERE digest = ?", found)
    base.commit()


def judged(proto: bytes) -> tuple[str, str]:
    """Returns the rules that a model breaks: that it is refused, and others."""
    found = check_model(
        onnx.load_from_string(proto), PROFILES[PROFILE], folder=Path(), file="model"
    )
    refused = {finding.rule for finding in found if finding.effect in REFUSALS}
    other = {finding.rule for finding in found} - refused
    return " ".join(sorted(refused)), " ".join(sorted(other))


REFUSALS = (Effect.REFUSED, Effect.ELSEWHERE)


# ---- what the host build of the NPU's backend says -----------------------------------------------


class Host:
    """The host build, asked about file after file; one that crashes is started again."""

    def __init__(self) -> None:
        self.kind = engine_kind(ENGINE)
        self.process = self._start()

    def _start(self) -> EngineProcess:
        return EngineProcess(self.kind.worker, self.kind.label, ProcessLimits(seconds=120))

    def takes(self, file: Path, plain: str = "") -> tuple[bool, str]:
        """Returns whether it takes the whole file, and why not, in its words."""
        if not self.process.alive:
            self.process = self._start()
        try:
            nodes, _ = self.process.ask("load it", "load", "model", str(file), plain)
        except UnsupportedTargetError as error:
            return False, " ".join(error.why.split())[:200]
        left = [node for node in nodes if node[2] != "NPU"]
        words = next((node[4] for node in left if node[4]), left[0][1] if left else "")
        return not left, " ".join(words.split())[:200]


def ask(base: sqlite3.Connection, chosen: list[str]) -> None:
    """Asks the host build about models, those with other opsets included.

    It is asked as the tables were made, without graph optimizations; and where it does not as the
    rules say, as users run it as well.
    """
    host = Host()
    base.execute("INSERT OR REPLACE INTO facts VALUES ('host', ?)", (host.process.version,))
    query = "SELECT proto, body, rules = '' FROM models WHERE digest = ?"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        for digest in chosen:
            proto, body, fine = base.execute(query, (digest,)).fetchone()
            file.write_bytes(proto)
            taken, words = host.takes(file, plain="yes")
            users = host.takes(file)[0] if taken != bool(fine) else None
            base.execute(
                "UPDATE models SET host = ?, words = ?, optimized = ? WHERE body = ?",
                (taken, words, users, body),
            )
            base.commit()
    host.process.close()


def to_ask(base: sqlite3.Connection, agreements: int, seed: int) -> list[str]:
    """Returns the models to ask about: where rules and tables differ, and some where they agree.

    Args:
        base: What is known; the agreements that are drawn are written into it.
        agreements: How many to draw.
        seed: For the draw.
    """
    query = (
        "SELECT MIN(model), MAX(host IS NULL OR (host != (rules = '') AND optimized IS NULL)) "
        "FROM rows JOIN models ON model = digest WHERE (taken = (rules = '')) = ? "
        "GROUP BY body ORDER BY body"
    )
    differ = [model for model, unknown in base.execute(query, (0,)) if unknown]
    same = base.execute(query, (1,)).fetchall()
    drawn = random.Random(seed).sample(same, min(agreements, len(same)))
    if drawn:
        base.execute("DELETE FROM drawn")
        base.executemany("INSERT INTO drawn VALUES (?)", [(model,) for model, _ in drawn])
        base.commit()
    return differ + [model for model, unknown in drawn if unknown]


# ---- agreement -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Class:
    """What rows have in common in which tables and rules differ.

    Attributes:
        operator: Of ONNX.
        table: ``taken`` or ``refused`` by the NPU of the tables.
        rules: Those that say it is refused; empty where it is said to be taken.
        cause: Who is right, by the host build.
        words: What the host build says where it refuses.
    """

    operator: str
    table: str
    rules: str
    cause: str
    words: str


CAUSES = {
    "another opset": "the tables say otherwise of the same model at another opset, and so does the "
    "host build",
    "another runtime": "the host build does as the rules say",
    "graph optimizations": "the host build does as the rules say; without onnxruntime's "
    "optimizations, as the tables say",
    "rules": "the host build does as the tables say: the rules are wrong",
    "not asked": "the host build was not asked",
}


def cause(taken: bool, fine: bool, host: bool | None, users: bool | None, *, mixed: bool) -> str:
    """Returns why a row's table and the rules differ.

    Args:
        taken: What the table says.
        fine: What the rules say.
        host: What the host build says when asked as the tables were made.
        users: What it says as users run it; None where the first is as the rules say.
        mixed: The tables say otherwise of the same model at another opset.
    """
    if host is None:
        return "not asked"
    if host is fine:
        return "another opset" if mixed else "another runtime"
    if users is not fine:
        return "rules"
    return "graph optimizations"


def outcome(base: sqlite3.Connection) -> tuple[Counter[str], Counter[str], Counter[Class]]:
    """Returns rows by operator, those of them that agree, and the others by class."""
    query = (
        "SELECT operator, taken, rules, host, words, optimized, body FROM rows "
        "JOIN models ON model = digest"
    )
    verdicts: dict[str, set[int]] = {}
    for taken, body in base.execute("SELECT taken, body FROM rows JOIN models ON model = digest"):
        verdicts.setdefault(body, set()).add(taken)
    rows, same, classes = Counter[str](), Counter[str](), Counter[Class]()
    for operator, taken, rules, host, words, users, body in base.execute(query):
        rows[operator] += 1
        if bool(taken) is (not rules):
            same[operator] += 1
            continue
        told = [None if said is None else bool(said) for said in (host, users)]
        why = cause(bool(taken), not rules, told[0], told[1], mixed=len(verdicts[body]) > 1)
        place = "taken" if taken else "refused"
        classes[Class(operator, place, rules, why, general(words or ""))] += 1
    return rows, same, classes


def general(words: str) -> str:
    """Returns what is said without names of the model's."""
    words = re.sub(r"^\w+: \[ONNXRuntimeError\] : \d+ : \w+ : ", "", words)
    return re.sub(r"'_token_\d+' OpType:", "", words)[:90]


def sampled(base: sqlite3.Connection) -> tuple[int, int]:
    """Returns of how many models that agree the host build was asked, and where it agrees too."""
    query = (
        "SELECT COUNT(*), SUM(host = (rules = '')) FROM models "
        "JOIN drawn ON model = digest WHERE host IS NOT NULL"
    )
    count, agree = base.execute(query).fetchone()
    return count, agree or 0


def report(base: sqlite3.Connection) -> None:
    """Prints agreement by operator, and the classes of disagreement."""
    rows, same, classes = outcome(base)
    for operator, count in rows.items():
        print(f"{operator}: {same[operator]} of {count}, {100 * same[operator] / count:.1f} %")
    whole, agree = sum(rows.values()), sum(same.values())
    print(f"all: {agree} of {whole}, {100 * agree / whole:.2f} %")
    causes = Counter[str]()
    for found, count in classes.items():
        causes[found.cause] += count
    for name, count in causes.most_common():
        print(f"{name}: {count}, {100 * count / whole:.2f} %: {CAUSES[name]}")
    for found, count in sorted(classes.items(), key=lambda item: -item[1]):
        print(
            f"{count} {found.operator}, {found.table}; {found.rules or 'fine'}: {found.cause}",
            end="",
        )
        print(f"; {found.words}" if found.words else "")
    print("agreements asked, and confirmed by the host build:", *sampled(base))


def write(base: sqlite3.Connection) -> None:
    """Writes both tables of the outcome."""
    rows, same, classes = outcome(base)
    causes: dict[str, Counter[str]] = {operator: Counter() for operator in rows}
    for found, count in classes.items():
        causes[found.operator][found.cause] += count
    (versions,) = base.execute("SELECT value FROM facts WHERE name = 'host'").fetchone()
    asked, confirmed = sampled(base)
    with (TABLES / "winml_qnn-htp-v73.csv").open("w", encoding="utf-8", newline="") as file:
        file.write(f"# winml-cli 0.4.0, {PROVIDER}, QDQ; {versions}\n")
        file.write("# scripts/engines/winml_tables.py FOLDER --write\n")
        said = f"of {asked} agreements drawn at random the host build confirms {confirmed}"
        file.write(f"# {said}\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["operator", "rows", "agree", *CAUSES])
        for operator, count in sorted(rows.items()):
            each = [causes[operator][name] for name in CAUSES]
            table.writerow([operator, count, same[operator], *each])
    with (TABLES / "winml_classes_qnn-htp-v73.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rows", "operator", "table", "rules", "cause", "words"])
        for found, count in sorted(classes.items(), key=lambda item: (-item[1], str(item[0]))):
            table.writerow([count, *astuple(found)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where what was found is kept")
    parser.add_argument("--read", action="store_true", help="read the tables of winml-cli")
    parser.add_argument("--judge", action="store_true", help="hold the models against the rules")
    parser.add_argument("--ask", type=int, metavar="COUNT", help="ask the host build")
    parser.add_argument("--seed", type=int, default=0, help="which agreements it is asked about")
    parser.add_argument("--write", action="store_true", help=f"write the tables of {TABLES}")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    base = sqlite3.connect(given.folder / "tables.sqlite", timeout=600)
    base.executescript(SCHEMA)
    if given.read:
        read_tables(base)
    elif given.judge:
        judge(base)
    elif given.ask is not None:
        ask(base, to_ask(base, given.ask, given.seed))
    elif given.write:
        write(base)
    else:
        report(base)


if __name__ == "__main__":
    main()
