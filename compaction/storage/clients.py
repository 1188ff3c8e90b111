"""Clients of object stores and remote file systems, through ``pyarrow.fs``, and their errors.

A process opens a store at first use and never shares the client with a fork, as clients have threads. The clients retry
throttled requests and lost connections; ``repeated`` retries one failure that they do not.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from compaction.errors import StorageError, UsageError
from compaction.storage.kinds import split
from compaction.storage.uri import options_of, place_of

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


class _Client(NamedTuple):
    store: Store
    root: str


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
    root, _ = split(place)
    missing = StorageError("no such bucket", path=root, hint="check the name of the bucket, and the endpoint or region")
    try:
        with remote_errors(root, "reach the store"):
            if _is_absent(_connect(root, options_of(root), _BRIEF)):
                raise missing
    except StorageError as error:
        # without the right to look at buckets their objects may be readable
        if error is missing or re.search(_UNREACHABLE, str(error.__cause__), re.IGNORECASE):
            raise
    _reached.add(root)


def _is_absent(client: _Client) -> bool:
    from pyarrow import fs

    return bool(client.store.get_file_info(client.root).type == fs.FileType.NotFound)


def located(path: str) -> tuple[Store, str]:
    """The file system that holds a URI, and the name of the URI in it.

    :raises StorageError: it cannot be opened
    """
    root, key = split(path)
    options = options_of(root)
    identity = (os.getpid(), root, repr(sorted(options.items())))
    client = _clients.get(identity)
    if client is None:
        with remote_errors(root, "open the store"):
            client = _clients[identity] = _connect(root, options, _PATIENT)
    return client.store, "/".join(part for part in (client.root, key) if part) or client.root


def _connect(root: str, options: dict[str, str], patience: _Patience) -> _Client:
    from pyarrow import fs

    scheme, _, authority = root.partition("://")
    if scheme == "s3":
        return _Client(_s3(authority, options, patience), authority)
    known = {"retry_limit_seconds": str(patience.gs_s), **options} if scheme == "gs" else options
    query = "&".join(f"{name}={value}" for name, value in known.items())
    store, path = fs.FileSystem.from_uri(f"{root}/{'?' if query else ''}{query}")
    return _Client(store, path.rstrip("/"))


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
