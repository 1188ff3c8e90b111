"""Offsets and timestamps found by index are those that a scan of all records finds, also with damaged indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.dumping import batch_reader
from compaction.dumping.dump_tool import find_timestamp, may_hold, segments_with, start_position
from compaction.dumping.targets import Target
from compaction.errors import CorruptLogError
from compaction.files.local import LocalFileSystem
from tests.dumping.segments import T0, Made, write_partition, write_segment

FILES = LocalFileSystem()


def target(made: Made) -> Target:
    return Target.of(str(made.path), "/")


@pytest.fixture(params=["none", "gzip"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return write_segment(tmp_path, 1000, batches=20, codec=request.param)


class TestOffsets:
    def test_the_scan_starts_at_the_last_entry_before_the_offset(self, made: Made) -> None:
        starts = [start_position(FILES, target(made), offset) for offset in range(990, 1200)]
        assert starts == sorted(starts)
        assert set(starts) == {0, *(made.positions[i] for i in (3, 6, 9, 12, 15, 18))}
        for offset, start in zip(range(990, 1200), starts, strict=True):
            batch = min(max(0, (offset - 1000) // 8), 19)
            assert start <= made.positions[batch]

    @pytest.mark.parametrize("harm", ["missing", "empty", "garbled"])
    def test_a_malformed_index_is_not_used(self, made: Made, harm: str) -> None:
        index = made.path.with_suffix(".index")
        if harm == "missing":
            index.unlink()
        else:
            index.write_bytes(b"" if harm == "empty" else index.read_bytes()[4:12] * 3)
        assert start_position(FILES, target(made), 1150) == 0

    def test_an_index_of_another_log_is_not_used(self, made: Made, tmp_path: Path) -> None:
        other = write_segment(tmp_path / "other", 1000, batches=20, count=3)
        made.path.with_suffix(".index").write_bytes(other.path.with_suffix(".index").read_bytes())
        assert start_position(FILES, target(made), 1150) == 0


class TestTimes:
    def test_the_first_record_at_or_after_a_time(self, made: Made) -> None:
        for time in range(T0 + 9_900, T0 + 11_700, 5):
            found = find_timestamp(FILES, target(made), time)
            first = next((record for record in made.records if record.timestamp >= time), None)
            assert (None if found is None else (found.offset, found.timestamp)) == (
                None if first is None else (first.offset, first.timestamp)
            )

    def test_the_search_skips_what_the_index_rules_out(self, made: Made) -> None:
        found = find_timestamp(FILES, target(made), made.records[-1].timestamp)
        assert found is not None
        assert found.start == made.positions[18]
        assert found.position == made.positions[19]

    def test_the_result_is_the_same_without_indexes(self, made: Made) -> None:
        times = [record.timestamp for record in made.records[::7]]
        before = [find_timestamp(FILES, target(made), time) for time in times]
        made.path.with_suffix(".timeindex").unlink()
        made.path.with_suffix(".index").unlink()
        after = [find_timestamp(FILES, target(made), time) for time in times]
        assert [found and found[1:] for found in after] == [found and found[1:] for found in before]

    def test_damage_in_scanned_batches_is_an_error_with_a_position(self, made: Made) -> None:
        content = bytearray(made.path.read_bytes())
        content[made.positions[1] + 16] = 9
        made.path.write_bytes(bytes(content))
        made.path.with_suffix(".timeindex").unlink()
        with pytest.raises(CorruptLogError) as caught:
            find_timestamp(FILES, target(made), made.records[-1].timestamp)
        assert caught.value.position == made.positions[1]

    def test_a_time_index_excludes_later_timestamps(self, made: Made) -> None:
        assert may_hold(FILES, target(made), T0)
        assert not may_hold(FILES, target(made), made.records[-1].timestamp + 1)
        made.path.with_suffix(".timeindex").unlink()
        assert may_hold(FILES, target(made), made.records[-1].timestamp + 1)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0, [0]),
        (199, 199, [0]),
        (200, 200, [1]),
        (150, 450, [0, 1, 2]),
        (450, None, [2]),
        (10**6, 10**6 + 1, [2]),
        (0, None, [0, 1, 2]),
    ],
)
def test_segments_are_chosen_by_their_base_offsets(tmp_path: Path, first: int, last: int | None, expected: list[int]) -> None:
    logs = [target(made) for made in write_partition(tmp_path / "orders-0")]
    assert segments_with(logs, first, last) == [logs[number] for number in expected]


@pytest.mark.parametrize("block", [64, 200, 1000])
def test_the_block_size_does_not_change_the_result(made: Made, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made.path.with_suffix(".timeindex").unlink()
    made.path.write_bytes(made.path.read_bytes()[:-3])
    times = [record.timestamp for record in made.records] + [made.records[-1].timestamp + 1]
    before = [find_timestamp(FILES, target(made), time) for time in times]
    monkeypatch.setattr(batch_reader, "WINDOW_BYTES", block)
    assert [find_timestamp(FILES, target(made), time) for time in times] == before
    assert before[-1] is None
    assert before[0] is not None
