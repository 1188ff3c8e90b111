"""Changes to a log since it was read are detected by its segments' names, sizes, times and identities."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.read_log import ReadOptions, has_changed, read_log, require_same_indexes, require_unchanged
from compaction.names import LOG, TIMEINDEX, segment_file
from compaction.rules.log_view import LogView
from tests.log.logs import NOW_MS, data_segment, location

FS = LocalFileSystem()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of two segments."""
    made = Path(location(str(tmp_path)).path)
    made.mkdir()
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105])):
        segment.put(FS, str(made))
    return made


def view_of(path: Path) -> LogView:
    log_dir = str(path.parent)
    return read_log(FS, location(log_dir), Checkpoints(log_dir), ReadOptions(NOW_MS))


def truncate(log: Path) -> None:
    os.truncate(log, 10)


def touch(log: Path) -> None:
    os.utime(log, ns=(1, 1))


def replace(log: Path) -> None:
    """By a file of the same bytes and modification time."""
    copy, found = log.with_suffix(".copy"), log.stat()
    copy.write_bytes(log.read_bytes())
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    copy.rename(log)


CHANGES: list[Callable[[Path], object]] = [truncate, touch, replace, Path.unlink]


def test_a_log_that_was_not_written_to_has_not_changed(path: Path) -> None:
    view = view_of(path)
    assert not has_changed(FS, view)
    require_unchanged(FS, FS, str(path), view.segments)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_segment_is_detected(path: Path, change: Callable[[Path], object]) -> None:
    view = view_of(path)
    change(path / segment_file(0, LOG))
    assert has_changed(FS, view)
    with pytest.raises(StorageError, match=r"0{20}\.log: segment has changed since it was read; the log is unchanged"):
        require_unchanged(FS, FS, str(path), view.segments)


def test_a_new_segment_and_a_removed_log_are_changes(path: Path) -> None:
    view = view_of(path)
    data_segment(200, [200]).put(FS, str(path))
    assert has_changed(FS, view)
    path.rename(path.with_name("orders-1"))
    assert has_changed(FS, view)


def test_a_renamed_segment_is_followed_through_an_overlay_to_the_disk(path: Path) -> None:
    view, overlay = view_of(path), OverlayFileSystem(FS)
    overlay.rename(str(path / segment_file(0, LOG)), str(path / segment_file(0, LOG, ".swap")))
    overlay.rename(str(path / segment_file(0, LOG, ".swap")), str(path / segment_file(0, LOG)))
    require_unchanged(overlay, FS, str(path), view.segments)
    touch(path / segment_file(0, LOG))
    with pytest.raises(StorageError, match="segment has changed"):
        require_unchanged(overlay, FS, str(path), view.segments)


@pytest.mark.parametrize(("base", "kind"), [(0, TIMEINDEX), (100, TIMEINDEX)])
def test_a_copied_index_with_as_many_other_entries_is_refused(path: Path, base: int, kind: str) -> None:
    """As when the disk returns zeros for a page between the plan and the copy: the index of the last segment is valid then."""
    segments = view_of(path).segments
    require_same_indexes(FS, str(path), segments)
    index = path / segment_file(base, kind)
    assert any(index.read_bytes())
    index.write_bytes(bytes(index.stat().st_size))
    with pytest.raises(StorageError, match="indexes have changed since they were read"):
        require_same_indexes(FS, str(path), segments)
