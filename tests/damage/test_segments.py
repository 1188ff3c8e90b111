"""Damaged bytes fail their log alone: a sample of ``tests.damage.fuzz``, with bounds checking on, and one kind of damage at
many positions, for the whole job. The tests of the kernels change every byte of a batch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from compaction.names import LOG
from compaction.report import LogStatus
from tests.conftest import ROOT
from tests.damage.fuzz import JobTarget
from tests.damage.harm import batches_of, flipped
from tests.damage.valid_logs import ValidLog, valid_log

#: what a batch's checksum does not cover: base offset (a larger one up to the next batch), and leader epoch
_UNCOVERED = {0: range(8), 1: range(8), 2: (*range(8), *range(12, 16))}
_STEP = 3


@pytest.fixture(scope="module")
def job() -> JobTarget:
    return JobTarget()


def _with(log: ValidLog, name: str, data: bytes) -> dict[str, bytes]:
    return {**log.files, name: data}


@pytest.mark.parametrize(
    ("number", "kind"),
    [(1, "short"), (1, "short-zstd"), (1, "short-v1"), (2, "short"), pytest.param(2, "short-zstd", marks=pytest.mark.slow)],
)
def test_a_truncated_segment_fails_its_log_unless_it_is_active(job: JobTarget, number: int, kind: str) -> None:
    """The active one has a torn tail."""
    log = valid_log(kind)
    name, data = log.log(number), log.files[log.log(number)]
    ends = {end for _, end in batches_of(data)} | {0}
    for size in range(0, len(data), _STEP):
        status = job(_with(log, name, data[:size]))
        if number == 2 or size not in ends:
            assert status is (LogStatus.CLEANED if number == 2 else LogStatus.FAILED), size


@pytest.mark.parametrize(
    "kind",
    [
        "short",
        "short-zstd",
        "v0-none",
        "short-v1",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gzip", "snappy", "lz4", "transactions")),
    ],
)
def test_a_flipped_bit_under_a_checksum_fails_the_log(job: JobTarget, kind: str) -> None:
    log = valid_log(kind)
    name, data = log.log(0), log.files[log.log(0)]
    start, end = batches_of(data)[1]
    for at in range(start, end, _STEP):
        if at - start not in _UNCOVERED[data[start + 16]]:
            status = job(_with(log, name, flipped(data, at, at % 8)))
            assert status is LogStatus.FAILED, at - start


def test_offsets_that_do_not_increase_fail_the_log(job: JobTarget) -> None:
    log = valid_log("none")
    name, data = log.log(1), log.files[log.log(1)]
    spans = batches_of(data)
    parts = [data[start:end] for start, end in spans]
    for i in range(len(parts) - 1):
        swapped = [*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]]
        assert job(_with(log, name, b"".join(swapped))) is LogStatus.FAILED
        assert job(_with(log, name, b"".join([*parts[: i + 1], *parts[i:]]))) is LogStatus.FAILED
    assert job(_with(log, name, log.files[log.log(0)])) is LogStatus.FAILED
    assert job(_with(log, log.log(0), log.files[log.log(1)])) is LogStatus.FAILED


@pytest.mark.parametrize("fill", [b"\x00", b"\xff", b"\x02", b"garbage!"])
@pytest.mark.parametrize("kind", ["none", "lz4", "v0-none", "v1-gzip", "mixed", "transactions"])
def test_an_inactive_segment_of_zeros_or_garbage_fails_its_log(job: JobTarget, kind: str, fill: bytes) -> None:
    log = valid_log(kind)
    for number in (0, 1):
        data = log.files[log.log(number)]
        filled = (fill * len(data))[: len(data)]
        assert job(_with(log, log.log(number), filled)) is LogStatus.FAILED
        # from the middle on, so that valid batches come first
        middle = batches_of(data)[1][0]
        assert job(_with(log, log.log(number), data[:middle] + filled[middle:])) is LogStatus.FAILED


def test_damaged_indexes_and_snapshots_do_not_fail_the_log(job: JobTarget) -> None:
    """They are rebuilt or ignored: the log is cleaned whatever they contain."""
    for kind in ("none", "transactions"):
        log = valid_log(kind)
        for name, data in log.files.items():
            if name.endswith(LOG) or name.startswith("leader"):
                continue
            for damaged in (b"", b"\x00" * len(data), b"\xff" * len(data), data[:-1], data + b"x", data[::-1]):
                assert job(_with(log, name, damaged)) is LogStatus.CLEANED, (name, damaged)
            without = {other: content for other, content in log.files.items() if other != name}
            assert job(without) is LogStatus.CLEANED, name


@pytest.mark.parametrize(("inputs", "seed"), [(600, 7), pytest.param(1000, 2, marks=pytest.mark.slow)])
def test_damaged_bytes_are_read_or_raise_the_packages_errors(inputs: int, seed: int) -> None:
    """No reader, kernel or pass leaves its arrays, raises an unexpected error, or changes a log that it cannot read."""
    command = [sys.executable, "-m", "tests.damage.fuzz", "--inputs", str(inputs), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith(f"{inputs} damaged inputs, nothing found\n"), done.stdout
