"""The report on a quantization as a part of a page: no script, no picture or style of its own."""

from __future__ import annotations

from qdqbridge.app.report.quantization.markup import Markup, concat_markup, name_of, tag
from qdqbridge.app.report.quantization.sections import SECTIONS, summary
from qdqbridge.autoquant.record import QuantizationRecord


def quantization_article(record: QuantizationRecord) -> Markup:
    """Returns a report as one element of HTML, styled by the page that it is put into.

    The same record gives the same text: no time, no host, no path that is not in the record.

    Args:
        record: What to show.
    """
    links = [concat_markup(tag("a", heading, href=f"#{id_}"), " ") for id_, heading, _ in SECTIONS]
    parts = [_section(id_, heading, make(record)) for id_, heading, make in SECTIONS]
    heading = tag("h1", name_of(record.model), f" quantized for {record.target}")
    nav = tag("nav", links, aria_label="Sections")
    return tag("article", heading, nav, summary(record), parts, id="report", aria_label="Report")


def _section(id_: str, heading: str, content: Markup) -> Markup:
    return concat_markup(
        "\n", tag("section", tag("h2", heading, id=f"{id_}-h"), content, id=id_,
        aria_labelledby=f"{id_}-h"),
    )  # fmt: skip
