"""What the functions of the Python API return: frozen values that are shown, and read as tables, in the same way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from compaction.errors import UsageError
from compaction.printable import printable_json
from compaction.screen.text_table import Line, Screen, Style, wrapped

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Result:
    """A result: ``str()`` is what the terminal shows, ``to_dict()`` the JSON document, ``to_arrow()`` a row for each log."""

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """The result as lines of text.

        :param all_rows: show every log, however many there are
        :param details: show below each log what was removed, and why
        """
        raise NotImplementedError

    def print_on(self, screen: Screen) -> None:
        """Print it as the screen says: everything, the largest effects, or the last line."""
        if screen.only_summary:
            screen.print(wrapped(self.summary(), screen.style))
        else:
            screen.print(self.lines(screen.style, all_rows=screen.all_rows, details=screen.details))

    def summary(self) -> str:
        """The last line, on which everything is."""
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
            import pandas  # noqa: F401 - pyarrow imports it, too, and has another error
        except ModuleNotFoundError:
            raise UsageError("to_pandas() needs pandas, which is not installed", hint="install it, or use to_arrow()") from None
        return self.to_arrow().to_pandas()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        return "\n".join(line.text for line in self.lines())


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, tuple)) else value
