"""The oracle compared with Kafka's own ``Cleaner``: random logs, four rounds each, every file byte by byte.

If the compressors differ, compressed batches are compared by header and records; then the indexes are those that the oracle's
writer builds from Kafka's batches.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compaction.formats.producer_snapshot import ProducerEntry
from tests.kafka.cleaner import CleanResult, clean_partition
from tests.kafka.gateway import Gateway
from tests.kafka.log import Opening
from tests.oracle.cleaner import NaiveConfig, NaiveResult, NaiveRound, after_round, clean_log_naively
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.logs import ABORT, COMMIT, Batching, LogBuilder, Sent
from tests.oracle.random_logs import Flavour, RandomLog, random_log
from tests.oracle.records import NaiveBatch
from tests.oracle.segments import NaiveSegment, write_segment

pytestmark = pytest.mark.kafka

_MAP_ENTRY_BYTES = 24
ROUNDS = 4

FLAVOURS = {
    "plain": (Flavour(batches=80), 16),
    "small": (Flavour(batches=40, keys=4), 16),
    "markers": (Flavour(batches=70, keys=2, producers=12), 12),
    "one key": (Flavour(batches=40, keys=1, producers=0, transactions=False), 6),
    "no transactions": (Flavour(batches=60, transactions=False, keys=40), 6),
    "message sets": (Flavour(magics=(0, 1, 2)), 8),
    "gzip": (Flavour(codecs=(1,), magics=(0, 1, 2)), 6),
    "snappy": (Flavour(codecs=(2,), magics=(0, 1, 2)), 6),
    "lz4": (Flavour(codecs=(3,), magics=(0, 1, 2)), 6),
    "zstd": (Flavour(codecs=(0, 4), magics=(1, 2)), 6),
}

#: events that must have occurred in the logs of a flavour by the end
MUST_SHOW = {
    "plain": {"joined", "rewritten", "horizon", "partial", "aborted kept", "empty data batch"},
    "markers": {"empty control batch", "empty data batch", "aborted kept"},
    "one key": {"emptied group"},
}


@dataclass(frozen=True)
class Setting:
    """One log and its state through the rounds."""

    config: NaiveConfig
    map_bytes: int
    checkpoint: int
    producers: tuple[ProducerEntry, ...]
    high_watermark: int | None = None


def random_setting(rng: random.Random, log: RandomLog) -> Setting:
    slots = rng.choice([1 << 16, 1 << 16, 1 << 16, 8])
    config = NaiveConfig(
        segment_bytes=rng.choice([3_000, 6_000, 1 << 20]),
        index_interval_bytes=200,
        delete_retention_ms=rng.choice([0, 1_000, 10**9]),
        max_keys=int(slots * 0.9),
    )
    top = log.segment_bases()[-1]
    low = log.segments[0].base_offset
    checkpoint = rng.choice([low, log.segments[len(log.segments) // 2].base_offset, rng.randrange(low, top + 1)])
    active = tuple(entry for entry in log.producers if rng.random() < 0.8 or entry.current_txn_first_offset >= 0)
    # below an active segment that is not replicated, the round may end at the high watermark
    high_watermark = log.segments[-1].base_offset if rng.random() < 0.3 else None
    return Setting(config, slots * _MAP_ENTRY_BYTES, min(checkpoint, top), active, high_watermark)


def kafka_cleans(
    gateway: Gateway, path: Path, segments: Sequence[NaiveSegment], setting: Setting, now_ms: int, checkpoint: int
) -> CleanResult:
    """Writes the log as after a clean shutdown and has Kafka clean it."""
    write_partition(path, segments)
    write_producers(path, segments[-1].next_offset, (e._replace(last_timestamp_ms=now_ms) for e in setting.producers))
    topic = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": str(setting.config.segment_bytes),
        "segment.index.bytes": str(setting.config.segment_index_bytes),
        "index.interval.bytes": str(setting.config.index_interval_bytes),
        "delete.retention.ms": str(setting.config.delete_retention_ms),
    }
    opening = Opening(now_ms, topic, segments[0].base_offset, setting.high_watermark, clean_shutdown=True)
    return clean_partition(gateway, path, opening, checkpoint, setting.map_bytes)


@pytest.mark.parametrize("name", FLAVOURS)
def test_four_rounds_equal_kafkas(gateway: Gateway, tmp_path: Path, name: str) -> None:
    flavour, logs = FLAVOURS[name]
    seen: Counter[str] = Counter()
    for seed in range(logs):
        rng = random.Random(seed)
        log = random_log(seed, flavour)
        setting = random_setting(rng, log)
        segments, checkpoint, now_ms = log.segments, setting.checkpoint, log.end_ms + 2_000
        for number in range(ROUNDS):
            path = tmp_path / f"log{seed}-{number}"
            cleaned = kafka_cleans(gateway, path, segments, setting, now_ms, checkpoint)
            first, end = cleaned.selected.first_dirty_offset, cleaned.selected.first_uncleanable_offset
            bounds = NaiveRound(first, end, now_ms, segments[0].base_offset, setting.producers)
            round_ = replace(bounds, high_watermark=setting.high_watermark)
            expected = clean_log_naively(segments, setting.config, round_)
            segments = compared(segments, expected, cleaned, path, f"{name}, seed {seed}, round {number}")
            seen += features(expected)
            seen["partial"] += expected.end_offset < end
            checkpoint = expected.end_offset if rng.random() < 0.4 else checkpoint
            now_ms += rng.choice([0, 500, 1_000, 2_000, 10**9])
            shutil.rmtree(path)
    assert not MUST_SHOW.get(name, {"joined", "rewritten", "horizon"}) - set(seen)


def compared(
    segments: Sequence[NaiveSegment], expected: NaiveResult, cleaned: CleanResult, path: Path, where: str
) -> list[NaiveSegment]:
    """Compares all results of a round; returns Kafka's segments for the next one."""
    ours, theirs = after_round(segments, expected), read_partition(path)
    assert [segment.base_offset for segment in ours] == [segment.base_offset for segment in theirs], where
    assert expected.end_offset == cleaned.end_offset, where
    same_bytes = all(our.log == their.log for our, their in zip(ours, theirs, strict=True))
    for our, their in zip(ours, theirs, strict=True):
        if same_bytes:
            assert our == their, where
        else:
            assert list(map(content, our.batches)) == list(map(content, their.batches)), where
            raw = [batch.raw for batch in their.batches]
            assert all(batch.codec for batch, other in zip(our.batches, their.batches, strict=True) if batch.raw != other.raw)
            assert write_segment(their.base_offset, raw, 200, our.mtime_ms, our.aborted_txns) == their, where
    kafka = dict(vars(cleaned.stats))
    naive = {name: getattr(expected.stats, name) for name in kafka}
    if not same_bytes:
        naive["bytes_written"] = kafka["bytes_written"]
    assert naive == kafka, where
    return theirs


def content(batch: NaiveBatch) -> tuple[object, ...]:
    """A batch without the fields that depend on its compressor."""
    return (*vars(replace(batch, raw=b"", position=0)).values(), *batch.records())


def features(result: NaiveResult) -> Counter[str]:
    """The events of a round."""
    seen: Counter[str] = Counter()
    for group in result.groups:
        seen["joined"] += len(group.sources) > 1
        seen["emptied group"] += not group.cleaned.log
        seen["aborted kept"] += len(group.cleaned.aborted_txns)
        for batch in group.cleaned.batches:
            seen["empty control batch" if batch.control else "empty data batch"] += batch.count == 0
            seen["rewritten"] += 0 < batch.count <= batch.last_offset - batch.base_offset
            seen["horizon"] += batch.delete_horizon_ms is not None
    return +seen


def big_batches(log: LogBuilder) -> None:
    for size in (200_000, 300_000, 900_000):
        log.batch([Sent(b"a", b"x" * size), Sent(b"b" * 70_000, b"y"), Sent(b"c%d" % size, b"z" * 50_000)])
    log.batch([Sent(b"a", None)])


def nested_message_sets(log: LogBuilder) -> None:
    for codec in (1, 2, 3):
        for magic in (0, 1):
            sent = [Sent(b"k%d" % at, b"v", 2_000 + at) for at in range(codec, codec + 4)]
            log.legacy(sent, magic, codec, inner_magic=1 - magic)
            log.legacy(sent, magic, codec, inner_magic=1 - magic, log_append_ms=3_000)


def horizons_set_before(log: LogBuilder) -> None:
    for horizon in (4_999, 5_000, 5_001):
        for append in (None, 800):
            how = Batching(horizon_ms=horizon, log_append_ms=append)
            log.batch([Sent(b"t%d" % log.next_offset, None, 9_000), Sent(b"a", b"1", 9_001), Sent(b"b", None, 100)], how)
            log.marker(3, COMMIT, replace(how, epoch=horizon))
            log.marker(3, ABORT, replace(how, epoch=horizon))
            log.batch([], Batching(producer=5, transactional=append is None))
            log.marker(4, COMMIT, empty=True)


SITUATIONS = (big_batches, nested_message_sets, horizons_set_before)


@pytest.mark.parametrize("first_dirty", [0, 1, 5])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_special_case_equals_kafkas_result(
    gateway: Gateway, tmp_path: Path, situation: Callable[[LogBuilder], None], first_dirty: int
) -> None:
    log = LogBuilder(index_interval_bytes=200)
    situation(log)
    log.roll(4_000)
    segments = log.build(4_000)
    setting = Setting(NaiveConfig(index_interval_bytes=200, delete_retention_ms=1_000), 1 << 20, first_dirty, log.producers())
    if log.open_txns:
        setting = replace(setting, producers=tuple(e._replace(current_txn_first_offset=-1) for e in setting.producers))
    for now_ms in (5_000, 6_000, 7_000):
        path = tmp_path / f"t-{now_ms}"
        cleaned = kafka_cleans(gateway, path, segments, setting, now_ms, first_dirty)
        round_ = NaiveRound(first_dirty, segments[-1].base_offset, now_ms, 0, setting.producers)
        expected = clean_log_naively(segments, setting.config, round_)
        segments = compared(segments, expected, cleaned, path, situation.__name__)


def test_header_names_that_are_no_utf8_are_replaced_in_both(gateway: Gateway, tmp_path: Path) -> None:
    names = [b"\xff", b"a\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3\x28", b"\xed\xa0\x80", b"\x80\x81", "😀".encode()]
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"b", b"2", headers=tuple((name, b"x") for name in names))], Batching())
    log.batch([Sent(b"a", b"3")])
    log.roll(1_000)
    segments = log.build(1_000)
    setting = Setting(NaiveConfig(), 1 << 20, 0, ())
    kafka_cleans(gateway, tmp_path / "t-0", segments, setting, 5_000, 0)
    expected = clean_log_naively(segments, setting.config, NaiveRound(0, 3, 5_000))
    assert read_partition(tmp_path / "t-0")[0] == expected.groups[0].cleaned
