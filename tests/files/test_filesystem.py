"""One contract for the local file system, the overlay of a dry run and the disk in memory; then what is an overlay's own, and a
log whose first segments are files of another directory.

Files of this machine: new names only, no links followed, and what belongs to a file survives its replacement. An output holds
the bytes written, with direct I/O or without, with the calls of Linux or of other systems.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files import local, system_calls
from compaction.files.contents import READ_BYTES, view
from compaction.files.durable import remove_temporary, replace_file
from compaction.files.filesystem import FileRange, FileSystem, ReadableFileSystem, real_file, storage_errors
from compaction.files.local import LocalFileSystem, LocalOutput
from compaction.files.overlay import NamesSynced, OverlayFileSystem, Removed, Splice, SplicedFileSystem, Written
from tests.disk import FaultyFileSystem

MTIME_NS = 1_234_567_890


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A directory with one file of ten bytes."""
    (tmp_path / "old").write_bytes(b"0123456789")
    (tmp_path / "old").chmod(0o640)
    os.utime(tmp_path / "old", ns=(MTIME_NS, MTIME_NS))
    return str(tmp_path)


def in_memory(directory: str) -> FaultyFileSystem:
    made = FaultyFileSystem()
    made.mkdir(directory)
    made.write_file(f"{directory}/old", b"0123456789", mtime_ns=MTIME_NS)
    made.inode(f"{directory}/old").mode = 0o640
    return made.settle()


@pytest.fixture(params=["disk", "overlay", "memory"])
def fs(request: pytest.FixtureRequest, directory: str) -> FileSystem:
    if request.param == "memory":
        return in_memory(directory)
    return LocalFileSystem() if request.param == "disk" else OverlayFileSystem(LocalFileSystem())


def copied(fs: FileSystem, directory: str) -> None:
    """Of the whole file, of a part, and of a part of that."""
    fs.copy(f"{directory}/old", f"{directory}/whole")
    fs.copy(f"{directory}/old", f"{directory}/part", 3, 4)
    fs.copy(f"{directory}/part", f"{directory}/inner", 1, 2)


def renamed(fs: FileSystem, directory: str) -> None:
    fs.write_file(f"{directory}/new", b"abc")
    fs.rename(f"{directory}/new", f"{directory}/old")


def removed(fs: FileSystem, directory: str) -> None:
    for _ in range(2):
        fs.unlink(f"{directory}/old")
    assert fs.stat(f"{directory}/old") is None
    with pytest.raises(StorageError):
        fs.read_bytes(f"{directory}/old")


def made_and_removed(fs: FileSystem, directory: str) -> None:
    fs.mkdir(f"{directory}/sub")
    found = fs.stat(f"{directory}/sub")
    assert found is not None and found.is_dir
    fs.remove_tree(f"{directory}/sub")
    assert fs.stat(f"{directory}/sub") is None


OLD = {"old": b"0123456789"}
#: a change, and the files after it
CHANGES: dict[str, tuple[Callable[[FileSystem, str], object], dict[str, bytes]]] = {
    "a new file": (lambda fs, directory: fs.write_file(f"{directory}/new", b"abc"), {"new": b"abc", **OLD}),
    "an empty file": (lambda fs, directory: fs.write_file(f"{directory}/empty", b""), {"empty": b"", **OLD}),
    "a replaced file": (lambda fs, directory: replace_file(fs, f"{directory}/old", b"abc"), {"old": b"abc"}),
    "copies": (copied, {"inner": b"45", "part": b"3456", "whole": b"0123456789", **OLD}),
    "a new name": (renamed, {"old": b"abc"}),
    "a removed file": (removed, {}),
    "a directory": (made_and_removed, OLD),
}


@pytest.mark.parametrize(("change", "files"), CHANGES.values(), ids=CHANGES)
def test_after_a_change_every_file_system_has_the_same_files(
    fs: FileSystem, directory: str, change: Callable[[FileSystem, str], object], files: dict[str, bytes]
) -> None:
    change(fs, directory)
    fs.fsync_dir(directory)
    assert fs.listdir(directory) == sorted(files)
    for name, data in files.items():
        path = f"{directory}/{name}"
        fs.fsync(path)
        fetched = view(fs, path).fetch()
        assert fetched.tobytes() == data
        fetched[:] = 0
        found, buffer = fs.stat(path), bytearray(20)
        assert found is not None and found.size == len(data)
        assert (fs.read_bytes(path), fs.read_bytes(path, 2, 99), fs.read_bytes(path, 1, 1)) == (data, data[2:], data[1:2])
        with closing(fs.open(path, 0, len(data), uncached=True)) as file:
            assert (file.size(), file.pread(memoryview(buffer), len(data))) == (len(data), 0)
            assert file.pread(memoryview(buffer), 1) == len(data[1:])
        assert bytes(buffer).rstrip(b"\0") == data[1:]


def test_a_copy_keeps_mode_and_time_and_a_new_file_takes_those_it_is_given(fs: FileSystem, directory: str) -> None:
    fs.copy(f"{directory}/old", f"{directory}/copy")
    fs.write_file(f"{directory}/new", b"abc", like=f"{directory}/old", mtime_ns=5_000_000_000)
    for name, attributes in (("old", (10, 0o640, MTIME_NS)), ("copy", (10, 0o640, MTIME_NS)), ("new", (3, 0o640, 5 * 10**9))):
        found = fs.stat(f"{directory}/{name}")
        assert found is not None and (found.size, found.mode, found.mtime_ns) == attributes


HINTS = [
    (errno.ENOSPC, "No space left on device; free some space"),
    (errno.EACCES, "Permission denied; run as the user that owns"),
    (errno.EROFS, "Read-only file system; mount it for writing, or use --output-dir"),
    (errno.ENOENT, "No such file or directory; it vanished"),
    (errno.ENAMETOOLONG, "solve this and run again"),
]


@pytest.mark.parametrize(("number", "message"), HINTS)
def test_errors_name_action_path_and_remedy(number: int, message: str) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("/logs/orders-0/x.log", "write"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith("/logs/orders-0/x.log: cannot write: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("operation", ["read_bytes", "fsync", "listdir", "fsync_dir"])
def test_a_missing_path_is_a_storage_error(tmp_path: Path, operation: str) -> None:
    with pytest.raises(StorageError, match="No such file"):
        getattr(LocalFileSystem(), operation)(str(tmp_path / "nowhere"))


def test_real_files_are_not_changed(directory: str) -> None:
    fs = OverlayFileSystem(LocalFileSystem())
    fs.write_file(f"{directory}/new", b"abc")
    fs.rename(f"{directory}/old", f"{directory}/older")
    fs.unlink(f"{directory}/older")
    assert [path.name for path in Path(directory).iterdir()] == ["old"]
    assert (Path(directory) / "old").read_bytes() == b"0123456789"


def test_a_renamed_byte_range_leads_to_the_real_file(directory: str) -> None:
    fs = OverlayFileSystem(LocalFileSystem())
    fs.copy(f"{directory}/old", f"{directory}/part", 3, 4)
    fs.rename(f"{directory}/part", f"{directory}/moved")
    assert fs.real_path(f"{directory}/moved") == (f"{directory}/old", 3, 4)
    assert fs.real_path(f"{directory}/old") == (f"{directory}/old", 0, 10)
    fs.write_file(f"{directory}/new", b"abc")
    assert fs.real_path(f"{directory}/new") is None
    with pytest.raises(StorageError, match="in memory only"):
        real_file(fs, f"{directory}/new")


def test_changes_are_known_by_directory(directory: str) -> None:
    fs, unchanged = OverlayFileSystem(LocalFileSystem()), OverlayFileSystem(LocalFileSystem())
    fs.write_file(f"{directory}/sub/new", b"abc")
    assert (fs.changed, unchanged.changed) == (True, False)
    assert [type(each) for each in fs.operations(f"{directory}/sub")] == [Written]
    assert fs.operations(directory) == ()
    fs.fsync_dir(directory)
    fs.unlink(f"{directory}/none")
    assert fs.operations(directory) == ()
    fs.unlink(f"{directory}/old")
    fs.fsync_dir(directory)
    fs.fsync_dir(directory)
    assert fs.operations(directory) == (Removed(f"{directory}/old"), NamesSynced(directory))


def put(directory: Path, *names: str) -> None:
    directory.mkdir()
    for name in names:
        base, _, rest = name.partition(".")
        (directory / (f"{int(base):020d}.{rest}" if base.isdigit() else name)).write_text(f"{directory.name} {name}")


def content(fs: ReadableFileSystem, log: str) -> dict[str, str]:
    return {name.lstrip("0"): fs.read_bytes(f"{log}/{name}").decode() for name in fs.listdir(log)}


def test_files_below_the_end_are_those_of_the_other_directory(tmp_path: Path) -> None:
    names = "5.log", "10.log", "10.log.deleted", "10.snapshot", "20.log", "20.index", "30.log", "partition.metadata"
    put(tmp_path / "own", *names)
    put(tmp_path / "other", "5.log", "10.log", "10.snapshot", "15.snapshot", "20.log", "20.index", "40.log", "extra")
    own, other = str(tmp_path / "own"), str(tmp_path / "other")
    fs = SplicedFileSystem(LocalFileSystem(), {own: Splice(other, 6, 20)})
    assert content(fs, own) == {
        "10.log": "other 10.log", "10.log.deleted": "own 10.log.deleted", "10.snapshot": "other 10.snapshot",
        "20.log": "own 20.log", "20.index": "own 20.index", "30.log": "own 30.log",
        "partition.metadata": "own partition.metadata",
    }  # fmt: skip
    assert content(OverlayFileSystem(fs), own) == content(fs, own)
    assert content(fs, other) == content(LocalFileSystem(), other)
    assert fs.stat(f"{own}/{5:020d}.log") is None and fs.real_path(f"{own}/{5:020d}.log") is None
    size = len("other 10.log")
    assert fs.real_path(f"{own}/{10:020d}.log") == FileRange(f"{other}/{10:020d}.log", 0, size)
    assert OverlayFileSystem(fs).real_path(f"{own}/{10:020d}.log") == fs.real_path(f"{own}/{10:020d}.log")
    buffer = bytearray(size)
    source = fs.open(f"{own}/{10:020d}.log", 0, size)
    assert source.pread(memoryview(buffer), 0) == size and bytes(buffer) == b"other 10.log"
    source.close()


def test_only_the_log_of_the_last_segment_is_taken_with_it(tmp_path: Path) -> None:
    put(tmp_path / "own", "10.log", "20.log", "20.index", "25.snapshot")
    put(tmp_path / "other", "10.log", "20.log", "20.index")
    own = str(tmp_path / "own")
    fs = SplicedFileSystem(LocalFileSystem(), {own: Splice(str(tmp_path / "other"), 0, 20, log_at_end=True)})
    assert content(fs, own) == {
        "10.log": "other 10.log", "20.log": "other 20.log", "20.index": "own 20.index", "25.snapshot": "own 25.snapshot",
    }  # fmt: skip


def test_changes_in_a_directory_can_be_reverted(tmp_path: Path) -> None:
    put(tmp_path / "own", "10.log")
    fs, path = OverlayFileSystem(LocalFileSystem()), f"{tmp_path}/own/{10:020d}.log"
    fs.rename(path, f"{path}.deleted")
    fs.write_file(f"{tmp_path}/own/new", b"")
    fs.write_file(f"{tmp_path}/kept", b"")
    fs.revert(f"{tmp_path}/own")
    assert fs.listdir(f"{tmp_path}/own") == [f"{10:020d}.log"] and fs.operations(f"{tmp_path}/own") == ()
    assert fs.read_bytes(path) == b"own 10.log" and fs.stat(f"{tmp_path}/kept") is not None


FS = LocalFileSystem()
MIB = 1 << 20
MAKERS: dict[str, Callable[[str, str], object]] = {
    "write_file": lambda path, like: FS.write_file(path, b"new", like=like),
    "create": lambda path, like: FS.create(path, like),
    "copy": lambda path, like: FS.copy(like, path),
}


@pytest.fixture
def like(tmp_path: Path) -> str:
    path = tmp_path / "like"
    path.write_bytes(b"0123456789")
    path.chmod(0o640)
    os.setxattr(path, "user.label", b"kept")
    return str(path)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("there", ["a file", "a link to a file", "a link to nothing"])
def test_a_new_file_never_replaces_an_existing_name(
    tmp_path: Path, like: str, there: str, make: Callable[[str, str], object]
) -> None:
    victim, name = tmp_path / "victim", tmp_path / "name"
    if there != "a link to nothing":
        victim.write_bytes(b"old")
    if there == "a file":
        victim.rename(name)
    else:
        name.symlink_to(victim)
    with pytest.raises(StorageError, match="File exists"):
        make(str(name), like)
    assert victim.exists() == (there == "a link to a file")
    assert there == "a link to nothing" or name.read_bytes() == b"old"


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_new_file_takes_mode_and_attributes_regardless_of_the_umask(
    tmp_path: Path, like: str, make: Callable[[str, str], object]
) -> None:
    old = os.umask(0o077)
    try:
        made = make(str(tmp_path / "new"), like)
    finally:
        os.umask(old)
    if made is not None:
        made.close(sync=False)  # type: ignore[attr-defined]
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640
    assert os.getxattr(tmp_path / "new", "user.label") == b"kept"


def test_a_replaced_file_keeps_its_mode_and_attributes(tmp_path: Path, like: str) -> None:
    replace_file(FS, like, b"new")
    assert Path(like).read_bytes() == b"new"
    assert Path(like).stat().st_mode & 0o7777 == 0o640
    assert os.getxattr(like, "user.label") == b"kept"
    assert FS.listdir(str(tmp_path)) == ["like"]


def test_the_set_user_id_bit_is_not_copied(tmp_path: Path, like: str) -> None:
    Path(like).chmod(0o4755)
    FS.write_file(str(tmp_path / "new"), b"", like=like)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o755


def test_a_tree_is_removed_but_never_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/link").symlink_to(tmp_path / "precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    FS.remove_tree(str(tmp_path / "tree"))
    FS.remove_tree(str(tmp_path / "link"))
    FS.remove_tree(str(tmp_path / "nothing"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]
    assert (tmp_path / "precious/file").exists()


def test_a_private_directory_must_be_new(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        FS.mkdir(str(tmp_path / "mine"), private=True)
    finally:
        os.umask(old)
    assert (tmp_path / "mine").stat().st_mode & 0o7777 == 0o700
    (tmp_path / "planted").symlink_to(tmp_path)
    for name in ("mine", "planted"):
        with pytest.raises(StorageError, match="File exists"):
            FS.mkdir(str(tmp_path / name), private=True)


def test_only_temporary_files_of_the_job_are_removed(tmp_path: Path) -> None:
    ours = f"recovery-point-offset-checkpoint.{'0f' * 16}.tmp"
    others = ["recovery-point-offset-checkpoint.tmp", f"{'0f' * 16}.tmp", "notes.tmp", f"x.{'0F' * 16}.tmp"]
    for name in (ours, *others):
        (tmp_path / name).touch()
    assert remove_temporary(FS, str(tmp_path)) == 1
    assert FS.listdir(str(tmp_path)) == sorted(others)


@pytest.mark.parametrize("change", ["create", "rename", "unlink", "link_new", "write_file"])
def test_nothing_is_written_through_a_link_that_replaced_a_directory(tmp_path: Path, change: str) -> None:
    """Somebody else replaces a partition by a link to another directory while a run of root is at work."""
    tmp_path.chmod(0o777)
    victim, partition = tmp_path / "victim", tmp_path / "orders-0"
    victim.mkdir()
    (victim / "a").write_bytes(b"mine")
    partition.symlink_to(victim)
    files, path = LocalFileSystem(), str(partition / "a")
    changes: dict[str, Callable[[], object]] = {
        "create": lambda: files.create(f"{path}.new", None),
        "rename": lambda: files.rename(path, f"{path}.deleted"),
        "unlink": lambda: files.unlink(path),
        "link_new": lambda: files.link_new(f"{path}.claim", b"x", str(tmp_path)),
        "write_file": lambda: files.write_file(f"{path}.tmp", b"x"),
    }
    with pytest.raises(StorageError):
        changes[change]()
    assert [(each.name, each.read_bytes()) for each in victim.iterdir()] == [("a", b"mine")]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_cannot_exchange_names_says_so(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match="cannot exchange with"):
        LocalFileSystem().exchange(str(tmp_path), str(tmp_path / "missing"))
    monkeypatch.setattr("compaction.files.system_calls.ctypes.get_errno", lambda: number)
    assert not LocalFileSystem().exchange(str(tmp_path), str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("start", "length"), [(0, None), (0, 16 * MIB), (MIB + 1, 9 * MIB), (3 * MIB, MIB), (5 * MIB, 11 * MIB), (0, 4 * MIB + 7)]
)
def test_the_holes_of_a_file_are_holes_of_its_copy(tmp_path: Path, start: int, length: int | None) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    with source.open("wb") as file:
        for at in (2 * MIB, 4 * MIB + 5):
            file.seek(at)
            file.write(b"x" * 4096)
        file.truncate(16 * MIB)
    FS.copy(str(source), str(copy), start, length)
    end = None if length is None else start + length
    assert copy.read_bytes() == source.read_bytes()[start:end]
    assert copy.stat().st_blocks * 512 <= 5 * 4096


@pytest.mark.parametrize(("data", "start"), [(b"0123456789", MIB - 50), (b"0123456789", 4), (b"", 0)])
def test_a_copy_of_a_truncated_file_is_an_error_and_leaves_nothing(tmp_path: Path, data: bytes, start: int) -> None:
    """Also if it ends in a hole."""
    source = tmp_path / "source"
    source.write_bytes(data)
    os.truncate(source, MIB)
    with pytest.raises(StorageError, match="truncated while it was copied"):
        FS.copy(str(source), str(tmp_path / "copy"), start, MIB - start + 1)
    assert not (tmp_path / "copy").exists()


def test_a_file_system_that_reports_no_holes_is_copied_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EINVAL, "no such call")

    source = tmp_path / "source"
    source.write_bytes(b"\0" * 8192 + b"x")
    monkeypatch.setattr(os, "lseek", refuse)
    FS.copy(str(source), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


#: on a disk, and on tmpfs, which has no direct I/O
DIRECTORIES = [path for path in ("/var/tmp", "/dev/shm") if Path(path).is_dir()]  # noqa: S108


@pytest.fixture(params=DIRECTORIES)
def path(request: pytest.FixtureRequest) -> Iterator[Path]:
    made = Path(request.param) / f"direct-{os.getpid()}"
    yield made
    made.unlink(missing_ok=True)


def written(path: Path, sizes: list[int]) -> bytes:
    """Write chunks of these sizes; what the file should hold."""
    chance = random.Random(1)
    chunks = [chance.randbytes(size) for size in sizes]
    output = LocalOutput(str(path), None, write_behind=True)
    output.write(chunks)
    output.close(sync=True, mtime_ns=1_000_000_000)
    return b"".join(chunks)


@pytest.mark.parametrize(
    "sizes",
    [[], [0, 1], [READ_BYTES], [READ_BYTES - 1, 2], [9 * MIB + 5, 0, 3], [1000] * 9000],
    ids=["nothing", "a byte", "one buffer", "across buffers", "more than two", "many small ones"],
)
def test_chunks_are_written_in_order(path: Path, sizes: list[int]) -> None:
    wanted = written(path, sizes)
    assert path.read_bytes() == wanted
    assert path.stat().st_mtime_ns == 1_000_000_000


@pytest.fixture(params=["linux", "other systems"])
def calls_of_the_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or without those that read files on Linux only."""
    if request.param == "linux":
        return
    for name in ("preadv", "O_DIRECT", "posix_fadvise"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(system_calls, "_sync_file_range", None)


@pytest.mark.usefixtures("calls_of_the_system")
@pytest.mark.parametrize("write_behind", [False, True])
def test_copies_and_writes_are_appended_in_order(path: Path, tmp_path: Path, write_behind: bool) -> None:
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(7 * MIB + 11))
    output = LocalOutput(str(path), None, write_behind=write_behind)
    output.write([b"before"])
    output.copy_from(str(source))
    output.copy_from(str(source), 5, 3 * MIB)
    output.write([b"after"])
    output.close(sync=True)
    data = source.read_bytes()
    assert path.read_bytes() == b"before" + data + data[5 : 5 + 3 * MIB] + b"after"
    view = memoryview(bytearray(7))
    with closing(FS.open(str(path), 0, path.stat().st_size)) as reader:
        assert (reader.pread(view, 3), bytes(view)) == (7, b"ore" + data[:4])


def test_a_device_that_refuses_direct_io_is_written_through_the_page_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    write = os.write

    def refusing(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            raise OSError(errno.EINVAL, "blocks of another size")
        return write(descriptor, data)

    monkeypatch.setattr(local, "set_direct", lambda _, *, direct: direct)
    monkeypatch.setattr("compaction.files.local.os.write", refusing)
    wanted = written(path, [9 * MIB])
    assert path.read_bytes() == wanted
    assert calls[:2] == [READ_BYTES, READ_BYTES]


@pytest.mark.parametrize("size", [READ_BYTES - 1, 3 * READ_BYTES], ids=["in the last bytes", "in a whole buffer"])
def test_a_write_that_fails_in_the_background_raises_and_leaves_no_descriptor(path: Path, size: int) -> None:
    output = LocalOutput(str(path), None, write_behind=True)
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    _, most = limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, most))
    try:
        with pytest.raises(StorageError, match="cannot write"):
            output.write([bytes(size)])
            output.close(sync=True)
        output.remove()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not path.exists()
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0  # noqa: PTH208


@pytest.mark.parametrize(("supported", "expected"), [(True, ["full"]), (False, ["ordinary"])])
def test_a_full_flush_is_requested_when_the_system_and_the_file_system_have_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, supported: bool, expected: list[str]
) -> None:
    """As macOS has; it includes an ordinary one."""
    flushed: list[tuple[str, int]] = []

    def full(descriptor: int, command: int) -> None:
        assert command == 51
        if not supported:
            raise OSError(errno.ENOTSUP, "not supported")
        flushed.append(("full", descriptor))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(("ordinary", descriptor)))
    with (tmp_path / "file").open("wb") as file:
        system_calls.flush(file.fileno())
        assert flushed == [(each, file.fileno()) for each in expected]
