"""Suffixes of segment files: renamed log first, and removed only if no swap needs them."""

from __future__ import annotations

import pytest

from compaction.files.filesystem import join
from compaction.names import CLEAN, DELETED, SNAPSHOT, SWAP
from compaction.output.segment_files import any_log, change_suffixes, discard_unfinished, is_unfinished, remove_deleted
from tests.disk import FaultyFileSystem
from tests.log.logs import data_segment

PATH = "/logs/orders-0"
LOG_0, INDEX_0, TIMEINDEX_0 = (f"{0:020d}{kind}" for kind in (".log", ".index", ".timeindex"))


def log_dir(*suffixes: str) -> FaultyFileSystem:
    """A log with one copy of a segment for each suffix."""
    fs = FaultyFileSystem()
    fs.mkdir(PATH)
    for suffix in suffixes:
        data_segment(0, [5]).put(fs, PATH, suffix)
    return fs


def test_a_segments_files_are_renamed_log_first_and_missing_kinds_are_skipped() -> None:
    fs = log_dir(CLEAN)
    fs.log.clear()
    change_suffixes(fs, PATH, 0, CLEAN, SWAP)
    assert fs.log == [f"rename {name}.clean" for name in (LOG_0, INDEX_0, TIMEINDEX_0)]
    assert fs.listdir(PATH) == sorted(f"{name}.swap" for name in (LOG_0, INDEX_0, TIMEINDEX_0))


def test_only_the_given_kinds_are_renamed() -> None:
    fs = log_dir("")
    change_suffixes(fs, PATH, 0, "", DELETED, (".index", SNAPSHOT))
    assert fs.listdir(PATH) == sorted([LOG_0, f"{INDEX_0}.deleted", TIMEINDEX_0])


@pytest.mark.parametrize(
    ("name", "unfinished"),
    [
        (f"{LOG_0}.clean", True),
        (f"{LOG_0}.clean.0123abcd", True),
        (f"{LOG_0}.clean.0123abcd.7.part", True),
        (f"{LOG_0}.cleaned", True),
        (LOG_0, False),
        (f"{LOG_0}.swap", False),
        (f"{LOG_0}.deleted", False),
        ("notes.clean", False),
    ],
)
def test_outputs_that_no_swap_has_renamed_are_unfinished(name: str, unfinished: bool) -> None:
    assert is_unfinished(name) == unfinished


@pytest.mark.parametrize("swapping", [False, True])
def test_cleaned_files_are_kept_while_there_are_swap_files(swapping: bool) -> None:
    fs = log_dir("", ".clean.one", ".cleaned", *([SWAP] if swapping else []))
    assert discard_unfinished(fs, PATH) == (3 if swapping else 6)
    assert any(name.endswith(".cleaned") for name in fs.listdir(PATH)) == swapping


def test_removing_deleted_files_returns_the_bytes_freed() -> None:
    fs = log_dir("", DELETED)
    fs.put(join(PATH, "notes.deleted"), b"not a segment's")
    assert remove_deleted(fs, PATH) == sum(map(len, data_segment(0, [5]).files.values()))
    assert fs.listdir(PATH) == sorted([LOG_0, INDEX_0, TIMEINDEX_0, "notes.deleted"])


def test_an_empty_partition_directory_has_no_log() -> None:
    assert any_log(log_dir(), PATH) is None
    assert any_log(log_dir(""), PATH) == join(PATH, LOG_0)
