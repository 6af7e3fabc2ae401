"""Sources of a model as a program, which runs here or on QEMU's boards of Cortex-M."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wvla", "-pedantic"]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"]
_CORTEX = "-mthumb -mfloat-abi=hard --specs=rdimon.specs -T board.ld"
BOARDS = {
    "cortex-m4": ("mps2-an386", f"-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 {_CORTEX}".split()),
    "cortex-m7": ("mps2-an500", f"-mcpu=cortex-m7 -mfpu=fpv5-d16 {_CORTEX}".split()),
}
"""Boards that QEMU has, and what GCC is told of their processors."""
BOARD = """\
MEMORY { FLASH (rx) : ORIGIN = 0, LENGTH = 4M  RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS {
  .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) } > FLASH
  .ARM.exidx : { *(.ARM.exidx*) } > FLASH
  .data : { *(.data*) } > RAM
  .bss : { __bss_start__ = .; *(.bss*) *(COMMON) __bss_end__ = .; end = .; __end__ = .; } > RAM
}
"""
START = """\
#include <stdint.h>
extern void _start(void);
static void reset(void)
{
  *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* the unit of floats is switched on */
  __asm__ volatile("dsb\\nisb");
  _start();
}
__attribute__((section(".vectors"), used)) static const uintptr_t vectors[] = {
  0x20400000, (uintptr_t)reset
};
"""


def on_board(folder: Path, processor: str, level: str = "-Os") -> tuple[list[str], list[str]]:
    """Returns what compiles the program of a folder for a processor, and what runs it."""
    (folder / "board.ld").write_text(BOARD)
    (folder / "start.c").write_text(START)
    board, flags = BOARDS[processor]
    run = ["qemu-system-arm", "-M", board, "-nographic", "-semihosting", "-kernel"]
    return ["arm-none-eabi-gcc", level, *flags], run


def write_program(folder: Path, feeds: Sequence[Mapping[str, NDArray[Any]]], runs: int = 1) -> None:
    """Writes a program that runs the model on arrays and prints the bytes of its results.

    Args:
        folder: Where the model's sources are.
        feeds: Inputs, by name.
        runs: How often it runs on each of them.
    """
    header = sources(folder)[1].removesuffix(".c")
    text = (folder / f"{header}.h").read_text()
    found = re.search(r"_run\((.*)\);", text)
    assert found is not None
    given, taken = [], []
    for parameter in found[1].split(", "):
        kind, name, count = re.fullmatch(r"(?:const )?(\w+) (\w+)\[(\d+)\]", parameter).groups()  # type: ignore[union-attr]
        (given if parameter.startswith("const") else taken).append((kind, name, int(count)))
    lines = ["#include <stdio.h>", "#include <string.h>", f'#include "{header}.h"']
    lines += [f"static {kind} {name}[{count}];" for kind, name, count in (*given, *taken)]
    body: list[str] = []
    for number, feed in enumerate(feeds):
        for (_, name, _), array in zip(given, feed.values(), strict=True):
            data = ",".join(map(str, array.tobytes()))
            lines.append(f"static const unsigned char fed_{number}_{name}[] = {{{data}}};")
            body.append(f"memcpy({name}, fed_{number}_{name}, sizeof {name});")
        call = f"{header}_run({', '.join(name for _, name, _ in (*given, *taken))});"
        body.append(f"for (int i = 0; i < {runs}; i++) {call}" if runs != 1 else call)
        for _, name, _ in taken:
            body.append(
                f"for (unsigned i = 0; i < sizeof {name}; i++) "
                f'printf("%02x", ((const unsigned char *){name})[i]);'
            )
    lines += ["int main(void) {", *body, 'printf("\\n"); return 0; }', ""]
    (folder / "check.c").write_text("\n".join(lines))


def sources(folder: Path) -> list[str]:
    """Returns the files of the program of a folder."""
    name = next(folder.glob("*_data.h")).name.removesuffix("_data.h")
    return ["check.c", f"{name}.c", f"{name}_data.c"]


def results(folder: Path, compiler: Sequence[str], run: Sequence[str] = ()) -> str:
    """Builds the program of a folder with warnings as errors, and returns what it prints."""
    more = ["start.c"] if "board.ld" in compiler else []
    command = [*compiler, *STRICT, *sources(folder), *more, "-lm", "-o", "check"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    done = subprocess.run(
        [*run, "./check"], cwd=folder, check=True, timeout=60, capture_output=True, text=True
    )
    return done.stdout.strip()


def wanted(graph: Graph, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> str:
    """Returns what a program prints whose results are the interpreter's."""
    return "".join(r.tobytes().hex() for feed in feeds for r in qb.evaluate(graph, feed).values())
