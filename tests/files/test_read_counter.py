"""Tasks count what they read while they read it."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from compaction.files import read_counter
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader
from tests.dumping.segments import write_segment


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of counts, which this process knows."""
    directory = tmp_path / "counts"
    directory.mkdir()
    monkeypatch.setenv(read_counter.VARIABLE, str(directory))
    return str(directory)


def test_blocks_count_before_the_segment_is_read(tmp_path: Path, counts: str) -> None:
    made = write_segment(tmp_path / "long-0", batches=100)
    size = made.path.stat().st_size
    with SegmentReader(LocalFileSystem(), str(made.path), 0, size, block_bytes=size // 4) as reader:
        blocks = reader.blocks(check_crc=True)
        next(blocks)
        next(blocks)
        assert 0 < read_counter.total(counts) < size
        assert list(blocks)
    assert read_counter.total(counts) == size


def test_each_process_has_its_own_count_also_if_it_was_forked(counts: str) -> None:
    read_counter.count(10)
    forked = multiprocessing.get_context("fork").Process(target=read_counter.count, args=(5,))
    forked.start()
    forked.join()
    read_counter.count(1)
    assert read_counter.total(counts) == 16


def test_a_count_that_cannot_be_written_is_no_error(counts: str) -> None:
    Path(counts).rmdir()
    read_counter.count(10)
    assert read_counter.total(counts) == 0


def test_nothing_is_counted_unless_somebody_wants_to_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(read_counter.VARIABLE, raising=False)
    read_counter.count(10)
    assert list(tmp_path.iterdir()) == []
