"""Export profiles: what differs between the runtimes that a QDQ file is written for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from qdqbridge.errors import UnsupportedTargetError


class Clamp(Enum):
    """Where a range narrower than the storage type is spelled; both give the same integers."""

    BEFORE = "Relu or Clip on the operator's float result, before its QuantizeLinear"
    BEHIND = "Relu or Clip between a Q/DQ pair of the whole range and a second Q"


@dataclass(frozen=True, slots=True)
class Profile:
    """How to spell what ONNX allows to spell in several ways.

    Attributes:
        name: The name users give.
        clamp: Where narrower ranges are spelled.
    """

    name: str
    clamp: Clamp


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        # onnxruntime 1.31 makes a float FusedConv of a Conv with a clamp right behind it; with a
        # Q/DQ pair between them the Conv is a QLinearConv.
        "ort": Profile("ort", Clamp.BEHIND),
        # Everybody else looks for the activation where training frameworks put it.
        "portable": Profile("portable", Clamp.BEFORE),
    }
)


def profile_of(name: str) -> Profile:
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
