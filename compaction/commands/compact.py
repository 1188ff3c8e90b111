"""``compact``: cleans the logs of Kafka log directories at rest as the broker's log cleaner would.

``compaction.run.compact`` has the steps of a run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_fields
from functools import partial
from typing import TYPE_CHECKING, Any

from compaction.api.budgets import read_budget
from compaction.api.engine_choice import AUTO, ENCRYPTED, Engine, progress, wave_ended
from compaction.api.inputs import Inputs, NamedSettings, Texts, Time, read_request, with_output
from compaction.api.runs import carried_out, done_before, report_without_logs
from compaction.cli import execution, log_lines, option_groups
from compaction.config.request import BENEFIT, DIRTY, Budget, CompactionRequest
from compaction.errors import UsageError
from compaction.report import LogReport, LogStatus
from compaction.run_report import RunReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compaction.certifier.certificate import VerifyReport

Execute = Callable[[Engine, CompactionRequest], RunReport]

_DESCRIPTION = """\
Compact Kafka logs at rest: keep the latest record of each key, exactly as the log cleaner of
their Kafka version does (2.8 to 4.4). The result is a log that a broker loads and consumers read.

A log is cleaned if its cleanup.policy includes compact, and its dirty ratio is over
min.cleanable.dirty.ratio or max.compaction.lag.ms has passed. A log of unknown cleanup.policy is
skipped, and counted separately. The last segment of a log is active and is not cleaned. If
cleanup.policy also includes delete, expired segments are deleted first. Segments are replaced in
place. After a crash at any point, a broker or a second run finds every retained record.
"""

_EPILOG = f"""\
{option_groups.CONFIGURATION_HELP}
{option_groups.EXIT_HELP}
examples:
  What would be cleaned in a stopped broker's directory, and why?
    kafka-log-compaction compact --log-dir /var/lib/kafka --config server.properties --dry-run

  Clean the consumer offsets topic, regardless of its dirty ratio:
    kafka-log-compaction compact --log-dir /var/lib/kafka --topic __consumer_offsets \\
        --set min.cleanable.dirty.ratio=0

  Write a compacted copy of an export, including its last segments:
    kafka-log-compaction compact --log-dir /exports/orders --set cleanup.policy=compact \\
        --include-active --output-dir /exports/orders-compacted --report orders.json

  Repeat a scheduled run, with the same result:
    kafka-log-compaction compact --log-dir /backup/kafka --as-of 2026-11-22T02:00Z
"""


def parser() -> option_groups.Parser:
    """The command's options."""
    options = option_groups.Parser(_DESCRIPTION, _EPILOG)
    option_groups.add_selectors(options)
    option_groups.add_configuration(options)
    option_groups.add_kafka_version(options)
    group = option_groups.add_run_options(options)
    option_groups.add_output(group)
    group.add_argument(
        "--since", metavar="DIR",
        help="continue this previous copy of the same logs: take unchanged segments from it, and read only new ones from the"
        " source; it must have been written with --if-done, --replace or --since, or to an object store",
    )  # fmt: skip
    group.add_argument(
        "--include-active", action="store_true",
        help="also clean the last segment of each log; only for exports to which no broker appends",
    )  # fmt: skip
    group.add_argument(
        "--allow-keyless", action="store_true",
        help="clean logs even if many of their records have no key; compaction drops these records, and refuses such logs by"
        " default",
    )  # fmt: skip
    group.add_argument(
        "--release-early", action="store_true",
        help="remove replaced segments as soon as the swaps of their wave have ended, without regard to file.delete.delay.ms",
    )  # fmt: skip
    budget = options.add_argument_group("what to clean first, and how much")
    budget.add_argument(
        "--order", choices=(DIRTY, BENEFIT), default=DIRTY,
        help="clean the dirtiest logs first, or those that are expected to free the most bytes for each byte that is rewritten"
        " (default: dirty)",
    )  # fmt: skip
    budget.add_argument(
        "--max-duration", metavar="TIME",
        help="begin no wave that would end after this time, e.g. 2h; the other logs are deferred to the next run",
    )  # fmt: skip
    budget.add_argument(
        "--max-rewrite", metavar="SIZE", help="rewrite segments of at most this size, e.g. 500GiB; defer the other logs"
    )
    budget.add_argument(
        "--min-freed", metavar="SHARE",
        help="defer logs that are expected to free less than this share of what would be rewritten, e.g. 10%%",
    )  # fmt: skip
    group.add_argument(
        "--verify", action="store_true",
        help="verify the result afterwards, as the command verify does; exit with 1 if a record was lost or changed",
    )  # fmt: skip
    return options


def compact(
    log_dirs: Texts,
    *,
    topics: Texts = (),
    partitions: Texts = (),
    allow_empty: bool = False,
    tail: str | None = None,
    private_keys: Texts = (),
    config: Texts = (),
    settings: NamedSettings = (),
    metadata: Texts = (),
    assume_default_policy: bool = False,
    as_of: Time | None = None,
    kafka_version: str = AUTO,
    dry_run: bool = False,
    include_active: bool = False,
    allow_keyless: bool = False,
    release_early: bool = False,
    order: str = DIRTY,
    max_duration: str | int | None = None,
    max_rewrite: str | int | None = None,
    min_freed: str | None = None,
    verify: bool = False,
    output_dir: str | os.PathLike[str] | None = None,
    output_layout: str | None = None,
    accept_loss: str | None = None,
    replace: bool = False,
    if_done: str | None = None,
    since: str | os.PathLike[str] | None = None,
    engine: str | Engine = AUTO,
    spark: SparkSession | None = None,
) -> RunReport:
    """Cleans logs at rest as the log cleaner of their Kafka version would, in place or into a copy.

    >>> report = compaction.compact(log_dir, settings={"cleanup.policy": "compact"}, dry_run=True)
    >>> report.status.value
    'done'

    The parameters are the options of ``kafka-log-compaction compact``; one value may stand for a list of one.

    :param settings: as ``--set``: topic-level or broker-level settings by name
    :param as_of: the current time for every rule: ISO 8601 with an offset from UTC, a ``datetime`` with one, or milliseconds
    :param max_duration: e.g. ``2h``, or milliseconds
    :param max_rewrite: e.g. ``500GiB``, or bytes
    :param engine: ``local``, ``spark`` or ``auto``
    :param spark: the caller's session, which is neither stopped nor configured
    :raises UsageError: an argument is invalid; nothing was changed
    :raises CompactionError: the run as a whole failed; a log that fails is in the report
    """
    return carry_out(locals(), lambda report: None, clean)


def carry_out(parameters: Mapping[str, Any], on_report: Callable[[RunReport], None], execute: Execute) -> RunReport:
    """Runs the command.

    :param parameters: the parameters of ``compact``
    :param on_report: called with the report before the result is verified
    :param execute: see ``clean``
    """
    verifies: bool = parameters.get("verify", False)
    early: bool = parameters.get("release_early", False)
    budget = read_budget(*(parameters.get(name) for name in ("max_duration", "max_rewrite", "min_freed")))
    order = _order(parameters.get("order", DIRTY))
    _check_release(early, verifies, parameters.get("output_dir"))
    _check_budget(budget, parameters)

    def work(engine: Engine, inputs: Inputs, report_once: Callable[[RunReport], RunReport]) -> RunReport:
        request = with_output(inputs, read_request(inputs))
        options = {"include_active": parameters["include_active"], "allow_keyless": parameters["allow_keyless"]}
        request = with_fields(request, **options, release_early=early, retain_replaced=verifies, order=order, budget=budget)
        report = done_before(request) if inputs.if_done else None
        if report is None:
            if verifies:
                _require_sources(request)
            report = execute(engine, request)
        report = report_once(report)
        return with_fields(report, verified=tuple(_verified(engine, request, report))) if verifies else report

    inputs = Inputs.of("compact", parameters, "include_active", "allow_keyless")
    return carried_out(inputs, compact, work, on_report, ENCRYPTED if verifies else {})


def _check_release(early: bool, verifies: bool, output_dir: object) -> None:
    if early and output_dir is not None:
        raise UsageError("--release-early: a copy replaces no segments", hint="drop one of the two options")
    if early and verifies:
        raise UsageError("--release-early removes what --verify compares the result with", hint="drop one of the two options")


def _check_budget(budget: Budget, parameters: Mapping[str, Any]) -> None:
    if budget == Budget():
        return
    if parameters.get("output_dir") is not None:
        message = "--max-duration, --max-rewrite and --min-freed limit runs in place: a copy has all logs"
        raise UsageError(message, hint="drop --output-dir, or the limits")
    if budget.max_duration_ms is not None and parameters.get("dry_run", False):
        raise UsageError("--max-duration: a dry run cannot say how fast the run would be", hint="drop one of the two options")


def _order(order: str) -> str:
    if order not in (DIRTY, BENEFIT):
        raise UsageError(f"--order: {order!r} is neither {DIRTY} nor {BENEFIT}", hint=f"leave it {DIRTY}")
    return order


def clean(engine: Engine, request: CompactionRequest) -> RunReport:
    """Runs the cleaner. It is imported only here, so that a run without logs, or with a usage error, is quick."""
    if (report := report_without_logs(request)) is not None:
        return report
    engine.require()
    from compaction.run.compact import clean_logs

    with progress() as progress_display:
        return clean_logs(engine.passes(progress_display), request, on_wave=wave_ended)


def _require_sources(request: CompactionRequest) -> None:
    from compaction.certifier.after_compact import require_sources

    require_sources(request)


def _verified(engine: Engine, request: CompactionRequest, report: RunReport) -> Sequence[VerifyReport]:
    """The certificates of the result; of all logs if an earlier run made the output, because it may not have verified it."""
    from compaction.certifier.after_compact import requests
    from compaction.commands.verify import certified

    if report.done_before:
        logs = (LogReport(*log.topic_partition, log.log_dir, LogStatus.CLEANED, "") for log in request.logs)
        report = with_fields(report, logs=tuple(logs))
    return [certified(engine, verification) for verification in requests(request, report)]


def main(argv: Sequence[str] | None = None, run: Execute = clean) -> int:
    """Runs the command; returns its exit code. ``argv``: by default those of the process; ``run`` executes a request."""

    def body(arguments: argparse.Namespace) -> int:
        from compaction.certifier.certificate import VerifyReport
        from compaction.commands.verify import show

        parameters = execution.call_parameters(compact, arguments)
        report, code = execution.run_and_write(partial(carry_out, parameters, execute=run), arguments)
        # standard output may have a document
        print_line = log_lines.print_line if arguments.output == option_groups.JSON else print
        verifications = [verification for verification in report.verified if isinstance(verification, VerifyReport)]
        return max([code, *(show(verification, print_line) for verification in verifications)])

    return execution.run_command(parser(), argv, body)
