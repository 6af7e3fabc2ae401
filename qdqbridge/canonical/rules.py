"""The canonical rules, in the order in which they look at a node."""

from __future__ import annotations

from qdqbridge.canonical import (
    absorb,
    bias,
    clamps,
    compositions,
    conversions,
    decomposed,
    dense,
    extents,
    folding,
    joins,
    movers,
    sharing,
    weights,
)
from qdqbridge.canonical.rule import Rule

RULES: tuple[Rule, ...] = (
    extents.shape_of_stored,
    extents.known_extents,
    decomposed.cast_scale_is_dequantize,
    folding.small_constant,
    sharing.merge_equal,
    conversions.quantized_constant,
    conversions.reinterpreted_constant,
    conversions.reinterpret_twice,
    conversions.cast_nothing,
    weights.positive_scale,
    weights.coarsest_granularity,
    weights.signed_weight,
    weights.normal_operands,
    weights.float_norm_offset,
    extents.static_reshape,
    movers.moved_constant,
    movers.dequantize_through_mover,
    clamps.clamp_before_quantize,
    movers.quantize_through_mover,
    conversions.dequantize_quantize,
    conversions.requantize_nothing,
    movers.mover_keeps_range,
    movers.requantize_after_mover,
    clamps.clamp_into_producer,
    absorb.absorb_accumulator_operands,
    dense.matmul_is_dense,
    dense.gemm_is_dense,
    bias.bias_from_add,
    bias.derived_bias,
    absorb.absorb_result,
    joins.dequantize_through_concat,
    joins.quantize_into_concat,
    absorb.absorb_both_sides,
    compositions.compose_elementwise,
)

DECOMPOSED: tuple[Rule, ...] = (decomposed.fake_quantize, *RULES)
"""With the option ``decomposed``: float arithmetic that stands for Q and DQ is read as such."""
