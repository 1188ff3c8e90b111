"""Where compiled kernels are kept, so that no process compiles what another one has compiled.

The first place of these that can be written:

1. ``$NUMBA_CACHE_DIR``;
2. ``kafka-log-compaction/numba`` in the user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``);
3. ``kafka-log-compaction-UID`` in the temporary directory, where nobody else can write.

Never the package's own directory, which may be read-only, a zip, or on a machine of another kind. In that place each state of
the sources has a directory of its own: numba looks at the source file of a kernel alone, not at what it calls. A kernel is
compiled by one process while others that need it wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pickle
import pkgutil
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

import compaction.kernels

CACHE_DIR = "NUMBA_CACHE_DIR"
_LOG = logging.getLogger(__name__)
#: so many states of the sources keep their kernels
_STATES = 8


@cache
def fingerprint() -> str:
    """Names the state of all kernels' sources and of what compiles them."""
    settings = (config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT, config.CPU_NAME, config.CPU_FEATURES)
    found = hashlib.sha256(repr((sys.version_info, numba.__version__, llvmlite.__version__, settings)).encode())
    for finder, name, _ in pkgutil.iter_modules(compaction.kernels.__path__):
        spec = finder.find_spec(name, None)
        found.update(name.encode() + _source(spec))
    return found.hexdigest()[:16]


def _source(spec: ModuleSpec | None) -> bytes:
    source = spec.loader.get_source(spec.name) if spec and spec.loader and hasattr(spec.loader, "get_source") else None
    return (source or "").encode()


def cache_dir(home: Path | None = None) -> Path | None:
    """The place of this process; ``None`` where nothing can be written. A place other than the first choice is told once.

    :param home: home directory to take instead of the user's
    """
    wanted = _wanted(home)
    if wanted is None:
        error = "no home directory"
    # what was compiled there before counts, although nothing can be added
    elif (wanted / fingerprint()).is_dir() or not (error := _cannot_write(wanted)):
        return wanted
    temporary, found = _temporary()
    if not found:
        where = temporary or "memory, for this run"
        _LOG.warning("%s: compiled kernels are kept in %s; set %s for another place", error, where, CACHE_DIR)
    return temporary


def _wanted(home: Path | None) -> Path | None:
    chosen = os.environ.get(CACHE_DIR)
    if chosen:
        return Path(chosen)
    base = _user_cache_dir(home)
    return base and base / "kafka-log-compaction" / "numba"


def _user_cache_dir(home: Path | None) -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if home is None and Path(base).is_absolute():
        return Path(base)
    try:
        home = home or Path.home()
    except RuntimeError:
        # a user without an entry in the system's list, as containers have them
        return None
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


def _cannot_write(directory: Path) -> str:
    """Make a directory; what is in the way of writing there, if anything."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return f"{directory} cannot be written ({error.strerror})"


def _temporary() -> tuple[Path | None, bool]:
    """This user's directory among the temporary ones, and whether it was there before. numba runs what it finds there, so it
    must be nobody else's."""
    temporary = Path(tempfile.gettempdir()) / f"kafka-log-compaction-{os.getuid()}"
    try:
        temporary.mkdir(mode=0o700)
    except FileExistsError:
        found = temporary.lstat()
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        return (temporary, True) if own and not _cannot_write(temporary) else (None, False)
    except OSError:
        return None, False
    return temporary, False


@cache
def place() -> Path | None:
    """``cache_dir`` of this process, looked for once."""
    return cache_dir()


class _Locator(_CacheLocator):  # type: ignore[misc]
    """Tells numba where a kernel is kept, and by what state of the sources."""

    def __init__(self, function: Callable[..., Any], path: Path) -> None:
        self._line = function.__code__.co_firstlineno
        # named where numba warns that a kernel cannot be kept
        self._py_file = function.__code__.co_filename
        self._path = path

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], _: str) -> _Locator | None:
        """The locator of a kernel; ``None`` where nothing can be kept."""
        here = place()
        return None if here is None else cls(py_func, here / fingerprint())

    def ensure_cache_path(self) -> None:
        """Make the directory; directories of other states of the sources go, but for the youngest."""
        if self._path.is_dir():
            return
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = [each for each in self._path.parent.iterdir() if re.fullmatch("[0-9a-f]{16}", each.name)]
        for old in sorted(others, key=lambda each: each.stat().st_mtime)[:-_STATES]:
            shutil.rmtree(old, ignore_errors=True)

    def get_cache_path(self) -> str:
        """The directory."""
        return str(self._path)

    def get_source_stamp(self) -> str:
        """What a kept kernel must have been compiled from."""
        return fingerprint()

    def get_disambiguator(self) -> str:
        """The line of the kernel."""
        return str(self._line)


class _Impl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """One kernel on disk. Who finds it missing holds its lock until it is there."""

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel, or ``None`` for the caller to compile it and to call ``save_overload``."""
        found = self._load(sig, target_context)
        if found is None:
            self._acquire()
            found = self._load(sig, target_context)
            if found is not None:
                self._release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel; where that fails the process goes on with it all the same."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _LOG.info("%s: kernels are not kept: %s", self.cache_path, error.strerror)
        finally:
            self._release()

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            _LOG.info("%s: a kernel that cannot be read is compiled anew: %s", self.cache_path, error)
            with suppress(OSError):
                self.flush()
            return None

    def _acquire(self) -> None:
        self._release()
        try:
            self._impl.locator.ensure_cache_path()
            self._lock = os.open(Path(self.cache_path) / f"{self._impl.filename_base}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            # a file system without locks: at worst a kernel is compiled twice
            _LOG.info("%s: kernels are not locked: %s", self.cache_path, error.strerror)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _mark(group: str) -> Path | None:
    here = place()
    if here is None or config.DISABLE_JIT:
        return None
    # a directory that several machines see holds the code of each kind of CPU
    cpu = (llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten())
    return here / fingerprint() / f"{group}.{hashlib.sha256(repr(cpu).encode()).hexdigest()[:8]}.done"


def done(group: str) -> bool:
    """Whether ``note_done`` was called for a group of kernels by any process on a machine like this one, or nothing is kept."""
    mark = _mark(group)
    return mark is None or mark.exists()


def note_done(group: str) -> None:
    """Note that all kernels of a group are there."""
    mark = _mark(group)
    if mark is not None and not mark.exists():
        try:
            mark.touch(mode=0o600)
        except OSError as error:
            _LOG.info("%s cannot be written: %s", mark, error.strerror)


def kept(function: Callable[..., Any]) -> KernelCache | None:
    """The cache of a kernel; ``None`` where nothing can be kept."""
    return None if place() is None else KernelCache(function)
