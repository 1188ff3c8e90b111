"""The helpers themselves: Kafka reads the encoded batches, and its cleaner does on a directory what it does in a broker."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.kafka.cleaner import clean_open_log, clean_partition, select
from tests.kafka.encode import ABORT, CODECS, COMMIT, Batch, Legacy, Producer, Record, marker
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening, expire_partition
from tests.kafka.reader import ReadRecord, kafka_records
from tests.kafka.tools import dump_log

pytestmark = pytest.mark.kafka

T = 1_700_000_000_000
DAY = 86_400_000
NOW = Opening(T + 30 * DAY, {"cleanup.policy": "compact"})


def records(first: int, keys: str, *, size: int = 10) -> list[Record]:
    """One record per letter, at consecutive offsets; a capital letter is a tombstone of its key."""
    return [
        Record(first + at, T + first + at, key.lower().encode(), None if key.isupper() else bytes([65 + at]) * size)
        for at, key in enumerate(keys)
    ]


def survivors(gateway: Gateway, path: Path) -> list[tuple[int, bytes | None]]:
    """Offset and key of every remaining record, including control records."""
    files = sorted(path.glob("*.log"))
    return [(one.offset, one.key) for file in files for one in kafka_records(gateway, file)]


def names(path: Path) -> list[str]:
    """Segments, by the number in their file name."""
    return [str(int(file.stem)) for file in sorted(path.glob("*.log"))]


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_reads_back_every_field_of_an_encoded_v2_batch(gateway: Gateway, tmp_path: Path, codec: str) -> None:
    headers = ((b"h", b"1"), (b"null", None), (b"empty", b""))
    made = [Record(7, T, b"k", b"v" * 70_000, headers), Record(9, T + 5, b"", b""), Record(12, T - 5, None, None)]
    with KafkaLog(gateway, tmp_path / "t-0", NOW) as log:
        log.append(Batch(made, codec, base_offset=5, last_offset=14).encode())
        assert log.end_offset == 15
    found = kafka_records(gateway, tmp_path / "t-0" / f"{0:020d}.log")
    assert found == [ReadRecord(*one[:4], tuple((name.decode(), value) for name, value in one.headers)) for one in made]


@pytest.mark.parametrize(("magic", "codec"), list(itertools.product((0, 1), ("none", "gzip", "snappy", "lz4"))))
def test_kafka_reads_back_encoded_message_sets(gateway: Gateway, tmp_path: Path, magic: int, codec: str) -> None:
    made = [Record(3, T, b"k", b"v" * 70_000), Record(4, T + 9, b"", b""), Record(8, T + 5, None, None)]
    with KafkaLog(gateway, tmp_path / "t-0", NOW) as log:
        log.append(Legacy(made, magic, codec).encode())
        assert log.end_offset == 9
    found = kafka_records(gateway, tmp_path / "t-0" / f"{0:020d}.log")
    assert found == [ReadRecord(one.offset, one.timestamp if magic else -1, one.key, one.value, ()) for one in made]


def test_the_cleaner_keeps_the_last_value_of_a_key_and_the_active_segment(gateway: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with KafkaLog(gateway, path, NOW) as log:
        log.write([[Batch(records(0, "aab")).encode()], [Batch(records(3, "bc")).encode()], [Batch(records(5, "aa")).encode()]])
    active = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.glob(f"{5:020d}.*")}
    before = {file.name for file in path.iterdir()}

    outcome = clean_partition(gateway, path, NOW)

    assert (outcome.selected.first_dirty_offset, outcome.selected.first_uncleanable_offset, outcome.end_offset) == (0, 5, 5)
    assert (outcome.stats.messages_read, outcome.stats.messages_written, outcome.stats.invalid_messages_read) == (5, 3, 0)
    assert survivors(gateway, path) == [(1, b"a"), (3, b"b"), (4, b"c"), (5, b"a"), (6, b"a")]
    assert names(path) == ["0", "5"]
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.glob(f"{5:020d}.*")} == active
    assert {file.name for file in path.iterdir()} < before, "no file is new, those of the joined segment are gone"


def test_a_later_round_drops_a_tombstone_once_its_horizon_has_passed(gateway: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "t-0"

    def add(first: int, keys: str) -> None:
        with KafkaLog(gateway, path, NOW) as log:
            log.append(Batch(records(first, keys)).encode())
            log.roll()

    add(0, "aAb")
    end = clean_partition(gateway, path, NOW).end_offset
    assert clean_partition(gateway, path, NOW.at(NOW.now_ms + DAY), end).end_offset == 0, "without dirty data nothing is done"
    assert survivors(gateway, path) == [(1, b"a"), (2, b"b")]

    add(3, "c")
    end = clean_partition(gateway, path, NOW.at(NOW.now_ms + DAY - 1), end).end_offset
    assert survivors(gateway, path) == [(1, b"a"), (2, b"b"), (3, b"c")]

    add(4, "d")
    clean_partition(gateway, path, NOW.at(NOW.now_ms + DAY), end)
    assert survivors(gateway, path) == [(2, b"b"), (3, b"c"), (4, b"d")]


def test_transactions_are_resolved_from_their_batches_and_markers(gateway: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    one, two = Producer(1), Producer(2)

    def part(first: int, keys: str, who: Producer, sequence: int) -> bytes:
        made = records(first, keys)
        return Batch(made, producer_id=who.id, producer_epoch=0, base_sequence=sequence, transactional=True).encode()

    with KafkaLog(gateway, path, NOW) as log:
        log.write(
            [
                [part(0, "ab", one, 0), marker(2, T, one, ABORT), part(3, "a", one, 2), marker(4, T, one, COMMIT)],
                [part(5, "c", two, 0)],
                [part(6, "d", one, 3)],
            ]
        )
        assert select(log, None).first_uncleanable_offset == 5, "the open transaction holds the end back"
        assert log.java.lastStableOffset() == 5
        clean_open_log(log, None)
    assert [offset for offset, _ in survivors(gateway, path)] == [2, 3, 4, 5, 6]
    assert (path / f"{0:020d}.txnindex").stat().st_size == 34


def test_a_small_map_ends_the_round_early(gateway: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with KafkaLog(gateway, path, NOW) as log:
        log.write(
            [[Batch(records(0, "abcd")).encode()], [Batch(records(4, "efgh")).encode()], [Batch(records(8, "z")).encode()]]
        )
    assert clean_partition(gateway, path, NOW, map_bytes=24 * 6).end_offset == 5, "0.9 of six slots, in the middle of a batch"


def test_tombstones_of_v0_and_v1_are_dropped_by_modification_time(gateway: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with KafkaLog(gateway, path, NOW) as log:
        log.write([[Legacy(records(at, key), 1).encode()] for at, key in enumerate("Abcd")])
    for base, age_ms in ((0, 2 * DAY), (1, 0)):
        os.utime(path / f"{base:020d}.log", ns=((T - age_ms) * 10**6, (T - age_ms) * 10**6))
    clean_partition(gateway, path, NOW, checkpoint=2)
    assert survivors(gateway, path) == [(1, b"b"), (2, b"c"), (3, b"d")]


def test_segment_deletion_removes_the_oldest_segments_and_moves_the_log_start(gateway: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    opening = Opening(T + DAY + 5, {"cleanup.policy": "delete", "retention.ms": str(DAY)})
    with KafkaLog(gateway, path, opening) as log:
        log.write(
            [[Batch(records(0, "ab")).encode()], [Batch(records(2, "ccccc")).encode()], [Batch(records(7, "d")).encode()]]
        )
    assert expire_partition(gateway, path, opening) == (1, 2)
    assert names(path) == ["2", "7"]


def test_the_dump_tool_prints_a_segment(gateway: Gateway, tmp_path: Path) -> None:
    with KafkaLog(gateway, tmp_path / "t-0", NOW) as log:
        log.append(Batch(records(0, "ab"), "zstd").encode())
    text = dump_log([tmp_path / "t-0" / f"{0:020d}.log"], "--print-data-log")
    assert "compresscodec: zstd" in text
    assert text.count("| offset: ") == 2
