"""Where the time of an executable goes: every kernel alone, in the order and on the data of a run.

TVM tells an instrument of every function before it is called; the instrument calls kernels
several times, which changes nothing since they write to their last argument only, and keeps the
median. Functions that call others, those of an If or an attention, it does not call itself: the
kernels that they call, of the branch that is taken, are listed one by one.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from qdqbridge.core.graph.interpreter import check_inputs
from qdqbridge.tvm.qnn.origin import provenance_of
from qdqbridge.tvm.relax.executable import Executable
from qdqbridge.tvm.relax.files import to_tensor, without_lines
from qdqbridge.tvm.relax.kernels.plan import WORK
from qdqbridge.tvm.relax.saving import features_of, need_features
from qdqbridge.tvm.relax.threads import Caller

_REPEATS = 7
_MAIN = "main"
_GO_ON = 0
"""What an instrument returns so that TVM goes on (``VMInstrumentReturnKind::kNoOp``)."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel.

    Attributes:
        name: Its name in the compiled module.
        calls: How often a run calls it.
        seconds: What these calls take together.
        operations: What they compute, two per multiplication and addition; 0 where that is not
            counted.
    """

    name: str
    calls: int
    seconds: float
    operations: int

    @property
    def rate(self) -> float | None:
        """Operations per second; None where they are not counted."""
        return self.operations / self.seconds if self.operations and self.seconds else None


def kernel_times(
    executable: Executable, inputs: Mapping[str, NDArray[Any]], repeats: int = _REPEATS
) -> list[KernelTime]:
    """Returns the kernels of an executable, the one that takes most of the time first.

    Args:
        executable: What is run.
        inputs: As for ``Executable.run``.
        repeats: Calls of every kernel, of which the median counts.

    Raises:
        InputDataError: The inputs are not those of the model.
    """
    times: dict[str, list[float]] = {}
    done = Counter[str]()
    for call in _run(executable, inputs, repeats).calls:
        times.setdefault(call.kernel, []).append(call.seconds)
        done[call.kernel] += call.operations
    found = [KernelTime(name, len(taken), sum(taken), done[name]) for name, taken in times.items()]
    return sorted(found, key=lambda entry: -entry.seconds)


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Where the time of an executable goes, by what is computed.

    Attributes:
        seconds: Seconds of the kernels that write a tensor, by the tensor's name.
        kernels: The name of the kernel, or of the function that calls several, likewise.
        other: Seconds of kernels that TVM has made of several operators.
    """

    seconds: Mapping[str, float]
    kernels: Mapping[str, str]
    other: float


def node_times(
    executable: Executable, inputs: Mapping[str, NDArray[Any]], repeats: int = _REPEATS
) -> NodeTimes:
    """Returns the time of each kernel by the tensor that it writes.

    Args:
        executable: What is run; compiled here, a loaded library does not say what it computes.
        inputs: As for ``Executable.run``.
        repeats: Calls of every kernel, of which the median counts.

    Raises:
        InputDataError: The inputs are not those of the model.
    """
    seconds: dict[str, float] = {}
    kernels: dict[str, str] = {}
    other = 0.0
    for call in call_times(executable, inputs, repeats):
        if call.tensor:
            seconds[call.tensor] = seconds.get(call.tensor, 0.0) + call.seconds
            kernels[call.tensor] = call.function
        else:
            other += call.seconds
    return NodeTimes(seconds, kernels, other)


@dataclass(frozen=True, slots=True)
class CallTime:
    """One call of a kernel in a run.

    Attributes:
        kernel: The name of the kernel.
        function: The function of the main one that it is, or that calls it.
        tensor: What that writes, by the name in the model; empty where that is not known.
        seconds: What it takes.
    """

    kernel: str
    function: str
    tensor: str
    seconds: float


def call_times(
    executable: Executable,
    inputs: Mapping[str, NDArray[Any]],
    repeats: int = _REPEATS,
    of: Callable[[Sequence[float]], float] = median,
) -> list[CallTime]:
    """Returns the time of each call of a run, in order; see :func:`node_times`.

    Args:
        executable: What is run.
        inputs: As for ``Executable.run``.
        repeats: Calls of every kernel.
        of: Which of their times counts.
    """
    run = _run(executable, inputs, repeats, of)
    written = _output_tensor_per_step(executable.module, run.steps)
    return [
        CallTime(call.kernel, run.steps[call.step], written[call.step], call.seconds)
        for call in run.calls
    ]


def _output_tensor_per_step(module: Any, called: Sequence[str]) -> list[str]:
    """Returns the tensor that each step of a run writes; empty where it is not known.

    Calls of the module's own functions name it. What TVM has made functions of stands between
    these in the module, in the same order: where that are as many, each has one of them, and else
    they belong to what is written next.
    """
    bindings = [] if module is None else _bindings(module)
    found: list[str] = []
    waiting, place = 0, 0
    for name in called:
        at = next((i for i in range(place, len(bindings)) if bindings[i][0] == name), None)
        if at is None:
            waiting += 1
            continue
        found += [*_between([tensor for _, tensor in bindings[place:at]], waiting), bindings[at][1]]
        waiting, place = 0, at + 1
    return found + _between([tensor for _, tensor in bindings[place:]], waiting)


def _between(tensors: Sequence[str], calls: int) -> list[str]:
    named = [tensor for tensor in tensors if tensor]
    return named if len(named) == calls else [named[-1] if named else ""] * calls


def _bindings(module: Any) -> list[tuple[str, str]]:
    """Returns the function that each binding calls, empty for TVM's own, and what it writes."""
    found: list[tuple[str, str]] = []
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            if not isinstance(call, ir.Call):
                continue
            named = (call.op, *call.args[:1])  # a function that is called, or that call_tir calls
            function = next((each for each in named if isinstance(each, ir.GlobalVar)), None)
            said = None if call.span is None else provenance_of(str(call.span.source_name.name))
            nodes = () if said is None else (said.name, *said.origin.nodes)
            tensor = next(filter(None, nodes), "")  # a tensor without a name is its node's
            found.append(("" if function is None else function.name_hint, tensor))
    return found


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a kernel.

    Attributes:
        kernel: Its name.
        step: The number of the step of the main function that it belongs to.
        seconds: What it takes.
        operations: What it computes.
    """

    kernel: str
    step: int
    seconds: float
    operations: int


@dataclass(slots=True)
class _TimedRun:
    """What an instrument records of a run.

    Attributes:
        works: What kernels compute, by name.
        repeats: Calls of every kernel.
        of: Which of their times counts.
        steps: The functions that the main function calls, in order.
        calls: The kernels that these are or call.
        depth: How many functions are running that call others.
    """

    works: Mapping[str, _Work]
    repeats: int
    of: Callable[[Sequence[float]], float]
    steps: list[str] = field(default_factory=list[str])
    calls: list[_Call] = field(default_factory=list[_Call])
    depth: int = 0

    def instrument(self, function: Any, name: str, before: bool, _: Any, *args: Any) -> int:
        """Takes note of a call that begins or has ended."""
        if name.startswith("vm.") or name == _MAIN:
            return _GO_ON
        if before and not self.depth:
            self.steps.append(name)
        if not callable(function):  # a function of the virtual machine, which calls others
            self.depth += 1 if before else -1
        elif before:
            taken: list[float] = []
            for _turn in range(self.repeats):
                start = time.perf_counter()
                function(*args)
                taken.append(time.perf_counter() - start)
            operations = self.works[name].operations(args) if name in self.works else 0
            self.calls.append(_Call(name, len(self.steps) - 1, self.of(taken), operations))
        return _GO_ON


def _run(
    executable: Executable,
    inputs: Mapping[str, NDArray[Any]],
    repeats: int,
    of: Callable[[Sequence[float]], float] = median,
) -> _TimedRun:
    """Returns what is called in a run, and how long that takes."""
    device: Any = tvm.cpu()
    tensors = [to_tensor(a, device) for a in check_inputs(executable.graph.inputs, inputs)]
    if executable.target is not None:
        need_features(features_of(executable.target))
    with without_lines(b"Warning: Scope Loaded"):
        machine = relax.VirtualMachine(executable.library, device)
    run = _TimedRun(_works(executable.module), repeats, of)
    hook: Any = run.instrument
    machine.set_instrument(hook)
    Caller(executable.threads).call(machine[_MAIN], *tensors)
    return run


@dataclass(frozen=True, slots=True)
class _Work:
    """What a kernel computes.

    Attributes:
        once: Operations of a call, open extents counting as 1.
        opened: The argument whose leading extents are open; None where none is.
        count: How many of them are.
    """

    once: int
    opened: int | None
    count: int

    def operations(self, args: Sequence[Any]) -> int:
        """Returns the operations of a call with these arguments."""
        extents = () if self.opened is None else args[self.opened].shape[: self.count]
        return self.once * math.prod(int(extent) for extent in extents)


def _works(module: Any) -> dict[str, _Work]:
    """Returns what every kernel computes; nothing is known of a loaded library."""
    functions = {} if module is None else module.functions
    return {
        variable.name_hint: _Work(int(function.attrs[WORK]), *_opened(function))
        for variable, function in functions.items()
        if function.attrs is not None and WORK in function.attrs
    }


def _opened(function: Any) -> tuple[int | None, int]:
    """Returns the first argument with leading extents known at run time only, and their number."""
    for index, argument in enumerate(function.params):
        count = 0
        for extent in argument.shape:
            if isinstance(extent, tirx.IntImm):
                break
            count += 1
        if count:
            return index, count
    return None, 0
