"""Sources that are damaged, change or vanish, before or during a run: their log fails and is kept, the other log is cleaned."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.filesystem import File
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import Block
from compaction.passes import scan
from compaction.passes.decoder import check_offsets
from compaction.run.sizing import Sizes
from tests.crash.surroundings import cleaned_topics, only_the_subject_failed, run
from tests.damage.harm import flipped, reseal
from tests.damage.valid_logs import look_at, valid_log, write_log
from tests.disk import Operation, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.log.logs import NOW_MS as BUILT_MS
from tests.log.logs import build

VALID = valid_log("none")
#: so small that a segment is written in several parts
PARTS = Sizes(slice_bytes=300, scan_bytes=600, shard_entries=20)


def call(log_dir: Path, name: str) -> tuple[tuple[object, ...], Path | None]:
    """The options of a run, and the directory of its results."""
    out = log_dir.with_name("out")
    calls: dict[str, tuple[tuple[object, ...], Path | None]] = {
        "in place": ((), log_dir), "to a copy": (("--output-dir", out), out), "dry run": (("--dry-run",), None)
    }  # fmt: skip
    return calls[name]


def sources(log: Path) -> dict[str, tuple[bytes, int, int]]:
    """The files of a log without outputs."""
    return {name: found for name, found in look_at(log).items() if ".clean." not in name}


# changes during a run


def put_other_batches(path: Path) -> None:
    """Valid batches of the same size and offsets with other values; size, mtime and inode are those of the planned file."""
    stat, data = path.stat(), path.read_bytes()
    other = reseal(data.replace(b"value-", b"VALUE-"))
    assert other != data and len(other) == len(data)
    path.write_bytes(other)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def put_half_of_it(path: Path) -> None:
    """Another file of this name."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


OTHER = "segment is not the one that was read before"
#: call, event, segment, what happens to it, and the error
CHANGES: tuple[tuple[str, str, int, Callable[[Path], object], str], ...] = (
    ("in place", "before_scan", 0, Path.unlink, "cannot open: No such file or directory"),
    ("in place", "before_rewrite", 0, Path.unlink, r"cannot (open: |write \()No such file or directory"),
    ("in place", "after_rewrite", 0, Path.unlink, "segment has changed since it was read"),
    ("in place", "after_rewrite", 1, lambda path: path.write_bytes(path.read_bytes()), "segment has changed since it was read"),
    ("in place", "before_rewrite", 0, put_other_batches, OTHER),
    ("to a copy", "before_rewrite", 0, put_other_batches, OTHER),
    ("dry run", "before_rewrite", 0, put_other_batches, OTHER),
    # the copy lacked keys that the source still had
    ("to a copy", "before_rewrite", 2, put_half_of_it, ""),
)


@pytest.mark.parametrize(("name", "event", "number", "change", "message"), CHANGES)
def test_a_segment_that_changes_or_vanishes_during_the_run_fails_its_log(
    log_dir: Path, name: str, event: str, number: int, change: Callable[[Path], object], message: str
) -> None:
    options, results = call(log_dir, name)
    changed: list[object] = []

    def disturb() -> None:
        change(log_dir / "subject-0" / VALID.log(number))
        changed.append(sources(log_dir / "subject-0"))

    ended = run(log_dir, *options, events={event: disturb})
    only_the_subject_failed(ended, log_dir, changed[0], message, results)


def test_a_directory_that_replaces_another_is_not_changed(log_dir: Path, tmp_path: Path) -> None:
    before, other = look_at(log_dir / "subject-0"), {**VALID.files, VALID.log(2): b""}
    changed: list[object] = []

    def swap() -> None:
        (log_dir / "subject-0").rename(tmp_path / "moved away")
        write_log(log_dir / "subject-0", other)
        for path in (log_dir / "subject-0").iterdir():
            os.utime(path, ns=(1, 1))
        changed.append(look_at(log_dir / "subject-0"))

    ended = run(log_dir, events={"after_rewrite": swap})
    only_the_subject_failed(ended, log_dir, changed[0], "segment has changed since it was read", log_dir)
    assert sources(tmp_path / "moved away") == before


@pytest.mark.parametrize("name", ["in place", "dry run"])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_file_truncated_while_it_is_read_is_one_logs_error(log_dir: Path, moment: int, name: str) -> None:
    """A memory map would end the process with a signal."""
    path, seen, options = log_dir / "subject-0" / VALID.log(1), list[Operation](), call(log_dir, name)[0]
    changed: list[object] = []

    def cut(found: Operation) -> None:
        if found.name in ("read", "pread") and found.path == str(path):
            seen.append(found)
            if len(seen) == moment:
                os.truncate(path, 70)
                changed.append(sources(path.parent))

    ended = run(log_dir, *options, files=WatchedFileSystem(LocalFileSystem(), cut))
    only_the_subject_failed(ended, log_dir, changed[0], "", call(log_dir, name)[1])


# rows of a part, which are written and read by the run


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "halved": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "one bit turned": lambda data: flipped(data, len(data) * 2 // 3, 2),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_rows_of_a_part_that_changed_before_it_is_joined_fail_the_log(log_dir: Path, harm: Callable[[bytes], bytes]) -> None:
    before, harmed = look_at(log_dir / "subject-0"), list[Path]()

    def act(found: Operation) -> None:
        path = Path(found.path)
        rows = found.name == "open" and re.search(r"subject-0/0{20}\.log\.clean\.[0-9a-f]+\.\d+\.rows$", found.path)
        if rows and not harmed and path.stat().st_size > 0:
            path.write_bytes(harm(path.read_bytes()))
            harmed.append(path)

    files = WatchedFileSystem(LocalFileSystem(), act)
    ended = run(log_dir, "--set", "index.interval.bytes=100", files=files, sizes=PARTS)
    assert harmed
    message = "(read back otherwise|file ends here|was truncated|batch|CRC|header)"
    only_the_subject_failed(ended, log_dir, before, message, log_dir)


# damage


class TurnedReads(WatchedFileSystem):
    """Once ``armed``, one bit of a file is flipped in each sequential read."""

    def __init__(self, name: str, position: int, bit: int) -> None:
        super().__init__(LocalFileSystem())
        self.name, self.position, self.bit = name, position, bit
        self.armed = False

    def arm(self) -> None:
        self.armed = True

    def pread(self, path: str, source: File, view: memoryview, position: int) -> int:
        n = super().pread(path, source, view, position)
        at = self.position - position
        if self.armed and Path(path).name == self.name and 0 <= at < n:
            view[at] ^= 1 << self.bit
        return n


def outputs(log: Path) -> dict[str, bytes]:
    return {name: data for name, (data, *_) in look_at(log).items() if not name.endswith(".deleted")}


@pytest.mark.parametrize("kind", ["none", "zstd", "v0-none", "v1-none", "v1-gzip", "mixed", "transactions"])
def test_a_bit_flipped_between_the_passes_gets_no_new_checksum_that_hides_it(tmp_path: Path, kind: str) -> None:
    valid = valid_log(kind)
    write_log(tmp_path / "undisturbed" / "subject-0", valid.files)
    assert run(tmp_path / "undisturbed").code == 0
    expected = outputs(tmp_path / "undisturbed" / "subject-0")
    chance, failed, name = random.Random(kind), 0, valid.log(1)
    for number in range(16):
        position = chance.randrange(len(valid.files[name]))
        files = TurnedReads(name, position, chance.randrange(8))
        place = tmp_path / str(number)
        write_log(place / "subject-0", valid.files)
        ended = run(place, files=files, events={"before_rewrite": files.arm})
        if ended.code:
            failed += 1
            assert "error: subject-0: " in ended.err
            assert outputs(place / "subject-0") == valid.files
        else:
            # only a batch that is dropped completely need not be read
            assert outputs(place / "subject-0") == expected, position
    assert failed


def test_a_bad_sector_in_the_metadata_log_is_an_error_of_its_directorys_logs(log_dir: Path, tmp_path: Path) -> None:
    write_log(tmp_path / "other/elsewhere-0", VALID.files)
    batch = Batch([Record(0, BUILT_MS, b"k", b"v")]).encode()
    write_log(log_dir / "__cluster_metadata-0", {f"{0:020d}{kind}": data for kind, data in build(0, [batch]).files.items()})
    before, failed = look_at(log_dir / "subject-0"), list[Operation]()

    def fail(found: Operation) -> None:
        if found.name in ("read", "open", "pread") and "__cluster_metadata-0/0" in found.path:
            failed.append(found)
            raise StorageError("cannot read: Input/output error", path=found.path)

    ended = run(log_dir, "--log-dir", tmp_path / "other", files=WatchedFileSystem(LocalFileSystem(), fail))
    assert failed
    assert ended.code == 1
    (line,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert "Input/output error" in line and " and 1 more: " in line
    assert re.search(r"\nelsewhere-0 .* cleaned\n", ended.out)
    assert look_at(log_dir / "subject-0") == before


def test_huge_snapshots_and_indexes_are_rebuilt(log_dir: Path) -> None:
    for suffix in (".snapshot", ".txnindex"):
        with (log_dir / "subject-0" / VALID.log(1)).with_suffix(suffix).open("wb") as file:
            file.truncate(1 << 40)
    assert (run(log_dir).code, cleaned_topics(log_dir)) == (0, {"aside", "subject"})


def test_an_unexpected_exception_is_one_logs_failure(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the program that affects one log does not stop the others."""

    def defect(block: Block, floor: int, end_offset: int) -> int:
        if "subject" in block.path:
            raise IndexError("index 7 is out of bounds")
        return check_offsets(block, floor, end_offset)

    before = look_at(log_dir / "subject-0")
    monkeypatch.setattr(scan, "check_offsets", defect)
    what = r" at byte 0: unforeseen failure \(IndexError: index 7 is out of bounds\); nothing was changed$"
    only_the_subject_failed(run(log_dir), log_dir, before, VALID.log(0) + what, log_dir)
