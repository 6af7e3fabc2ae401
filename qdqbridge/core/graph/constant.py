"""Constant data that is read only when somebody looks at it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import GraphError

Bytes = NDArray[np.uint8]
_LARGE = 1 << 20
"""Elements from which what was unpacked is forgotten as soon as nobody holds it."""


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class HeldBytes:
    """Bytes in memory, for :class:`StoredBytes`.

    Attributes:
        data: They.
    """

    data: Bytes

    def load(self) -> Bytes:
        """Returns them."""
        return self.data

    def move(self, data: Bytes) -> None:
        """Holds equal ones from now on."""
        self.data = data


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Where the bytes of a constant lie, packed as files pack them: the first element lowest.

    Attributes:
        load: Returns them, one axis; a view where possible.
        decode: Returns the elements of some.
        release: Tells the operating system that those of a mapped file are not needed in memory.
        move: Holds equal ones from now on; None where they need no memory, or are computed.
    """

    load: Callable[[], Bytes]
    decode: Callable[[Bytes, DType, tuple[int, ...]], NDArray[np.generic]]
    release: Callable[[], None] = _nothing
    move: Callable[[Bytes], None] | None = None


class Constant:
    """An immutable array whose bytes may still lie in a file.

    Shape and dtype are always known; :meth:`numpy` maps, unpacks or computes the elements on
    first use. Memory-mapped data is a view, never a copy. What takes more memory unpacked than
    stored is held as long as somebody looks at it.
    """

    __slots__ = (
        "__weakref__", "_array", "_base", "_check", "_fleeting", "_load", "_permuted", "_seen",
        "_stored", "dtype", "shape",
    )  # fmt: skip

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
        self._seen: weakref.ref[NDArray[np.generic]] | None = None
        self._fleeting = False
        self._stored: StoredBytes | None = None
        self._base: tuple[Constant, tuple[int, ...]] | None = None
        # a view holds its base: one that is not looked at any more goes at once, and its bytes
        self._permuted: weakref.WeakValueDictionary[tuple[int, ...], Constant] | None = None

    @staticmethod
    def stored(
        dtype: DType,
        shape: tuple[int, ...],
        bytes_: StoredBytes,
        check: Callable[[], None] | None = None,
    ) -> Constant:
        """Returns a constant whose bytes lie somewhere; arguments as for the constructor."""
        made = Constant(dtype, shape, lambda: bytes_.decode(bytes_.load(), dtype, shape), check)
        made._stored = bytes_
        made._fleeting = dtype.bits < 8 and made.size >= _LARGE
        return made

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
        seen = self._array if self._seen is None else self._seen()
        if seen is None:
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
            seen = array
            if self._fleeting:
                self._seen = weakref.ref(array)
            else:
                self._array, self._load = array, None
        return seen

    def packed(self) -> Bytes | None:
        """Returns codes of less than a byte as files pack them; None where they are not held so."""
        if self._stored is None or self.dtype.bits >= 8:
            return None
        if self._check is not None:
            self._check()
        return self._stored.load()

    def in_bytes(self) -> Constant | None:
        """Returns the bytes of :meth:`packed` as a constant, the last axis shorter.

        Returns:
            None where there are none, or rows of codes do not end with a byte.
        """
        if self._stored is None or self.dtype.bits >= 8 or not self.shape:
            return None
        if self.shape[-1] * self.dtype.bits % 8:
            return None
        shape = (*self.shape[:-1], self.shape[-1] * self.dtype.bits // 8)
        source = self._stored
        stored = StoredBytes(
            source.load, lambda data, dtype, shape: data.view(dtype.numpy).reshape(shape),
            source.release, source.move,
        )  # fmt: skip
        return Constant.stored(DType.UINT8, shape, stored, self._check).fleeting()

    def reinterpreted(self, dtype: DType, shape: tuple[int, ...]) -> Constant | None:
        """Returns the same bytes as elements of another type; None where they lie in no file's way.

        Args:
            dtype: The type, as files pack it.
            shape: The extents.
        """
        if self._stored is None:
            return None
        return Constant.stored(dtype, shape, self._stored, self._check)

    def fleeting(self) -> Constant:
        """Returns the same constant, whose elements are held as long as somebody looks if large."""
        self._fleeting = self.size >= _LARGE
        return self

    def release(self) -> None:
        """Lets go of memory that the file has as well; whoever looks again reads it again."""
        if self._base is not None:
            self._base[0].release()
        elif self._stored is not None:
            self._stored.release()

    def move(self, array: NDArray[np.generic]) -> None:
        """Holds equal elements that lie elsewhere, and lets go of the memory of its own.

        What is mapped from a file has none, and keeps the file.

        Args:
            array: The elements, in memory that nobody writes to.
        """
        base, perm = self.unpermuted()
        stored = base._stored
        if base._fleeting if stored is None else stored.move is None:
            return
        if base._fleeting and stored is not None and stored.move is not None:
            stored.move(array.reshape(-1).view(np.uint8))
            base._seen = None
            return
        view = array.view()
        view.flags.writeable = False
        base._array, base._load, base._stored = (
            view.transpose(np.argsort(perm)) if perm else view,
            None,
            None,
        )
        for own, permuted in (base._permuted or {}).items():
            if permuted._array is not None:
                permuted._array = base._array.transpose(own)

    def map(
        self,
        function: Callable[[NDArray[np.generic]], NDArray[np.generic]],
        *,
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Constant:
        """Returns ``function`` of the elements, computed when first looked at."""
        made = Constant(
            dtype or self.dtype,
            self.shape if shape is None else shape,
            lambda: function(self.numpy()),
            self._check,
        )
        made._fleeting = self._fleeting
        return made

    def permuted(self, perm: tuple[int, ...]) -> Constant:
        """Returns the constant with its axes permuted, a view; one object for every caller."""
        base, before = (self, tuple(range(len(perm)))) if self._base is None else self._base
        perm = tuple(before[axis] for axis in perm)
        if perm == tuple(range(len(perm))):
            return base
        if base._permuted is None:
            base._permuted = weakref.WeakValueDictionary()
        view = base._permuted.get(perm)
        if view is None:
            shape = tuple(base.shape[axis] for axis in perm)
            view = base.map(lambda array: array.transpose(perm), shape=shape)
            view._base = base, perm
            base._permuted[perm] = view
        return view

    def unpermuted(self) -> tuple[Constant, tuple[int, ...]]:
        """Returns what this is a permuted view of, and how; itself and () where it is none."""
        return (self, ()) if self._base is None else self._base

    def rows(self, rows: slice) -> NDArray[np.generic]:
        """Returns a part of the first axis without unpacking the others."""
        width = self.size // max(self.shape[0], 1) * self.dtype.bits if self.shape else 0
        packed = self.packed() if self._fleeting and width and width % 8 == 0 else None
        if packed is None or self._stored is None:
            return self.numpy()[rows] if self.shape else self.numpy()
        start, stop, step = rows.indices(self.shape[0])
        assert step == 1
        shape = (max(stop - start, 0), *self.shape[1:])
        part = packed[start * width // 8 : stop * width // 8]
        return self._stored.decode(part, self.dtype, shape)

    def transposed(self) -> Constant:
        """Returns the constant with its axes reversed, a view; the same object for every caller."""
        return self.permuted(tuple(reversed(range(len(self.shape)))))

    def other_signedness(self, dtype: DType) -> Constant:
        """Returns integers in the type of the other signedness, shifted by half of its range.

        Args:
            dtype: That type, of as many bits.
        """
        if self._base is not None:
            base, perm = self._base
            return base.other_signedness(dtype).permuted(perm)
        if self._stored is not None and dtype.bits < 8:
            source = self._stored
            flip = np.uint8(sum(1 << i for i in range(dtype.bits - 1, 8, dtype.bits)))
            flipped = StoredBytes(lambda: source.load() ^ flip, source.decode, source.release)
            return Constant.stored(dtype, self.shape, flipped, self._check)
        if dtype.bits >= 8:  # half of the range is the highest bit
            unsigned = np.dtype(f"u{dtype.numpy.itemsize}")
            half = unsigned.type(1 << dtype.bits - 1)
            return self.map(lambda a: (a.view(unsigned) ^ half).view(dtype.numpy), dtype=dtype)
        shift = dtype.qmin - self.dtype.qmin
        return self.map(
            lambda array: (array.astype(np.int32) + shift).astype(dtype.numpy), dtype=dtype
        )

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes the elements take in memory."""
        return self.size * self.dtype.numpy.itemsize
