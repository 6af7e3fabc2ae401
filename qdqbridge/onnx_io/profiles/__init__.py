"""Export profiles: how files are written for a runtime, and whether a file would fuse on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from types import MappingProxyType

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Graph
from qdqbridge.onnx_io.profiles import portable, qoperator, tensorrt
from qdqbridge.onnx_io.profiles.checker import check_source
from qdqbridge.onnx_io.profiles.finding import Demand, Effect, Finding, Reason
from qdqbridge.onnx_io.profiles.hexagon import legalizations as hexagon
from qdqbridge.onnx_io.profiles.hexagon import rules as qnn
from qdqbridge.onnx_io.profiles.hexagon import types as hexagon_types
from qdqbridge.onnx_io.profiles.openvino import legalizations as openvino_forms
from qdqbridge.onnx_io.profiles.openvino import rules as openvino
from qdqbridge.onnx_io.profiles.ort import rules as ort
from qdqbridge.onnx_io.profiles.profile import Bias, Clamp, ExportProfile, Older, Versions

__all__ = [
    "PROFILES",
    "Bias",
    "Clamp",
    "Demand",
    "Effect",
    "ExportProfile",
    "Finding",
    "Reason",
    "Versions",
    "check",
    "profile_of",
]

_ORT = Versions("onnxruntime 1.31", opset=26, ir=13)
"""1.32 reads opset 28 and IR 14, and has kernels of opset 27; every older file is read by both."""
# Hexagon (the host build of onnxruntime-qnn 2.7.0) fuses a clamp on float results into the operator
# wrongly, or does not take it at all; behind the pair it loses a Clip of 16 bits, or one that is
# not active at both ends, but no Relu, Max and Min. Of int16 it takes little.
_QNN = ExportProfile(
    "qnn", "onnxruntime with QNN", Clamp.BEHIND, qnn.RULES,
    bias=Bias.INT32, unsigned=hexagon_types.unsigned_types, contrib=True, strict=True,
    fixed=True, newest=_ORT, legalizations=hexagon.LEGALIZATIONS,
)  # fmt: skip
_ALL = (
    # onnxruntime 1.31 makes a float FusedConv of a Conv with a clamp right behind it; with the
    # clamp on integers the Conv is a QLinearConv, and the clamp is integer as well. On x86 that
    # holds for uint8 only: int8 becomes uint8 where a DQ follows its Q at once.
    ExportProfile(
        "ort", "onnxruntime, CPU on x86", Clamp.STORED, ort.RULES,
        older=Older("int8-past-movers", 20), newest=_ORT, packed=True,
        as_read=True,
    ),
    # Everybody else looks for the activation where training frameworks put it.
    ExportProfile(
        "portable", "any reader of QDQ files", Clamp.BEFORE, portable.RULES,
        told=(ort.ROUNDED_ACTIVATION,),
    ),
    ExportProfile(
        "tensorrt", "TensorRT", Clamp.BEFORE, tensorrt.RULES,
        bias=Bias.FLOAT, recentered=True, strict=True,
    ),
    _QNN,
    replace(
        _QNN, name="qnn-v73", runtime="onnxruntime with QNN on Hexagon v73 and later",
        rules=qnn.RULES_OF_V73,
    ),
    # OpenVINO 2026.4.1 rounds in float32 behind pools, or pads with another number, where the zero
    # points of operand and result are one initializer; it crashes where a Concat is rounded twice.
    # Pairs of 16 bits it leaves out, and with them every Relu that is the range of a type.
    ExportProfile(
        "openvino", "OpenVINO", Clamp.BEFORE, openvino.RULES,
        convolvable=True, apart=True, guarded=True, clipped=True, strict=True,
        legalizations=openvino_forms.LEGALIZATIONS,
    ),
    ExportProfile(
        "qoperator", "onnxruntime without graph optimizations", Clamp.STORED, qoperator.RULES,
        bias=Bias.INT32, operators=True, newest=_ORT, told=(ort.ROUNDED_ACTIVATION,),
    ),
)  # fmt: skip

PROFILES: Mapping[str, ExportProfile] = MappingProxyType(
    {profile.name: profile for profile in _ALL}
)


def profile_of(name: str) -> ExportProfile:
    """Returns the profile of that name.

    Raises:
        UnsupportedTargetError: There is none.
    """
    if name not in PROFILES:
        raise UnsupportedTargetError(
            f"there is no export profile '{name}'",
            why=f"the profiles are {', '.join(PROFILES)}",
            fix="use one of them",
        )
    return PROFILES[name]


def check(source: Graph | str | PathLike[str], profile: str = "ort") -> list[Finding]:
    """Returns where and why a model would not run on integers on a runtime.

    Args:
        source: A model file, in whatever form; or a graph, which is checked as the file that the
            profile would write.
        profile: The name of the profile.

    Returns:
        Nothing where the runtime accepts the file and every operator between DQ and Q runs on
        integers.

    Raises:
        UnsupportedTargetError: The profile is not known.
        QdqBridgeError: The file cannot be read.
    """
    return check_source(source, profile_of(profile))
