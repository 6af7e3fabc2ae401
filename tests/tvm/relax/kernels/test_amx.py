"""Tiles of AMX: how registers are divided up everywhere, and bits where the CPU has them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import ConvAttrs, GemmAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import (
    AVX512_VNNI,
    amx_of_this_machine,
    host_target,
)
from qdqbridge.tvm.relax.kernels.products import convolution
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    LANES,
    ROWS,
    STEPS,
    AmxShape,
    steps_at_once,
)
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import HOST, Cases, Operand

WITH_AMX = replace(AVX512_VNNI, amx=True)


def _direct(columns: int, rows: int, channels: int, inner: int, threads: int = 1) -> Direct:
    """Returns the description of a convolution of 1 x 1, compiled for nobody."""
    rng = np.random.default_rng(0)
    cases = Cases(
        lambda node, place: convolution.match_conv(node, replace(place, threads=threads)), WITH_AMX
    )
    x = Operand(every_code(rng, "uint8", (1, inner, rows, columns)), params("uint8", 0.02, 3))
    w = Operand(every_code(rng, "int8", (channels, inner, 1, 1)), params("int8", 0.004), fixed=True)
    attributes = ConvAttrs((2, 2), (1, 1), (0, 0, 0, 0))
    kernel = cases.add("Conv", attributes, [x, w], params("uint8", 0.2), last=True)
    assert kernel is not None and isinstance(kernel.description, tuple)
    (direct,) = kernel.description
    assert isinstance(direct, Direct)
    return direct


@pytest.mark.parametrize("channels", [8, 32, 48])
def test_registers_are_eight_at_most_and_each_has_one_use(channels: int) -> None:
    for columns in range(3, 150, 7):
        found = _direct(columns, 5, channels, 64).amx
        assert found is not None
        assert len(found.registers) <= 8
        assert all(1 <= rows <= ROWS and 4 <= size <= 64 for rows, size in found.registers)
        named = [found.sums(r, b) for r in range(len(found.heights)) for b in range(found.blocks)]
        named += [found.activations(r) for r in range(len(found.heights))]
        named += [found.weights(b) for b in range(found.blocks)]
        assert named == list(range(len(found.registers)))


def test_steps_are_multiplied_in_parts_of_a_run() -> None:
    for steps in range(1, 200):
        once = steps_at_once(steps)
        assert once is None or (once <= STEPS and steps % once == 0)
    assert [steps_at_once(n) for n in (1, 6, 16, 17, 18, 48, 60)] == [1, 6, 16, None, 9, 16, 15]


def test_few_pixels_and_runs_without_parts_are_left_to_vectors() -> None:
    assert _direct(5, 1, 32, 64).amx is None
    assert _direct(40, 9, 32, 68).amx is None
    assert _direct(40, 9, 32, 64).amx == AmxShape((10, 10), 2, 16)
    assert WITH_AMX.lanes == LANES


def test_threads_share_rows_where_there_are_few_channels() -> None:
    assert _direct(24, 24, 32, 64, threads=2).row_shares == 2
    assert _direct(24, 24, 128, 64, threads=2).channel_shares == 2


def test_bits_of_tiles_that_overlap() -> None:
    """Results of every width, so that the last tiles of a row repeat pixels of those before."""
    cases, rng = Cases(convolution.match_conv), np.random.default_rng(1)
    out = params("uint8", 0.3, 4)
    for columns in (4, 7, 14, 15, 17, 31, 33, 49, 65):
        for rows, channels in ((1, 40), (3, 16), (5, 64)):
            x = Operand(every_code(rng, "uint8", (1, 20, rows, columns)), params("uint8", 0.02, 9))
            w = every_code(rng, "int8", (channels, 20, 3, 3))
            attributes = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1))
            operands = [x, Operand(w, params("int8", 0.004), fixed=True)]
            cases.add("Conv", attributes, operands, out, last=True)
    cases.check()


def test_bits_of_open_numbers_of_rows() -> None:
    cases, rng = Cases(convolution.match_constant_matmul, opened=True), np.random.default_rng(2)
    out = params("uint8", 0.3, 4)
    for rows in (*range(1, 12), 15, 16, 31, 42, 43, 44, 47, 48, 49, 63, 86, 200):
        x = Operand(every_code(rng, "uint8", (rows, 3, 60)), params("uint8", 0.02, 9))
        w = Operand(every_code(rng, "int8", (70, 60)), params("int8", 0.004), fixed=True)
        cases.add("Dense", GemmAttrs(), [x, w], out)
    cases.check()


def test_a_target_says_what_the_process_may_use() -> None:
    named = str(host_target())
    assert all(f"+{feature}" in named for feature in amx_of_this_machine())
    assert HOST.amx == ("amx-int8" in amx_of_this_machine())


def test_a_process_that_never_compiled_asks_by_itself() -> None:
    code = "from qdqbridge.tvm.relax.kernels.codegen import processors\n"
    code += "print(processors.cpu_of(processors.host_target()).amx)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split() == [str(HOST.amx)]
