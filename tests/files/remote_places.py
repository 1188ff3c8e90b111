"""A store simulated by a local directory: a bucket, a log in it, and an output of that log."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from compaction.config.request import CompactionRequest
from compaction.files import manifest, object_store
from compaction.files.contents import digest_of, view
from compaction.files.filesystem import ReadableFileSystem
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem, file_system
from compaction.files.overlay import OverlayFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.log.read_log import read_segments
from compaction.names import LOG
from compaction.output.publish import Publication
from compaction.output.swap import SwapGroup
from tests.log.logs import build, data_batch, data_segment, location

PLACE = "s3://bucket"


class Tagged:
    """A file of a store that gives ETags: the MD5 of the bytes, as S3 has it of small objects."""

    def __init__(self, file: Any, key: str, store: TaggingStore) -> None:
        self._file, self._key, self._store = file, key, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Tagged:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        """Whether it could not be opened: the client of gs: opens a file when it is looked at."""
        return not self._store.opens() or bool(self._file.closed)

    def metadata(self) -> dict[str, bytes]:
        tag = hashlib.md5(Path(self._key).read_bytes(), usedforsecurity=False).hexdigest()
        return {"Content-Type": b"x", self._store.tag_field: f'"{tag}"'.encode()}


class TaggingStore:
    """A file system of this machine that gives ETags, can lose the end of writes, and differs like the client of gs:.

    :param opened: of each try to open a file, whether it succeeds; later ones do
    """

    #: ends of the keys of which a store loses the last byte that is written
    losing: tuple[str, ...] = ()

    def __init__(self, type_name: str = "local", opened: Sequence[bool] = (), tag_field: str = "ETag") -> None:
        self._disk, self.type_name, self.tag_field, self._opened = fs.LocalFileSystem(), type_name, tag_field, [*opened]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def opens(self) -> bool:
        """Whether the next try to open a file succeeds."""
        return not self._opened or self._opened.pop(0)

    def open_input_file(self, key: str) -> Tagged:
        return Tagged(self._disk.open_input_file(key), key, self)

    def open_input_stream(self, key: str, compression: str | None = "detect") -> Tagged:
        if not self.opens():
            raise OSError("google::cloud::Status(PERMISSION_DENIED: no)")
        return Tagged(self._disk.open_input_stream(key, compression=compression), key, self)

    def open_output_stream(self, key: str, **options: Any) -> Any:
        stream = self._disk.open_output_stream(key, **options)
        return Losing(stream) if self.losing and key.endswith(self.losing) else stream

    def get_file_info(self, selector: Any) -> Any:
        if self.type_name != "gcs" or not isinstance(selector, fs.FileSelector):
            return self._disk.get_file_info(selector)
        try:
            return [found for found in self._disk.get_file_info(selector) if found.type == fs.FileType.File]
        except FileNotFoundError:
            raise OSError(f"No such file or directory '{selector.base_dir}'") from None

    def delete_dir(self, key: str) -> None:
        if self.type_name == "gcs":
            raise OSError(f"No such directory: {key}")
        self._disk.delete_dir(key)


class Losing:
    """A stream that loses the last byte of each write."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes | memoryview) -> None:
        self._stream.write(memoryview(data)[:-1])

    def close(self) -> None:
        self._stream.close()


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory behind ``PLACE``."""
    root = tmp_path / "bucket"
    root.mkdir()
    serve(monkeypatch, root, TaggingStore())
    monkeypatch.setattr(manifest, "_shared", manifest.Manifests(30.0))
    return root


def serve(monkeypatch: pytest.MonkeyPatch, root: Path, store: object) -> None:
    """Objects are those of ``store``, in a directory."""
    monkeypatch.setattr(object_store, "_connect", lambda *_: (store, str(root)))
    monkeypatch.setattr(object_store, "_clients", {})


@pytest.fixture
def log(bucket: Path) -> str:
    """A log of three segments in the bucket."""
    path = bucket / "in" / "orders-0"
    path.mkdir(parents=True)
    for segment in (data_segment(0, range(90)), data_segment(90, range(90, 130)), data_segment(130, [130])):
        segment.put(LocalFileSystem(), str(path))
    return f"{PLACE}/in/orders-0"


def copying(*log_dirs: str, **options: Any) -> CompactionRequest:
    """The request of a copy."""
    return CompactionRequest(log_dirs, (), 0, **options)


def begin(log_dir: str, target: str, **options: Any) -> tuple[Publication, OverlayFileSystem]:
    """A run whose task has written its output, to a disk or to a store, beside that of an attempt that was killed."""
    here = location(log_dir)
    publication = Publication(file_system([log_dir]), target, copying(log_dir, **options))
    files = []
    for kind, data in build(0, [data_batch(10)]).files.items():
        for attempt, written in (("two", data[:9]), ("one", data)):
            output = MixedFileSystem().create(f"{publication.log_path(here)}/{0:020d}{kind}.clean.{attempt}", None)
            output.write([written])
            output.close(sync=True)
        files.append(digest_of(data)._replace(kind=kind))
    assert files[0].kind == LOG
    source = OverlayFileSystem(file_system([log_dir]))
    group = SwapGroup((0, 90), ".clean.one", 7000, tuple(files))
    publication.add_log(source, here, [group], read_segments(source, here.path), end_offset=130)
    return publication, source


def publish(log_dir: str, target: str, **options: Any) -> Publication:
    """A run that comes to its end."""
    publication, source = begin(log_dir, target, **options)
    publication.commit(source)
    return publication


def require_read_alike(near: Path, far: ReadableFileSystem, place: str) -> None:
    """The files of a log in ``place`` are those of a directory of this machine: as a whole, in ranges, and as segments."""
    assert far.listdir(place) == LocalFileSystem().listdir(str(near)) != []
    for name in far.listdir(place):
        path, data = f"{place}/{name}", (near / name).read_bytes()
        found = far.stat(path)
        assert found is not None and (found.size, found.is_file) == (len(data), True)
        assert far.read_bytes(path) == view(far, path)[:].tobytes() == data
        assert far.read_bytes(path, 5, 7) == data[5:12]
        assert far.real_path(path) == (path, 0, len(data))
        for block_bytes in (100, 1000, 100_000) if name.endswith(LOG) else ():
            with SegmentReader(far, path, 0, len(data), block_bytes=block_bytes) as reader:
                assert b"".join(block.raw.tobytes() for block in reader.blocks(check_crc=True)) == data
