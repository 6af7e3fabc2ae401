"""Saved Relax modules, and damage to them: characters, fields, references, names, lines."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import qdqbridge as qb

_NUMBERS = (-(2**63), -(2**31), -3, -1, 0, 1, 2, 3, 7, 16, 2**15, 2**31, 2**40, 2**62, 2**64)
_TEXTS = ("", "x", "main", "int8", "float32", "uint8", "bool", "NCHW", "NHWC", "nothing", "\0")


def modules(models: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Yields saved modules, each as its suffix and its text.

    Args:
        models: ONNX models; what TVM does not express of them is left out.
    """
    import tvm

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for data in models:
            path.write_bytes(data)
            for variant in ("qnn", "qdq"):
                try:
                    module = qb.to_relax(qb.load(path), variant=variant)[0]
                except qb.QdqBridgeError:
                    continue
                yield ".json", tvm.ir.save_json(module)
                yield ".py", module.script(show_meta=True) + "\n"


def mutated(text: str, suffix: str, rng: Random) -> str:
    """Returns a damaged module."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.1:
            text = _characters(text, rng)
        elif suffix == ".py":
            text = _script(text, rng)
        else:
            try:
                text = _json(text, rng)
            except (ValueError, LookupError, TypeError, AttributeError):  # no module any more
                return text
    return text


def _characters(text: str, rng: Random) -> str:
    place = rng.randrange(max(len(text), 1))
    match rng.randrange(4):
        case 0:
            return text[:place]
        case 1:
            return text[:place] + text[place + rng.choice((1, 4, 100)) :]
        case 2:
            other = rng.randrange(max(len(text), 1))
            return text[:place] + text[other : other + rng.choice((2, 20, 200))] + text[place:]
        case _:
            return text[:place] + rng.choice('{}[]",0x()-') + text[place + 1 :]


_TOKEN = re.compile(r'"[^"\n]{0,40}"|\b[A-Za-z_][A-Za-z_.0-9]*\b|-?\d+(?:\.\d+)?')


def _script(text: str, rng: Random) -> str:
    """Changes a token, or a line, of TVMScript; its constants stay."""
    start = max(text.find("@I.ir_module"), 0)  # behind its constants
    head, program = text[:start], text[start:]
    lines = program.split("\n")
    at = rng.randrange(len(lines))
    match rng.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines.insert(rng.randrange(len(lines)), lines[at])
        case _:
            tokens = list(_TOKEN.finditer(program))
            if tokens:
                found = rng.choice(tokens)
                new = _token(found.group(), [t.group() for t in tokens], rng)
                lines = (program[: found.start()] + new + program[found.end() :]).split("\n")
    return head + "\n".join(lines)


def _token(old: str, others: list[str], rng: Random) -> str:
    if rng.random() < 0.6:
        alike = [text for text in others if text[0].isalpha() == old[0].isalpha()]
        return rng.choice(alike)
    if old[0] == '"':
        return json.dumps(rng.choice(_TEXTS))
    return str(rng.choice(_NUMBERS)) if rng.random() < 0.7 else rng.choice((*_TEXTS, "None", "1.5"))


def _json(text: str, rng: Random) -> str:
    """Changes a field, a reference, a type or a tensor of a saved module."""
    found: dict[str, Any] = json.loads(text)
    nodes: list[dict[str, Any]] = found["nodes"]
    node = rng.choice(nodes)
    data = node.get("data")
    number = rng.choice((rng.randrange(len(nodes)), rng.choice(_NUMBERS)))
    junk: Any = rng.choice((number, number, 1.5, rng.choice(_TEXTS), None, [], {}, True))
    match rng.randrange(8):
        case 0:
            node["type"] = rng.choice(nodes)["type"]
        case 1:
            _swap(nodes, rng)
        case 2 | 3 if isinstance(data, dict | list) and data:
            _refer(nodes, node["type"], data, rng)
        case 4 if isinstance(data, dict) and data:
            del data[rng.choice(list(data))]
        case 5 if node["type"] == "ffi.Tensor" and isinstance(data, str):
            node["data"] = _bytes(data, rng)
        case _ if isinstance(data, dict | list) and data:
            keys: Any = list(data) if isinstance(data, dict) else range(len(data))
            data[rng.choice(keys)] = junk
        case _:
            node["data"] = junk
    return json.dumps(found)


def _swap(nodes: list[dict[str, Any]], rng: Random) -> None:
    """Gives a node the contents of another one of its type."""
    node = rng.choice(nodes)
    alike = [other for other in nodes if other["type"] == node["type"]]
    other = rng.choice(alike)
    if "data" in other:
        node["data"] = json.loads(json.dumps(other["data"]))


def _refer(nodes: list[dict[str, Any]], kind: str, data: Any, rng: Random) -> None:
    """Makes a reference one to another node, of any type or of the same."""
    key = rng.choice(list(data) if isinstance(data, dict) else range(len(data)))
    old = data[key]
    if not isinstance(old, int) or isinstance(old, bool) or not 0 <= old < len(nodes):
        data[key] = rng.choice(_NUMBERS)
        return
    earlier = range(old + 1) if rng.random() < 0.7 else range(len(nodes))
    alike = [i for i in earlier if nodes[i]["type"] == nodes[old]["type"]]
    data[key] = rng.choice(alike) if alike and rng.random() < 0.7 else rng.choice(earlier)


def _bytes(data: str, rng: Random) -> str:
    try:
        raw = bytearray(base64.b64decode(data))
    except ValueError:
        return data
    if raw:
        raw[rng.randrange(min(len(raw), 80))] ^= 1 << rng.randrange(8)
    return base64.b64encode(raw).decode()
