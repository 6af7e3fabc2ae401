"""Qualcomm's Hexagon NPU (HTP) as built for the host: the backend's numbers without a device."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import IO, Any

import onnxruntime as ort
import onnxruntime_qnn as qnn

from qdqbridge.targets.engines.workers import Array, Loaded, Row

_PROVIDER = "QNNExecutionProvider"
_UNIT = re.compile(
    r"Validation FAILED for \d+ nodes in OrtNodeUnit \((?P<operator>\w+)\)(?P<body>.*?)"
    r"REASON : (?P<reason>[^\n]*)",
    re.DOTALL,
)
_NAME = re.compile(r"Node name: (?P<name>.*?) Node index:")
_CODE = re.compile(
    r"backendValidateOpConfig\(\) failed for node `(?P<name>[^`]*)` of type `(?P<type>\w+)` "
    r"with error code (?P<code>\d+)"
)
_BROKEN = re.compile(
    r"OrtEp::GetCapability\(\) for QNNExecutionProvider failed with error: ([^\n\x1b]*)"
)
"""Then all is left to the CPU, whose numbers are not Hexagon's."""
_INTERFACE = "QNN EP is configured to not take"


class HexagonWorker:
    """Loads models for Hexagon; what it does not take runs on onnxruntime's CPU provider.

    Attributes:
        options: Of the provider. Without an architecture the host build is one of v68.
    """

    options: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        ort.register_execution_provider_library(_PROVIDER, qnn.get_library_path())
        self._device = next(d for d in ort.get_ep_devices() if d.ep_name.startswith("QNN"))
        self._sessions: dict[str, Any] = {}

    def version(self) -> str:
        """Returns the versions that decide."""
        from importlib.metadata import version

        own = version("onnxruntime-qnn")
        build = ", ".join(("host build", *(f"{k} {v}" for k, v in self.options.items())))
        return f"onnxruntime-qnn {own} on onnxruntime {ort.__version__}, {build}"

    def load(self, key: str, file: str, plain: str = "") -> Loaded:
        """Loads a model; the reasons are in what the provider logs.

        Args:
            key: Under which it is kept.
            file: Where it is.
            plain: Not empty for no graph optimizations.
        """
        options = ort.SessionOptions()
        if plain:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 0
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        chosen = {"backend_path": qnn.get_qnn_htp_path(), **self.options}
        options.add_provider_for_devices([self._device], chosen)
        with _heard() as log:
            session = ort.InferenceSession(file, options)
            ort.set_default_logger_severity(4)
            log.seek(0)
            said = log.read().decode("utf-8", "replace")
        broken = _BROKEN.search(said)
        if broken is not None:
            raise RuntimeError(broken[1])
        reasons = _reasons(said)
        self._sessions[key] = session
        return _placed(session, reasons)

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model."""
        return dict(zip(names, self._sessions[key].run(list(names), dict(inputs)), strict=True))


@contextmanager
def _heard() -> Generator[IO[bytes], None, None]:
    """Yields a file with what is written to standard error meanwhile, by libraries as well."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _reasons(log: str) -> dict[str, str]:
    """Returns why nodes are not taken, by name."""
    codes = {match["name"]: match for match in _CODE.finditer(log)}
    found: dict[str, str] = {}
    for unit in _UNIT.finditer(log):
        reason = unit["reason"].strip().rstrip(".")
        names = [match["name"] for match in _NAME.finditer(unit["body"])]
        for name in names:
            if name in codes:
                code = codes[name]
                reason = f"{code['type']} fails the backend's validation, code {code['code']}"
        found.update({name: f"{unit['operator']}: {reason}" for name in names})
    return found


def _placed(session: Any, reasons: Mapping[str, str]) -> Loaded:
    groups = session.get_provider_graph_assignment_info()
    rows: list[Row] = []
    for group in groups:
        npu = group.ep_name == _PROVIDER
        for node in group.get_nodes():
            why = "" if npu else reasons.get(node.name, "")
            if _INTERFACE in why:  # the provider's own choice: it converts floats on the CPU
                rows.append((node.name, node.op_type, "CPU, interface", True, ""))
            else:
                rows.append((node.name, node.op_type, "NPU" if npu else "CPU", npu, why))
    return rows, sum(group.ep_name == _PROVIDER for group in groups)


WORKER = HexagonWorker
