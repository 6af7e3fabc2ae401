"""What shipped pattern tables take of models: ``scripts/sweeps/coverage_tables MODEL...``.

One line per model and table: composites / regions / operators left, for a module that
``relay.emit`` wrote in the table's form, for the same after the rewrites that the table asks
for, and for what TVM's importer and FakeQuantizationToInteger make of the file, as it is and after
ConvertLayout to channels-last. ``-`` is a route that failed.

``--resume`` goes on behind the models that the output file has; ``--summary`` prints one line per
table from a file, and runs nothing: composites, calls taken by name, regions, operators left, how
many models have a region, and how many operators are left without a reason.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fq2i_route import channels_last, fq2i

import qdqbridge as qb
from qdqbridge.tvm.byoc.coverage import Coverage
from qdqbridge.tvm.byoc.model import partition_model, partition_shipped
from qdqbridge.tvm.relay.tables import TABLES

ROUTES = ("ours", "rewritten", "fq2i", "fq2i_nhwc")
FIELDS = ("file", "table", *ROUTES, "unexplained", "error")
_INTEGERS = {"int8", "uint8", "int32"}


def shown(coverage: Coverage) -> str:
    """Returns composites (+ operators taken by name) / regions / operators left."""
    alone = sum(item.entry.startswith("operator ") for item in coverage.taken)
    by_name = f"+{alone}" if alone else ""
    count = len(coverage.taken) - alone
    return f"{count}{by_name}/{len(coverage.regions)}/{len(coverage.left)}"


def rows(path: Path, routes: tuple[str, ...], tables: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of one model."""
    graph = qb.load(path)
    extents = {d: 1 for v in graph.inputs for d in v.type.shape or () if isinstance(d, str)}
    modules = _foreign(path, extents) if "fq2i" in routes and tables else {}
    for name, table in ((name, TABLES[name]) for name in tables):
        row: dict[str, Any] = {"table": name}
        ours = partition_model(graph, name, dialect="relay", extents=extents)
        row["ours"] = shown(ours.coverage)
        row["unexplained"] = _unexplained(ours.coverage)
        if table.rewrites:
            changed = partition_model(graph, name, dialect="relay", extents=extents, rewrite=True)
            row["rewritten"] = shown(changed.coverage)
            row["unexplained"] += _unexplained(changed.coverage)
        for route, module in modules.items():
            row[route] = _tried(lambda m=module, t=table: shown(partition_shipped(m, t)[1]))
        yield row


def _unexplained(coverage: Coverage) -> int:
    """Returns how many operators are left without words of their own."""
    vague = ("its own check refuses", "its own check fails")
    return sum(
        not item.reasons or any(word in reason for reason in item.reasons for word in vague)
        for item in coverage.left
    )


def _foreign(path: Path, extents: dict[str, int]) -> dict[str, Any]:
    try:
        module = fq2i(path, extents)
    except Exception as error:  # whatever the importer or the pass raises
        print(f"  fq2i: {str(error).splitlines()[-1][:150]}", file=sys.stderr)
        return {}
    found = {"fq2i": module}
    try:
        found["fq2i_nhwc"] = channels_last(module)
    except Exception as error:  # whatever the pass raises
        print(f"  ConvertLayout: {str(error).splitlines()[-1][:150]}", file=sys.stderr)
    return found


def _tried(run: Callable[[], str]) -> str:
    try:
        return run()
    except Exception:  # a shipped check on a module that it does not expect
        return "-"


def _models(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            with (path / "manifest.csv").open(newline="") as file:
                names = sorted(row["file"] for row in csv.DictReader(file))
            random.Random(4).shuffle(names)
            yield from _eight_bit(path / name for name in names)
        else:
            yield path


def _eight_bit(paths: Iterator[Path]) -> Iterator[Path]:
    """Yields the models of 8 bits, each graph once."""
    seen: set[str] = set()
    for path in paths:
        graph = qb.load(path)
        kinds = {str(v.quant.params.storage_dtype) for v in graph.values() if v.quant}
        if graph.digest not in seen and kinds and kinds <= _INTEGERS and "int32" in kinds:
            seen.add(graph.digest)
            yield path


def _summary(found: list[dict[str, Any]]) -> str:
    """Returns the totals of each table and route of ours."""
    lines = [f"{len({row['file'] for row in found})} models"]
    lines += [f"  {row['file']}: {row['error']}" for row in found if row["error"]]
    for table, route in ((table, route) for table in TABLES for route in ROUTES):
        texts = [row[route] for row in found if row["table"] == table]
        figures = [_figures(text) for text in texts if text and text != "-"]
        if figures:
            taken, alone, regions, left = map(sum, zip(*figures, strict=True))
            some = sum(1 for each in figures if each[2])
            lines.append(
                f"{table} {route}: {len(figures)} models, {taken} composites + {alone} calls in "
                f"{regions} regions, {left} left; {some} models with a region"
            )
    vague = sum(int(row["unexplained"] or 0) for row in found)
    lines.append(f"operators left without a reason of their own: {vague}")
    return "\n".join(lines)


def _figures(text: str) -> tuple[int, int, int, int]:
    """Returns the numbers of a text of :func:`shown`."""
    taken, regions, left = text.split("/")
    composites, _, alone = taken.partition("+")
    return int(composites), int(alone or 0), int(regions), int(left)


def _done(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _name(path: Path) -> str:
    return "/".join(path.parts[-3:-1]) if path.name == "model.onnx" else path.stem


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+", help="files, or folders with a manifest")
    parser.add_argument("-o", "--output", type=Path, default=Path("coverage_tables.csv"))
    parser.add_argument("--tables", nargs="*", default=list(TABLES), help="which tables")
    parser.add_argument("--fq2i-every", type=int, default=1, help="TVM's route for every n-th")
    parser.add_argument("--resume", action="store_true", help="go on behind the output's rows")
    parser.add_argument("--summary", action="store_true", help="the output's totals, and no run")
    arguments = parser.parse_args()
    done = _done(arguments.output) if arguments.resume or arguments.summary else []
    if not arguments.summary:
        have = {(row["file"], row["table"]) for row in done}
        with arguments.output.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(done)
            for number, path in enumerate(_models(arguments.models)):
                tables = [t for t in arguments.tables if (_name(path), t) not in have]
                every = arguments.fq2i_every
                routes = ROUTES if every and number % every == 0 else ROUTES[:2]
                for row in _rows(path, routes, tables):
                    writer.writerow({"file": _name(path), **row})
                    file.flush()
                print(path, file=sys.stderr)
    print(_summary(_done(arguments.output)))
    return 0


def _rows(path: Path, routes: tuple[str, ...], tables: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of one model; the last one says why there are no more."""
    try:
        yield from rows(path, routes, tables)
    except qb.QdqBridgeError as error:
        yield {"error": f"{error.what} ({error.why[:150]})"}


if __name__ == "__main__":
    sys.exit(main())
