"""The certifier names every kind of damage to a cleaned log by topic, partition and offset; that to whole files is in
``tests/commands/calls/damaged_copies.txt``. What a run repairs or keeps of an odd source is none."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compaction.certifier.certificate import LogCertificate, Status, Violation
from compaction.certifier.records import _same_headers
from compaction.files.local import LocalFileSystem
from compaction.formats import indexes
from compaction.rules.log_view import AbortedTxn
from tests.certifier.certify import certify_copy
from tests.certifier.story import CONFIG, INTERVAL_BYTES, NOW_MS, TOPIC, Change, Story, T, build, records, sent
from tests.kafka.encode import Batch, Legacy, Record
from tests.local_job import clean_locally, write_offsets
from tests.log import logs
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.logs import ABORT, Batching, LogBuilder
from tests.oracle.records import NaiveBatch, NaiveRecord, encode, encode_empty
from tests.oracle.segments import txn_index_bytes

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


def of_batch_with(key: str, what: str, change: Change, further: int | None = 0) -> Corruption:
    """Another batch in place of that with the last record of a key. Its offset is named, or the one so many ``further``, or,
    with ``None``, the base offset of the batch."""

    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.offset_of(key)
        base_offset = story.batch_of(offset).base_offset
        story.change(offset, change)
        return base_offset if further is None else offset + further, what

    return corrupt


def of_record(name: str, what: str, /, **changes: object) -> Corruption:
    return of_batch_with(name, what, records(alter(name, **changes)))


def of_batch(key: str, what: str, **fields: int) -> Corruption:
    return of_batch_with(key, what, lambda batch: encode(replace(batch, **fields), batch.records()), None)  # type: ignore[arg-type]


def of_horizon(key: str, what: str, horizon_ms: int) -> Corruption:
    return of_batch_with(key, what, lambda batch: encode(batch, batch.records(), horizon_ms), None)


def of_marker(producer: int, number: int, what: str, change: Change, named: str | None = None) -> Corruption:
    """``named``: the key whose record is named, otherwise the marker is."""

    def corrupt(story: Story) -> tuple[int, str]:
        offset = story.markers(producer)[number].base_offset
        story.change(offset, change)
        return offset if named is None else story.offset_of(named), what

    return corrupt


def control(kind: int) -> Change:
    return records(lambda found: [replace(found[0], key=struct.pack(">hh", 0, kind))])


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


def value_in_the_active_segment(story: Story) -> tuple[int, str]:
    of_record("unique-6", "", value=b"valuE")(story)
    return story.segments()[-1].base_offset, "active segment was changed"


TXN_DIFFERS = "differs from that of the source"
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
    "transaction index that ends a search": of_aborted(TXN_DIFFERS, later_stable(1)),
    "transaction index that covers committed data": of_aborted(TXN_DIFFERS, lambda entry: entry._replace(first_offset=0)),
    "transaction index entry without a marker": of_aborted(
        "without an abort marker",
        lambda entry: AbortedTxn(8, entry.last_offset - 1, entry.last_offset + 1, entry.last_offset + 2),
    ),
    **{
        each.__name__.replace("_", " "): each
        for each in (
            duplicated_record,
            deleted_record_that_reappears,
            aborted_data_retained_as_committed,
            older_record_in_place_of_the_last,
            log_end_moved,
            transaction_index_that_starts_late,
            value_in_the_active_segment,
        )
    },
}


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


LOG = str(logs.TOPIC)
HOUR_MS = 3_600_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
TOPICS = {logs.TOPIC.topic: {**COMPACT, "delete.retention.ms": str(HOUR_MS)}}
LOST = "record is missing though it is the last of its key"


def source(tmp_path: Path, segments: Iterable[logs.Built]) -> tuple[Path, Path]:
    """A log directory, and the path of its copy."""
    before = tmp_path / "before"
    (before / LOG).mkdir(parents=True)
    for segment in segments:
        segment.put(LocalFileSystem(), str(before / LOG))
    return before, tmp_path / "after"


def clean_copy(before: Path, after: Path, *as_of_ms: int) -> None:
    """The copy, cleaned in a round at each of these times."""
    shutil.copytree(before, after)
    for time_ms in as_of_ms:
        (after / "cleaner-offset-checkpoint").unlink(missing_ok=True)
        clean_locally(after, time_ms, TOPICS)


def bases(log_dir: Path) -> list[int]:
    return sorted(int(log.stem) for log in (log_dir / LOG).glob("*.log"))


def check(log: LogCertificate, *violations: Violation) -> None:
    """Checks that the log has exactly these violations."""
    assert log.violations == violations
    assert log.status is (Status.VIOLATED if violations else Status.HOLDS)


@pytest.mark.parametrize(
    ("written_ms", "closed_ms", "lost"),
    [
        (logs.NOW_MS - HOUR_MS, logs.NOW_MS - HOUR_MS, False),
        (logs.NOW_MS + HOUR_MS, logs.NOW_MS - HOUR_MS, False),
        (logs.NOW_MS - HOUR_MS, logs.NOW_MS, False),
        (logs.NOW_MS - HOUR_MS + 1, logs.NOW_MS - HOUR_MS + 1, True),
    ],
)
def test_a_tombstone_is_dropped_after_its_segment_was_complete_for_the_retention(
    tmp_path: Path, written_ms: int, closed_ms: int, lost: bool
) -> None:
    """An earlier round has set the delete horizon that a later one dropped, whatever the producer's clock said."""
    batch = Batch([Record(0, written_ms, b"a", b"v"), Record(1, written_ms, b"b", None)])
    before, after = source(tmp_path, [logs.build(0, [batch.encode()]), logs.data_segment(2, [2])])
    os.utime(before / LOG / f"{0:020d}.log", ns=(closed_ms * 1_000_000,) * 2)
    clean_copy(before, after, logs.NOW_MS - HOUR_MS, logs.NOW_MS)
    (log,) = certify_copy(before, after, logs.NOW_MS, TOPICS, several_rounds=True).logs
    check(log, *([Violation(1, LOST)] if lost else []))


@pytest.mark.parametrize("several_rounds", [True, False])
@pytest.mark.parametrize("superseded", [True, False])
def test_what_was_deleted_from_the_source_since_a_round_is_not_compared(
    tmp_path: Path, superseded: bool, several_rounds: bool
) -> None:
    """A round joined two segments; then the log start has moved into them, and the broker has deleted the first."""
    keys = {0: b"key" if superseded else b"gone", 10: b"key", 20: b"active"}
    segments = [logs.build(base, [Batch([Record(base, logs.NOW_MS, key, b"v")]).encode()]) for base, key in keys.items()]
    before, after = source(tmp_path, segments)
    clean_copy(before, after, logs.NOW_MS)
    assert bases(after) == [0, 20]
    for file in (before / LOG).glob(f"{0:020d}.*"):
        file.unlink()
    for log_dir in (before, after):
        write_offsets(log_dir, log_starts={logs.TOPIC.topic: 10})
    (log,) = certify_copy(before, after, logs.NOW_MS, TOPICS, several_rounds=several_rounds).logs
    assert log.status is (Status.HOLDS if several_rounds else Status.VIOLATED)
    if several_rounds:
        assert (log.records_before, log.records_after) == (2, 2)
        # what lies above the log start is compared
        (after / LOG / f"{0:020d}.log").write_bytes(b"")
        (log,) = certify_copy(before, after, logs.NOW_MS, TOPICS, several_rounds=True).logs
        assert Violation(10, LOST) in log.violations


def test_a_log_with_a_segment_that_was_split_holds(tmp_path: Path) -> None:
    """Its offsets overflow its indexes, which cover its start only."""
    far, now_ms = 2**31 + 5, logs.NOW_MS + 10**6
    wide = logs.build(0, [logs.data_batch(0)])
    wide.files[".log"] += logs.data_batch(far, timestamp=logs.NOW_MS - 1)
    before, after = source(tmp_path, [wide, logs.data_segment(far + 10, [far + 10])])
    clean_copy(before, after, now_ms)
    assert bases(after) == [0, far, far + 10]
    (log,) = certify_copy(before, after, now_ms, TOPICS).logs
    check(log)


def too_low(offset: int, keys: str) -> Batch:
    records = [Record(at, logs.NOW_MS - 1000, key.encode(), b"v") for at, key in enumerate(keys, offset)]
    return Batch(records, max_timestamp=logs.NOW_MS - 5000)


@pytest.mark.parametrize(
    ("rewritten", "violations"),
    [
        (None, ()),
        (replace(too_low(3, "d"), base_offset=2), (Violation(2, "max timestamp of the batch is below that of a record"),)),
    ],
)
def test_only_a_copied_batch_keeps_a_max_timestamp_that_is_too_low(
    tmp_path: Path, rewritten: Batch | None, violations: tuple[Violation, ...]
) -> None:
    """One that is written anew has that of its records; ``rewritten`` replaces the second batch of the result."""
    batches = [too_low(0, "ab"), too_low(2, "cd"), Batch([Record(4, logs.NOW_MS - 1000, b"c", b"v")])]
    before, after = source(tmp_path, [logs.build(0, [each.encode() for each in batches]), logs.data_segment(5, [5])])
    clean_copy(before, after, logs.NOW_MS)
    if rewritten is not None:
        logs.build(0, [each.encode() for each in (batches[0], rewritten, batches[2])]).put(LocalFileSystem(), str(after / LOG))
    (log,) = certify_copy(before, after, logs.NOW_MS, TOPICS).logs
    check(log, *violations)


def test_messages_whose_offsets_lie_in_the_wrapper_before_are_named(tmp_path: Path) -> None:
    """A wrapper has its last offset only, which increases."""
    first, second = ([Record(offset, logs.NOW_MS, b"%d" % offset, b"v") for offset in some] for some in (range(3), range(3, 5)))
    wrapped = [Legacy(messages, 1, "gzip").encode() for messages in (first, second, [first[2], *second])]
    before, after = source(tmp_path, [logs.build(0, wrapped[:2]), logs.data_segment(5, [5])])
    clean_copy(before, after, logs.NOW_MS)
    logs.build(0, [wrapped[0], wrapped[2]]).put(LocalFileSystem(), str(after / LOG))
    (log,) = certify_copy(before, after, logs.NOW_MS, TOPICS).logs
    assert Violation(2, "offset does not increase") in log.violations


@pytest.mark.parametrize("first_offset", [4, 3])
def test_transactions_are_compared_from_the_log_start_on(tmp_path: Path, first_offset: int) -> None:
    """Of the transactions of a log that starts within a segment, those that end below the log start are left to the cleaner."""
    before, after = tmp_path / "before", tmp_path / "after"
    log, aborted = LogBuilder(INTERVAL_BYTES), Batching(producer=8, transactional=True)
    for key in ("below", "above"):
        log.batch([sent(key), sent(f"{key}-2")], aborted)
        log.marker(8, ABORT, timestamp=T)
        log.batch([sent(f"{key}-3")])
    log.roll(T)
    log.batch([sent("active")])
    write_partition(before / f"{TOPIC}-0", log.build(NOW_MS))
    write_offsets(before, log_starts={TOPIC: 3})
    shutil.copytree(before, after)
    clean_locally(after, NOW_MS, {TOPIC: CONFIG})
    index = after / f"{TOPIC}-0" / f"{0:020d}.txnindex"
    (entry,) = indexes.read_txn_index(index.read_bytes()).tolist()
    assert entry[:3] == (8, 4, 6)
    index.write_bytes(indexes.write_txn_index(np.array([(8, first_offset, *entry[2:])], indexes.TXN_ROW)))
    (found,) = certify_copy(before, after, NOW_MS, {TOPIC: CONFIG}).logs
    check(found, *([] if first_offset == 4 else [Violation(6, ".txnindex entry differs from that of the source")]))


def entry(*fields: int) -> Callable[[bytes], bytes]:
    return lambda _: indexes.write_txn_index(np.array([fields], indexes.TXN_ROW))


#: of a directory of ``tests/golden/unclean``, its log end, and a change of its transaction index
UNCLEAN: dict[str, tuple[str, int, Callable[[bytes], bytes] | None]] = {
    "an empty index": ("empty-txnindex", 4, lambda data: data),
    "a malformed index": ("empty-txnindex", 4, lambda _: bytes([1]) * 7),
    "an index of another producer": ("empty-txnindex", 4, entry(3, 2, 3, 4)),
    "an index with other offsets": ("empty-txnindex", 4, entry(2, 1, 2, 3)),
    "garbage after the last batch": ("garbage-tail", 24, None),
}


@pytest.mark.parametrize(("case", "end_offset", "change"), UNCLEAN.values(), ids=UNCLEAN.keys())
def test_what_kafka_makes_of_a_source_after_an_unclean_shutdown_holds(
    tmp_path: Path, case: str, end_offset: int, change: Callable[[bytes], bytes] | None
) -> None:
    """A rebuilt transaction index is not compared with a wrong one, and garbage is no record."""
    golden, before, after = Path(__file__).parents[1] / "golden" / "unclean" / case, tmp_path / "before", tmp_path / "after"
    shutil.copytree(golden / "t-0", before / "t-0")
    if change is not None:
        index = before / "t-0" / f"{0:020d}.txnindex"
        index.write_bytes(change(index.read_bytes()))
    shutil.copytree(golden / "expected-by-kafka", after)
    write_offsets(after, cleaner_offsets={"t": end_offset})
    found = certify_copy(before, after, 1_800_000_000_000, {"t": COMPACT}).logs[0]
    assert found.status is Status.HOLDS, str(found)
