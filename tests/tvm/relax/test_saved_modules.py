"""Saved Relax modules: read as models, and nothing in their files is run."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqbridge.options import RelaxVariant
from tests.places import MODELS

pytest.importorskip("tvm")

import tvm
from tvm import relax, topi

import qdqbridge as qb
from qdqbridge.app.hosting import export_tvm
from qdqbridge.app.sources import inspect_model, load_model
from qdqbridge.errors import InputDataError, ModelFileError
from qdqbridge.tvm.relax.dialect import tensor_type
from qdqbridge.tvm.relax.files import write_module
from qdqbridge.tvm.relax.saved import read_module
from qdqbridge.tvm.relax.saved.reading import DEEPEST, checked
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.read_cases import same

pytestmark = pytest.mark.relax

FOLDER = MODELS
CNN = FOLDER / "digits_cnn_u8s8_per_channel.onnx"


@pytest.mark.parametrize("suffix", [".json", ".py"])
@pytest.mark.parametrize("variant", ["qnn", "qdq"])
def test_modules_are_models(tmp_path: Path, suffix: str, variant: RelaxVariant) -> None:
    graph, path = qb.load(CNN), tmp_path / f"m{suffix}"
    write_module(qb.to_relax(graph, variant=variant)[0], path)
    same(load_model(path), graph)
    found = inspect_model(path)
    assert found.digest == graph.digest
    assert found.header.operators["nn.max_pool2d"] == 1


def test_parameters_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    graph = qb.load(FOLDER / "digits_attention_u8s8_per_channel.onnx")
    module, params = tmp_path / "m.json", tmp_path / "p.npz"
    export_tvm(graph, module, params=params)
    if not params.exists():  # no constant of this model is that large
        with pytest.raises(InputDataError):
            load_model(CNN, params=params)
        return
    same(load_model(module, params=params), graph)


# ---- TVMScript ---------------------------------------------------------------------------------

SCRIPT = """
from typing import TypeVar
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

n = TypeVar("n")
{top}
@I.ir_module{module}
class Module{bases}:
    {attribute}
    @R.function{function}
    def main(x: R.Tensor({shape}, dtype="float32"){parameter}) -> R.Tensor((n, 4), dtype="float32"):
        with R.dataflow():
            y: R.Tensor((n, 4), dtype="float32") = R.add(x, {operand})
            {statement}
            R.output(y)
        return y
"""
USUAL = {
    "top": "", "module": "", "bases": "", "attribute": "", "function": "", "shape": "(n, 4)",
    "parameter": "", "operand": 'R.const(1, "float32")', "statement": "",
}  # fmt: skip
BAD = "__import__('os').mkdir(MARK)"
ATTACKS = {
    "code at the top": {"top": BAD},
    "an import": {"top": "import os"},
    "an import of another name": {"top": "from os import system as R"},
    "an assignment at the top": {"top": f"a = {BAD}"},
    "another function": {"top": f"def f(x={BAD}): pass"},
    "another class": {"top": f"class A:\n    b = {BAD}"},
    "a decorator": {"top": f"@({BAD})"},
    "a decorator's argument": {"module": f"(check_well_formed={BAD})"},
    "a base class": {"bases": f"({BAD})"},
    "a metaclass": {"bases": f"(metaclass={BAD})"},
    "a class attribute": {"attribute": f"a = {BAD}"},
    "a python function": {"attribute": f"@I.pyfunc\n    def f(): {BAD}\n"},
    "a function's decorator": {"function": f"(private={BAD})"},
    "a default": {"parameter": f' = {BAD}'},
    "another annotation": {"parameter": f", z: {BAD} = None"},
    "a text as annotation": {"parameter": f', z: "{BAD}"'},
    "a text as extent": {"shape": f'("{BAD}", 4)'},
    "a text as extent, behind a list": {"shape": f'["{BAD}", 4]'},
    "a text as extent, with a keyword": {"shape": f'shape=("{BAD}", 4)'},
    "a text as extent, of a type in a type": {"parameter": f', z: R.Tuple(R.Shape(["{BAD}"]))'},
    "a text as extent, named before": {"statement": f's = ["{BAD}"]; z = R.zeros(s, "int8")'},
    "a call in an extent": {"shape": f'("T.min({BAD}, 4)", 4)'},
    "another call in an extent": {"shape": '("T.exp(4)", 4)'},
    "an attribute in an extent": {"shape": '("T.min.__globals__", 4)'},
    "a shape that is a name": {"statement": 'z: R.Tensor(y, dtype="float32") = y'},
    "a builtin": {"operand": "eval('1')"},
    "a builtin as a name": {"operand": "print"},
    "builtins": {"operand": "__builtins__"},
    "an operand": {"operand": BAD},
    "an attribute of a function": {"operand": "R.function.__globals__"},
    "a call of such an attribute": {"operand": "R.add.__globals__['x'](1)"},
    "a module behind the namespace": {"operand": "R.np.load('x')"},
    "another module there": {"operand": "T.tvm.get_global_func('x')()"},
    "tvm": {"operand": "tvm.get_global_func('x')()"},
    "a subscript of a call": {"operand": "R.const(1, 'float32').__class__.__mro__[1]"},
    "a lambda": {"operand": f"(lambda: {BAD})()"},
    "a comprehension": {"operand": f"[{BAD} for i in (1,)]"},
    "a formatted text": {"operand": 'R.const(1, f"{' + BAD.replace("'", "`") + '}")'},
    "a walrus": {"operand": f"(z := {BAD})"},
    "an unpacking": {"operand": f"*{BAD}"},
    "a dictionary's": {"operand": f"R.const(1, **{BAD})"},
    "a power": {"operand": "R.const(9 ** 9 ** 9, 'float32')"},
    "a shift": {"operand": "R.const(1 << 9999999999, 'float32')"},
    "a long text": {"operand": "R.const(1, 'a' * 9999999999)"},
    "a long list": {"operand": "R.shape([1] * 9999999999)"},
    "another meaning of R": {"statement": "R = y"},
    "a derivation": {"parameter": ', z: R.Callable(derive_func="testing.nop")'},
    "a deletion": {"statement": "del y"},
    "an exception": {"statement": "raise y"},
    "a hole in a shape": {"shape": "(None, 4)"},
    "a hole in a list": {"statement": "z = R.reshape(x, R.shape([None, 4]))"},
    "a hole in a tuple": {"statement": "z = R.tuple(None)"},
    "a loop for ever": {"statement": "while True: pass"},
    "a global": {"statement": "global n"},
    "an assertion": {"statement": f"assert {BAD}"},
}  # fmt: skip


def script(folder: Path, **parts: str) -> Path:
    text = SCRIPT.format(**(USUAL | parts)).replace("MARK", repr(str(folder / "attacked")))
    path = folder / "m.py"
    path.write_text(text)
    return path


def test_tvmscript_by_hand_is_read(tmp_path: Path) -> None:
    graph = load_model(script(tmp_path))
    assert [node.op.name for node in graph.nodes] == ["Add"]
    assert graph.inputs[0].type.shape == ("n", 4)
    assert load_model(script(tmp_path, shape='("n", 4)')).digest == graph.digest


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_in_a_script_is_run(tmp_path: Path, attack: str) -> None:
    path = script(tmp_path, **ATTACKS[attack])
    with pytest.raises(ModelFileError) as error:
        load_model(path)
    assert "TVMScript" in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.py"]


NO_SCRIPTS = ["", "(" * 10000, "x = 1", "\0", "-" * 100000 + "1", "class A: pass"]


@pytest.mark.parametrize("text", NO_SCRIPTS, ids=range(len(NO_SCRIPTS)))
def test_what_is_no_script_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.py"
    path.write_text(text)
    with pytest.raises(ModelFileError):
        load_model(path)


def test_generated_kernels_are_part_of_scripts(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x, other = (relax.Var(name, tensor_type((4, 4), "float32")) for name in ("x", "other"))
    with builder.function("main", [x, other]):
        with builder.dataflow():
            y = builder.emit_te(topi.maximum, x, other)
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    path = tmp_path / "m.py"
    write_module(builder.finalize(), path)
    assert [node.op.name for node in load_model(path).nodes] == ["Max"]


@pytest.mark.parametrize(("start", "end", "step"), [(1, -1, 1), (0, 5, 1), (-3, -1, 2), (3, 0, -1)])
def test_slices_of_an_open_axis_are_part_of_scripts(
    tmp_path: Path, start: int, end: int, step: int
) -> None:
    b = Builder(17)
    bounds = [b.init(np.array([number])) for number in (start, end, 0, step)]
    b.output(b.op("Slice", b.input("x", ["n", 3]), *bounds))
    graph, path = canonical(b.model()), tmp_path / "m.py"
    write_module(qb.to_relax(graph)[0], path)
    same(load_model(path), graph)


# ---- JSON --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved() -> str:
    return tvm.ir.save_json(qb.to_relax(qb.load(CNN))[0])


def refused(text: str) -> str:
    with pytest.raises(ModelFileError) as error:
        checked(text, "m.json")
    return error.value.why


def test_damaged_files_are_refused(tmp_path: Path, saved: str) -> None:
    path = tmp_path / "m.json"
    for text in ("", "null", "{}", "[" * 100000, saved[: len(saved) // 2], '{"nodes": []}',
                 '{"root_index": 0, "nodes": [{"type": "int", "data": 5}]}'):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ModelFileError, match="Relax module"):
            load_model(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match="Relax module"):
        load_model(path)
    with pytest.raises(ModelFileError, match="check the path"):
        read_module(tmp_path / "none.json")


def nested(depth: int, *, forward: bool = False) -> str:
    data = [[i + 1] for i in range(depth)] if forward else [[i] for i in range(depth)]
    nodes = [{"type": "ffi.Array", "data": indices} for indices in data]
    leaf = {"type": "ffi.Array", "data": []}
    nodes = [*nodes, leaf] if forward else [leaf, *nodes]
    return json.dumps({"root_index": 0 if forward else depth, "nodes": nodes})


def test_what_would_overflow_the_stack_is_refused() -> None:
    assert "one in the other" in refused(nested(DEEPEST + 1))
    assert "refers to node" in refused(nested(2, forward=True))
    checked(nested(DEEPEST - 1), "m.json")
    itself = {"root_index": 0, "nodes": [{"type": "ffi.Array", "data": [0]}]}
    assert "refers to node 0" in refused(json.dumps(itself))


def test_what_is_no_part_of_a_module_is_refused(saved: str) -> None:
    for kind in ("runtime.Module", "ffi.Function", "ir.Nothing"):
        found = json.loads(saved)
        index = next(i for i, n in enumerate(found["nodes"]) if n["type"] == "ir.DictAttrs")
        found["nodes"][index]["type"] = kind
        assert kind in refused(json.dumps(found))


def test_tensors_are_what_their_bytes_are(saved: str) -> None:
    found = json.loads(saved)
    node = next(n for n in found["nodes"] if n["type"] == "ffi.Tensor")
    raw = base64.b64decode(node["data"])
    for changed in (raw[:-1], raw + b"\0", raw[:8], b"", raw[:16] + b"\x02" + raw[17:]):
        node["data"] = base64.b64encode(changed).decode()
        assert "ffi.Tensor" in refused(json.dumps(found))


def mutations(text: str, count: int) -> Iterator[str]:
    """Yields damaged files: fields, references, types and single characters changed."""
    rng = random.Random(0)
    for _ in range(count):
        found: dict[str, Any] = json.loads(text)
        nodes: list[dict[str, Any]] = found["nodes"]
        index = rng.randrange(len(nodes))
        node, data = nodes[index], nodes[index].get("data")
        junk = rng.choice([index, rng.randrange(len(nodes)), -1, 1 << 62, 1.5, "x", None, [], {}])
        match rng.randrange(4):
            case 0:
                node["type"] = rng.choice(nodes)["type"]
            case 1:
                place = rng.randrange(len(text))
                yield text[:place] + rng.choice('{}[]",0x') + text[place + 1 :]
                continue
            case _ if data and isinstance(data, dict | list):
                keys: Any = list(data) if isinstance(data, dict) else range(len(data))
                data[rng.choice(keys)] = junk
            case _:
                node["data"] = junk
        yield json.dumps(found)


_CHILD = """
import sys
from pathlib import Path
from qdqbridge.errors import QdqBridgeError
from qdqbridge.app.sources import load_model
for path in sorted(Path(sys.argv[1]).glob("*.json")):
    try:
        load_model(path)
    except QdqBridgeError:
        continue
"""


def test_damage_never_ends_the_process(tmp_path: Path, saved: str) -> None:
    """Two hundred damaged files are read in one process, which has to live to the end."""
    for number, text in enumerate(mutations(saved, 200)):
        (tmp_path / f"{number:03}.json").write_text(text)
    command = [sys.executable, "-c", _CHILD, str(tmp_path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
