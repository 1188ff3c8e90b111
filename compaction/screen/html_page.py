"""A result as one self-contained HTML page: opens from disk, loads nothing, and cannot reach a page that shows it in a frame.

The page is the frame of all pages (``assets/frame.html``), the script of the kind of result, and the result's JSON document,
which the script reads. Its charts are drawn for all logs or for one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from compaction.printable import printable_json, printable_lines

_FRAME = '<iframe srcdoc="{}" sandbox="allow-scripts" width="100%" height="900" style="border:0"></iframe>'


def html_page(script: str, document: Mapping[str, Any], text: str, without: Collection[str] = ()) -> str:
    """
    :param script: its name in ``assets``
    :param document: the JSON document; ``without`` are names of fields that the script does not read
    :param text: what a browser without scripts shows
    """
    scripts = "\n".join(_asset(name) for name in ("frame.js", "charts.js", f"{script}.js"))
    page = _asset("frame.html").replace("<!--STYLE-->", _asset("page.css")).replace("<!--SCRIPT-->", scripts)
    # the text may contain any characters, and so may the data
    head, rest = page.split("<!--TEXT-->")
    between, tail = rest.split("<!--DATA-->")
    return "".join([head, escape(text), between, _embedded(_shown(document, without)), tail])


def in_frame(page: str) -> str:
    """The page in a cell of a notebook."""
    return _FRAME.format(escape(page))


def _shown(value: Any, without: Collection[str]) -> Any:
    """A JSON value for a page: texts without control characters."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, Mapping):
        return {name: _shown(each, without) for name, each in value.items() if name not in without}
    return [_shown(each, without) for each in value] if isinstance(value, (list, tuple)) else value


def _embedded(values: Any) -> str:
    """JSON that cannot end the script element which contains it."""
    text = printable_json(json.dumps(values, separators=(",", ":"), ensure_ascii=False))
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("compaction.screen").joinpath("assets", name).read_text("utf-8")
