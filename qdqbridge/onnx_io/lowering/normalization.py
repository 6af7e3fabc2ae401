"""Layer norms and Gelus that onnxruntime fuses, as the ONNX operators they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto

from qdqbridge.onnx_io.lowering.site import MICROSOFT, LoweringSite

_LAYER_NORM_SINCE, _AXES_INPUT_SINCE = 17, 18


def skip_norm(*, centred: bool) -> Callable[[LoweringSite], None]:
    """Returns the lowering of SkipLayerNormalization, or of its form without a mean."""

    def lower(site: LoweringSite) -> None:
        """``LayerNormalization(x + skip + bias)`` over the last axis; the sum is result 3.

        Source: onnxruntime docs/ContribOperators.md.
        """
        _only(site, (0, 3))
        place = 4 if centred else 3
        total, bias = site.proto.output[3] if site.wants(3) else "", site.input(place)
        inputs = [site.input(0), site.input(1)]
        value = site.op("Add", inputs, "" if bias else total)
        if bias:
            value = site.op("Add", [value, bias], total)
        scale, offset = site.input(2), site.input(3) if centred else ""
        epsilon, output = site.float_("epsilon", 1e-12), site.proto.output[0]
        if centred:
            _layer_norm(site, value, scale, offset, [-1], epsilon, output)
        else:
            _root_mean_square(site, value, scale, [-1], epsilon, output)

    return lower


def old_layer_norm(site: LoweringSite) -> None:
    """LayerNormalization as onnxruntime has it in opsets before 17, in single steps.

    Source: onnxruntime docs/ContribOperators.md; ONNX LayerNormalization-17.
    """
    _only(site, (0,))
    axes, epsilon = _axes(site), site.float_("epsilon", 1e-5)
    x, scale, offset = (site.input(i) for i in range(3))
    _layer_norm(site, x, scale, offset, axes, epsilon, site.proto.output[0])


def simplified_layer_norm(site: LoweringSite) -> None:
    """``x / sqrt(mean(x * x) + epsilon) * scale``.

    Source: onnxruntime docs/ContribOperators.md; ONNX RMSNormalization-23.
    """
    _only(site, (0,))
    epsilon, output = site.float_("epsilon", 1e-5), site.proto.output[0]
    _root_mean_square(site, site.input(0), site.input(1), _axes(site), epsilon, output)


def _only(site: LoweringSite, results: Sequence[int]) -> None:
    extra = [i for i in range(len(site.proto.output)) if site.wants(i) and i not in results]
    if extra:
        raise site.refusal(
            "its mean or deviation is a result",
            f"result {extra[0]} ('{site.proto.output[extra[0]]}') is only of use in training",
            "export the model for inference",
        )


def _axes(site: LoweringSite) -> list[int]:
    axis = site.int_("axis", -1)
    if axis == -1:
        return [-1]
    rank = site.known.rank(site.input(0))
    if rank is None:
        raise site.refusal(
            "the rank of its input is unknown",
            f"it normalizes every axis from {axis} on",
            "run shape inference on the model",
        )
    return list(range(axis % rank, rank))


def _mean(site: LoweringSite, x: str, axes: list[int]) -> str:
    if site.main_opset >= _AXES_INPUT_SINCE:
        return site.op("ReduceMean", [x, site.enter(np.array(axes, np.int64), "axes")])
    return site.op("ReduceMean", [x], axes=axes)


def _layer_norm(
    site: LoweringSite,
    x: str,
    scale: str,
    offset: str,
    axes: list[int],
    epsilon: float,
    result: str,
) -> None:
    if site.main_opset >= _LAYER_NORM_SINCE:
        inputs = [x, scale, offset]
        site.op("LayerNormalization", inputs, result, axis=axes[0], epsilon=epsilon)
        return
    centre = site.op("Sub", [x, _mean(site, x, axes)])
    unit = _over_deviation(site, centre, centre, axes, epsilon)
    scaled = site.op("Mul", [unit, scale], "" if offset else result)
    if offset:
        site.op("Add", [scaled, offset], result)


def _root_mean_square(
    site: LoweringSite, x: str, scale: str, axes: list[int], epsilon: float, result: str
) -> None:
    site.op("Mul", [_over_deviation(site, x, x, axes, epsilon), scale], result)


def _over_deviation(
    site: LoweringSite, x: str, centre: str, axes: list[int], epsilon: float
) -> str:
    square = _mean(site, site.op("Mul", [centre, centre]), axes)
    shifted = site.op("Add", [square, site.enter(_like(site, x, epsilon), "epsilon")])
    return site.op("Div", [x, site.op("Sqrt", [shifted])])


def _like(site: LoweringSite, name: str, number: float) -> np.ndarray:
    """Returns a number in the element type of a tensor."""
    half = site.known.element_type(name) == TensorProto.FLOAT16
    return np.array(number, np.float16 if half else np.float32)


def bias_gelu(site: LoweringSite) -> None:
    """``Gelu(a + b)``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    total = site.op("Add", [site.input(0), site.input(1)])
    site.op("Gelu", [total], site.proto.output[0], domain=MICROSOFT)


def fast_gelu(site: LoweringSite) -> None:
    """``Gelu(x + bias)`` by tanh: ``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``.

    Source: onnxruntime docs/ContribOperators.md; ONNX Gelu-20.
    """
    x, output = site.input(0), site.proto.output[0]
    if site.input(1):
        x = site.op("Add", [x, site.input(1)])
    if site.main_opset >= 20:
        site.op("Gelu", [x], output, approximate="tanh")
        return
    number = {
        key: site.enter(_like(site, x, value), key)
        for key, value in (("half", 0.5), ("one", 1.0), ("root", 0.7978845608), ("c", 0.044715))
    }
    cube = site.op("Mul", [site.op("Mul", [x, x]), x])
    inner = site.op("Add", [x, site.op("Mul", [cube, number["c"]])])
    bent = site.op("Tanh", [site.op("Mul", [inner, number["root"]])])
    raised = site.op("Add", [bent, number["one"]])
    site.op("Mul", [site.op("Mul", [x, number["half"]]), raised], output)
