"""Relay's own ``qnn`` operators: their attribute records, and which calls they can carry.

A row says how a call of a record (``qdqbridge.tvm.qnn.dialect``) becomes a call of Relay's
operator of that name, and how such a call's attributes read as the record's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir
from tvm.relay.qnn.op import _make as _make_untyped

from qdqbridge.tvm.relay.dialect.host import names_of

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
