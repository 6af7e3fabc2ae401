"""What a Resize does along one axis, as a matrix: two forms of it mean the same, or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.resize import RESIZE


def axis_weights(attributes: ResizeAttrs, axis: int, length: int, size: int) -> NDArray[Any]:
    """Returns the matrix (size, length) of one axis: what the operator makes of the identity.

    Args:
        attributes: Of a Resize.
        axis: Which of its axes.
        length: Extent of that axis before.
        size: Extent after.
    """
    scales, sizes = None, (size, length)
    if attributes.scales is not None:
        scales, sizes = (attributes.scales[axis], 1.0), None
    roi = attributes.roi and (
        attributes.roi[axis],
        0.0,
        attributes.roi[len(attributes.roi) // 2 + axis],
        1.0,
    )
    alone = replace(attributes, scales=scales, sizes=sizes, roi=roi)
    (matrix,) = RESIZE.compute(alone, (np.eye(length, dtype=np.float32),))
    return matrix
