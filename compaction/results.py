"""Results of the functions of the Python API: frozen values with a common form as text, as tables and as pages.

A page is one self-contained HTML file: it opens from disk, loads nothing, and cannot reach a page that shows it in a frame. It
is the frame of all pages (``screen/assets/frame.html``), the script of the kind of result, and the result's JSON document,
which the script reads. Its charts are drawn for all logs or for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar

from compaction.errors import UsageError
from compaction.files.text_files import write_text
from compaction.printable import printable_json, printable_lines
from compaction.screen.text_table import Line, Screen, Style, wrapped

if TYPE_CHECKING:
    import os

    import pandas as pd
    import pyarrow as pa

_FRAME = '<iframe srcdoc="{}" sandbox="allow-scripts" width="100%" height="900" style="border:0"></iframe>'


class Result:
    """A result: ``str()`` is the text of the terminal, ``to_dict()`` the JSON document, ``to_arrow()`` a row for each log."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        raise NotImplementedError

    @property
    def is_private(self) -> bool:
        """Whether only the user may read the files of the result."""
        return False

    def lines(self, style: Style | None = None) -> Iterable[Line]:
        """The result as lines of text."""
        raise NotImplementedError

    def errors(self) -> Iterable[str]:
        """The lines of standard error: what has failed, and why."""
        return ()

    def print_on(self, screen: Screen) -> None:
        """Print it by the options of the screen: everything, the largest effects, or the last line."""
        if screen.only_summary:
            screen.print(wrapped(self.summary(), screen.style))
        else:
            screen.print(self.lines(screen.style))

    def summary(self) -> str:
        """The last line."""
        return list(self.lines())[-1].text

    def to_dict(self) -> dict[str, Any]:
        """The JSON document as a dictionary."""
        raise NotImplementedError

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The objects of the document that are rows of the table: its logs."""
        rows: Sequence[Mapping[str, Any]] = self.to_dict()["logs"]
        return rows

    def to_json(self) -> str:
        """The JSON document, indented, with a final newline."""
        return printable_json(json.dumps(self.to_dict(), indent=2, ensure_ascii=False)) + "\n"

    def to_arrow(self) -> pa.Table:
        """A row for each log, a column for each field; lists and objects are columns of JSON text."""
        import pyarrow as pa

        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [_cell(row.get(name)) for row in rows] for name in names})

    def to_pandas(self) -> pd.DataFrame:
        """The same as a data frame.

        :raises UsageError: pandas is not installed
        """
        try:
            import pandas  # noqa: F401 - pyarrow imports it, too, with another error
        except ModuleNotFoundError:
            raise UsageError("to_pandas() needs pandas, which is not installed", hint="install it, or use to_arrow()") from None
        return self.to_arrow().to_pandas()

    def _repr_html_(self) -> str:
        """The text for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The text for IPython."""
        printer.text(str(self))

    def __str__(self) -> str:
        return "\n".join(line.text for line in self.lines())


class PageResult(Result):
    """A result that is also a page with charts, which notebooks show."""

    #: the script of its page
    page: ClassVar[str]
    #: fields of the document that the page does not show
    not_on_page: ClassVar[frozenset[str]] = frozenset()

    def page_document(self) -> Mapping[str, Any]:
        """The document of the page: ``to_dict()``, without what would make the page of very many logs large."""
        return self.to_dict()

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A self-contained HTML page, which opens from disk and loads nothing.

        :param path: a file to write it to, too
        :raises StorageError: the file cannot be written
        """
        scripts = "\n".join(_asset(name) for name in ("frame.js", "charts.js", f"{self.page}.js"))
        frame = _asset("frame.html").replace("<!--STYLE-->", _asset("page.css")).replace("<!--SCRIPT-->", scripts)
        # the text may contain any characters, and so may the data
        head, rest = frame.split("<!--TEXT-->")
        between, tail = rest.split("<!--DATA-->")
        shown = _shown(self.page_document(), self.not_on_page)
        # no text can end the script element that contains the document
        document = printable_json(json.dumps(shown, separators=(",", ":"), ensure_ascii=False)).replace("<", "\\u003c")
        page = "".join([head, escape(str(self)), between, document, tail])
        if path is not None:
            write_text(str(path), page)
        return page

    def _repr_html_(self) -> str:
        return _FRAME.format(escape(self.to_html()))


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, tuple)) else value


def _shown(value: Any, without: frozenset[str]) -> Any:
    """A JSON value for a page: texts without control characters."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, Mapping):
        return {name: _shown(each, without) for name, each in value.items() if name not in without}
    return [_shown(each, without) for each in value] if isinstance(value, (list, tuple)) else value


def _asset(name: str) -> str:
    return files("compaction.screen").joinpath("assets", name).read_text("utf-8")
