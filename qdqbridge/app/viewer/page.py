"""One HTML document that needs nothing else: no server, no network."""

from __future__ import annotations

import json
from importlib.resources import files

from qdqbridge.app.report.plots import Markup, tag
from qdqbridge.app.viewer.document import Document
from qdqbridge.control_characters import all_visible

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_REPORT = "<!-- report -->"
"""Where in the body a report is put."""


def page(document: Document) -> str:
    """Returns the page; the same document gives the same text.

    Args:
        document: What it shows.
    """
    assets = files("qdqbridge.app.viewer") / "assets"
    style, script, body, licences = (
        (assets / name).read_text("utf-8")
        for name in ("page.css", "page.js", "body.html", "LICENSES.txt")
    )
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        tag("title", f"{document.title} - qdqbridge"),
        tag("style", Markup(style)),
    )
    data = f'<script type="application/json" id="model">{_inert(document)}</script>'
    code = f"<script>{script}</script>"
    notice = f"<!--\nLibraries in the script below:\n\n{licences.replace('--', '- -')}-->"
    shown = "" if document.report is None else str(document.report)
    content = Markup(f"{body.replace(_REPORT, shown, 1)}{data}\n{notice}\n{code}")
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', content), lang='en')}\n"


def _inert(document: Document) -> str:
    """Returns JSON that ends no script element and opens no comment, whatever a name holds."""
    text = json.dumps(
        all_visible(document.json()), ensure_ascii=True, separators=(",", ":"), allow_nan=False
    )
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
