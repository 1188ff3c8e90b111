"""The frame of ``compact``, ``expire`` and ``erase``, runs with nothing to do, and the origin of a result (``provenance``).

With ``--output-layout`` the copy is written in another layout than a log directory's. The command writes and verifies its copy
in a temporary directory: beside a target on a disk, else where the segments of its source are converted. If no log failed, the
copy's logs are then written in the layout, complete or not at all.
"""

from __future__ import annotations

import argparse
import platform
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from compaction import __version__
from compaction.cli import execution, log_lines
from compaction.config.entries import TOPIC_ENTRIES
from compaction.config.request import CompactionRequest
from compaction.config.resolver import BROKER_ATTRIBUTES, TOPIC_ATTRIBUTES
from compaction.engine_choice import EngineChoice, chosen, in_command, surroundings
from compaction.errors import UsageError
from compaction.exports import FORMAT, LAYOUTS, ExportTarget, TargetOptions
from compaction.files.filesystem import storage_of
from compaction.files.local import LocalFileSystem
from compaction.files.uri import SPOOL, layout_of, options_of, parse_uri
from compaction.metrics import open_metrics
from compaction.options.inputs import Inputs, check_output_dir, join_tail, read_resolver, read_selector
from compaction.options.option import CommandOptions
from compaction.options.table import JSON
from compaction.printable import printable
from compaction.report import RunReport
from compaction.screen.steps import step


def _scratch(inputs: Inputs, target: ExportTarget) -> AbstractContextManager[str]:
    from compaction.exports.new_export import staging_directory
    from compaction.files.calls import temporary_directory

    if storage_of(target.path).renames:
        return staging_directory(LocalFileSystem(), f"{target.path}.copy")
    source = parse_uri(inputs["log_dirs"][0], "--log-dir")
    spool = options_of(source).get(SPOOL)
    layout = layout_of(source)
    if spool is not None and layout is not None and layout.spools:
        # the parent of the run's own directory
        spool = str(Path(spool).parent)
    return temporary_directory(spool)


def _target(inputs: Inputs) -> ExportTarget:
    if len(inputs["log_dirs"]) != 1:
        raise UsageError("--output-layout takes only one --log-dir", hint="run once for each")
    source = parse_uri(inputs["log_dirs"][0], "--log-dir")
    join_tail(inputs["tail"], [source])
    path = check_output_dir(inputs["output_dir"], [source]) or ""
    accepted = inputs["accept_loss"] or (FORMAT if inputs["dry_run"] else None)
    options = TargetOptions(path, source, read_selector(inputs).matches, accepted, inputs["dry_run"])
    return LAYOUTS[inputs["output_layout"] or ""].target(options)


def provenance(inputs: Inputs, engine: EngineChoice | None = None) -> dict[str, object]:
    """The call and the environment of a run, for its report: versions, options, settings, each with its source.

    | field | meaning |
    | --- | --- |
    | ``tool`` | versions: of this package, of Python, of Spark if it was started |
    | ``engine`` | the engine that ran the tasks, ``local`` or ``spark``, and the ``reason`` |
    | ``command`` | the command's name |
    | ``options`` | each option with its ``value`` and its ``source``: ``command line``, ``call`` (the Python API) or
        ``default``; passwords are hidden |
    | ``settings`` | the broker-level settings of the call, each with its ``value``, null for no limit, and its ``source`` |
    | ``default_settings`` | Kafka's defaults of the topic-level settings; ``settings`` of a log has those that differ |
    """
    pyspark, options, config = sys.modules.get("pyspark"), surroundings().options, read_resolver(inputs).broker()
    return {
        "tool": {
            "name": "kafka-log-compaction",
            "version": __version__,
            "python": platform.python_version(),
            "spark": None if pyspark is None else pyspark.__version__,
        },
        **({} if engine is None else {"engine": engine.document()}),
        "command": inputs.command.name,
        "options": inputs.command.in_report(inputs.given) if options is None else options,
        "settings": {
            name: {"value": None if value == sys.float_info.max else value, "source": str(config.source(name))}
            for name, value in ((name, getattr(config, attribute)) for name, attribute in BROKER_ATTRIBUTES.items())
        },
        "default_settings": {name: TOPIC_ENTRIES[name].default for name in ("cleanup.policy", *TOPIC_ATTRIBUTES)},
    }


def run_on_engine(
    inputs: Inputs,
    work: Callable[[EngineChoice, Inputs], RunReport],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> RunReport:
    """Runs a command on the requested engine, and writes its copy in the requested layout if no log failed; the report has the
    result.

    :param settings: settings of a Spark session that is started
    :raises UsageError: options contradict each other, losses were not accepted, or the target is not empty
    """
    output_dir, layout = inputs["output_dir"], inputs["output_layout"]
    with chosen(inputs, settings, to_store=output_dir is not None and storage_of(output_dir).round_trips) as engine:
        target = None if layout is None else _target(inputs)
        if target is None or inputs["dry_run"]:
            return work(engine, inputs)
        with _scratch(inputs, target) as scratch:
            copy = str(Path(scratch) / "copy")
            report = work(engine, inputs.having(output_dir=copy))
            if report.exit_code:
                return report
            step(f"writing the output in layout {layout}")
            written = target.write(copy, inputs.now_ms)
    return replace(report, written=f"{target.path}: {LAYOUTS[layout].title} of {written}")


def logs_done(engine: EngineChoice, inputs: Inputs, report: RunReport) -> RunReport:
    """The report with the call and its environment. A command writes it now, before the logs are verified."""
    report = replace(report, origin=provenance(inputs, engine))
    surroundings().on_report(report)
    return report


def main_of(options: CommandOptions[Any]) -> Callable[..., int]:
    """The ``main`` of a command whose function returns a ``RunReport``."""

    def body(arguments: argparse.Namespace) -> int:
        codes: list[int] = []

        def write(report: RunReport) -> None:
            if report.done_before:
                # the report of the run that made the output is kept
                kept = arguments.report and f'"as_of_ms": {report.as_of_ms},' in execution.text_of(arguments.report)
                vars(arguments).update(html=None, metrics=None, **({"report": None} if kept else {}))
            codes.append(execution.finish(report, arguments, open_metrics))

        with in_command(on_report=write):
            report: RunReport = options.run(vars(arguments))
        if report.written and arguments.output != JSON:
            print(printable(report.written))
        log_lines.end_steps()
        for verification in report.verified:
            if arguments.output == JSON:
                # standard output has the document of the run
                log_lines.print_line(str(verification))
            else:
                verification.print_on(execution.screen(arguments))
            for line in verification.errors():
                log_lines.print_error(line)
        # also if a report could not be written, or the logs were verified since
        return max(*codes, report.exit_code)

    return partial(execution.run_command, options, body)


def report_without_logs(request: CompactionRequest) -> RunReport | None:
    """The report of a run in place over no logs; ``None`` for any other run, and if a log directory cannot be changed in
    place."""
    in_place = request.output_dir is None and all(storage_of(log_dir).renames for log_dir in request.log_dirs)
    if request.logs or not in_place:
        return None
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, logs=())


def done_before(inputs: Inputs, request: CompactionRequest) -> RunReport | None:
    """With ``--if-done``, the report of a run whose output directory has the complete, unchanged result of the same request.

    :raises CompactionError: it has other contents
    """
    from compaction.output import finished, publish

    if not inputs["if_done"] or request.output_dir is None:
        return None
    publish.finish_interrupted(request.output_dir)
    if not finished.is_done(request):
        return None
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, (), done_before=request.output_dir)
