"""Files that verbs read and write: models and their options, arrays, what suffixes say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from numpy.typing import NDArray

from qdqbridge.app import hosting
from qdqbridge.app.cli.output import warn
from qdqbridge.app.cli.parameters import READ, extents_of
from qdqbridge.app.report.inspection import Inspection, misfits
from qdqbridge.app.sources import inspect_model, is_module, load_model
from qdqbridge.core.arguments import BIT_FOR_BIT, ReadingOptions, need_relay, need_tvm, path_of
from qdqbridge.core.graph.atomic_write import read_arrays
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.options import RelayVariant

# ---- Parameters of verbs that say how a model is read --------------------------------------------


@dataclass(frozen=True, slots=True)
class Sources(ReadingOptions):
    """Rewrites beyond the bit-exact ones, and where the parameters of a module are.

    Attributes:
        params: An .npz file with the parameters of a Relax module.
        adapter: An .onnx_adapter file, whose arrays are constants of the ONNX model.
        optional_inputs: Inputs of an ONNX model that have initializers stay inputs.
        encodings: A file of encodings or a calibration cache, which quantizes a float model: of
            AIMET or QAIRT, of onnxruntime (TensorQuantOverrides, calibration table), of TensorRT.
    """

    params: Path | None = None
    adapter: Path | None = None
    optional_inputs: bool = False
    encodings: Path | None = None

    def read(self, model: Path) -> Graph:
        """Returns a model in canonical form; ``params`` are for modules that want them."""
        return self._read(model, self.params)

    def read_any(self, model: Path) -> Graph:
        """Returns one of several models, some of which may be no modules."""
        return self._read(model, self.params if is_module(model) else None)

    def _read(self, model: Path, params: Path | None) -> Graph:
        return load_model(
            model,
            params=params,
            options=self,
            adapter=self.adapter,
            optional_inputs=self.optional_inputs,
            encodings=self.encodings,
        )

    def file(self, model: Path) -> Path | None:
        """Returns the file that holds what is read; none does with what is beside it."""
        # An engine that is given the file would not see what is beside it: it gets a file of the
        # graph.
        beside = self.adapter is not None or self.encodings is not None
        return None if beside or self.optional_inputs else model

    def inspect(self, model: Path) -> Inspection:
        """Returns what a model holds."""
        return inspect_model(
            model,
            params=self.params,
            options=self,
            adapter=self.adapter,
            optional_inputs=self.optional_inputs,
            encodings=self.encodings,
        )


Reading = Annotated[Sources, Parameter(name="*", negative=(), group=READ)]
Rewriting = Annotated[ReadingOptions, Parameter(name="*", negative=(), group=READ)]
AS_IT_IS = Sources()
EXACTLY = BIT_FOR_BIT


# ---- What the suffix of a file to write says, and writing it -------------------------------------


ONNX, LIBRARY, RELAY = ".onnx", ".so", ".relay"
FOR_TVM = (".json", ".py", LIBRARY, RELAY)


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Refuses a file whose suffix says nothing, or what cannot be written here.

    Raises:
        UnsupportedTargetError: It has none of ``suffixes``, or TVM is not there to write it.
    """
    if path.suffix not in suffixes:
        raise UnsupportedTargetError(
            f"'{path.name}' has no known suffix",
            fix=f"end it in {', '.join(suffixes[:-1])} or {suffixes[-1]}",
        )
    if path.suffix == RELAY:
        need_relay()
    elif path.suffix in FOR_TVM:
        need_tvm()


def check_extents(path: Path, graph: Graph, extents: Sequence[str]) -> None:
    """Refuses numbers that do not fit, and Relay without numbers, before work begins.

    Raises:
        InputDataError: One is missing, is not a number, or no extent of the graph.
    """
    open_ = symbolic_extents(with_numbers(graph, extents_of(extents)))
    if path.suffix == RELAY and open_:
        raise InputDataError(
            "Relay wants numbers for symbolic extents",
            why=f"the model's inputs leave open: {', '.join(open_)}",
            fix=" ".join(f"--extent {name}=1" for name in open_),
        )


def write_for_tvm(
    graph: Graph,
    path: Path,
    *,
    target: str = "host",
    params: Path | None = None,
    variant: RelayVariant = "canonical",
    extents: Sequence[str] = (),
    cc: str | None = None,
) -> int:
    """Writes a graph for TVM, replacing a file; returns the number of constants in ``params``.

    Raises:
        QdqBridgeError: TVM cannot express the graph, or the file cannot be written.
    """
    whole = with_numbers(graph, extents_of(extents))
    if path.suffix != RELAY:
        return hosting.export_tvm(whole, path, target, params=params, cc=cc)
    hosting.export_relay(whole, path, variant=variant)
    return 0


# ---- The model inputs in a user's ``.npz`` file --------------------------------------------------


Array = NDArray[Any]
_LABELS = "labels"


def read_inputs(path: Path, inputs: Sequence[Value]) -> dict[str, Array]:
    """Returns one array per graph input.

    Arrays are found by the input's name; a model with one input takes the only array of a file
    whatever it is called, and a warning says so. An array named ``labels`` is left out.

    Raises:
        InputDataError: The file cannot be read, or its arrays are not the model's inputs.
    """
    from qdqbridge.autoquant.profiling.samples import arrays_of_inputs

    arrays = read_arrays(path_of(path))
    names = [value.name for value in inputs]
    if _LABELS in arrays and _LABELS not in names:
        warn(
            f"the array '{_LABELS}' of {path.name} is ignored: the model has no input of that name"
        )
        del arrays[_LABELS]
    fed = arrays_of_inputs(path, names, list(arrays), warn)
    arrays = {name: arrays[held] for name, held in fed.items()}
    for value in inputs:
        _check_axes(value, arrays[value.name], path)
    return arrays


def tell_misfits(graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Warns of data that the quantization of the inputs does not fit."""
    for text in misfits(graph, inputs):
        warn(text)


def _check_axes(value: Value, array: Array, path: Path) -> None:
    wanted = value.type.shape
    if wanted is None or len(wanted) == array.ndim:
        return
    raise InputDataError(
        f"input '{value.name}' has {array.ndim} axes, the model wants {len(wanted)}",
        where=str(path),
        why=f"the array is {list(array.shape)}, the model wants [{', '.join(map(str, wanted))}]",
        fix=_axes_fix(wanted, array.shape),
    )


def _axes_fix(wanted: Sequence[int | str], have: Sequence[int]) -> str:
    for axis in range(len(wanted)) if len(wanted) == len(have) + 1 else ():
        rest = [*wanted[:axis], *wanted[axis + 1 :]]
        first = 1 if axis else 0  # any number of examples will do
        pairs = list(zip(rest, have, strict=True))[first:]
        if all(isinstance(want, str) or want == extent for want, extent in pairs):
            return f"insert the missing axis: numpy.expand_dims(array, {axis})"
    return "reshape it before it is saved"
