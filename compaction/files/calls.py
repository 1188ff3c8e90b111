"""What a call of this package keeps beside its arguments: the connection settings of its stores, its private keys, and its
temporary directories.

Paths are joined, compared, reported and logged, so settings are not a part of them; every function that opens a store looks
them up here. They are kept for the calls that have given them, and removed with the last of these. Workers get
``environment()`` as variables of their own environment, where users may set private keys, too. Nothing changes the environment
of the driver.

A directory is in use while a process of its machine has a shared lock (``flock``) on it: the kernel releases that with the
process, however it ends. A process that needs one first removes those beside it that are not in use. Nothing is removed on a
file system without such locks, e.g. NFS.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from compaction.errors import StorageError, UsageError
from compaction.files.filesystem import storage_errors

#: the settings of stores and exports, by ``SCHEME://AUTHORITY`` or address, in JSON
OPTIONS_VARIABLE = "KAFKA_LOG_COMPACTION_PLACES"
#: private keys of encrypted exports: ``ID=FILE``, separated by commas
KEYS_VARIABLE = "KAFKA_LOG_COMPACTION_PRIVATE_KEYS"


class _Call:
    """What one call has given, and what its end does."""

    def __init__(self) -> None:
        self.options: dict[str, dict[str, str]] = {}
        self.keys: list[str] = []
        self.end = ExitStack()


#: what was given outside of calls; it ends with the process
_process = _Call()
_current: ContextVar[_Call] = ContextVar("call of kafka-log-compaction", default=_process)
_mutex = threading.Lock()
_open = [_process]


@atexit.register
def _end_process() -> None:
    _open.clear()
    _process.end.close()


@contextmanager
def call(*, leaves_files: bool = False) -> Iterator[None]:
    """A call: what the block gives is known until its end. One within another belongs to that.

    :param leaves_files: temporary files are needed afterwards; they are removed when the process ends
    """
    if _current.get() is not _process:
        yield
        return
    begun = _Call()
    with _mutex:
        _open.append(begun)
    token = _current.set(begun)
    try:
        yield
    finally:
        _current.reset(token)
        with _mutex:
            _open.remove(begun)
        if leaves_files:
            _process.end.push(begun.end.pop_all())
        begun.end.close()


def at_end(function: Callable[[], object]) -> None:
    """Calls ``function`` when this call ends, in this process only: not in a fork of it."""
    owner = os.getpid()

    def in_owner() -> None:
        if os.getpid() == owner:
            function()

    _current.get().end.callback(in_owner)


def store_options(root: str, options: Mapping[str, str]) -> None:
    """Keeps the settings of a store or an export for this call; without any, those that it has already.

    :raises UsageError: this call, or another one that is open, has others
    """
    with _mutex:
        own = _current.get()
        known = _joined(_in_environment(), _process.options, own.options).get(root, {})
        if options and (known or options) != options:
            raise UsageError("two URIs of the same store have different options", path=root, hint="give both the same options")
        kept = dict(options or known)
        if any(each.options.get(root, kept) != kept for each in _open if each not in (own, _process)):
            hint = "give both calls the same options, or make one after the other"
            raise UsageError("another call of this process has different options for the same store", path=root, hint=hint)
        own.options[root] = kept


def store_keys(keys: Iterable[str]) -> None:
    """Keeps private keys, ``ID=FILE`` or ``FILE``, for this call."""
    with _mutex:
        _current.get().keys.extend(keys)


def all_options() -> dict[str, dict[str, str]]:
    """The settings by store or export."""
    with _mutex:
        return _joined(_in_environment(), *(each.options for each in _open))


def _joined(*given: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Later options count; a store that was named without any has those that were given before."""
    known: dict[str, dict[str, str]] = {}
    for options_by_store in given:
        known |= {store: options for store, options in options_by_store.items() if options or store not in known}
    return known


def _in_environment() -> dict[str, dict[str, str]]:
    """The settings that the driver of this worker has given."""
    known: dict[str, dict[str, str]] = json.loads(os.environ.get(OPTIONS_VARIABLE, "{}"))
    return known


def all_keys() -> list[str]:
    """Private keys, ``ID=FILE`` or ``FILE``; the last one of an id counts."""
    known = [text for text in os.environ.get(KEYS_VARIABLE, "").split(",") if text]
    with _mutex:
        return [*known, *(key for each in _open for key in each.keys)]


def environment() -> dict[str, str]:
    """The environment variables that workers need to reach the same stores; those without a value are left out."""
    variables = {OPTIONS_VARIABLE: json.dumps(all_options()), KEYS_VARIABLE: ",".join(all_keys())}
    return {name: value for name, value in variables.items() if value not in ("", "{}")}


@contextmanager
def driver_environment(stored: Mapping[str, str]) -> Iterator[None]:
    """In the block, the variables of this worker are those of its driver, ``stored``: a worker of Spark plans several reads."""
    before = {name: os.environ.pop(name) for name in (OPTIONS_VARIABLE, KEYS_VARIABLE) if name in os.environ}
    os.environ.update(stored)
    try:
        yield
    finally:
        for name in (OPTIONS_VARIABLE, KEYS_VARIABLE):
            os.environ.pop(name, None)
        os.environ.update(before)


#: what the name of such a directory begins with, followed by 32 hexadecimal digits
SPOOL_NAME = "kafka-log-compaction-"
_SPOOL = re.compile(rf"{SPOOL_NAME}[0-9a-f]{{32}}")
_ATTEMPTS = 10
_spool_mutex = threading.Lock()
#: the directories that this process uses -> open descriptor
_used: dict[str, int] = {}


def new_spool_path(directory: str | None) -> str:
    """A directory below ``directory``, or below the system's for temporary files, that its first user is to create."""
    return str(Path(directory or tempfile.gettempdir()).resolve() / f"{SPOOL_NAME}{uuid.uuid4().hex}")


def use_spool(directory: str) -> None:
    """Make a directory of ``new_spool_path``, readable by its owner only, and keep it in use until this process ends.

    :raises StorageError: it cannot be made
    """
    path = Path(directory)
    with _spool_mutex, storage_errors(directory, "make a temporary directory"):
        if directory in _used:
            if _is_at(path, _used[directory]):
                return
            os.close(_used.pop(directory))
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unused(path.parent)
        for _ in range(_ATTEMPTS):
            path.mkdir(mode=0o700, exist_ok=True)
            descriptor = _locked(path)
            if descriptor is not None:
                _used[directory] = descriptor
                return
        raise StorageError("temporary directory is removed repeatedly", path=directory, hint="find out what removes it")


def remove_spool(directory: str) -> None:
    """Remove a directory that this process may have used."""
    shutil.rmtree(directory, ignore_errors=True)
    with _spool_mutex:
        if directory in _used:
            os.close(_used.pop(directory))


def remove_unused(directory: Path) -> None:
    """Remove this user's temporary directories that no process of this machine uses."""
    for name in os.listdir(directory) if os.access(directory, os.R_OK) else ():  # noqa: PTH208
        # one of another user, a link, already removed, in use, or on a file system without locks
        with suppress(OSError):
            if _SPOOL.fullmatch(name):
                _remove_unused(directory / name)


def _remove_unused(path: Path) -> None:
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid() and _is_at(path, descriptor):
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A descriptor of the directory with a shared lock; ``None`` if the directory has just been removed."""
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        return None
    # a file system without locks has none to remove it, either
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if _is_at(path, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def temporary_directory(above: str | None) -> Iterator[str]:
    """A temporary directory in ``above``, by default the system's directory for such; removed at the end.

    :raises StorageError: it cannot be made
    """
    path = new_spool_path(above)
    use_spool(path)
    try:
        yield path
    finally:
        remove_spool(path)
