"""The checkpoint files of a log directory: read once a run, changed one entry at a time.

Mirrors ``OffsetCheckpointFile`` and ``CheckpointFile`` (Kafka 4.3.0). Where Kafka takes a garbled
``log-start-offset-checkpoint`` for an empty one, this package fails the logs of that directory: to forget a log start is to
bring deleted records back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compaction.errors import CorruptLogError
from compaction.formats.checkpoints import format_offset_checkpoint, parse_offset_checkpoint
from compaction.names import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, TopicPartition
from compaction.storage.durable import replace_file
from compaction.storage.filesystem import FileSystem, join

Offsets = Mapping[TopicPartition, int]

_HINT = "remove or repair it; a broker writes it anew"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one log directory that planning reads; a missing or empty file holds nothing.

    ``damage`` names the garbled files; they concern every log of the directory.
    """

    log_dir: str
    log_starts: Offsets = field(default_factory=dict)
    high_watermarks: Offsets = field(default_factory=dict)
    cleaner_offsets: Offsets = field(default_factory=dict)
    damage: tuple[CorruptLogError, ...] = ()

    def require_sound(self) -> None:
        """:raises CorruptLogError: one of the files is garbled"""
        for error in self.damage:
            raise error


def read_checkpoints(fs: FileSystem, log_dir: str) -> Checkpoints:
    """All checkpoints of ``log_dir``; garbled files are held in ``damage``."""
    damage: list[CorruptLogError] = []
    found = []
    for name in (LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS):
        try:
            found.append(read_offsets(fs, log_dir, name))
        except CorruptLogError as error:
            damage.append(error)
            found.append({})
    return Checkpoints(log_dir, found[0], found[1], found[2], tuple(damage))


def read_offsets(fs: FileSystem, log_dir: str, file_name: str) -> dict[TopicPartition, int]:
    """One checkpoint file's entries, none where it is missing.

    :raises CorruptLogError: the file is not what the format says
    """
    path = join(log_dir, file_name)
    if fs.stat(path) is None:
        return {}
    try:
        return parse_offset_checkpoint(fs.read_bytes(path).decode("utf-8"), path)
    except UnicodeDecodeError as error:
        raise CorruptLogError("checkpoint is no text", path=path, position=error.start, hint=_HINT) from None
    except CorruptLogError as error:
        raise CorruptLogError(error.what, path=path, hint=_HINT) from None


def update_checkpoint(
    fs: FileSystem, log_dir: str, file_name: str, changes: Mapping[TopicPartition, int | None], *, like: str | None = None
) -> None:
    """Set (or with ``None`` remove) entries of a checkpoint file, safe on return; the others, mode and owner stay.

    Nothing is written when nothing changes.

    :param like: a file whose mode and owner a new checkpoint file takes
    :raises CorruptLogError: the file is garbled; it is left as it is
    """
    before = read_offsets(fs, log_dir, file_name)
    after = {tp: offset for tp, offset in before.items() if changes.get(tp, offset) is not None}
    after.update({tp: offset for tp, offset in changes.items() if offset is not None})
    if after == before:
        return
    owner = None if like is None else fs.stat(like)
    replace_file(fs, join(log_dir, file_name), format_offset_checkpoint(after).encode(), like=owner)
