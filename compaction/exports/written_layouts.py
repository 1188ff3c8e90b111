"""The layouts that are written, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from compaction.exports.backup_writer import backup_target
from compaction.exports.export_target import ExportTarget, TargetOptions
from compaction.exports.tiered_writer import tiered_target
from compaction.storage.uri import AIVEN, BACKUP, LOCAL_TIERED

#: by the names of ``storage.uri.LAYOUTS``
WRITTEN: Mapping[str, Callable[[TargetOptions], ExportTarget]] = MappingProxyType(
    {AIVEN: partial(tiered_target, AIVEN), BACKUP: backup_target, LOCAL_TIERED: partial(tiered_target, LOCAL_TIERED)}
)
