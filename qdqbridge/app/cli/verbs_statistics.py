"""The verb ``accumulators``: what the products of a quantized model ask of hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qdqbridge.app.cli import arrays, output
from qdqbridge.app.cli.parameters import Json, Model
from qdqbridge.app.cli.reading import AS_IT_IS, Reading
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedModelError

if TYPE_CHECKING:
    from qdqbridge.autoquant.hardware.accumulators import ProductAccumulator
    from qdqbridge.autoquant.profiling.samples import Sample, Samples
    from qdqbridge.autoquant.record import AccumulatorRow

Data = Annotated[
    Path | None,
    Parameter(help="An .npz file with one array per model input; adds observed ranges and sums."),
]
Limit = Annotated[
    int, Parameter(help="The largest number of samples to run, spread evenly over the data.")
]
Pairs = Annotated[
    Literal["channels-last", "channels-first"],
    Parameter(help="The order in which a convolution kernel pairs its terms."),
]
MaxBits = Annotated[
    int | None, Parameter(help="Exit with 1 if any input can make an accumulator need more bits.")
]


_RUNS = 256
"""Runs of a body that are looked at, spread evenly over all that samples make."""


def accumulators(
    model: Model,
    /,
    *,
    data: Data = None,
    samples: Limit = 64,
    pairs: Pairs = "channels-last",
    max_bits: MaxBits = None,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """Show how many accumulator bits integer products need, and where 16-bit pairs can saturate.

    Exits with 1 if --max-bits is exceeded.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET
    from qdqbridge.autoquant.hardware.accumulators import accumulators as found_in
    from qdqbridge.autoquant.hardware.products import observe
    from qdqbridge.autoquant.profiling.control_flow import has_bodies, runs_of_bodies
    from qdqbridge.onnx_io.control_flow.bodies import parts

    graph = reading.read(model)
    seen, count = None, 0
    runs: Mapping[str, Sequence[Sample]] = {}
    if data is not None:
        feeds = arrays.read_inputs(data, graph.inputs)
        pieces, count = _pieces(graph, feeds, samples)
        with output.progress("batches") as progress:
            seen = observe(graph, pieces, progress=progress)
        if has_bodies(graph):
            runs = runs_of_bodies(graph, list(pieces), _RUNS)
    found = found_in(graph, seen=seen, order=pairs)
    for body in parts(graph):
        given = runs.get(body.place)
        inside = None if given is None else observe(body.graph, given)
        rows = found_in(body.graph, seen=inside, order=pairs)
        found += [replace(row, node=body.named(row.node)) for row in rows]
    if not found:
        raise UnsupportedModelError(
            "the model has no product of integers",
            where=str(model),
            why="no Conv, ConvTranspose, Gemm or MatMul has two quantized operands",
            fix="give a quantized model; 'qdqbridge explain' says why nodes stayed float",
        )
    if json:
        rows = [_json(each) for each in found]
        output.show_json({"samples": count, "pairs": pairs, "products": rows})
    else:
        output.show(*_render_accumulators([each.row() for each in found], pairs))
    reach = max(int(each.bits.max()) for each in found)
    return NOT_MET if max_bits is not None and reach > max_bits else DONE


def _pieces(
    graph: Graph, feeds: Mapping[str, NDArray[Any]], limit: int
) -> tuple[Samples | Sequence[Sample], int]:
    """Returns what to run and how many examples that is; all at once where they cannot be cut."""
    from qdqbridge.autoquant.profiling.samples import Samples
    from qdqbridge.autoquant.search.errors import spread

    if len({array.shape[:1] for array in feeds.values()}) > 1:
        return [feeds], 1
    cut = spread(Samples.of(graph.inputs, feeds), limit)
    return cut, len(cut) * cut.step


def _json(found: ProductAccumulator) -> dict[str, Any]:
    low, high = found.observed or (None, None)
    return {
        "node": found.node,
        "operator": found.operator,
        "channels": len(found.bits),
        "terms": found.terms,
        "naive_bits": found.naive_bits,
        "headroom": found.headroom,
        "bits": found.bits.tolist(),
        "smallest": found.smallest.tolist(),
        "largest": found.largest.tolist(),
        "calibrated_bits": _listed(found.calibrated_bits),
        "observed_bits": _listed(found.observed_bits),
        "observed_smallest": _listed(low),
        "observed_largest": _listed(high),
        "pairs": found.pairs,
        "saturating_pairs": found.saturating_pairs.tolist(),
        "calibrated_saturating_pairs": _listed(found.calibrated_pairs),
        "scale_factor": found.remedy.tolist(),
        "dead_channels": list(found.dead_channels),
    }


def _listed(array: Any) -> list[int] | None:
    return None if array is None else array.tolist()


def _render_accumulators(rows: Sequence[AccumulatorRow], order: str) -> list[RenderableType]:
    bits = _statistics_table("accumulator bits, worst channel", _BITS)
    for row in rows:
        low, high = row.observed or (None, None)
        bits.add_row(
            *_accumulator_row_cells(row),
            *map(str, (row.channels, row.dead_channels, row.terms, row.naive_bits, row.bits)),
            *map(_text, (row.calibrated_bits, row.observed_bits)),
            Text(str(row.headroom), style="bold red" if row.headroom < 0 else ""),
            *map(_text, (low, high)),
        )
    parts: list[RenderableType] = [bits]
    paired = [row for row in rows if row.pairs]
    if paired:
        parts.append(_pairs(paired, order))
    return parts


_BITS = (
    "channels", "dead", "terms", "types", "any input", "in range", "observed", "headroom",
    "smallest", "largest",
)  # fmt: skip
_PAIRS = ("pairs", "can saturate", "can, in range", "channels", "scale factor")


def _pairs(rows: Sequence[AccumulatorRow], order: str) -> Table:
    table = _statistics_table(
        f"sums of two products in 16 bits (vpmaddubsw), terms {order}", _PAIRS
    )
    for row in rows:
        factor = f"{row.remedy:.4f}" if row.remedy > 1 else "-"
        numbers = (row.pairs, row.saturating_pairs, row.calibrated_pairs, row.saturating_channels)
        table.add_row(*_accumulator_row_cells(row), *map(_text, numbers), factor)
    return table


def _statistics_table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("node", overflow="fold")
    table.add_column("operator", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _accumulator_row_cells(row: AccumulatorRow) -> tuple[Text, Text]:
    return Text(row.node), Text(row.operator)


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)
