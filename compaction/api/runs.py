"""What ``compact``, ``expire`` and ``erase`` have in common: runs that have nothing to do, or were done before.

Tested by ``tests/commands/test_compact.py`` and ``tests/output/test_finished.py``.
"""

from __future__ import annotations

import uuid

from compaction.config.request import CompactionRequest
from compaction.fs.uri import any_remote, is_remote
from compaction.run_report import RunReport
from compaction.stores.mixed import file_system


def report_without_logs(request: CompactionRequest) -> RunReport | None:
    """The report of a run in place over no logs, which needs no more than that; ``None`` for any other run, and where no log
    can be changed in place."""
    if request.logs or request.output_dir is not None or any_remote(request.log_dirs):
        return None
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, logs=())


def done_before(request: CompactionRequest) -> RunReport | None:
    """The report of a run whose output directory already has the result of the same request, complete and unchanged.

    :raises CompactionError: it has something else
    """
    from compaction.output import finished, object_publish

    if request.output_dir is None:
        return None
    if is_remote(request.output_dir):
        object_publish.complete_replacement(file_system(request.log_dirs), request.output_dir)
    if not finished.is_done(request):
        return None
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, (), done_before=request.output_dir)
