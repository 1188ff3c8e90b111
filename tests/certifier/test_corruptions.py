"""The certifier names every kind of damage to a cleaned log by topic, partition and offset."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.certifier.certificate import Status
from compaction.certifier.records import _same_headers
from tests.certifier.story import NOW_MS, TOPIC, Change, Story, build, records
from tests.local_job import write_offsets
from tests.oracle.disk import read_partition
from tests.oracle.records import NaiveRecord, encode, encode_empty
from tests.oracle.segments import txn_index_bytes

#: damages ``after``; returns the offset of the violation and a part of its text
Corruption = Callable[[Story], tuple[int, str]]
LAST = "last of its key"


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


def of_record(name: str, what: str, /, **changes: object) -> Corruption:
    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.offset_of(name)
        story.change(offset, records(alter(name, **changes)))
        return offset, what

    return corrupt


def of_batch(key: str, what: str, **fields: int) -> Corruption:
    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.offset_of(key)
        base = story.batch_of(offset).base_offset
        story.change(offset, lambda batch: encode(replace(batch, **fields), batch.records()))  # type: ignore[arg-type]
        return base, what

    return corrupt


def of_batch_with(key: str, what: str, change: Change) -> Corruption:
    """Another batch in place of that with the last record of a key, which is named."""

    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.offset_of(key)
        story.change(offset, change)
        return offset, what

    return corrupt


def of_horizon(key: str, what: str, horizon_ms: int) -> Corruption:
    def corrupt(story: Story) -> tuple[int, str]:
        batch = story.batch_of(story.offset_of(key))
        story.change(batch.base_offset, lambda b: encode(b, b.records(), horizon_ms))
        return batch.base_offset, what

    return corrupt


def of_marker(producer: int, number: int, what: str, change: Change, named: str | None = None) -> Corruption:
    """``named``: the key whose record is named, otherwise the marker is."""

    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.markers(producer)[number].base_offset
        story.change(offset, change)
        return offset if named is None else story.offset_of(named), what

    return corrupt


def control(kind: int) -> Change:
    return records(lambda found: [replace(found[0], key=struct.pack(">hh", 0, kind))])


def record_that_never_existed(story: Story) -> tuple[int, str]:
    offset = story.offset_of("unique-1")
    story.change(offset, records(lambda found: [replace(found[-1], offset=offset - 1, key=b"made-up"), *found[-1:]]))
    return offset - 1, "key of the record differs"


def older_record_in_place_of_the_last(story: Story) -> tuple[int, str]:
    offset = story.offset_of("c", before=True)
    story.change(offset, records(drop("c")))
    older = next(
        (b, r) for s in read_partition(story.before / f"{TOPIC}-0") for b in s.batches for r in b.records() if r.key == b"c"
    )
    story.change(older[1].offset, records(lambda found: [*found, older[1]]))
    return offset, "last of its key"


def swapped_values(story: Story) -> tuple[int, str]:
    one, other = story.offset_of("unique-4"), story.offset_of("unique-5")
    story.change(one, records(alter("unique-4", value=b"v" * 300)))
    story.change(other, records(alter("unique-5", value=b"value")))
    return one, "value of the record differs"


def duplicated_record(story: Story) -> tuple[int, str]:
    offset = story.offset_of("unique-4")
    raw = story.batch_of(offset).raw
    segment = story.segment_of(offset)
    batches = [batch.raw for batch in segment.batches]
    at = batches.index(raw)
    log = b"".join([*batches[: at + 1], raw, *batches[at + 1 :]])
    story.write(offset, "log", log)
    return story.batch_of(offset).base_offset, "expected"


def deleted_record_that_reappears(story: Story) -> tuple[int, str]:
    """A record whose tombstone was dropped: nothing is lost, but consumers see the deleted record again."""
    deleted = story.offset_of("dead-old", first=True, before=True)
    bring_back(story, deleted)
    return story.offset_of("dead-old", before=True), "tombstone is missing though older records of its key are retained"


def bring_back(story: Story, offset: int) -> None:
    """Put a batch of the source back."""
    source = next(b for s in build() for b in s.batches if b.base_offset <= offset <= b.last_offset)
    segment = story.segment_of(offset)
    others = [batch for batch in segment.batches if batch.last_offset != source.last_offset]
    story.replace(segment, [batch.raw for batch in sorted([*others, source], key=lambda b: b.base_offset)])


def aborted_data_retained_as_committed(story: Story) -> tuple[int, str]:
    """The data of an aborted transaction comes back without its entry in the index and with a COMMIT marker."""
    source = next(b for s in build() for b in s.batches if b.producer_id == 8 and not b.control)
    segment = story.segment_of(source.base_offset)
    marker = story.markers(8)[0].base_offset
    story.change(marker, records(lambda found: [replace(found[0], key=struct.pack(">hh", 0, 1))]))
    segment = story.segment_of(source.base_offset)
    batches = sorted([*segment.batches, source], key=lambda b: b.base_offset)
    story.replace(segment, [batch.raw for batch in batches], aborted=())
    return source.base_offset, "ends differently"


def flipped_bit(story: Story) -> tuple[int, str]:
    offset = story.offset_of("unique-0")
    batch = story.batch_of(offset)
    segment = story.segment_of(offset)
    at = batch.position + len(batch.raw) - 2
    story.write(offset, "log", segment.log[:at] + bytes([segment.log[at] ^ 1]) + segment.log[at + 1 :])
    return batch.base_offset, "fails its CRC"


def cut_last_batch(story: Story) -> tuple[int, str]:
    last = story.segments()[-1]
    story.write(last.base_offset, "log", last.log[:-3])
    return last.batches[-1].base_offset, "log ends at offset"


def cut_inactive_segment(story: Story) -> tuple[int, str]:
    segment = story.segments()[0]
    story.write(segment.base_offset, "log", segment.log[:-3])
    return segment.batches[-1].base_offset, "segment"


def log_end_moved(story: Story) -> tuple[int, str]:
    last = story.segments()[-1]
    batch = last.batches[-1]
    moved = replace(batch, base_offset=batch.last_offset + 1, last_offset=batch.last_offset + 1)
    record = replace(batch.records()[0], offset=batch.last_offset + 1)
    story.replace(last, [*(b.raw for b in last.batches), encode(moved, [record])])
    return batch.last_offset + 1, "log ends at offset"


def index_entry_to_a_wrong_position(story: Story) -> tuple[int, str]:
    segment = next(s for s in story.segments() if s.index)
    relative, position = struct.unpack(">ii", segment.index[:8])
    story.write(segment.base_offset, "index", struct.pack(">ii", relative, position - 1) + segment.index[8:])
    return segment.base_offset + relative, "does not point"


def index_entry_of_no_batch(story: Story) -> tuple[int, str]:
    segment = next(s for s in story.segments() if s.index)
    relative, position = struct.unpack(">ii", segment.index[-8:])
    story.write(segment.base_offset, "index", segment.index[:-8] + struct.pack(">ii", relative + 5000, position))
    return segment.base_offset + relative + 5000, "not the last offset of any batch"


def index_out_of_order(story: Story) -> tuple[int, str]:
    segment = next(s for s in story.segments() if s.index)
    story.write(segment.base_offset, "index", segment.index + segment.index[:8])
    return segment.base_offset, "does not increase"


def missing_index(story: Story) -> tuple[int, str]:
    segment = story.segments()[0]
    (story.path / f"{segment.base_offset:020d}.index").unlink()
    return segment.base_offset, ".index is missing"


def time_index_with_a_wrong_timestamp(story: Story) -> tuple[int, str]:
    segment = next(s for s in story.segments() if s.time_index)
    time, relative = struct.unpack(">qi", segment.time_index[:12])
    story.write(segment.base_offset, "timeindex", struct.pack(">qi", time + 1, relative) + segment.time_index[12:])
    return segment.base_offset + relative, "does not have the largest timestamp"


def time_index_without_its_end(story: Story) -> tuple[int, str]:
    segment = next(s for s in story.segments() if s.time_index)
    story.write(segment.base_offset, "timeindex", b"")
    return segment.next_offset - 1, "lacks the segment's largest timestamp"


def transaction_index_entry_without_a_marker(story: Story) -> tuple[int, str]:
    marker = story.markers(8)[-1].base_offset
    story.write(marker, "txnindex", txn_index_bytes([(8, marker - 1, marker + 1, marker + 2)]))  # type: ignore[list-item]
    return marker + 1, "without an abort marker"


def transaction_index_that_covers_committed_data(story: Story) -> tuple[int, str]:
    marker = story.markers(8)[-1].base_offset
    entries = [entry for entry in story.segment_of(marker).aborted_txns if entry.last_offset == marker]
    assert entries, "the job left no entry"
    story.write(marker, "txnindex", txn_index_bytes([entries[0]._replace(first_offset=0)]))
    return marker, "differs from that of the source"


def with_last_stable_offset(story: Story, later: int) -> int:
    """Moves the last stable offset of an entry; returns the offset of its marker."""
    marker = story.markers(8)[-1].base_offset
    (entry,) = (entry for entry in story.segment_of(marker).aborted_txns if entry.last_offset == marker)
    story.write(marker, "txnindex", txn_index_bytes([entry._replace(last_stable_offset=entry.last_stable_offset + later)]))
    return marker


def transaction_index_that_starts_late(story: Story) -> tuple[int, str]:
    source = next(b for s in build() for b in s.batches if b.producer_id == 8 and not b.control)
    bring_back(story, source.base_offset)
    marker = story.markers(8)[0].base_offset
    entries = [entry for entry in story.segment_of(marker).aborted_txns if entry.last_offset == marker]
    assert entries, "the job left no entry"
    story.write(marker, "txnindex", txn_index_bytes([entries[0]._replace(first_offset=source.last_offset)]))
    return source.base_offset, "has no entry for this aborted data"


def of_active_index(story: Story, flip: bytes | None) -> tuple[int, str]:
    """Damages the time index of a segment that is otherwise that of the source."""
    segment = story.segments()[-1]
    data = segment.time_index
    path = story.path / f"{segment.base_offset:020d}.timeindex"
    if flip is None:
        path.unlink()
        return segment.base_offset, ".timeindex is missing"
    path.write_bytes(data[:7] + bytes([data[7] ^ flip[0]]) + data[8:])
    return segment.base_offset + struct.unpack(">i", data[8:12])[0], "does not have the largest timestamp"


def missing_segment(story: Story) -> tuple[int, str]:
    segment = story.segments()[0]
    for file in story.path.glob(f"{segment.base_offset:020d}.*"):
        file.unlink()
    return segment.base_offset, "segment was deleted though cleanup.policy does not include delete"


def missing_middle_segment(story: Story) -> tuple[int, str]:
    segment = story.segment_of(story.offset_of("unique-2"))
    assert segment.base_offset
    lost = min(r.offset for b in segment.batches for r in b.records() if not b.control)
    for file in story.path.glob(f"{segment.base_offset:020d}.*"):
        file.unlink()
    return lost, "last of its key"


def extra_segment(story: Story) -> tuple[int, str]:
    base = story.offset_of("unique-5") - 1
    for kind in ("log", "index", "timeindex"):
        (story.path / f"{base:020d}.{kind}").touch()
    return base, "no segment of the source has this base offset"


def copied_segment(story: Story) -> tuple[int, str]:
    first, second = story.segments()[:2]
    (story.path / f"{second.base_offset:020d}.log").write_bytes(first.log)
    return first.base_offset, "expected"


def emptied_segment(story: Story) -> tuple[int, str]:
    segment = story.segments()[0]
    story.replace(segment, [], aborted=())
    lost = min(r.offset for b in segment.batches for r in b.records() if not b.control and r.key)
    return lost, "last of its key"


def value_in_the_active_segment(story: Story) -> tuple[int, str]:
    story.change(story.offset_of("unique-6"), records(alter("unique-6", value=b"valuE")))
    return story.segments()[-1].base_offset, "active segment was changed"


def active_segment_in_another_form(story: Story) -> tuple[int, str]:
    last = story.segments()[-1]
    with (story.path / f"{last.base_offset:020d}.log").open("ab") as file:
        file.truncate(len(last.batches[-1].raw) - 61)
    return last.base_offset, "active segment was changed"


def checkpoint_past_the_end(story: Story) -> tuple[int, str]:
    story.set_checkpoint(cleaner_offsets=10_000)
    return 10_000, "past the first uncleanable offset"


def checkpoint_past_an_open_transaction(story: Story) -> tuple[int, str]:
    offset = story.offset_of("open")
    story.set_checkpoint(cleaner_offsets=offset + 1)
    return offset, "the first of an open transaction"


def checkpoint_lost(story: Story) -> tuple[int, str]:
    (story.after / "cleaner-offset-checkpoint").unlink()
    return story.offset_of("a", first=True, before=True), "past the cleaner checkpoint"


def log_start_moved(story: Story) -> tuple[int, str]:
    story.set_checkpoint(log_starts=1)
    return 1, "log start is not at the end of a segment"


def segment_deleted_though_compacted(story: Story) -> tuple[int, str]:
    segments = build()
    for segment in story.segments():
        if segment.base_offset < segments[1].base_offset:
            for file in story.path.glob(f"{segment.base_offset:020d}.*"):
                file.unlink()
    story.set_checkpoint(log_starts=segments[1].base_offset)
    return 0, "cleanup.policy does not include delete"


def missing_log(story: Story) -> tuple[int, str]:
    shutil.rmtree(story.path)
    return 0, "log is missing"


CORRUPTIONS: dict[str, Corruption] = {
    "value with a new CRC": of_record("unique-2", "value of the record differs", value=b"valuE"),
    "null value": of_record("unique-2", "value of the record differs", value=None),
    "empty value in place of null": of_record("dead-soon", "value of the record differs", value=b""),
    "key": of_record("unique-2", "key of the record differs", key=b"unique-9"),
    "no key": of_record("unique-2", "key of the record differs", key=None),
    "header value": of_record("unique-2", "headers of the record differ", headers=((b"name", b"other"), (b"none", None))),
    "header name": of_record("unique-2", "headers of the record differ", headers=((b"nome", b"content"), (b"none", None))),
    "header dropped": of_record("unique-2", "headers of the record differ", headers=()),
    "header null made empty": of_record(
        "unique-2", "headers of the record differ", headers=((b"name", b"content"), (b"none", b""))
    ),
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
    "index of the active segment": lambda story: of_active_index(story, b"\1"),
    "no index of the active segment": lambda story: of_active_index(story, None),
    "batch past the log end": lambda story: (log_end_moved(story)[0], "batch is not in the source"),
    "earlier horizon": of_horizon("dead-soon", "delete horizon was changed", NOW_MS - 5),
    "horizon of another round": of_horizon("dead-new", "not that of the round", NOW_MS + 1),
    "removed horizon": of_horizon("dead-soon", "delete horizon was removed", -1),
    # all its data is gone, but a round first gives it a horizon
    "dropped abort marker": of_marker(8, 0, "marker is missing before its delete horizon", lambda _: ()),
    "dropped commit marker": of_marker(7, -1, "marker is missing though data", lambda _: ()),
    "abort marker made commit": of_marker(8, -1, "key of the record differs", control(1)),
    "commit marker made abort": of_marker(7, -1, "ends differently", control(0), named="late"),
    "transaction index that ends a search": lambda story: (
        with_last_stable_offset(story, 1),
        "differs from that of the source",
    ),
    **{
        each.__name__.replace("_", " "): each
        for each in (
            swapped_values,
            duplicated_record,
            deleted_record_that_reappears,
            record_that_never_existed,
            aborted_data_retained_as_committed,
            older_record_in_place_of_the_last,
            flipped_bit,
            cut_last_batch,
            cut_inactive_segment,
            log_end_moved,
            index_entry_to_a_wrong_position,
            index_entry_of_no_batch,
            index_out_of_order,
            missing_index,
            time_index_with_a_wrong_timestamp,
            time_index_without_its_end,
            transaction_index_entry_without_a_marker,
            transaction_index_that_covers_committed_data,
            transaction_index_that_starts_late,
            missing_segment,
            missing_middle_segment,
            extra_segment,
            copied_segment,
            emptied_segment,
            active_segment_in_another_form,
            checkpoint_past_the_end,
            checkpoint_past_an_open_transaction,
            value_in_the_active_segment,
            checkpoint_lost,
            log_start_moved,
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
    with_last_stable_offset(story, -1)
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


@pytest.mark.parametrize(("strict", "status"), [(False, Status.HOLDS), (True, Status.VIOLATED)])
def test_retained_superseded_records_are_violations_only_when_strict(story: Story, strict: bool, status: Status) -> None:
    bring_back(story, story.offset_of("a", first=True, before=True))
    (log,) = story.verify(strict=strict).logs
    assert (log.status, log.left["superseded_left"] > 0) == (status, True)
    assert {each.what for each in log.violations} == ({"older records of this record's key are retained"} if strict else set())
