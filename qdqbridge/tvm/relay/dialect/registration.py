"""How records of the QNN dialect become Relay operators, next to Relay's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import ir, relay
from tvm.ir import Op
from tvm.ir import _ffi_api as ir_api
from tvm.relay.op.op import register_convert_op_layout, register_infer_correct_layout
from tvm.relay.qnn.op import _make as _make_untyped
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from qdqbridge.core.ops.normalization import OVER_ROWS
from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect import QNN_OPS
from qdqbridge.tvm.qnn.dialect.context import CallContext, QnnOp
from qdqbridge.tvm.relay.dialect.host import (
    RelayHost,
    dict_attrs,
    is_known,
    names_of,
    register_kernel,
    tensor_type,
    typed,
    values_of,
)

# ---- Relay's own ``qnn`` operators: their attribute records, and which calls they can carry ------
# A row says how a call of a record (``qdqbridge.tvm.qnn.dialect``) becomes a call of Relay's
# operator of that name, and how such a call's attributes read as the record's.


_make: Any = _make_untyped
Attrs = Mapping[str, Any]
_NARROW = ("int8", "uint8")
_CODES = ("int8", "uint8", "int16", "uint16")
_SIGNED = ("int8", "uint8", "int16")


@dataclass(frozen=True, slots=True)
class Native:
    """One operator of Relay's own.

    Attributes:
        name: ``qnn.<name>``.
        make: Returns Relay's call for arguments and a record's attributes.
        data: Element types that Relay takes for the first arguments, one tuple for each.
        carries: Whether a record's attributes, and the types of the arguments, have a form in
            Relay; the element types in ``data`` are checked before.
        read: How attributes that Relay names or encodes differently become the record's.
        widened: Whether the record's type rule replaces Relay's (it takes more element types).
    """

    name: str
    make: Callable[[Sequence[Any], Attrs], Any]
    data: tuple[tuple[str, ...], ...]
    carries: Callable[[Attrs, Sequence[Any]], bool] = lambda attrs, types: True
    read: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict[str, Any])
    widened: bool = False

    def takes(self, attrs: Attrs, types: Sequence[Any]) -> bool:
        """Returns whether Relay's operator can carry a call."""
        for type_, allowed in zip(types, self.data, strict=False):
            if isinstance(type_, ir.TensorType) and str(type_.dtype) not in allowed:
                return False
        return self.carries(attrs, types)

    def attribute(self, attrs: Any, name: str, default: Any) -> Any:
        """Returns an attribute of Relay's call as the record has it."""
        if name in self.read:
            return self.read[name](attrs)
        return attrs[name] if name in names_of(attrs) else default


def _given(name: str, empty: Any) -> Callable[[Any], Any]:
    """Returns a reader that gives ``empty`` for what Relay leaves out."""

    def read(attrs: Any) -> Any:
        value = attrs[name]
        unset = value is None or (isinstance(value, str) and value in ("", "None", "void"))
        return empty if unset else value

    return read


def _same_dtype(attrs: Attrs, types: Sequence[Any]) -> bool:
    """Relay's result has the element type of the data."""
    return attrs["out_dtype"] in ("", str(types[0].dtype))


def _binary_types(attrs: Attrs, types: Sequence[Any]) -> bool:
    return _same_dtype(attrs, types) and types[0].dtype == types[1].dtype


def _rounded_to_even(attrs: Attrs, types: Sequence[Any]) -> bool:
    del types
    return attrs["rounding"] == "TONEAREST_EVEN"


def _stated(value: str, default: str) -> str:
    """Returns Relay's ``None`` for what half-even builds take anyway."""
    return "None" if value == default else value


def _or_none(value: Any) -> Any:
    return value or None


def _conv2d(args: Sequence[Any], a: Attrs) -> Any:
    return _make.conv2d(*args, *_windows(a), a["out_dtype"])


def _conv2d_transpose(args: Sequence[Any], a: Attrs) -> Any:
    return _make.conv2d_transpose(*args, *_windows(a), a["output_padding"], a["out_dtype"])


def _windows(a: Attrs) -> tuple[Any, ...]:
    """Returns what both convolutions take first; the layout of the result is that of the data."""
    sizes = _or_none(a["channels"]), _or_none(a["kernel_size"])
    steps = a["strides"], a["padding"], a["dilation"], a["groups"]
    return (*steps, *sizes, a["data_layout"], a["kernel_layout"], "")


def _requantize(args: Sequence[Any], a: Attrs) -> Any:
    rounding = _stated(a["rounding"], "TONEAREST_EVEN")
    compute = _stated(a["compute_dtype"], "float32")
    return _make.requantize(*args, a["axis"], rounding, compute, a["out_dtype"])


def _pool(args: Sequence[Any], a: Attrs) -> Any:
    return _make.avg_pool2d(
        *args,
        a["pool_size"],
        a["strides"],
        a["padding"],
        a["dilation"],
        bool(a["ceil_mode"]),
        bool(a["count_include_pad"]),
        a["layout"],
        "",
    )


def _native_qnn_binary(name: str) -> Native:
    make = getattr(_make, name)
    return Native(
        f"qnn.{name}",
        lambda args, a: make(*args, a["lhs_axis"], a["rhs_axis"]),
        (_CODES, _CODES),
        _binary_types,
    )


def _unary(name: str) -> Native:
    make = getattr(_make, name)
    return Native(f"qnn.{name}", lambda args, a: make(*args), (_CODES,), _same_dtype, widened=True)


def _ungrouped(attrs: Attrs, types: Sequence[Any]) -> bool:
    """Relay's type rule expects a wrong number of scales for grouped transposed convolutions."""
    return attrs["groups"] == 1 or not types[5].shape


def _accepts_native_softmax(attrs: Attrs, types: Sequence[Any]) -> bool:
    return isinstance(attrs["axis"], int) and _same_dtype(attrs, types)


def _plain_matmul(attrs: Attrs, types: Sequence[Any]) -> bool:
    lead = [[int(e) for e in type_.shape[:-2]] for type_ in types[:2]]
    straight = not attrs["transpose_a"] and attrs["transpose_b"] and attrs["out_dtype"] == "int32"
    numbers = all(len(type_.shape) == 0 for type_ in types[2:6])
    return straight and numbers and len(lead[0]) == 1 and lead[0] == lead[1]


_WINDOW = {"channels": _given("channels", 0), "kernel_size": _given("kernel_size", ())}
_ACCUMULATED = {"out_dtype": _given("out_dtype", "int32")}

NATIVE: tuple[Native, ...] = (
    Native(
        "qnn.quantize",
        lambda args, a: _make.quantize(*args, a["axis"], a["out_dtype"]),
        (("float32",),),
        _rounded_to_even,
    ),
    Native(
        "qnn.dequantize",
        lambda args, a: _make.dequantize(*args, a["axis"], a["out_dtype"]),
        ((*_CODES, "int32"),),
    ),
    Native(
        "qnn.requantize",
        _requantize,
        ((*_SIGNED, "int32", "int64"),),
        lambda attrs, types: attrs["out_dtype"] in (*_SIGNED, "int32"),
        {
            "rounding": _given("rounding", "TONEAREST_EVEN"),
            "compute_dtype": _given("compute_dtype", "float32"),
        },
    ),
    Native("qnn.conv2d", _conv2d, (_SIGNED, _SIGNED), read=_WINDOW | _ACCUMULATED),
    Native(
        "qnn.conv2d_transpose",
        _conv2d_transpose,
        (_CODES, _NARROW),
        _ungrouped,
        _WINDOW | _ACCUMULATED,
    ),
    Native(
        "qnn.dense",
        lambda args, a: _make.dense(*args, _or_none(a["units"]), a["out_dtype"]),
        (_CODES, _NARROW),
        read={"units": _given("units", 0)} | _ACCUMULATED,
    ),
    Native(
        "qnn.batch_matmul",
        lambda args, a: _make.batch_matmul(*args, a["out_dtype"]),
        (_NARROW, _NARROW),
        _plain_matmul,
        _ACCUMULATED,
    ),
    *(_native_qnn_binary(name) for name in ("add", "subtract", "mul")),
    Native("qnn.concatenate", lambda args, a: _make.concatenate(*args, a["axis"]), ()),
    Native("qnn.avg_pool2d", _pool, (_NARROW,), _same_dtype),
    Native(
        "qnn.softmax",
        lambda args, a: _make.softmax(args[0], a["axis"], *args[1:]),
        (_CODES,),
        _accepts_native_softmax,
        widened=True,
    ),
    Native(
        "qnn.leaky_relu",
        lambda args, a: _make.leaky_relu(args[0], a["alpha"], *args[1:]),
        (_CODES,),
        _same_dtype,
        widened=True,
    ),
    *(
        _unary(name)
        for name in (
            "tanh",
            "exp",
            "sqrt",
            "rsqrt",
            "erf",
            "sigmoid",
            "hardswish",
            "log",
            "abs",
        )
    ),
)


# ---- layouts -------------------------------------------------------------------------------------
# What Relay's ConvertLayout needs to carry another layout through the operators of the dialect.
#
# Without these hooks ConvertLayout puts a pair of ``layout_transform`` around every call. Emission
# writes channels-last modules directly; the hooks serve modules that come from elsewhere.


AXES = ("axis", "lhs_axis", "rhs_axis")
"""Attributes that count axes of the data."""
_FIRST = ("axis",)
_WHOLE_TAIL = tuple(f"qnn.{row.qnn}" for row in OVER_ROWS)
"""``axis`` means it and all axes after it, which another layout does not keep together."""


def register_layouts(ops: Sequence[QnnOp]) -> None:
    """Registers the layout hooks of operators with ``DictAttrs``."""
    for op in ops:
        names = {attribute.name for attribute in op.attributes}
        if "layout" in names:
            register_infer_correct_layout(op.name, _layout_stated("layout", len(op.arguments)))
            register_convert_op_layout(op.name, _converted(op.name))
        elif op.arguments[0] == "lhs":
            register_infer_correct_layout(op.name, _two_operands(len(op.arguments)))
        elif _follows(op, names):
            register_infer_correct_layout(op.name, _follow(len(op.arguments)))


def _follows(op: QnnOp, names: set[str]) -> bool:
    """True for an operator of one operand whose axes may lie in any order."""
    if op.arguments[0] != "data" or op.name in _WHOLE_TAIL:
        return False
    return "data_layout" not in names and op.name not in (
        "qnn.resize",
        "qnn.instance_norm",
        "qnn.group_norm",
        "qnn.dense",
        "qnn.concatenate",
    )


def _layout_stated(name: str, count: int) -> Callable[..., Any]:
    """The layout is an attribute, for data and result alike."""

    def infer(attrs: Any, new: Any, old: Any, types: Any) -> Any:
        del new, old, types
        layout = tvm.tir.layout(str(attrs[name]))
        return InferCorrectLayoutOutput([layout, *_param_layouts(count - 1)], [layout], attrs)

    return infer


def _follow(count: int) -> Callable[..., Any]:
    """The result has the layout of the data; axes in attributes follow."""

    def infer(attrs: Any, new: Any, old: Any, types: Any) -> Any:
        layout = _chosen(new, old, 0)
        reduced = "keepdims" in names_of(attrs) and not attrs["keepdims"]
        if reduced and _is_defined_layout(old[0]) and _scrambled(attrs, old[0], layout, types[0]):
            layout = old[0]
        moved = _moved(attrs, old[0], layout, _FIRST)
        out = tvm.tir.layout("__undef__") if reduced else layout
        return InferCorrectLayoutOutput([layout, *_param_layouts(count - 1)], [out], moved)

    return infer


def _two_operands(count: int) -> Callable[..., Any]:
    """Operands of equal rank take one layout; others keep theirs."""

    def infer(attrs: Any, new: Any, old: Any, types: Any) -> Any:
        same_rank = len(types[0].shape) == len(types[1].shape)
        choices = [_chosen(new, old, i) for i in (0, 1)]
        changed = [
            c for i, c in enumerate(choices) if _layout_letters(c) != _layout_letters(old[i])
        ]
        known = next((o for o in list(old)[:2] if _is_defined_layout(o)), None)
        if not same_rank or not changed or known is None:
            layouts = [old[0], old[1]]
            out = old[0] if len(types[0].shape) >= len(types[1].shape) else old[1]
            return InferCorrectLayoutOutput([*layouts, *_param_layouts(count - 2)], [out], attrs)
        layout = changed[0]
        moved = _moved(attrs, known, layout, AXES)
        rest = _param_layouts(count - 2)
        return InferCorrectLayoutOutput([layout, layout, *rest], [layout], moved)

    return infer


def _param_layouts(count: int) -> list[Any]:
    return [tvm.tir.layout("C")] * count


def _layout_letters(layout: Any) -> str:
    """Returns the letters of a layout, empty where it is not known."""
    return "" if layout is None or layout.name == "__undef__" else str(layout.name)


def _is_defined_layout(layout: Any) -> bool:
    return bool(_layout_letters(layout))


def _chosen(new: Any, old: Any, index: int) -> Any:
    """Returns the new layout where it is the old one with its axes in another order.

    ``new`` is None where nothing has changed before the call.
    """
    was = old[index]
    now = was if new is None else new[index]
    if not (_is_defined_layout(now) and _is_defined_layout(was)) or now.name == was.name:
        return was
    return now if sorted(now.name) == sorted(was.name) else was


def _moved(attrs: Any, old: Any, new: Any, names: Sequence[str]) -> Any:
    """Returns attributes whose axes count those of the new layout."""
    if _layout_letters(old) == _layout_letters(new):
        return attrs
    values = values_of(attrs)
    for name in names:
        if name not in values:
            continue
        value = values[name]
        values[name] = (
            _axis_in_new_layout(int(value), old, new)
            if isinstance(value, int | tvm.tir.IntImm)
            else [_axis_in_new_layout(int(v), old, new) for v in value]
        )
    return dict_attrs(values)


def _axis_in_new_layout(axis: int, old: Any, new: Any) -> int:
    return new.name.index(old.name[axis])


def _scrambled(attrs: Any, old: Any, new: Any, type_: Any) -> bool:
    """True where the axes that a reduction keeps come in another order afterwards."""
    value = attrs["axis"]
    axes = [int(value)] if isinstance(value, int | tvm.tir.IntImm) else [int(v) for v in value]
    gone = {old.name[axis] for axis in axes} if axes else set(old.name[: len(type_.shape)])
    kept = [[letter for letter in layout.name if letter not in gone] for layout in (old, new)]
    return kept[0] != kept[1]


def _converted(name: str) -> Callable[..., Any]:
    """Returns the hook that rewrites a call to a desired layout."""

    def convert(attrs: Any, inputs: Any, types: Any, desired: Any) -> Any:
        del types
        values = values_of(attrs) | {"layout": str(desired[0])}
        return relay.Call(Op.get(name), list(inputs), dict_attrs(values))

    return convert


# ---- How records of the QNN dialect become Relay operators, next to Relay's own ------------------


CANONICALIZE = "FTVMQnnCanonicalize"
_LEVEL = 11
"""Priority of our attributes; TVM's own are set with 10."""

_HOST = RelayHost()
_NATIVE: dict[str, Native] = {row.name: row for row in NATIVE}
RECORDS: dict[str, QnnOp] = {op.name: op for op in QNN_OPS}
TWINS: dict[str, QnnOp] = {
    name: replace(RECORDS[name], name=name.replace("qnn.", "qnn.qdq_")) for name in _NATIVE
}
"""By Relay's name: the operator that carries what Relay's own refuses (``qnn.qdq_<name>``)."""


def register() -> None:
    """Registers every operator that Relay lacks; doing it again changes nothing."""
    register_kernel()
    known = set(Op.list_op_names())
    new = [op for op in (*RECORDS.values(), *TWINS.values()) if op.name not in known]
    for op in new:
        _register(op)
    register_layouts(new)
    for row in NATIVE:
        if row.widened:
            record = RECORDS[row.name]
            Op.get(row.name).add_type_rel(f"QdqBridge.{row.name}", _relation(record))


def _register(op: QnnOp) -> None:
    ir_api.RegisterOp(op.name, op.doc)
    operator = Op.get(op.name)
    operator.set_num_inputs(len(op.arguments))
    for argument in op.arguments:
        operator.add_argument(argument, "Tensor", argument.replace("_", " "))
    operator.set_attrs_type_key("DictAttrs")
    operator.set_support_level(_LEVEL)
    operator.add_type_rel(f"QdqBridge.{op.name}", _relation(op))
    operator.set_attr("TNonComputational", True, _LEVEL)
    operator.set_attr("TOpPattern", 8, _LEVEL)
    operator.set_attr(CANONICALIZE, canonicalization(op), _LEVEL)


def _relation(op: QnnOp) -> Callable[[Sequence[Any], Any], Any]:
    def relation(types: Sequence[Any], attrs: Any) -> Any:
        if not all(is_known(type_) for type_ in types):
            return None
        result = op.infer(_context(op, (), types, attrs))
        return tensor_type(result.shape, result.dtype)

    return relation


def canonicalization(op: QnnOp) -> Callable[[Any, Sequence[Any], Sequence[Any]], Any]:
    """Returns the function that replaces a call by kernels with the contract's arithmetic."""

    def canonicalize(attrs: Any, args: Sequence[Any], types: Sequence[Any]) -> Any:
        context = _context(op, args, list(types)[: len(op.arguments)], attrs)
        _check_out_layout(context, attrs)
        return op.lower(context)

    return canonicalize


def _check_out_layout(context: CallContext, attrs: Any) -> None:
    """Relay can state another layout for the result; no record has that."""
    if "out_layout" not in names_of(attrs):
        return
    own = str(attrs["data_layout"] if "data_layout" in context.attrs else attrs["layout"])
    if str(attrs["out_layout"]) not in ("", own):
        context.fail(f"out_layout is {attrs['out_layout']}", f"give {own}, the layout of the data")


def _context(op: QnnOp, args: Sequence[Any], types: Sequence[Any], attrs: Any) -> CallContext:
    row = _NATIVE.get(op.name)
    values = {
        a.name: attrs[a.name] if row is None else row.attribute(attrs, a.name, a.default)
        for a in op.attributes
    }
    return CallContext(op.name, op.arguments, args, types, values, _HOST)


def lookup(name: str) -> QnnOp:
    """Returns the record of an operator.

    Raises:
        GraphError: The dialect has no such operator.
    """
    twins = {twin.name: twin for twin in TWINS.values()}
    record = RECORDS.get(name) or twins.get(name)
    if record is None:
        raise GraphError(
            f"the QNN dialect has no operator {name!r}", fix=f"it has {sorted(RECORDS)}"
        )
    return record


def call(name: str, args: Sequence[Any], attrs: Mapping[str, Any] | None = None) -> relay.Call:
    """Returns a call of a dialect operator, as ``qdqbridge.tvm.relax.dialect.call`` does for Relax.

    Relay's own operator is used where it can carry the call, with Relay's attribute record;
    ``rounding`` and ``compute_dtype`` of a requantize that have the dialect's default stay unset,
    as importers leave them. What Relay's own operator cannot carry (mixed element types, another
    type for the result, 16-bit matrices, ...) becomes ``qnn.qdq_<name>`` of equal arguments.

    Args:
        name: ``qnn.<name>``.
        args: Expressions in the order of ``QnnOp.arguments``; Python tuples become Relay tuples.
            Their types are inferred where they are not known yet.
        attrs: Attributes that differ from their defaults.

    Raises:
        GraphError: Unknown operator, wrong number of arguments, or unknown or missing attributes.
    """
    op = lookup(name)
    op.check_count(len(args))
    values = op.complete(attrs or {})
    exprs = [relay.Tuple(list(arg)) if isinstance(arg, tuple | list) else arg for arg in args]
    row = _NATIVE.get(name)
    if row is None:
        return relay.Call(Op.get(name), exprs, dict_attrs(values))
    if row.takes(values, [typed(expr).checked_type for expr in exprs]):
        return row.make(exprs, values)
    return relay.Call(Op.get(TWINS[name].name), exprs, dict_attrs(values))
