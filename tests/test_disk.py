"""The file system of the crash tests: after a power loss only durable bytes and names are certain."""

from __future__ import annotations

from tests.disk import FaultyFileSystem


def test_a_power_loss_loses_what_was_not_synced() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/d")
    fs.write_file("/d/a", b"old")
    fs.fsync("/d/a")
    fs.fsync_dir("/d")
    fs.put("/d/a", b"new one")
    fs.write_file("/d/b", b"b")
    fs.rename("/d/b", "/d/c")
    killed, lost = fs.after_kill(), fs.after_power_loss(None)
    assert (killed.listdir("/d"), killed.read_bytes("/d/a")) == (["a", "c"], b"new one")
    assert (lost.listdir("/d"), lost.read_bytes("/d/a")) == (["a"], b"old")
    outcomes = {tuple(fs.after_power_loss(seed).listdir("/d")) for seed in range(30)}
    assert outcomes >= {("a",), ("a", "b"), ("a", "c")}


def made() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/d")
    fs.write_file("/d/a", b"safe")
    return fs.settle()


def test_after_a_failed_flush_bytes_are_never_durable() -> None:
    fs = made()
    fs.append("/d/a", b" and more")
    fs.inode("/d/a").poisoned = True
    fs.fsync("/d/a")
    assert fs.after_power_loss(None).read_bytes("/d/a") == b"safe"
    assert fs.after_kill().read_bytes("/d/a") == b"safe and more"


def test_a_file_being_written_is_found_in_part() -> None:
    fs = made()
    output = fs.create("/d/b", None)
    output.write([b"some"])
    assert fs.after_kill().read_bytes("/d/b") == b"some"
    output.write([b" more"])
    output.close(sync=True, mtime_ns=5_000_000)
    stat = fs.stat("/d/b")
    assert stat is not None
    assert (fs.read_bytes("/d/b"), stat.mtime_ns) == (b"some more", 5_000_000)


def test_an_open_file_is_read_as_it_is_now() -> None:
    fs = made()
    source, view = fs.open("/d/a", 0, 4), memoryview(bytearray(9))
    fs.put("/d/a", b"other")
    fs.unlink("/d/a")
    assert source.pread(view, 0) == 5
    assert bytes(view[:5]) == b"other"


def test_two_names_of_a_file_are_of_one_file_after_a_crash() -> None:
    fs = made()
    fs.link("/d/a", "/d/b")
    fs.put("/d/b", b"changed")
    for seed in range(9):
        lost = fs.after_power_loss(seed)
        if "b" in lost.listdir("/d"):
            assert lost.inode("/d/a") is lost.inode("/d/b")
    # such a rename has no effect
    killed = fs.after_kill()
    killed.rename("/d/a", "/d/b")
    assert killed.listdir("/d") == ["a", "b"]


def test_a_rename_changes_the_ctime_only() -> None:
    fs = made()
    before = fs.stat("/d/a")
    fs.rename("/d/a", "/d/b")
    after = fs.stat("/d/b")
    assert before is not None
    assert after is not None
    assert (after.inode, after.mtime_ns) == (before.inode, before.mtime_ns)
    assert after.ctime_ns > before.ctime_ns
