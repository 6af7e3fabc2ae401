"""The words of string options are those that the tables know."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, get_args

import pytest

from qdqbridge import options
from qdqbridge.autoquant.choosers import CHOOSERS
from qdqbridge.autoquant.hardware.arithmetic import Overflow, Rescaling
from qdqbridge.autoquant.planning.targets import TARGETS, WEIGHTS
from qdqbridge.autoquant.quantize import PRESETS
from qdqbridge.targets import encodings
from qdqbridge.targets.engines.kinds import ENGINES
from qdqbridge.targets.profiles import PROFILES
from qdqbridge.tflite_io.writer import LAYOUTS
from qdqbridge.tvm.relax.emit.module import VARIANTS
from qdqbridge.tvm.relax.executable import KERNELS


def _words(of: Any) -> Iterator[str]:
    for each in get_args(of):
        yield from (each,) if isinstance(each, str) else _words(each)


@pytest.mark.parametrize(
    ("words", "table"),
    [
        (options.ProfileName, PROFILES),
        (options.TargetName, TARGETS),
        (options.WeightFormat, WEIGHTS),
        (options.ChooserName, CHOOSERS),
        (options.PresetName, PRESETS),
        (options.EngineName, ENGINES),
        (options.TFLiteLayout, LAYOUTS),
        (options.RelaxVariant, VARIANTS),
        (options.Kernels, KERNELS),
        (options.Requantize, [each.value for each in Rescaling]),
        (options.Overflow, [each.value for each in Overflow]),
        (options.EncodingsFormat, [f.name for f in encodings.FORMATS if f.written(())]),
    ],
)
def test_words_are_those_of_the_table(words: Any, table: Collection[str]) -> None:
    assert set(_words(words)) == set(table)
