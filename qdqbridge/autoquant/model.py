"""Quantization as users ask for it: targets, choosers and profiles by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from qdqbridge.autoquant.choosers import CHOOSERS, Chooser
from qdqbridge.autoquant.collect import Data
from qdqbridge.autoquant.profile import Profile, read_profile
from qdqbridge.autoquant.quantize import Quantized, quantized
from qdqbridge.autoquant.repair.steps import DEFAULT
from qdqbridge.autoquant.requests import Request
from qdqbridge.autoquant.streams import open_samples
from qdqbridge.autoquant.targets import TARGETS, WEIGHTS, Target
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Graph

ChooserName: TypeAlias = "str | Chooser | None"


def quantize_model(
    graph: Graph,
    data: Mapping[str, NDArray[Any]] | Data | Path | None,
    target: str | Target = "ort",
    *,
    profile: Profile | str | PathLike[str] | None = None,
    request: Request | None = None,
    choosers: tuple[ChooserName, ChooserName] = (None, None),
    weights: str | None = None,
    repair: Sequence[str] = DEFAULT,
    progress: Callable[[int, int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Quantized:
    """Quantizes a graph and returns how it came about as well.

    Args:
        graph: A canonical float graph; it is not changed.
        data: Arrays by name, samples, or an ``.npz`` file or a folder of such; None where there is
            a profile.
        target: A target or its name.
        profile: A profile or its file.
        request: What the user wants otherwise than the target.
        choosers: Those of activations and of weights, or their names; None for the target's.
        weights: Another storage type for weights, see :data:`WEIGHTS`.
        repair: Steps of repair to try, each kept where it helps; they need data.
        progress: Called with the steps done and their number.
        warn: Called with what was assumed about files of data.

    Raises:
        UnsupportedTargetError: A name stands for nothing.
        QdqBridgeError: As :func:`qdqbridge.autoquant.quantize.quantized`.
    """
    described = with_choosers(target_of(target), *choosers)
    if weights is not None:
        described = with_weights(described, weights)
    if isinstance(profile, (str, PathLike)):
        profile = read_profile(Path(profile))
    return quantized(
        graph,
        open_samples(data, graph.inputs, warn) if isinstance(data, Path) else data,
        described,
        profile=profile,
        request=request,
        repair=repair,
        tune=bool(described.candidates),
        progress=progress,
    )


def target_of(target: str | Target) -> Target:
    """Returns a target by its name.

    Raises:
        UnsupportedTargetError: There is none of that name.
    """
    return target if isinstance(target, Target) else _named("target", target, TARGETS)


def with_choosers(target: Target, activations: ChooserName, weights: ChooserName) -> Target:
    """Returns ``target`` with other choosers where they are given, and none tried against them.

    Raises:
        UnsupportedTargetError: There is no chooser of a name.
    """
    if activations is not None:
        target = replace(target, chooser=_chooser(activations), candidates=())
    return target if weights is None else replace(target, weight_chooser=_chooser(weights))


def _chooser(chooser: str | Chooser) -> Chooser:
    return _named("chooser", chooser, CHOOSERS) if isinstance(chooser, str) else chooser


def with_weights(target: Target, weights: str) -> Target:
    """Returns ``target`` with another storage type for weights, per channel where it had that.

    Raises:
        UnsupportedTargetError: There is no type of that name.
    """
    format = replace(_named("type of weights", weights, WEIGHTS), axis=target.weights.axis)
    rules = tuple(
        rule
        if rule.weights is None
        else replace(rule, weights=replace(format, axis=rule.weights.axis))
        for rule in target.rules
    )
    return replace(target, weights=format, rules=rules)


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UnsupportedTargetError(
            f"there is no {kind} '{name}'", why=f"there are {', '.join(known)}", fix="use one"
        )
    return known[name]
