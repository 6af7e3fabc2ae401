"""Constant data that is read only when somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import GraphError
from qdqbridge.graph.dtypes import DType


class Constant:
    """An immutable array whose bytes may still lie in a file.

    Shape and dtype are always known; :meth:`numpy` maps, unpacks or computes the elements on
    first use. Memory-mapped data is a view, never a copy.
    """

    __slots__ = ("_array", "_check", "_load", "_transposed", "dtype", "shape")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        load: Callable[[], NDArray[np.generic]],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Makes a constant.

        Args:
            dtype: The element type.
            shape: The extents.
            load: Returns the elements.
            check: Raises where the elements can no longer be looked at; called at every look.
        """
        self._check = check
        self.dtype, self.shape = dtype, shape
        self._load: Callable[[], NDArray[np.generic]] | None = load
        self._array: NDArray[np.generic] | None = None
        self._transposed: Constant | None = None

    @staticmethod
    def of(array: NDArray[np.generic]) -> Constant:
        """Wraps an array that is already in memory (not copied)."""
        constant = Constant(DType.of(array.dtype), array.shape, lambda: array)
        constant.numpy()
        return constant

    def numpy(self) -> NDArray[np.generic]:
        """Returns the elements as a read-only array of ``shape``; a view where possible."""
        if self._check is not None:
            self._check()
        if self._array is None:
            assert self._load is not None
            array = np.asarray(self._load()).view()
            if array.shape != self.shape or array.dtype != self.dtype.numpy:
                raise GraphError(
                    "a constant does not have the shape or element type that its file declares",
                    why=f"declared {self.dtype}{list(self.shape)}, found {array.dtype}"
                    f"{list(array.shape)}",
                    fix="correct the declared shape, or remove it from the file",
                )
            array.flags.writeable = False
            self._array, self._load = array, None
        return self._array

    def map(
        self,
        function: Callable[[NDArray[np.generic]], NDArray[np.generic]],
        *,
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Constant:
        """Returns ``function`` of the elements, computed when first looked at."""
        return Constant(
            dtype or self.dtype,
            self.shape if shape is None else shape,
            lambda: function(self.numpy()),
            self._check,
        )

    def transposed(self) -> Constant:
        """Returns the constant with its axes reversed, a view; the same object for every caller."""
        if self._transposed is None:
            self._transposed = self.map(np.transpose, shape=self.shape[::-1])
        return self._transposed

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes the elements take in memory."""
        return self.size * self.dtype.numpy.itemsize
