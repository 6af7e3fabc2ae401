"""What all tests share: numbers that do not depend on what ran before, and onnxruntime's age.

Some tests need an onnxruntime newer than the newest one for Python 3.10 (1.23). They
state what onnxruntime 1.31 does (kernels, fusions, what it loads), which 1.23 does otherwise.
Everything that qdqbridge itself promises is tested with either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

_OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24)
_ABOUT_NEWER = (
    "test_convolution.py::test_conv_equals_the_fused_kernel",
    "[RMSNormalization",
    "test_float16.py::test_onnxruntime_on_a_float16_file_is_explained",
    "test_idioms_precision.py::test_the_exported_file_computes_bit_for_bit_as_the_original[half",
    "test_pooling.py::test_average_pool_differs_in_ties_only[include_pad",
    "test_profiles_ort.py::test_broken_rules_are_what_onnxruntime_does[ort_bias_scale]",
    "test_profiles_ort.py::test_further_rules[without_zero_points-17-zero-points-written]",
    "test_profiles_ort.py::test_int8_past_movers_does_not_load_from_opset_21",
    "test_profiles_ort.py::test_scales_must_be_initializers",
    "test_profiles_ort.py::test_initializers_that_are_inputs_are_no_constants",
    "test_profiles_ort.py::test_int32_bias_of_another_scale_is_not_fused",
    "test_codecs_old.py::test_a_spelling_means_what_onnxruntime_makes_of_it[ReduceSum-13_1]",
    "test_codecs_old.py::test_a_spelling_means_what_onnxruntime_makes_of_it[Resize-18_0]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what is about onnxruntime 1.24 or newer where an older one is installed."""
    if not _OLD:
        return
    reason = f"about onnxruntime 1.24 and newer; this is {onnxruntime.__version__}"
    for item in items:
        if any(part in item.nodeid for part in _ABOUT_NEWER):
            item.add_marker(pytest.mark.skip(reason=reason))


_FRESH: dict[str, Any] = {}
"""The state of a module's ``RNG`` behind its import, by the module's name."""


@pytest.fixture(autouse=True)
def _same_numbers(request: pytest.FixtureRequest) -> None:
    """Gives each test the numbers that it draws when it runs alone."""
    module = getattr(request, "module", None)
    rng = getattr(module, "RNG", None)
    if isinstance(rng, np.random.Generator):
        name = request.module.__name__
        rng.bit_generator.state = _FRESH.setdefault(name, rng.bit_generator.state)
