"""Recovery as a whole: torn tails, damage, and the report that replaces reading the segments again."""

from __future__ import annotations

import pytest

from compaction.errors import CorruptLogError
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.read_log import ReadOptions, read_log, read_segments
from compaction.names import INDEX, LOG
from compaction.recovery.recover import recover_log
from tests.log.logs import NOW_MS, build, data_batch, data_segment, idempotent_batch, put_snapshot, tree
from tests.recovery.small_logs import HERE, PATH, flipped, log_with, name, three


def test_a_valid_log_is_not_changed() -> None:
    fs = three()
    before = tree(fs, PATH)
    assert recover_log(fs, HERE).actions == []
    assert tree(fs, PATH) == before


TAILS = {
    "half a batch": data_batch(108)[:-7],
    "less than a header": data_batch(108)[:9],
    "zeros": bytes(5000),
    "a batch whose end was not flushed": data_batch(108)[:-9] + bytes(9),
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_torn_tail_of_the_active_segment_is_ignored_and_kept(tail: bytes) -> None:
    fs = three()
    active = name(200, LOG)
    fs.put(active, fs.read_bytes(active) + tail)
    report = recover_log(fs, HERE)
    assert report.torn_tail_bytes == len(tail)
    assert fs.read_bytes(active).endswith(tail)


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_torn_tail_of_an_inactive_segment_is_an_error(tail: bytes) -> None:
    fs = three()
    size = len(fs.read_bytes(name(100, LOG)))
    fs.put(name(100, LOG), fs.read_bytes(name(100, LOG)) + tail)
    with pytest.raises(CorruptLogError) as caught:
        recover_log(fs, HERE)
    assert (caught.value.path, caught.value.position) == (name(100, LOG), size)


UNCLEAN_TAILS = {
    "0xff": bytes([255]) * 300,
    "a batch that fails its CRC": flipped(data_batch(201), 70),
    "half a batch, then garbage": data_batch(201)[:40] + bytes([7]) * 90,
    "zeros, then garbage": bytes(100) + bytes([7]) * 90,
    "an unknown magic": data_batch(201)[:16] + bytes([9]) + data_batch(201)[17:],
    "a length that runs past the end": data_batch(201)[:8] + (1 << 30).to_bytes(4, "big") + data_batch(201)[12:],
}


@pytest.mark.parametrize("tail", UNCLEAN_TAILS.values(), ids=UNCLEAN_TAILS.keys())
def test_after_an_unclean_shutdown_the_active_segment_may_end_in_anything(tail: bytes) -> None:
    fs = three()
    active = name(200, LOG)
    size = len(fs.read_bytes(active))
    fs.put(active, fs.read_bytes(active) + tail)
    report = recover_log(fs, HERE)
    assert (report.torn_tail_bytes, report.segments[-1].size_bytes, report.segments[-1].next_offset) == (len(tail), size, 201)


@pytest.mark.parametrize("tail", [tail for name, tail in UNCLEAN_TAILS.items() if "length" not in name])
def test_after_a_clean_shutdown_it_may_not(tail: bytes) -> None:
    fs = three()
    fs.put(name(200, LOG), fs.read_bytes(name(200, LOG)) + tail)
    with pytest.raises(CorruptLogError):
        recover_log(fs, HERE, checkpoints=Checkpoints("/logs", clean_shutdown=True))


@pytest.mark.parametrize("tail", UNCLEAN_TAILS.values(), ids=UNCLEAN_TAILS.keys())
def test_no_valid_batch_is_taken_for_a_tail(tail: bytes) -> None:
    fs = three()
    size = len(fs.read_bytes(name(200, LOG)))
    fs.put(name(200, LOG), fs.read_bytes(name(200, LOG)) + tail + data_batch(202))
    with pytest.raises(CorruptLogError) as caught:
        recover_log(fs, HERE)
    assert (caught.value.path, caught.value.position) == (name(200, LOG), size)


@pytest.mark.parametrize("at", [8, 9, 16, 20, 40, 70])
def test_damage_within_the_active_segment_is_not_a_torn_tail(at: int) -> None:
    fs = log_with(data_segment(0, [5]), data_segment(100, [105, 106, 107]))
    first = len(data_batch(105))
    fs.put(name(100, LOG), flipped(fs.read_bytes(name(100, LOG)), first + at))
    with pytest.raises(CorruptLogError) as caught:
        recover_log(fs, HERE)
    assert (caught.value.path, caught.value.position) == (name(100, LOG), first)


def test_the_report_replaces_reading_the_segments_again() -> None:
    fs = log_with(data_segment(0, [1]), build(10, [idempotent_batch(10, 7)]), data_segment(20, [20]))
    put_snapshot(fs, PATH, 10)
    fs.unlink(name(0, INDEX))
    report = recover_log(fs, HERE)
    # segment 0 has a snapshot without transactional producers, so it was not scanned; segment 10 holds a producer's batch
    assert report.without_producers == {20}
    assert report.segments == read_segments(fs, PATH)
    checkpoints, options = Checkpoints("/logs"), ReadOptions(NOW_MS)
    view = read_log(fs, HERE, checkpoints, options, segments=report.segments, without_producers=report.without_producers)
    assert view == read_log(fs, HERE, checkpoints, options)


def test_an_empty_log_needs_no_recovery() -> None:
    fs = log_with()
    assert recover_log(fs, HERE).actions == []


def test_an_empty_segment_needs_no_recovery() -> None:
    fs = log_with(data_segment(0, []), data_segment(100, []))
    assert recover_log(fs, HERE).actions == []
