"""Uploads of several leaders in each layout of tiered storage, some of whose objects were exchanged or cut.

What is read must be the log of the last leader, or an error that names an upload.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from compaction.errors import CorruptLogError
from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from tests.exports.aiven_objects import AivenWriter, new_key
from tests.exports.exports import Epochs, aiven, local_tiered, require_cryptography, write_local_tiered, write_log

AIVEN = ("aiven", "aiven zstd", "aiven encrypted")
LAYOUTS = ("local-tiered", *AIVEN)
EPOCHS = ".leader_epoch_checkpoint"


class Export:
    """An export of ``orders-0`` in a layout; ``add`` returns the log object of a new upload."""

    def __init__(self, directory: Path, layout: str, chunk_bytes: int | None = None) -> None:
        self._directory, self.layout = directory, layout
        self._number = 0
        key = None
        if layout == "aiven encrypted":
            require_cryptography()
            key = new_key(directory / "key.pem")
        # compressed objects that are exchanged have one chunk each
        size = chunk_bytes or (1 << 20 if "zstd" in layout else 512)
        self._writer = AivenWriter(compressed="zstd" in layout, key=key, chunk_bytes=size)

    @property
    def address(self) -> str:
        return local_tiered(self._directory / "out") if self.layout == "local-tiered" else aiven(self._directory / "out")

    def add(self, offsets: range, epochs: Epochs, written: Epochs = ()) -> Path:
        """:param written: the leader epochs of the batches, if they are others"""
        self._number += 1
        log = write_log(self._directory / str(self._number) / "orders-0", offsets, epochs=epochs, written=written)
        if self.layout == "local-tiered":
            return write_local_tiered(log, self._directory / "out")[0]
        self._writer.write(log, out := self._directory / f"{self._number}-objects")
        shutil.copytree(out, self._directory / "out", dirs_exist_ok=True)
        (stored,) = out.rglob("*.log")
        return self._directory / "out" / stored.relative_to(out)

    def error(self) -> str:
        with pytest.raises(CorruptLogError) as found:
            self.records()
        return str(found.value)

    def records(self) -> list[tuple[int, int]]:
        """The offset and leader epoch of each batch."""
        files, log = MixedFileSystem(), join(self.address, "orders-0")
        data = b"".join(files.read_bytes(join(log, name)) for name in files.listdir(log) if name.endswith(".log"))
        found = []
        while data:
            found.append((int.from_bytes(data[:8], "big"), int.from_bytes(data[12:16], "big")))
            data = data[12 + int.from_bytes(data[8:12], "big") :]
        return found


def edit(log: Path, section: str = "remoteLogSegmentMetadata", **fields: object) -> None:
    """Changes fields of a section of an upload's manifest."""
    path = log.with_suffix(".rsm-manifest")
    manifest = json.loads(path.read_text())
    manifest[section].update(fields)
    path.write_text(json.dumps(manifest))


def exchange(one: Path, other: Path, suffix: str) -> None:
    first, second = one.with_suffix(suffix), other.with_suffix(suffix)
    assert first.stat().st_size == second.stat().st_size
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def problems(seed: int) -> list[str]:
    """What is wrong with an export that a seed draws."""
    chance = random.Random(seed)
    with TemporaryDirectory(prefix="uploads-") as scratch:
        export = Export(Path(scratch), chance.choice(LAYOUTS[:3]))
        log, uploads = _uploaded(chance, export)
        done = [_disturb(chance, uploads) for _ in range(chance.randint(0, 2))]
        try:
            found = export.records()
        except CorruptLogError as error:
            if done and f"{scratch}/out/" in str(error):
                return []
            return [f"{export.layout}: {error} after {done}"]
    return [] if found == list(enumerate(log)) else [f"{export.layout}: {found} instead of {log} after {done}"]


def _uploaded(chance: random.Random, export: Export) -> tuple[list[int], list[Path]]:
    """The leader epoch of each offset of the last leader's log, and the uploads of all leaders."""
    log: list[int] = []
    uploads: list[Path] = []
    for epoch in range(chance.randint(1, 4)):
        del log[len(log) - chance.randint(0, min(30, len(log))) :]
        log += [epoch] * chance.choice([1, 10, 30, 100])
        epochs = [(each, at) for at, each in enumerate(log) if at == 0 or log[at - 1] != each]
        size = chance.choice([10, 30, 100])
        for at in range(0, len(log), size):
            end = min(len(log), at + size)
            uploads.append(export.add(range(at, end), [entry for entry in epochs if entry[1] < end]))
    return log, uploads


def _disturb(chance: random.Random, uploads: Sequence[Path]) -> str:
    """Exchanges, copies or cuts objects; returns what it did."""
    one = chance.choice(uploads)
    suffix = chance.choice(sorted({path.suffix for path in one.parent.glob(f"{one.stem}.*")}))
    first = one.with_suffix(suffix)
    objects = [upload.with_suffix(suffix) for upload in uploads]
    # of the same first offset and size, if there is one, so that nothing else reveals it
    alike = [path for path in objects if path.name[:21] == first.name[:21] and path.stat().st_size == first.stat().st_size]
    second = chance.choice([path for path in alike if path != first] or objects)
    kind = chance.choice(["exchange", "copy", "cut"])
    data = first.read_bytes()
    if kind == "cut":
        first.write_bytes(data[: chance.randrange(len(data) + 1)])
    else:
        first.write_bytes(second.read_bytes())
    if kind == "exchange":
        second.write_bytes(data)
    return f"{kind} {first.name} {second.name}"
