"""Works that advance in step: what they wait for is flushed together, and an error concerns one of them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from compaction.errors import StorageError
from compaction.files.durable import DurableSteps, content_of, names_in, run_alone, run_in_step
from compaction.files.local import LocalFileSystem
from compaction.files.system_calls import whole_sync
from tests.disk import FaultyFileSystem, WatchedFileSystem

MANY = 20


def work(fs: FaultyFileSystem, directory: str) -> DurableSteps[str]:
    """Writes a file, then gives it another name; returns the directory, or the error's text."""
    try:
        fs.write_file(f"{directory}/new", b"abc")
        yield content_of(f"{directory}/new")
        fs.rename(f"{directory}/new", f"{directory}/file")
        yield names_in(directory)
    except StorageError as error:
        return str(error)
    return directory


def directories(fs: FaultyFileSystem, count: int) -> list[str]:
    made = [f"/logs/{number}" for number in range(count)]
    for each in made:
        fs.mkdir(each)
    return made


def test_works_advance_together_to_the_point_where_they_wait() -> None:
    fs = FaultyFileSystem()
    made = directories(fs, 2)
    fs.log.clear()
    assert run_in_step(fs, made, [work(fs, each) for each in made]) == made
    steps = [line.split(" ")[0] for line in fs.log]
    assert steps == ["write", "write", "fsync", "fsync", "rename", "rename", "fsync_dir", "fsync_dir"]


def test_what_a_work_has_waited_for_is_durable() -> None:
    fs = FaultyFileSystem()
    made = directories(fs, MANY)
    run_in_step(fs, made, [work(fs, each) for each in made])
    assert all(fs.after_power_loss(None).read_bytes(f"{each}/file") == b"abc" for each in made)


def test_works_of_different_lengths_end_on_their_own() -> None:
    def counting(steps: int) -> DurableSteps[int]:
        for _ in range(steps):
            yield ()
        return steps

    assert run_in_step(FaultyFileSystem(), (), [counting(steps) for steps in (3, 0, 1)]) == [3, 0, 1]
    assert run_in_step(FaultyFileSystem(), (), []) == []


def test_an_error_is_raised_where_its_work_waits_and_others_continue() -> None:
    fs = FaultyFileSystem()
    made = directories(fs, 3)
    fs.fail = lambda operation, path: "Input/output error" if (operation, path) == ("fsync", "/logs/1/new") else None
    results = run_in_step(fs, made, [work(fs, each) for each in made])
    assert results == ["/logs/0", "/logs/1/new: cannot fsync: Input/output error", "/logs/2"]
    assert [fs.stat(f"{each}/file") is not None for each in made] == [True, False, True]


def test_an_error_that_a_work_does_not_handle_makes_the_others_clean_up() -> None:
    ended = []

    def cleaning_up() -> DurableSteps[None]:
        try:
            yield ()
            yield ()
        finally:
            ended.append(True)

    with pytest.raises(StorageError, match="no such directory"):
        run_in_step(FaultyFileSystem(), (), [cleaning_up(), (step for step in [names_in("/missing")]), cleaning_up()])
    assert ended == [True, True]


def test_an_error_that_a_work_does_not_handle_is_raised() -> None:
    with pytest.raises(StorageError, match="no such directory"):
        run_alone(FaultyFileSystem(), (step for step in [names_in("/missing")]))


def waiting(path: Path) -> DurableSteps[str | None]:
    try:
        yield content_of(str(path))
    except StorageError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("count", "whole", "flushed"),
    [(MANY, True, 0), (4, True, 4), (MANY, False, MANY)],
    ids=["many", "few", "many, with an error of the file system"],
)
def test_many_files_are_flushed_as_a_whole_and_after_an_error_one_by_one_to_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, whole: bool, flushed: int
) -> None:
    """The fourth is missing."""
    monkeypatch.setattr("compaction.files.durable.whole_sync", lambda _: nullcontext(lambda: whole))
    fs, paths = WatchedFileSystem(LocalFileSystem()), [tmp_path / str(number) for number in range(count)]
    for number, path in enumerate(paths):
        if number != 3:
            path.write_bytes(b"abc")
    results = run_in_step(fs, [str(tmp_path)], [waiting(path) for path in paths])
    assert sum(operation.name == "fsync" for operation in fs.log) == flushed
    assert [number for number, error in enumerate(results) if error is not None] == ([3] if flushed else [])


class Library:
    """The C library, whose ``syncfs`` has a given result."""

    def __init__(self, synced: int, kind: int = 0xEF53) -> None:
        self.synced, self.kind, self.calls = synced, kind, 0

    def syncfs(self, descriptor: int) -> int:
        self.calls += 1
        return self.synced

    def fstatfs(self, descriptor: int, found: bytearray) -> int:
        found[:8] = self.kind.to_bytes(8, "little")
        return 0


@pytest.mark.parametrize(
    ("library", "release", "whole"),
    [
        (Library(0), "5.17.0-1", True),
        (Library(0, kind=0x58465342), "6.1", True),
        (Library(-1), "6.1", False),
        # FUSE
        (Library(0, kind=0x65735546), "6.1", False),
        (Library(0), "5.16.20", False),
    ],
)
def test_a_file_system_is_flushed_as_a_whole_only_if_that_reports_every_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Library, release: str, whole: bool
) -> None:
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(sysname="Linux", release=release))
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: library)
    with whole_sync([str(tmp_path), str(tmp_path)]) as sync_all:
        assert sync_all() is whole
    assert library.calls <= 1


def test_a_missing_directory_and_no_directory_are_not_flushed_as_a_whole(tmp_path: Path) -> None:
    for directories in ([str(tmp_path), str(tmp_path / "missing")], []):
        with whole_sync(directories) as sync_all:
            assert not sync_all()
