"""Producer snapshots are a broker's, byte for byte, and any damage is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import ENTRY, HEADER, ProducerEntry, read_snapshot, write_snapshot
from tests.formats.golden import golden, unbase64

GOLDEN = golden("files")["producer_snapshot"]
DATA = unbase64(GOLDEN["closed"])

SHORT = st.integers(-(2**15), 2**15 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.lists(st.builds(ProducerEntry, LONG, SHORT, INT, LONG, INT, LONG, INT, LONG), max_size=6)


def test_kafkas_snapshot_is_read() -> None:
    entries = read_snapshot(DATA)
    assert [list(entry) for entry in entries] == GOLDEN["rows"]
    assert {entry.producer_id: entry.current_txn_first_offset for entry in entries}[7] == 88


def test_kafkas_snapshot_is_encoded_byte_for_byte() -> None:
    assert write_snapshot(read_snapshot(DATA)) == DATA


@given(ENTRIES)
def test_round_trip(entries: list[ProducerEntry]) -> None:
    data = write_snapshot(entries)
    assert len(data) == 10 + 46 * len(entries)
    assert read_snapshot(memoryview(data)) == entries


@pytest.mark.parametrize("position", range(len(DATA)))
def test_a_flipped_bit_is_an_error(position: int) -> None:
    data = bytearray(DATA)
    data[position] ^= 0x04
    with pytest.raises(FormatError):
        read_snapshot(bytes(data))


@pytest.mark.parametrize("length", [*range(12), len(DATA) - ENTRY.size, len(DATA) - 1])
def test_a_truncated_file_is_an_error(length: int) -> None:
    with pytest.raises(FormatError):
        read_snapshot(DATA[:length])


@pytest.mark.parametrize("version", [-1, 0, 2])
def test_an_unknown_version_is_an_error(version: int) -> None:
    data = bytearray(DATA)
    HEADER.put(data, "version", version)
    with pytest.raises(FormatError, match=f"unknown snapshot version {version}"):
        read_snapshot(data)


@pytest.mark.parametrize("count", [-1, 4, 2**31 - 1])
def test_an_impossible_count_is_an_error(count: int) -> None:
    data = bytearray(DATA)
    HEADER.put(data, "entry_count", count)
    with pytest.raises(FormatError, match=f"{count} entries declared"):
        read_snapshot(data)


def test_the_error_shows_both_crcs() -> None:
    data = bytearray(DATA)
    HEADER.put(data, "crc", 1)
    with pytest.raises(FormatError, match=r"stored 0x1, computed 0x[0-9a-f]+") as caught:
        read_snapshot(data)
    assert caught.value.position == 2


def test_a_value_that_does_not_fit() -> None:
    with pytest.raises(FormatError, match="ProducerEntry"):
        write_snapshot([ProducerEntry(1, 2**15, 0, 0, 0, 0, 0, 0)])
