"""Files of ai-edge-quantizer 0.10: the digits MLP, its weights half floats, of 4 and 2 bits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import QdqBridgeError
from qdqbridge.tflite_io.schema import parsed
from tests.places import MODELS

pytest.importorskip("tflite")
FILES = Path(__file__).parent / "quantizer"


def outputs(file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns what LiteRT computes of twelve digits, and the interpreter."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    runner = litert.Interpreter(str(file))
    runner.allocate_tensors()
    (given,), (made,) = runner.get_input_details(), runner.get_output_details()
    graph, there, here = qb.load(file), list[NDArray[Any]](), list[NDArray[Any]]()
    for image in np.load(MODELS / "digits_test.npz")["x"][:12]:
        runner.set_tensor(given["index"], image.reshape(given["shape"]))
        runner.invoke()
        there.append(runner.get_tensor(made["index"]))
        fed = {graph.inputs[0].name: image.reshape(given["shape"])}
        here += qb.evaluate(graph, fed).values()
    return np.concatenate(there), np.concatenate(here)


def decibels(wanted: NDArray[Any], found: NDArray[Any]) -> float:
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("float16", 120),  # float32 sums in another order
        ("weight_only_wi4_afp32", 120),
        ("dyn_wi4b32", 40),  # LiteRT quantizes the activations while it runs
        ("dyn_wi2", 40),
    ],
)
def test_they_are_read_as_litert_reads_them(name: str, least: float) -> None:
    assert decibels(*outputs(FILES / f"{name}.tflite")) > least


def stored(name: str) -> Counter[DType]:
    """Returns how many weights a file has of each type."""
    constants = [o for n in qb.load(FILES / f"{name}.tflite").nodes for _, o in n.data_operands()]
    return Counter(o.quant.params.storage_dtype for o in constants if o.is_constant and o.quant)


def test_weights_keep_their_bits_and_blocks() -> None:
    assert stored("weight_only_wi4_afp32") == {DType.INT4: 4}
    assert stored("dyn_wi2") == {DType.INT2: 4}
    assert stored("dyn_wi4b32") == {DType.INT4: 4}
    graph = qb.load(FILES / "dyn_wi4b32.tflite")
    weights = [o for n in graph.nodes for _, o in n.data_operands() if o.is_constant and o.quant]
    found = Counter(w.quant.params.scale.shape for w in weights if w.quant is not None)
    # blocks of 32 along 64 and 32 inputs: where there is one for each row, it is a scale per row
    assert found == {(64, 2): 2, (32, 2): 1, (10,): 1}


@pytest.mark.parametrize("place", ["scales", "size"])
def test_blocks_that_do_not_fit_are_refused_by_name(place: str, tmp_path: Path) -> None:
    data = bytearray((FILES / "dyn_wi4b32.tflite").read_bytes())
    tensor = next(t for t in parsed(bytes(data), "f").subgraphs[0].tensors if t.blocks)
    assert tensor.blocks is not None
    old, new = (tensor.blocks.scales, 0) if place == "scales" else (tensor.blocks.size, 7)
    refused = 0
    for at in range(len(data) - 4):
        if int.from_bytes(data[at : at + 4], "little") != old:
            continue
        broken = bytearray(data)
        broken[at : at + 4] = new.to_bytes(4, "little")
        (tmp_path / "b.tflite").write_bytes(broken)
        try:
            qb.load(tmp_path / "b.tflite")
        except QdqBridgeError as error:
            refused += tensor.name in str(error)
    assert refused
