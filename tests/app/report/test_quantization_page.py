"""The report on a quantization: its structure, its numbers, and what it must not hold."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from qdqbridge.app.report.articles import quantization_article
from qdqbridge.app.report.plots import (
    clean,
    concat_markup,
    decibels,
    number,
    optional,
    percent,
    tag,
)
from qdqbridge.autoquant.record import (
    AccumulatorRow,
    Culprit,
    FallbackRow,
    FloatNode,
    LayerError,
    Output,
    QuantizationRecord,
    RepairRow,
    TensorReport,
    WeightError,
)

VOID = {"meta", "br"}
EVIL = "</title><script>alert('1')</script>&\"\x00\ud800 \u202e"


class Page(HTMLParser):
    """Elements, attributes, tables and text of a page; fails where tags do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words = [], [], []
        self.ids, self.tables, self.attributes = [], {}, []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            assert tag == "td" or dict(attrs)["scope"] in ("col", "row")
            self.rows[-1].append("")
        elif tag == "caption":
            self.caption = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[self.caption] = self.rows

    def handle_data(self, data):
        self.words.append(data)
        if "caption" in self.open:
            self.caption += data
        elif {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data


def record(count=3):
    names = [f"tensor{i}" for i in range(count)]
    return QuantizationRecord(
        model="net.onnx",
        float_digest="a" * 64,
        digest="b" * 64,
        target="ort",
        data="x.npz",
        samples=128,
        measured=32,
        versions={"numpy": "2.4"},
        choosers={"activations": "MSE()", "weights": "MinMax()"},
        outputs=(Output("logits", 36.44), Output("boxes", math.inf)),
        top1=0.9875,
        layers=tuple(LayerError(n, "Conv", 30.0 + i, 40.0 + i) for i, n in enumerate(names)),
        tensors=tuple(
            TensorReport(n, "Conv", "uint8", 0.5, 3, -1.5, 126.0, "chosen", -2.0, 130.0, 1000, 250,
                   0.0125, -2.0, 44.0, (1, 20, 300))
            for n in names
        ),
        weights=tuple(WeightError(n, "Conv", f"{n}.w", "int8", 8, 45.67, 0.5) for n in names),
        accumulators=tuple(
            AccumulatorRow(n, "Conv", 8, 27, 21, 20, 19, 17, (-1234, 5678), 12, 104, 5, 4, 3, 1.25,
                           1)
            for n in names
        ),
        floats=(FloatNode("soft", "Softmax", "target ort leaves Softmax in float"),),
        culprits=(Culprit("conv7", "Conv", 33.25), Culprit("conv3", "Conv", 41.5)),
        fallback=(FallbackRow("conv7", "int16", 1, 33.3, "costs most"),),
        goal="at least 40 dB",
        repairs=(RepairRow("equalize", True, "3 pairs", 31.25, 38.5),
                 RepairRow("smooth", False, "-")),
        notes=("something to know",),
    )  # fmt: skip


def text_of(made):
    return str(quantization_article(made))


def test_the_page_is_well_formed_and_needs_nothing_else():
    text = text_of(record())
    page = Page(text)
    assert {"script", "link", "img", "iframe", "object", "base"} & set(page.tags) == set()
    assert not [a for a in page.attributes if a[1].startswith("on") or a[1] in ("src", "style")]
    links = [value for _, key, value in page.attributes if key in ("href", "xlink:href")]
    assert links and all(link.startswith("#") and link[1:] in page.ids for link in links)
    assert (
        "url(" not in text
        and "@import" not in text
        and "http" not in re.sub("http-equiv", "", text)
    )
    assert len(page.ids) == len(set(page.ids))


def test_pictures_are_described_and_tables_have_captions():
    page = Page(text_of(record()))
    assert page.tags.count("svg") == 1 + 3
    roles = [value for tag_, key, value in page.attributes if tag_ == "svg" and key == "role"]
    assert roles == ["img"] * 4
    labels = [v for t, key, v in page.attributes if t == "svg" and key == "aria-labelledby"]
    assert all(part in page.ids for label in labels for part in label.split())
    assert page.tags.count("caption") == page.tags.count("table") == len(page.tables)
    for rows in page.tables.values():
        assert len({len(row) for row in rows}) == 1


def test_numbers_are_those_of_the_record():
    made = record()
    page = Page(text_of(made))
    text = "".join(page.words)
    for part in ("36.4 dB", "98.75%", "128 samples", "32 samples", "MSE()", "something to know"):
        assert part in text
    assert "a" * 64 in text and "b" * 64 in text and "at least 40 dB" in text
    layers = page.tables["Signal to quantization noise"][1:]
    assert layers == [
        [
            str(i + 1),
            layer.name,
            "Conv",
            f"{layer.accumulated_db:.1f} dB",
            f"{layer.local_db:.1f} dB",
        ]
        for i, layer in enumerate(made.layers)
    ]
    bits = page.tables["Accumulator bits"][1]
    assert bits == [
        "tensor0",
        "Conv",
        "8",
        "1",
        "27",
        "21",
        "20",
        "19",
        "17",
        "12",
        "-1234",
        "5678",
    ]
    pairs = page.tables["Sums of two products in 16 bits"][1]
    assert pairs == ["tensor0", "Conv", "104", "5", "4", "3", "1.2500"]
    weights = page.tables["Weights against their float values"][1]
    assert weights == ["tensor0", "Conv", "tensor0.w", "int8", "8", "45.7 dB", "0.5"]
    repairs = page.tables["Repair steps"][1:]
    assert repairs[0] == ["equalize", "kept", "31.2 dB", "38.5 dB", "+7.25 dB", "3 pairs"]
    assert repairs[1] == ["smooth", "not kept", "–", "–", "–", "-"]
    costs = page.tables["What layers cost, the worst first"][1:]
    assert costs == [["conv7", "Conv", "33.2 dB"], ["conv3", "Conv", "41.5 dB"]]
    assert page.tables["Layers taken back"][1] == ["conv7", "int16", "1", "33.3 dB", "costs most"]
    assert page.tables["Nodes that compute in float"][1][2] == "target ort leaves Softmax in float"
    for part in ("scale 0.5, zero point 3", "-1.5 to 126", "1.25% clipped", "25.00% zeros"):
        assert part in text


def test_histograms_mark_the_range_of_the_codes():
    made = record(1)
    text = text_of(made)
    # The axis goes from -2 (the first bin) to 130 (the last); codes stand for -1.5 to 126.
    low, high = 0.5 / 132 * 480, 128 / 132 * 480
    assert f'class="range" x="{low:.1f}" width="{high - low:.1f}"' in text
    assert f"M{low:.1f} 0V96M{high:.1f} 0V96" in text
    (outline,) = re.findall(r'<path d="(M[^"]*)" class="bars">', text)
    heights = [float(v) for v in re.findall(r"V([\d.]+)H", outline)]
    assert heights == sorted(heights, reverse=True) and len(heights) == 3
    share = (94 - heights[0]) / (94 - heights[2])
    # The page has tenths of a pixel, here and below.
    assert share == pytest.approx(math.log1p(1) / math.log1p(300), abs=2e-3)


def test_points_of_the_plot_lie_where_the_numbers_say():
    layers = (LayerError("a", "Conv", 10.0, 30.0), LayerError("b", "Conv", math.nan, math.inf))
    text = text_of(replace(record(), layers=layers))
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)
    squares = re.findall(
        r'<rect width="6" height="6" class="mark local" x="[\d.]+" y="([\d.]+)"', text
    )
    assert len(circles) == 1 and len(squares) == 2  # places in tenths of a pixel
    top, bottom = 14, 300 - 36  # 40 dB and 0 dB
    assert float(circles[0][1]) == pytest.approx(bottom - (bottom - top) * 10 / 40, abs=0.1)
    assert float(squares[0]) + 3 == pytest.approx(bottom - (bottom - top) * 30 / 40, abs=0.1)
    assert float(squares[1]) + 3 == pytest.approx(top, abs=0.1)


def called(name):
    """A record where everything that comes out of files is called ``name``."""
    made = record(1)
    layer, tensor = made.layers[0], made.tensors[0]
    return replace(
        made,
        model=name,
        target=name,
        data=name,
        notes=(name,),
        versions={name: name},
        choosers={name: name},
        outputs=(Output(name, 1.0),),
        layers=(replace(layer, name=name, operator=name),),
        tensors=(replace(tensor, name=name, operator=name, decided=name, storage=name),),
        weights=(replace(made.weights[0], node=name, name=name),),
        accumulators=(replace(made.accumulators[0], node=name),),
        floats=(FloatNode(name, name, name),),
        culprits=(Culprit(name, name, 1.0),),
        fallback=(FallbackRow(name, name, 1, 1.0, name),),
        repairs=(RepairRow(name, True, name),),
        goal=name,
    )


def test_names_out_of_files_are_text():
    text = text_of(called(EVIL))
    text.encode("utf-8")
    page = Page(text)
    assert "script" not in page.tags and "\x00" not in text
    assert page.tags == Page(text_of(called("plain"))).tags
    assert "".join(page.words).count("<script>alert('1')</script>") >= 20


def test_the_same_record_gives_the_same_bytes():
    assert text_of(record()) == text_of(record())


def test_an_empty_record_says_what_is_missing():
    text = text_of(QuantizationRecord("m", "", "", "ort", "profile.json", 5))
    page = Page(text)
    assert "svg" not in page.tags and page.tables == {}
    assert "No layer was compared" in text and "No repair step was tried" in text


def test_a_tensor_that_is_not_stored_has_no_range():
    made = record(1)
    tensor = replace(made.tensors[0], scale=None, storage="", bins=(5,))
    text = text_of(replace(made, tensors=(tensor,)))
    assert 'class="range"' not in text and "not stored" in text


def test_a_thousand_layers_are_folded_away_and_bounded():
    made = record(1000)
    tensors = tuple(replace(t, bins=tuple(range(1, 65))) for t in made.tensors)
    text = text_of(replace(made, tensors=tensors))
    page = Page(text)
    assert len(text.encode()) < 3_000_000
    assert page.tags.count("details") == 5
    assert "circle" not in page.tags
    worst = page.tables["Layers that add most error themselves"]
    assert [row[0] for row in worst[1:]] == [str(i) for i in range(1, 11)]
    assert len(page.tables["Accumulator bits"]) == 1001
    outside = re.sub("<details>.*?</details>", "", text, flags=re.S)
    assert len(outside) < 60_000


def test_numbers_as_text():
    assert [decibels(v) for v in (1.25, math.inf, -math.inf, math.nan, None)] == [
        "1.2 dB", "exact", "no signal left", "–", "–",
    ]  # fmt: skip
    assert [percent(v) for v in (0, 1e-6, 0.5, None)] == ["0.00%", "under 0.01%", "50.00%", "–"]
    assert [number(v) for v in (1 / 3, math.inf, -math.inf, math.nan)] == ["0.3333", "∞", "-∞", "–"]
    assert optional(None) == "–" and optional(3) == "3"


def test_markup_escapes_what_is_not_markup():
    assert str(tag("p", "<b>", tag("i", "x"), None, 3, class_='a"b')) == (
        '<p class="a&quot;b">&lt;b&gt;<i>x</i>3</p>'
    )
    assert str(concat_markup(["a", "<"], None)) == "a&lt;"
    assert str(tag("br")) == "<br>"
    assert clean("\ud800\x07") == "\ufffd\\x07"
