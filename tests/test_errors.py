"""Errors are one line, survive pickling, and can be assigned to the log that was being processed."""

from __future__ import annotations

import pickle

import pytest

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


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StorageError("no space"), "no space"),
        (StorageError("no space", path="/a"), "/a: no space"),
        (CorruptLogError("bad CRC", path="/a", position=61, hint="restore it"), "/a at byte 61: bad CRC; restore it"),
        (CorruptLogError("bad CRC", position=61), "bad CRC"),
        (ConfigError("line one\nline two", path="s"), "s: line one line two"),
    ],
)
def test_an_error_is_one_line_with_path_position_and_hint(error: CompactionError, text: str) -> None:
    assert str(error) == text


def test_an_error_survives_pickling() -> None:
    error = CorruptLogError("bad CRC", path="/a", position=61, hint="restore it")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), copy.position) == (CorruptLogError, str(error), 61)


def test_an_error_of_a_log_keeps_its_type_and_path() -> None:
    error = StorageError("no space", path="/own")
    assert as_log_error(error, "/other") is error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (MemoryError(), UnsupportedLogError, "/log: does not fit into memory"),
        (ConfigError("bad value", path="s"), UnforeseenError, "/log: unforeseen failure (s: bad value)"),
        (ZeroDivisionError("by zero"), UnforeseenError, "/log: unforeseen failure (ZeroDivisionError: by zero)"),
    ],
)
def test_any_other_exception_becomes_an_error_of_the_log(error: Exception, kind: type[LogError], text: str) -> None:
    found = as_log_error(error, "/log")
    assert type(found) is kind
    assert str(found).startswith(text)
