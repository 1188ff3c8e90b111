"""Proof that one run, and no other, works on a log directory: for file systems whose locks cannot be relied on.

A lock holds within one kernel; over NFS without its lock service, or on two mounts of one disk, two runs may both get it. So a
run that changes a log directory also puts a claim there: ``.compaction-run.<number>``, linked into place in one step, which no
file system does twice. The highest number owns the directory. Who finds a claim takes the next number, but only if the claim's
run is known to be over; a run looks for its own claim before each step that cannot be taken back, and ends without one.

A name may become free again between a look at the claims and the step that takes it. So who has put a claim looks at all others
once more, and takes its own away if one of them belongs to a run that is not over; of two runs that do so, none may be left.
Only then the claims of runs that are over go.

A run is over when it ran under this kernel and its process is gone, or when its kernel is gone; across kernels, and across
containers of one kernel, that holds only for a disk that one kernel has to itself, whose locks work. Of a run elsewhere on a
shared file system nobody can tell: somebody has to look, and to remove the file. A broker takes no notice of it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from compaction.errors import LockedError, StorageError
from compaction.fs.filesystem import DiskFileSystem, FileSystem, join
from compaction.locking.mounts import is_local

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"\.compaction-run\.(\d{8})")
_ATTEMPTS = 10
_LAST_NUMBER = 99_999_999
#: more than any run writes
_MAX_BYTES = 4096


class Owner(Protocol):
    """A run's right to change a log directory."""

    @property
    def token(self) -> str:
        """Names the run."""

    def require(self) -> None:
        """:raises StorageError: another run owns the directory now"""


class _Nobody:
    """Of whoever needs no claim: dry runs, and directories that nobody else knows."""

    token = ""

    def require(self) -> None:
        """Nothing."""


NO_OWNER: Owner = _Nobody()


@dataclass(frozen=True)
class Identity:
    """A run: its token, and where its process is, or was."""

    token: str
    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def of_this_process(cls) -> Identity:
        """A new run of this process."""
        return cls(uuid.uuid4().hex, socket.gethostname(), _boot(), _namespace(), os.getpid(), _started(os.getpid()))

    def is_over(self, log_dir: str) -> bool:
        """Whether this run cannot be at work any more, asked by one who holds the directory's lock."""
        if not self.boot:
            return self.host == socket.gethostname() and not _is_alive(self.pid)
        if self.boot != _boot():
            return is_local(log_dir)
        if self.namespace != _namespace():
            # the same kernel: it gave us the lock that a living run there would hold, unless each mount has locks of its own
            return is_local(log_dir)
        return _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Runs(Protocol):
    """Tells runs apart."""

    def begin(self) -> Identity:
        """A new run, of whoever calls."""

    def is_over(self, run: Identity, log_dir: str) -> bool:
        """Whether a run cannot be at work any more, asked by one who holds the lock of ``log_dir``."""


class ProcessRuns:
    """Runs are processes of this machine, and of others."""

    def begin(self) -> Identity:
        """A new run of this process."""
        return Identity.of_this_process()

    def is_over(self, run: Identity, log_dir: str) -> bool:
        """See :meth:`Identity.is_over`."""
        return run.is_over(log_dir)


PROCESSES: Runs = ProcessRuns()


#: whether another run cannot be at work any more in a log directory
IsOver = Callable[[Identity, str], bool]


class Claim:
    """A run's claim on one log directory; a context manager. Take it with :meth:`take`, the directory's lock held."""

    def __init__(self, fs: DiskFileSystem, log_dir: str, number: int, identity: Identity) -> None:
        self._fs, self._log_dir, self._number, self._identity = fs, log_dir, number, identity
        #: what the claim's file is known by, once its content was looked at
        self._file: tuple[int, ...] | None = None

    @classmethod
    def take(cls, fs: DiskFileSystem, log_dir: str, identity: Identity, is_over: IsOver = Identity.is_over) -> Claim:
        """Claim ``log_dir`` for a run.

        :param is_over: tells whether another run cannot be at work any more
        :raises LockedError: another run has claimed it, and may be at work
        :raises StorageError: the file system refused
        """
        for _ in range(_ATTEMPTS):
            numbers = _numbers(fs, log_dir)
            _require_over(fs, log_dir, numbers, is_over)
            number = max(numbers, default=0) + 1
            if number > _LAST_NUMBER:
                hint = "make sure that no other run works here, remove it and run again"
                raise LockedError("no number is left for a claim", path=_path(log_dir, number - 1), hint=hint)
            if fs.link_new(_path(log_dir, number), json.dumps(asdict(identity)).encode(), like=log_dir):
                claim = cls(fs, log_dir, number, identity)
                claim._confirm(is_over)
                return claim
        raise LockedError("other runs claim the log directory at the same time", path=log_dir, hint="run one at a time")

    def _confirm(self, is_over: IsOver) -> None:
        """Look at all other claims once more, and remove them.

        :raises LockedError: another run has claimed the directory meanwhile; this claim is gone
        """
        others = [number for number in _numbers(self._fs, self._log_dir) if number != self._number]
        try:
            _require_over(self._fs, self._log_dir, others, is_over)
        except LockedError:
            self._fs.unlink(_path(self._log_dir, self._number))
            raise
        for number in others:
            self._fs.unlink(_path(self._log_dir, number))
        self.require()

    @property
    def token(self) -> str:
        """Names the run."""
        return self._identity.token

    def require(self) -> None:
        """:raises StorageError: another run owns the directory now"""
        # who takes the directory over takes the next number before it removes this one; a look at two names costs little beside
        # a listing of thousands of partitions
        if self._fs.stat(_path(self._log_dir, self._number + 1)) is None:
            found = self._fs.stat(_path(self._log_dir, self._number))
            file = None if found is None else (found.device, found.inode, found.mtime_ns, found.size)
            if file is not None and (file == self._file or self._is_own()):
                self._file = file
                return
        hint = "let one run at a time work on a directory; what this run had begun, the next one finishes"
        raise StorageError("another run has taken over this log directory", path=self._log_dir, hint=hint)

    def _is_own(self) -> bool:
        found = _read(self._fs, self._log_dir, self._number)
        return found is not None and found.token == self._identity.token

    def release(self) -> None:
        """End the claim, if it still is this run's."""
        path = _path(self._log_dir, self._number)
        try:
            self.require()
            self._fs.unlink(path)
        except StorageError as error:
            # the run is done, and its report must come out
            _LOG.warning("%s stays: %s", path, error)


def is_claim(name: str) -> bool:
    """Whether a file of a log directory is a run's claim."""
    return _NAME.fullmatch(name) is not None


def _path(log_dir: str, number: int) -> str:
    return join(log_dir, f".compaction-run.{number:08d}")


def _numbers(fs: FileSystem, log_dir: str) -> list[int]:
    matches = (_NAME.fullmatch(name) for name in fs.listdir(log_dir))
    return sorted(int(match[1]) for match in matches if match is not None)


def _require_over(fs: FileSystem, log_dir: str, numbers: Sequence[int], is_over: IsOver) -> None:
    """:raises LockedError: one of these claims is of a run that may be at work, or cannot be understood"""
    for number in numbers:
        other = _read(fs, log_dir, number)
        if other is not None and not is_over(other, log_dir):
            hint = f"let it end; if it has ended, remove {_path(log_dir, number)} and run again"
            raise LockedError(f"log directory is claimed by another run ({other})", path=log_dir, hint=hint)


def _read(fs: FileSystem, log_dir: str, number: int) -> Identity | None:
    """The run of a claim; ``None`` if the claim has gone meanwhile.

    :raises LockedError: the claim cannot be understood
    """
    path = _path(log_dir, number)
    found = fs.stat(path)
    if found is None:
        return None
    try:
        return _identity_of(json.loads(fs.read_bytes(path, 0, _MAX_BYTES) if found.is_file else b""))
    except (RecursionError, TypeError, ValueError):
        hint = "make sure that no other run works here, remove it and run again"
        raise LockedError("the claim of another run is malformed", path=path, hint=hint) from None
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _identity_of(value: dict[str, object]) -> Identity:
    """:raises TypeError: fields are missing, or there are others
    :raises ValueError: a field is not as this package writes it
    """
    identity = Identity(**value)  # type: ignore[arg-type]
    texts = (identity.token, identity.host, identity.boot, identity.namespace, identity.started)
    if type(identity.pid) is not int or not 0 < identity.pid < 2**31 or not all(type(text) is str for text in texts):
        raise ValueError("not a run's identity")
    if not identity.token:
        raise ValueError("a run without a token")
    return identity


@cache
def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


@cache
def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty if there is none, or no telling."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split(" ")
    return fields[20] if len(fields) > 20 else ""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""
