"""The file system of the crash tests: after a power loss only durable bytes and names are certain."""

from __future__ import annotations

from tests.fs.faults import FaultyFileSystem


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
