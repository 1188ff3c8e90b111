"""Direct I/O: a file holds the bytes written, whether or not the file system supports it."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files import local_output
from compaction.files.contents import READ_BYTES
from compaction.files.local_output import LocalOutput

MB = 1 << 20
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
    output.start_writeback()
    output.close(sync=True, mtime_ms=1_000)
    return b"".join(chunks)


@pytest.mark.parametrize(
    "sizes",
    [[], [0, 1], [READ_BYTES], [READ_BYTES - 1, 2], [9 * MB + 5, 0, 3], [1000] * 9000],
    ids=["nothing", "a byte", "one buffer", "across buffers", "more than two", "many small ones"],
)
def test_chunks_are_written_in_order(path: Path, sizes: list[int]) -> None:
    wanted = written(path, sizes)
    assert path.read_bytes() == wanted
    assert path.stat().st_mtime_ns == 1_000_000_000


def test_copies_and_writes_are_appended_in_order(path: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(7 * MB + 11))
    output = LocalOutput(str(path), None, write_behind=True)
    output.write([b"before"])
    output.copy_from(str(source))
    output.copy_from(str(source), 5, 3 * MB)
    output.write([b"after"])
    output.close(sync=True)
    data = source.read_bytes()
    assert path.read_bytes() == b"before" + data + data[5 : 5 + 3 * MB] + b"after"


def test_a_device_that_refuses_direct_io_is_written_through_the_page_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    write = os.write

    def refusing(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            raise OSError(errno.EINVAL, "blocks of another size")
        return write(descriptor, data)

    monkeypatch.setattr(local_output, "set_direct", lambda _, *, direct: direct)
    monkeypatch.setattr("compaction.files.local_output.os.write", refusing)
    wanted = written(path, [9 * MB])
    assert path.read_bytes() == wanted
    assert calls[:2] == [READ_BYTES, READ_BYTES]


def limited(size: int) -> Callable[[], None]:
    """Limits the size of files; the returned function removes the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [READ_BYTES - 1, 3 * READ_BYTES], ids=["in the last bytes", "in a whole buffer"])
def test_a_write_that_fails_in_the_background_raises_and_leaves_no_descriptor(path: Path, size: int) -> None:
    output = LocalOutput(str(path), None, write_behind=True)
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    end = limited(MB)
    try:
        with pytest.raises(StorageError, match="cannot write"):
            output.write([bytes(size)])
            output.close(sync=True)
        output.remove()
    finally:
        end()
    assert not path.exists()
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0  # noqa: PTH208


def test_no_write_is_under_way_after_an_output_was_removed(path: Path) -> None:
    output = LocalOutput(str(path), None, write_behind=True)
    output.write([bytes(8 * MB)])
    output.remove()
    assert not path.exists()
