"""URIs instead of paths: prefixes in object stores and directories of remote file systems.

A URI is ``SCHEME://AUTHORITY/KEY``, given by the user with optional connection settings, ``?NAME=VALUE&…``. The settings are
kept in this process's environment (``OPTIONS_VARIABLE``), by ``SCHEME://AUTHORITY``, and never in a path, as paths are joined,
compared, reported and logged. Spark's workers receive the same variable. A URI contains no credentials: the client libraries
find them in their usual places.
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

#: scheme as given -> scheme of the client libraries
SCHEMES: Mapping[str, str] = MappingProxyType(
    {"s3": "s3", "s3a": "s3", "gs": "gs", "hdfs": "hdfs", "viewfs": "viewfs", "abfs": "abfs", "abfss": "abfss"}
)
#: schemes whose authority may name a user or a container
_WITH_USER = frozenset({"hdfs", "viewfs", "abfs", "abfss"})
#: the only user that a gs: URI may name: access without credentials
_GUEST = ("gs", "anonymous")
OPTIONS_VARIABLE = "KAFKA_LOG_COMPACTION_PLACES"
#: the longest scheme and "://"
_HEAD = 12
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<key>[^?]*)(?:\?(?P<options>.*))?")
_SECRET = re.compile(r"secret|password|token|access_key|account_key|sig$", re.IGNORECASE)
_NOT_IN_PLACE = "rename is not atomic there, so an interrupted run would lose records"


def is_remote(path: str) -> bool:
    """Whether ``path`` is a URI; ``parse_uri`` turns ``file:`` URIs into paths."""
    return not path.startswith("/") and "://" in path[:_HEAD]


def any_remote(paths: Iterable[str]) -> bool:
    """Whether any of the paths is a URI."""
    return any(map(is_remote, paths))


def parse_uri(given: str, option: str) -> str:
    """The path or URI that an option gives; the connection settings of a URI are stored (see the module).

    :raises UsageError: a URI of an unknown scheme, without a bucket, or with credentials
    """
    if given.startswith("file:"):
        return unquote(re.sub(r"^file:(//(localhost)?(?=/))?", "", given))
    match = _URI.fullmatch(given)
    if match is None:
        return given
    scheme = SCHEMES.get(match["scheme"].lower())
    if scheme is None:
        known = ", ".join(f"{name}:" for name in ("file", *SCHEMES))
        raise UsageError(f"{option}: {match['scheme']}: URIs are not supported", hint=f"use one of {known}")
    authority, key = match["authority"], re.sub("/+", "/", match["key"]).rstrip("/")
    options = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
    user, at, _ = authority.rpartition("@")
    if (at and (":" in user or (scheme not in _WITH_USER and (scheme, user) != _GUEST))) or any(map(_SECRET.search, options)):
        hint = "give them in the environment (AWS_ACCESS_KEY_ID, …) or in the client library's own files"
        raise UsageError(f"{option}: a URI must not contain credentials", hint=hint)
    if not authority[len(user + at) :] and scheme not in ("hdfs", "viewfs"):
        raise UsageError(f"{option}: the URI names no bucket", hint=f"{scheme}://BUCKET/PREFIX")
    if any(part in (".", "..") for part in key.split("/")):
        raise UsageError(f"{option}: a URI must not contain . or ..", hint="give the resulting URI")
    _store_options(f"{scheme}://{authority}", options)
    return f"{scheme}://{authority}{key}"


def _store_options(root: str, options: Mapping[str, str]) -> None:
    known = _all_options()
    if options and known.get(root, options) != options:
        raise UsageError("two URIs of the same store have different options", path=root, hint="give both the same options")
    if options:
        os.environ[OPTIONS_VARIABLE] = json.dumps({**known, root: options})


def _all_options() -> dict[str, dict[str, str]]:
    known: dict[str, dict[str, str]] = json.loads(os.environ.get(OPTIONS_VARIABLE, "{}"))
    return known


def environment() -> dict[str, str]:
    """The environment variable that Spark's workers need to reach the same stores, if it is set."""
    return {OPTIONS_VARIABLE: os.environ[OPTIONS_VARIABLE]} if OPTIONS_VARIABLE in os.environ else {}


def options_of(root: str) -> dict[str, str]:
    """The connection settings of ``SCHEME://AUTHORITY``."""
    return _all_options().get(root, {})


def split(path: str) -> tuple[str, str]:
    """``SCHEME://AUTHORITY`` of a URI, and its key without a leading slash."""
    start = path.index("://") + 3
    end = path.find("/", start)
    return (path, "") if end < 0 else (path[:end], path[end + 1 :])


def resolved(path: str) -> str:
    """An absolute path, links resolved; a URI without a trailing slash."""
    return path.rstrip("/") if is_remote(path) else str(Path(path).resolve())


def is_inside(path: str, other: str) -> bool:
    """Whether a resolved path or URI equals ``other`` or is below it."""
    if is_remote(path) or is_remote(other):
        return f"{path}/".startswith(f"{other}/")
    return Path(path).is_relative_to(other)


def require_local(path: str) -> None:
    """:raises StorageError: ``path`` is a URI, which is never changed in place"""
    if is_remote(path):
        raise StorageError(f"cannot be changed in place: {_NOT_IN_PLACE}", path=path, hint="use --output-dir")


def require_in_place(paths: Iterable[str], doing: str) -> None:
    """:raises UsageError: one of the paths is a URI"""
    for path in filter(is_remote, paths):
        what = f"cannot be {doing} in place: {_NOT_IN_PLACE}"
        raise UsageError(what, path=path, hint="use --output-dir, or copy it to a disk")
