"""The journal: read back as written, or an error; never something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compaction.errors import CorruptLogError
from compaction.files.contents import FileDigest
from compaction.files.durable import run_alone
from compaction.files.filesystem import join
from compaction.names import INDEX, LOG
from compaction.output.journal import JOURNAL, Journal, JournalGroup, Source, read_journal, remove_journal, write_journal
from tests.disk import FaultyFileSystem

PATH = "/logs/orders-0"
FILES = (FileDigest(LOG, 70, "ab" * 16, 5), FileDigest(INDEX, 8, "cd" * 16, 6))
GROUPS = (JournalGroup(0, FILES, (Source(0, 100, 1, 7), Source(90, 50, 2, 8))),)

#: name -> a change of a journal's bytes
MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "another version": lambda data: data.replace(b'"version": 2', b'"version": 99'),
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "another size": lambda data: data.replace(b'"size_bytes": ', b'"size_bytes": 1', 1),
    "no group": lambda data: data.replace(b'"groups": [', b'"groups": [], "more": [', 1),
    "a flipped bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "too deep": lambda data: b"[" * 100_000,
    "not an object": lambda data: b"[2]",
}


def log() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(PATH)
    return fs


@pytest.mark.parametrize(
    "journal",
    [Journal(GROUPS, 90, 200, "token"), Journal(GROUPS, None, None), Journal((), None, 200)],
    ids=["checkpoint moves", "checkpoint is unchanged", "no groups"],
)
def test_a_journal_is_read_as_it_was_written_even_after_a_power_loss(journal: Journal) -> None:
    fs = log()
    run_alone(fs, write_journal(fs, PATH, journal))
    assert read_journal(fs.after_power_loss(None), PATH) == journal


def test_a_log_without_a_journal_has_no_committed_swap() -> None:
    fs = log()
    assert read_journal(fs, PATH) is None
    run_alone(fs, write_journal(fs, PATH, Journal(GROUPS, 90, 200)))
    run_alone(fs, remove_journal(fs, PATH))
    assert read_journal(fs.after_power_loss(None), PATH) is None


def test_the_kinds_of_a_group_are_in_the_order_of_its_files() -> None:
    assert GROUPS[0].kinds == (LOG, INDEX)


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_changed_journal_is_malformed(change: Callable[[bytes], bytes]) -> None:
    fs = log()
    run_alone(fs, write_journal(fs, PATH, Journal(GROUPS, 90, 200)))
    fs.put(join(PATH, JOURNAL), change(fs.read_bytes(join(PATH, JOURNAL))))
    with pytest.raises(CorruptLogError, match="journal of an earlier run is malformed"):
        read_journal(fs, PATH)


@pytest.mark.parametrize(
    "group",
    [
        JournalGroup(-1, FILES, ()),
        JournalGroup(2**63, FILES, ()),
        JournalGroup(0, FILES[1:], ()),
        JournalGroup(0, (), ()),
        JournalGroup(0, (FileDigest("/etc/passwd", 1, "", 1),), ()),
        JournalGroup(0, FILES, (Source(-1, 1, 1, 1),)),
    ],
    ids=["negative", "too large", "no log", "no file", "another kind", "negative source"],
)
def test_a_journal_with_a_valid_checksum_names_segment_files_only(group: JournalGroup) -> None:
    fs = log()
    run_alone(fs, write_journal(fs, PATH, Journal((group,), None, 1)))
    with pytest.raises(CorruptLogError, match="malformed"):
        read_journal(fs, PATH)
