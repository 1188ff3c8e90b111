"""Names, errors and texts: parsed as Kafka parses them, one line, escaped for terminals, reports and parsers."""

from __future__ import annotations

import io
import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import (
    CompactionError,
    ConfigError,
    CorruptLogError,
    LogError,
    StorageError,
    UnforeseenError,
    UnsupportedLogError,
    as_log_error,
)  # fmt: skip
from compaction.names import (
    LOG,
    SNAPSHOT,
    SWAP,
    SegmentFile,
    TopicPartition,
    is_log_dir_file,
    is_log_file,
    is_of_log_dir,
    parse_partition_dir,
    parse_segment_file,
    segment_file,
)  # fmt: skip
from compaction.printable import TerminalOutput, printable, printable_json, printable_lines

HEX = "0123456789abcdef0123456789abcdef"


PARTITION_DIRS = {
    "orders-0": TopicPartition("orders", 0), "a-b.c_d-12": TopicPartition("a-b.c_d", 12),
    f"{'t' * 249}-0": TopicPartition("t" * 249, 0), "orders-0.abc-1": TopicPartition("orders-0.abc", 1),
    **dict.fromkeys((
        f"{'t' * 250}-0", f"orders-0.{HEX}-delete", f"orders-0.{HEX}-future", f"orders-0.{HEX}-stray", "orders", "orders-",
        "orders-x", ".-0", "..-0", "or ders-0",
    )),
}  # fmt: skip
SEGMENT_FILES = {
    "00000000000000000007.log": SegmentFile(7, LOG, ""), "00000000000000000007.log.swap": SegmentFile(7, LOG, SWAP),
    "00000000000000000007.snapshot.deleted": SegmentFile(7, SNAPSHOT, ".deleted"),
    "00000000000000000007.log.clean.a-1": SegmentFile(7, LOG, ".clean.a-1"),
    **dict.fromkeys(("7.log", "00000000000000000007.logs", "00000000000000000007.checkpoint", "00000000000000000007")),
}  # fmt: skip
LOADED = (
    "00000000000000000007.log", "00000000000000000007.timeindex", "00000000000000000007.snapshot",
    "00000000000000000007-0000000003.checkpoint", "leader-epoch-checkpoint", "partition.metadata", "quorum-state",
)  # fmt: skip
NOT_LOADED = (
    "00000000000000000007.log.orig", "00000000000000000007.log.deleted", "00000000000000000007.log~",
    ".00000000000000000007.log.swp", "leader-epoch-checkpoint.tmp", "core",
)  # fmt: skip


def test_names_of_partition_directories_and_segment_files_are_parsed() -> None:
    for name, partition in PARTITION_DIRS.items():
        assert parse_partition_dir(name) == partition
        assert partition is None or str(partition) == name
    for name, file in SEGMENT_FILES.items():
        assert parse_segment_file(name) == file
        assert file is None or segment_file(*file) == name


def test_a_broker_loads_files_of_its_own_names_only() -> None:
    assert [name for name in (*LOADED, *NOT_LOADED) if is_log_file(name)] == [*LOADED]


def test_what_lies_beside_partition_directories_is_a_brokers_or_somebody_elses() -> None:
    copied = ["meta.properties", ".kafka_cleanshutdown", "bootstrap.checkpoint"]
    others = [".lock", "cleaner-offset-checkpoint", "orders-0", "__cluster_metadata-0", f"orders-0.{HEX}-stray"]
    assert [name for name in (*copied, *others, "keys.txt") if is_log_dir_file(name)] == copied
    assert [name for name in (*copied, *others, "keys.txt", "lost+found", "x.hprof") if is_of_log_dir(name)] == copied + others


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StorageError("no space"), "no space"),
        (StorageError("no space", path="/a"), "/a: no space"),
        (CorruptLogError("bad CRC", path="/a", position=61, hint="restore it"), "/a at byte 61: bad CRC; restore it"),
        (CorruptLogError("bad CRC", position=61), "bad CRC"),
        (ConfigError("line one\nline two", path="s"), "s: line one line two"),
        (
            CorruptLogError("entry '\x1b[2J\u202e'", path=os.fsdecode(b"/logs/\xff\x1b\nx"), hint="remove it"),
            "/logs/\\udcff\\x1b x: entry '\\x1b[2J\\u202e'; remove it",
        ),
    ],
)
def test_an_error_is_one_printable_line_with_path_position_and_hint(error: CompactionError, text: str) -> None:
    """Also after pickling."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert [(type(each), str(each), vars(each)) for each in (error, copy)] == [(type(error), text, vars(error))] * 2


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (StorageError("no space", path="/own"), StorageError, "/own: no space"),
        (MemoryError(), UnsupportedLogError, "/log: does not fit into memory"),
        (ConfigError("bad value", path="s"), UnforeseenError, "/log: unforeseen failure (s: bad value)"),
        (ZeroDivisionError("by zero"), UnforeseenError, "/log: unforeseen failure (ZeroDivisionError: by zero)"),
    ],
)
def test_any_exception_becomes_an_error_of_the_log(error: Exception, kind: type[LogError], text: str) -> None:
    found = as_log_error(error, "/log")
    assert type(found) is kind
    assert str(found).startswith(text)


#: terminal escapes, bidirectional controls, and a byte that is not UTF-8
ESCAPES = {
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "\x9b2J": "\\x9b2J",
    "\x7f": "\\x7f",
    "\r": "\\x0d",
    "a\u202eb": "a\\u202eb",
    "\u2066": "\\u2066",
    os.fsdecode(b"\xff"): "\\udcff",
    "é\U0001f600漢 \\": "é\U0001f600漢 \\",
}


def test_control_characters_are_escaped_and_line_feeds_and_tabs_are_kept_in_lines() -> None:
    for text, shown in ESCAPES.items():
        assert printable(text) == printable_lines(text) == printable(shown) == shown
    assert (printable("a\tb\n"), printable_lines("a\tb\n")) == ("a\\x09b\\x0a", "a\tb\n")


@given(st.text(st.characters()))
def test_no_text_keeps_a_control_character(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(character >= " " and not "\x7f" <= character <= "\x9f" for character in shown)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_strings_keep_their_values(text: str) -> None:
    document = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(document) == {text: [text]}
    assert printable(document) == document


def test_json_has_no_unpaired_surrogates() -> None:
    document = printable_json(json.dumps(os.fsdecode(b"/logs/\xff"), ensure_ascii=False))
    assert document.encode() == rb'"/logs/\\udcff"'
    assert json.loads(document) == "/logs/\\udcff"


@given(st.binary(max_size=30), st.integers(1, 4))
def test_chunks_of_any_size_give_the_same_output(data: bytes, size: int) -> None:
    expected, chunked = io.BytesIO(), io.BytesIO()
    TerminalOutput(expected).write(data + b"\n")
    output = TerminalOutput(chunked)
    for start in range(0, len(data) + 1, size):
        output.write((data + b"\n")[start : start + size])
    assert chunked.getvalue() == expected.getvalue()
    assert b"\x1b" not in chunked.getvalue()
