"""The text of one segment does not depend on the sizes of buffers; offset ranges; bounded memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from compaction.dumping import batch_reader
from compaction.dumping.batch_reader import BatchReader
from compaction.dumping.dump_tool import find_timestamp
from compaction.dumping.segment_dump import SegmentDump, SegmentView
from compaction.dumping.targets import Target
from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.files.local import LocalFileSystem
from tests.conformance.dump_files import damaged_segments, sound_segments
from tests.dumping.segments import T0, write_segment
from tests.kafka.encode import Batch, Record

ROOT = Path(__file__).resolve().parents[2]
FILES = LocalFileSystem()
EVERYTHING = SegmentView(deep=True, contents=True)


class Shown:
    """The result of a dump: its text, the gaps, and the error that ended it."""

    def __init__(self, path: Path, view: SegmentView) -> None:
        self.gaps: list[tuple[int, int]] = []
        self.dump = SegmentDump(FILES, str(path), view, self._note)
        pieces, self.error = [], ""
        try:
            for text in self.dump:
                pieces.append(text)
        except CorruptLogError as error:
            self.error = error.describe()
        self.text = "".join(pieces)

    def _note(self, first: int, second: int) -> None:
        self.gaps.append((first, second))

    def offsets(self) -> list[int]:
        return [int(found) for found in re.findall(r"^\| offset: (-?\d+)", self.text, re.MULTILINE)]

    def batches(self) -> list[int]:
        return [int(found) for found in re.findall(r" position: (\d+)", self.text)]


def segments() -> Iterator[bytes]:
    yield from (content for _, content in sound_segments())
    yield from (content for _, content in damaged_segments())


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "00000000000000000000.log"


class TestPieces:
    @pytest.mark.parametrize(
        "view", [SegmentView(), SegmentView(deep=True), EVERYTHING], ids=["batches", "records", "contents"]
    )
    def test_the_sizes_of_windows_and_tables_do_not_change_the_text(
        self, written: Path, view: SegmentView, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number, content in enumerate(segments()):
            written.write_bytes(content)
            monkeypatch.undo()
            whole = Shown(written, view)
            monkeypatch.setattr(batch_reader, "WINDOW_BYTES", 64 + 13 * (number % 9))
            monkeypatch.setattr(batch_reader, "TABLE_RECORDS", 1 + number % 4)
            pieces = Shown(written, view)
            assert (pieces.text, pieces.gaps, pieces.error) == (whole.text, whole.gaps, whole.error)
            assert (pieces.dump.position, pieces.dump.invalid) == (whole.dump.position, whole.dump.invalid)

    def test_a_file_truncated_while_reading_is_an_error(self, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batch_reader, "WINDOW_BYTES", 100)
        made = write_segment(written.parent, batches=9)
        dump = SegmentDump(FILES, str(made.path), SegmentView(), lambda first, second: None)
        pieces = iter(dump)
        next(pieces)
        made.path.write_bytes(made.path.read_bytes()[: made.positions[3] + 5])
        with pytest.raises(CorruptLogError, match="was truncated"):
            list(pieces)


class TestNarrowing:
    @pytest.mark.parametrize("codec", ["none", "zstd"])
    @pytest.mark.parametrize(("first", "last"), [(0, 0), (7, 31), (8, 8), (9, 9), (90, None), (95, 400), (200, 300), (0, None)])
    def test_only_batches_and_records_in_the_range_are_printed(
        self, tmp_path: Path, codec: str, first: int, last: int | None
    ) -> None:
        made = write_segment(tmp_path, codec=codec)
        shown = Shown(made.path, SegmentView(deep=True, first_offset=first, last_offset=last))
        end = 10**9 if last is None else last
        assert shown.offsets() == [record.offset for record in made.records if first <= record.offset <= end]
        wanted = [made.positions[i] for i in range(12) if 8 * i + 6 >= first and 8 * i <= end]
        assert shown.batches() == wanted

    def test_an_offset_range_starts_without_a_gap(self, tmp_path: Path) -> None:
        made = write_segment(tmp_path)
        assert Shown(made.path, SegmentView(deep=True)).gaps[0] == (0, 2)
        assert Shown(made.path, SegmentView(deep=True, first_offset=8, last_offset=12)).gaps == [(8, 10), (10, 12)]

    def test_a_batch_beyond_max_bytes_is_not_printed(self, tmp_path: Path) -> None:
        made = write_segment(tmp_path)
        assert len(Shown(made.path, SegmentView(max_bytes=made.positions[5])).batches()) == 5
        assert len(Shown(made.path, SegmentView(max_bytes=made.positions[5] - 1)).batches()) == 4
        assert Shown(made.path, SegmentView(max_bytes=0)).text == ""


def test_a_batch_of_two_gib_is_refused_without_reading_it(tmp_path: Path) -> None:
    """A sparse file: what its length field says lies within it."""
    path, start = tmp_path / f"{0:020d}.log", 2**31 + 4096
    raw = bytearray(Batch([Record(0, T0, b"k", b"v")]).encode())
    raw[8:12] = (2**31 - 1).to_bytes(4, "big")
    with path.open("wb") as file:
        file.seek(start)
        file.write(raw)
        file.truncate(start + 2**31 + 100)
    target = Target.of(str(path), "/")
    with pytest.raises(UnsupportedLogError, match=f"at byte {start}: batch of 2147483659 bytes, more than 268435456"):
        list(SegmentDump(FILES, str(path), SegmentView(start=start), lambda first, second: None))
    with pytest.raises(UnsupportedLogError, match="batch of 2147483659 bytes"):
        reader = BatchReader(FILES, str(path))
        batch = reader.batch_at(start, reader.size)
        assert batch is not None
        reader.largest_timestamp(batch)
    with path.open("rb+") as file:
        file.write(raw)
    with pytest.raises(UnsupportedLogError, match="at byte 0: batch of 2147483659 bytes"):
        find_timestamp(FILES, target, 0)


def test_memory_does_not_grow_with_the_segment(tmp_path: Path) -> None:
    batch = Batch(tuple(Record(i, T0, b"k%d" % i, bytes(range(97, 122)) * 4) for i in range(100))).encode()
    peaks = []
    for megabytes in (8, 96):
        path = tmp_path / f"{megabytes:020d}.log"
        raw = np.frombuffer(batch, np.uint8)
        with path.open("wb") as file:
            for _ in range(megabytes):
                file.write(np.tile(raw, (1 << 20) // len(raw)).tobytes())
        run = (
            "import resource, sys; from compaction.commands import dump_log; dump_log.main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        command = [sys.executable, "-c", run, "--files", str(path), "--print-data-log"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        peaks.append(int(done.stderr.splitlines()[-1]))
        path.unlink()
    assert peaks[1] < peaks[0] + 40_000
