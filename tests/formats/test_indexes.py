"""Index files and producer snapshots are read and written as by a broker, preallocated tails left out; damage is found."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pytest

from compaction.formats import indexes
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import ENTRY, HEADER, ProducerEntry, read_snapshot, write_snapshot
from tests.formats.golden import changed, golden, unbase64

FILES = golden("files")
BASE = 5_000_000_000
INT_MAX = 2**31 - 1


def offset_rows(rows: Iterable[tuple[int, int]]) -> npt.NDArray[np.void]:
    return np.array(list(rows), indexes.OFFSET_ROW)


def time_rows(rows: Iterable[tuple[int, int]]) -> npt.NDArray[np.void]:
    return np.array(list(rows), indexes.TIME_ROW)


def offsets(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *pair) for pair in pairs)


def times(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *pair) for pair in pairs)


def golden_rows(name: str) -> list[tuple[int, ...]]:
    return [tuple(row) for row in FILES[name]["rows"]]


class TestKafkasOwnFiles:
    """Both the file of an open segment, preallocated, and that of a closed one."""

    @pytest.mark.parametrize("state", ["preallocated", "closed"])
    def test_offset_index(self, state: str) -> None:
        data, base = unbase64(FILES["offset_index"][state]), FILES["offset_index"]["base_offset"]
        rows = indexes.OFFSET_INDEX.read(data, base)
        assert rows.tolist() == golden_rows("offset_index")
        indexes.OFFSET_INDEX.check(data)
        assert indexes.OFFSET_INDEX.write(rows, base) == unbase64(FILES["offset_index"]["closed"])

    @pytest.mark.parametrize("state", ["preallocated", "closed"])
    def test_time_index(self, state: str) -> None:
        data, base = unbase64(FILES["time_index"][state]), FILES["time_index"]["base_offset"]
        rows = indexes.TIME_INDEX.read(data, base)
        assert rows.tolist() == golden_rows("time_index")
        indexes.TIME_INDEX.check(data)
        assert indexes.TIME_INDEX.write(rows, base) == unbase64(FILES["time_index"]["closed"])

    def test_txn_index(self) -> None:
        data = unbase64(FILES["txn_index"]["closed"])
        rows = indexes.read_txn_index(data)
        assert rows.tolist() == golden_rows("txn_index")
        indexes.check_txn_index(data, FILES["txn_index"]["base_offset"])
        assert indexes.write_txn_index(rows) == data


@pytest.mark.parametrize(
    ("data", "valid"),
    [
        (b"", 0),
        (bytes(8), 0),
        (bytes(8 * 100), 0),
        (bytes(7), 0),
        (offsets((5, 4200)), 1),
        (offsets((5, 4200)) + b"\x00\x00\x00", 1),
        (offsets((0, 4200), (9, 8400)) + bytes(800), 2),
        (offsets((5, 4200), (5, 8400)), 1),
        (offsets((5, 4200), (9, 4200)), 1),
        (offsets((5, 4200), (4, 9000), (9, 9900)), 1),
        (offsets((5, 4200), (0, 0), (9, 9900)), 1),
        (offsets((-5, 4200)), 0),
        (offsets((5, -1)), 0),
        (offsets((1, 1), (INT_MAX, INT_MAX)), 2),
    ],
)
def test_offset_entries_are_valid_while_they_increase(data: bytes, valid: int) -> None:
    assert indexes.OFFSET_INDEX.valid(data) == valid
    assert len(indexes.OFFSET_INDEX.read(data, 0)) == valid


@pytest.mark.parametrize(
    ("data", "valid"),
    [
        (b"", 0),
        (times((0, 0)), 1),
        (bytes(24), 0),
        (bytes(12 * 100), 0),
        (times((0, 0), (1, 5)) + bytes(120), 2),
        (times((7, 5)) + b"\x00" * 11, 1),
        (times((7, 5), (7, 9)), 1),
        (times((7, 5), (8, 5)), 2),
        (times((7, 5), (8, 4)), 1),
        (times((7, 5), (6, 9)), 1),
        (times((-(2**63), 0), (2**63 - 1, 0)), 2),
        (times((7, -1)), 0),
    ],
)
def test_time_entries_are_valid_while_they_increase(data: bytes, valid: int) -> None:
    assert indexes.TIME_INDEX.valid(data) == valid
    assert len(indexes.TIME_INDEX.read(data, 0)) == valid


@pytest.mark.parametrize(
    ("check", "data", "message", "position"),
    [
        (indexes.OFFSET_INDEX.check, offsets((5, 42)) + b"\x00", "offset index of 9 bytes is not a multiple of 8", 8),
        (indexes.OFFSET_INDEX.check, offsets((5, 42), (6, 43), (6, 44)), "offset index entry 2 .relative offset 6", 16),
        (indexes.OFFSET_INDEX.check, offsets((5, 42), (6, 42)), "offset index entry 1", 8),
        (indexes.OFFSET_INDEX.check, offsets((-1, 42)), "offset index entry 0", 0),
        (indexes.OFFSET_INDEX.check, bytes(8) + offsets((5, 42), (0, 0), (6, 43)) + bytes(8), "offset index entry 2", 16),
        (indexes.TIME_INDEX.check, times((5, 42)) + b"\x00", "time index of 13 bytes is not a multiple of 12", 12),
        (indexes.TIME_INDEX.check, times((5, 42), (4, 43)), "time index entry 1", 12),
        (indexes.TIME_INDEX.check, times((5, 42), (6, 41)), "time index entry 1 .relative offset 41", 12),
    ],
)
def test_damage_is_reported_with_the_entry(check: Callable[[bytes], None], data: bytes, message: str, position: int) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        check(data)
    assert caught.value.position == position


@pytest.mark.parametrize("check", [indexes.OFFSET_INDEX.check, indexes.TIME_INDEX.check])
@pytest.mark.parametrize("zeros", [0, 24, 2400])
def test_an_index_of_zeros_is_valid(check: Callable[[bytes], None], zeros: int) -> None:
    check(bytes(zeros))


def test_an_aborted_transaction_before_the_segment_is_an_error() -> None:
    data = indexes.write_txn_index(np.array([(1, 90, 100, 90), (2, 80, 99, 80)], indexes.TXN_ROW))
    indexes.check_txn_index(data, 99)
    with pytest.raises(FormatError, match="entry 1 ends at offset 99, before the segment's base 100") as caught:
        indexes.check_txn_index(data, 100)
    assert caught.value.position == 34


@pytest.mark.parametrize("version", [1, -1, 256])
def test_an_unknown_txn_version_is_an_error(version: int) -> None:
    data = bytearray(68)
    indexes.TXN_ENTRY.put(data, "version", version, 34)
    with pytest.raises(FormatError, match=f"entry 1 has version {version}"):
        indexes.read_txn_index(data)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + INT_MAX + 1])
def test_offsets_out_of_the_segments_range_cannot_be_written(offset: int) -> None:
    with pytest.raises(FormatError, match=f"entry 1: {offset}"):
        indexes.OFFSET_INDEX.write(offset_rows([(BASE, 1), (offset, 2)]), BASE)
    with pytest.raises(FormatError, match=f"entry 1: {offset}"):
        indexes.TIME_INDEX.write(time_rows([(1, BASE), (2, offset)]), BASE)


SNAPSHOT = FILES["producer_snapshot"]
DATA = unbase64(SNAPSHOT["closed"])


def test_kafkas_snapshot_is_read() -> None:
    entries = read_snapshot(DATA)
    assert [list(entry) for entry in entries] == SNAPSHOT["rows"]
    assert {entry.producer_id: entry.current_txn_first_offset for entry in entries}[7] == 88


def test_kafkas_snapshot_is_encoded_byte_for_byte() -> None:
    assert write_snapshot(read_snapshot(DATA)) == DATA


@pytest.mark.parametrize("position", range(len(DATA)))
def test_a_flipped_bit_in_a_snapshot_is_an_error(position: int) -> None:
    data = bytearray(DATA)
    data[position] ^= 0x04
    with pytest.raises(FormatError):
        read_snapshot(bytes(data))


@pytest.mark.parametrize("length", [*range(12), len(DATA) - ENTRY.size, len(DATA) - 1])
def test_a_truncated_snapshot_is_an_error(length: int) -> None:
    with pytest.raises(FormatError):
        read_snapshot(DATA[:length])


@pytest.mark.parametrize("version", [-1, 0, 2])
def test_an_unknown_version_of_a_snapshot_is_an_error(version: int) -> None:
    data = changed(HEADER, DATA, version=version)
    with pytest.raises(FormatError, match=f"unknown snapshot version {version}"):
        read_snapshot(data)


@pytest.mark.parametrize("count", [-1, 4, 2**31 - 1])
def test_an_impossible_count_of_producers_is_an_error(count: int) -> None:
    data = changed(HEADER, DATA, entry_count=count)
    with pytest.raises(FormatError, match=f"{count} entries declared"):
        read_snapshot(data)


def test_the_error_of_a_snapshot_shows_both_crcs() -> None:
    data = changed(HEADER, DATA, crc=1)
    with pytest.raises(FormatError, match=r"stored 0x1, computed 0x[0-9a-f]+") as caught:
        read_snapshot(data)
    assert caught.value.position == 2


def test_a_producer_that_does_not_fit_cannot_be_written() -> None:
    with pytest.raises(FormatError, match="ProducerEntry"):
        write_snapshot([ProducerEntry(1, 2**15, 0, 0, 0, 0, 0, 0)])
