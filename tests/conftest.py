"""Which tests need an onnxruntime newer than the newest one for Python 3.10 (1.23).

They state what onnxruntime 1.31 does (kernels, fusions, what it loads), which 1.23 does otherwise.
Everything that qdqbridge itself promises is tested with either.
"""

from __future__ import annotations

import onnxruntime
import pytest

_OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24)
_ABOUT_NEWER = (
    "test_convolution.py::test_conv_equals_the_fused_kernel",
    "[RMSNormalization",
    "test_pooling.py::test_average_pool_differs_in_ties_only[include_pad",
    "onnx_io/test_profiles_ort.py::",
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
