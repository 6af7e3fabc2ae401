"""The files of a graph in C: header, functions, constants, an example, and how they are built."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.atomic_write import placed_together
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import static_shape
from qdqbridge.errors import OutputFileError, UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.graph import agreed
from qdqbridge.tvm.relax.c_source.functions import (
    C_TYPES,
    Arena,
    ArenaNeed,
    Array,
    KernelCall,
    KernelCalls,
    arena,
    lifetimes,
    steps_of,
    support,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import CORTEX_M, GENERIC_C, Cpu
from qdqbridge.tvm.relax.kernels.plan import emit_plan, plan
from qdqbridge.tvm.relax.lowering import lowered

# ---- The processors that C is written for, by the names that compilers have for them -------------


_SINGLE, _DOUBLE = "-mfpu=fpv4-sp-d16 -mfloat-abi=hard", "-mfpu=fpv5-d16 -mfloat-abi=hard"
_CORTEX = {
    "cortex-m0": "", "cortex-m0plus": "", "cortex-m3": "", "cortex-m23": "",
    "cortex-m4": _SINGLE, "cortex-m7": _DOUBLE,
    "cortex-m33": "-mfpu=fpv5-sp-d16 -mfloat-abi=hard", "cortex-m55": "-mfloat-abi=hard",
}  # fmt: skip
"""GCC's flags of floats, by processor."""
_WITH_DSP = frozenset(("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"))


@dataclass(frozen=True, slots=True)
class CTarget:
    """A processor that C is written for.

    Attributes:
        cpu: Its class.
        flags: GCC's flags of it; empty for any processor.
    """

    cpu: Cpu
    flags: str = ""


def c_target(target: Any) -> CTarget:
    """Returns the processor of ``c``, ``c/PROCESSOR``, or a dictionary of TVM, or its JSON.

    Raises:
        UnsupportedTargetError: There is no such processor.
    """
    if isinstance(target, str) and target.strip().startswith("{"):
        target = json.loads(target)
    if isinstance(target, Mapping):
        name = str(target.get("mcpu") or "")
        unknown = sorted(set(target) - {"kind", "mcpu"})
        if unknown:
            raise UnsupportedTargetError(
                f"the target {dict(target)!r} is not supported",
                why=f"of {', '.join(unknown)} the sources say nothing",
                fix="give its kind and mcpu only",
            )
    else:
        name = str(target).strip().partition("/")[2]
    if name in ("", "generic"):
        return CTarget(GENERIC_C)
    if name not in _CORTEX:
        like = get_close_matches(name, _CORTEX, 3) or list(_CORTEX)
        raise UnsupportedTargetError(
            f"C is written for no processor '{name}'",
            why=f"those with a name are {', '.join(_CORTEX)}",
            fix=f"use 'c/{like[0]}', or 'c' for any other processor",
        )
    flags = f"-mcpu={name} -mthumb {_CORTEX[name]}".strip()
    return CTarget(CORTEX_M if name in _WITH_DSP else GENERIC_C, flags)


# ---- The files of a graph in C: header, functions, constants, an example, and how they are built -


@dataclass(frozen=True, slots=True)
class CProject:
    """The sources of a model.

    Attributes:
        name: What names in them begin with.
        files: Their text by file name.
        arena_bytes: Memory for intermediate results.
        weight_bytes: Constants.
    """

    name: str
    files: Mapping[str, str]
    arena_bytes: int
    weight_bytes: int


def c_project(graph: Graph, target: CTarget, name: str) -> CProject:
    """Returns a graph as C.

    Args:
        graph: A canonical graph.
        target: The processor.
        name: What names of files and functions begin with, a C identifier.

    Raises:
        UnsupportedTargetError: Something in it has no C; lists all of it.
    """
    steps = _steps(graph, target)
    return _Writer(graph, target, name, steps).project()


def write_project(project: CProject, folder: Path, *, overwrite: bool) -> None:
    """Writes the files of a project into a folder, all or none.

    Raises:
        OutputExistsError: One of them exists and must not be replaced.
        OutputFileError: The operating system refuses.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFileError(
            "cannot make the folder", where=str(folder), why=str(error),
            fix="name a folder that can be written to",
        ) from error  # fmt: skip
    paths = [folder / file for file in project.files]
    with placed_together(paths, overwrite=overwrite) as places:
        for place, text in zip(places, project.files.values(), strict=True):
            place.write_text(text, encoding="ascii")


def _steps(graph: Graph, target: CTarget) -> KernelCalls:
    problems: list[str] = []
    open_ = symbolic_extents(graph)
    if open_:
        problems.append(f"open extents: {', '.join(open_)}")
    unranked = [value.name for value in graph.inputs if value.type.shape is None]
    if unranked:
        problems.append(f"inputs of unknown rank: {', '.join(unranked)}")
    found: KernelCalls | None = None
    try:
        # Open extents are refused below; with numbers for now, so that one error lists all that has
        # no C.
        numbered = with_numbers(graph, dict.fromkeys(open_, 1))
        module = lowered(emit_plan(plan(agreed(numbered), target.cpu)))
        found, more = steps_of(module)
        problems += more
    except UnsupportedTargetError as error:
        problems += [f"{error.what}: {error.why}" if error.why else error.what]
    if problems or found is None:
        extents = " ".join(f"--extent {name}=1" for name in open_)
        fix = f"give numbers for open extents (extents=, {extents})" if open_ else ""
        raise UnsupportedTargetError(
            "the graph cannot be written as C",
            why="; ".join(problems),
            fix=fix
            or "leave these operators to the program that calls the model, or compile "
            "the graph for a machine with an operating system",
        )
    return found


class _Writer:
    def __init__(self, graph: Graph, target: CTarget, name: str, steps: KernelCalls) -> None:
        self.graph, self.target, self.name, self.steps = graph, target, name, steps
        self.constants: dict[Array, str] = {}
        for step in steps.steps:
            for array in step.arrays:
                if array.constant is not None and array not in self.constants:
                    self.constants[array] = f"{name}_data_{len(self.constants)}"
        # Names of parameters hide those of the file.
        taken = {"arena"}
        self.inputs = [identifier(value.name, taken) for value in graph.inputs]
        self.outputs = [identifier(text, taken) for text in graph.output_names]
        self.functions = list(dict.fromkeys(s.function for s in steps.steps if s.function))
        self.places, self.rooms, self.arena = self._planned()

    def _planned(self) -> tuple[dict[Array, int], dict[int, list[int]], Arena]:
        """Returns where arrays lie, and where the rooms of every step do."""
        spans = lifetimes(self.steps)
        needs = [ArenaNeed(array.memory.nbytes, *span) for array, span in spans.items()]
        counts: list[int] = []
        for number, step in enumerate(self.steps.steps):
            rooms = step.function.rooms if step.function else ()
            counts.append(len(rooms))
            # Scratch memory lives during its own step only, and shares the arena with all that
            # lives otherwise.
            needs += [ArenaNeed(room.nbytes, number, number) for room in rooms]
        found = arena(needs)
        offsets = iter(found.offsets)
        places = {array: next(offsets) for array in spans}
        rooms = {number: [next(offsets) for _ in range(n)] for number, n in enumerate(counts)}
        return places, rooms, found

    def project(self) -> CProject:
        weights = sum(array.memory.nbytes for array in self.constants)
        name = self.name
        files = {
            f"{name}.h": self._header(weights),
            f"{name}.c": self._source(),
            f"{name}_data.h": self._declarations(),
            f"{name}_data.c": self._data(),
            "main.c": self._main(),
            "CMakeLists.txt": self._cmake(),
        }
        return CProject(name, files, self.arena.nbytes, weights)

    # ---- header ---------------------------------------------------------------------------------

    def _header(self, weights: int) -> str:
        upper = self.name.upper()
        about = self._about()
        return f"""\
/* {self.name}: a quantized model in C99, for {self.target.cpu.name} */
#ifndef {upper}_H
#define {upper}_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Bytes of intermediate results, which are static memory (.bss), and of constants (.rodata). */
#define {upper}_ARENA_BYTES {self.arena.nbytes}
#define {upper}_WEIGHT_BYTES {weights}

{about}
/* Runs the model once. Codes are stored integers: real = scale * (code - zero_point).
 *
 * Arrays are row-major and may not overlap. No memory is allocated, nothing is kept from one call
 * to the next, and no two calls may run at the same time, since they share the arena.
 */
void {self.name}_run({self._parameters()});

#ifdef __cplusplus
}}
#endif

#endif
"""

    def _arguments(self) -> list[tuple[str, Value, Array]]:
        """Returns the name, the value and the array of every input and every output."""
        names = [*self.inputs, *self.outputs]
        values = [*self.graph.inputs, *self.graph.outputs]
        return list(zip(names, values, (*self.steps.inputs, *self.steps.outputs), strict=True))

    def _about(self) -> str:
        lines: list[str] = []
        for number, (name, value, array) in enumerate(self._arguments()):
            own = f"{self.name}_{name}".upper()
            role = "input" if number < len(self.inputs) else "output"
            shape = " x ".join(map(str, static_shape(value.type.shape) or ())) or "one element"
            lines += [f"/* {role} {name}: {array.memory.dtype}, {shape} */"]
            lines += [f"#define {own}_COUNT {array.memory.count}", *_quantization(own, value)]
        return "\n".join([*lines, ""])

    def _parameters(self) -> str:
        parts = [
            f"{'const ' if number < len(self.inputs) else ''}{C_TYPES[array.memory.dtype]} "
            f"{name}[{array.memory.count}]"
            for number, (name, _, array) in enumerate(self._arguments())
        ]
        return ", ".join(parts)

    # ---- functions ------------------------------------------------------------------------------

    def _source(self) -> str:
        # The sources keep the contract wherever they are compiled. Contracting a product and a sum
        # into an FMA rounds once where the contract has two roundings: clang obeys the pragma of
        # C99, GCC ignores it and has one of its own.
        bodies = [function.text for function in self.functions]
        calls = "\n".join(self._call(number, s) for number, s in enumerate(self.steps.steps))
        block = max(self.arena.nbytes, 1)
        memory = f"""
/* Where intermediate results are; aligned for all of them. */
static union {{
  uint8_t bytes[{block}];
  int64_t aligned;
  double also_aligned;
}} arena;
""" if self.arena.nbytes else ""  # fmt: skip
        # An input that nothing reads is a parameter still: -Wextra -Werror would refuse the file.
        unused = "".join(
            f"  (void){name};\n"
            for name, array in zip(self.inputs, self.steps.inputs, strict=True)
            if not any(array in step.arrays for step in self.steps.steps)
        )
        return f"""\
/* {self.name}: kernels, and the function that calls them. */
#include "{self.name}.h"
#include "{self.name}_data.h"

#include <math.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "results are exact only without -ffast-math"
#elif defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "results are exact only where float is computed as float (x86: -msse2 -mfpmath=sse)"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize ("fp-contract=off")
#endif
{memory}
{support(bodies)}
{chr(10).join(bodies)}
void {self.name}_run({self._parameters()})
{{
{unused}{calls}
}}
"""

    def _call(self, number: int, step: KernelCall) -> str:
        arguments = [self._argument(array) for array in step.arrays]
        if step.function is None:
            # An output that is an input, or another output: no kernel computes it.
            return f"  memcpy({arguments[1]}, {arguments[0]}, {step.arrays[1].memory.nbytes});"
        for room, offset in zip(step.function.rooms, self.rooms[number], strict=True):
            arguments.append(_in_arena(room.dtype, offset))
        return f"  {step.function.name}({', '.join(arguments)});"

    def _argument(self, array: Array) -> str:
        if array in self.constants:
            return self.constants[array]
        if array.argument >= 0:
            return self.inputs[array.argument]
        if array in self.steps.outputs:
            return self.outputs[self.steps.outputs.index(array)]
        return _in_arena(array.memory.dtype, self.places[array])

    # ---- constants ------------------------------------------------------------------------------

    def _declarations(self) -> str:
        lines = [f"extern {_declared(name, array)};" for array, name in self.constants.items()]
        guard = f"{self.name.upper()}_DATA_H"
        return "\n".join(
            [
                f"/* {self.name}: packed weights, multipliers, tables. */",
                f"#ifndef {guard}", f"#define {guard}", "", "#include <stdbool.h>",
                "#include <stdint.h>", "", *lines, "", "#endif", "",
            ]
        )  # fmt: skip

    def _data(self) -> str:
        parts = [
            f"{_declared(name, array)} = {{\n{_literals(array)}\n}};\n"
            for array, name in self.constants.items()
        ]
        return "\n".join([f'#include "{self.name}_data.h"', "", "#include <math.h>", "", *parts])

    # ---- how to use it --------------------------------------------------------------------------

    def _main(self) -> str:
        arrays = "\n".join(
            f"static {C_TYPES[array.memory.dtype]} {name}[{array.memory.count}];"
            for name, _, array in self._arguments()
        )
        shown = "\n".join(
            f"  for (int i = 0; i < {self.name.upper()}_{name.upper()}_COUNT; i++)\n"
            f'    printf("{name}[%d] = %g\\n", i, (double){name}[i]);'
            for name in self.outputs
        )
        arguments = ", ".join(name for name, _, _ in self._arguments())
        return f"""\
/* An example: the model is run on zeros, and its results are shown. */
#include "{self.name}.h"

#include <stdio.h>

{arrays}

int main(void)
{{
  {self.name}_run({arguments});
{shown}
  return 0;
}}
"""

    def _cmake(self) -> str:
        flags = f"# For this processor: {self.target.flags}\n" if self.target.flags else ""
        return f"""\
cmake_minimum_required(VERSION 3.10)
project({self.name} C)

{flags}add_library({self.name} STATIC {self.name}.c {self.name}_data.c)
target_include_directories({self.name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_target_properties({self.name} PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
if(NOT MSVC)
  target_compile_options({self.name} PRIVATE -O2) # -Os takes a third more instructions
  target_link_libraries({self.name} PUBLIC m)
endif()

add_executable({self.name}_example main.c)
target_link_libraries({self.name}_example {self.name})
"""


def _quantization(own: str, value: Value) -> list[str]:
    if value.quant is None:
        return []
    params = value.quant.params
    if not params.per_tensor:
        return ["/* with a scale per channel */"]
    return [
        f"#define {own}_SCALE {_float(np.float32(params.scale))} /* {float(params.scale):.9g} */",
        f"#define {own}_ZERO_POINT {int(params.zero_point)}",
    ]


def _in_arena(dtype: str, offset: int) -> str:
    kind = C_TYPES[dtype]
    place = f"arena.bytes + {offset}"
    return place if kind == "uint8_t" else f"({kind} *)(void *)({place})"


def _declared(name: str, array: Array) -> str:
    return f"const {C_TYPES[array.memory.dtype]} {name}[{array.memory.count}]"


def _literals(array: Array) -> str:
    found = array.constant
    assert found is not None
    texts = _literal_texts(found)
    lines: list[str] = []
    line = " "
    for text in texts:
        if len(line) + len(text) + 2 > _WIDTH:
            lines.append(line)
            line = " "
        line += f" {text},"
    return "\n".join([*lines, line])


_WIDTH = 100


def _literal_texts(array: NDArray[Any]) -> list[str]:
    if array.dtype.kind == "f":
        suffix = "f" if array.dtype.itemsize == 4 else ""
        return [_float(value, suffix) for value in array]
    if array.dtype.kind == "b":
        return ["1" if value else "0" for value in array]
    low, suffix = np.iinfo(array.dtype).min, {4: "", 8: "LL"}.get(array.dtype.itemsize, "")
    unsigned = "U" if array.dtype.kind == "u" and array.dtype.itemsize >= 4 else ""
    return [
        f"(-{-(int(v) + 1)}{suffix} - 1)" if low < 0 and v == low and array.dtype.itemsize >= 4
        else f"{int(v)}{unsigned}{suffix}"
        for v in array
    ]  # fmt: skip


def _float(value: Any, suffix: str = "f") -> str:
    number = float(value)
    if np.isnan(number):
        return "NAN"
    if np.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return f"{number.hex()}{suffix}"


_RESERVED = frozenset(
    keyword
    for line in (
        "auto break case char const continue default do double else enum extern float for goto if",
        "inline int long register restrict return short signed sizeof static struct switch typedef",
        "union unsigned void volatile while bool true false main class new delete template this",
        "private public namespace operator int8_t int16_t int32_t int64_t uint8_t uint16_t",
        "uint32_t uint64_t printf i",
    )
    for keyword in line.split()
)
"""Names that are C's, C++'s, or those of the example."""


def identifier(text: str, taken: set[str] | None = None) -> str:
    """Returns a C identifier like a name, other than those that are taken, and takes it."""
    plain = re.sub(r"\W", "_", text, flags=re.ASCII)
    if not plain or plain[0].isdigit():
        plain = f"x{plain}"
    used: set[str] = set() if taken is None else taken
    found, number = plain, 1
    while found in used or found in _RESERVED or found.startswith("qdq_"):
        number += 1
        found = f"{plain}_{number}"
    used.add(found)
    return found
