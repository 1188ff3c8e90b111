"""URIs instead of paths: prefixes in object stores and directories of remote file systems.

A URI is ``SCHEME://AUTHORITY/KEY``, given by the user with optional connection settings, ``?NAME=VALUE&…``, which ``calls``
keeps by ``SCHEME://AUTHORITY``. A URI contains no credentials: the client libraries find them in their usual places.

``LAYOUT+URI`` is an export in another layout than a log directory's, read as one (package ``exports``): the paths of
its logs and their files are below it, as in a log directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from compaction.errors import StorageError, UsageError
from compaction.files import calls
from compaction.files.calls import new_spool_path, remove_spool
from compaction.files.filesystem import DISK, EXPORTS, OBJECTS, SCHEMES, storage_of
from compaction.names import parse_partition_dir

if TYPE_CHECKING:
    from compaction.exports import ExportLayout, Layouts

#: the only user that a gs: URI may name: access without credentials
_GUEST = ("gs", "anonymous")
#: the options of an address with a layout: a log directory with newer segments, and what the names of topics begin with
TAIL, KEY_PREFIX = "tail", "key.prefix"
#: where a run keeps converted segments (``ExportLayout.spools``); stored as the run's own directory below it
SPOOL = "spool"
#: options that name a file or a log in a layout, not the layout itself
_BELOW = ("--files", "path")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<key>[^?]*)(?:\?(?P<options>.*))?")
#: of a layout
LAYOUT_NAME = re.compile(r"[a-z][a-z0-9-]*")
_LAYOUT = re.compile(rf"(?P<layout>{LAYOUT_NAME.pattern})\+(?P<uri>([A-Za-z][A-Za-z0-9.-]*:|/).*)")
_SECRET = re.compile(r"secret|password|token|access_key|account_key|sig$", re.IGNORECASE)
_NOT_IN_PLACE = "rename is not atomic there, so an interrupted run would lose records"


class LayoutPath(NamedTuple):
    """A path in an export: the ``root`` of the export as an address, ``place``, where it is, and the path ``within`` it."""

    layout: str
    root: str
    place: str
    within: str


def layouts() -> Layouts:
    """The layouts of exports by name. Their package imports this one: it is loaded when a path of a layout is first used."""
    layouts_by_name: Layouts = import_module("compaction.exports").LAYOUTS
    return layouts_by_name


def is_layout(path: str) -> bool:
    """Whether a path is in an export of another layout than a log directory's."""
    return storage_of(path) is EXPORTS


def layout_path(path: str) -> LayoutPath:
    roots = _roots(tuple(calls.all_options()))
    root = next((root for root in roots if is_inside(path, root)), None) or _probable_root(path)
    layout, _, place = root.partition("+")
    place = place.removeprefix("file://")
    return LayoutPath(layout, root, place, path[len(root) + 1 :])


def layout_of(path: str) -> ExportLayout | None:
    return layouts()[layout_path(path).layout] if is_layout(path) else None


def place_of(path: str) -> str:
    """Where the bytes of a path are: of one in an export, the export's path or URI."""
    return layout_path(path).place if is_layout(path) else path


@lru_cache(maxsize=4)
def _roots(stores: tuple[str, ...]) -> tuple[str, ...]:
    """The exports among the stores of calls, the longest address first."""
    return tuple(sorted(filter(is_layout, stores), key=len, reverse=True))


def _probable_root(path: str) -> str:
    """The export of a log or of a file of a log, by their names."""
    outer, _, name = path.rpartition("/")
    if parse_partition_dir(name) is None:
        outer, _, name = outer.rpartition("/")
    return outer if parse_partition_dir(name) is not None else path


def _parse_layout(layout: str, given: str, option: str) -> str:
    """The address of an export; its options are stored."""
    if layout not in layouts():
        known = ", ".join(f"{name}+" for name in layouts())
        raise UsageError(f"{option}: {layout}+ is not a known layout", hint=f"use one of {known}, or install its package")
    if option == "--output-dir":
        raise UsageError(f"{option}: outputs are log directories, not of layout {layout}", hint=f"give it without {layout}+")
    uri, _, query = given.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    own = {name: options.pop(name) for name in (TAIL, KEY_PREFIX, SPOOL) if name in options}
    place = resolved(parse_uri(f"{uri}?{urlencode(options)}" if options else uri, option))
    path = f"{layout}+file://{place}" if place.startswith("/") else f"{layout}+{place}"
    if TAIL in own:
        own[TAIL] = resolved(parse_uri(own[TAIL], TAIL))
    root = _probable_root(path) if option in _BELOW else path
    if layouts()[layout].spools:
        own[SPOOL] = options_of(root).get(SPOOL) or new_spool_path(own.get(SPOOL))
        calls.at_end(partial(_remove_spool, root, own[SPOOL]))
    calls.store_options(root, own)
    return path


def _remove_spool(root: str, path: str) -> None:
    """Removes a spool, unless another call uses it."""
    if options_of(root).get(SPOOL) != path:
        remove_spool(path)


def add_tail(path: str, tail: str) -> None:
    """Join a log directory with newer segments to an export; no effect on another path.

    :raises UsageError: the export has another one
    """
    if is_layout(path):
        root = layout_path(path).root
        calls.store_options(root, {**options_of(root), TAIL: resolved(tail)})


def parse_uri(given: str, option: str) -> str:
    """The path or URI that an option gives; the connection settings of a URI are stored (see the module).

    :raises UsageError: a URI of an unknown scheme or layout, without a bucket, or with credentials
    """
    if not given:
        raise UsageError(f"{option}: the path is empty", hint="give a directory or a URI")
    layout = _LAYOUT.fullmatch(given)
    if layout is not None and (layout["layout"] in layouts() or not layout["uri"].startswith("/")):
        return _parse_layout(layout["layout"], layout["uri"], option)
    if given.startswith("file:"):
        return unquote(re.sub(r"^file:(//(localhost)?(?=/))?", "", given))
    match = _URI.fullmatch(given)
    if match is None:
        return given
    scheme = SCHEMES.get(match["scheme"].lower())
    if scheme is None:
        known = ", ".join(f"{name}:" for name in ("file", *SCHEMES))
        raise UsageError(f"{option}: {match['scheme']}: URIs are not supported", hint=f"use one of {known}")
    if option == "--output-dir" and scheme.storage is not OBJECTS:
        raise UsageError(f"{option}: {match['scheme']}: URIs are only read", hint="give a directory")
    authority, key = match["authority"], re.sub("/+", "/", match["key"]).rstrip("/")
    options = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
    user, at, _ = authority.rpartition("@")
    if (at and (":" in user or (not scheme.has_user and (scheme.name, user) != _GUEST))) or any(map(_SECRET.search, options)):
        hint = "give them in the environment (AWS_ACCESS_KEY_ID, …) or in the client library's own files"
        raise UsageError(f"{option}: a URI must not contain credentials", hint=hint)
    if not authority[len(user + at) :] and scheme.has_bucket:
        raise UsageError(f"{option}: the URI names no bucket", hint=f"{scheme.name}://BUCKET/PREFIX")
    if any(part in (".", "..") for part in key.split("/")):
        raise UsageError(f"{option}: a URI must not contain . or ..", hint="give the resulting URI")
    calls.store_options(f"{scheme.name}://{authority}", options)
    return f"{scheme.name}://{authority}{key}"


def options_of(root: str) -> dict[str, str]:
    """The connection settings of ``SCHEME://AUTHORITY``."""
    return calls.all_options().get(root, {})


def resolved(path: str) -> str:
    """An absolute path, links resolved; a URI without a trailing slash."""
    return str(Path(path).resolve()) if storage_of(path) is DISK else path.rstrip("/")


def is_inside(path: str, other: str) -> bool:
    """Whether a resolved path or URI equals ``other`` or is below it."""
    return f"{path}/".startswith(other if other.endswith("/") else f"{other}/")


def require_local(path: str) -> None:
    """:raises StorageError: ``path`` is a URI, which is never changed in place"""
    if not storage_of(path).renames:
        raise StorageError(f"cannot be changed in place: {_reason(path)}", path=path, hint="use --output-dir")


def require_in_place(paths: Iterable[str], doing: str) -> None:
    """:raises UsageError: one of the paths is a URI"""
    for path in (path for path in paths if not storage_of(path).renames):
        hint = "use --output-dir" if is_layout(path) else "use --output-dir, or copy it to a disk"
        raise UsageError(f"cannot be {doing} in place: {_reason(path)}", path=path, hint=hint)


def _reason(path: str) -> str:
    layout = layout_of(path)
    return _NOT_IN_PLACE if layout is None else layout.why_not_in_place
