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


@pytest.mark.parametrize("harm", ["missing", "empty", "garbled", "of another log"])
def test_a_malformed_index_is_not_used(made: Made, harm: str, tmp_path: Path) -> None:
    index = made.path.with_suffix(".index")
    other = write_segment(tmp_path / "other", 1000, batches=20, count=3).path.with_suffix(".index")
    contents = {"empty": b"", "garbled": index.read_bytes()[4:12] * 3, "of another log": other.read_bytes()}
    assert start_position(FILES, target(made), 1150) == made.positions[18]
    index.unlink()
    if harm in contents:
        index.write_bytes(contents[harm])
    assert start_position(FILES, target(made), 1150) == 0


class TestTimes:
    @pytest.mark.parametrize("block", [64, 200, 1000, None])
    def test_the_first_record_at_or_after_a_time_is_found_with_and_without_indexes_by_blocks_of_any_size(
        self, made: Made, block: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if block:
            monkeypatch.setattr(batch_reader, "WINDOW_BYTES", block)
        times = range(T0 + 9_900, T0 + 11_700, 5)
        firsts = [next((record for record in made.records if record.timestamp >= time), None) for time in times]
        expected = [first and (first.offset, first.timestamp) for first in firsts]
        found = [find_timestamp(FILES, target(made), time) for time in times]
        assert [each and (each.offset, each.timestamp) for each in found] == expected
        for index in (".timeindex", ".index"):
            made.path.with_suffix(index).unlink()
        again = [find_timestamp(FILES, target(made), time) for time in times]
        assert [each and each[1:] for each in again] == [each and each[1:] for each in found]

    def test_the_search_skips_what_the_index_rules_out(self, made: Made) -> None:
        found = find_timestamp(FILES, target(made), made.records[-1].timestamp)
        assert found is not None
        assert (found.start, found.position) == (made.positions[18], made.positions[19])

    def test_a_torn_tail_has_no_times(self, made: Made) -> None:
        made.path.with_suffix(".timeindex").unlink()
        made.path.write_bytes(made.path.read_bytes()[:-3])
        assert find_timestamp(FILES, target(made), made.records[-1].timestamp) is None
        assert find_timestamp(FILES, target(made), made.records[-5].timestamp) is not None

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
