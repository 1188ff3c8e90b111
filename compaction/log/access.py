"""Locks log directories for a run as a broker does, with claims in case locks do not work.

A run that changes a directory holds its lock and a claim. A run that reads it holds a shared lock, if there is a lock file. One
that copies it makes that file, as a broker does, if the directory can be written: who comes first is served first. A dry run
holds nothing, and reports processes that do.

Claims ensure that only one run changes a log directory, on file systems without reliable locks.

A lock works within one kernel; over NFS without its lock service, or on two mounts of one disk, two runs may both obtain it. A
run that changes a log directory therefore also creates a claim, ``.compaction-run.<number>``, by an atomic link. The highest
number owns the directory. A run that finds a claim takes the next number, but only if the claim's run has ended; before each
irreversible step, a run checks its own claim, and fails if it is gone.

A number may be freed between listing the claims and creating one. After creating its claim, a run therefore checks all others
again, and removes its own if one of them belongs to a run that has not ended; of two runs that do so, both may fail. Only then
it removes the claims of ended runs.

A claim is written and synchronized before it gets its name, and its run reads it back. If one breaks off all the same, its disk
has lied and lost power, and its run with it: it holds up no run that has the lock.

A run has ended if it ran under this kernel and its process is gone, or if its kernel is gone. Across kernels, and across
containers of one kernel, this is decidable only on a disk of a single kernel, whose locks work. A claim of another machine on a
shared file system must be removed by the user. Brokers ignore claims.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from compaction.errors import LockedError, StorageError, UsageError
from compaction.files.durable import remove_temporary
from compaction.files.filesystem import DiskFileSystem, FileSystem, join, storage_of
from compaction.names import LOCK

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"\.compaction-run\.(\d{8})")
_ATTEMPTS = 10
_LAST_NUMBER = 99_999_999
#: more than any run writes
_MAX_BYTES = 4096
_BEGINNING = b'{"token": "'
#: the content of what no run has made
_MALFORMED = b"?"


class Owner:
    """A run's right to change a log directory. This one claims nothing: it is for dry runs, and directories that only one run
    knows.

    :ivar token: names the run
    """

    token = ""

    def require(self) -> None:
        """:raises StorageError: another run owns the directory now"""


NO_OWNER = Owner()


@dataclass(frozen=True)
class Identity:
    """A run: its token, and the identity of its process."""

    token: str
    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def of_this_process(cls) -> Identity:
        return cls(uuid.uuid4().hex, socket.gethostname(), _boot(), _namespace(), os.getpid(), _started(os.getpid()))

    def is_over(self, log_dir: str) -> bool:
        """Whether this run has ended; the caller holds the directory's lock."""
        if not self.boot:
            return self.host == socket.gethostname() and not _is_alive(self.pid)
        if self.boot != _boot():
            return is_local(log_dir)
        if self.namespace != _namespace():
            # one kernel grants the lock once, so a live run would still hold it, unless each mount has locks of its own
            return is_local(log_dir)
        return _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Claim(Owner):
    """A run's claim on one log directory; take it with :meth:`take` while holding the directory's lock."""

    def __init__(self, fs: DiskFileSystem, log_dir: str, number: int, identity: Identity) -> None:
        self._fs, self._log_dir, self._number = fs, log_dir, number
        self.token = identity.token
        #: identity of the claim's file, once its content was read
        self._file: tuple[int, ...] | None = None

    @classmethod
    def take(cls, fs: DiskFileSystem, log_dir: str, identity: Identity) -> Claim:
        """Claim ``log_dir`` for a run.

        :raises LockedError: another run that may be active has claimed it
        :raises StorageError: the file system refused
        """
        for _ in range(_ATTEMPTS):
            numbers = _numbers(fs, log_dir)
            _require_over(fs, log_dir, numbers)
            number = max(numbers, default=0) + 1
            if number > _LAST_NUMBER:
                hint = "make sure that no other run works here, remove it and run again"
                raise LockedError("the highest possible claim number is taken", path=_path(log_dir, number - 1), hint=hint)
            if fs.link_new(_path(log_dir, number), json.dumps(asdict(identity)).encode(), like=log_dir):
                claim = cls(fs, log_dir, number, identity)
                claim._confirm()
                return claim
        raise LockedError("other runs claim the log directory at the same time", path=log_dir, hint="run one at a time")

    def _confirm(self) -> None:
        """Check all other claims again, and remove those of ended runs.

        :raises LockedError: another run has claimed the directory since; this claim is removed
        """
        others = [number for number in _numbers(self._fs, self._log_dir) if number != self._number]
        try:
            _require_over(self._fs, self._log_dir, others)
        except LockedError:
            self._fs.unlink(_path(self._log_dir, self._number))
            raise
        for number in others:
            self._fs.unlink(_path(self._log_dir, number))
        self.require()

    def require(self) -> None:
        """:raises StorageError: another run owns the directory now"""
        # a run that takes over creates the next number before it removes this one; two stat calls are cheaper than listing
        # thousands of partitions
        if self._fs.stat(_path(self._log_dir, self._number + 1)) is None:
            status = self._fs.stat(_path(self._log_dir, self._number))
            file = None if status is None else (status.device, status.inode, status.mtime_ns, status.size)
            if file is not None and (file == self._file or self._is_own()):
                self._file = file
                return
        hint = "start one run at a time on a directory; the next one finishes what this run had begun"
        raise StorageError("another run has taken over this log directory", path=self._log_dir, hint=hint)

    def _is_own(self) -> bool:
        identity = _read(self._fs, self._log_dir, self._number)
        return identity is not None and identity.token == self.token

    def release(self) -> None:
        """Remove the claim if it still belongs to this run."""
        path = _path(self._log_dir, self._number)
        try:
            self.require()
            self._fs.unlink(path)
        except StorageError as error:
            # the run has ended, and its report must be written
            _LOG.warning("%s is left: %s", path, error)


def is_claim(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _path(log_dir: str, number: int) -> str:
    return join(log_dir, f".compaction-run.{number:08d}")


def _numbers(fs: FileSystem, log_dir: str) -> list[int]:
    matches = (_NAME.fullmatch(name) for name in fs.listdir(log_dir))
    return sorted(int(match[1]) for match in matches if match is not None)


def _require_over(fs: FileSystem, log_dir: str, numbers: Sequence[int]) -> None:
    """:raises LockedError: one of these claims belongs to a run that may be active, or is malformed"""
    for number in numbers:
        other = _read(fs, log_dir, number)
        if other is not None and not other.is_over(log_dir):
            hint = f"let it end; if it has ended, remove {_path(log_dir, number)} and run again"
            raise LockedError(f"log directory is claimed by another run ({other})", path=log_dir, hint=hint)


def _read(fs: FileSystem, log_dir: str, number: int) -> Identity | None:
    """The run of a claim; ``None`` if the claim was removed, or breaks off.

    :raises LockedError: the claim is malformed
    """
    path = _path(log_dir, number)
    status = fs.stat(path)
    if status is None:
        return None
    try:
        data = fs.read_bytes(path, 0, _MAX_BYTES) if status.is_file and status.size <= _MAX_BYTES else _MALFORMED
        return None if _breaks_off(data) else _identity_of(json.loads(data))
    except (RecursionError, TypeError, ValueError):
        hint = "make sure that no other run works here, remove it and run again"
        raise LockedError("the claim of another run is malformed", path=path, hint=hint) from None
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _breaks_off(data: bytes) -> bool:
    """Whether ``data`` is the beginning of a claim, or of its bytes and then zeros, as after a loss of power."""
    text = data.rstrip(b"\0")
    return not text.endswith(b"}") and (text.startswith(_BEGINNING) or _BEGINNING.startswith(text))


def _identity_of(value: dict[str, object]) -> Identity:
    """:raises TypeError: fields are missing or unknown
    :raises ValueError: a field has an invalid value
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
    """The start time of a process, in the kernel's ticks; empty if it is not running or unknown."""
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


class Purpose(enum.Enum):
    #: nothing is locked
    READ = "read"
    SHARE = "share"
    COPY = "copy"
    CHANGE = "change"


@dataclass(frozen=True)
class Access:
    """The claim on each directory that the run changes, and the directories locked by other processes."""

    owners: Mapping[str, Owner] = field(default_factory=dict)
    in_use: frozenset[str] = frozenset()

    def owner(self, log_dir: str) -> Owner:
        return self.owners.get(log_dir, NO_OWNER)


@contextmanager
def access(files: DiskFileSystem, log_dirs: Sequence[str], purpose: Purpose) -> Iterator[Access]:
    """Lock log directories for a run.

    :raises LockedError: a broker or another run holds one
    :raises UsageError: a lock or a claim cannot be taken
    """
    owners: dict[str, Owner] = {}
    with ExitStack() as stack:
        if purpose is Purpose.READ:
            yield Access(in_use=frozenset(_in_use(files, log_dirs)))
            return
        identity = Identity.of_this_process()
        for log_dir in log_dirs:
            try:
                if purpose is Purpose.COPY:
                    _make_lock_file(files, log_dir)
                stack.enter_context(files.lock(log_dir, shared=purpose is not Purpose.CHANGE))
                if purpose is Purpose.CHANGE and storage_of(log_dir).locks:
                    claim = Claim.take(files, log_dir, identity)
                    stack.callback(claim.release)
                    owners[log_dir] = claim
                    remove_temporary(files, log_dir)
            except StorageError as error:
                raise UsageError(error.message, path=error.path, hint=error.hint) from error
        yield Access(owners)


def _make_lock_file(files: DiskFileSystem, log_dir: str) -> None:
    """Without one, nobody would see the lock of a run that copies the directory."""
    path = join(log_dir, LOCK)
    # where the run may not write, others that change the directory are found out when the copy is complete
    with suppress(StorageError):
        if storage_of(log_dir).locks and files.stat(path) is None:
            files.link_new(path, b"", like=log_dir)


def require_still_unlocked(files: DiskFileSystem, log_dirs: Sequence[str]) -> None:
    """Check directories that were copied, possibly without a lock file.

    :raises LockedError: a broker or another run has locked one since
    """
    for log_dir in log_dirs:
        holder = files.lock_holder(log_dir)
        if holder is not None:
            hint = "stop it and run again; no output was published"
            raise LockedError(f"{holder} locked this directory while the logs were copied", path=log_dir, hint=hint)


def _in_use(files: DiskFileSystem, log_dirs: Sequence[str]) -> Iterator[str]:
    for log_dir in log_dirs:
        holder = files.lock_holder(log_dir)
        if holder is not None:
            _LOG.warning("%s: %s is at work here: figures are a snapshot", log_dir, holder)
            yield log_dir


#: file systems that two kernels cannot have mounted for writing at the same time
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "reiserfs", "tmpfs", "vfat", "xfs", "zfs"}
)
#: local file systems that keep no snapshots by themselves
_WITHOUT_SNAPSHOTS = frozenset({"exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "reiserfs", "tmpfs", "vfat"})


def is_local(path: str) -> bool:
    """Whether ``path`` is on a disk that no other machine can have mounted; ``False`` if unknown."""
    return _kinds(path) <= _LOCAL


def keeps_snapshots(path: str) -> bool:
    """Whether ``path`` is on a file system that may keep snapshots; ``True`` if unknown."""
    return not _kinds(path) <= _WITHOUT_SNAPSHOTS


def _kinds(path: str) -> set[str]:
    """The kinds of file systems on the device of ``path``; ``unknown`` if it is not listed, as those of btrfs."""
    try:
        device = os.stat(path).st_dev  # noqa: PTH116
    except OSError:
        return {"unknown"}
    device_id = f"{os.major(device)}:{os.minor(device)}"
    return {line.partition(" - ")[2].split(" ")[0] for line in _mounts() if line.split(" ")[2] == device_id} or {"unknown"}


def is_mount_point(path: str) -> bool:
    """Whether a file system, or a part of one (bind mount), is mounted at ``path``."""
    real = os.path.realpath(path)
    return os.path.ismount(real) or real in mount_points()


def mount_points() -> frozenset[str]:
    """All mount points; empty if the system does not list them."""
    return frozenset(_unescaped(line.split(" ")[4]) for line in _mounts())


def _mounts() -> list[str]:
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
