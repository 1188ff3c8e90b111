"""What may not matter does not: how work is cut and dealt, how much memory there is, whether a run was done before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.passes import decoder, rewrite, scan
from compaction.report import LogStatus
from compaction.spark import round as round_module
from compaction.spark.partition import Sizes
from compaction.storage.blocks import SegmentReader
from tests.local_job import clean_locally, write_offsets
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.records import NaiveRecord
from tests.oracle.segments import NaiveSegment
from tests.passes.random_cases import FLAVOURS, NOW_MS, random_case
from tests.passes.rounds import Case

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
#: flavour and seed of a case
CASES = st.tuples(st.sampled_from(sorted(FLAVOURS)), st.integers(0, 30))
SIZES = st.builds(Sizes, st.integers(200, 20_000), st.integers(200, 20_000), st.integers(1, 300))
WHOLE = Sizes(1 << 30, 1 << 30, 1 << 30)


def lay_out(log_dir: Path, case: Case) -> None:
    write_partition(log_dir / f"{case.name}-0", case.segments)
    active = (entry._replace(last_timestamp_ms=NOW_MS) for entry in case.producers)
    write_producers(log_dir / f"{case.name}-0", case.segments[-1].next_offset, active)
    write_offsets(log_dir, cleaner_offsets={case.name: case.checkpoint})


def files(log_dir: Path, case: Case) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of all files that are not on their way out, those of the log directory included."""
    found = [*(log_dir / f"{case.name}-0").iterdir(), log_dir / "cleaner-offset-checkpoint"]
    kept = [file for file in found if file.suffix != ".deleted"]
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns if file.suffix == ".log" else 0) for file in kept}


def cleaned(case: Case, sizes: Sizes, now_ms: int = NOW_MS) -> dict[str, tuple[bytes, int]]:
    """What one run makes of the case."""
    with scratch() as root:
        lay_out(root, case)
        clean_locally(root, now_ms, {case.name: case.topic_config}, sizes)
        return files(root, case)


@QUICK
@given(CASES, SIZES)
def test_slices_tasks_and_shards_of_any_size_give_the_same_bytes(chosen: tuple[str, int], sizes: Sizes) -> None:
    case = random_case(*chosen)
    assert cleaned(case, sizes) == cleaned(case, WHOLE)


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every buffer so small that nearly every batch is too large for it, and maps of a handful of keys."""
    monkeypatch.setattr(round_module, "_TASK_MAP_BYTES", 8 * 24)
    monkeypatch.setattr(scan, "_ENTRIES", 1)
    monkeypatch.setattr(rewrite, "_OUT_BYTES", 70)
    monkeypatch.setattr(rewrite, "_KEPT_ROWS", 1)
    monkeypatch.setattr(decoder, "SCRATCH_BYTES", 64)
    defaults = SegmentReader.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "block_bytes", 200)
    yield


@pytest.mark.parametrize("flavour", sorted(FLAVOURS))
@pytest.mark.parametrize("seed", [40, 41])
def test_buffers_of_any_size_give_the_same_bytes(request: pytest.FixtureRequest, flavour: str, seed: int) -> None:
    case = random_case(flavour, seed)
    roomy = cleaned(case, WHOLE)
    request.getfixturevalue("cramped")
    assert cleaned(case, WHOLE) == roomy
    assert cleaned(case, Sizes(700, 900, 3)) == roomy


@QUICK
@given(CASES, st.booleans())
def test_a_second_run_changes_nothing(chosen: tuple[str, int], from_the_start: bool) -> None:
    """Whether it finds nothing dirty, or is made to look at everything again."""
    case = random_case(*chosen)
    with scratch() as root:
        lay_out(root, case)
        (report,) = clean_locally(root, NOW_MS, {case.name: case.topic_config}).values()
        if report.status is not LogStatus.CLEANED or case.config.delete_retention_ms == 0:
            return
        if from_the_start:
            write_offsets(root, cleaner_offsets={case.name: case.checkpoint})
            # the first time takes data away, the next one gives markers that waited for that their horizons
            clean_locally(root, NOW_MS, {case.name: case.topic_config})
        once = files(root, case)
        if from_the_start:
            write_offsets(root, cleaner_offsets={case.name: case.checkpoint})
        clean_locally(root, NOW_MS, {case.name: case.topic_config})
        assert files(root, case) == once


@QUICK
@given(CASES)
def test_a_dry_run_tells_the_figures_of_the_real_one_and_changes_nothing(chosen: tuple[str, int]) -> None:
    case = random_case(*chosen)
    with scratch() as root:
        lay_out(root, case)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        (dry,) = clean_locally(root, NOW_MS, {case.name: case.topic_config}, dry_run=True).values()
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
        (real,) = clean_locally(root, NOW_MS, {case.name: case.topic_config}).values()
        for name in ("status", "end_offset", "records_before", "records_after", "bytes_before", "keys", "tombstones_removed"):
            assert getattr(dry, name) == getattr(real, name), name
        assert (dry.aborted_records, dry.markers_removed) == (real.aborted_records, real.markers_removed)
        assert (dry.bytes_after, dry.invalid_records) == (real.bytes_after, real.invalid_records)


@QUICK
@given(st.sampled_from(["no-transactions", "gzip", "lz4", "zstd", "one-key"]), st.integers(0, 60))
def test_what_survives_is_the_last_value_of_each_key_of_a_dictionary(flavour: str, seed: int) -> None:
    case = random_case(flavour, seed)
    case.checkpoint = case.segments[0].base_offset
    end = case.end_offset()
    if any(batch.transactional or batch.control for segment in case.segments for batch in segment.batches):
        return
    last = {record.key: record for record in records(case.segments) if record.offset < end and record.key is not None}
    with scratch() as root:
        lay_out(root, case)
        (report,) = clean_locally(root, NOW_MS, {case.name: case.topic_config}).values()
        if report.status is not LogStatus.CLEANED:
            return
        found = [record for record in records(read_partition(root / f"{case.name}-0")) if record.offset < end]
    expected = sorted(last.values(), key=lambda record: record.offset)
    assert [(r.offset, r.key, r.value) for r in found] == [(r.offset, r.key, r.value) for r in expected]
    assert report.keys == len(last)


def records(segments: Sequence[NaiveSegment]) -> list[NaiveRecord]:
    return [record for segment in segments for batch in segment.batches for record in batch.records()]


@pytest.mark.parametrize("flavour", sorted(FLAVOURS))
def test_what_a_run_leaves_is_the_same_wherever_the_log_lies(flavour: str) -> None:
    """The output depends on the log alone: not on its directory, nor on what an earlier run left behind there."""
    case = random_case(flavour, 50)
    expected = cleaned(case, WHOLE)
    with scratch() as root:
        place = root / "a" / "b"
        place.mkdir(parents=True)
        lay_out(place, case)
        partition = place / f"{case.name}-0"
        for left in (".log.clean", ".index.cleaned", ".log.deleted"):
            (partition / f"{0:020d}{left}").write_bytes(b"left by another")
        clean_locally(place, NOW_MS, {case.name: case.topic_config})
        assert files(place, case) == expected
        shutil.rmtree(place)
