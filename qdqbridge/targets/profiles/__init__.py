"""Export profiles: how files are written for a runtime, and whether a file would fuse on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from types import MappingProxyType

from qdqbridge.core.canonical.linear import parts_of_one_product
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.writer.spec import (
    ONNXRUNTIME,
    ONNXRUNTIME_1_31,
    Bias,
    Clamp,
    WriterOptions,
)
from qdqbridge.targets.profiles import portable, tensorrt
from qdqbridge.targets.profiles.finding import (
    Effect,
    ExportProfile,
    Finding,
    Older,
    Reason,
    TargetRule,
    check_source,
)
from qdqbridge.targets.profiles.hexagon import legalizations as hexagon
from qdqbridge.targets.profiles.hexagon import rules as qnn
from qdqbridge.targets.profiles.openvino import reductions
from qdqbridge.targets.profiles.openvino import rules as openvino
from qdqbridge.targets.profiles.ort import rules as ort
from qdqbridge.targets.profiles.ort.legalizations import LEGALIZATIONS as KEPT_FLOAT

__all__ = [
    "PROFILES",
    "Effect",
    "ExportProfile",
    "Finding",
    "Reason",
    "TargetRule",
    "check",
    "products_in_pairs",
    "profile_of",
]

# Hexagon (the host build of onnxruntime-qnn 2.7.0) fuses a clamp on float results into the operator
# wrongly, or does not take it at all; behind the pair it loses a Clip of 16 bits, or one that is
# not active at both ends, but no Relu, Max and Min. Of int16 it takes little.
_QNN = ExportProfile(
    "qnn", "onnxruntime with QNN",
    WriterOptions(Clamp.BEHIND, bias=Bias.INT32, contrib=True, newest=ONNXRUNTIME_1_31),
    qnn.RULES, unsigned=hexagon.unsigned_types, legalizations=hexagon.LEGALIZATIONS,
    strict=True, fixed=True,
)  # fmt: skip
_ALL = (
    ExportProfile(
        "ort", "onnxruntime, CPU on x86", ONNXRUNTIME, ort.RULES, legalizations=KEPT_FLOAT,
        older=Older("int8-past-movers", 20), as_read=True,
    ),
    # Everybody else looks for the activation where training frameworks put it.
    ExportProfile(
        "portable", "any reader of QDQ files", WriterOptions(Clamp.BEFORE),
        (*portable.RULES, *ort.FUSED_WRONGLY), legalizations=KEPT_FLOAT,
        exported=(ort.ROUNDED_ACTIVATION,),
    ),
    ExportProfile(
        "tensorrt", "TensorRT", WriterOptions(Clamp.BEFORE, bias=Bias.FLOAT), tensorrt.RULES,
        recentered=True, strict=True, legalizations=(parts_of_one_product,),
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
        "openvino", "OpenVINO",
        WriterOptions(Clamp.BEFORE, convolvable=True, apart=True, guarded=True, clipped=True),
        openvino.RULES, strict=True, legalizations=reductions.LEGALIZATIONS,
    ),
    ExportProfile(
        "qoperator", "onnxruntime without graph optimizations",
        WriterOptions(Clamp.STORED, bias=Bias.INT32, operators=True, newest=ONNXRUNTIME_1_31),
        (*portable.QOPERATOR_RULES, *ort.FUSED_WRONGLY), exported=(ort.ROUNDED_ACTIVATION,),
    ),
)  # fmt: skip

PROFILES: Mapping[str, ExportProfile] = MappingProxyType(
    {profile.name: profile for profile in _ALL}
)


def profile_of(name: str | ExportProfile) -> ExportProfile:
    """Returns the profile of that name, or the one that is given.

    Raises:
        UnsupportedTargetError: There is none.
    """
    if isinstance(name, ExportProfile):
        return name
    if name not in PROFILES:
        raise UnsupportedTargetError(
            f"there is no export profile '{name}'",
            why=f"the profiles are {', '.join(PROFILES)}",
            fix="use one of them",
        )
    return PROFILES[name]


def check(
    source: Graph | str | PathLike[str], profile: str | ExportProfile = "ort"
) -> list[Finding]:
    """Returns where and why a model would not run on integers on a runtime.

    Args:
        source: A model file, in whatever form; or a graph, which is checked as the file that the
            profile would write.
        profile: The profile, or its name.

    Returns:
        Nothing where the runtime accepts the file and every operator between DQ and Q runs on
        integers.

    Raises:
        UnsupportedTargetError: The profile is not known.
        QdqBridgeError: The file cannot be read.
    """
    return check_source(source, profile_of(profile))


def products_in_pairs(source: Graph | str | PathLike[str]) -> list[Finding]:
    """Returns the products whose pairs can saturate in onnxruntime, on x86 without VNNI.

    Args:
        source: An ONNX file, or a graph, of which the file counts that onnxruntime would be given.

    Raises:
        QdqBridgeError: The file cannot be read.
    """
    try:
        found = check_source(source, replace(profile_of("ort"), rules=(ort.PAIRS_FIT,)))
    except UnsupportedTargetError:  # onnxruntime has no such graph
        return []
    return [each for each in found if each.rule == ort.PAIRS_FIT.name]
