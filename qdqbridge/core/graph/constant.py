"""Constant data that is read only when somebody looks at it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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

    def same_bits(self, other: Constant) -> bool:
        """Returns whether a constant of the same type and shape holds the same bits."""
        return self is other or self.numpy().tobytes() == other.numpy().tobytes()

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


# ---- Arrays in row-major order, transposed matrices included, at about the speed of memory -------
# NumPy copies a transposed int8 matrix byte by byte, at a tenth of the speed of memory. Eight rows
# of eight bytes are eight words; three rounds of swapping halves, quarters and eighths of words
# transpose them (the butterfly of Warren, "Hacker's Delight", section 7-3, on bytes). Wider
# elements are copied in tiles that stay in the cache.


PART = 1 << 24
"""Bytes that are copied at once where a copy of the whole is not needed."""
_BLOCK = 128
"""Words, or elements, per row that are worked on at once: they stay in the second-level cache."""

_ROUNDS = tuple(
    (4 >> k, np.uint64(mask), np.uint64(shift))
    for k, (mask, shift) in enumerate(
        ((0x00000000FFFFFFFF, 32), (0x0000FFFF0000FFFF, 16), (0x00FF00FF00FF00FF, 8))
    )
)


def parts(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    """Yields the bytes of an array in row-major order, in pieces: a copy never is a whole one.

    Each piece is to be used before the next one is asked for.
    """
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8)
        return
    rows = max(8, PART * len(array) // max(array.nbytes, 1) // 8 * 8)
    memory = np.empty((min(rows, len(array)), *array.shape[1:]), array.dtype)
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        target = memory[: len(part)]
        fill(target, part)
        yield target.reshape(-1).view(np.uint8)


def fill(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copies ``source`` into the C-contiguous ``target`` of the same shape."""
    if source.dtype != target.dtype:
        target[...] = source.astype(target.dtype)
        return
    if source.dtype.isbuiltin == 2:  # of ml_dtypes: NumPy does not stride over all of them
        words = np.dtype(f"u{source.itemsize}")
        source, target = source.view(words), target.view(words)
    matrices = _transposed_matrices(source)
    if matrices is None:
        target[...] = source
        return
    targets = target.reshape(matrices.shape[0], matrices.shape[2], matrices.shape[1])
    for rows, out in zip(matrices, targets, strict=True):
        _transpose(rows, out)


def _transposed_matrices(array: NDArray[Any]) -> NDArray[Any] | None:
    """Returns matrices whose transposes are ``array``; None where it is ordered otherwise."""
    if array.ndim < 2 or not array.size or array.dtype.hasobject:
        return None
    shape, strides = [array.shape[0]], [array.strides[0]]
    for extent, stride in zip(array.shape[1:], array.strides[1:], strict=True):
        if strides[-1] == extent * stride or shape[-1] == 1:
            shape[-1], strides[-1] = shape[-1] * extent, stride
        elif extent != 1:
            shape.append(extent)
            strides.append(stride)
    if len(shape) == 2:
        shape, strides = [1, *shape], [0, *strides]
    if len(shape) != 3 or strides[1] != array.itemsize or strides[2] < array.itemsize:
        return None
    swapped = (shape[0], shape[2], shape[1]), (strides[0], strides[2], strides[1])
    return np.lib.stride_tricks.as_strided(array, *swapped, writeable=False)


def _transpose(rows: NDArray[Any], target: NDArray[Any]) -> None:
    """Writes the transpose of a matrix whose rows are contiguous."""
    width, height = (extent // 8 * 8 for extent in rows.shape[::-1])
    if rows.itemsize > 1 or not width * height:
        width = height = 0
    else:
        words = rows[:height, :width].view(np.uint64)
        out = target[:width].view(np.uint8).reshape(width // 8, 8, rows.shape[0])[..., :height]
        for start in range(0, width // 8, _BLOCK):
            _transpose_words(words, out, slice(start, start + _BLOCK))
    _copy_tiles(rows[:height, width:], target[width:, :height])
    _copy_tiles(rows[height:], target[:, height:])


def _copy_tiles(rows: NDArray[Any], target: NDArray[Any]) -> None:
    for top in range(0, rows.shape[0], _BLOCK):
        for left in range(0, rows.shape[1], _BLOCK):
            tile = rows[top : top + _BLOCK, left : left + _BLOCK]
            target[left : left + _BLOCK, top : top + _BLOCK] = tile.T


def _transpose_words(words: NDArray[np.uint64], out: NDArray[np.uint8], part: slice) -> None:
    """Transposes the byte columns of some of the words."""
    lanes = [np.ascontiguousarray(words[i::8, part].T) for i in range(8)]
    for distance, mask, shift in _ROUNDS:
        for i in range(8):
            if not i & distance:
                low, high = lanes[i], lanes[i + distance]
                swap = ((low >> shift) ^ high) & mask
                lanes[i + distance] = high ^ swap
                lanes[i] = low ^ (swap << shift)
    for column in range(8):
        out[part, column] = lanes[column].view(np.uint8)
