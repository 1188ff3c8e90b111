"""The tools of an adversary: victims outside the log directory, and the names that a run will create."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.crash.surroundings import run
from tests.damage.valid_logs import valid_log, write_log
from tests.disk import Operation

_CREATES = frozenset(("create", "write_file", "link", "copy", "rename", "second name", "mkdir"))
_TOKEN = re.compile(r"[0-9a-f]{32}")


class Seen(NamedTuple):
    """All properties that change with a file."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    inode: int
    content: bytes | tuple[str, ...]


def seen(path: Path) -> dict[str, Seen]:
    """The state of a file, or of a directory tree."""
    found = {}
    for each in [path, *sorted(path.rglob("*"))]:
        stat = each.lstat()
        content = tuple(sorted(os.listdir(each))) if each.is_dir() else each.read_bytes()  # noqa: PTH208
        found[str(each)] = Seen(stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns, stat.st_ino, content)
    return found


def make_victims(place: Path) -> Path:
    """Another user's directory: a secret, and files named like a log's."""
    place.mkdir(mode=0o750)
    (place / "secret").write_text("of somebody else")
    (place / "secret").chmod(0o600)
    for name, data in valid_log("none").files.items():
        (place / name).write_bytes(data)
    (place / "00000000000000000000.log.clean").write_text("looks like a leftover")
    return place


def make_logs(place: Path) -> Path:
    """A log directory of two logs."""
    for topic in ("aside", "subject"):
        write_log(place / f"{topic}-0", valid_log("none").files)
    return place


def predictable(operations: Sequence[Operation], below: Path) -> list[str]:
    """The predictable names that were created, relative to a directory."""
    names = {each.target or each.path for each in operations if each.name in _CREATES}
    return sorted({os.path.relpath(name, below) for name in names if not _TOKEN.search(name) and Path(name) != below})


def plant(place: Path, target: Path) -> None:
    """Replace a path by a link to ``target``."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        place.unlink()
    place.symlink_to(target)


def run_quietly(log_dir: Path, options: Sequence[object]) -> int:
    """Run the job; returns its exit code. A stack trace is a failure."""
    ended = run(log_dir, *options)
    assert "Traceback" not in ended.err + ended.out, ended.err
    assert "unforeseen" not in ended.err + ended.out, ended.err
    return ended.code
