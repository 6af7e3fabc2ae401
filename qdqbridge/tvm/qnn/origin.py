"""The text that an emitter puts into the span of every call: which graph node it comes from.

A call of a host's operator does not tell everything about a node: ``Reshape`` to ``[0, -1]`` is
written as a reshape to known extents, ``HardSwish`` of floats as five calls, int4 as int8. What a
module computes is what its calls say; a span only says how the graph had written it, and a reader
believes it only where both agree.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Origin, Value, Whole
from qdqbridge.core.graph.operator import Attributes, Flow
from qdqbridge.core.graph.types import QuantParams, QuantType, ValueType
from qdqbridge.core.ops.composition import CompositionAttrs, Step
from qdqbridge.core.ops.elementwise import CONCAT, MAX, MIN
from qdqbridge.core.ops.selection import GATHER
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import InvalidModelError

_PREFIX = "qdqbridge:"
_LAYOUT = "qdqbridge-layout:"
_BYTE = 8
_DTYPES = {dtype.label: dtype for dtype in DType}


P = ParamSpec("P")
R = TypeVar("R")


def _decoding(decode: Callable[P, R]) -> Callable[P, R]:
    """Returns a function that reads records of this module, and refuses those of other forms.

    A record is what JSON holds: where a key, a kind or an element type is another one than the
    writer's, the text is damaged.
    """

    @wraps(decode)
    def strict(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return decode(*args, **kwargs)
        # What decoders raise of JSON with other keys, kinds or element types.
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidModelError(
                "what the module says about its nodes is damaged",
                why=f"a record has another form: {type(error).__name__}: {str(error)[:100]}",
                fix="save the module anew",
            ) from error

    return strict


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a span says about the node that its call belongs to.

    Attributes:
        op: Name of the node's operator.
        attributes: Its attributes; None where the operator is not in the table (``raw`` has them).
        operands: Element type of each operand, ``storage[:expressed[:scale]]``; empty for a plain
            tensor and where an operand is left out.
        plain: Element types of plain constant operands, by index.
        results: The same of each result.
        names: Names of the result tensors.
        origin: The names of the file's nodes.
        raw: The attributes as they are written.
        more: What only some operators have; the functions of this module read it.
    """

    op: str
    attributes: Attributes | None
    operands: tuple[str, ...]
    plain: Mapping[int, DType]
    results: tuple[str, ...]
    names: tuple[str, ...]
    origin: Origin
    raw: Mapping[str, Any]
    more: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the first result."""
        return self.names[0] if self.names else ""


def written(
    node: Node,
    *,
    named: bool = True,
    layout: tuple[bool, bool] | None = None,
    swapped: bool = False,
) -> str:
    """Returns the text for the spans of the calls that ``node`` becomes.

    Args:
        named: Say which names it has in its file.
        layout: Whether the calls take its operands and give its results channels-last where the
            file has them channels-first; None where a layout plan has changed nothing.
        swapped: The calls take its two operands in the other order.
    """
    inputs = list(enumerate(node.inputs))
    written: dict[str, Any] = {"swapped": True} if swapped else {}
    if layout is not None:
        written["layout"] = list(layout)
        written["ranks"] = {i: v.rank for i, v in inputs if v is not None and v.is_constant}
    fixed = {i: v for i, v in inputs if v is not None and v.constant is not None}
    stored = [i for i, v in fixed.items() if v.quant is not None]
    if stored:
        written["stored"] = stored
    whole = node.origin.whole
    if whole is not None:
        own = {"op": whole.op, "attributes": _serialize_attrs(whole.attributes)}
        written["whole"] = {**own, "shapes": _json_attribute(whole.shapes)}
    record: dict[str, Any] = {
        "op": node.op.name,
        "attributes": _serialize_attrs(node.attributes),
        "operands": ["" if v is None else _element(v.type) for v in node.inputs],
        "plain": {i: str(v.type.dtype) for i, v in fixed.items() if v.quant is None},
        "results": [_element(v.type) for v in node.outputs],
        "names": [v.name if named else "" for v in node.outputs],
        "nodes": list(node.origin.nodes) if named else [],
        "metadata": [list(pair) for pair in node.origin.metadata] if named else [],
        "more": _more(node, fixed) | written,
    }
    return _PREFIX + json.dumps(record, separators=(",", ":"))


def _more(node: Node, fixed: Mapping[int, Value]) -> dict[str, Any]:
    """Returns what the calls of some operators do not show at all."""
    more: dict[str, Any] = {}
    moves = node.op.flow in (Flow.MOVE, Flow.REINTERPRET, Flow.CONVERT)
    if moves or node.op in (CONCAT, MIN, MAX):
        more["params"] = [
            None if v.quant is None else _qparams_as_json(v.quant.params) for v in node.outputs
        ]
    if isinstance(node.attributes, CompositionAttrs):
        more |= _lookup_table_origin(node)
    elif node.op is GATHER and 1 in fixed:
        more["indices"] = _indices(fixed[1])
    elif is_function(node.op.name):
        more["absent"] = [i for i, v in enumerate(node.inputs) if v is None]
        more["types"] = [str(v.type.dtype) for v in node.outputs]
        more["constants"] = {i: _array(v) for i, v in fixed.items() if is_written(v)}
    else:
        given = {i: v.quant.params for i, v in fixed.items() if v.quant is not None and i > 0}
        folded = {i: p for i, p in given.items() if i > 1 or node.op.flow is Flow.ROUND}
        more["folded"] = {i: _qparams_as_json(params) for i, params in folded.items()}
    return more


def conversion(name: str, *, last: bool) -> str:
    """Returns the text for the span of a call that only changes a layout.

    Args:
        name: Of the value.
        last: Its result is channels-last.
    """
    return f"{_LAYOUT}{'last' if last else 'first'}:{name}"


def converted(text: str) -> bool | None:
    """Returns whether a change of layout makes a value channels-last; None for other texts."""
    return text.startswith(f"{_LAYOUT}last:") if text.startswith(_LAYOUT) else None


def label(text: str) -> str:
    """Returns the name of the value that a span is about, whoever wrote it."""
    if converted(text) is not None:
        return text.removeprefix(_LAYOUT).partition(":")[2]
    provenance = provenance_of(text)
    return text if provenance is None else provenance.name


def type_text(type_: ValueType) -> str:
    """Returns what a function's attribute says of an input whose type its parameter hides.

    That is the quantization, and the element type of what hosts hold as another one.
    """
    if isinstance(type_, QuantType):
        return json.dumps(_qparams_as_json(type_.params))
    hidden = type_.dtype.bits < _BYTE or type_.dtype.is_small_float
    return json.dumps(type_.dtype.label) if hidden else ""


@_decoding
def params_of(text: str) -> QuantParams | None:
    """Returns the parameters in a text of :func:`type_text`."""
    record = _loaded(text) if text else None
    return _read_params(record) if isinstance(record, list) else None  # pyright: ignore[reportUnknownArgumentType]


@_decoding
def plain_dtype_of(text: str) -> DType | None:
    """Returns the element type in a text of :func:`type_text`."""
    record = _loaded(text) if text else None
    return _DTYPES.get(record) if isinstance(record, str) else None


def _loaded(text: str) -> Any:
    """Returns what a text of this module holds.

    Raises:
        InvalidModelError: The text is damaged.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidModelError(
            "what the module says about its quantization is damaged",
            why=f"{text[:100]!r} is not JSON: {error}",
            fix="save the module anew",
        ) from error


@_decoding
def provenance_of(text: str) -> Provenance | None:
    """Returns what a span says; None where it is not text of :func:`written`."""
    if not text.startswith(_PREFIX):
        return None
    record = _loaded(text[len(_PREFIX) :])
    raw = record["attributes"]
    row = BY_NAME.get(record["op"])
    # Lists of JSON are tuples again: records are compared and are keys.
    metadata = tuple((key, value) for key, value in record["metadata"])
    return Provenance(
        record["op"],
        None if row is None else _record(row.attributes, raw),
        tuple(record["operands"]),
        {int(i): _DTYPES[name] for i, name in record["plain"].items()},
        tuple(record["results"]),
        tuple(record["names"]),
        Origin(
            tuple(record["nodes"]), metadata, whole=_deserialize_whole(record["more"].get("whole"))
        ),
        raw,
        record["more"],
    )


def _deserialize_whole(record: Mapping[str, Any] | None) -> Whole | None:
    row = None if record is None else BY_NAME.get(record["op"])
    if record is None or row is None:
        return None
    shapes = tuple(None if shape is None else tuple(map(int, shape)) for shape in record["shapes"])
    return Whole(row.name, _record(row.attributes, record["attributes"]), shapes)


# ---- what some operators need besides ----------------------------------------------------------

_WRITTEN = 1 << 16
"""Bytes of a constant of an opaque node that a span carries at most."""


def is_written(value: Value) -> bool:
    """True of a constant of an opaque node that its span carries; others are handed over."""
    return value.constant is not None and value.constant.nbytes <= _WRITTEN


def is_function(name: str) -> bool:
    """Returns whether hosts emit an operator as a call of a function of its own."""
    row = BY_NAME.get(name)
    return row is None or row.apart


@_decoding
def layout_of(provenance: Provenance) -> tuple[bool, bool] | None:
    """Returns whether operands and results are stored channels-last; None where as in the file."""
    found = provenance.more.get("layout")
    return None if found is None else (bool(found[0]), bool(found[1]))


@_decoding
def ranks_of(provenance: Provenance) -> dict[int, int]:
    """Returns the ranks of constant operands in the file, by index."""
    return {int(i): rank for i, rank in provenance.more.get("ranks", {}).items()}


@_decoding
def may_be_operand(provenance: Provenance, index: int, *, constant: bool) -> bool:
    """True where operand ``index`` of the node is a quantized constant as much as ``constant``."""
    return (index in provenance.more.get("stored", ())) == constant


def is_swapped(provenance: Provenance) -> bool:
    """True where the calls take the two operands of the node in the other order."""
    return bool(provenance.more.get("swapped"))


def tells_params(provenance: Provenance, index: int) -> bool:
    """Returns whether a span says what result ``index`` of a data-movement operator means."""
    return index < len(provenance.more.get("params", ()))


@_decoding
def moved_params(provenance: Provenance, index: int) -> QuantParams | None:
    """Returns the parameters of a data-movement operator's result; None where it has none."""
    record = provenance.more["params"][index]
    return None if record is None else _read_params(record)


@_decoding
def folded_params(provenance: Provenance, index: int) -> QuantParams | None:
    """Returns the parameters of a constant operand that hosts get as real numbers."""
    record = provenance.more.get("folded", {}).get(str(index))
    return None if record is None else _read_params(record)


@_decoding
def function_of(
    provenance: Provenance,
) -> tuple[QuantParams, QuantParams, list[NDArray[Any]]] | None:
    """Returns operand parameters, result parameters and scalars of a recorded Composition."""
    if not all(name in provenance.more for name in ("source", "result", "scalars")):
        return None
    scalars = [np.asarray(v, np.float32).reshape(shape) for v, shape in provenance.more["scalars"]]
    return _read_params(provenance.more["source"]), _read_params(provenance.more["result"]), scalars


@_decoding
def constants_of(provenance: Provenance) -> dict[int, NDArray[Any]] | None:
    """Returns the constant operands of an opaque node that its span carries; None without any."""
    if "constants" not in provenance.more:
        return None
    return {int(i): _read_array(record) for i, record in provenance.more["constants"].items()}


def _lookup_table_origin(node: Node) -> dict[str, Any]:
    """Returns what a table over codes does not show: both parameters and the float constants."""
    scalars = [v.constant.numpy() for v in node.inputs[1:] if v is not None and v.constant]
    found: dict[str, Any] = {"scalars": [[float(s.reshape(-1)[0]), list(s.shape)] for s in scalars]}
    for name, value in (("source", node.operand(0)), ("result", node.output)):
        if value.quant is not None:
            found[name] = _qparams_as_json(value.quant.params)
    return found


def _indices(value: Value) -> dict[str, Any]:
    """Returns what a host's indices do not show: which were negative, and their element type."""
    assert value.constant is not None
    array: NDArray[Any] = value.constant.numpy()
    negative = np.flatnonzero(array.reshape(-1) < 0).tolist()
    return {"dtype": str(array.dtype), "size": array.size, "negative": negative}


def _array(value: Value) -> list[Any]:
    assert value.constant is not None
    array = np.ascontiguousarray(value.constant.numpy())
    shape = list(value.constant.shape)  # NumPy makes a vector of a scalar
    return [str(value.type.dtype), shape, base64.b64encode(array.tobytes()).decode()]


def _read_array(record: list[Any]) -> NDArray[Any]:
    dtype, shape, data = record
    return np.frombuffer(base64.b64decode(data), _DTYPES[dtype].numpy).reshape(shape)


def _qparams_as_json(params: QuantParams) -> list[Any]:
    """Returns parameters; every scale type is exact as a decimal of float64."""
    return [
        _element(QuantType(params, None)), params.scale.astype(np.float64).tolist(),
        params.zero_point.tolist(), params.axis, params.block_size, params.qmin, params.qmax,
    ]  # fmt: skip


def _read_params(record: list[Any]) -> QuantParams:
    text, scale, zero_point, axis, block, qmin, qmax = record
    storage, expressed, kind = element(text)
    return QuantParams(
        storage, np.asarray(scale).astype(kind.numpy), np.asarray(zero_point, np.int32), axis=axis,
        block_size=block, qmin=qmin, qmax=qmax, expressed_dtype=expressed,
    )  # fmt: skip


@_decoding
def dtype_of(name: str) -> DType:
    """Returns the element type of a name in a record of provenance."""
    return _DTYPES[name]


@_decoding
def element(text: str) -> tuple[DType, DType, DType]:
    """Returns storage, expressed and scale type of an element type in a record of provenance."""
    storage, *rest = (_DTYPES[part] for part in text.split(":"))
    expressed = rest[0] if rest else DType.FLOAT32
    return storage, expressed, rest[1] if len(rest) > 1 else expressed


def _element(type_: ValueType) -> str:
    if not isinstance(type_, QuantType):
        return ""
    params = type_.params
    parts = [str(params.storage_dtype)]
    if params.scale_dtype is not params.expressed_dtype:
        parts += [str(params.expressed_dtype), str(params.scale_dtype)]
    elif params.expressed_dtype is not DType.FLOAT32:
        parts.append(str(params.expressed_dtype))
    return ":".join(parts)


def _serialize_attrs(attributes: Attributes) -> dict[str, Any]:
    names = [field.name for field in fields(attributes)]  # type: ignore[arg-type] # a dataclass
    return {name: _json_attribute(getattr(attributes, name)) for name in names}


def _json_attribute(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_json_attribute(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    # JSON has neither records nor element types: both are written so that `_record` finds them
    # again by the type of the field.
    if isinstance(value, Step):
        return {
            "op": value.op.name,
            "attributes": _serialize_attrs(value.attributes),
            "operands": list(value.operands),
        }
    if isinstance(value, DType):
        return value.label
    data = getattr(value, "data", None)  # the node of an opaque operator
    return base64.b64encode(data).decode() if isinstance(data, bytes) else value


def _record(kind: type[Attributes], raw: Mapping[str, Any]) -> Attributes:
    if kind is CompositionAttrs:
        return CompositionAttrs(tuple(_step(step) for step in raw["steps"]))
    return kind(**{name: _value(name, value) for name, value in raw.items()})


def _step(raw: Mapping[str, Any]) -> Step:
    row = BY_NAME[raw["op"]]
    attributes = _record(row.attributes, raw["attributes"])
    return Step(row, attributes, tuple(raw["operands"]))


def _value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(name, item) for item in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return _DTYPES[value] if name in ("to", "precision") and value is not None else value
