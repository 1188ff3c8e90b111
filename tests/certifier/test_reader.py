"""The certifier's reader of batches against the plain decoder, and against the reader of compaction, from which it shares
nothing: the same rows of valid batches, the same faults of damaged ones, the same torn tails."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from compaction.certifier import reader as own
from compaction.certifier.reader import ByteRange, is_torn, read_batches, read_chunks, read_varint
from compaction.errors import LogError
from compaction.files.contents import view
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader, SegmentScan
from compaction.kernels.tables import BATCH_ROW
from tests.kafka.encode import Batch, Legacy, Record
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
            "changed": bytes(byte ^ (chance.random() < 0.01) for byte in data[start:]),
            "noise": chance.randbytes(chance.randrange(1, 200)),
            "resumes": chance.randbytes(30) + data[start:],
        }[chance.choice(["cut", "zeros", "never flushed", "changed", "noise", "resumes"])]
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
