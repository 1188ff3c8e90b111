"""Places that are addresses instead of paths: prefixes in object stores and directories of remote file systems.

An address is ``SCHEME://AUTHORITY/KEY``. What the user gives may end in ``?NAME=VALUE&…``, how to reach the store; that part
is kept in this process's environment (``OPTIONS_VARIABLE``), by ``SCHEME://AUTHORITY``, and never in a path: paths are joined,
compared, reported and logged. Spark's workers are given the same variable. Credentials are no part of an address: the libraries
that talk to the stores find them where they always do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qsl, unquote

from compaction.errors import StorageError, UsageError

#: scheme as given -> scheme as the libraries know it
SCHEMES: Mapping[str, str] = MappingProxyType(
    {"s3": "s3", "s3a": "s3", "gs": "gs", "hdfs": "hdfs", "viewfs": "viewfs", "abfs": "abfs", "abfss": "abfss"}
)
#: schemes whose authority may name a user or a container
_WITH_USER = frozenset({"hdfs", "viewfs", "abfs", "abfss"})
#: the one user that a bucket of gs: may be asked by in an address: nobody, without credentials
_NOBODY = ("gs", "anonymous")
OPTIONS_VARIABLE = "KAFKA_LOG_COMPACTION_PLACES"
#: the longest scheme and "://"
_HEAD = 12
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<key>[^?]*)(?:\?(?P<options>.*))?")
_SECRET = re.compile(r"secret|password|token|access_key|account_key|sig$", re.IGNORECASE)
_NOT_IN_PLACE = "rename is not atomic there, so that a stop half way would lose records"


def is_remote(path: str) -> bool:
    """Whether ``path`` is an address; ``file:`` addresses become paths when a call is read (``parse_uri``)."""
    return not path.startswith("/") and "://" in path[:_HEAD]


def any_remote(paths: Iterable[str]) -> bool:
    """Whether any of the paths is an address."""
    return any(map(is_remote, paths))


def parse_uri(given: str, option: str) -> str:
    """The path or address that an option gives; what an address says of how to reach the store is remembered.

    :raises UsageError: an address of an unknown kind, without a bucket, or with credentials in it
    """
    if given.startswith("file:"):
        return unquote(re.sub(r"^file:(//(localhost)?(?=/))?", "", given))
    match = _ADDRESS.fullmatch(given)
    if match is None:
        return given
    scheme = SCHEMES.get(match["scheme"].lower())
    if scheme is None:
        known = ", ".join(f"{name}:" for name in ("file", *SCHEMES))
        raise UsageError(f"{option}: {match['scheme']}: addresses are not known", hint=f"there are {known}")
    authority, key = match["authority"], re.sub("/+", "/", match["key"]).rstrip("/")
    options = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
    user, at, _ = authority.rpartition("@")
    if (at and (":" in user or (scheme not in _WITH_USER and (scheme, user) != _NOBODY))) or any(map(_SECRET.search, options)):
        hint = "take them out; they are found in the environment (AWS_ACCESS_KEY_ID, …) or in the library's own files"
        raise UsageError(f"{option}: an address must not hold credentials", hint=hint)
    if not authority[len(user + at) :] and scheme not in ("hdfs", "viewfs"):
        raise UsageError(f"{option}: the address names no bucket", hint=f"{scheme}://BUCKET/PREFIX")
    if any(part in (".", "..") for part in key.split("/")):
        raise UsageError(f"{option}: an address must not hold . or ..", hint="write it out")
    _remember(f"{scheme}://{authority}", options)
    return f"{scheme}://{authority}{key}"


def _remember(root: str, options: Mapping[str, str]) -> None:
    known = _known()
    if options and known.get(root, options) != options:
        raise UsageError("two addresses reach the same store in different ways", path=root, hint="give both the same options")
    if options:
        os.environ[OPTIONS_VARIABLE] = json.dumps({**known, root: options})


def _known() -> dict[str, dict[str, str]]:
    known: dict[str, dict[str, str]] = json.loads(os.environ.get(OPTIONS_VARIABLE, "{}"))
    return known


def environment() -> dict[str, str]:
    """What the environment of other processes must hold for them to reach the same places."""
    return {OPTIONS_VARIABLE: os.environ[OPTIONS_VARIABLE]} if OPTIONS_VARIABLE in os.environ else {}


def options_of(root: str) -> dict[str, str]:
    """What was said of how to reach ``SCHEME://AUTHORITY``."""
    return _known().get(root, {})


def split(path: str) -> tuple[str, str]:
    """An address in two: ``SCHEME://AUTHORITY``, and the key without a slash at its start."""
    start = path.index("://") + 3
    end = path.find("/", start)
    return (path, "") if end < 0 else (path[:end], path[end + 1 :])


def resolved(path: str) -> str:
    """An absolute path, links followed; an address as it is."""
    return path.rstrip("/") if is_remote(path) else str(Path(path).resolve())


def is_inside(path: str, other: str) -> bool:
    """Whether a resolved path or address is another one or lies below it."""
    if is_remote(path) or is_remote(other):
        return f"{path}/".startswith(f"{other}/")
    return Path(path).is_relative_to(other)


def require_local(path: str) -> None:
    """:raises StorageError: ``path`` is a URI, which is never changed in place"""
    if is_remote(path):
        raise StorageError(f"cannot be changed in place: {_NOT_IN_PLACE}", path=path, hint="use --output-dir")


def require_in_place(paths: Iterable[str], doing: str) -> None:
    """:raises UsageError: one of the places cannot be worked on in place"""
    for path in filter(is_remote, paths):
        what = f"cannot be {doing} in place: {_NOT_IN_PLACE}"
        raise UsageError(what, path=path, hint="use compact with --output-dir, or copy it to a disk")
