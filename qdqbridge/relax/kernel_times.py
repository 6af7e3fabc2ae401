"""Where the time of an executable goes: every kernel alone, in the order and on the data of a run.

TVM tells an instrument of every function before it is called; the instrument calls the function
several times, which changes nothing since kernels write to their last argument only, and keeps the
median.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from qdqbridge.graph.interpreter import check_inputs
from qdqbridge.qnn.origin import provenance_of
from qdqbridge.relax.executable import Executable
from qdqbridge.relax.files import without_lines
from qdqbridge.relax.instructions import features_of, need_features
from qdqbridge.relax.kernels.emit import WORK
from qdqbridge.relax.tensors import to_tensor
from qdqbridge.relax.threads import Caller

_REPEATS = 7
_RUN = 0
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
    for name, seconds, operations in _calls(executable, inputs, repeats):
        times.setdefault(name, []).append(seconds)
        done[name] += operations
    found = [KernelTime(name, len(taken), sum(taken), done[name]) for name, taken in times.items()]
    return sorted(found, key=lambda entry: -entry.seconds)


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Where the time of an executable goes, by what is computed.

    Attributes:
        seconds: Seconds of the kernel that writes a tensor, by the tensor's name.
        kernels: The kernel's name, likewise.
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
    written = _written(executable.module)
    seconds: dict[str, float] = {}
    kernels: dict[str, str] = {}
    other = 0.0
    for name, taken, _ in _calls(executable, inputs, repeats):
        tensor = written[name].popleft() if written.get(name) else ""
        if tensor:
            seconds[tensor] = seconds.get(tensor, 0.0) + taken
            kernels[tensor] = name
        else:
            other += taken
    return NodeTimes(seconds, kernels, other)


def _written(module: Any) -> dict[str, deque[str]]:
    """Returns the tensors that the calls of each function write, in order."""
    found: dict[str, deque[str]] = {}
    if module is None:
        return found
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            function = call.args[0] if isinstance(call, ir.Call) and len(call.args) else None
            if not isinstance(function, ir.GlobalVar) or call is None:
                continue
            said = None if call.span is None else provenance_of(str(call.span.source_name.name))
            nodes = () if said is None else (said.name, *said.origin.nodes)
            tensor = next(filter(None, nodes), "")  # a tensor without a name is its node's
            found.setdefault(function.name_hint, deque()).append(tensor)
    return found


def _calls(
    executable: Executable, inputs: Mapping[str, NDArray[Any]], repeats: int
) -> list[tuple[str, float, int]]:
    """Returns name, seconds and operations of each call of a run, in order."""
    device: Any = tvm.cpu()
    tensors = [to_tensor(a, device) for a in check_inputs(executable.graph.inputs, inputs)]
    if executable.target is not None:
        need_features(features_of(executable.target))
    with without_lines(b"Warning: Scope Loaded"):
        machine = relax.VirtualMachine(executable.library, device)
    work = _works(executable.module)
    calls: list[tuple[str, float, int]] = []

    def instrument(function: Any, name: str, before: bool, _: Any, *args: Any) -> int:
        if before and not name.startswith("vm."):
            taken: list[float] = []
            for _turn in range(repeats):
                start = time.perf_counter()
                function(*args)
                taken.append(time.perf_counter() - start)
            calls.append((name, median(taken), work[name].operations(args) if name in work else 0))
        return _RUN

    hook: Any = instrument
    machine.set_instrument(hook)
    Caller(executable.threads).call(machine["main"], *tensors)
    return calls


@dataclass(frozen=True, slots=True)
class _Work:
    """What a kernel computes.

    Attributes:
        once: Operations of a call, an open extent counting as 1.
        opened: The argument whose first extent is the open one; None where none is.
    """

    once: int
    opened: int | None

    def operations(self, args: Sequence[Any]) -> int:
        """Returns the operations of a call with these arguments."""
        return self.once * (1 if self.opened is None else int(args[self.opened].shape[0]))


def _works(module: Any) -> dict[str, _Work]:
    """Returns what every kernel computes; nothing is known of a loaded library."""
    functions = {} if module is None else module.functions
    return {
        variable.name_hint: _Work(int(function.attrs[WORK]), _opened(function))
        for variable, function in functions.items()
        if function.attrs is not None and WORK in function.attrs
    }


def _opened(function: Any) -> int | None:
    """Returns the first argument whose first extent is known at run time only."""
    for index, argument in enumerate(function.params):
        shape = argument.shape
        if len(shape) and not isinstance(shape[0], tirx.IntImm):
            return index
    return None
