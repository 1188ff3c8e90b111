"""Corrupting disks, and files that change during the job: the log fails, its sources are kept, the other log is cleaned."""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.local import LocalFileSystem
from compaction.formats.message_set import iter_batches
from compaction.names import CLEANER_OFFSETS
from compaction.output.journal import JOURNAL
from compaction.run.sizing import Sizes
from tests.crash.surroundings import Ended, run
from tests.damage.harm import reseal
from tests.damage.valid_logs import look_at, valid_log, write_log
from tests.disk import Before, Operation, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.log.logs import NOW_MS as BUILT_MS
from tests.log.logs import build

VALID = valid_log("none")
#: so small that a segment is written in several parts
PARTS = Sizes(slice_bytes=300, scan_bytes=600, shard_entries=20)


def contents(log: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.iterdir()}


def watched(before: Before) -> WatchedFileSystem:
    return WatchedFileSystem(LocalFileSystem(), before)


def once(sign: Callable[[Operation], bool], act: Callable[[Operation], None]) -> Before:
    """Acts before the first matching operation."""
    seen: list[Operation] = []

    def before(operation: Operation) -> None:
        if not seen and sign(operation):
            seen.append(operation)
            act(operation)

    return before


def in_subject(name: str, pattern: str) -> Callable[[Operation], bool]:
    return lambda operation: operation.name == name and bool(re.search(rf"subject-0/{pattern}", operation.path))


def only_the_subject_failed(log_dir: Path, ended: Ended, before: object, message: str) -> None:
    """The subject's files are unchanged, and the error says why; the other log is cleaned."""
    assert ended.code == 1
    assert re.search(f"error: subject-0: .*{message}", ended.err), ended.err
    assert ended.err.count("error: ") == 1, ended.err
    assert look_at(log_dir / "subject-0") == before
    checkpoint = (log_dir / CLEANER_OFFSETS).read_text().splitlines()[2:]
    assert [line.split(" ")[0] for line in checkpoint] == ["aside"]


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def one_bit_turned(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x04
    path.write_bytes(data)


HARMS = (halved, emptied, zeroed, one_bit_turned)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_rows_of_a_part_that_changed_before_it_is_joined_fail_the_log(log_dir: Path, harm: Callable[[Path], None]) -> None:
    before, harmed = look_at(log_dir / "subject-0"), []
    rows = in_subject("open", r"0{20}\.log\.clean\.[0-9a-f]+\.\d+\.rows$")

    def sign(found: Operation) -> bool:
        return rows(found) and Path(found.path).stat().st_size > 0

    def act(found: Operation) -> None:
        harm(Path(found.path))
        harmed.append(found.path)

    ended = run(log_dir, "--set", "index.interval.bytes=100", files=watched(once(sign, act)), sizes=PARTS)
    assert harmed
    only_the_subject_failed(log_dir, ended, before, "(read back otherwise|file ends here|was truncated|batch|CRC|header)")


EQUAL_KEYS = 40


def equal_sizes(log: Path) -> dict[bytes, bytes]:
    """A log whose first segment and whose output have the same size; returns the last value of each key."""
    first = [(b"key-%03d" % key, b"one") for key in range(EQUAL_KEYS)]
    second = [(b"key-%03d" % key, b"two") for key in range(EQUAL_KEYS, 2 * EQUAL_KEYS)]
    third = [(b"key-%03d" % key, b"six") for key in range(EQUAL_KEYS)]
    files: dict[str, bytes] = {}
    for number, records in enumerate((first, second, third)):
        base = number * 100
        batch = Batch([Record(base + i, BUILT_MS - 10**6, key, value) for i, (key, value) in enumerate(records)])
        files.update({f"{base:020d}{kind}": data for kind, data in build(base, [batch.encode()]).files.items()})
    files.update({f"{300:020d}{kind}": data for kind, data in build(300, []).files.items()})
    write_log(log, files)
    return dict([*first, *second, *third])


def served(log: Path) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for path in sorted(log.glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            for record in batch.records():
                assert record.key is not None and record.value is not None
                found[bytes(record.key)] = bytes(record.value)
    return found


def test_an_error_after_the_commit_point_removes_no_output_and_loses_no_record(tmp_path: Path) -> None:
    """The directory's fsync fails once, just after the journal was renamed; sources and outputs have the same size."""
    log = tmp_path / "data/subject-0"
    values = equal_sizes(log)
    renamed: list[str] = []

    def before(found: Operation) -> None:
        if found.name == "rename" and found.target.endswith(JOURNAL):
            renamed.append(found.target)
        elif found.name == "fsync_dir" and renamed == [str(log / JOURNAL)]:
            renamed.append("failed")
            raise StorageError("cannot flush to disk: Input/output error", path=found.path)

    ended = run(tmp_path / "data", files=watched(before))
    assert ended.code == 1
    assert "Input/output error" in ended.err
    assert renamed[1:] == ["failed"]
    assert served(log) == values
    assert run(tmp_path / "data").code == 0
    assert served(log) == values
    assert not (log / JOURNAL).exists()


def test_a_journal_without_its_outputs_never_takes_a_source_for_one(tmp_path: Path) -> None:
    """The state that an earlier version left after an error: a journal without outputs, with equal sizes."""
    log = tmp_path / "data/subject-0"
    values = equal_sizes(log)
    stopped: list[Operation] = []

    def before(found: Operation) -> None:
        if stopped or (found.name == "rename" and ".log.swap" in found.target):
            stopped.append(found)
            raise StorageError("cannot rename: Input/output error", path=found.path)

    assert run(tmp_path / "data", files=watched(before)).code == 1
    assert (log / JOURNAL).exists()
    outputs = list(log.glob("*.clean*"))
    assert outputs
    for path in outputs:
        path.unlink()
    for claim in (tmp_path / "data").glob(".compaction-run.*"):
        claim.unlink()
    assert run(tmp_path / "data").code == 0
    assert served(log) == values
    assert not (log / JOURNAL).exists()


def other_batches() -> bytes:
    """Valid batches of the same size and offsets as the first segment's, with other values."""
    data = VALID.files[VALID.log(0)]
    again = data.replace(b"value-", b"VALUE-")
    assert again != data and len(again) == len(data)
    return b"".join(resealed(again))


def resealed(data: bytes) -> list[bytes]:
    batches, at = [], 0
    while at < len(data):
        size = struct.unpack_from(">i", data, at + 8)[0] + 12
        batches.append(reseal(data[at : at + size]))
        at += size
    return batches


@pytest.mark.parametrize("options", [(), ("--output-dir", "out"), ("--dry-run",)], ids=["in place", "to a copy", "dry run"])
def test_batches_replaced_by_other_valid_ones_between_the_passes_fail_the_log(
    log_dir: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Size, mtime and inode are those of the planned file."""
    path = log_dir / "subject-0" / VALID.log(0)
    stat = path.stat()

    def replace() -> None:
        with path.open("r+b") as file:
            file.write(other_batches())
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    call = [str(tmp_path / each) if each == "out" else each for each in options]
    ended = run(log_dir, *call, events={"before_rewrite": replace})
    assert ended.code == 1
    assert "segment is not the one that was read before" in ended.err
    assert path.read_bytes() == other_batches()
    assert {name: data for name, data in contents(log_dir / "subject-0").items() if name != path.name} == {
        name: data for name, data in VALID.files.items() if name != path.name
    }
    assert not list(tmp_path.glob("out/subject-0"))


def _io_error(found: Operation) -> None:
    raise StorageError(f"cannot read: {os.strerror(errno.EIO)}", path=found.path)


#: the driver's reads of a log -> the reading function
READS = {
    "segments for recovery": ("read", r"0{20}\.log$"),
    "the active segment's tail": ("read", r"0+40\.log$"),
    "an index": ("read", r"0{20}\.index$"),
    "a producer snapshot": ("read", r"0+40\.snapshot$"),
    "the listing": ("listdir", "?$"),
}


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["in place", "dry run"])
@pytest.mark.parametrize("read", READS)
def test_a_bad_sector_is_one_logs_error(log_dir: Path, read: str, options: tuple[str, ...]) -> None:
    name, pattern = READS[read]
    before, failed = look_at(log_dir / "subject-0"), []

    def fail(found: Operation) -> None:
        if found.name == name and re.search(rf"subject-0/{pattern}", found.path + ("/" if name == "listdir" else "")):
            failed.append(found)
            _io_error(found)

    ended = run(log_dir, *options, files=watched(fail))
    assert failed
    assert ended.code == 1
    assert ended.err.count("error: ") == 1, ended.err
    assert re.search(r"error: subject-0: .*Input/output error", ended.err), ended.err
    assert look_at(log_dir / "subject-0") == before
    assert bool(options) or (log_dir / CLEANER_OFFSETS).read_text().splitlines()[2].startswith("aside 0 ")


def test_a_bad_sector_in_the_metadata_log_is_an_error_of_its_directorys_logs(log_dir: Path, tmp_path: Path) -> None:
    write_log(tmp_path / "other/elsewhere-0", VALID.files)
    write_log(log_dir / "__cluster_metadata-0", {})
    for name, data in build(0, [Batch([Record(0, BUILT_MS, b"k", b"v")]).encode()]).files.items():
        (log_dir / "__cluster_metadata-0" / f"{0:020d}{name}").write_bytes(data)
    before, failed = look_at(log_dir / "subject-0"), []

    def fail(found: Operation) -> None:
        if found.name in ("read", "open", "pread") and "__cluster_metadata-0/0" in found.path:
            failed.append(found)
            _io_error(found)

    ended = run(log_dir, "--log-dir", tmp_path / "other", files=watched(fail))
    assert failed
    assert ended.code == 1
    (line,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert "Input/output error" in line and " and 1 more: " in line
    assert re.search(r"\nelsewhere-0 .* cleaned\n", ended.out)
    assert look_at(log_dir / "subject-0") == before


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["in place", "dry run"])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_file_truncated_while_it_is_read_is_one_logs_error(log_dir: Path, moment: int, options: tuple[str, ...]) -> None:
    """A memory map would end the process with a signal."""
    path, seen = log_dir / "subject-0" / VALID.log(1), []

    def cut(found: Operation) -> None:
        if found.name in ("read", "pread") and found.path == str(path):
            seen.append(found)
            if len(seen) == moment:
                os.truncate(path, 70)

    ended = run(log_dir, *options, files=watched(cut))
    assert len(seen) >= moment
    assert ended.code == 1
    assert ended.err.count("error: ") == 1, ended.err
    assert "error: subject-0: " in ended.err
    assert not list(path.parent.glob("*.deleted"))
