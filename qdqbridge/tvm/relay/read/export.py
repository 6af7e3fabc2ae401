"""From TVM's auto-quantization to a Q/DQ file."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relay
from tvm.contrib import graph_executor
from tvm.relay import quantize

from qdqbridge.core.arguments import path_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedModelError, UnsupportedTargetError
from qdqbridge.targets.profiles.export import export
from qdqbridge.tvm.relay.build import arrays_of, checked, module_of
from qdqbridge.tvm.relay.read.entry import NAME, from_simulated

# ---- TVM's auto-quantization, run up to the stage at which every scale is a number ---------------

# Parts of TVM that its own `relay.quantize.quantize` is made of; Relay is frozen.
_calibrate = quantize._calibrate
_quantize = quantize._quantize
Array = NDArray[Any]
Batches = Iterable[Mapping[str, Any]]
Threshold = Callable[[Any], float]
"""Of a call of ``simulated_quantize``: the largest magnitude it shall represent."""

_DATASET = "give a list of batches, each a dict from input name to array"
OPT_LEVEL = 3
"""At 3 TVM makes ``add`` of ``nn.bias_add`` first, so that a bias is quantized with its product."""


def calibrated(
    mod: Any, params: Mapping[str, Any] | None, dataset: Batches | None, opt_level: int = OPT_LEVEL
) -> Any:
    """Returns ``mod`` with ``simulated_quantize`` at every place that TVM quantizes, calibrated.

    The same passes in the same order as ``relay.quantize.quantize``, under the current
    ``relay.quantize.qconfig``, without the two steps after calibration that lose the scales
    (``QuantizeRealize``, and ``FoldConstant``, which would make float weights of the stored ones).

    Args:
        mod: A float Relay module.
        params: Its parameters by name.
        dataset: Batches of inputs by name, for the modes that observe.
        opt_level: Of the passes before quantization.

    Raises:
        InputDataError: The calibration mode observes and there is no data, the data does not fit,
            or a weight has no value or is not finite.
        UnsupportedTargetError: The mode is not known.
        UnsupportedModelError: TVM quantizes nothing of the module.
    """
    typed = module_of(mod, "relay.quantize")
    arrays = arrays_of(params, typed["main"])
    mode = str(quantize.current_qconfig().calibrate_mode)
    _check_mode(mode)
    batches = _batches(dataset, [v for v in typed["main"].params if v.name_hint not in arrays])
    if mode != "global_scale" and not batches:
        raise InputDataError(f"calibrate_mode '{mode}' needs a dataset", fix=_DATASET)

    def calibrate(module: Any, _: Any) -> Any:
        _check_annotated(module)
        thresholds = _activation_thresholds(module, batches)
        return _calibrate._set_params(module, thresholds, _weight_threshold())

    passes = [
        quantize.partition(),
        quantize.annotate(),
        tvm.transform.module_pass(calibrate, opt_level=1, name="QuantizeCalibrate"),
        relay.transform.InferType(),
    ]
    required = ["QuantizeAnnotate", "QuantizeCalibrate"]
    with _default_host_target():
        with tvm.transform.PassContext(opt_level=opt_level):
            held = {name: tvm.nd.array(array) for name, array in arrays.items()}
            prepared = quantize.prerequisite_optimize(typed, held)
        with (
            tvm.transform.PassContext(opt_level=OPT_LEVEL, required_pass=required),
            quantize.quantize_context(),
        ):
            return tvm.transform.Sequential(passes)(prepared)


@contextmanager
def _default_host_target() -> Generator[None, None, None]:
    """Enters a target for this processor where the caller has entered none."""
    if tvm.target.Target.current(allow_none=True) is not None:
        yield
        return
    # Plain "llvm" means the processor that the wheel was built for, which a fork makes another one.
    machine = platform.machine()
    known = sys.platform == "linux" and machine in ("x86_64", "aarch64")
    with tvm.target.Target(f"llvm -mtriple={machine}-linux-gnu" if known else "llvm"):
        yield


def _check_mode(mode: str) -> None:
    if mode not in ("global_scale", *_OBSERVING):
        raise UnsupportedTargetError(
            f"calibrate_mode '{mode}' is not known",
            fix=f"choose global_scale, {' or '.join(_OBSERVING)}",
        )


def _batches(dataset: Any, inputs: list[Any]) -> list[dict[str, Array]]:
    """Returns the data, every batch compared with the inputs of the module."""
    given: Any = () if dataset is None else dataset
    if not isinstance(given, Iterable) or isinstance(given, Mapping | np.ndarray):
        raise InputDataError(f"the dataset is one {type(given).__name__}", fix=_DATASET)
    found: list[dict[str, Array]] = []
    for batch in given:
        if not isinstance(batch, Mapping):
            raise InputDataError(f"a batch of the dataset is {type(batch).__name__}", fix=_DATASET)
        names = sorted(str(variable.name_hint) for variable in inputs)
        if sorted(batch) != names:
            raise InputDataError(
                "a batch of the dataset does not fit the module",
                why=f"it has {sorted(batch)}",
                fix=f"give exactly {names}; parameters belong into params",
            )
        arrays = {
            str(v.name_hint): (np.asarray(batch[v.name_hint]), v.checked_type) for v in inputs
        }
        found.append({name: checked(name, *given) for name, given in arrays.items()})
    return found


def _check_annotated(module: Any) -> None:
    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relay.Call) and expr.op == relay.op.get(NAME):
            found.append(expr)

    relay.analysis.post_order_visit(module["main"], visit)
    if not found:
        raise UnsupportedModelError(
            "relay.quantize finds nothing to quantize in the module",
            why="it quantizes convolutions and products that its settings do not skip",
            fix="try skip_conv_layers=[] and skip_dense_layer=False",
        )
    weights = [call.args[0] for call in found if call.attrs.kind == quantize.QAnnotateKind.WEIGHT]
    if not all(isinstance(weight, relay.Constant) for weight in weights):
        raise InputDataError(
            "a weight of the module has no value",
            why="relay.quantize derives scales from the elements of weights",
            fix="give params, the arrays that came with the module",
        )


def _activation_thresholds(module: Any, batches: list[dict[str, Array]]) -> Threshold:
    config = quantize.current_qconfig()
    if config.calibrate_mode == "global_scale":
        return lambda _: float(config.global_scale)
    find = _OBSERVING[str(config.calibrate_mode)]
    found = iter([find(samples) for samples in _observed(module, batches)])
    return lambda _: next(found)


def _observed(module: Any, batches: list[dict[str, Array]]) -> Iterator[Array]:
    """Yields all numbers that each activation's ``simulated_quantize`` reads, in their order.

    TVM's ``collect_stats`` builds in a way that TVM itself has deprecated.
    """
    collector = tvm.IRModule.from_expr(_quantize.CreateStatsCollector(module["main"]))
    with tvm.transform.PassContext(opt_level=OPT_LEVEL):
        library = relay.build(collector, target=tvm.target.Target.current())
    runtime = graph_executor.GraphModule(library["default"](tvm.cpu()))
    count = runtime.get_num_outputs()
    step = quantize.current_qconfig().calibrate_chunk_by
    for start in range(0, count, count if step < 1 else step):
        chunk = range(start, min(start + (count if step < 1 else step), count))
        samples: list[list[Array]] = [[] for _ in chunk]
        for batch in batches:
            runtime.set_input(**batch)
            runtime.run()
            for index in chunk:
                samples[index - start].append(runtime.get_output(index).numpy().reshape(-1))
        yield from (np.concatenate(parts) for parts in samples)


def _percentile(samples: Array) -> float:
    return float(_calibrate._find_scale_by_percentile(samples))


def _divergence(samples: Array) -> float:
    """TVM's search by Kullback-Leibler divergence; some forks return ``(-t, t)`` for ``t``."""
    return float(np.max(np.abs(_calibrate._find_scale_by_kl(samples))))


_OBSERVING: Mapping[str, Callable[[Array], float]] = {
    "percentile": _percentile,
    "kl_divergence": _divergence,
}


def _weight_threshold() -> Threshold:
    """TVM's two ways, written anew: its own need NumPy 1's ``np.math``; zeros have any scale."""
    power = quantize.current_qconfig().weight_scale == "power2"

    def threshold(call: Any) -> float:
        largest = float(np.amax(np.abs(call.args[0].data.numpy())))
        if not math.isfinite(largest):
            raise InputDataError("a weight of the module is not finite", why=f"it has a {largest}")
        if not power:
            return largest or 1.0
        return 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0

    return threshold


def export_quantized(
    mod: Any,
    params: Mapping[str, Any] | None,
    dataset: Iterable[Mapping[str, Any]] | None,
    path: str | PathLike[str],
    profile: str = "ort",
    *,
    qconfig: Mapping[str, Any] | None = None,
    opt_level: int = OPT_LEVEL,
    overwrite: bool = False,
) -> Graph:
    """Quantizes a float module with TVM's ``relay.quantize`` and saves the result as Q/DQ ONNX.

    Args:
        mod: A float Relay module.
        params: Its parameters by name.
        dataset: Calibration batches, each a dict from input name to array; may be None for
            ``calibrate_mode="global_scale"``.
        path: The ``.onnx`` file to write.
        profile: Whose conventions the file follows.
        qconfig: Arguments of ``relay.quantize.qconfig``; None for the one that is entered.
        opt_level: Of TVM's passes before quantization; at 3 a bias is quantized with its product.
        overwrite: Replace an existing file.

    Returns:
        The canonical graph that was written.

    Raises:
        InputDataError: The calibration mode needs data and there is none, the data or a parameter
            does not fit, or ``qconfig`` has an unknown name.
        UnsupportedModelError: An operator of the module has no counterpart (all are listed), or
            TVM quantizes nothing of it.
        OutputExistsError: The file exists and ``overwrite`` is not given.
    """
    with _config(qconfig):
        simulated = calibrated(mod, params, dataset, opt_level)
    graph = from_simulated(simulated)
    export(graph, path_of(path), profile=profile, overwrite=overwrite)
    return graph


def _config(given: Mapping[str, Any] | None) -> Any:
    """Returns TVM's settings; TVM itself takes no notice of names that it does not know."""
    if given is None:
        return quantize.current_qconfig()
    known: Any = quantize.QConfig._node_defaults
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputDataError(
            f"qconfig has no {', '.join(map(repr, unknown))}", fix=f"it has {', '.join(known)}"
        )
    return quantize.qconfig(**given)
