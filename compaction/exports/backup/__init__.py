"""The layout of kafka-backup: reader and writer of backup sets, whose records are record batches in temporary files."""

from __future__ import annotations

from compaction.exports.backup.reader import BackupReader
from compaction.storage.export_layout import ExportLayout, ExportTarget, TargetOptions

_SET_IS_WHOLE = "a backup set has a manifest of all its segments, and no backup or restore may meet a set that is half changed"


def _target(options: TargetOptions) -> ExportTarget:
    # only writing needs this module
    from compaction.exports.backup.writer import backup_target

    return backup_target(options)


LAYOUT = ExportLayout("backup set", BackupReader, _target, _SET_IS_WHOLE, spools=True)
