"""Where compiled kernels are kept, so that no process compiles what another one has compiled.

The first place of these that can be written and is the user's own (see ``ownership``): numba runs what it finds there.

1. ``$NUMBA_CACHE_DIR``; ``/dev/null`` keeps nothing;
2. ``kafka-log-compaction/numba`` in the user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``);
3. ``kafka-log-compaction-UID`` in the temporary directory.

A file there that others own or may write to is not read but replaced.

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
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import llvmlite.binding
import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

import compaction.kernels
from compaction.kernels.compiling.ownership import is_private_file, make_private, why_not_private

CACHE_DIR = "NUMBA_CACHE_DIR"
#: the choice of keeping nothing
NO_CACHE = os.devnull
_LOG = logging.getLogger(__name__)
#: so many states of the sources keep their kernels
_STATES = 8


@cache
def fingerprint() -> str:
    """Names the state of all kernels' sources and of what compiles them."""
    settings = (config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT, config.CPU_NAME, config.CPU_FEATURES)
    found = hashlib.sha256(repr((sys.version_info, numba.__version__, llvmlite.__version__, settings)).encode())
    for finder, name, _ in pkgutil.walk_packages(compaction.kernels.__path__, f"{compaction.kernels.__name__}."):
        spec = finder.find_spec(name, None)
        found.update(name.encode() + _source(spec))
    return found.hexdigest()[:16]


def _source(spec: ModuleSpec | None) -> bytes:
    source = spec.loader.get_source(spec.name) if spec and spec.loader and hasattr(spec.loader, "get_source") else None
    return (source or "").encode()


def cache_dir(home: Path | None = None) -> Path | None:
    """The place of this process; ``None`` where nothing can be kept. A place other than the first choice is told: one that
    cannot be written once, one that others could have written to in each run.

    :param home: home directory to take instead of the user's
    """
    if os.environ.get(CACHE_DIR) == NO_CACHE:
        return None
    wanted = _wanted(home)
    reason, foreign = ("no home directory", False) if wanted is None else _refusal(wanted)
    if not reason:
        return wanted
    temporary, known = _temporary()
    if foreign or not known:
        hint = f"set {CACHE_DIR} to a directory that is yours and that nobody else may write to"
        _LOG.warning("%s: compiled kernels are kept in %s; %s", reason, temporary or "memory, for this run", hint)
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


def _refusal(directory: Path) -> tuple[str, bool]:
    """Why kernels are not kept in a directory, which is made where it is missing, and whether that is for fear of others."""
    kept = directory / fingerprint()
    try:
        # what was compiled there before counts, although nothing can be added
        reason = why_not_private(kept) if os.path.lexists(kept) else make_private(directory)
    except OSError as error:
        return f"{directory} cannot be written ({error.strerror})", False
    return reason, bool(reason)


def _temporary() -> tuple[Path | None, bool]:
    """This user's directory among the temporary ones, and whether it was there before."""
    temporary = Path(tempfile.gettempdir()) / f"kafka-log-compaction-{os.geteuid()}"
    known = os.path.lexists(temporary)
    # a link there is somebody's who wants something else to be written to
    if temporary.is_symlink() or _refusal(temporary)[0]:
        return None, False
    return temporary, known


@cache
def process_cache_dir() -> Path | None:
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
        here = process_cache_dir()
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


class _OwnFiles(IndexDataCacheFile):  # type: ignore[misc]
    """The files of one kernel, as numba has them; those that others could have written are not there."""

    def _load_index(self) -> dict[Any, str]:
        overloads: dict[Any, str] = super()._load_index() if self._is_own(self._index_name) else {}
        return overloads

    def _load_data(self, name: str) -> Any:
        if not self._is_own(name):
            raise FileNotFoundError(name)
        return super()._load_data(name)

    def _is_own(self, name: str) -> bool:
        path = os.path.join(self._cache_path, name)  # noqa: PTH118
        if not os.path.lexists(path):
            return False
        reason = why_not_private(Path(self._cache_path)) or ("" if is_private_file(path) else f"{path} is not yours alone")
        if reason:
            _LOG.info("%s: a kernel there is not used but compiled anew", reason)
        return not reason

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BinaryIO]:
        """A new file that takes the place of ``filepath`` when it is written; for this user alone, whatever the umask."""
        beside = Path(f"{filepath}.tmp.{uuid4().hex[:16]}")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            try:
                yield file
                file.flush()
                beside.replace(filepath)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise


class KernelCache(FunctionCache):  # type: ignore[misc]
    """One kernel on disk. Who finds it missing holds its lock until it is there."""

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _OwnFiles(self.cache_path, self._impl.filename_base, locator.get_source_stamp())
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
            path = Path(self.cache_path) / f"{self._impl.filename_base}.lock"
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            # a file system without locks: at worst a kernel is compiled twice
            _LOG.info("%s: kernels are not locked: %s", self.cache_path, error.strerror)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _mark(group: str) -> Path | None:
    here = process_cache_dir()
    if here is None or config.DISABLE_JIT:
        return None
    # a directory that several machines see holds the code of each kind of CPU
    cpu = (llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten())
    return here / fingerprint() / f"{group}.{hashlib.sha256(repr(cpu).encode()).hexdigest()[:8]}.done"


def is_compiled(group: str) -> bool:
    """Whether any process on a machine with this CPU has noted a group of kernels as compiled; always true without a cache."""
    mark = _mark(group)
    return mark is None or mark.exists()


def note_compiled(group: str) -> None:
    """Note that all kernels of a group are there."""
    mark = _mark(group)
    if mark is not None and not mark.exists():
        try:
            mark.touch(mode=0o600)
        except OSError as error:
            _LOG.info("%s cannot be written: %s", mark, error.strerror)


def kernel_cache(function: Callable[..., Any]) -> KernelCache | None:
    """The cache of a kernel; ``None`` where nothing can be kept."""
    return None if process_cache_dir() is None else KernelCache(function)
