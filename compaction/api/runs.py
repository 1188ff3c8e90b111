"""What ``compact``, ``expire`` and ``erase`` have in common: the frame of a run, and runs with nothing to do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from compaction.api.engine_choice import Engine, chosen
from compaction.api.inputs import Inputs
from compaction.api.output_layout import in_layout
from compaction.api.provenance import provenance
from compaction.config.request import CompactionRequest
from compaction.run_report import RunReport
from compaction.storage.mixed import file_system
from compaction.storage.uri import any_remote, is_remote

#: the run itself: gives the report of its logs to its last argument, and returns what that returns
Work = Callable[[Engine, Inputs, Callable[[RunReport], RunReport]], RunReport]


def carried_out(
    inputs: Inputs,
    function: Callable[..., RunReport],
    work: Work,
    done: Callable[[RunReport], None],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> RunReport:
    """Runs a command on the engine that its call names, and writes its copy in the layout that was asked for.

    :param function: of the Python API
    :param done: called with the report as soon as the logs are done, and before they are verified
    :param settings: of a Spark session that is started
    """
    given = {"spark": inputs.given.get("spark"), "settings": settings, "to_store": inputs.to_store}
    with chosen(inputs.given["engine"], inputs.command, **given) as engine:

        def run(inputs: Inputs) -> RunReport:
            def report_once(report: RunReport) -> RunReport:
                report = replace(report, origin=provenance(inputs, function, engine))
                done(report)
                return report

            return work(engine, inputs, report_once)

        return in_layout(inputs, run)


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
