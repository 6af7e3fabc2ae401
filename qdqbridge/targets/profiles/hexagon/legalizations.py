"""How graphs are put for Qualcomm's Hexagon: what its backend takes, and computes right.

Measured on the host build of the backend (onnxruntime-qnn 2.7.0 on onnxruntime 1.32); each
legalization keeps a rule of :mod:`.qnn`, whose page has the figures.
"""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.ops.build import constant, quantized, requantized, result
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.elementwise import ADD, CONCAT, DIV, MUL, WHERE
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Replace,
    RuleContext,
    pattern_rule,
    replaced,
    rule,
)
from qdqbridge.targets.profiles.erf_steps import erfs_in_steps
from qdqbridge.targets.profiles.hexagon.axes import as_rows
from qdqbridge.targets.profiles.hexagon.clamps import kept_clamps
from qdqbridge.targets.profiles.hexagon.digits import weights_in_digits
from qdqbridge.targets.profiles.hexagon.factors import kept_factors
from qdqbridge.targets.profiles.hexagon.norms import (
    exact_norms,
    norms_of_channels,
    norms_of_one_scale,
    quantized_norms,
)
from qdqbridge.targets.profiles.hexagon.products import (
    channels_of_blocks,
    float_products,
    half_biases,
    whole_bytes,
    wide_products,
)
from qdqbridge.targets.profiles.hexagon.stretched import stretched_weights
from qdqbridge.targets.profiles.hexagon.types import (
    converted_interfaces,
    converted_rows,
    early_conversions,
)
from qdqbridge.targets.profiles.hexagon.wide_norms import wide_norms
from qdqbridge.targets.profiles.legalization import enters, is_attention_score
from qdqbridge.targets.profiles.result_encodings import result_encodings
from qdqbridge.targets.profiles.whole_gelu import whole_gelus
from qdqbridge.targets.profiles.wide_operands import one_width, wide_operands


@rule("one-channel-as-the-result", CONCAT)
def one_channel_inputs(node: Node, context: RuleContext) -> Proposal:
    """``Concat(x, y) -> Concat(requantize(x), y)``: an input of one channel as the result is."""
    del context
    target = node.output.quant
    if target is None or not target.params.per_tensor:
        return None
    operands: dict[tuple[Node, int], Value] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.quant is None or not enters(value):
            continue
        alone = (value.type.shape or ())[1:2] == (1,)
        if alone and not value.quant.params.same_mapping(target.params):
            name = f"{value.name}_for_{node.output.name}"
            operands[node, index] = requantized(value, target.params.widened(), name=name)
    return Replace(operands=operands) if operands else None


@rule("divisor-as-a-one", DIV)
def divisors(node: Node, context: RuleContext) -> Proposal:
    """``Div(x, c) -> Div(x, 1 * c)``: a float divisor as the integer 1 in units of itself.

    Where there is no integer around it is ``Mul(x, 1 / c)``: the backend cannot finalize a Div, Sub
    or Exp of floats in front of a product, if no product stands before.
    """
    del context
    divisor, source, quant = node.operand(1), node.operand(0).quant, node.output.quant
    if divisor.constant is None or divisor.constant.size != 1 or not _plain_floats(divisor):
        return None
    array = divisor.constant.numpy()
    number = float(np.asarray(array, np.float64).item())
    if not 0 < number < np.inf:
        return None
    if array.dtype == np.float32 and source is not None and quant is not None:
        wide = source.params.storage_dtype.bits > _BYTE
        dtype = DType.UINT16 if wide else DType.UINT8
        one = np.ones(array.shape, dtype.numpy)
        params = per_tensor(dtype, np.float32(number))
        return Replace(operands={(node, 1): constant(one, params, divisor.name)})
    if quant is not None and not is_attention_score(node):
        return None
    factor = np.asarray(1 / np.asarray(array, np.float64)).astype(array.dtype)
    value = constant(factor, None, f"{divisor.name}_reciprocal")
    text = f"x / {number:g} is x * {factor.item():g}"
    costs = () if np.frexp(number)[0] == _POWER else (Note("quantized-divisor", node.name, text),)
    return replaced(node, MUL, NO_ATTRIBUTES, [node.operand(0), value], notes=costs)


_BYTE, _POWER = 8, 0.5


@rule("constant-of-its-own")
def constants_apart(node: Node, context: RuleContext) -> Proposal:
    """Constants that share their data, with other parameters, get data of their own."""
    shared, copies = context.fact(_constants_of_shared_data), dict[Value, Value]()
    for value in node.inputs:
        if value is not None and value in shared and value.constant is not None:
            data = value.constant.map(np.copy)
            copies[value] = Value(value.type, value.name, constant=data)
            copies[value].written = value.written
    return Replace(copies) if copies else None


def _constants_of_shared_data(graph: Graph) -> set[Value]:
    """Returns the constants whose data an earlier one has, with other parameters."""
    known, found = dict[tuple[object, ...], QuantParams](), set[Value]()
    for value in graph.values():
        if value.constant is None or value.quant is None:
            continue
        array, params = value.constant.numpy(), value.quant.params
        place = (array.__array_interface__["data"][0], array.strides, array.shape, array.dtype)
        first = known.setdefault(place, params)
        if first is not params and not first.same_mapping(params):
            found.add(value)
    return found


@pattern_rule("square-of-floats", ("Pow", "x", Part("exponent", constant=True)))
def squares(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Pow(x, 2) -> Mul(x, x)`` of floats."""
    del context
    x, exponent = match["x"], match["exponent"]
    if any(value.quant is not None for value in (x, exponent, node.output)):
        return None
    assert exponent.constant is not None
    if x.type.shape != node.output.type.shape or (exponent.constant.numpy() != _SQUARE).any():
        return None
    return replaced(node, MUL, NO_ATTRIBUTES, [x, x])


_SQUARE = 2


@pattern_rule("difference-of-floats", ("Sub", "x", "y"))
def differences(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Sub(x, y) -> Add(x, -y)`` of floats: the same numbers."""
    del context
    x, y = match["x"], match["y"]
    if any(value.quant is not None for value in (x, y, node.output)) or not y.type.dtype.is_float:
        return None
    if y.constant is not None:
        negative = constant(np.negative(y.constant.numpy()), None, f"{y.name}_negative")
    else:
        minus = constant(np.asarray(-1, y.type.dtype.numpy), None, f"{y.name}_minus")
        negative = result(MUL, NO_ATTRIBUTES, [y, minus], y.type, node.origin)
    return replaced(node, ADD, NO_ATTRIBUTES, [x, negative])


@pattern_rule(
    "choice-of-stored",
    AnyOf((
        ("Where", "mask", "x", "y"),
        ("quantize", Part("chosen", ("Where", "mask", "x", "y"), sole=True)),
    )),
)  # fmt: skip
def stored_choices(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``quantize(Where(m, x, y)) -> Where(m, quantize(x), quantize(y))``: the same numbers."""
    del context
    mask, quant, made = match["mask"], node.output.quant, match.nodes[-1]
    if quant is None or not quant.params.per_tensor or mask.quant is not None:
        return None
    if quant.params.expressed_dtype is not DType.FLOAT32:
        return None
    given = [match["x"], match["y"]]
    sides = [_encode_operand(value, quant.params, node.output.name) for value in given]
    if made is node and sides == given:
        return None
    return replaced(node, WHERE, NO_ATTRIBUTES, [mask, *sides], made.origin)


def _encode_operand(value: Value, params: QuantParams, name: str) -> Value:
    """Returns an operand in an encoding; one that is stored, or a number, is as it was."""
    if value.quant is not None or value.type.dtype is not DType.FLOAT32:
        return value
    made = value.producer
    if made is not None and made.op is DEQUANTIZE:
        source = made.operand(0)
        if source.quant is not None and source.quant.params.same_mapping(params):
            return source
    if value.constant is None:
        return quantized(value, params, name=f"{value.name}_for_{name}")
    array = value.constant.numpy()
    if array.size == 1 or np.isnan(array).any():
        return value
    return constant(quantize(array, params), params, f"{value.name}_for_{name}")


@pattern_rule("choice-as-product", ("Where", Part("mask", constant=True), "x", "y"))
def masks_of_numbers(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Where(mask, x, c) -> x * mask + where(mask, 0, c)`` of floats, both constants: the same."""
    del context
    mask, sides, output = match["mask"].constant, [match["x"], match["y"]], node.output
    known = [index for index, value in enumerate(sides) if _plain_floats(value)]
    if output.type.dtype is not DType.FLOAT32 or output.quant is not None or len(known) != 1:
        return None
    other, real = sides[known[0]].constant, sides[1 - known[0]]
    assert mask is not None and other is not None
    number = other.numpy()
    keeps = mask.numpy() == (known[0] == 1)
    rest = np.where(keeps, np.zeros((), number.dtype), number)
    if not np.isfinite(rest).all():
        return None
    factor = constant(keeps.astype(number.dtype), None, f"{output.name}_mask")
    offset = constant(rest, None, f"{output.name}_masked")
    kept = result(MUL, NO_ATTRIBUTES, [real, factor], output.type, node.origin)
    return replaced(node, ADD, NO_ATTRIBUTES, [kept, offset])


def _plain_floats(value: Value) -> bool:
    return value.constant is not None and value.quant is None and value.type.dtype.is_float


LEGALIZATIONS = (
    whole_gelus,
    erfs_in_steps,
    result_encodings,
    stored_choices,
    masks_of_numbers,
    divisors,
    squares,
    differences,
    one_channel_inputs,
    constants_apart,
    channels_of_blocks,
    whole_bytes,
    half_biases,
    weights_in_digits,
    stretched_weights,
    wide_products,
    float_products,
    norms_of_one_scale,
    wide_norms,
    exact_norms,
    quantized_norms,
    norms_of_channels,
    as_rows,
    early_conversions,
    one_width,
    wide_operands,
    kept_clamps,
    kept_factors,
    converted_interfaces,
    converted_rows,
)
"""In the order in which they are applied."""
