"""A quantized graph as a float model, and a file of encodings that names its tensors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.unquantized import FloatForm, float_form
from qdqbridge.core.graph.atomic_write import placed_together
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.build import permuted_params
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.onnx_io.writer import spec_of
from qdqbridge.onnx_io.writer.files import model_without_tensors, places_of, write_files
from qdqbridge.onnx_io.writer.rows import TensorNames
from qdqbridge.onnx_io.writer.spec import ONNXRUNTIME
from qdqbridge.targets.encodings import EncodingsFormat, encodings_format, listed
from qdqbridge.targets.encodings.application import result_axis, values_by_name
from qdqbridge.targets.encodings.encoding import TensorEncoding

T = TypeVar("T")


def write_encodings(
    graph: Graph,
    model: Path,
    path: Path,
    format_name: str,
    look: Callable[[Path, Path], T],
    *,
    opset: int | None,
    overwrite: bool,
) -> tuple[tuple[str, ...], T]:
    """Writes the float model of a graph, and what its tensors were stored as, in one turn.

    Args:
        graph: A canonical graph with float inputs and outputs.
        model: The ONNX file to write.
        path: The file of encodings to write.
        format_name: The format of it.
        look: Looks at both files before they are where they shall be: what is there afterwards
            may be somebody else's.
        opset: The opset to write; by default the source's.
        overwrite: Replace files that are there.

    Returns:
        Names of tensors that are read in other parameters, too, which no such file says; and what
        ``look`` returned.

    Raises:
        UnsupportedTargetError: The graph has no float form, or the format cannot say how tensors
            are quantized; all of them are listed.
        OutputExistsError: A file is there and must not be replaced.
    """
    chosen, form = encodings_format(format_name), float_form(graph)
    _check(_encodings(form, form.graph, chosen), chosen, graph.name)
    spec = spec_of(form.graph, ONNXRUNTIME, opset)
    proto = model_without_tensors(spec, form.graph.name, form.graph.metadata)
    places = [*places_of(model, spec.constants), path]
    with (
        placed_together(places, overwrite=overwrite) as scratch,
        TemporaryDirectory(prefix=".", dir=model.parent) as folder,
    ):
        made = [Path(folder, place.name) for place in places[:-1]]
        made.append(Path(folder, "encodings" + path.suffix))
        write_files(proto, spec.constants, made[-2], overwrite=False)
        again = read(made[-2], canonicalize)
        made[-1].write_text(chosen.written(_encodings(form, again, chosen)), "utf-8")
        seen = look(made[-2], made[-1])
        for file, place in zip(made, scratch, strict=True):
            shutil.move(file, place)
    names = TensorNames(form.graph)
    return tuple(names.of(value) for value in form.otherwise), seen


def _encodings(form: FloatForm, written: Graph, chosen: EncodingsFormat) -> list[TensorEncoding]:
    """Returns the encodings of a float form.

    A format that does not name all tensors has no biases, whose units follow from those of their
    products, and no results of moves.

    Args:
        form: The float form.
        written: The float model as a reader finds it: some weights lie transposed there.
        chosen: The format.
    """
    names, found = TensorNames(form.graph), list[TensorEncoding]()
    alive, there = set(form.graph.values()), values_by_name(written)
    for value, params in form.stored.items():
        bias = value.is_constant and params.storage_dtype is DType.INT32
        follows = bias or _only_moved(form, value)
        if value not in alive or (follows and not chosen.all_tensors):
            continue
        if bias and value.type.dtype is not DType.FLOAT32:
            continue  # its scale, a product of two, has no place in float16
        name = names.of(value)
        axis = result_axis(value) if value.is_constant else None
        along = axis is not None and axis == params.axis
        turned = axis is not None and name in there and result_axis(there[name]) != axis
        own = permuted_params(params, (1, 0)) if turned and not params.per_tensor else params
        found.append(
            TensorEncoding(
                name, own.storage_dtype, own.scale.astype(np.float32), own.zero_point, own.axis,
                own.block_size, value.is_constant, along,
            )
        )  # fmt: skip
    return found


def _only_moved(form: FloatForm, value: Value) -> bool:
    """Returns whether a value is elements of another one that is stored alike."""
    maker = value.producer
    if maker is None or maker.op.flow is not Flow.MOVE:
        return False
    return all(form.stored.get(v) == form.stored[value] for _, v in maker.data_operands())


def _check(encodings: list[TensorEncoding], chosen: EncodingsFormat, name: str) -> None:
    """Raises the complete list of what a format cannot say."""
    unsaid = {each.name: reason for each in encodings if (reason := chosen.unsaid(each))}
    unsaid |= {e.name: "a scale of it is negative" for e in encodings if (e.scale < 0).any()}
    if unsaid:
        raise UnsupportedTargetError(
            f"{chosen.name} cannot say how {len(unsaid)} tensors are quantized",
            where=name,
            why=listed(unsaid),
            fix="write another format, or quantize the model otherwise",
        )
