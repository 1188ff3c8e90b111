"""Where the bytes of logs are, as sections for text and page, and as JSON: the part of a count's result that ``count --bytes``
adds."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compaction.printable import printable
from compaction.screen.text_table import Column, Line, Row, Style, table

if TYPE_CHECKING:
    from compaction.counting.byte_usage import Int64s, Usage
    from compaction.counting.count_logs import TopicCount
    from compaction.counting.key_groups import KeyGroups

#: longer keys are cut to the second number of characters
_KEY_CHARACTERS, _CUT_CHARACTERS = 48, 30
_CELL = ("records", "bytes", "stored_bytes")
#: the titles of these columns
CELL_TITLES = ("records", "keys and values", "stored")
#: the names of a topic, by their JSON fields
_TITLES = {"groups": "group of keys", "headers": "header", "producers": "producer id"}


def usage_json(usage: Usage) -> dict[str, Any]:
    """The JSON object of a log or topic."""
    from compaction.counting.byte_usage import AGES, CODECS, COMPONENTS, EMPTY_BATCHES, SIZES, STATES

    states = [
        {"state": STATES[state], "age": AGES[age] if state < EMPTY_BATCHES else None, **_cell(cell)}
        for state, ages in enumerate(usage.states) for age, cell in enumerate(ages) if cell.any()
    ]  # fmt: skip
    return {
        "file_bytes": usage.file_bytes,
        "components": dict(zip(COMPONENTS, usage.components.tolist(), strict=True)),
        "states": states,
        "value_sizes": [{"value": SIZES[size], **_cell(cell)} for size, cell in enumerate(usage.values) if cell.any()],
        "codecs": [
            {"codec": CODECS[codec], "uncompressed_bytes": plain, "stored_bytes": stored}
            for codec, (plain, stored) in enumerate(usage.codecs.tolist()) if plain
        ],
    }  # fmt: skip


def _cell(cell: Int64s) -> dict[str, int]:
    return dict(zip(_CELL, cell.tolist(), strict=True))


def topic_json(topic: TopicCount, group_by: KeyGroups | None) -> dict[str, Any]:
    """The JSON object of a topic: the sum over its logs; its groups of keys, headers and producers."""
    objects: dict[str, Any] = {}
    for names in list(_TITLES)[group_by is None :]:
        largest = []
        for entry in topic.named(names).largest:
            figures = dict(zip(_CELL, (entry.records, entry.bytes, entry.stored_bytes), strict=True))
            largest.append({**_name_json(entry.key, names, group_by), **figures})
        summary = topic.named(names)
        objects[names] = {"distinct": summary.keys, "total": summary.total._asdict(), "largest": largest}
    return {**usage_json(topic.usage), **objects}


def _name_json(name: bytes, names: str, group_by: KeyGroups | None) -> dict[str, Any]:
    if names == "producers":
        return {"producer_id": int(name)}
    if names == "groups" and group_by is not None and group_by.windowed:
        return {"window_start": window_start(name)}
    return {"header" if names == "headers" else "group": encoded(name)}


def window_start(start: bytes) -> str:
    """The start of a window (int64, ms) as a time."""
    return f"{np.datetime64(int.from_bytes(start, 'big', signed=True), 'ms')}Z"


#: a name, its numbers, and the total of which the last number is a share
SectionRow = tuple[str, Sequence[int], int]


class Section(NamedTuple):
    """A table: the titles of a name and of numbers; its rows, each with a name, as many numbers, and the total of which the
    last number is a share; a row for those that are not named, and one with the sums of the numbers, if there are such."""

    titles: tuple[str, ...]
    rows: Sequence[SectionRow]
    others: SectionRow | None = None
    total: SectionRow | None = None


def sections(name: str, usage: Mapping[str, Any]) -> Iterator[Section]:
    """Where the bytes are, of ``usage_json`` or ``topic_json``; ``name`` is that of the topic."""
    total = usage["file_bytes"]
    parts = [*((_words(part), size) for part, size in usage["components"].items() if size), (".log files", total)]
    yield Section((name, "bytes"), [(part, [size], total) for part, size in parts])
    states = [(", ".join(filter(None, (_words(row["state"]), row["age"]))), _numbers(row), total) for row in usage["states"]]
    yield _summed(("state and age", *CELL_TITLES), states, total)
    yield _summed(("value", *CELL_TITLES), [(row["value"], _numbers(row), total) for row in usage["value_sizes"]], total)
    codecs = [(row["codec"], _numbers(row), row["uncompressed_bytes"]) for row in usage["codecs"]]
    yield _summed(("codec", "uncompressed", "stored"), codecs, sum(numbers[0] for _, numbers, _ in codecs))
    for names in (names for names in _TITLES if names in usage):
        rows = [(_shown_name(row), _numbers(row), total) for row in usage[names]["largest"]]
        others = None
        if more := usage[names]["distinct"] - len(rows):
            rest = [whole - shown for whole, shown in zip(usage[names]["total"].values(), _sums(rows), strict=True)]
            others = f"and {more:,} more", rest, total
        titles = ("headers", "names and values", "stored") if names == "headers" else CELL_TITLES
        yield _summed((_TITLES[names], *titles), rows, total, others)


def _summed(titles: tuple[str, ...], rows: Sequence[SectionRow], whole: int, others: SectionRow | None = None) -> Section:
    """A section whose last number is a share of ``whole`` in the row of the total."""
    all_rows = [*rows, others] if others else rows
    return Section(titles, rows, others, ("total", _sums(all_rows), whole) if len(all_rows) > 1 else None)


def _sums(rows: Sequence[SectionRow]) -> list[int]:
    return [sum(numbers) for numbers in zip(*(numbers for _, numbers, _ in rows), strict=True)]


def usage_lines(topic: TopicCount, group_by: KeyGroups | None, style: Style) -> Iterator[Line]:
    """Where the bytes of a topic are, as text."""
    for titles, rows, others, total_row in sections(topic.topic, topic_json(topic, group_by)):
        if not rows:
            continue
        columns = [Column(titles[0], right=False), *map(Column, titles[1:]), Column("share")]
        shown = [*rows, *(row for row in (others, total_row) if row is not None)]
        lines = [[name, *(f"{number:,}" for number in numbers), *_share(numbers, total)] for name, numbers, total in shown]
        yield Line("")
        yield from table(columns, [Row([*cells, *[""] * (len(columns) - len(cells))]) for cells in lines], style)


def _numbers(row: Mapping[str, Any]) -> list[int]:
    return [number for name, number in row.items() if name == "records" or name.endswith("bytes")]


def _share(numbers: Sequence[int], total: int) -> list[str]:
    return [f"{100 * numbers[-1] / total:.1f} %"] if numbers and total else []


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown_name(row: Mapping[str, Any]) -> str:
    match next(iter(row.values())):
        case {"text": text}:
            return shown(text.encode())
        case {"base64": text}:
            return shown(b64decode(text))
        case name:
            return str(name) if name != -1 else "none"


def shown_key(key: bytes, group_by: KeyGroups | None) -> str:
    """A key on one line; that of a windowed key with the start of its window, if keys are grouped by windows."""
    found = None if group_by is None else group_by.windowed_key(key)
    return shown(key) if found is None else f"{shown(found[0])} @ {window_start(found[1])}"


def shown(key: bytes) -> str:
    """A key on one line: text, or hexadecimal if it is not UTF-8."""
    try:
        text = printable(key.decode())
    except UnicodeDecodeError:
        text = f"0x{key.hex()}"
    return text if len(text) <= _KEY_CHARACTERS else f"{text[:_CUT_CHARACTERS]}… ({len(key):,} bytes)"


def encoded(key: bytes) -> dict[str, str]:
    """A key in JSON."""
    try:
        return {"text": key.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(key).decode()}
