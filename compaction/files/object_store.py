"""Object stores and remote file systems, through ``pyarrow.fs``: their clients, listings, and objects as files and outputs.

A process opens a store at first use and never shares the client with a fork, as clients have threads. The clients retry
throttled requests and lost connections; ``repeated`` retries one failure that they do not. Nothing is cached here.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from compaction.errors import StorageError, UsageError
from compaction.files.filesystem import File, FileStat, Output, split
from compaction.files.uri import options_of, place_of

_WAITS_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
_BROKEN_BUFFER = "Failed to flush response stream"


class _Patience(NamedTuple):
    """How long requests may take: for S3 the attempts, the waits between which double, and timeouts of each; for gs: in all."""

    attempts: int
    connect_s: float
    request_s: float
    gs_s: int


#: of a run: up to 20 s of waits in total; the default of gs: is 15 minutes
_PATIENT = _Patience(8, 10.0, 30.0, 60)
#: of the first request, before anything has begun
_BRIEF = _Patience(2, 3.0, 10.0, 5)
_S3_OPTIONS = frozenset({"region", "scheme", "endpoint_override", "tls_ca_file_path"})
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET")
_UNREACHABLE = "NETWORK_CONNECTION|Could not connect|resolve host|imed? ?out"
_REFUSED = "permission denied|AccessControlException"
_HINTS = (
    (
        "ACCESS_DENIED|PERMISSION_DENIED|Forbidden|status 403|INVALID_ACCESS_KEY|SIGNATURE|UNAUTHENTICATED|OAuth2",
        "check the credentials and what they may do there",
    ),
    ("NO_SUCH_BUCKET|Bucket.*(not found|does not exist)", "check the name of the bucket"),
    (
        "SLOW_DOWN|SERVICE_UNAVAILABLE|THROTTL|status (code: )?(429|503)|REQUEST_LIMIT|TooManyRequests",
        "the store throttles requests: run again later",
    ),
    (_UNREACHABLE, "check URI, region and network, and run again"),
    ("libjvm|libhdfs|CLASSPATH", "hdfs: needs Hadoop on the machine: JAVA_HOME, HADOOP_HOME and CLASSPATH"),
)

#: ``pyarrow.fs.FileSystem``; pyarrow has no types
Store = Any


#: a client of a store, and the name of ``SCHEME://AUTHORITY`` in it
_Client = tuple[Store, str]
#: by process, ``SCHEME://AUTHORITY`` and options
_clients: dict[tuple[int, str, str], _Client] = {}
#: the stores that have answered
_reached: set[str] = set()


def require_store(path: str) -> None:
    """Makes the first request to the store of a URI, which fails within seconds: a run repeats its requests for longer. Does
    nothing for local paths, and for stores without buckets.

    :raises StorageError: the store cannot be reached, or there is no such bucket
    """
    place = place_of(path)
    if not place.startswith(("s3://", "gs://")) or split(place)[0] in _reached:
        return
    from pyarrow import fs

    root, _ = split(place)
    missing = StorageError("no such bucket", path=root, hint="check the name of the bucket, and the endpoint or region")
    try:
        with remote_errors(root, "reach the store"):
            store, name = _connect(root, options_of(root), _BRIEF)
            if store.get_file_info(name).type == fs.FileType.NotFound:
                raise missing
    except StorageError as error:
        # without the right to look at buckets their objects may be readable
        if error is missing or re.search(_UNREACHABLE, str(error.__cause__), re.IGNORECASE):
            raise
    _reached.add(root)


def located(path: str) -> tuple[Store, str]:
    """The file system that holds a URI, and the name of the URI in it.

    :raises StorageError: it cannot be opened
    """
    root, key = split(path)
    options = options_of(root)
    identity = (os.getpid(), root, repr(sorted(options.items())))
    if identity not in _clients:
        with remote_errors(root, "open the store"):
            _clients[identity] = _connect(root, options, _PATIENT)
    store, name = _clients[identity]
    return store, "/".join(part for part in (name, key) if part) or name


def _connect(root: str, options: dict[str, str], patience: _Patience) -> _Client:
    from pyarrow import fs

    scheme, _, authority = root.partition("://")
    if scheme == "s3":
        return _s3(authority, options, patience), authority
    known = {"retry_limit_seconds": str(patience.gs_s), **options} if scheme == "gs" else options
    query = "&".join(f"{name}={value}" for name, value in known.items())
    store, path = fs.FileSystem.from_uri(f"{root}/{'?' if query else ''}{query}")
    return store, path.rstrip("/")


def _s3(bucket: str, options: dict[str, str], patience: _Patience) -> Store:
    from pyarrow import fs

    unknown = sorted(options.keys() - _S3_OPTIONS)
    if unknown:
        raise UsageError(f"s3: URIs have no option {unknown[0]}", hint="use one of " + ", ".join(sorted(_S3_OPTIONS)))
    given: dict[str, object] = dict(options)
    other_endpoint = "endpoint_override" in options or any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ)
    if "region" not in options and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys() and not other_endpoint:
        given["region"] = fs.resolve_s3_region(bucket)
    given.update(request_timeout=patience.request_s, connect_timeout=patience.connect_s)
    given.update(retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=patience.attempts))
    try:
        # one request instead of three for a small object; older versions of pyarrow lack the option
        return fs.S3FileSystem(**given, allow_delayed_open=True)
    except TypeError:
        pass
    try:
        return fs.S3FileSystem(**given)
    except TypeError as error:
        raise UsageError(f"this version of pyarrow lacks an option of s3: ({error})", hint="install a newer one") from None


def store_error(error: Exception, path: str, doing: str) -> StorageError:
    """A :class:`StorageError` for an error of a store: one line, without credentials."""
    if isinstance(error, FileNotFoundError):
        reason, hint = os.strerror(errno.ENOENT), "check the URI, and that nothing else changes it"
        return StorageError(f"cannot {doing}: {reason}", path=path, hint=hint)
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for name in _CREDENTIALS:
        if os.environ.get(name):
            reason = reason.replace(os.environ[name], "…")
    hints = (hint for pattern, hint in _HINTS if re.search(pattern, str(error), re.IGNORECASE))
    return StorageError(f"cannot {doing}: {reason}", path=path, hint=next(hints, "solve this and run again; nothing was lost"))


def is_access_denied(error: StorageError) -> bool:
    cause = error.__cause__
    return isinstance(cause, PermissionError) or bool(re.search(f"{_HINTS[0][0]}|{_REFUSED}", str(cause), re.IGNORECASE))


def _as_not_found(error: Exception) -> Exception:
    """``FileNotFoundError`` for the error of gs: whose text alone says so; any other error unchanged."""
    text = os.strerror(errno.ENOENT)
    if type(error) is OSError and str(error).startswith((text, "No such directory")):
        return FileNotFoundError(errno.ENOENT, text)
    return error


@contextmanager
def remote_errors(path: str, doing: str) -> Iterator[None]:
    """Turn what a store or its client raises into a :class:`StorageError`."""
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException) as error:
        cause = _as_not_found(error)
        raise store_error(cause, path, doing) from cause


def repeated(read: Callable[[], bytes]) -> bytes:
    """Read, with retries of one error that the client wrongly reports as permanent: an error response longer than the requested
    byte range overflows the client's buffer."""
    for wait_s in _WAITS_S:
        try:
            return read()
        except OSError as error:
            if _BROKEN_BUFFER not in str(error):
                raise
        time.sleep(wait_s)
    return read()


#: the client of gs: lists only directories that exist as objects, and sends each write synchronously
_GOOGLE = "gcs"
#: the buffer of its writes
_UPLOAD_BYTES = 8 << 20


def _stat_of(info: Any) -> FileStat:
    from pyarrow import fs

    is_dir = info.type == fs.FileType.Directory
    return object_stat(info.size or 0, info.mtime_ns or 0, is_dir=is_dir)._replace(is_file=info.type == fs.FileType.File)


def object_stat(size: int, mtime_ns: int, *, is_dir: bool) -> FileStat:
    """Attributes of an object or directory: readable by everybody, owned by the current user."""
    return FileStat(size, mtime_ns, 0o755 if is_dir else 0o644, os.geteuid(), os.getegid(), 0, is_dir, not is_dir)


def list_directory(path: str, *, recursive: bool = False) -> dict[str, FileStat]:
    """The entries of a directory (``recursive``: all below it), by name relative to the directory.

    :raises StorageError: the directory is missing, or the store refused
    """
    from pyarrow import fs

    store, key = located(path)
    folded = store.type_name == _GOOGLE and not recursive
    with remote_errors(path, "list the directory"):
        infos = store.get_file_info(fs.FileSelector(key, recursive=recursive or folded))
    start = len(key.rstrip("/")) + 1
    names = {info.path.rstrip("/")[start:]: _stat_of(info) for info in infos}
    return _folded(names) if folded else names


def objects_below(path: str) -> dict[str, FileStat]:
    """The objects below a directory, by relative name; none if it is missing.

    :raises StorageError: the store refused
    """
    try:
        entries = list_directory(path, recursive=True)
    except StorageError as error:
        if is_missing(error):
            return {}
        raise
    return {name: stat for name, stat in entries.items() if stat.is_file and name}


def _folded(names: Mapping[str, FileStat]) -> dict[str, FileStat]:
    """The direct entries of a directory, from a recursive listing."""
    entries: dict[str, FileStat] = {}
    for name, stat in names.items():
        first, slash, _ = name.partition("/")
        entries.setdefault(first, object_stat(0, 0, is_dir=True) if slash else stat)
    return entries


def is_missing(error: StorageError) -> bool:
    return isinstance(error.__cause__, FileNotFoundError)


def stat_objects(paths: Sequence[str]) -> list[FileStat | None]:
    """The attributes of URIs of one store, in one request; ``None`` for a missing one."""
    from pyarrow import fs

    if not paths:
        return []
    places = [located(path) for path in paths]
    with remote_errors(paths[0], "look at the file"):
        infos = places[0][0].get_file_info([key for _, key in places])
    return [None if info.type == fs.FileType.NotFound else _stat_of(info) for info in infos]


def read_whole(path: str) -> bytes:
    """All bytes of an object.

    :raises StorageError: the store refused
    """
    store, key = located(path)
    with remote_errors(path, "read"), store.open_input_stream(key, compression=None) as stream:
        return repeated(stream.read)


def stat_objects_if_allowed(paths: Sequence[str]) -> list[FileStat | None]:
    """``stat_objects`` that treats an object as missing if access is denied.

    :raises StorageError: the store failed for another reason
    """
    try:
        return stat_objects(paths)
    except StorageError as error:
        if not is_access_denied(error):
            raise
    return [None] if len(paths) == 1 else [stat for path in paths for stat in stat_objects_if_allowed([path])]


#: path, size, ETag -> an error if the object is another one
Check = Callable[[str, int, str | None], object]


class ObjectFile(File):
    """An object with random access, for several threads.

    The client of gs: opens an object at the first read, and reports a failure only as a closed file; opening a stream of the
    same object raises the reason.

    :param check: raises an error if an object of this path, size and ETag is not what was written
    :raises StorageError: the object cannot be opened
    """

    def __init__(self, path: str, check: Check | None = None) -> None:
        self._path, self._check = path, check
        self._store, self._key = located(path)
        with remote_errors(path, "open"):
            self._file = self._store.open_input_file(self._key)

    def size(self) -> int:
        """:raises CorruptLogError: the object differs from its manifest entry"""
        with remote_errors(self._path, "read"):
            return int(self._opened().size())

    def etag(self) -> str | None:
        """The object's ETag, if the store has one."""
        with remote_errors(self._path, "look at"):
            return _etag(self._opened())

    def pread(self, view: memoryview, position: int) -> int:
        """:raises CorruptLogError: the object differs from its manifest entry"""
        with remote_errors(self._path, f"read bytes {position} to {position + len(view) - 1}"):
            data = repeated(lambda: self._opened().read_at(len(view), position))
        view[: len(data)] = data
        return len(data)

    def _opened(self) -> Any:
        if self._file.closed:
            self._store.open_input_stream(self._key, compression=None).close()
            if self._file.closed:
                raise OSError("the client reports a closed file")
        # several threads may be the first
        check = self._check
        if check is not None:
            check(self._path, int(self._file.size()), _etag(self._file))
            self._check = None
        return self._file


class ObjectOutput(Output):
    """An object being written, see ``filesystem.Output``: it appears when it is closed. Large objects are uploaded in parts.

    :raises StorageError: the store refused, or the stored size differs from the bytes written
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._size_bytes = 0
        store, key = located(path)
        with remote_errors(path, "write"):
            # otherwise a name such as data.gz would enable compression
            buffer_bytes = _UPLOAD_BYTES if store.type_name == _GOOGLE else None
            self._stream = store.open_output_stream(key, compression=None, buffer_size=buffer_bytes)

    def write(self, chunks: Sequence[memoryview | bytes]) -> None:
        with remote_errors(self.path, "write"):
            for chunk in chunks:
                self._size_bytes += memoryview(chunk).nbytes
                self._stream.write(chunk)

    def close(self, *, sync: bool, mtime_ns: int | None = None) -> None:
        with remote_errors(self.path, "write"):
            self._stream.close()
        require_stored(self.path, stat_objects([self.path])[0], self._size_bytes)

    def remove(self) -> None:
        """Close and remove the object: clients cannot abort an upload."""
        with suppress(StorageError):
            with remote_errors(self.path, "write"):
                self._stream.close()
            delete_object(self.path)


def delete_object(path: str) -> None:
    """Remove an object; no error if it is missing."""
    store, key = located(path)
    with remote_errors(path, "remove"):
        try:
            store.delete_file(key)
        except FileNotFoundError:
            return


def require_stored(path: str, stat: FileStat | None, size_bytes: int) -> None:
    """:raises StorageError: the object is missing, or its size differs from the bytes written"""
    if stat is None or not stat.is_file:
        raise StorageError("output of this run has vanished", path=path, hint="run again")
    if stat.size != size_bytes:
        message = f"output of this run has {stat.size} bytes in the store, {size_bytes} were written"
        raise StorageError(message, path=path, hint="run again; if it happens again, the store loses data")


def _etag(stream: Any) -> str | None:
    """The ETag of an object that pyarrow has opened."""
    fields = {name.lower(): value for name, value in (stream.metadata() or {}).items()}
    found: bytes | str | None = fields.get("etag")
    if found is None:
        return None
    return (found.decode() if isinstance(found, bytes) else found).strip('"')
