"""The engines there are: a row each."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import ValueType
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.runtime.products import saturates
from qdqbridge.options import AnyProfileName
from qdqbridge.targets.engines.processors import start_without_vnni
from qdqbridge.targets.profiles.finding import ExportProfile
from qdqbridge.tflite_io.vela import installed_program


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine that runs in a process of its own.

    Attributes:
        name: The name users give.
        label: Its name in reports: what computes, and that it is no device where it is none.
        package: What has to be importable; empty for an engine of programs.
        install: The pip line that brings it.
        worker: The module of :mod:`qdqbridge.targets.engines.workers` that drives it, or the whole
            name of another.
        profile: The export profile, or its name, in which a graph is written for it.
        suffix: Of the model files it reads.
        fixed: It takes fixed shapes only.
        shows: Intermediate tensors can be asked for.
        reference: It computes what a file says, node by node: nothing is known of it beyond that.
        untimed: Why there is no time of its nodes; empty where there is one.
        without_vnni: It runs on x86 with AVX2 and without VNNI, emulated where this one is another.
        arm_python: It runs on 64-bit Arm: elsewhere this program is a Python of that kind.
        programs: What has to be beside this Python or on the PATH.
        node_package: What Node has to find from the working directory.
    """

    name: str
    label: str
    package: str
    install: str
    worker: str
    profile: AnyProfileName | ExportProfile
    suffix: str = ".onnx"
    fixed: bool = False
    shows: bool = True
    reference: bool = False
    untimed: str = ""
    without_vnni: bool = False
    arm_python: str = ""
    programs: tuple[str, ...] = ()
    node_package: str = ""

    def missing(self) -> str:
        """Returns what of it is not installed; empty where all of it is."""
        if self.package and find_spec(self.package) is None:
            return f"package '{self.package}'"
        programs = (self.arm_python, *self.programs) if self._emulates_arm else self.programs
        if gone := [name for name in programs if installed_program(name) is None]:
            return f"program '{gone[0]}'"
        if self.node_package and not _is_in_node(self.node_package):
            return f"package '{self.node_package}' of Node, looked for from {Path.cwd()}"
        return ""

    @property
    def fix(self) -> str:
        """What brings it, in words."""
        if self.node_package:
            return f"{self.install}, in the working directory"
        if self._emulates_arm:
            return f"{self.install}, which is then put on the PATH"
        where = " in an environment of its own that is on the PATH" if self.programs else ""
        return f"{self.install}{where}; all engines: pip install 'qdqbridge[engines]'"

    def python(self) -> tuple[str, ...]:
        """Returns the command of the Python that drives it; nothing for this one.

        Raises:
            UnsupportedTargetError: It cannot run on this machine.
        """
        if self._emulates_arm:
            return (str(installed_program(self.arm_python)),)
        emulator = start_without_vnni(self.name) if self.without_vnni else ()
        return (*emulator, sys.executable) if emulator else ()

    @property
    def _emulates_arm(self) -> bool:
        return self.arm_python != "" and platform.machine() not in ("aarch64", "arm64")

    def pairs_saturate(self) -> bool:
        """Returns whether onnxruntime's products of bytes saturate where this engine runs."""
        own = self.package == "onnxruntime" and not (self.arm_python or self.reference)
        return self.without_vnni or (own and saturates())


def _is_in_node(package: str) -> bool:
    """Returns whether Node finds a package: in NODE_PATH, or in the node_modules of a folder."""
    here = Path.cwd()
    folders = [folder / "node_modules" for folder in (here, *here.parents)]
    folders += [Path(path) for path in os.environ.get("NODE_PATH", "").split(os.pathsep) if path]
    return any((folder / package).is_dir() for folder in folders)


_ALL = (
    EngineKind(
        "onnxruntime-optimized", "onnxruntime with its graph optimizations", "onnxruntime",
        "pip install onnxruntime", "onnxruntime_cpu", "ort",
    ),
    EngineKind(
        "onnxruntime", "onnxruntime without graph optimizations", "onnxruntime",
        "pip install onnxruntime", "onnxruntime_reference", "ort", reference=True,
        untimed="users run it with optimizations: onnxruntime-optimized tells times",
    ),
    EngineKind(
        "onnxruntime-avx2", "onnxruntime on x86 without VNNI", "onnxruntime",
        "pip install onnxruntime", "onnxruntime_avx2", "ort",
        untimed="where the processor is emulated, what it takes says nothing", without_vnni=True,
    ),
    EngineKind(
        "onnxruntime-arm", "onnxruntime on 64-bit Arm", "onnxruntime",
        "scripts/arm_python FOLDER", "onnxruntime_arm", "ort",
        untimed="where the processor is emulated, what it takes says nothing",
        arm_python="arm-python",
    ),
    EngineKind(
        "onnxruntime-web", "onnxruntime-web in Node (WebAssembly)", "",
        "npm install onnxruntime-web", "onnxruntime_web", "ort",
        untimed="its interface in Node tells no times", programs=("node",),
        node_package="onnxruntime-web",
    ),
    EngineKind(
        "qnn-htp", "Hexagon (host build of the NPU's backend)", "onnxruntime_qnn",
        "pip install onnxruntime-qnn", "qnn_htp", "qnn", fixed=True,
        untimed="what the host build takes says nothing of the device",
    ),
    EngineKind(
        "qnn-htp-v73", "Hexagon v73 (host build of the NPU's backend)", "onnxruntime_qnn",
        "pip install onnxruntime-qnn", "qnn_htp_v73", "qnn-v73", fixed=True,
        untimed="what the host build takes says nothing of the device",
    ),
    EngineKind(
        "openvino", "OpenVINO, CPU", "openvino",
        "pip install openvino", "openvino_cpu", "openvino",
    ),
    EngineKind(
        "litert", "LiteRT, CPU", "ai_edge_litert",
        "pip install ai-edge-litert", "litert", "tflite", suffix=".tflite", shows=False,
        untimed="its Python interface tells no times",
    ),
    EngineKind(
        "iree", "IREE, CPU", "iree",
        "pip install iree-base-compiler iree-base-runtime onnx", "iree_cpu", "portable",
        untimed="it runs whole models",
    ),
    EngineKind(
        "tosa", "TOSA reference model", "",
        "pip install tosa-tools tosa-converter-for-tflite", "tosa", "tosa", suffix=".tflite",
        fixed=True, shows=False, untimed="what a reference takes says nothing of a device",
        programs=("tosa-converter-for-tflite", "tosa-opt", "tosa_reference_model"),
    ),
)  # fmt: skip

ENGINES: Mapping[str, EngineKind] = MappingProxyType({kind.name: kind for kind in _ALL})
OWN = ("tvm", "interpreter", "onnxruntime")
"""What runs in this process: ours, and the reference."""


def engine_kind(name: str | EngineKind) -> EngineKind:
    """Returns the engine of that name, or the one that is given; its package is there.

    Raises:
        UnsupportedTargetError: There is no such engine, it is not installed, or it does not run on
            this machine.
    """
    kind = name if isinstance(name, EngineKind) else ENGINES.get(name)
    if kind is None:
        raise UnsupportedTargetError(
            f"there is no engine '{name}'",
            why=f"the engines are {', '.join(dict.fromkeys((*OWN, *ENGINES)))}",
            fix="use one of them",
        )
    if missing := kind.missing():
        raise UnsupportedTargetError(
            f"the engine '{kind.name}' is not installed",
            why=f"there is no {missing}",
            fix=kind.fix,
        )
    kind.python()
    return kind


# ---- What is asked of every engine: what it takes of a model, and what it computes from it -------


Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one node of a model runs on an engine.

    The engine's own names are kept: it fuses, splits and renames nodes before it places them.

    Attributes:
        node: The node's name.
        operator: What the engine calls it.
        place: Where it runs, or in which precision.
        taken: False where the engine leaves it to something slower: another processor, or floats.
        why: Why it is not taken, in the engine's words; empty where the engine says nothing.
    """

    node: str
    operator: str
    place: str
    taken: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """What an engine takes of a model.

    Attributes:
        engine: The engine, as reports name it.
        version: The versions that decide.
        placements: One entry per node of the model as the engine has made it.
        partitions: Into how many pieces it cuts what it takes.
    """

    engine: str
    version: str
    placements: tuple[Placement, ...]
    partitions: int

    @property
    def left(self) -> tuple[Placement, ...]:
        """The nodes that it does not take."""
        return tuple(each for each in self.placements if not each.taken)

    @property
    def takes_all(self) -> bool:
        """True where it takes everything, in one piece."""
        return not self.left and self.partitions <= 1


@dataclass(frozen=True, slots=True)
class NodeTime:
    """What one node takes, of those that an engine has made of a model.

    Attributes:
        node: The engine's name of it.
        operator: What the engine calls it.
        seconds: The shortest of several runs.
        names: Nodes and tensors of the model that it computes, as far as the engine says.
    """

    node: str
    operator: str
    seconds: float
    names: tuple[str, ...] = ()


class Judge(Protocol):
    """A model, opened by an engine.

    Attributes:
        label: The engine's name in reports.
        graph: The model as qdqbridge reads it, with the shapes that the engine gets.
        names: The tensors it can return: outputs first, then intermediate values.
        outputs: The names of the model's outputs.
        types: The types of its tensors, as far as it knows them.
    """

    label: str
    graph: Graph
    names: Sequence[str]
    outputs: Sequence[str]
    types: Mapping[str, ValueType]

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> Mapping[str, Array]:
        """Returns the tensors ``names`` as they are stored."""
        ...

    def taken(self) -> EngineVerdict:
        """Returns what the engine takes of the model, node by node."""
        ...
