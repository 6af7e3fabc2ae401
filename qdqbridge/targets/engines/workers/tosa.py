"""TOSA by Arm's programs: a converter of TFLite files, a serializer, and the reference model.

Each runs in a process of its own below this one, whose limits they inherit and with which they end.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import numpy as np

from qdqbridge.targets.engines.kinds import ENGINES
from qdqbridge.targets.engines.workers import Array, Loaded, Row
from qdqbridge.tflite_io.schema import Subgraph, parsed
from qdqbridge.tflite_io.vela import ProgramFailedError, installed_program, run_program
from qdqbridge.tflite_io.writer.tosa import ERF

CONVERTER, SERIALIZER, MODEL = ENGINES["tosa"].programs
_NAME = re.compile(r"tf_saved_model\.index_path = \[\"([^\"]*)\"\]")
"""What the converter keeps of the signature; the serializer wants names under another key."""
_HEAD = re.compile(r"^ *func\.func @main\((.*)\) -> (.*) attributes", re.M)
_RETURN = re.compile(r"^ *return (%.*) : (.*) loc\(.*$", re.M)
_OPERATION = re.compile(
    r"^ *(?:%[^=\n]+ = )?\"?(?P<dialect>[a-z_]+)\.(?P<name>\w+)\"?[ (].*?"
    r"(?P<types>(?: : [^\"=\n]*)?) loc\((?P<loc>.*)\)$",
    re.M,
)
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.M)
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_FLOAT = re.compile(r"[<x](?:f16|bf16|f32|f64)>")
_OPEN = re.compile(r"tensor<[^>]*\?")
_REQUIRED = re.compile(r"requires (?:any|all) of \[([a-z0-9_]+)|requires extension \[([a-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class _ConvertedModule:
    """A TFLite file as TOSA.

    Attributes:
        source: The file's graph.
        text: The converter's module, with the names of the signature.
        names: Of its inputs and of its outputs.
        rows: An entry per operator of the file.
        whole: Every operator became TOSA's.
    """

    source: Subgraph
    text: str
    names: tuple[list[str], list[str]]
    rows: list[Row]
    whole: bool


class TosaWorker:
    """Converts TFLite files, and runs what they become in the reference model."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[_ConvertedModule, bytes]] = {}

    def version(self) -> str:
        """Returns the versions that decide."""
        packages = ("tosa-tools", "tosa-converter-for-tflite")
        return ", ".join(f"{package} {_version(package)}" for package in packages)

    def load(self, key: str, file: str) -> Loaded:
        """Converts a model."""
        module = _converted(Path(file).read_bytes())
        self._models[key] = module, _serialized(module, ".tosa")[0]
        return module.rows, 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model in the reference model."""
        found = _executed(*self._models[key], list(inputs.values()))
        return dict(zip(names, found, strict=True))

    def record(
        self, data: bytes, kernels: str, inputs: Mapping[int, Array], wanted: list[int]
    ) -> dict[int, Array]:
        """Runs a file once and returns outputs of it by the index of their tensor."""
        del kernels
        module = _converted(data)
        tosa = _serialized(module, ".tosa")[0]
        found = _executed(module, tosa, [inputs[index] for index in module.source.inputs])
        known = dict(zip(module.source.outputs, found, strict=True))
        return {index: known[index] for index in wanted}

    def convert(self, data: bytes, suffix: str) -> tuple[bytes, list[str], list[Row]]:
        """Returns a TFLite file in a form of TOSA, what that requires, and a row per operator.

        Args:
            data: The file.
            suffix: Of the form: ``.tosa``, ``.mlir`` or ``.mlirbc``.

        Returns:
            Nothing, with the rows, where an operator is not TOSA's.
        """
        module = _converted(data)
        made, required = _serialized(module, suffix)
        return made, required, module.rows


def _converted(data: bytes) -> _ConvertedModule:
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "model.tflite", Path(folder) / "model.mlir"
        source.write_bytes(data)
        run_program(CONVERTER, str(source), "--text", "--emit-debug-info", "-o", str(made))
        text = made.read_text("utf-8")
    head = _HEAD.search(text)
    if head is None:
        raise RuntimeError(f"{CONVERTER} writes no function 'main'")
    if _OPEN.search(text):
        raise RuntimeError("TOSA takes fixed shapes only, and the file leaves extents open")
    named = _NAME.sub(r'tosa.tensor_name = "\1"', head[0])
    text = _with_erf(_distinct(text[: head.start()] + named + text[head.end() :]))
    inputs, outputs = ([_plain(n) for n in _NAME.findall(head[part])] for part in (1, 2))
    graph = parsed(data, "the file").subgraphs[0]
    if len(inputs + outputs) != len(graph.inputs + graph.outputs):
        raise RuntimeError(
            f"{CONVERTER} loses the names of inputs and outputs: the file has no signature, or one "
            "of the names has a comma"
        )
    rows, whole = _rows(text, graph)
    return _ConvertedModule(graph, text, (inputs, outputs), rows, whole)


def _distinct(text: str) -> str:
    """Returns a module that returns no value twice and no input: each would have one name only."""
    found = _RETURN.search(text)
    if found is None:
        return text
    operands, types = (part.split(", ") for part in found.groups())
    copies: list[str] = []
    for place, (operand, kind) in enumerate(zip(operands, types, strict=True)):
        if operand.startswith("%arg") or operand in operands[:place]:
            operands[place] = f"%copy{place}"
            copies.append(f"    {operands[place]} = tosa.identity {operand} : ({kind}) -> {kind}")
    returned = found[0].replace(found[1], ", ".join(operands), 1)
    return text[: found.start()] + "\n".join([*copies, returned]) + text[found.end() :]


def _with_erf(text: str) -> str:
    """Returns a module whose TANHs of that name (``ERF``) are ERFs."""
    for alias, where in _ALIAS.findall(text):
        if where.startswith(f'"{ERF}'):
            text = re.sub(rf"tosa\.tanh( .*loc\({alias}\))$", r"tosa.erf\1", text, flags=re.M)
    return text


def _rows(text: str, graph: Subgraph) -> tuple[list[Row], bool]:
    """Returns a row per operator of a TFLite file, and whether all of it is TOSA."""
    places = dict[str, str](_ALIAS.findall(text))
    dialects: dict[str, list[str]] = {}
    floats: dict[str, list[str]] = {}
    whole = True
    for found in _OPERATION.finditer(text):
        name, tosa = found["name"], found["dialect"] in ("tosa", "func")
        whole = whole and tosa
        wanted = dialects if not tosa else floats if _FLOAT.search(found["types"]) else None
        if wanted is not None and name not in ("const", "return", "func"):
            for tensor in _names(found["loc"], places):
                wanted.setdefault(tensor, []).append(name)
    rows: list[Row] = []
    for op in graph.ops:
        tensors = [graph.tensors[index].name for index in op.outputs]
        own = [graph.tensors[index].type for index in (*op.inputs, *op.outputs) if index >= 0]
        left, on_floats = (
            list(dict.fromkeys(n for t in tensors for n in of.get(t, ())))
            for of in (dialects, floats)
        )
        why = ""
        if left:
            why = f"{CONVERTER} has no TOSA for {op.name} (it leaves '{left[0]}')"
        elif on_floats and not any(kind.startswith("FLOAT") for kind in own):
            why = f"{CONVERTER} computes it on floats: {', '.join(on_floats)}"
        place = "not TOSA" if left else "floats" if on_floats else "integers"
        rows.append((tensors[0] if tensors else "", op.name, place, not why, why))
    if not whole and all(row[3] for row in rows):
        names = sorted({name for each in dialects.values() for name in each})
        rows.append(("", ", ".join(names), "not TOSA", False, f"{CONVERTER} leaves it"))
    return rows, whole


def _names(where: str, places: Mapping[str, str], deep: int = 4) -> Iterator[str]:
    """Yields the names of a location: tensors of the file."""
    for name in _QUOTED.findall(where):
        yield _plain(name)
    for alias in re.findall(r"#loc\d*", where) if deep else ():
        yield from _names(places.get(alias, ""), places, deep - 1)


def _plain(name: str) -> str:
    """Returns a string of MLIR without its escapes: bytes in two digits."""
    raw = re.sub(rb"\\([0-9A-Fa-f]{2})", lambda m: bytes.fromhex(m[1].decode()), name.encode())
    return raw.replace(b"\\\\", b"\\").decode("utf-8", "replace")


def _serialized(module: _ConvertedModule, suffix: str) -> tuple[bytes, list[str]]:
    """Returns a module in a form of TOSA, and the profiles and extensions that it requires.

    Which those are the serializer says itself, where one is missing.
    """
    if not module.whole:
        return b"", []
    required = ["pro_int"]
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "model.mlir", Path(folder) / f"made{suffix}"
        source.write_text(module.text, "utf-8")
        form = {
            ".tosa": "--tosa-serialize=retain-graph-input-output-names "
            f"tosa-flatbuffer-filename={made}",
            ".mlirbc": "--emit-bytecode",
            # how operators are printed differs between versions of MLIR, but for their generic form
            ".mlir": "--mlir-print-op-generic",
        }[suffix]
        printed = os.devnull if suffix == ".tosa" else str(made)
        while True:
            sides = ([n for n in required if n.startswith("pro_") is own] for own in (True, False))
            profiles, more = map(",".join, sides)
            try:
                run_program(
                    SERIALIZER, str(source), "--tosa-convert-integer-type-to-signless",
                    f"--tosa-attach-target=profiles={profiles} extensions={more}",
                    "--tosa-validate=strict-op-spec-alignment", form, "-o", printed,
                )  # fmt: skip
                return made.read_bytes(), required
            except ProgramFailedError as error:
                missing = {a or b for a, b in _REQUIRED.findall(error.said)} - set(required)
                if not missing:
                    errors = dict.fromkeys(re.findall("error: (.*)", error.said))
                    raise RuntimeError(f"{SERIALIZER}: {'; '.join(errors) or error}") from error
                required += sorted(missing)


def _executed(module: _ConvertedModule, data: bytes, inputs: Sequence[Array]) -> list[Array]:
    """Returns the results of the reference model."""
    if not module.whole:
        raise RuntimeError("; ".join(row[4] for row in module.rows if row[4]))
    names, types = module.names, [module.source.tensors[i].type for i in module.source.outputs]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.tosa").write_bytes(data)
        given = [f"input_{place}.npy" for place in range(len(inputs))]
        made = [f"output_{place}.npy" for place in range(len(types))]
        for file, array in zip(given, inputs, strict=True):
            np.save(folder / file, array)
        test = {
            "tosa_file": "model.tosa", "ifm_name": names[0], "ifm_file": given,
            "ofm_name": names[1], "ofm_file": made, "expected_failure": False,
        }  # fmt: skip
        (folder / "test.json").write_text(json.dumps(test), "utf-8")
        run_program(MODEL, "--test_desc", str(folder / "test.json"))
        arrays = [np.load(folder / file) for file in made]
    signless = zip(arrays, types, strict=True)
    return [array.view(np.uint8) if kind == "UINT8" else array for array, kind in signless]


def _version(package: str) -> str:
    """Returns the version of a package of the environment that has the programs."""
    home = Path(installed_program(SERIALIZER) or "").resolve().parents[1]
    folders = map(str, home.glob("lib/python*/site-packages"))
    found = distributions(name=package, path=list(folders))
    return next((each.version for each in found), "of unknown version")


WORKER = TosaWorker
