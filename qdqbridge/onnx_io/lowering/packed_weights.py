"""com.microsoft's MatMulNBits and GatherBlockQuantized: packed weights with scales per block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.packed_products import OWN_ORDER, PERMUTED, PackedGather, PackedProduct
from qdqbridge.onnx_io.lowering.bits import UNSIGNED, tensor_of, unpacked
from qdqbridge.onnx_io.lowering.run_time_weights import Blocks, unpacked_weight
from qdqbridge.onnx_io.lowering.site import LoweringSite

_ATTRIBUTES = frozenset(("N", "K", "bits", "block_size", "accuracy_level", "weight_prepacked"))
_BYTES = {1: "weight", 2: "scales"}
_STORED: dict[int, str] = {TensorProto.INT4: "int4", TensorProto.UINT4: "uint4"}


def matmul_nbits(site: LoweringSite) -> None:
    """``MatMul(a, Transpose(DQ(w[N, K], blocks of K)))``; a missing zero point is 8 (128, 2).

    Columns in an order of their own (``g_idx`` of act-order) are put into that of their blocks, and
    activations by a Gather. What only the run knows, and blocks of other sizes than the block
    size, are unpacked and dequantized by float nodes: ``(code - zero point) * scale``, which is
    exact but for the product.
    Float arithmetic: onnxruntime's kernels add in another order, so results differ in their last
    bits. With ``accuracy_level`` 4 it is a product of blocks that are quantized on the way
    (``block-product``).
    Source: onnxruntime docs/ContribOperators.md.
    """
    bits, block = _width(site), site.int_("block_size", 0)
    rows, columns = site.int_("N", 0), site.int_("K", 0)
    if min(rows, columns, block) < 1:
        raise site.fault(
            "N, K or block_size is missing", why=f"N={rows}, K={columns}, block_size={block}"
        )
    if site.int_("weight_prepacked", 0):
        raise site.refusal(
            "its weight lies as a GPU multiplies it",
            f"weight_prepacked is {site.int_('weight_prepacked', 0)}",
            "export the weight as it is",
        )
    blocks = -(-columns // block)
    constant = all(site.known.is_constant(site.input(i)) for i in range(1, 5) if site.input(i))
    order = _order(site, columns, block) if constant else None
    if order is None or (order.size and site.known.rank(site.input(0)) is None):
        _product(site, unpacked_weight(site, Blocks(bits, block, rows, columns)))
        return
    weight = _weight(site, bits, rows, columns, block * blocks, order)
    scale = _scale(site, (rows, blocks))
    zero_point = _zero_point(site, bits, (rows, blocks))
    real = site.dequantize(weight, scale, zero_point, axis=1, block_size=block)
    _product(site, real, _variant(site, block, PERMUTED if order.size else OWN_ORDER), order)


def _variant(site: LoweringSite, block: int, order: str) -> str:
    """Returns what a writer needs to write the same node; empty where it cannot."""
    given = {attribute.name for attribute in site.proto.attribute}
    if not given <= _ATTRIBUTES:
        return ""
    level = site.int_("accuracy_level", 0) if "accuracy_level" in given else None
    points = ""
    if site.input(3):
        points = "packed" if site.array(3, "its zero point").dtype.kind in "iu" else "float"
    order = order if site.input(4) else ""
    return PackedProduct(level, points, order, bool(site.input(5)), block).text()


def _product(
    site: LoweringSite, real: str, variant: str = "", order: NDArray[Any] | None = None
) -> None:
    """Makes ``MatMul(a, Transpose(real)) + bias``; the product is of that variant.

    Args:
        site: The node.
        real: The weight.
        variant: What a writer is told.
        order: Which columns of ``a`` to take, one after the other; empty or None: all as they are.
    """
    bias, output, x = site.input(5), site.proto.output[0], site.input(0)
    rank = site.known.rank(x) if bias or (order is not None and order.size) else None
    alone = bool(bias) and rank == 1  # only of rows are a product and a bias one operator
    if alone:
        x, rank = site.op("Reshape", [x, site.enter(np.array([1, -1]), "row")]), 2
    if order is not None and order.size:
        chosen = site.enter(order.astype(np.int64), "order")
        x = site.op("Gather", [x, chosen], axis=(rank or 1) - 1)
    permuted = site.op("Transpose", [real], perm=[1, 0])
    y = site.op("MatMul", [x, permuted], "" if bias else output)
    if variant:
        site.known.variants[y] = variant
    if bias:
        y = site.op("Add", [y, bias], "" if alone else output)
    if alone:
        site.op("Reshape", [y, site.enter(np.array([-1]), "vector")], output)


def _width(site: LoweringSite) -> int:
    bits = site.int_("bits", 4)
    if bits not in UNSIGNED:
        raise site.refusal(
            f"weights of {bits} bits",
            "their codes do not divide a byte",
            "quantize to 2, 4 or 8 bits",
        )
    return bits


def _misfit(site: LoweringSite, what: str, array: NDArray[Any], wanted: int) -> Exception:
    return site.fault(
        f"{what} does not fit N, K and block_size",
        why=f"it has {array.size} elements of shape {array.shape}; {wanted} are needed",
        fix="correct the attributes, or quantize the weight again",
    )


def _order(site: LoweringSite, columns: int, block: int) -> NDArray[np.intp] | None:
    """Returns the columns in the order of their blocks; empty where they are in it.

    None where ``g_idx`` fills blocks with other than a block's columns.
    """
    if not site.input(4):
        return np.zeros(0, np.intp)
    groups = site.array(4, "g_idx").reshape(-1)[:columns]
    plain = np.arange(columns) // block
    order = np.argsort(groups, kind="stable")
    if groups.size != columns or not np.array_equal(groups[order], plain):
        return None
    return np.zeros(0, np.intp) if np.array_equal(groups, plain) else order


def _weight(
    site: LoweringSite, bits: int, rows: int, columns: int, padded: int, order: NDArray[np.intp]
) -> str:
    """Returns the weight as ``[N, K]`` codes, their columns in an order.

    Without padding and order its bytes are taken as they are.
    """
    size = rows * padded * bits // 8
    if columns == padded and not order.size:
        same = _same_bytes(site, 1, (rows, columns), size, TensorProto.UINT8, UNSIGNED[bits])
        if same:
            return same
    data = site.packed(1, "its weight")
    if data.size != size:
        raise _misfit(site, "B", data, size)
    bytes_ = data.reshape(rows, padded * bits // 8)
    codes = unpacked(bytes_, bits, columns)
    return _codes(site, codes[:, order] if order.size else codes, bits, "weight")


def _scale(site: LoweringSite, shape: tuple[int, int]) -> str:
    count = shape[0] * shape[1]
    same = _same_bytes(site, 2, shape, count, TensorProto.FLOAT, TensorProto.FLOAT)
    if same:
        return same
    scales = site.array(2, "its scale")
    if scales.size != count:
        raise _misfit(site, "scales", scales, count)
    return site.enter(scales.reshape(shape), "scales")


def _same_bytes(
    site: LoweringSite, index: int, shape: tuple[int, int], count: int, stored: int, dtype: int
) -> str:
    """Returns a constant of the same bytes in another shape; empty where they are no such bytes.

    Args:
        site: The node.
        index: The operand.
        shape: The shape.
        count: Elements that there have to be as it is stored.
        stored: The element type that it has to have.
        dtype: The one that it gets.
    """
    source = site.known.initializers.get(site.input(index))
    if source is None or np.prod(source.dims, dtype=np.int64) != count:
        return ""
    in_bytes = source.HasField("raw_data") or source.data_location == TensorProto.EXTERNAL
    if not in_bytes or source.data_type != stored:
        return ""
    tensor = TensorProto()
    tensor.CopyFrom(source)
    tensor.name = site.known.fresh(f"{site.proto.output[0]}.{_BYTES[index]}")
    tensor.data_type = dtype
    tensor.dims[:] = shape
    site.known.add_initializer(tensor)
    return tensor.name


def _codes(site: LoweringSite, codes: NDArray[Any], bits: int, hint: str) -> str:
    name = site.known.fresh(f"{site.proto.output[0]}.{hint}")
    site.known.add_initializer(tensor_of(codes, bits, name))
    return name


def _zero_point(site: LoweringSite, bits: int, shape: tuple[int, int]) -> str:
    if not site.input(3):
        return _codes(site, np.array(1 << (bits - 1)), bits, "zero_point")
    given = site.array(3, "its zero point")
    rows, blocks = shape
    if given.dtype.kind in "iu":
        width = -(-blocks * bits // 8)
        if given.size != rows * width:
            raise _misfit(site, "zero_points", given, rows * width)
        given = site.packed(3, "its zero point")
        codes = unpacked(given.reshape(rows, width), bits, blocks)
        return _codes(site, codes, bits, "zero_point")
    real = given.astype(np.float64)
    if given.size != rows * blocks or (real != np.clip(np.rint(real), 0, (1 << bits) - 1)).any():
        raise site.refusal(
            "its zero points are no codes",
            f"float zero points of shape {given.shape}, from {real.min():g} to {real.max():g}",
            f"give whole zero points from 0 to {(1 << bits) - 1}",
        )
    return _codes(site, real.reshape(shape), bits, "zero_point")


def gather_block_quantized(site: LoweringSite) -> None:
    """``Gather(DQ(w, blocks), indices)``.

    Bytes hold packed codes with a missing zero point of 8 (4 bits) or 128 (8 bits); int4 and uint4
    data have 0. Against onnxruntime 1.31: equal.
    Source: onnxruntime docs/ContribOperators.md.
    """
    data, indices, scale, zero_point = (site.input(i) for i in range(4))
    block, width, storage = site.int_("block_size", 128), 4, site.known.element_type(site.input(0))
    if storage not in _STORED:
        width = _width(site)
        codes = site.packed(0, "its weight")
        data = _codes(site, unpacked(codes, width, codes.shape[-1] * 8 // width), width, "weight")
        zero_point = _gathered_zero_point(site, width)
    elif site.known.rank(data) is None:
        raise site.refusal("its weight is not constant", "its rank is unknown", "make it constant")
    axis = site.int_("quantize_axis", 1)
    real = site.dequantize(data, scale, zero_point, axis=axis, block_size=block)
    output, rank = site.proto.output[0], site.known.rank(data)
    if rank is not None:
        named = _STORED.get(storage, "uint8")
        said = PackedGather(named, bool(site.input(3)), axis % rank, block)
        site.known.variants[output] = said.text()
    site.op("Gather", [real, indices], output, axis=site.int_("gather_axis", 0))


def _gathered_zero_point(site: LoweringSite, bits: int) -> str:
    """Returns the zero points; where nobody states them one, or as many as there are scales.

    onnxruntime wants the latter of a DequantizeLinear, which scales of run time stay.
    """
    if not site.input(3):
        scale = site.input(2)
        shape = None if site.known.is_constant(scale) else static_shape(site.known.shape(scale))
        return _codes(site, np.full(shape or (), 1 << (bits - 1)), bits, "zero_point")
    blocks = site.array(2, "its scale").shape[-1]
    codes = unpacked(site.packed(3, "its zero point"), bits, blocks)
    return _codes(site, codes, bits, "zero_point")
