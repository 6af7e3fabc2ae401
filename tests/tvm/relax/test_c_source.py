"""Graphs as C: the same bits here, on 64-bit Arm and on Cortex-M; sizes; what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.core.canonical.interface import with_interface
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import OutputExistsError, UnsupportedTargetError
from qdqbridge.tvm.relax.c_source.functions import ALIGNED, ArenaNeed, arena
from tests.places import MODELS, ROOT
from tests.tvm.relax.c_programs import (
    BOARDS,
    SANITIZED,
    on_board,
    results,
    wanted,
    write_program,
)
from tests.tvm.relax.kernels.test_weight_codes import INNER, UNITS, network

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
on_arm = pytest.mark.skipif(
    not all(map(shutil.which, ("aarch64-linux-gnu-gcc", "qemu-aarch64"))),
    reason="it takes aarch64-linux-gnu-gcc and qemu-aarch64",
)
on_cortex_m = pytest.mark.skipif(
    not all(map(shutil.which, ("arm-none-eabi-gcc", "qemu-system-arm"))),
    reason="it takes arm-none-eabi-gcc, its newlib, and qemu-system-arm",
)


def _one(graph: Graph) -> dict[str, int]:
    return {str(e): 1 for v in graph.inputs for e in v.type.shape or () if isinstance(e, str)}


def _written(model: str, folder: Path, target: Any = "c") -> Graph:
    graph = qb.load(MODELS / f"{model}.onnx")
    qb.save(graph, folder, target=target, extents=_one(graph), overwrite=True)
    return graph


def _images(graph: Graph, count: int) -> list[dict[str, NDArray[Any]]]:
    with np.load(MODELS / "digits_test.npz") as held:
        images = next(held[name] for name in held.files if held[name].ndim == 4)
    (name,) = (value.name for value in graph.inputs)
    return [{name: images[i : i + 1].astype(np.float32)} for i in range(count)]


_CNN = "digits_cnn_u8s8_per_channel"


@needs_gcc
@pytest.mark.parametrize(
    ("model", "target"),
    [
        (_CNN, "c"),
        ("digits_cnn_s8s8_per_tensor", {"kind": "c", "mcpu": "cortex-m7"}),
        ("digits_attention_u8s8_per_channel", "c/cortex-m33"),
    ],
)
def test_bits_are_those_of_the_interpreter(model: str, target: Any, tmp_path: Path) -> None:
    graph = _written(model, tmp_path, target)
    feeds = _images(graph, 4)
    write_program(tmp_path, feeds)
    assert results(tmp_path, ["gcc", *SANITIZED]) == wanted(graph, feeds)


@needs_gcc
@pytest.mark.parametrize(
    ("kind", "size", "target"),
    [("uint4 each", 32, "c/cortex-m4"), ("int4", 16, "c"), ("int8", 128, "c/cortex-m7")],
)
def test_codes_of_blocks_stay_packed(kind: str, size: int, target: str, tmp_path: Path) -> None:
    graph = network(kind, size, (3, INNER), rounded=True)
    qb.save(graph, tmp_path, target=target)
    x = np.random.default_rng(size).normal(0, 1, (2, 3, INNER)).astype(np.float32)
    feeds = [{"x": rows} for rows in x]
    write_program(tmp_path, feeds)
    assert results(tmp_path, ["gcc", *SANITIZED]) == wanted(graph, feeds)
    header = (tmp_path / f"{tmp_path.name}.h").read_text()
    arena_bytes, weights = (int(n) for n in re.findall(r"_BYTES (\d+)", header))
    codes = (UNITS + 1) * INNER * (1 if kind == "int8" else 0.5)
    # a scale and a zero point of every block, which are rounded up to pairs of columns, and biases
    assert weights <= codes + (UNITS + 1) * (8 * INNER / size + 4)
    assert arena_bytes <= 3 * INNER * (1 + 8 / size) + 4 * INNER


@needs_gcc
def test_a_maximum_is_read_again_behind_a_store(tmp_path: Path) -> None:
    """TVM's generator takes an operand of max from where it kept it before."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,4,1] x) => (float[1,4,1] y) '
    onnx.save(onnx.parser.parse_model(text + "{ y = Softmax(x) }"), tmp_path / "row.onnx")
    graph, folder = qb.load(tmp_path / "row.onnx"), tmp_path / "row"
    qb.save(graph, folder, target="c")
    feeds = [{"x": np.array([[[1.0], [-2.0], [0.0], [88.0]]], np.float32)}]
    write_program(folder, feeds)
    assert results(folder, ["gcc"]) == wanted(graph, feeds)


@on_arm
def test_bits_on_64_bit_arm(tmp_path: Path) -> None:
    graph = _written(_CNN, tmp_path)
    feeds = _images(graph, 4)
    write_program(tmp_path, feeds)
    found = results(tmp_path, ["aarch64-linux-gnu-gcc", "-O2", "-static"], ["qemu-aarch64"])
    assert found == wanted(graph, feeds)


@on_cortex_m
@pytest.mark.parametrize("processor", BOARDS)
def test_cortex_m_has_the_bits_in_48_kb_of_code(processor: str, tmp_path: Path) -> None:
    graph = _written(_CNN, tmp_path, f"c/{processor}")
    feeds = _images(graph, 4)
    write_program(tmp_path, feeds)
    compiler, run = on_board(tmp_path, processor)
    found = results(tmp_path, compiler, run)
    assert found == wanted(graph, feeds)
    source = next(tmp_path.glob("*_data.h")).name.removesuffix("_data.h") + ".c"
    subprocess.run(
        [*compiler[:6], "-std=c99", "-c", source, "-o", "model.o"],
        cwd=tmp_path, check=True, timeout=60,
    )  # fmt: skip
    sizes = subprocess.run(
        ["arm-none-eabi-size", "model.o"], cwd=tmp_path, check=True, timeout=10,
        capture_output=True, text=True,
    ).stdout.split()[6:9]  # fmt: skip
    assert int(sizes[0]) <= 48 << 10
    symbols = subprocess.run(
        ["arm-none-eabi-nm", "-u", "model.o"], cwd=tmp_path, check=True, timeout=10,
        capture_output=True, text=True,
    ).stdout.split()[1::2]  # fmt: skip
    assert {s for s in symbols if "_data_" not in s} <= {"memcpy", "memset", "memmove", "fmaf"}


@needs_gcc
def test_the_page_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8").partition("## On a microcontroller")[2]
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL))
    exec(blocks["python"], {"qb": qb, "graph": qb.load(MODELS / f"{_CNN}.onnx")})
    (tmp_path / "digits" / "check.c").write_text(blocks["c"])
    printed = results(tmp_path / "digits", ["gcc", "-Os"])
    header = (tmp_path / "digits" / "digits.h").read_text()
    found = re.search(r"ARENA_BYTES (\d+)", header)
    assert found is not None and printed.endswith(f"from {found[1]} bytes of RAM")
    (tmp_path / "digits" / "check.c").write_text((tmp_path / "digits" / "main.c").read_text())
    assert results(tmp_path / "digits", ["gcc", "-Os"]).count("logits[") == 10


def test_the_header_has_the_quantization_of_integers(tmp_path: Path) -> None:
    graph = qb.load(MODELS / f"{_CNN}.onnx")
    qb.save(graph, tmp_path / "digits", target="c", extents={"batch": 1}, io="as-stored")
    header = (tmp_path / "digits" / "digits.h").read_text()
    (value,) = with_interface(graph, "as-stored").inputs
    assert value.quant is not None
    scale = float(value.quant.params.scale).hex()
    assert f"#define DIGITS_INPUT_SCALE {scale}f" in header
    assert f"#define DIGITS_INPUT_ZERO_POINT {int(value.quant.params.zero_point)}" in header
    assert "const uint8_t input[64]" in header


def test_what_has_no_c_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    graph = qb.load(MODELS / f"{_CNN}.onnx")
    with pytest.raises(UnsupportedTargetError, match="written as C") as error:
        qb.save(graph, tmp_path / "open", target="c")
    assert "open extents: batch" in error.value.why and "batch=1" in error.value.fix
    with pytest.raises(UnsupportedTargetError, match="no processor") as error:
        qb.save(graph, tmp_path / "open", target="c/cortex-m9", extents={"batch": 1})
    assert "cortex-m" in error.value.fix
    with pytest.raises(UnsupportedTargetError, match="save writes nothing"):
        qb.save(graph, tmp_path / "open", target="aarch64-linux-gnu", extents={"batch": 1})
    with pytest.raises(UnsupportedTargetError, match="not supported") as error:
        qb.compile(graph, {"kind": "c"})
    assert "target='c'" in error.value.fix
    assert not list(tmp_path.iterdir())
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "main.c").write_text("mine")
    with pytest.raises(OutputExistsError):
        qb.save(graph, tmp_path / "kept", target="c", extents={"batch": 1})
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["main.c"]


def test_the_command_prints_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = str(MODELS / f"{_CNN}.onnx"), tmp_path / "out"
    command = ["to-tvm", model, "-o", str(folder), "--target", "c/cortex-m7", "--extent", "batch=1"]
    assert run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    header = (folder / "out.h").read_text()
    assert f"OUT_ARENA_BYTES {told['arena']}\n" in header
    assert f"OUT_WEIGHT_BYTES {told['weights']}\n" in header


def test_arenas_hold_what_is_needed_together_apart() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        first = rng.integers(0, 20, 30)
        last = first + rng.integers(0, 6, 30)
        needs = [
            ArenaNeed(int(n), int(a), int(b))
            for n, a, b in zip(rng.integers(0, 999, 30), first, last, strict=True)
        ]
        found = arena(needs)
        for step in range(26):
            taken = np.zeros(found.nbytes, int)
            for need, offset in zip(needs, found.offsets, strict=True):
                assert offset % ALIGNED == 0
                if need.first <= step <= need.last:
                    taken[offset : offset + need.nbytes] += 1
            assert taken.max(initial=0) <= 1
        at_once = max(sum(n.nbytes for n in needs if n.first <= s <= n.last) for s in range(26))
        assert at_once <= found.nbytes <= 2 * at_once
