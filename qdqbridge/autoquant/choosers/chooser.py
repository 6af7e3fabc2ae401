"""What a chooser is told, and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.types import QuantParams


@dataclass(frozen=True, slots=True)
class Context:
    """Where a tensor stands.

    Attributes:
        name: The tensor's name in the float model.
        producer: The operator that makes it; empty for a graph input.
        readers: The operators that read it.
        chosen: The parameters of the tensors before it, by name: choosers run in topological
            order.
        samples: Returns the tensor itself, one array for each batch of samples, as it arrives
            behind the tensors and weights before it, rounded as was chosen; None where there are
            no samples (a profile alone, a constant, choosers that are tried).
        interval: What no result of its operator lies outside, as [0, 1] of a Softmax; None where
            nothing is known.
    """

    name: str = ""
    producer: str = ""
    readers: tuple[str, ...] = ()
    chosen: Mapping[str, QuantParams] = field(default_factory=dict[str, QuantParams])
    samples: Callable[[], Sequence[NDArray[Any]]] | None = None
    interval: tuple[float, float] | None = None


class Chooser(Protocol):
    """Anything that chooses parameters."""

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        """Returns the parameters of a tensor."""
        ...


@dataclass(frozen=True, slots=True)
class RangeChooser(ABC):
    """A chooser that chooses a range of real numbers; its format makes parameters of it.

    Attributes:
        costly: It takes long, and says the same of the same statistics each time: what it says of
            weights is kept.
    """

    costly: ClassVar[bool] = False

    @abstractmethod
    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the smallest and largest number that codes shall stand for."""

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        """Returns parameters that cover :meth:`range`, as far as numbers can lie there."""
        if stats.minimum > stats.maximum:
            return format.per_tensor().params(0, 0)
        low, high = self.range(stats, format)
        if context.interval is not None:
            low, high = max(low, context.interval[0]), min(high, context.interval[1])
        return format.per_tensor().params(low, high)
