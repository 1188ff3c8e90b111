"""The certifier's own parts, which share nothing with compaction, against plain programs and compaction: the reader of batches,
the walk through segments with its transactions and ranges, the tables of keys, and the expressions for keys."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

from compaction.certifier import key_tables, segments
from compaction.certifier import reader as own
from compaction.certifier.erased_keys import matcher, matching
from compaction.certifier.find_pairs import CleaningRules, LogPair, SegmentFiles, Side
from compaction.certifier.kept_files import _contradiction
from compaction.certifier.key_tables import KeyTables
from compaction.certifier.reader import HEADER_BYTES, ByteRange, Chunk, is_torn, read_batches, read_chunks, read_varint
from compaction.certifier.records import RangeTask, cut_into_ranges
from compaction.certifier.segments import DATA, EVENT_ROW, SegmentWalk, WalkedLog, WalkTask, join_runs, walk_segment
from compaction.certifier.transactions import OPEN, TXN_EVENT_ROW, aborted_data, following, is_aborted, resolve
from compaction.errors import LogError
from compaction.files.contents import view
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader, SegmentScan
from compaction.formats.checkpoints import EpochEntry, EpochRange
from compaction.formats.keys import KeyCriteria, KeyPattern
from compaction.formats.primitives import FormatError
from compaction.kernels.locate import RECORD_ROW
from compaction.kernels.tables import ABORT, BATCH_ROW, COMMIT
from compaction.names import TopicPartition
from tests.kafka.encode import Batch, Legacy, Producer, Record, marker
from tests.kernels.tables import random_segment
from tests.oracle.random_logs import Flavour
from tests.oracle.tables import batch_table

FILES = LocalFileSystem()
FLAVOURS = {
    "modern": Flavour(odd=0.3, codecs=(0, 3)),
    "all magics": Flavour(batches=40, odd=0.3, magics=(0, 1, 2), codecs=(0, 1, 2)),
}
COMPARED = [name for name in BATCH_ROW.names or () if name != "control_type"]


def rows_of(path: Path, start: int, end: int) -> np.ndarray:
    blocks = read_batches(FILES, ByteRange(str(path), start, end))
    return np.concatenate([np.empty(0, BATCH_ROW), *(block.rows for block in blocks)])


def outcome(path: Path, *, certifier: bool) -> tuple[list[list[int]], str | None]:
    """The columns of the rows of a whole file, and the error that ends them."""
    tables, error, size = [np.empty(0, BATCH_ROW)], None, path.stat().st_size
    try:
        if certifier:
            for block in read_batches(FILES, ByteRange(str(path), 0, size)):
                tables.append(block.rows)
        else:
            with SegmentReader(FILES, str(path), 0, size) as reader:
                for each in reader.blocks(check_crc=True):
                    tables.append(each.rows.copy())
    except LogError as failure:
        error = str(failure)
    table = np.concatenate(tables)
    return [table[name].tolist() for name in BATCH_ROW.names or ()], error


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_chunk_with_another_checksum_is_another_one(tmp_path: Path, magic: int) -> None:
    """Values of one size, which nothing else in a header shows."""
    identities = set()
    for value in (b"one", b"two"):
        path = tmp_path / value.decode()
        records = [Record(7, 1_000, b"k", value)]
        path.write_bytes(Batch(records).encode() if magic == 2 else Legacy(records, magic).encode())
        [chunk] = read_chunks([ByteRange(str(path), 0, path.stat().st_size)], 0, 8)
        identities.add(chunk.identity())
    assert len(identities) == 2


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("seed", range(10))
def test_rows_equal_those_of_the_plain_decoder(tmp_path: Path, seed: int, flavour: str) -> None:
    path, segment = tmp_path / "0.log", random_segment(seed, FLAVOURS[flavour])
    path.write_bytes(segment.log)
    expected, size = batch_table(segment), len(segment.log)
    with patch.object(own, "_BLOCK_BYTES", 300):
        found = rows_of(path, 0, size)
    for name in COMPARED:
        mask = 0xFF if name == "attributes" else -1
        assert (found[name] & mask).tolist() == (expected[name] & mask).tolist(), name
    middle = int(found["position"][len(found) // 2])
    assert rows_of(path, middle, size)["base_offset"].tolist() == found["base_offset"][len(found) // 2 :].tolist()


def test_a_compressed_batch_may_have_more_records_than_its_bytes_would_hold(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(Batch([Record(offset, 0, None, None) for offset in range(2000)], "zstd").encode())
    assert path.stat().st_size < 2000
    assert outcome(path, certifier=True) == outcome(path, certifier=False)
    assert rows_of(path, 0, path.stat().st_size)["count"].tolist() == [2000]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_damage_is_what_the_reader_of_compaction_finds(tmp_path: Path, flavour: str) -> None:
    """Each byte of the first batches is changed, and the file is cut at each of them."""
    path, data = tmp_path / "0.log", random_segment(3, FLAVOURS[flavour]).log
    chance = random.Random(1)
    for at in range(min(len(data), 400)):
        for damaged in (data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :], data[:at]):
            path.write_bytes(damaged)
            assert outcome(path, certifier=True) == outcome(path, certifier=False), at


def test_markers_of_any_bytes_are_to_the_reader_what_they_are_to_that_of_compaction(tmp_path: Path) -> None:
    """The checksum is that of the changed bytes: each of a marker's record, and lengths that reach past its end."""
    path, sound = tmp_path / "0.log", marker(7, 1_000, Producer(5, 0), COMMIT)
    for at in range(HEADER_BYTES, len(sound)):
        for byte in {0, 1, 2, 8, 16, 0x7E, 0x80, sound[at] + 2, sound[at] + 4}:
            damaged = bytearray(sound + marker(8, 1_000, Producer(5, 0), COMMIT))
            damaged[at] = byte
            struct.pack_into(">I", damaged, 17, google_crc32c.value(bytes(damaged[21 : len(sound)])))
            path.write_bytes(damaged)
            assert outcome(path, certifier=True) == outcome(path, certifier=False), (at, byte)


@pytest.mark.parametrize(("offset", "valid"), [(2**63 - 2, True), (2**63 - 1, False)])
def test_the_largest_offset_leaves_one_for_the_log_end(tmp_path: Path, offset: int, valid: bool) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(Batch([Record(offset, 1, b"k", b"v")]).encode())
    found = outcome(path, certifier=True)
    assert found == outcome(path, certifier=False)
    assert (found[1] is None) is valid


@pytest.mark.parametrize("unclean", [False, True])
def test_tails_are_torn_that_a_scan_takes_to_be_torn(tmp_path: Path, unclean: bool) -> None:
    path, segment = tmp_path / "0.log", random_segment(5, FLAVOURS["modern"])
    data, rows = segment.log, batch_table(segment)
    chance = random.Random(2)
    found = set()
    for _ in range(300):
        row = chance.randrange(1, len(rows))
        start, size = int(rows["position"][row]), int(rows["size"][row])
        rest = {
            "cut": data[start : start + chance.randrange(size)],
            "zeros": bytes(chance.randrange(1, 300)),
            "never flushed": data[start : start + size // 2] + bytes(size - size // 2),
            "a last byte": data[start : start + size - 8] + bytes(7) + b"\1",
            "changed": bytes(byte ^ (chance.random() < 0.01) for byte in data[start:]),
            "noise": chance.randbytes(chance.randrange(1, 200)),
            "resumes": chance.randbytes(30) + data[start:],
        }[chance.choice(["cut", "zeros", "never flushed", "a last byte", "changed", "noise", "resumes"])]
        path.write_bytes(data[:start] + rest)
        scan = SegmentScan(view(FILES, str(path)), check_crc=True).finish()
        if scan.position == len(data[:start]) + len(rest) or scan.next_offset is None:
            continue
        torn = is_torn(FILES, str(path), scan.position, len(data[:start]) + len(rest), scan.next_offset, unclean=unclean)
        assert torn == (scan.damage(unclean=unclean) is None)
        found.add(torn)
    assert found == {True, False}


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path, data = tmp_path / "0.log", random_segment(7, FLAVOURS["modern"]).log
    path.write_bytes(data[:-5])
    with pytest.raises(LogError, match="file ends here, 5 bytes earlier than when the run began"):
        rows_of(path, 0, len(data))


@pytest.mark.parametrize(
    ("data", "at", "most_bytes", "expected"),
    [
        (b"\x04", 0, 5, (2, 1)), (b"\x00\x81\x01", 1, 5, (-65, 3)), (b"\x81\x01", 0, 1, (0, -1)), (b"\x81", 0, 5, (0, -1)),
        (b"", 0, 5, (0, -1)), (b"\x04", 1, 5, (0, -1)), (b"\x04", -1, 5, (0, -1)),
    ],
)  # fmt: skip
def test_a_varint_that_is_cut_or_too_long_is_malformed(
    data: bytes, at: int, most_bytes: int, expected: tuple[int, int]
) -> None:
    assert read_varint(data, at, len(data), most_bytes) == expected


@pytest.mark.parametrize(("first_of_next", "wrong"), [(5, True), (6, False)])
def test_a_batch_with_offsets_of_another_epoch_contradicts_the_checkpoint(first_of_next: int, wrong: bool) -> None:
    batch = EpochRange(0, 3, 5)
    assert _contradiction([EpochEntry(0, 0), EpochEntry(1, first_of_next)], 0, [batch]) == (batch if wrong else None)


def walk(*events: tuple[int, int, int, int]) -> SegmentWalk:
    """A segment with events of (producer, first, last, kind)."""
    rows = np.array([(producer, first, last, 0, kind) for producer, first, last, kind in events], EVENT_ROW)
    return SegmentWalk(WalkTask(0, SegmentFiles("/log", 0, 0, 0), is_after=False), events=[join_runs(rows)])


def test_an_outcome_is_that_of_the_producers_next_marker_in_any_segment() -> None:
    first = walk((7, 0, 1, DATA), (8, 2, 3, DATA), (7, 4, 5, DATA))
    second = walk((7, 6, 6, ABORT), (8, 7, 7, COMMIT), (7, 8, 9, DATA))
    txns = resolve([first, second])
    found = {(row["producer_id"], row["first"]): row["outcome"] for row in txns}
    assert found == {(7, 0): ABORT, (7, 6): ABORT, (7, 8): OPEN, (8, 2): COMMIT, (8, 7): COMMIT}
    assert aborted_data(txns)[["producer_id", "first", "last"]].tolist() == [(7, 0, 6)]


def walk_of(tmp_path: Path, data: bytes, txns_from: int = 0) -> SegmentWalk:
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    files = SegmentFiles(str(tmp_path), 0, len(data), 0)
    return walk_segment(WalkTask(0, files, is_after=False, txns_from=txns_from))


@pytest.mark.parametrize(("producer", "first", "events"), [(7, 0, 1), (-1, 0, 0), (7, 1, 1), (7, 2, 0)])
def test_batches_of_producers_from_an_offset_on_belong_to_transactions(
    tmp_path: Path, producer: int, first: int, events: int
) -> None:
    records = [Record(0, 1, b"a", b""), Record(1, 1, b"b", b"")]
    batch = Batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True).encode()
    walked = walk_of(tmp_path, batch, txns_from=first)
    assert walked.fault is None
    assert sum(map(len, walked.events)) == events


def test_a_segment_is_cut_where_a_block_begins_so_many_bytes_after_the_cut_before(tmp_path: Path) -> None:
    """A cut is a position and the lowest offset there."""
    batches = [Batch([Record(offset, 1, b"k", bytes(50))]).encode() for offset in range(10, 40, 3)]
    with patch.object(own, "_BLOCK_BYTES", 300), patch.object(segments, "CUT_INTERVAL_BYTES", 300):
        cuts = walk_of(tmp_path, b"".join(batches)).cuts
    size = len(batches[0])
    assert cuts[0] == (0, 0)
    assert len(cuts) > 2
    for (before, _), (position, offset) in pairwise(cuts):
        assert position - before >= 300
        # the offset after that of the batch before it
        assert offset == 10 + 3 * (position // size - 1) + 1


def test_a_malformed_batch_has_its_base_offset_if_that_can_be_one(tmp_path: Path) -> None:
    first, second = (Batch([Record(offset, 1, b"k", b"v")]).encode() for offset in (3, 9))
    for offset, named in ((9, 9), (4, 4), (3, 4), (-1, 4), (2**31 + 3, 2**31 + 3), (2**31 + 4, 4)):
        damaged = struct.pack(">q", offset) + second[8:-1] + b"?"
        fault = walk_of(tmp_path, first + damaged).fault
        assert fault is not None
        assert fault.offset == named, offset


@pytest.mark.parametrize(("producer", "offset", "aborted"), [(7, 0, True), (7, 5, True), (7, 9, False), (8, 3, False)])
def test_a_batch_is_aborted_up_to_the_marker(producer: int, offset: int, aborted: bool) -> None:
    ranges = aborted_data(resolve([walk((7, 0, 5, DATA), (7, 6, 6, ABORT), (7, 8, 9, DATA))]))
    assert is_aborted(ranges, np.array([producer]), np.array([offset])).tolist() == [aborted]


def test_following_finds_what_a_plain_search_finds() -> None:
    rng = np.random.default_rng(1)
    rows = np.zeros(60, EVENT_ROW)
    rows["producer_id"], rows["last"] = known, ends = rng.integers(0, 4, 60), rng.permutation(60)
    producer, offset = rng.integers(0, 5, 80), rng.integers(-1, 62, 80)
    expected = []
    for who, at in zip(producer, offset, strict=True):
        later = [row for row in range(60) if known[row] == who and ends[row] >= at]
        expected.append(min(later, key=lambda row: int(ends[row]), default=-1))
    assert following(rows, producer, offset).tolist() == expected


#: from 0 to 45, and from 130 to 180
ABORTED = np.array([(7, 0, 45, 0, DATA, ABORT, 45), (7, 130, 180, 0, DATA, ABORT, 180)], TXN_EVENT_ROW)
DAY_MS = 86_400_000


def segment(base: int, next_offset: int, cuts: list[tuple[int, int]], size: int, mtime_ms: int = 0) -> SegmentWalk:
    files = SegmentFiles("/log", base, size, mtime_ms)
    return SegmentWalk(WalkTask(0, files, is_after=False), size_bytes=size, next_offset=next_offset, cuts=cuts)


BEFORE = [segment(0, 100, [(0, 0), (60, 40)], 120, 12 * DAY_MS), segment(100, 200, [(0, 100), (50, 160)], 80, 9 * DAY_MS)]
AFTER = [segment(0, 200, [(0, 0), (30, 50), (55, 120)], 70)]


def ranges(size: int, cleaned_to: int | None = None, *, several_rounds: bool = False) -> list[RangeTask]:
    def side(walks: list[SegmentWalk], checkpoint: int | None) -> Side:
        return Side(tuple(walk.task.files for walk in walks), 0, checkpoint)

    rules = CleaningRules(0, several_rounds=several_rounds)
    pair = LogPair(TopicPartition("t", 0), side(BEFORE, cleaned_to), side(AFTER, 200), rules)
    return list(cut_into_ranges(0, WalkedLog(pair, BEFORE, AFTER), ABORTED, size))


@pytest.mark.parametrize(("size", "count"), [(1, 4), (100, 2), (1 << 30, 1)])
def test_ranges_follow_one_another_and_read_before_once(size: int, count: int) -> None:
    tasks = ranges(size)
    assert len(tasks) == count
    assert tasks[0].first_offset == 0
    assert tasks[-1].end_offset == 2**63 - 1
    assert [task.end_offset for task in tasks[:-1]] == [task.first_offset for task in tasks[1:]]
    assert sum(each.end - each.start for task in tasks for each in task.before) == 200


def test_a_range_reads_the_bytes_of_after_that_may_hold_its_offsets() -> None:
    found = [[(each.start, each.end) for each in task.after] for task in ranges(1)]
    assert found == [[(0, 30)], [(0, 55)], [(30, 70)], [(55, 70)]]
    assert [task.aborted["first"].tolist() for task in ranges(1)] == [[0], [0], [130], [130]]


@pytest.mark.parametrize(
    ("cleaned_to", "several_rounds", "horizon_ms"),
    [(None, False, 8 * DAY_MS), (0, False, 0), (100, False, 11 * DAY_MS), (100, True, 11 * DAY_MS)],
)
def test_old_tombstones_may_be_dropped_by_the_time_of_a_last_clean_segment(
    cleaned_to: int | None, several_rounds: bool, horizon_ms: int
) -> None:
    found = ranges(1, cleaned_to, several_rounds=several_rounds)
    assert {task.legacy_delete_horizon_ms for task in found} == {horizon_ms}


class Seen(NamedTuple):
    """A record of ``before``."""

    key: bytes
    offset: int
    missing: bool = False
    droppable: bool = False


LOST = "record is missing though it is the last of its key"
EARLY = "tombstone is missing though older records of its key are retained"
EXTRA = "older records of this record's key are retained"


def tables(records: list[Seen], partitions: int = 1) -> list[tuple[int, bytes]]:
    keys = KeyTables(partitions, 5)
    data = b"".join(each.key for each in records)
    rows = np.zeros(len(records), RECORD_ROW)
    rows["offset"] = [each.offset for each in records]
    rows["key_size"] = [len(each.key) for each in records]
    rows["key_at"] = np.cumsum(rows["key_size"]) - rows["key_size"]
    chunk = Chunk(np.zeros(1, BATCH_ROW), rows, np.frombuffer(data, np.uint8), "", 0)
    flags = (np.array([getattr(each, name) for each in records], np.bool_) for name in ("missing", "droppable"))
    keys.add(chunk, np.arange(len(records)), *flags)
    return list(keys.packed())


def concluded(*tasks: list[Seen], strict: bool = False) -> tuple[set[tuple[int, str]], dict[str, int]]:
    joined = KeyTables()
    for _, packed in (each for task in tasks for each in tables(task)):
        joined.add_packed(packed)
    findings, counts = joined.conclude(strict=strict)
    return {(each.offset, each.what) for each in findings.named}, {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("records", "violations", "counts"),
    [
        ([Seen(b"a", 1), Seen(b"b", 2)], set(), {}),
        ([Seen(b"a", 1, missing=True), Seen(b"a", 2)], set(), {"superseded": 1}),
        ([Seen(b"a", 1), Seen(b"a", 2)], set(), {"superseded_left": 1}),
        ([Seen(b"a", 1, missing=True)], {(1, LOST)}, {}),
        ([Seen(b"a", 1), Seen(b"a", 2, missing=True)], {(2, LOST)}, {"superseded_left": 1}),
        ([Seen(b"a", 1, missing=True, droppable=True)], set(), {"tombstone": 1}),
        ([Seen(b"a", 1, missing=True), Seen(b"a", 2, missing=True, droppable=True)], set(), {"superseded": 1, "tombstone": 1}),
        ([Seen(b"a", 1), Seen(b"a", 2, missing=True, droppable=True)], {(2, EARLY)}, {"tombstone": 1, "superseded_left": 1}),
        ([Seen(b"", 1, missing=True), Seen(b"", 2), Seen(b"\0", 3, missing=True)], {(3, LOST)}, {"superseded": 1}),
    ],
)
def test_a_missing_record_is_superseded_a_tombstone_or_lost(
    records: list[Seen], violations: set[tuple[int, str]], counts: dict[str, int]
) -> None:
    assert concluded(records) == (violations, counts)
    assert concluded(*([each] for each in records)) == (violations, counts)


def test_retained_superseded_records_are_violations_when_strict() -> None:
    assert concluded([Seen(b"a", 1), Seen(b"a", 9)], strict=True)[0] == {(9, EXTRA)}


def test_a_key_is_in_the_same_partition_for_every_task() -> None:
    keys = [b"key-%d" % number for number in range(200)]
    found: list[dict[int, set[bytes]]] = []
    for task in (keys, keys[::-1]):
        packed = tables([Seen(key, number) for number, key in enumerate(task)], partitions=7)
        found.append({partition: set(pa.ipc.open_stream(table).read_all()["key"].to_pylist()) for partition, table in packed})
    assert found[0] == found[1]
    assert (set(found[0]), sum(map(len, found[0].values()))) == (set(range(7)), 200)


def test_tables_that_outgrow_memory_are_joined_and_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_tables, "_JOIN_BYTES", 1)
    monkeypatch.setattr(key_tables, "_SPILL_BYTES", 1)
    assert concluded([Seen(b"a", 1, missing=True), Seen(b"a", 2)], [Seen(b"a", 3, missing=True)]) == (
        {(3, LOST)},
        {"superseded": 1, "superseded_left": 1},
    )


KEYS = ["josé".encode(), b"jos\xe9", b"jose", "©".encode(), b"", b"\xff", "josé".encode()]
TEXTS = [
    "", "a", "A", "b", "ab", "aab", "abc", "a.c", "a\nb", "\n", "a b", "aé", "é", "É", "jos", "jose", "josé", "JOSÉ", "Josё",
    "©", "½", "£", "à", "ÿ", "àÿ", "Ā", "k", "K", "\u212a", "s", "S", "ſ", "ß", "ẞ", "ss", "İ", "i", "I", "ı", "ΐ", "\u1fd3",
    "ключ", "КЛЮЧ", "鍵", "0", "9", "42", "٣", "_", "-", "]", "^", "\\", "[", "{", "}", "{2}", "a{,2}", "\t", "\x0b", "\u00a0",
    "user-17", "USER-17", "user-17:x", "user-1\x007", "a|b", "(", ")", "$", "😀", "a😀", "e\u0301", ".", "+", "aaaa", "abab",
    "~", "a~",
]  # fmt: skip
EXPRESSIONS = [
    "a", "ab?", "a|b", "a|ab|abc", "(a|b)+", "(?:ab)*", "a{2}", "a{1,3}b?", "a{2,}", "a*?b", "a+?b??",
    ".", "..", "a.c", r"a\.c", "[à-ÿ]+", "[^a]", "[^à-ÿ]+", "jos[eé]", "josé?", "é+", "(?i)jose", "(?i)k", "(?i)s", "(?i)i",
    "(?i)[^k]", "(?i)[a-c]+", r"(?i)\w", r"(?i)\W", "(?i)[j-l]", "(?i)[^j-s]", r"jos\xe9", r"user-1\x007", r"\d+", r"\D",
    r"\w+", r"\W", r"[\d_]+", r"[^\d]", r"[\D]", r"[\w-]+", "[a-]", "[-a]", r"[\]]", r"[\\]", "^a$", "^", "$", "(a$|^b)",
    r"\^", r"\$", r"\{2\}", "}", r"\|", r"a\|b", "[+.]", r"\t", r"\v", r"[\t\v]", "()", "a||b", "(|a)b", "[ -~]+",
    "[\x00-\U0010ffff]", "(a|b){2}", "(ab){2}", "user-(1[0-9]|2)(:.*)?",
]  # fmt: skip
#: RE2 accepts these
REFUSED = [
    "a{,2}", "(?P<n>a)b", "(?-s).", "(?-s:.)+", "(?i)josé", r"(?i)\xe9", "(?i)ß", "(?i:k)|a", "a(?i)|K",
    r"jos\x{e9}", r"\101", r"\0", r"\s", r"[\s]", "[]a]", "[^]a]", "[[:alpha:]]", r"\pL", r"[\pN_]", r"\p{Greek}", r"\Qa.c\E",
    "(?m)^a$", r"\Aa\z", r"a\b.*", r"\B", "(?U)a.+", "(?s).", r"a\C", "[a||b]", "[a&&b]", "^*a",
]  # fmt: skip
PIECES = [
    "a", "b", "K", "é", ".", r"\d", r"\W", r"\.", r"\xe9", "[a-c]", "[^k]", r"[\w-]", "[-|&]", "(", "(?:", ")", "|", "*", "+",
    "?", "{2}", "{1,}", "{,2}", "*?", "^", "$", "]", "}", "-", "&", "~", "[", r"\s", "(?i)", "\n", "#", " ",
]  # fmt: skip


def by_re2(pattern: str, keys: list[bytes]) -> list[bytes]:
    meant = KeyPattern.parse(pattern).matching(pa.array(keys, pa.binary()))
    return [key for key, found in zip(keys, meant.tolist(), strict=True) if found]


def by_certifier(pattern: str, keys: list[bytes]) -> list[bytes]:
    return list(filter(matcher(KeyPattern.parse(pattern)), keys))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_matches_what_re2_matches(expression: str) -> None:
    keys = [text.encode() for text in TEXTS]
    assert by_certifier(f"regex={expression}", keys) == by_re2(f"regex={expression}", keys)


@pytest.mark.parametrize(
    "expression",
    [
        ".", "..", r"\xe9", r"(?i)\xe9", "(?i)josE", r"[\xe0-\xff]+", "[^a]", r"\w+", r"jos.+", r"\x00.*", "(?i)K",
        r"[\x80-\xff]{2}",
    ],
)  # fmt: skip
def test_an_expression_over_bytes_matches_what_re2_matches(expression: str) -> None:
    keys = [*(bytes([number]) for number in range(256)), *(text.encode() for text in TEXTS), b"jos\xe9", b"\x00\xff\n"]
    assert by_certifier(f"bytes={expression}", keys) == by_re2(f"bytes={expression}", keys)


def test_random_expressions_match_what_re2_matches_or_are_refused() -> None:
    rng, keys, judged = random.Random(7), [text.encode() for text in TEXTS], 0
    for _ in range(3_000):
        kind, expression = rng.choice(("regex", "bytes")), "".join(rng.choices(PIECES, k=rng.randrange(1, 6)))
        try:
            pattern = KeyPattern.parse(f"{kind}={expression}")
            found = list(filter(matcher(pattern), keys))
        except FormatError:
            continue
        judged += 1
        assert found == by_re2(f"{kind}={expression}", keys), expression
    assert judged > 500


@pytest.mark.parametrize("expression", REFUSED)
def test_an_expression_that_python_may_read_differently_is_refused(expression: str) -> None:
    pattern = KeyPattern.parse(f"regex={expression}")
    with pytest.raises(FormatError, match=r"has .*(does not read|list both cases)"):
        matcher(pattern)


@pytest.mark.parametrize(
    ("keys", "patterns", "expected"),
    [
        ([b"jose", b"\xff"], [], [2, 5]),
        ([], ["regex=jos[eé]"], [0, 2, 6]),
        ([], ["regex=.*"], [0, 2, 3, 4, 6]),
        ([], ["bytes=.*"], [0, 1, 2, 3, 4, 5, 6]),
        ([], [r"bytes=jos\xe9"], [1]),
        ([], ["prefix=jos", "regex=[à-ÿ]"], [0, 1, 2, 6]),
        ([b""], ["prefix=josé"], [0, 4, 6]),
    ],
)
def test_the_certifier_finds_the_keys_that_the_erasure_finds(
    keys: list[bytes], patterns: list[str], expected: list[int]
) -> None:
    criteria = KeyCriteria.of(pa.array(keys, pa.binary()), tuple(map(KeyPattern.parse, patterns)))
    array = pa.array(KEYS, pa.binary())
    assert [number for number, found in enumerate(matching(criteria, array).tolist()) if found] == expected
    assert criteria.matching(array).tolist() == matching(criteria, array).tolist()
    assert matching(criteria, array[:0]).tolist() == []
