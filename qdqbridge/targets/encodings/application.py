"""Encodings put into a float graph, and a quantized graph as a float model beside its encodings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.unquantized import FloatForm, float_form
from qdqbridge.core.graph.atomic_write import placed_together
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.build import constant, dequantized, permuted_params, quantized
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.onnx_io.writer import spec_of
from qdqbridge.onnx_io.writer.files import model_without_tensors, places_of, write_files
from qdqbridge.onnx_io.writer.spec import ONNXRUNTIME, TensorNames
from qdqbridge.targets.encodings import Encodings, EncodingsFormat, encodings_format, listed
from qdqbridge.targets.encodings.encoding import TensorEncoding, Unfit

# ---- application ---------------------------------------------------------------------------------
# Encodings put into a float graph: a quantize and a dequantize behind each tensor they name.


_RULE = "encodings"
_LARGEST = 127
"""The stored integer that the largest weight of a channel becomes, in TensorRT and onnxruntime."""


def apply(graph: Graph, encodings: Encodings, in_file: Callable[[], Collection[str]]) -> None:
    """Quantizes what encodings name, in place: the canonical rules make integer operators of it.

    Biases need no encoding: with a quantized result they get the units of their product.

    Args:
        graph: A raw float graph, whose values have the names of the file.
        encodings: What a file says.
        in_file: Returns the names that the file of the model has, of which reading drops some.

    Raises:
        InputDataError: Tensors that the model does not have, parameters that do not fit their
            tensors, or that have no meaning here; all of them are listed.
    """
    named = values_by_name(graph)
    unfit, chosen, gone = dict(encodings.unfit), dict[Value, QuantParams](), list[str]()
    known: Collection[str] | None = None
    for name, encoding in encodings.found.items():
        value = named.get(name)
        if value is None:
            known = in_file() if known is None else known
            if name in known:
                gone.append(name)
            else:
                unfit[name] = "the model has no such tensor"
            continue
        try:
            params = _params(value, encoding)
        except Unfit as error:
            unfit[name] = str(error)
            continue
        if chosen.setdefault(value, params) != params:
            unfit[name] = f"it is the same tensor as '{value.name}', with other parameters"
    if unfit:
        raise InputDataError(
            f"the encodings do not fit the model ({len(unfit)} of "
            f"{len(encodings.found) + len(encodings.unfit)} tensors)",
            where=encodings.file,
            why=listed(unfit),
            fix="give the float model that they were made for, and correct or remove these",
        )
    if gone:
        few = tuple(gone[:20])
        graph.notes.append(
            Note(_RULE, "", f"nothing computes with {len(gone)} of their tensors", few)
        )
    if not encodings.format.weights:
        chosen.update(_weights(graph, chosen))
    editor = Editor(graph)
    for value, params in chosen.items():
        new = dequantized(_stored(value, params), value.type.dtype)
        editor.replace_value(value, new)
        editor.insert(new)
    editor.finish()
    graph.as_read = None


def result_axis(value: Value) -> int | None:
    """Returns the axis of a weight that numbers the results of all products that read it."""
    axes: set[int | None] = set()
    for node, index in value.users:
        geometry = geometry_of(node) if index == 1 else None
        axes.add(None if geometry is None else geometry.axis)
    return axes.pop() if len(axes) == 1 else 0 if value.rank == 1 else None


def _stored(value: Value, params: QuantParams) -> Value:
    """Returns a value quantized.

    int32 constants are biases: a QuantizeLinear divides in float32, which has fewer bits, so they
    are divided here.
    """
    if value.constant is None or params.storage_dtype is not DType.INT32:
        return quantized(value, params)
    integers = quantize(value.constant.numpy().astype(np.float64), params)
    return constant(integers, params, value.name)


def values_by_name(graph: Graph) -> Mapping[str, Value]:
    """Returns values by the names that the file has for them."""
    found: dict[str, Value] = {}
    for value in graph.values():
        found.setdefault(value.name, value)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        found.setdefault(name, value)
    return found


def _params(value: Value, encoding: TensorEncoding) -> QuantParams:
    """Returns the parameters of a value, whose shape they fit."""
    dtype, shape, scale, axis = value.type.dtype, value.type.shape, encoding.scale, encoding.axis
    if value.quant is not None:
        raise Unfit("it is quantized already")
    if not dtype.is_float or dtype.is_small_float:
        raise Unfit(f"its elements are {dtype}")
    if encoding.dtype is DType.INT32 and value.constant is None:
        raise Unfit("it would be int32, which only constants are")
    if scale.ndim and axis is None:
        axis = result_axis(value)
        if axis is None:
            raise Unfit("it has several scales, and no product says along which axis")
    if axis is not None:
        if shape is None:
            raise Unfit("it has several scales, and its rank is not known")
        if not -len(shape) <= axis < len(shape):
            raise Unfit(f"it has no axis {axis}, its shape is {shape}")
        axis %= len(shape)
        wanted = tuple(
            extent if encoding.block_size is None or i != axis or isinstance(extent, str)
            else -(-extent // encoding.block_size)
            for i, extent in enumerate(shape)
        )  # fmt: skip
        wanted = wanted if encoding.block_size is not None else (shape[axis],)
        if scale.shape != wanted:
            raise Unfit(f"its scales have shape {scale.shape}, its shape asks for {wanted}")
    own = scale.astype(dtype.numpy)
    if not ((own > 0) & np.isfinite(own.astype(np.float32))).all():
        raise Unfit(f"its scale is no positive {dtype}")
    return QuantParams(
        encoding.dtype, own, encoding.zero_point, axis=axis, block_size=encoding.block_size,
        expressed_dtype=dtype,
    )  # fmt: skip


def _weights(graph: Graph, chosen: Collection[Value]) -> dict[Value, QuantParams]:
    """Returns int8 parameters, per channel, of the weights of products on encoded tensors."""
    found: dict[Value, QuantParams] = {}
    for node in graph.nodes:
        value = node.inputs[1] if node.op.weight is not None and len(node.inputs) > 1 else None
        if value is None or value.constant is None or not value.type.dtype.is_float:
            continue
        if node.inputs[0] in chosen and value not in chosen and value not in found:
            params = _of_weight(node, value)
            if params is not None:
                found[value] = params
    if found:
        names = tuple(value.name for value in found)[:20]
        reason = "the encodings name no weights: int8 per channel, the largest becomes 127"
        graph.notes.append(Note(_RULE, "", f"{reason}, in {len(found)} of them", names))
    return found


def _of_weight(node: Node, value: Value) -> QuantParams | None:
    axis, rank = result_axis(value), value.rank
    if axis is None or rank is None or value.constant is None or geometry_of(node) is None:
        return None
    others = tuple(i for i in range(rank) if i != axis)
    largest = np.abs(value.constant.numpy().astype(np.float32)).max(axis=others, initial=0.0)
    scale = np.where(largest > 0, largest / np.float32(_LARGEST), np.float32(1))
    scale = scale.astype(value.type.dtype.numpy)
    zero_point = np.zeros(scale.shape, np.int32)
    return QuantParams(DType.INT8, scale, zero_point, axis=axis, expressed_dtype=value.type.dtype)


# ---- A quantized graph as a float model, and a file of encodings that names its tensors ----------


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
