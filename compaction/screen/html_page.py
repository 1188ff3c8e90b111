"""Puts a self-contained HTML page together that opens from disk and loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from compaction.printable import printable_json

#: before the scripts of a page: formats of numbers and text, charts
_SHARED = ("format.js", "charts.js")


def html_page(package: str, title: str, data: Mapping[str, Any]) -> str:
    """The page of a package: ``assets/page.html`` and ``assets/page.js`` in it, in the frame, style and functions of all pages.

    :param data: for the script
    """
    script = "\n".join([*(_asset("compaction.screen", name) for name in _SHARED), _asset(package, "page.js")])
    parts = {
        "TITLE": title,
        "STYLE": _asset("compaction.screen", "page.css"),
        "BODY": _asset(package, "page.html").rstrip(),
        "DATA": _embedded(data),
        "SCRIPT": script,
    }
    page = _asset("compaction.screen", "frame.html")
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text, 1)
    return page


def _embedded(values: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element which contains it."""
    text = printable_json(json.dumps(values, separators=(",", ":"), ensure_ascii=False))
    return text.replace("<", "\\u003c")


def _asset(package: str, name: str) -> str:
    return files(package).joinpath("assets", name).read_text("utf-8")
