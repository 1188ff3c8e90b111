"""The certifier names every kind of damage to a cleaned log by topic, partition and offset."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from operator import add
from pathlib import Path

import pytest

from compaction.certifier.certificate import Status
from compaction.certifier.records import _same_headers
from compaction.rules.log_view import AbortedTxn
from tests.certifier.story import NOW_MS, TOPIC, Change, Story, build, records
from tests.local_job import write_offsets
from tests.oracle.disk import read_partition
from tests.oracle.records import NaiveBatch, NaiveRecord, encode, encode_empty
from tests.oracle.segments import NaiveSegment, txn_index_bytes

#: damages ``after``; returns the offset of the violation and a part of its text
Corruption = Callable[[Story], tuple[int, str]]
LAST = "last of its key"
KEY, VALUE, HEADERS = "key of the record differs", "value of the record differs", "headers of the record differ"


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story.cleaned(tmp_path_factory.mktemp("story"))


@pytest.fixture
def story(cleaned: Story, tmp_path: Path) -> Story:
    shutil.copytree(cleaned.after, tmp_path / "after")
    return Story(cleaned.before, tmp_path / "after")


def drop(key: str) -> Callable[[list[NaiveRecord]], list[NaiveRecord]]:
    return lambda found: [each for each in found if each.key != key.encode()]


def alter(name: str, /, **changes: object) -> Callable[[list[NaiveRecord]], list[NaiveRecord]]:
    return lambda found: [replace(each, **changes) if each.key == name.encode() else each for each in found]  # type: ignore[arg-type]


def of_batch_with(key: str, what: str, change: Change, further: int = 0) -> Corruption:
    """Another batch in place of that with the last record of a key. Its offset is named, or the one so many ``further``."""

    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.offset_of(key)
        story.change(offset, change)
        return offset + further, what

    return corrupt


def of_record(name: str, what: str, /, **changes: object) -> Corruption:
    return of_batch_with(name, what, records(alter(name, **changes)))


def of_header(key: str, what: str, change: Change) -> Corruption:
    """The same, and the base offset of the batch is named."""

    def corrupt(story: Story) -> tuple[int, str]:
        batch = story.batch_of(story.offset_of(key))
        story.change(batch.base_offset, change)
        return batch.base_offset, what

    return corrupt


def of_batch(key: str, what: str, **fields: int) -> Corruption:
    return of_header(key, what, lambda batch: encode(replace(batch, **fields), batch.records()))  # type: ignore[arg-type]


def of_horizon(key: str, what: str, horizon_ms: int) -> Corruption:
    return of_header(key, what, lambda batch: encode(batch, batch.records(), horizon_ms))


def of_marker(producer: int, number: int, what: str, change: Change, named: str | None = None) -> Corruption:
    """``named``: the key whose record is named, otherwise the marker is."""

    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.markers(producer)[number].base_offset
        story.change(offset, change)
        return offset if named is None else story.offset_of(named), what

    return corrupt


def control(kind: int) -> Change:
    return records(lambda found: [replace(found[0], key=struct.pack(">hh", 0, kind))])


def of_file(
    number: int,
    kind: str,
    change: Callable[[NaiveSegment], bytes | None],
    what: str,
    named: Callable[[NaiveSegment], int] = lambda segment: segment.base_offset,
) -> Corruption:
    """Other contents of a file of a segment, or none."""

    def corrupt(story: Story) -> tuple[int, str]:
        segment = story.segments()[number]
        story.write(segment, kind, change(segment))
        return named(segment), what

    return corrupt


def last_batch(segment: NaiveSegment) -> int:
    return segment.batches[-1].base_offset


def index_entry(segment: NaiveSegment, at: int = 0) -> int:
    """The offset of an entry of the offset index."""
    return segment.base_offset + int(struct.unpack_from(">ii", segment.index, at)[0])


def time_entry(segment: NaiveSegment) -> int:
    """The offset of the first entry of the time index."""
    return segment.base_offset + int(struct.unpack_from(">qi", segment.time_index)[1])


def moved(index: bytes, fields: str, *by: int, at: int = 0) -> bytes:
    """An index with other numbers in the entry at a position."""
    entry = struct.pack(fields, *map(add, struct.unpack_from(fields, index, at), by))
    return index[:at] + entry + index[at + len(entry) :]


def of_aborted(what: str, change: Callable[[AbortedTxn], AbortedTxn], number: int = -1) -> Corruption:
    """Another entry, alone, in the transaction index of the segment with a marker; the last offset of the entry is named."""

    def corrupt(story: Story) -> tuple[int, str]:
        marker = story.markers(8)[number].base_offset
        segment = story.segment_of(marker)
        (entry,) = (entry for entry in segment.aborted_txns if entry.last_offset == marker)
        story.write(segment, "txnindex", txn_index_bytes([change(entry)]))
        return change(entry).last_offset, what

    return corrupt


def later_stable(by: int) -> Callable[[AbortedTxn], AbortedTxn]:
    return lambda entry: entry._replace(last_stable_offset=entry.last_stable_offset + by)


def of_checkpoint(offset: int, what: str, **offsets: int) -> Corruption:
    def corrupt(story: Story) -> tuple[int, str]:
        story.set_checkpoint(**offsets)
        return offset, what

    return corrupt


def together(*corruptions: Corruption) -> Corruption:
    """All of them; what the first one names."""
    return lambda story: [each(story) for each in corruptions][0]


def source_batch(producer: int) -> NaiveBatch:
    return next(b for s in build() for b in s.batches if b.producer_id == producer and not b.control)


def bring_back(story: Story, offset: int, aborted: tuple[AbortedTxn, ...] | None = None) -> None:
    """Put a batch of the source back."""
    source = next(b for s in build() for b in s.batches if b.base_offset <= offset <= b.last_offset)
    segment = story.segment_of(offset)
    others = [batch for batch in segment.batches if batch.last_offset != source.last_offset]
    story.replace(segment, [batch.raw for batch in sorted([*others, source], key=lambda b: b.base_offset)], aborted)


def older_record_in_place_of_the_last(story: Story) -> tuple[int, str]:
    offset = story.offset_of("c", before=True)
    story.change(offset, records(drop("c")))
    source = read_partition(story.before / f"{TOPIC}-0")
    older = next(record for s in source for b in s.batches for record in b.records() if record.key == b"c")
    story.change(older.offset, records(lambda found: [*found, older]))
    return offset, LAST


def duplicated_record(story: Story) -> tuple[int, str]:
    offset = story.offset_of("unique-4")
    batch, segment = story.batch_of(offset), story.segment_of(offset)
    end = batch.position + len(batch.raw)
    story.write(segment, "log", segment.log[:end] + batch.raw + segment.log[end:])
    return batch.base_offset, "expected"


def deleted_record_that_reappears(story: Story) -> tuple[int, str]:
    """A record whose tombstone was dropped: nothing is lost, but consumers see the deleted record again."""
    bring_back(story, story.offset_of("dead-old", first=True, before=True))
    return story.offset_of("dead-old", before=True), "tombstone is missing though older records of its key are retained"


def aborted_data_retained_as_committed(story: Story) -> tuple[int, str]:
    """The data of an aborted transaction comes back without its entry in the index and with a COMMIT marker."""
    story.change(story.markers(8)[0].base_offset, control(1))
    bring_back(story, source_batch(8).base_offset, aborted=())
    return source_batch(8).base_offset, "ends differently"


def log_end_moved(story: Story) -> tuple[int, str]:
    last = story.segments()[-1]
    batch = last.batches[-1]
    moved = replace(batch, base_offset=batch.last_offset + 1, last_offset=batch.last_offset + 1)
    record = replace(batch.records()[0], offset=batch.last_offset + 1)
    story.replace(last, [*(b.raw for b in last.batches), encode(moved, [record])])
    return batch.last_offset + 1, "log ends at offset"


def transaction_index_that_starts_late(story: Story) -> tuple[int, str]:
    source = source_batch(8)
    bring_back(story, source.base_offset)
    of_aborted("", lambda entry: entry._replace(first_offset=source.last_offset), number=0)(story)
    return source.base_offset, "has no entry for this aborted data"


def missing_segment(story: Story) -> tuple[int, str]:
    story.remove(story.segments()[0])
    return 0, "segment was deleted though cleanup.policy does not include delete"


def segment_deleted_though_compacted(story: Story) -> tuple[int, str]:
    story.remove(story.segments()[0])
    story.set_checkpoint(log_starts=build()[1].base_offset)
    return 0, "cleanup.policy does not include delete"


def missing_middle_segment(story: Story) -> tuple[int, str]:
    segment = story.segment_of(story.offset_of("unique-2"))
    assert segment.base_offset
    story.remove(segment)
    return min(r.offset for b in segment.batches for r in b.records() if not b.control), LAST


def emptied_segment(story: Story) -> tuple[int, str]:
    segment = story.segments()[0]
    story.replace(segment, [], aborted=())
    return min(r.offset for b in segment.batches for r in b.records() if not b.control and r.key), LAST


def extra_segment(story: Story) -> tuple[int, str]:
    base = story.offset_of("unique-5") - 1
    for kind in ("log", "index", "timeindex"):
        (story.path / f"{base:020d}.{kind}").touch()
    return base, "no segment of the source has this base offset"


def copied_segment(story: Story) -> tuple[int, str]:
    first, second = story.segments()[:2]
    story.write(second, "log", first.log)
    return first.base_offset, "expected"


def value_in_the_active_segment(story: Story) -> tuple[int, str]:
    of_record("unique-6", "", value=b"valuE")(story)
    return story.segments()[-1].base_offset, "active segment was changed"


def active_segment_in_another_form(story: Story) -> tuple[int, str]:
    last = story.segments()[-1]
    with (story.path / f"{last.base_offset:020d}.log").open("ab") as file:
        file.truncate(len(last.batches[-1].raw) - 61)
    return last.base_offset, "active segment was changed"


def checkpoint_past_an_open_transaction(story: Story) -> tuple[int, str]:
    offset = story.offset_of("open")
    return of_checkpoint(offset, "the first of an open transaction", cleaner_offsets=offset + 1)(story)


def checkpoint_lost(story: Story) -> tuple[int, str]:
    (story.after / "cleaner-offset-checkpoint").unlink()
    return story.offset_of("a", first=True, before=True), "past the cleaner checkpoint"


def missing_log(story: Story) -> tuple[int, str]:
    shutil.rmtree(story.path)
    return 0, "log is missing"


TXN_DIFFERS, TIME_DIFFERS = "differs from that of the source", "does not have the largest timestamp"
CORRUPTIONS: dict[str, Corruption] = {
    "value with a new CRC": of_record("unique-2", VALUE, value=b"valuE"),
    "null value": of_record("unique-2", VALUE, value=None),
    "empty value in place of null": of_record("dead-soon", VALUE, value=b""),
    "swapped values": together(of_record("unique-4", VALUE, value=b"v" * 300), of_record("unique-5", VALUE, value=b"value")),
    "key": of_record("unique-2", KEY, key=b"unique-9"),
    "no key": of_record("unique-2", KEY, key=None),
    "record that never existed": of_batch_with(
        "unique-1",
        KEY,
        records(lambda found: [replace(found[-1], offset=found[-1].offset - 1, key=b"made-up"), *found[-1:]]),
        -1,
    ),
    "header value": of_record("unique-2", HEADERS, headers=((b"name", b"other"), (b"none", None))),
    "header name": of_record("unique-2", HEADERS, headers=((b"nome", b"content"), (b"none", None))),
    "header dropped": of_record("unique-2", HEADERS, headers=()),
    "header null made empty": of_record("unique-2", HEADERS, headers=((b"name", b"content"), (b"none", b""))),
    "timestamp": of_record("unique-2", "timestamp of the record differs", timestamp=NOW_MS - 60_000),
    "leader epoch": of_batch("unique-0", "leader epoch of the batch differs", leader_epoch=4),
    "producer id": of_batch("late", "producer id of the batch differs", producer_id=70),
    "producer epoch": of_batch("late", "producer epoch of the batch differs", producer_epoch=5),
    "sequence": of_batch("late", "base sequence of the batch differs", base_sequence=50),
    "transactional bit": of_batch("late", "transactional bit of the batch differs", attributes=0),
    "codec": of_batch("unique-2", "codec of the batch differs", attributes=1),
    "timestamp type": of_batch("unique-2", "timestamp type of the batch differs", attributes=8),
    "last offset of a batch": of_batch("unique-2", "", last_offset=18),
    "dropped unique record": of_batch_with("unique-2", LAST, records(drop("unique-2"))),
    "dropped batch": of_batch_with("late", LAST, lambda _: ()),
    "emptied batch": of_batch_with("late", LAST, encode_empty),
    "moved record": of_batch_with("unique-3", LAST, records(lambda found: [replace(found[-1], offset=found[-1].offset - 1)])),
    "tombstone before its horizon": of_batch_with("dead-soon", LAST, lambda _: ()),
    "new tombstone at once": of_batch_with("dead-new", LAST, records(drop("dead-new"))),
    "changed active segment": of_batch_with("unique-6", "past the cleaner checkpoint", records(drop("unique-6"))),
    "batch past the log end": lambda story: (log_end_moved(story)[0], "batch is not in the source"),
    "earlier horizon": of_horizon("dead-soon", "delete horizon was changed", NOW_MS - 5),
    "horizon of another round": of_horizon("dead-new", "not that of the round", NOW_MS + 1),
    "removed horizon": of_horizon("dead-soon", "delete horizon was removed", -1),
    # all its data is gone, but a round first gives it a horizon
    "dropped abort marker": of_marker(8, 0, "marker is missing before its delete horizon", lambda _: ()),
    "dropped commit marker": of_marker(7, -1, "marker is missing though data", lambda _: ()),
    "abort marker made commit": of_marker(8, -1, KEY, control(1)),
    "commit marker made abort": of_marker(7, -1, "ends differently", control(0), named="late"),
    "flipped bit": of_file(
        0, "log", lambda each: each.log[:-2] + bytes([each.log[-2] ^ 1]) + each.log[-1:], "fails its CRC", last_batch
    ),
    "cut last batch": of_file(-1, "log", lambda each: each.log[:-3], "log ends at offset", last_batch),
    "cut inactive segment": of_file(0, "log", lambda each: each.log[:-3], "segment", last_batch),
    "index entry to a wrong position": of_file(
        0, "index", lambda each: moved(each.index, ">ii", 0, -1), "does not point", index_entry
    ),
    "index entry of no batch": of_file(
        0,
        "index",
        lambda each: moved(each.index, ">ii", 5000, 0, at=8),
        "not the last offset of any batch",
        lambda each: index_entry(each, 8) + 5000,
    ),
    "index out of order": of_file(0, "index", lambda each: each.index + each.index[:8], "does not increase"),
    "missing index": of_file(0, "index", lambda _: None, ".index is missing"),
    "time index with a wrong timestamp": of_file(
        0, "timeindex", lambda each: moved(each.time_index, ">qi", 1, 0), TIME_DIFFERS, time_entry
    ),
    "time index without its end": of_file(
        0, "timeindex", lambda _: b"", "lacks the segment's largest timestamp", lambda each: each.next_offset - 1
    ),
    "time index of the active segment": of_file(
        -1, "timeindex", lambda each: moved(each.time_index, ">qi", 1, 0), TIME_DIFFERS, time_entry
    ),
    "no time index of the active segment": of_file(-1, "timeindex", lambda _: None, ".timeindex is missing"),
    "transaction index that ends a search": of_aborted(TXN_DIFFERS, later_stable(1)),
    "transaction index that covers committed data": of_aborted(TXN_DIFFERS, lambda entry: entry._replace(first_offset=0)),
    "transaction index entry without a marker": of_aborted(
        "without an abort marker",
        lambda entry: AbortedTxn(8, entry.last_offset - 1, entry.last_offset + 1, entry.last_offset + 2),
    ),
    "checkpoint past the end": of_checkpoint(10_000, "past the first uncleanable offset", cleaner_offsets=10_000),
    "log start moved": of_checkpoint(1, "log start is not at the end of a segment", log_starts=1),
    **{
        each.__name__.replace("_", " "): each
        for each in (
            duplicated_record,
            deleted_record_that_reappears,
            aborted_data_retained_as_committed,
            older_record_in_place_of_the_last,
            log_end_moved,
            transaction_index_that_starts_late,
            missing_segment,
            missing_middle_segment,
            extra_segment,
            copied_segment,
            emptied_segment,
            active_segment_in_another_form,
            checkpoint_past_an_open_transaction,
            value_in_the_active_segment,
            checkpoint_lost,
            segment_deleted_though_compacted,
            missing_log,
        )
    },
}


def test_the_result_of_the_job_holds(cleaned: Story) -> None:
    (log,) = cleaned.verify().logs
    assert (log.status, log.violations) == (Status.HOLDS, ())
    counts = {reason: count for reason, count in log.missing.items() if count}
    assert set(counts) == {"superseded", "tombstone", "aborted", "invalid"}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_damage_is_named_by_topic_partition_and_offset(story: Story, name: str) -> None:
    offset, what = CORRUPTIONS[name](story)
    report = story.verify()
    (log,) = report.logs
    assert (report.exit_code, log.status, log.name) == (1, Status.VIOLATED, "story-0")
    named = {(each.offset, each.what) for each in log.violations}
    assert any(at == offset and what in said for at, said in named), named


def test_a_last_stable_offset_may_be_lower_as_of_a_segment_that_was_not_flushed(story: Story) -> None:
    of_aborted("", later_stable(-1))(story)
    (log,) = story.verify().logs
    assert (log.status, log.violations) == (Status.HOLDS, ())


def test_a_checkpoint_at_a_log_start_within_the_active_segment_holds(story: Story, tmp_path: Path) -> None:
    before, start = tmp_path / "before", story.offset_of("unique-6")
    shutil.copytree(story.before, before)
    write_offsets(before, log_starts={TOPIC: start}, cleaner_offsets={TOPIC: 0})
    story.set_checkpoint(log_starts=start, cleaner_offsets=start)
    (log,) = Story(before, story.after).verify().logs
    assert (log.status, log.violations) == (Status.HOLDS, ())


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (b"\x02\x02a\x02x", b"\x82\x00\x02a\x02x", True), (b"\x02\x02a\x02x", b"\x02\x02a\x02x\0", False),
        (b"\x02\x02a\x02x", b"\x02\x02a\x02", False), (b"\x02\x00\x01", b"\x02\x01\x01", False), (b"\0", b"\x82", False),
        (b"\0", b"", False),
    ],
)  # fmt: skip
def test_headers_are_equal_only_if_they_can_be_read(before: bytes, after: bytes, same: bool) -> None:
    assert _same_headers(before, before, replaced=True)
    assert _same_headers(before, after, replaced=True) is same
