"""Networks as C on Cortex-M: bits, flash, memory, executed instructions; beside CMSIS-NN's kernels.

``scripts/bench microcontroller``: the digits CNN of ``models/``, and a keyword spotter and a person
detector with random weights (see run_networks.py), which ``quantize`` quantizes, or files of one's
own (``--model``), are written by ``save(..., target="c/PROCESSOR")``, built by arm-none-eabi-gcc
with warnings as errors, and run by QEMU on boards of its own, whose counts of instructions are
exact; counts are not cycles. Results have to be the interpreter's, bit for bit. ``--elsewhere``
builds the same sources for this machine, with ASan and UBSan, and for 64-bit Arm (qemu-aarch64).

``--cmsis-nn FOLDER`` (a checkout of https://github.com/ARM-software/CMSIS-NN) counts its kernels
too, called in turn with the same shapes and without an interpreter: what TensorFlow Lite Micro has
at best. Arrays are two that are used by turns, and what the kernels ask for besides.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from run_networks import MICROCONTROLLERS

sys.path.insert(0, str(Path(__file__).parents[2]))

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.ops.attributes import ConvAttrs
from tests.tvm.relax.c_programs import (
    BOARDS,
    SANITIZED,
    on_board,
    results,
    sources,
    wanted,
    write_program,
)

Feeds = Mapping[str, NDArray[Any]]
DIGITS = Path(__file__).parents[2] / "models" / "digits_cnn_u8s8_per_channel.onnx"
_SECONDS = 300
"""Longest run of a program."""


# ---- models -----------------------------------------------------------------------------------


def graphs(
    names: Sequence[str], files: Sequence[Path], folder: Path
) -> Iterator[tuple[str, Graph]]:
    """Yields the networks by name; quantized files are kept in a folder."""
    for name in names:
        if name == "digits":
            yield name, qb.load(DIGITS)
            continue
        path = folder / f"{name}.qdq.onnx"
        if not path.exists():
            real = folder / f"{name}.onnx"
            onnx.save(MICROCONTROLLERS[name](), real)
            graph = qb.load(real)
            seen = list(feeds(graph, 8, 0))
            qb.save(qb.quantize(graph, seen), path)
        yield name, qb.load(path)
    for file in files:
        yield file.stem, qb.load(file)


def ones(graph: Graph) -> dict[str, int]:
    """Returns 1 for every open extent."""
    return {str(e): 1 for v in graph.inputs for e in v.type.shape or () if isinstance(e, str)}


def feeds(graph: Graph, count: int, seed: int) -> Iterator[Feeds]:
    """Yields seeded inputs."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {
            value.name: rng.standard_normal(_extents(value)).astype(np.float32)
            for value in graph.inputs
        }


# ---- ours -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What a program takes.

    Attributes:
        code: Bytes of functions.
        constants: Bytes of constants.
        memory: Bytes of the arena, or of arrays.
        stack: Bytes of the deepest calls.
        instructions: Of a run.
    """

    code: int
    constants: int
    memory: int
    stack: int
    instructions: int

    def __str__(self) -> str:
        return (
            f"{self.code / 1e3:.1f} | {self.constants / 1e3:.1f} | {self.memory / 1e3:.1f} | "
            f"{self.stack or '–'} | {self.instructions / 1e6:.2f}"
        )


def plugin(folder: Path) -> Path:
    """Returns QEMU's plugin that counts, built in a folder."""
    source, library = Path(__file__).with_name("count_instructions.c"), folder / "count.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O2", str(source), "-o", str(library)], check=True, timeout=60
    )
    return library


def counted(folder: Path, run: Sequence[str], counter: Path) -> int:
    """Returns how many instructions the program of a folder executes."""
    done = subprocess.run(
        [run[0], "-plugin", str(counter), *run[1:], "./check"], cwd=folder, check=True,
        timeout=_SECONDS, capture_output=True, text=True,
    )  # fmt: skip
    return int(done.stderr.rpartition("instructions: ")[2].split()[0])


def sections(folder: Path, compiler: Sequence[str], file: str) -> tuple[int, int, int]:
    """Returns bytes of functions and of constants of a file, and the most that calls stack up."""
    subprocess.run(
        [*_compiling(compiler), "-fstack-usage", "-std=c99", "-c", file, "-o", "part.o"],
        cwd=folder, check=True, timeout=_SECONDS,
    )  # fmt: skip
    listed = subprocess.run(
        ["arm-none-eabi-size", "-A", "part.o"], cwd=folder, check=True, timeout=60,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = [(name, int(size)) for name, size in re.findall(r"^(\.\S+)\s+(\d+)", listed, re.M)]
    frames = [int(line.split("\t")[1]) for line in (folder / "part.su").read_text().splitlines()]
    own = sum(size for name, size in found if name.startswith(".text"))
    data = sum(size for name, size in found if name.startswith((".rodata", ".data")))
    return own, data, sum(sorted(frames)[-2:])


def _compiling(compiler: Sequence[str]) -> list[str]:
    """Returns a compiler without what only linking takes."""
    return [part for part in compiler if part not in ("-T", "board.ld", "--specs=rdimon.specs")]


def ours(graph: Graph, processor: str, level: str, folder: Path, counter: Path) -> Figures:
    """Returns the figures of a graph, whose bits are looked at."""
    qb.save(graph, folder, target=f"c/{processor}", extents=ones(graph), overwrite=True)
    seen = list(feeds(graph, 2, 1))
    compiler, run = on_board(folder, processor, level)
    write_program(folder, seen)
    if results(folder, compiler, run) != wanted(graph, seen):
        raise SystemExit(f"{folder.name}: other bits on {processor}, {level}")
    counts: list[int] = []
    for runs in (1, 2):
        write_program(folder, seen[:1], runs)
        results(folder, compiler, run)
        counts.append(counted(folder, run, counter))
    parts = [sections(folder, compiler, file) for file in sources(folder)[1:]]
    header = (folder / f"{sources(folder)[1][:-2]}.h").read_text()
    arena = re.search(r"ARENA_BYTES (\d+)", header)
    assert arena is not None
    return Figures(
        sum(p[0] for p in parts), sum(p[1] for p in parts), int(arena[1]),
        max(p[2] for p in parts), counts[1] - counts[0],
    )  # fmt: skip


def elsewhere(graph: Graph, folder: Path) -> None:
    """Looks at the bits on this machine, with ASan and UBSan, and on 64-bit Arm."""
    seen = list(feeds(graph, 2, 1))
    ways = (
        (["gcc", *SANITIZED], []), (["gcc", "-O3", "-march=native"], []),
        (["aarch64-linux-gnu-gcc", "-O2", "-static"], ["qemu-aarch64"]),
    )  # fmt: skip
    write_program(folder, seen)
    for compiler, run in ways:
        if results(folder, compiler, run) != wanted(graph, seen):
            raise SystemExit(f"{folder.name}: other bits with {' '.join(compiler)}")


# ---- CMSIS-NN ---------------------------------------------------------------------------------


_CMSIS = """\
#include "arm_nnfunctions.h"
#include <stdio.h>
#define CHANNELS 2048
#define ALIGNED __attribute__((aligned(8)))
static int8_t one[ARRAY] ALIGNED, two[ARRAY] ALIGNED, room[ROOM] ALIGNED;
static const int32_t bias[CHANNELS] = {1};
static int32_t multiplier[CHANNELS], shift[CHANNELS];
static int32_t most;
CONSTANTS
static void run(void)
{
  cmsis_nn_context context = {room, sizeof room};
  int32_t size;
CALLS
}
int main(void)
{
  for (int i = 0; i < CHANNELS; i++) { multiplier[i] = 1 << 30; shift[i] = -7; }
  for (int i = 0; i < RUNS; i++) run();
  printf("%d\\n", (int)most);
  return 0;
}
"""


def _dims(n: int, h: int, w: int, c: int) -> str:
    return f"&(const cmsis_nn_dims){{{n}, {h}, {w}, {c}}}"


def _extents(value: Value) -> tuple[int, ...]:
    return tuple(1 if isinstance(e, str) else e for e in value.type.shape or ())


def _shape(node: Node, index: int) -> tuple[int, ...]:
    return _extents(node.operand(index))


def _image(shape: Sequence[int]) -> str:
    return _dims(1, shape[2], shape[3], shape[1])


def _call(node: Node, number: int, source: str, target: str) -> str:
    """Returns the call of the kernel of a node."""
    x, y = _shape(node, 0), _extents(node.output)
    context, clip = "&context", "{-128, 127}"
    if node.op.name == "Conv":
        attrs, k = node.record(ConvAttrs), _shape(node, 1)
        strides, pads = (f"{{{each[1]}, {each[0]}}}" for each in (attrs.strides, attrs.pads))
        places = f"{strides}, {pads}, {{1, 1}}, {clip}"
        if attrs.group == 1:
            kernel, filters = "convolve", _dims(k[0], k[2], k[3], k[1])
            params = f"&(const cmsis_nn_conv_params){{128, -128, {places}}}"
        else:
            kernel, filters = "depthwise_conv", _dims(1, k[2], k[3], k[0])
            params = f"&(const cmsis_nn_dw_conv_params){{128, -128, {k[0] // x[1]}, {places}}}"
        name = f"arm_{kernel}_wrapper_s8"
        quant = "&(const cmsis_nn_per_channel_quant_params){multiplier, shift}"
        bias = _dims(1, 1, 1, k[0])
        given = [
            context, params, quant, _image(x), source, filters, f"w{number}", bias, "bias",
            _image(y), target,
        ]  # fmt: skip
        sizes = ", ".join([params, _image(x), filters, _image(y)])
        room = [
            f"  size = {name}_get_buffer_size({sizes});",
            "  if (size > most) most = size;",
        ]
        return "\n".join([*room, _checked(name, given)])
    if node.op.name == "Dense":
        rows, columns, many = y[-1], x[-1], prod(x[:-1])
        params = f"&(const cmsis_nn_fc_params){{128, 0, -128, {clip}}}"
        quant = "&(const cmsis_nn_per_tensor_quant_params){1 << 30, -7}"
        given = [
            context, params, quant, _dims(many, 1, 1, columns), source,
            _dims(columns, 1, 1, rows), f"w{number}", _dims(1, 1, 1, rows), "bias",
            _dims(many, 1, 1, rows), target,
        ]  # fmt: skip
        return _checked("arm_fully_connected_s8", given)
    name = "arm_max_pool_s8" if node.op.name == "MaxPool" else "arm_avgpool_s8"
    high, wide = (x[i] // y[i] for i in (2, 3))
    params = f"&(const cmsis_nn_pool_params){{{{{wide}, {high}}}, {{0, 0}}, {clip}}}"
    return _checked(
        name, [context, params, _image(x), source, _dims(1, high, wide, 1), _image(y), target]
    )


def _checked(name: str, arguments: Sequence[str]) -> str:
    return f'  if ({name}({", ".join(arguments)}) != 0) puts("{name} refuses");'


_COUNTED = ("Conv", "Dense", "GlobalAveragePool", "AveragePool", "MaxPool")


def cmsis_nn(
    graph: Graph, processor: str, level: str, checkout: Path, folder: Path, counter: Path
) -> Figures:
    """Returns the figures of CMSIS-NN's kernels of the same shapes."""
    folder.mkdir(exist_ok=True)
    nodes = [node for node in graph.nodes if node.op.name in _COUNTED]
    arrays = [prod(_shape(node, 0)) for node in nodes]
    constants: list[str] = []
    calls: list[str] = []
    for number, node in enumerate(nodes):
        if node.op.name in ("Conv", "Dense"):
            constants.append(f"const int8_t w{number}[{prod(_shape(node, 1))}] = {{1}};")
        calls.append(_call(node, number, *(("one", "two") if number % 2 == 0 else ("two", "one"))))
    largest = max(arrays)
    text = _CMSIS.replace("CONSTANTS", "\n".join(constants)).replace("CALLS", "\n".join(calls))
    text = text.replace("ARRAY", str(largest)).replace("ROOM", str(1 << 16))
    compiler, run = on_board(folder, processor, level)
    library = folder / "cmsis.a"
    include = ["-I", str(checkout / "Include")]
    if not library.exists():
        files = [
            str(file)
            for part in ("Convolution", "FullyConnected", "Pooling", "NNSupport")
            for file in sorted((checkout / "Source" / f"{part}Functions").glob("*.c"))
            if not re.search(r"_(f16|f32|flt|s4)", file.name)
        ]
        subprocess.run(
            [*_compiling(compiler), *include, "-c", *files],
            cwd=folder, check=True, timeout=_SECONDS,
        )  # fmt: skip
        objects = sorted(map(str, folder.glob("arm_*.o")))
        subprocess.run(["arm-none-eabi-ar", "rc", str(library), *objects], check=True, timeout=60)
    counts: list[int] = []
    most = 0
    for runs in (1, 2):
        (folder / "check.c").write_text(text.replace("RUNS", str(runs)))
        subprocess.run(
            [*compiler, "-Wl,-Map=check.map", *include, "check.c", "start.c",
             str(library), "-o", "check"], cwd=folder, check=True, timeout=_SECONDS,
        )  # fmt: skip
        told = subprocess.run(
            [*run, "./check"],
            cwd=folder,
            check=True,
            timeout=_SECONDS,
            capture_output=True,
            text=True,
        ).stdout.split()
        if len(told) != 1:
            raise SystemExit(f"CMSIS-NN: {' '.join(told)}")
        most = int(told[0])
        counts.append(counted(folder, run, counter))
    code = sum(
        int(size, 16)
        for size in re.findall(
            r"^ \.text\s+0x\w+\s+0x(\w+) \S*cmsis\.a",
            (folder / "check.map").read_text().partition("Memory Configuration")[2], re.M,
        )
    )  # fmt: skip
    # weights, and of every output channel a sum, a multiplier and a shift
    weights = sum(
        prod(_shape(n, 1)) + 12 * _shape(n, 1)[0] for n in nodes if n.op.name in ("Conv", "Dense")
    )
    live = max(prod(_shape(n, 0)) + prod(_extents(n.output)) for n in nodes)
    return Figures(code, weights, live + most, 0, counts[1] - counts[0])


# ---- command ----------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(prog="bench microcontroller", description=__doc__)
    names = ("digits", *MICROCONTROLLERS)
    parser.add_argument("networks", nargs="*", choices=[*names, []], metavar="NETWORK")
    parser.add_argument("--model", nargs="*", type=Path, default=[], help="quantized files")
    parser.add_argument("--processors", nargs="*", choices=BOARDS, default=list(BOARDS))
    parser.add_argument("--levels", nargs="*", default=["Os", "O2"], help="of optimization")
    parser.add_argument("--elsewhere", action="store_true", help="look at other compilers")
    parser.add_argument("--cmsis-nn", type=Path, metavar="FOLDER", help="count its kernels too")
    parser.add_argument("--folder", type=Path, help="where files are kept between runs")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        counter = plugin(folder)
        chosen = given.networks or ([] if given.model else names)
        print("| network | processor | code kB | constants kB | RAM kB | stack | M instructions |")
        print("|---|---|---|---|---|---|---|")
        for name, graph in graphs(chosen, given.model, folder):
            for processor in given.processors:
                for level in (f"-{own}" for own in given.levels):
                    mine = ours(graph, processor, level, folder / f"{name}_c", counter)
                    print(f"| {name} | {processor} {level} | {mine} |", flush=True)
                    if given.cmsis_nn:
                        place = folder / f"cmsis{processor}{level}"
                        other = cmsis_nn(graph, processor, level, given.cmsis_nn, place, counter)
                        print(f"| … CMSIS-NN | {processor} {level} | {other} |", flush=True)
            if given.elsewhere:
                elsewhere(graph, folder / f"{name}_c")
                print(f"{name}: the same bits elsewhere")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
