"""From TVM's auto-quantization to a Q/DQ file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from tvm.relay import quantize

from qdqbridge.core.arguments import path_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError
from qdqbridge.targets.profiles.export import export
from qdqbridge.tvm.relay.read.calibrate import OPT_LEVEL, calibrated
from qdqbridge.tvm.relay.read.entry import from_simulated


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
