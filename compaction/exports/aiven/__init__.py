"""The layout of Aiven's tiered storage plugin: reader and writer of its manifests, chunks and sections."""

from __future__ import annotations

from functools import partial

from compaction.exports.aiven.reader import AivenReader
from compaction.storage.export_layout import METADATA_ELSEWHERE, ExportLayout, ExportTarget, TargetOptions


def _target(options: TargetOptions) -> ExportTarget:
    # only writing needs these modules
    from compaction.exports.aiven.writer import AivenForm
    from compaction.exports.tiered_writer import tiered_source, tiered_target

    return tiered_target("aiven", options, partial(AivenForm, like_source=tiered_source(options) is LAYOUT))


LAYOUT = ExportLayout("tiered storage", AivenReader, _target, METADATA_ELSEWHERE, is_tiered=True, encrypts=True)
