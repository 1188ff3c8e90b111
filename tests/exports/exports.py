"""Exports for tests: those that Aiven's plugin wrote, and small ones in a layout of the tests' own."""

from __future__ import annotations

import itertools
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from compaction.exports import aiven_objects
from compaction.files import data_keys
from compaction.files.calls import KEYS_VARIABLE, call
from compaction.files.filesystem import ReadableFileSystem, join
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from compaction.formats.checkpoints import EpochEntry, format_leader_epochs
from compaction.formats.producer_snapshot import write_snapshot
from compaction.formats.record_batch import BatchHeader
from tests.exports.aiven_objects import end_offset
from tests.golden import AIVEN_OBJECTS, unpack_sample
from tests.kafka.encode import Batch, Record
from tests.log.logs import build, data_batch, iter_batches

#: the objects of one log in four sets: as they are, compressed, encrypted, both
CODINGS = ("plain", "zstd", "encrypted", "zstd-encrypted")
LOG_NAME = "payments-0"
TOPIC_ID = "yRqOh-tNTbqSiFrSsG2z8g"
Epochs = Sequence[tuple[int, int]]
_IDS = itertools.count()


def require_cryptography() -> None:
    """The test is skipped, or fails if ``CI`` is set, if the package is not installed."""
    if find_spec("cryptography") is None:
        assert os.environ.get("CI", "").lower() in ("", "0", "false"), "the package cryptography is not installed"
        pytest.skip("the package cryptography is not installed")


@pytest.fixture(params=CODINGS)
def coding(request: pytest.FixtureRequest) -> str:
    """A set of objects; those that are encrypted need a package."""
    if "encrypted" in request.param:
        require_cryptography()
    return str(request.param)


@pytest.fixture(autouse=True)
def no_exports_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Addresses and keys of other tests do not apply."""
    monkeypatch.setenv(KEYS_VARIABLE, "")
    monkeypatch.setattr(aiven_objects, "KEPT", aiven_objects.KeptBytes(64 << 20))
    data_keys.data_key.cache_clear()
    with call():
        yield
    data_keys.data_key.cache_clear()


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plugin's objects, a directory for each coding; their private key is known."""
    with tarfile.open(AIVEN_OBJECTS) as archive:
        archive.extractall(tmp_path / "objects", filter="data")
    monkeypatch.setenv(KEYS_VARIABLE, f"key1={tmp_path}/objects/private-key.pem")
    return tmp_path / "objects"


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The partition directory that was exported, not to be changed."""
    return unpack_sample(tmp_path_factory.mktemp("sample")) / LOG_NAME


def uploaded(source: Path) -> dict[str, bytes]:
    """The files of a log that its exports have: no segment follows the last one."""
    return {file.name: file.read_bytes() for file in source.iterdir() if not file.name.startswith(f"{217:020d}.log")}


def aiven(directory: Path) -> str:
    """The address of an export of the plugin."""
    return parse_uri(f"aiven+file://{directory}", "--log-dir")


def local_tiered(directory: Path) -> str:
    """The address of an export of ``LocalTieredStorage``."""
    return parse_uri(f"local-tiered+file://{directory}", "--log-dir")


def write_log(
    log: Path,
    *segments: Sequence[int],
    epochs: Epochs = ((0, 0),),
    written: Epochs = (),
    records: int = 1,
    topic_id: str | None = None,
) -> Path:
    """A partition directory.

    :param segments: of each its base offset and its offsets; a range is of the offsets, the first of which is the base offset
    :param epochs: leader epochs and their first offsets, as the broker knew them
    :param written: the leader epochs of the batches, if they are others
    :param records: in each batch
    """
    log.mkdir(parents=True)
    known = written or epochs
    for each in segments:
        base, *offsets = (each.start, *each) if isinstance(each, range) else each
        batches = []
        for number, at in enumerate(offsets[::records]):
            # offsets below the log start have the first epoch
            epoch = max(epoch for epoch, start in known if start <= max(at, known[0][1]))
            several = [Record(offset, 0, b"key-%d" % offset, b"value") for offset in offsets[number * records :][:records]]
            batches.append(data_batch(at, leader_epoch=epoch) if records == 1 else Batch(several, leader_epoch=epoch).encode())
        build(base, batches).put(LocalFileSystem(), str(log))
    (log / "leader-epoch-checkpoint").write_text(format_leader_epochs(EpochEntry(*entry) for entry in epochs))
    if topic_id is not None:
        (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    return log


def write_log_dir(directory: Path, *segments: Sequence[int], epochs: Epochs = ((0, 0),), topic_id: str = TOPIC_ID) -> Path:
    """A log directory with segments of ``orders-0``; see ``write_log``."""
    write_log(directory / "orders-0", *segments, epochs=epochs, topic_id=topic_id)
    (directory / "log-start-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    return directory


def upload(directory: Path, offsets: range, epochs: Epochs = ((0, 0),), *, topic_id: str = TOPIC_ID, **log: Any) -> Path:
    """Adds a segment to an export of ``LocalTieredStorage``; returns its log file. ``log``: see ``write_log``."""
    with TemporaryDirectory(prefix="upload-") as scratch:
        (stored,) = write_local_tiered(write_log(Path(scratch, "orders-0"), offsets, epochs=epochs, **log), directory, topic_id)
    return stored


def offsets_in(files: ReadableFileSystem, path: str) -> list[int]:
    """The base offsets of the batches of a log file."""
    data = files.read_bytes(path)
    return [batch.header.base_offset for batch in iter_batches(memoryview(data)) if isinstance(batch.header, BatchHeader)]


def read_all(address: str, name: str = "orders-0") -> dict[str, bytes]:
    """Every file of a log, as a task reads it."""
    files, log = MixedFileSystem(), join(address, name)
    found = {}
    for file in files.listdir(log):
        real = files.real_path(join(log, file))
        data = files.read_bytes(join(log, file))
        if real is not None:
            # in a process that has not listed the export
            buffer, at = memoryview(bytearray(real.size)), 0
            reader = MixedFileSystem().open(real.path, real.start, real.start + real.size)
            while at < real.size and (n := reader.pread(buffer[at:], real.start + at)):
                at += n
            reader.close()
            assert bytes(buffer) == data
        stat = files.stat(join(log, file))
        assert stat is not None and stat.size == len(data)
        found[file] = data
    return found


def offsets(address: str) -> list[int]:
    """The offsets of the log's batches, segment by segment."""
    files, log = MixedFileSystem(), join(address, "orders-0")
    names = [name for name in files.listdir(log) if name.endswith(".log")]
    return [offset for name in names for offset in offsets_in(files, join(log, name))]


def write_local_tiered(log: Path, export: Path, topic_id: str = TOPIC_ID) -> list[Path]:
    """Adds all segments with records of a partition directory to an export of ``LocalTieredStorage``; their log files."""
    target, stored = export / f"{log.name}-{topic_id}", []
    target.mkdir(parents=True, exist_ok=True)
    for base in sorted(int(segment.stem) for segment in log.glob("*.log") if segment.stat().st_size):
        stem = f"{base}-{next(_IDS):022d}"
        for kind in (".log", ".index", ".timeindex", ".txnindex"):
            file = log / f"{base:020d}{kind}"
            if file.exists():
                shutil.copy2(file, target / f"{stem}{kind}")
        after = log / f"{end_offset(log / f'{base:020d}.log'):020d}.snapshot"
        (target / f"{stem}.snapshot").write_bytes(after.read_bytes() if after.exists() else write_snapshot([]))
        shutil.copy2(log / "leader-epoch-checkpoint", target / f"{stem}.leader_epoch_checkpoint")
        stored.append(target / f"{stem}.log")
    return stored
