"""Rules for changes of type: what cancels, what is one requantize, what is a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import codes, dequantize
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, static_shape
from qdqbridge.core.ops.attributes import LinearAttrs, QuantizeAttrs
from qdqbridge.core.ops.build import constant, dequantized, evaluated, requantized, result, retyped
from qdqbridge.core.ops.conversion import CAST, QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.run_time_parameters import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, made_by, rule, stored_behind
from qdqbridge.errors import UnsupportedModelError


def covers(wide: QuantParams, narrow: QuantParams) -> bool:
    """True where every stored value of ``narrow`` is one of ``wide`` with the same meaning."""
    return wide.same_mapping(narrow) and wide.qmin <= narrow.qmin and wide.qmax >= narrow.qmax


@rule("quantized-constant", QUANTIZE, REQUANTIZE)
def quantized_constant(node: Node, context: RuleContext) -> Proposal:
    """``quantize(const) -> const``, rounded as ONNX says, when first looked at.

    Every further way to quantize the same constant takes from what a file may have computed: a
    file of one weight that is quantized ten thousand times stands for as many weights.

    Raises:
        UnsupportedModelError: More is asked for than that.
    """
    source, target = node.operand(0), node.output.type
    data = source.constant
    if data is None or not isinstance(target, QuantType):
        return None
    known = context.quantized.setdefault((data, source.type, node.attributes), {})
    if target.params not in known:
        if known and not context.budget.affords(data.size):
            raise UnsupportedModelError(
                "a constant is quantized in too many ways",
                where=f"node '{node.name}'",
                why=f"it has {data.size} elements, and {len(known)} others of its quantizations "
                "are in the graph",
                fix="store the integers of each in the file, or use the same parameters",
            )
        known[target.params] = Constant(target.dtype, data.shape, lambda: evaluated(node))
    return Replace({node.output: constant(known[target.params], target.params, source.name)})


@rule("reinterpreted-constant", REINTERPRET)
def reinterpreted_constant(node: Node, context: RuleContext) -> Proposal:
    """``reinterpret(const) -> const`` of the other type."""
    del context
    source, target = node.operand(0), node.output.type
    if source.constant is None:
        return None
    params = target.params if isinstance(target, QuantType) else None
    return Replace({node.output: constant(source.constant, params, source.name)})


@rule("reinterpret-twice", REINTERPRET)
def reinterpret_twice(node: Node, context: RuleContext) -> Proposal:
    """``reinterpret(reinterpret(q)) -> reinterpret(q)``, or ``q`` where the type is the same."""
    del context
    source, target = node.operand(0), node.output.type
    if source.type.with_shape(None) == target.with_shape(None):  # whatever is known of the shape
        return Replace({node.output: source})
    inner = made_by(source, REINTERPRET)
    if inner is None:
        return None
    original = inner.operand(0)
    if original.type.with_shape(None) == target.with_shape(None):
        return Replace({node.output: original})
    return Replace({node.output: retyped(node, [original], node.output.type, node.output.name)})


@rule("dequantize-quantize", QUANTIZE)
def dequantize_quantize(node: Node, context: RuleContext) -> Proposal:
    """``quantize(dequantize(q)) -> q`` with equal parameters, else ``requantize(q)``."""
    del context
    stored, target = stored_behind(node.operand(0)), node.output.quant
    if stored is None or stored.quant is None or target is None:
        return None
    source = stored.quant.params
    divided = node.record(QuantizeAttrs).precision or DType.FLOAT32
    if not all(source.round_trips_in(real) for real in (node.operand(0).type.dtype, divided)):
        return None
    if covers(target.params, source):
        return Replace({node.output: stored})
    return Replace({node.output: requantized(stored, target.params, node.origin, node.output.name)})


@rule("requantize-nothing", REQUANTIZE)
def requantize_nothing(node: Node, context: RuleContext) -> Proposal:
    """``requantize(q) -> q`` where the parameters are equal and the range covers q's."""
    del context
    source, target = node.operand(0), node.output.quant
    if source.quant is None or target is None or not covers(target.params, source.quant.params):
        return None
    return Replace({node.output: source})


@rule("cast-nothing", CAST)
def cast_nothing(node: Node, context: RuleContext) -> Proposal:
    """``Cast(x) -> x`` where x has that type already."""
    del context
    source = node.operand(0)
    if isinstance(source.type, TensorType) and source.type.dtype is node.output.type.dtype:
        return Replace({node.output: source})
    return None


# ---- Zero points of Q and DQ whose scale only the run knows: files write one in many ways


@rule("one-zero-point", QUANTIZE_LINEAR, DEQUANTIZE_LINEAR)
def one_zero_point(node: Node, context: RuleContext) -> Proposal:
    """``Q(x, s, 0) -> Q(x, s)``; a zero point of one element has the rank of its scale."""
    del context
    zero_point, scale = node.optional(2), node.operand(1)
    if zero_point is None or zero_point.constant is None or zero_point.quant is not None:
        return None
    operands = [node.operand(0), scale]
    if _may_be_left_out(node, scale) and not _numbers(zero_point).any():
        return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})
    shape = static_shape(scale.type.shape)
    if zero_point.constant.size != 1 or shape not in ((), (1,)):
        return None
    if zero_point.constant.shape == shape:
        return None
    data = zero_point.constant.map(lambda array: array.reshape(shape), shape=shape)
    operands.append(constant(data, None, zero_point.name))
    return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})


def _may_be_left_out(node: Node, scale: Value) -> bool:
    """True where a file can be written without a zero point, or with zeros of a known shape."""
    attributes = node.record(LinearAttrs)
    known = static_shape(scale.type.shape) is not None
    return known or node.op is DEQUANTIZE_LINEAR or attributes.to is DType.UINT8


def _numbers(value: Value) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    assert value.constant is not None
    return value.constant.numpy().astype(np.float64)


# ---- casts ---------------------------------------------------------------------------------------
# Casts between float types next to quantized values: precision, not quantization (idiom J5).
#
# ``DQ -> Cast(float16) -> Conv -> Cast(float32) -> Q`` is a convolution of quantized values that
# the file computes in float16. Its integer form rounds nothing in between, as that of a file whose
# scales are float16; the node remembers the float type (``Origin.computed``), so that an exported
# file computes what the original does. Casts whose result is read as float stay, unless they are
# exact.


_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


def before_cast(value: Value, context: RuleContext) -> Value:
    """Returns ``x`` where ``value`` is a Cast of a float x that one node reads, else ``value``."""
    cast = _producing_float_cast(value)
    if cast is None or context.is_output(value) or len(value.users) != 1:
        return value
    return cast.operand(0)


def stored_before_cast(value: Value | None) -> Value | None:
    """Returns ``q`` where ``value`` is ``dequantize(q)`` or a Cast of it to another float type."""
    cast = None if value is None else _producing_float_cast(value)
    return stored_behind(value if cast is None else cast.operand(0))


def _producing_float_cast(value: Value) -> Node | None:
    cast = made_by(value, CAST)
    if cast is None or value.type.dtype not in _FLOATS:
        return None
    return cast if cast.operand(0).type.dtype in _FLOATS else None


def taken_in(node: Node, operands: Sequence[Value | None], target: Value) -> Replace:
    """Returns ``node`` on stored operands or with a stored result, in the place of ``target``.

    Args:
        node: An operator that computes in a float type.
        operands: Its operands, as many of them stored as can be.
        target: The value that it makes.
    """
    running = [v for v in operands if v is not None and v.quant and v.constant is None]
    computed = node.output.type.dtype
    own = {v.quant.params.expressed_dtype for v in running if v.quant}
    origin, notes = node.origin, ()
    if computed in _FLOATS and node.output.quant is None and own and own != {computed}:
        origin = replace(origin, computed=computed)
        reason = (
            f"the file computes it in {computed} between Casts; its integer form rounds nothing in "
            "between, and an exported file computes as this one does"
        )
        notes = (Note("computed-type", node.name, reason, tuple(v.name for v in running)),)
    value = result(node.op, node.attributes, operands, target.type, origin, target.name)
    return Replace({target: value}, notes)


@rule("cast-dequantized", CAST)
def cast_dequantized(node: Node, context: RuleContext) -> Proposal:
    """``Cast(dequantize(q)) -> dequantize(q)`` to the Cast's type, where that is the same number.

    From float32 it always is: the real value is rounded once either way. From a narrower type it is
    where every stored value has an exact real one in that type.
    """
    del context
    source, dtype = node.operand(0), node.output.type.dtype
    stored = stored_behind(source)
    if stored is None or stored.quant is None or not isinstance(source.type, TensorType):
        return None
    if dtype not in _FLOATS or source.type.dtype not in _FLOATS:
        return None
    narrow = source.type.dtype is not DType.FLOAT32
    if narrow and not _exact(stored, stored.quant.params, source.type.dtype):
        return None
    return Replace({node.output: dequantized(stored, dtype, node.origin, node.output.name)})


def _exact(stored: Value, params: QuantParams, dtype: DType) -> bool:
    """True where the real values of all stored ones are numbers of ``dtype``."""
    if not params.per_tensor or not params.storage_dtype.is_integer:
        return False
    if params.storage_dtype.bits > 16:
        return False
    held = codes(params)
    held = held[(held >= params.qmin) & (held <= params.qmax)]
    real = dequantize(held, params)
    with np.errstate(over="ignore"):
        return bool((real.astype(dtype.numpy).astype(np.float32) == real).all())


@rule("cast-before-quantize", QUANTIZE)
def cast_before_quantize(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Cast(x)) -> quantize(x)`` where the Cast only widens, or int32 is divided so."""
    del context
    cast = made_by(node.operand(0), CAST)
    if cast is None or node.output.quant is None or cast.output.type.dtype is not DType.FLOAT32:
        return None
    x, plain = cast.operand(0), node.attributes == QuantizeAttrs()
    in_float32 = plain and node.output.quant.params.expressed_dtype is DType.FLOAT32
    widens = x.type.dtype in _FLOATS and x.type.dtype is not DType.FLOAT32
    if x.quant is not None or not (widens or (in_float32 and x.type.dtype is DType.INT32)):
        return None
    return Replace({node.output: retyped(node, [x], node.output.type, node.output.name)})
