"""Files in object stores and on remote file systems, through ``pyarrow.fs``. See ``compaction.storage.places`` for addresses.

A process opens a store once, when it first needs it, and never hands it on to a fork: the clients have threads. Requests that a
store throttles or that a connection loses are repeated by the client. Objects appear whole, when what wrote them closes them;
there is no rename, no lock and no mode. The time of last modification is that of the upload, unless the manifest of an
earlier output (``compaction.storage.manifest``) has the file's own.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from compaction.errors import StorageError, UsageError
from compaction.names import INDEX, SNAPSHOT, TIMEINDEX, TXNINDEX, parse_partition_dir
from compaction.storage.filesystem import Extent, FileStat, base_name, join, parent
from compaction.storage.manifest import MANIFEST, MARKER, Manifest
from compaction.storage.places import NOT_IN_PLACE, is_remote, options_of, split
from compaction.storage.ranges import RangedBytes, View

#: how often a request is tried; the waits in between double, up to 20 s in all
_ATTEMPTS = 8
_WAITS_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
_BROKEN_BUFFER = "Failed to flush response stream"
_REQUEST_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
#: what a task has under way ahead of what it works on
_RANGE_BYTES = 8 << 20
_RANGES_AHEAD = 2
COPY_BYTES = 16 << 20
#: files up to this size are read whole, and the small ones of a partition together
_SMALL_BYTES = 256 * 1024
_KEPT_BYTES = 32 << 20
_OPEN_FILES = 64
_THREADS = 16
_SMALL_KINDS = (INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT)
_S3_OPTIONS = frozenset({"region", "scheme", "endpoint_override", "tls_ca_file_path"})
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET")
_HINTS = (
    ("ACCESS_DENIED|Forbidden|status 403|INVALID_ACCESS_KEY|SIGNATURE", "check the credentials and what they may do there"),
    ("NO_SUCH_BUCKET|Bucket.*(not found|does not exist)", "check the name of the bucket"),
    ("SLOW_DOWN|THROTTL|status 503|REQUEST_LIMIT|TooManyRequests", "the store asks for fewer requests: run again later"),
    ("NETWORK_CONNECTION|Could not connect|resolve host|imed? ?out", "check address, region and network, and run again"),
    ("libjvm|libhdfs|CLASSPATH", "hdfs: needs Hadoop on the machine: JAVA_HOME, HADOOP_HOME and CLASSPATH"),
)

#: ``pyarrow.fs.FileSystem``; pyarrow has no types
Store = Any


class _Client(NamedTuple):
    """A file system, and what it puts before keys."""

    store: Store
    root: str


#: by process, ``SCHEME://AUTHORITY`` and options
_clients: dict[tuple[int, str, str], _Client] = {}


def located(path: str) -> tuple[Store, str]:
    """The file system that holds an address, and the address's name there.

    :raises StorageError: it cannot be opened
    """
    root, key = split(path)
    options = options_of(root)
    identity = (os.getpid(), root, repr(sorted(options.items())))
    client = _clients.get(identity)
    if client is None:
        with remote_errors(root, "open the store"):
            client = _clients[identity] = _connect(root, options)
    return client.store, "/".join(part for part in (client.root, key) if part) or client.root


def _connect(root: str, options: dict[str, str]) -> _Client:
    from pyarrow import fs

    scheme, _, authority = root.partition("://")
    if scheme == "s3":
        return _Client(_s3(authority, options), authority)
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store, path = fs.FileSystem.from_uri(f"{root}/{'?' if query else ''}{query}")
    return _Client(store, path.rstrip("/"))


def _s3(bucket: str, options: dict[str, str]) -> Store:
    from pyarrow import fs

    unknown = sorted(options.keys() - _S3_OPTIONS)
    if unknown:
        raise UsageError(f"s3: addresses have no option {unknown[0]}", hint="there are " + ", ".join(sorted(_S3_OPTIONS)))
    given: dict[str, object] = dict(options)
    elsewhere = "endpoint_override" in options or any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ)
    if "region" not in options and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys() and not elsewhere:
        given["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        **given,
        request_timeout=_REQUEST_TIMEOUT_S,
        connect_timeout=_CONNECT_TIMEOUT_S,
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def reason_of(error: Exception) -> str:
    """What a store says, in one line and without credentials."""
    if isinstance(error, FileNotFoundError):
        return os.strerror(errno.ENOENT)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for name in _CREDENTIALS:
        if os.environ.get(name):
            text = text.replace(os.environ[name], "…")
    return text


def refused(error: Exception, path: str, doing: str) -> StorageError:
    """An error of a store as this package tells it."""
    reason = reason_of(error)
    found = (hint for pattern, hint in _HINTS if re.search(pattern, str(error), re.IGNORECASE))
    hint = "check the address, and that nothing else works on it" if isinstance(error, FileNotFoundError) else next(found, None)
    return StorageError(f"cannot {doing}: {reason}", path=path, hint=hint or "solve this and run again; nothing was lost")


@contextmanager
def remote_errors(path: str, doing: str) -> Iterator[None]:
    """Turn what a store or its client raises into a :class:`StorageError`."""
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException) as error:
        raise refused(error, path, doing) from error


def _repeated(read: Callable[[], bytes]) -> bytes:
    """Reads, again where the client gives up too early: an answer that refuses a request for fewer bytes than its own text has
    breaks the client's buffer, and is told as a failure that is not worth another try."""
    for wait_s in _WAITS_S:
        try:
            return read()
        except OSError as error:
            if _BROKEN_BUFFER not in str(error):
                raise
        time.sleep(wait_s)
    return read()


def _stat_of(info: Any) -> FileStat:
    """A listed object; everybody may read it, and copies belong to whoever makes them."""
    from pyarrow import fs

    is_dir = info.type == fs.FileType.Directory
    mode = 0o755 if is_dir else 0o644
    return FileStat(
        info.size or 0, info.mtime_ns or 0, mode, os.geteuid(), os.getegid(), 0, is_dir, info.type == fs.FileType.File
    )


def list_directory(path: str, *, recursive: bool = False) -> dict[str, FileStat]:
    """What lies in a directory (with ``recursive``: below it), by its name relative to the directory.

    :raises StorageError: there is no such directory, or the store refused
    """
    from pyarrow import fs

    store, key = located(path)
    with remote_errors(path, "list the directory"):
        found = store.get_file_info(fs.FileSelector(key, recursive=recursive))
    start = len(key.rstrip("/")) + 1
    return {info.path.rstrip("/")[start:]: _stat_of(info) for info in found}


def look_up(paths: Sequence[str]) -> list[FileStat | None]:
    """What each of some addresses of one store is; ``None`` where nothing is."""
    from pyarrow import fs

    if not paths:
        return []
    found = [located(path) for path in paths]
    with remote_errors(paths[0], "look at the file"):
        infos = found[0][0].get_file_info([key for _, key in found])
    return [None if info.type == fs.FileType.NotFound else _stat_of(info) for info in infos]


def read_whole(path: str) -> bytes:
    """All bytes of an object."""
    with open_input(path) as stream:
        return stream.read(None)


def _look_up_if_allowed(paths: Sequence[str]) -> list[FileStat | None]:
    """``look_up`` for what need not be there; what may not be looked at is not there."""
    try:
        return look_up(paths)
    except StorageError:
        return [None] * len(paths)


def require_finished(log_dir: str) -> None:
    """:raises UsageError: the place is an output whose run has not come to its end"""
    for place in (log_dir, parent(log_dir)):
        if is_remote(log_dir):
            done, begun = _look_up_if_allowed([join(place, MANIFEST), join(place, MARKER)])
            if begun is not None and done is None:
                what = "this output is unfinished: the run that writes it was stopped, or is still at work"
                raise UsageError(what, path=place, hint="run the job that writes it again")


class RemoteFileSystem:
    """The read side of ``compaction.storage.filesystem.FileSystem``. The places are at rest: each directory is listed once."""

    def __init__(self) -> None:
        self._listings: dict[str, dict[str, FileStat]] = {}
        self._manifests: dict[str, Manifest | None] = {}
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._small: OrderedDict[str, bytes] = OrderedDict()
        self._small_bytes = 0

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(self._entries(path.rstrip("/")))

    def stat(self, path: str) -> FileStat | None:
        """What ``path`` is; ``None`` when there is no such thing."""
        path = path.rstrip("/")
        directory = parent(path)
        if split(path)[1] and (directory in self._listings or parse_partition_dir(base_name(directory)) is not None):
            return self._entries(directory, missing_ok=True).get(base_name(path))
        return look_up([path])[0]

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes from ``start``, at most ``length`` of them."""
        found = self.stat(path)
        if found is not None and found.size <= _SMALL_BYTES:
            data = self._small_file(path)
            return data[start:] if length is None else data[start : start + length]
        file = self._open(path)
        with remote_errors(path, "read"):
            end: int = file.size() if length is None else min(file.size(), start + length)
            return _repeated(partial(file.read_at, end - start, start)) if end > start else b""

    def view(self, path: str) -> View:
        """The whole file; what is looked at is fetched."""
        file = self._open(path)

        def read_at(start: int, length: int) -> bytes:
            with remote_errors(path, "read"):
                return _repeated(partial(file.read_at, length, start))

        return RangedBytes(read_at, file.size())

    def real_path(self, path: str) -> Extent:
        """The file itself."""
        found = self.stat(path)
        return Extent(path, 0, 0 if found is None else found.size)

    def in_memory(self, path: str) -> bool:
        """Never."""
        return False

    def write_file(self, path: str, data: bytes, like: FileStat | None = None) -> None:
        """Refused."""
        raise _read_only(path)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """Refused."""
        raise _read_only(target)

    def rename(self, source: str, target: str) -> None:
        """Refused."""
        raise _read_only(source)

    def unlink(self, path: str) -> None:
        """Refused."""
        raise _read_only(path)

    def mkdir(self, path: str, like: FileStat | None = None) -> None:
        """Refused."""
        raise _read_only(path)

    def rmdir(self, path: str) -> None:
        """Refused."""
        raise _read_only(path)

    def utime(self, path: str, mtime_ns: int) -> None:
        """Refused."""
        raise _read_only(path)

    def fsync(self, path: str) -> None:
        """Nothing to make safe."""

    def fsync_dir(self, path: str) -> None:
        """Nothing to make safe."""

    def _entries(self, path: str, *, missing_ok: bool = False) -> dict[str, FileStat]:
        if path not in self._listings:
            try:
                found = list_directory(path)
            except StorageError as error:
                if not missing_ok or not isinstance(error.__cause__, FileNotFoundError):
                    raise
                found = {}
            self._listings[path] = self._as_written(path, found)
        return self._listings[path]

    def _as_written(self, path: str, found: dict[str, FileStat]) -> dict[str, FileStat]:
        """A listing with the times that a manifest has, and without what only an output has."""
        place = parent(path) if parse_partition_dir(base_name(path)) is not None else path
        for root in (place, parent(place)):
            manifest = self._manifest(root)
            if manifest is not None:
                prefix = f"{path[len(root) + 1 :]}/" if path != root else ""
                times = {name: manifest.mtime_ns(prefix + name, stat.size) for name, stat in found.items() if stat.is_file}
                found = {
                    name: stat if (mtime_ns := times.get(name)) is None else stat._replace(mtime_ns=mtime_ns)
                    for name, stat in found.items()
                }
                break
        return {name: stat for name, stat in found.items() if name not in (MANIFEST, MARKER, "")}

    def _manifest(self, root: str) -> Manifest | None:
        if root not in self._manifests:
            path = join(root, MANIFEST)
            there = _look_up_if_allowed([path])[0] is not None
            self._manifests[root] = Manifest.parse(read_whole(path), path) if there else None
        return self._manifests[root]

    def _open(self, path: str) -> Any:
        file = self._files.pop(path, None)
        if file is None:
            store, key = located(path)
            with remote_errors(path, "read"):
                file = store.open_input_file(key)
        self._files[path] = file
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)
        return file

    def _small_file(self, path: str) -> bytes:
        if path not in self._small:
            directory = parent(path)
            wanted = [path]
            if parse_partition_dir(base_name(directory)) is not None and base_name(path).endswith(_SMALL_KINDS):
                wanted += self._neighbours(directory, path)
            with ThreadPoolExecutor(min(_THREADS, len(wanted))) as pool:
                for name, data in zip(wanted, pool.map(read_whole, wanted), strict=True):
                    self._small[name] = data
                    self._small_bytes += len(data)
            while self._small_bytes > _KEPT_BYTES and len(self._small) > 1:
                self._small_bytes -= len(self._small.popitem(last=False)[1])
        self._small.move_to_end(path)
        return self._small[path]

    def _neighbours(self, directory: str, path: str) -> list[str]:
        """The small files of a partition that were not read yet, from this one on: planning reads all of them."""
        taken, names = 0, []
        for name, found in sorted(self._entries(directory).items()):
            each = join(directory, name)
            if each > path and name.endswith(_SMALL_KINDS) and found.size <= _SMALL_BYTES and each not in self._small:
                taken += found.size
                if taken > _KEPT_BYTES // 2:
                    break
                names.append(each)
        return names


def _read_only(path: str) -> StorageError:
    return StorageError(f"cannot be changed in place: {NOT_IN_PLACE}", path=path, hint="use --output-dir")


class RangeReader:
    """Reads ``[start, end)`` of an object from front to back, a few ranges ahead of what is asked for.

    :raises StorageError: the object cannot be opened
    """

    def __init__(self, path: str, start: int, end: int, range_bytes: int = _RANGE_BYTES) -> None:
        self._path, self._start, self._end, self._range_bytes = path, start, end, range_bytes
        store, key = located(path)
        with remote_errors(path, "open"):
            self._file = store.open_input_file(key)
        self._pool = ThreadPoolExecutor(_RANGES_AHEAD)
        #: the ranges from number ``_first`` on, read or being read
        self._ranges: deque[Future[bytes]] = deque()
        self._first = 0

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        """Fill ``view`` from ``position``: how many bytes, 0 at the end of the object. Nothing before ``floor`` is asked for
        again.

        :raises StorageError: the store refused
        """
        number, at = divmod(position - self._start, self._range_bytes)
        while self._ranges and self._first < (floor - self._start) // self._range_bytes:
            self._ranges.popleft()
            self._first += 1
        while len(self._ranges) <= number - self._first + _RANGES_AHEAD and self._ask():
            pass
        with remote_errors(self._path, "read"):
            data = self._ranges[number - self._first].result()
        n = min(len(view), len(data) - at)
        if n > 0:
            view[:n] = memoryview(data)[at : at + n]
        return max(0, n)

    def _ask(self) -> bool:
        start = self._start + (self._first + len(self._ranges)) * self._range_bytes
        length = min(self._range_bytes, self._end - start)
        if length > 0:
            self._ranges.append(self._pool.submit(_repeated, partial(self._file.read_at, length, start)))
        return length > 0

    def close(self) -> None:
        """Let go of the object."""
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


class ObjectOutput:
    """An object being written, see ``compaction.storage.segment_writer.Output``: it appears when it is closed. Large ones go in
    parts.

    :raises StorageError: the store refuses
    """

    def __init__(self, path: str) -> None:
        self.path = path
        store, key = located(path)
        with remote_errors(path, "write"):
            self._stream = store.open_output_stream(key)

    def write(self, chunks: Sequence[memoryview | bytes]) -> None:
        """Append the chunks."""
        with remote_errors(self.path, "write"):
            for chunk in chunks:
                self._stream.write(chunk)

    def copy_from(self, path: str) -> None:
        """Append all of another object."""
        with open_input(path) as source:
            while True:
                data = source.read(COPY_BYTES)
                if not data:
                    return
                self.write([data])

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        """Close: the object is there afterwards, whole."""
        with remote_errors(self.path, "write"):
            self._stream.close()

    def abandon(self) -> None:
        """Nothing: it is closed already."""

    def remove(self) -> None:
        """Close and take it away: a client cannot break off an upload."""
        with suppress(StorageError):
            with remote_errors(self.path, "write"):
                self._stream.close()
            delete_object(self.path)


class ObjectInput:
    """A stream over an object's bytes; a context manager.

    :raises StorageError: the store refuses
    """

    def __init__(self, path: str) -> None:
        self._path = path
        store, key = located(path)
        with remote_errors(path, "read"):
            self._stream = store.open_input_stream(key)

    def __enter__(self) -> ObjectInput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()

    def read(self, size: int | None) -> bytes:
        """The next ``size`` bytes, all that are left for ``None``; fewer only at the end."""
        with remote_errors(self._path, "read"):
            return _repeated(partial(self._stream.read, size))


def open_input(path: str) -> ObjectInput:
    """A stream over an object's bytes."""
    return ObjectInput(path)


def delete_object(path: str) -> None:
    """Remove an object; no error when it is gone already."""
    store, key = located(path)
    with remote_errors(path, "remove"):
        try:
            store.delete_file(key)
        except FileNotFoundError:
            return


def etag_of(path: str) -> str | None:
    """The store's mark of an object's content, where it has one."""
    store, key = located(path)
    with remote_errors(path, "look at"), store.open_input_file(key) as file:
        found: bytes | str | None = (file.metadata() or {}).get("ETag")
    if found is None:
        return None
    return (found.decode() if isinstance(found, bytes) else found).strip('"')
