"""A bit flipped when the second pass reads: the record never gets a new checksum that hides the damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compaction.files.filesystem import File
from compaction.files.local import LocalFileSystem
from tests.crash.surroundings import run
from tests.damage.valid_logs import valid_log, write_log
from tests.disk import WatchedFileSystem

KINDS = ("none", "zstd", "v0-none", "v1-none", "v1-gzip", "mixed", "transactions")


class TurnedReads(WatchedFileSystem):
    """Once ``armed``, one bit of a file is flipped in each sequential read."""

    def __init__(self, name: str, position: int, bit: int) -> None:
        super().__init__(LocalFileSystem())
        self.name, self.position, self.bit = name, position, bit
        self.armed = False

    def arm(self) -> None:
        self.armed = True

    def pread(self, path: str, source: File, view: memoryview, position: int) -> int:
        n = super().pread(path, source, view, position)
        at = self.position - position
        if self.armed and Path(path).name == self.name and 0 <= at < n:
            view[at] ^= 1 << self.bit
        return n


def outputs(log: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.iterdir() if not path.name.endswith(".deleted")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_flipped_between_the_passes_gets_no_new_checksum(tmp_path: Path, kind: str) -> None:
    valid = valid_log(kind)
    write_log(tmp_path / "undisturbed" / "subject-0", valid.files)
    assert run(tmp_path / "undisturbed").code == 0
    expected = outputs(tmp_path / "undisturbed" / "subject-0")
    chance, failed, name = random.Random(kind), 0, valid.log(1)
    for number in range(16):
        position = chance.randrange(len(valid.files[name]))
        files = TurnedReads(name, position, chance.randrange(8))
        place = tmp_path / str(number)
        write_log(place / "subject-0", valid.files)
        ended = run(place, files=files, events={"before_rewrite": files.arm})
        if ended.code:
            failed += 1
            assert "error: subject-0: " in ended.err
            assert outputs(place / "subject-0") == valid.files
        else:
            # only a batch that is dropped completely need not be read
            assert outputs(place / "subject-0") == expected, position
    assert failed
