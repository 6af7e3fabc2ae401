"""What the inputs of a simulated graph get for a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.biases import is_rounded, product_of, stored_bias
from qdqbridge.autoquant.planning.decide import Decision, stored_integers
from qdqbridge.autoquant.planning.plan import Derived, Weight
from qdqbridge.autoquant.simulation.graph import Operand, RoundingPlace, SimulatedGraph
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.simulated import CODES, DISABLED, FLOAT_CODES
from qdqbridge.errors import UnsupportedQuantization

Array = NDArray[Any]
_BITS = 16
_KEPT = 4


class Feeds:
    """Turns decisions into inputs; equal parameters give the same array objects again.

    Args:
        simulated: The graph that they are for.
    """

    def __init__(self, simulated: SimulatedGraph) -> None:
        self._simulated = simulated
        self._numbers: dict[tuple[RoundingPlace, QuantParams | None], tuple[Array, ...]] = {}
        self._arrays: dict[Operand, list[tuple[tuple[object, ...], Array]]] = {}
        self._plain = {
            operand: _contiguous(operand[0].operand(operand[1])) for operand in simulated.constants
        }

    def of(
        self, decision: Decision, constants: Mapping[Operand, Array] | None = None
    ) -> dict[Value, Array]:
        """Returns an array for every input that is no sample.

        Args:
            decision: What it does not mention stays float.
            constants: Real numbers instead of those of the graph, for constants of the plan.

        Raises:
            UnsupportedQuantization: Parameters that are not simulated.
        """
        result: dict[Value, Array] = {}
        for place in self._simulated.places:
            params = decision.values.get(place.value)
            if place.reader is not None and place.reader in decision.plan.unrounded:
                params = None
            result.update(zip(place.inputs, self._parameters(place, params), strict=True))
        real = {**self._plain, **decision.plan.biases, **(constants or {})}
        for operand, value in self._simulated.constants.items():
            result[value] = real[operand]
        for weight in decision.plan.weights:
            operand = (weight.node, weight.index)
            result[self._simulated.constants[operand]] = self._constant(
                weight, decision, real[operand], given=bool(constants and operand in constants)
            )
        return result

    # ---- roundings ----------------------------------------------------------------------------

    def _parameters(self, place: RoundingPlace, params: QuantParams | None) -> tuple[Array, ...]:
        if (place, params) not in self._numbers:
            self._numbers[place, params] = _fake_quant_feeds(place, params)
        return self._numbers[place, params]

    # ---- constants ----------------------------------------------------------------------------

    def _constant(self, weight: Weight, decision: Decision, real: Array, *, given: bool) -> Array:
        """Returns what a constant is after it was stored and read back."""
        if isinstance(weight.spec, Derived):
            return self._bias(weight, decision, real)
        params = decision.weights.get(weight)
        if params is None:
            return real
        integers = decision.integers.get(weight)
        source = real if given or integers is None else integers
        return self._cached(
            (weight.node, weight.index),
            (params, _SameArray(source)),
            lambda: _fake_quantized_weight(weight, params, decision, real if given else None),
        )

    def _cached(
        self, operand: Operand, key: tuple[object, ...], compute: Callable[[], Array]
    ) -> Array:
        """Returns what ``key`` gave before; the last few results of each operand are kept."""
        kept = self._arrays.setdefault(operand, [])
        for known, array in kept:
            if known == key:
                return array
        kept.append((key, compute()))
        del kept[:-_KEPT]
        return kept[-1][1]

    def _bias(self, weight: Weight, decision: Decision, real: Array) -> Array:
        """Returns a bias as a whole number of ``scale_x * scale_w``."""
        product = product_of(weight)
        if product is None:
            return real
        x = decision.values.get(product.operand(0))
        w = next((p for k, p in decision.weights.items() if k.node is product), None)
        key = (x, w, is_rounded(product, decision), _SameArray(real))
        operand = (weight.node, weight.index)
        return self._cached(operand, key, lambda: _in_units(weight, decision, real))


class _SameArray:
    """Equal for one and the same array, which it keeps alive."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameArray) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


def _in_units(bias: Weight, decision: Decision, real: Array) -> Array:
    """Returns ``real`` rounded to what is stored of it; itself where it is stored as it is."""
    stored = stored_bias(bias, decision, real)
    return real if stored is None else dequantize(*stored).astype(np.float32)


def _contiguous(value: Value) -> Array:
    assert value.constant is not None
    return np.array(value.constant.numpy(), order="C")


def _fake_quantized_weight(
    weight: Weight, params: QuantParams, decision: Decision, given: Array | None
) -> Array:
    if given is None:
        stored = stored_integers(weight, params, decision).numpy()
    else:
        stored = quantize(given, params)
    return np.array(dequantize(stored, params), np.float32, order="C")


def _fake_quant_feeds(place: RoundingPlace, params: QuantParams | None) -> tuple[Array, ...]:
    shape = () if place.channels is None else (place.channels,)
    if params is None:
        scale, zero_point = np.ones(shape, np.float32), np.zeros(shape, np.int32)
        return _int32(DISABLED), scale, zero_point, _int32(0), _int32(0)
    storage = params.storage_dtype
    codes = FLOAT_CODES if storage.is_small_float else CODES
    if params.blocked or storage not in codes or storage.bits > _BITS:
        raise UnsupportedQuantization(
            f"a rounding to {storage} is not simulated",
            where=f"tensor '{place.value.name}'",
            fix="use integers of at most 16 bits, float8_e4m3fn or float8_e5m2, per tensor or per "
            "channel",
        )
    if params.axis is not None and params.axis != place.axis:
        raise UnsupportedQuantization(
            "scales per channel were not planned for",
            where=f"tensor '{place.value.name}'",
            why=f"the scales lie along axis {params.axis}",
            fix="fix parameters with that axis in the plan",
        )
    return (
        _int32(codes[storage]),
        np.array(np.broadcast_to(params.scale.astype(np.float32), shape)),
        np.array(np.broadcast_to(params.zero_point, shape)),
        _int32(0 if storage.is_small_float else params.qmin),
        _int32(0 if storage.is_small_float else params.qmax),
    )


def _int32(number: int) -> Array:
    return np.array(number, np.int32)
