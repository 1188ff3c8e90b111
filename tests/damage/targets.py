"""The fuzzer's targets: decoders, kernels, passes, the whole job. Each returns, or raises an expected error.

Expected errors of a reader are ignored. Any other exception is a finding, and so is ``UnforeseenError``: with bounds checking
on, a kernel that leaves its arrays raises it, too.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from compaction.engine import Reading
from compaction.errors import CompactionError, UnforeseenError
from compaction.files.contents import View
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentFile
from compaction.formats import checkpoints, indexes, producer_snapshot
from compaction.formats.codecs import Codec, decompress
from compaction.formats.java_text import parse_meta_properties, parse_properties
from compaction.formats.message_set import iter_batches
from compaction.formats.metadata_log import ClusterConfigs, parse_record
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import RecordBatch, read_end_txn_marker
from compaction.kernels.batches import scan_batches
from compaction.kernels.columns import HEADERS, KEYS, VALUES
from compaction.kernels.keys import HashSecret
from compaction.kernels.tables import OFFSET_SHIFT
from compaction.output.journal import JOURNAL, read_journal
from compaction.passes.build_map import scan_slices
from compaction.passes.clean_into import clean_parts
from compaction.passes.merge import resolve_shard
from compaction.passes.scan import scan_transactions
from compaction.passes.tasks import (
    CleanContext,
    GroupOutput,
    MapContext,
    MapSettings,
    OutputPart,
    Packed,
    Slice,
)
from compaction.report import LogReport, LogStatus
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import AbortedRanges
from compaction.source.read_columns import ReadSpec, read_columns
from tests.damage.valid_logs import NOW_MS, ReadableFileSystem, look_at, valid_log, write_log
from tests.local_job import clean_locally

LIMIT_BYTES = 1 << 20
MAX_OFFSET = (1 << 61) - 2
_POSITION = re.compile(r"\.log at byte \d+: ")
_NO_SPANS = AbortedRanges(*(np.empty(0, np.int64) for _ in range(3)))


@contextmanager
def meant_errors() -> Iterator[None]:
    """Ignore the errors that readers may raise."""
    try:
        yield
    except UnforeseenError as error:
        raise AssertionError(str(error)) from error
    except (FormatError, CompactionError):
        return


def _named(error: str | None) -> None:
    assert error is None or "unforeseen" not in error, error


def walk(data: bytes) -> None:
    """Headers, markers, and the record decoders at Python level."""
    array = np.frombuffer(bytearray(data), np.uint8)
    for check_crc in (True, False):
        scan_batches(array, 0, check_crc=check_crc)
        view = View("x.log", lambda start, size: data[start : start + size], len(data))
        file = SegmentFile(LocalFileSystem(), "x.log")
        file._data = view
        scan = file.scan(check_crc=check_crc)
        for rows in scan:
            for row in rows[rows["control_type"] >= 0]:
                with meant_errors():
                    file.marker_at(int(row["position"]))
        scan.damage()
    with meant_errors():
        for batch in iter_batches(data, torn_tail=True):
            with meant_errors():
                batch.ensure_valid()
            with meant_errors():
                for _ in batch.records(LIMIT_BYTES):
                    pass
            if isinstance(batch, RecordBatch) and batch.is_control:
                with meant_errors():
                    read_end_txn_marker(batch.data)
            if not isinstance(batch, RecordBatch):
                with meant_errors():
                    batch.require_convertible(LIMIT_BYTES)
    with meant_errors():
        ClusterConfigs().read(data)


def passes(data: bytes, directory: Path, first_dirty: int = 7) -> None:
    """Both passes over a segment: the second one even if the first one fails, with the first one's survivor entries, with none,
    and with entries of every offset."""
    path = directory / "00000000000000000000.log"
    path.write_bytes(data)
    part = Slice(0, 0, str(path), 0, MAX_OFFSET, 0, len(data), 1)
    _named(scan_transactions(part, LocalFileSystem()).error)
    shards: dict[int, list[Any]] = {}
    for place, value in scan_slices([part], {0: MapContext(first_dirty, 3)}, MapSettings(1 << 16, 0.9, HashSecret(1, 2))):
        if place is None:
            _named(value.error)
        elif not isinstance(value, Reading):
            shards.setdefault(place[1], []).append(value)
    found = [resolve_shard(packed, first_dirty, 0.9)[0] for packed in shards.values()]
    every = (np.arange(1, 80, dtype=np.uint64) << np.uint64(OFFSET_SHIFT)) | np.uint64(1)
    for marks in (found, [], [every]):
        _rewrite(part, marks, directory, first_dirty)


def _rewrite(part: Slice, marks: list[Packed], directory: Path, first_dirty: int) -> None:
    rules = RoundRules(_NO_SPANS, np.empty(0, np.int64), ActiveProducers.of(()), 40, NOW_MS)
    log = CleanContext(first_dirty, 60, 1000, 0, 100, rules, str(directory), math.inf)
    piece = OutputPart(GroupOutput(0, 0, 0, 1, (), part.path), 0, (part,), 0, complete=True)
    _named(clean_parts([(piece, marks)], {0: log}, dry_run=False)[0].error)
    for name in directory.glob("*.clean*"):
        name.unlink()


def columns(data: bytes, directory: Path) -> None:
    """The data source's reader."""
    path = directory / "00000000000000000000.log"
    path.write_bytes(data)
    for check in (True, False):
        with meant_errors():
            for _ in read_columns(str(path), 0, len(data), _reading(check)):
                pass


def _reading(check: bool) -> ReadSpec:
    from compaction.source.read_columns import Bounds

    return ReadSpec(Bounds(), KEYS | VALUES | HEADERS, control=True, check_crcs=check)


def payload(codec: Codec, data: bytes) -> None:
    """A decompressor."""
    with meant_errors():
        decompress(codec, data, limit_bytes=LIMIT_BYTES)


def _text(parse: Callable[[str, str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"), "file")


SMALL_READERS: dict[str, Callable[[bytes], object]] = {
    "offset checkpoint": _text(checkpoints.parse_offset_checkpoint),
    "leader epochs": _text(checkpoints.parse_leader_epochs),
    "partition metadata": _text(checkpoints.parse_partition_metadata),
    "properties": _text(parse_properties),
    "meta properties": _text(parse_meta_properties),
    "snapshot": producer_snapshot.read_snapshot,
    "offset index": lambda data: indexes.read_offset_index(data, 5),
    "offset index check": indexes.check_offset_index,
    "time index": lambda data: indexes.read_time_index(data, 5),
    "time index check": indexes.check_time_index,
    "txn index": lambda data: indexes.check_txn_index(data, 5),
    "metadata record": parse_record,
}


def small_file(reader: str, data: bytes) -> None:
    """A file other than a segment's log."""
    with meant_errors():
        SMALL_READERS[reader](data)


def journal(data: bytes, directory: Path) -> None:
    """The swap's journal: whatever its content, it names only segment files."""
    (directory / JOURNAL).write_bytes(data)
    with meant_errors():
        read_journal(LocalFileSystem(), str(directory))


class JobTarget:
    """The whole job, in this process, over a damaged log and a valid one."""

    CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "index.interval.bytes": "100"}

    def __init__(self) -> None:
        self._valid = valid_log("none").files
        self._outcome = self._cleaned_alone()

    def __call__(self, files: ReadableFileSystem) -> LogStatus:
        """Clean a log of these files beside a valid one; returns its status."""
        with scratch() as log_dir:
            write_log(log_dir / "damaged-0", files)
            write_log(log_dir / "valid-0", self._valid)
            before = look_at(log_dir / "damaged-0")
            reports = clean_locally(log_dir, NOW_MS, dict.fromkeys(("damaged", "valid"), self.CONFIG))
            assert reports["valid"].status is LogStatus.CLEANED, reports["valid"]
            assert look_at(log_dir / "valid-0") == self._outcome
            self._judge(reports["damaged"], before, look_at(log_dir / "damaged-0"))
            return reports["damaged"].status

    def _judge(self, report: LogReport, before: object, after: object) -> None:
        if report.status is LogStatus.FAILED:
            _named(report.reason)
            assert after == before, f"a failed log was touched: {report.reason}"
            assert _POSITION.search(report.reason) or ".log" not in report.reason, report.reason
            assert "\n" not in report.reason

    def _cleaned_alone(self) -> dict[str, tuple[bytes, int, int]]:
        with scratch() as log_dir:
            write_log(log_dir / "valid-0", self._valid)
            clean_locally(log_dir, NOW_MS, {"valid": self.CONFIG})
            return look_at(log_dir / "valid-0")


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory if the machine has one: fsync is free there."""
    shared = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="damage-", dir=shared if shared.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
