"""Operators whose quantization is computed while the model runs, as ONNX has them.

ONNX's ``DynamicQuantizeLinear`` is three calls, each with one result: ``qnn.dynamic_scale(x)``
(float32) and ``qnn.dynamic_zero_point(x, scale)`` (uint8), from the extremes of x, and
``qnn.dynamic_quantize(x, scale, zero_point)`` (uint8). ``qnn.matmul_integer(a, b, za, zb)`` is
``MatMulInteger``: the int32 product of ``a - za`` and ``b - zb``. Relay has none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relay as _relay
from tvm.ir import Op
from tvm.ir import _ffi_api as ir_api

from qdqbridge.tvm.relay.dialect.half_even import rint
from qdqbridge.tvm.relay.dialect.host import dict_attrs, is_known, tensor_type, typed

relay: Any = _relay
SCALE, ZERO_POINT, QUANTIZE = "qnn.dynamic_scale", "qnn.dynamic_zero_point", "qnn.dynamic_quantize"
MATMUL = "qnn.matmul_integer"
_CANONICALIZE = "FTVMQnnCanonicalize"
_LEVEL = 11
_MOST = 255


def register() -> None:
    """Registers the operators; doing it again changes nothing."""
    if SCALE in Op.list_op_names():
        return
    _register(SCALE, ("data",), _scalar("float32"), _dynamic_uint8_scale)
    _register(ZERO_POINT, ("data", "scale"), _scalar("uint8"), _zero_point)
    _register(QUANTIZE, ("data", "scale", "zero_point"), _codes_type, _compute_dynamic_codes)
    _register(
        MATMUL, ("a", "b", "a_zero_point", "b_zero_point"), _product_type, _legalize_matmul_integer
    )


def _register(
    name: str, arguments: Sequence[str], types: Callable[..., Any], lower: Callable[..., Any]
) -> None:
    ir_api.RegisterOp(name, "Quantization that is computed while the model runs.")
    operator = Op.get(name)
    operator.set_num_inputs(len(arguments))
    for argument in arguments:
        operator.add_argument(argument, "Tensor", argument.replace("_", " "))
    operator.set_attrs_type_key("DictAttrs")
    operator.set_support_level(_LEVEL)
    operator.add_type_rel(f"QdqBridge.{name}", types)
    operator.set_attr("TNonComputational", True, _LEVEL)
    operator.set_attr("TOpPattern", 8, _LEVEL)
    operator.set_attr(_CANONICALIZE, lower, _LEVEL)


def dynamic(name: str, args: Sequence[Any]) -> Any:
    """Returns a call of one of the operators."""
    return relay.Call(Op.get(name), list(args), dict_attrs({}))


# ---- codes, scale and zero point ---------------------------------------------------------------


def _scalar(dtype: str) -> Callable[..., Any]:
    return lambda types, attrs: relay.TensorType([], dtype)


def _codes_type(types: Sequence[Any], attrs: Any) -> Any:
    del attrs
    return tensor_type(types[0].shape, "uint8") if is_known(types[0]) else None


def _dynamic_uint8_scale(attrs: Any, args: Sequence[Any], types: Sequence[Any]) -> Any:
    """``(max(x, 0) - min(x, 0)) / 255``, and 1 for zeros."""
    del attrs, types
    low = _lowest(args[0])
    high = relay.maximum(relay.max(args[0]), _relay_float32(0))
    span = relay.divide(relay.subtract(high, low), _relay_float32(_MOST))
    return relay.where(relay.equal(low, high), _relay_float32(1), span)


def _zero_point(attrs: Any, args: Sequence[Any], types: Sequence[Any]) -> Any:
    """``round(-min(x, 0) / scale)``."""
    del attrs, types
    offset = relay.subtract(_relay_float32(0), relay.divide(_lowest(args[0]), args[1]))
    return relay.cast(rint(typed(relay.clip(offset, 0, _MOST))), "uint8")


def _compute_dynamic_codes(attrs: Any, args: Sequence[Any], types: Sequence[Any]) -> Any:
    """``round(x / scale) + zero_point``, within 0 to 255."""
    del attrs, types
    codes = rint(typed(relay.divide(args[0], args[1])))
    shifted = relay.add(codes, relay.cast(args[2], "float32"))
    return relay.cast(relay.clip(shifted, 0, _MOST), "uint8")


def _lowest(x: Any) -> Any:
    return relay.minimum(relay.min(x), _relay_float32(0))


def _relay_float32(value: float) -> Any:
    return relay.Constant(tvm.nd.array(np.asarray(value, np.float32)))


def _product_type(types: Sequence[Any], attrs: Any) -> Any:
    del attrs
    if not all(is_known(type_) for type_ in types[:2]):
        return None
    a, b = ([int(extent) for extent in type_.shape] for type_ in types[:2])
    lead = np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else []
    return relay.TensorType([*lead, *rows, *columns], "int32")


def _legalize_matmul_integer(attrs: Any, args: Sequence[Any], types: Sequence[Any]) -> Any:
    shape = [int(extent) for extent in _product_type(types, attrs).shape]
    a, b, za, zb = (typed(relay.cast(typed(arg), "int32")) for arg in args)
    if len(types[0].shape) == 1:
        a = typed(relay.expand_dims(a, 0))
    if len(types[1].shape) == 1:
        b = typed(relay.expand_dims(b, 1))
    if len(types[2].shape) == 1:  # one for each row
        za = relay.expand_dims(za, 1)
    a, b = typed(relay.subtract(a, za)), typed(relay.subtract(b, zb))
    if len(_static_shape(a)) == 2 and len(_static_shape(b)) == 2:
        product = relay.nn.dense(a, typed(relay.transpose(b)))
    else:
        lead = list(np.broadcast_shapes(tuple(_static_shape(a)[:-2]), tuple(_static_shape(b)[:-2])))
        product = relay.nn.batch_matmul(
            _stacked(a, lead), _stacked(b, lead), transpose_a=False, transpose_b=False
        )
    return relay.reshape(product, shape, allowzero=True)


def _static_shape(x: Any) -> list[int]:
    return [int(extent) for extent in typed(x).checked_type.shape]


def _stacked(x: Any, lead: list[int]) -> Any:
    rows, columns = _static_shape(x)[-2:]
    wide = typed(relay.broadcast_to(x, [*lead, rows, columns]))
    return typed(relay.reshape(wide, [math.prod(lead), rows, columns], allowzero=True))
