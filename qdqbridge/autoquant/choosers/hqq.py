"""Weights by half-quadratic steps."""

from __future__ import annotations

from dataclasses import dataclass

from qdqbridge.autoquant.choosers.chooser import Context
from qdqbridge.autoquant.choosers.mse import MSE
from qdqbridge.autoquant.choosers.rows import Pairs, Rows, half_quadratic
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.types import QuantParams


@dataclass(frozen=True, slots=True)
class HQQ:
    """Weights by half-quadratic steps: few large errors rather than many small ones.

    The sum of ``|error| ** power`` is made small by turns: what of the errors is worth keeping
    (a shrinkage), and the parameters that fit best without it (Badri and Shaji, "Half-Quadratic
    Quantization of Large Machine Learning Models", 2023; zero points are whole numbers here, and
    scales are fitted as well). Of tensors that only statistics are known of it takes MSE's range.

    Attributes:
        power: Of the errors.
    """

    power: float = 0.7

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        """Returns per-tensor parameters with the smallest mean square error."""
        return MSE()(stats, format, context)

    def rows(self, rows: Rows, format: Format) -> Pairs:
        """Returns scale and zero point of every row."""
        return half_quadratic(rows, format, self.power)
