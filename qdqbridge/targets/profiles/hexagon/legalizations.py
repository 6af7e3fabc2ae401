"""How graphs are put for Qualcomm's Hexagon: what its backend takes, and computes right.

Measured on the host build of the backend (onnxruntime-qnn 2.7.0 on onnxruntime 1.32); each
legalization keeps a rule of :mod:`.qnn`, whose page has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.ops.build import constant, quantized, requantized, result
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE
from qdqbridge.core.ops.elementwise import ADD, CONCAT, DIV, MUL, POW, SUB, WHERE
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
from qdqbridge.targets.profiles.legalization import (
    Cost,
    Legalization,
    enters,
    is_attention_score,
    put,
    replace_operand,
)
from qdqbridge.targets.profiles.result_encodings import result_encodings
from qdqbridge.targets.profiles.whole_gelu import whole_gelus
from qdqbridge.targets.profiles.wide_operands import one_width, wide_operands


def one_channel_inputs(graph: Graph) -> Iterator[Cost]:
    """``Concat(x, y) -> Concat(requantize(x), y)``: an input of one channel as the result is."""
    for node in graph.nodes:
        target = node.output.quant if node.op is CONCAT else None
        if target is None or not target.params.per_tensor:
            continue
        for index, value in enumerate(list(node.inputs)):
            if value is None or value.quant is None or not enters(value):
                continue
            alone = (value.type.shape or ())[1:2] == (1,)
            if alone and not value.quant.params.same_mapping(target.params):
                name = f"{value.name}_for_{node.output.name}"
                converted = requantized(value, target.params.widened(), name=name)
                replace_operand(node, index, converted)
    yield from ()


def divisors(graph: Graph) -> Iterator[Cost]:
    """``Div(x, c) -> Div(x, 1 * c)``: a float divisor as the integer 1 in units of itself.

    Where there is no integer around it is ``Mul(x, 1 / c)``: the backend cannot finalize a Div, Sub
    or Exp of floats in front of a product, if no product stands before.
    """
    for node in graph.nodes:
        divisor = node.operand(1) if node.op is DIV else None
        if divisor is None or divisor.constant is None or divisor.constant.size != 1:
            continue
        if not _plain_floats(divisor):
            continue
        array, source = divisor.constant.numpy(), node.operand(0).quant
        number = float(np.asarray(array, np.float64).item())
        if not 0 < number < np.inf:
            continue
        exact = array.dtype == np.float32 and source is not None and node.output.quant is not None
        if exact and source is not None:
            wide = source.params.storage_dtype.bits > _BYTE
            dtype = DType.UINT16 if wide else DType.UINT8
            one = np.ones(array.shape, dtype.numpy)
            params = per_tensor(dtype, np.float32(number))
            replace_operand(node, 1, constant(one, params, divisor.name))
        elif node.output.quant is None or is_attention_score(node):
            factor = np.asarray(1 / np.asarray(array, np.float64)).astype(array.dtype)
            value = constant(factor, None, f"{divisor.name}_reciprocal")
            put(graph, node, retyped_as(node, MUL, [node.operand(0), value]))
            if np.frexp(number)[0] != 0.5:
                yield Cost(node.name, f"x / {number:g} is x * {factor.item():g}")


_BYTE = 8


def constants_apart(graph: Graph) -> Iterator[Cost]:
    """Constants that share their data, with other parameters, get data of their own."""
    known: dict[tuple[object, ...], QuantParams] = {}
    for value in graph.values():
        if value.constant is None or value.quant is None:
            continue
        array, params = value.constant.numpy(), value.quant.params
        place = (array.__array_interface__["data"][0], array.strides, array.shape, array.dtype)
        first = known.setdefault(place, params)
        if first is not params and not first.same_mapping(params):
            value.constant = value.constant.map(np.copy)
    yield from ()


def squares(graph: Graph) -> Iterator[Cost]:
    """``Pow(x, 2) -> Mul(x, x)`` of floats."""
    for node in graph.nodes:
        if node.op is not POW or node.output.quant is not None or node.operand(0).quant is not None:
            continue
        exponent = node.operand(1)
        known = exponent.constant is not None and exponent.quant is None
        if known and exponent.constant is not None and (exponent.constant.numpy() == 2).all():
            base = node.operand(0)
            if base.type.shape == node.output.type.shape:
                put(graph, node, retyped_as(node, MUL, [base, base]))
    yield from ()


def differences(graph: Graph) -> Iterator[Cost]:
    """``Sub(x, y) -> Add(x, -y)`` of floats: the same numbers."""
    for node in graph.nodes:
        if node.op is not SUB or node.output.quant is not None:
            continue
        x, y = node.operand(0), node.operand(1)
        if x.quant is not None or y.quant is not None or not y.type.dtype.is_float:
            continue
        if y.constant is not None:
            negative = constant(np.negative(y.constant.numpy()), None, f"{y.name}_negative")
        else:
            minus = constant(np.asarray(-1, y.type.dtype.numpy), None, f"{y.name}_minus")
            negative = result(MUL, NO_ATTRIBUTES, [y, minus], y.type, node.origin)
        put(graph, node, retyped_as(node, ADD, [x, negative]))
    yield from ()


def retyped_as(node: Node, op: Operator, operands: list[Value]) -> Value:
    """Returns the result of another operator in the place of a node's."""
    return result(op, NO_ATTRIBUTES, operands, node.output.type, node.origin, node.output.name)


def stored_choices(graph: Graph) -> Iterator[Cost]:
    """``quantize(Where(m, x, y)) -> Where(m, quantize(x), quantize(y))``: the same numbers."""
    for node in graph.nodes:
        made = node if node.op is WHERE else _made_for(node)
        target = node.output.quant
        if made is None or made.op is not WHERE or target is None or not target.params.per_tensor:
            continue
        if made.operand(0).quant is not None or target.params.expressed_dtype is not DType.FLOAT32:
            continue
        name = node.output.name
        sides = [_encode_operand(made.operand(index), target.params, name) for index in (1, 2)]
        if made is not node or sides != [made.operand(1), made.operand(2)]:
            operands = [made.operand(0), *sides]
            type_, origin = node.output.type, made.origin
            put(graph, node, result(WHERE, NO_ATTRIBUTES, operands, type_, origin, name))
    yield from ()


def _made_for(node: Node) -> Node | None:
    """Returns what makes the operand of a ``quantize``, and of nothing else."""
    source = node.operand(0) if node.op is QUANTIZE else None
    return source.producer if source is not None and len(source.users) == 1 else None


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


def masks_of_numbers(graph: Graph) -> Iterator[Cost]:
    """``Where(mask, x, c) -> x * mask + where(mask, 0, c)`` of floats, both constants: the same."""
    for node in graph.nodes:
        if node.op is not WHERE or node.output.quant is not None:
            continue
        if node.output.type.dtype is not DType.FLOAT32:
            continue
        mask = node.operand(0).constant
        known = [index for index in (1, 2) if _plain_floats(node.operand(index))]
        if mask is None or len(known) != 1:
            continue
        other, index = node.operand(known[0]), 3 - known[0]
        assert other.constant is not None
        number = other.constant.numpy()
        zeros = np.zeros((), number.dtype)
        keeps = mask.numpy() == (index == 1)
        rest = np.where(keeps, zeros, number)
        if not np.isfinite(rest).all():
            continue
        name = node.output.name
        factor = constant(keeps.astype(number.dtype), None, f"{name}_mask")
        offset = constant(rest, None, f"{name}_masked")
        type_, origin = node.output.type, node.origin
        kept = result(MUL, NO_ATTRIBUTES, [node.operand(index), factor], type_, origin)
        value = result(ADD, NO_ATTRIBUTES, [kept, offset], type_, origin, name)
        put(graph, node, value)
    yield from ()


def _plain_floats(value: Value) -> bool:
    return value.constant is not None and value.quant is None and value.type.dtype.is_float


LEGALIZATIONS = (
    Legalization("no-erf", whole_gelus),
    Legalization("no-erf", erfs_in_steps),
    Legalization("fixed-encodings", result_encodings),
    Legalization("no-float-where", stored_choices),
    Legalization("no-float-where", masks_of_numbers),
    Legalization("quantized-divisor", divisors),
    Legalization("float-quotient", squares),
    Legalization("float-quotient", differences),
    Legalization("one-channel", one_channel_inputs),
    Legalization("one-encoding", constants_apart),
    Legalization("no-blocks", channels_of_blocks),
    Legalization("narrow-convolution", whole_bytes),
    Legalization("half-bias", half_biases),
    Legalization("wide-weights", weights_in_digits),
    Legalization("wide-arithmetic", stretched_weights),
    Legalization("wide-arithmetic", wide_products),
    Legalization("float-products", float_products),
    Legalization("norm-parameters", norms_of_one_scale),
    Legalization("wide-arithmetic", wide_norms),
    Legalization("wide-arithmetic", exact_norms),
    Legalization("instance-norm-parameters", quantized_norms),
    Legalization("instance-norm-parameters", norms_of_channels),
    Legalization("up-to-four-axes", as_rows),
    Legalization("early-conversion", early_conversions),
    Legalization("one-width", one_width),
    Legalization("wide-before-floats", wide_operands),
    Legalization("lost-clamp", kept_clamps),
    Legalization("moved-factor", kept_factors),
    Legalization("unsigned", converted_interfaces),
    Legalization("converted-image", converted_rows),
)
"""In the order in which they are applied."""
