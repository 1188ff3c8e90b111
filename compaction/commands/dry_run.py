"""``dry-run``: compares policies on log directories at rest, and explains why a log is or is not cleaned."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Any

from compaction.api.budgets import read_duration, read_size
from compaction.api.engine_choice import AUTO, Engine, chosen, progress
from compaction.api.inputs import Inputs, NamedSettings, Texts, Time, as_of_ms, pairs, read_request, read_selector
from compaction.api.provenance import provenance
from compaction.cli import execution, log_lines, option_groups
from compaction.compare.comparison import Comparison
from compaction.compare.comparison_metrics import comparison_metrics
from compaction.compare.figures import OutcomeStatus
from compaction.compare.json_document import explanations_to_json
from compaction.compare.terminal import explanation_lines
from compaction.config import Policy
from compaction.config.policy import CONFIGURED
from compaction.config.request import ComparisonRequest, Span
from compaction.errors import UsageError
from compaction.simulation.metrics import simulation_metrics
from compaction.simulation.result import OverTime
from compaction.storage.calls import call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Execute = Callable[[Engine, ComparisonRequest], Comparison | OverTime]

_DESCRIPTION = """\
Compare policies on logs at rest without writing to them: bytes, records, segments and tombstones
before and after, how often keys repeat, the age of the removed records, the positions of the
retained ones, and the number of rounds that a broker would need. The data is read once for all
policies. The figures are exact: a run with the same settings has the same figures.

With --explain, print why logs are or are not cleaned instead: every condition with its value, its
bound, the source of its configuration, and the change that would alter the result. This reads only
indexes and batch headers.

With --over-time, simulate the policies from the first record to the present: what each of them, had
it been in force, would have made of the records that arrived. It shows sizes through time, what the
cleaner reads and writes, and how long superseded and deleted records remain. --ahead goes on after
the present with the arrivals of the last days, --fit finds settings that remain within a size.
"""

_EPILOG = f"""\
{option_groups.CONFIGURATION_HELP}
policies:
  --policy "KEY=VALUE,KEY=VALUE" overrides the configuration. Put the values of a list in brackets,
  or join them by +. The policy {CONFIGURED!r} overrides nothing; it is the default.

{option_groups.EXIT_HELP}
  A run refuses a log if many of its records have no key. This is a failure under the policy
  {CONFIGURED!r}; under other policies it is a result, or with --strict a failure, too.

examples:
  How much would compaction, three days of retention, or both free on these topics?
    kafka-log-compaction dry-run --log-dir /backup/kafka --topic 'orders.*' \\
        --policy cleanup.policy=compact \\
        --policy cleanup.policy=delete,retention.ms=3d \\
        --policy 'cleanup.policy=[compact,delete],retention.ms=3d' \\
        --html orders.html --report orders.json

  What would this topic have needed with shorter segments, and in a month?
    kafka-log-compaction dry-run --log-dir /backup/kafka --topic orders --over-time --ahead 30d \\
        --policy configured --policy segment.ms=1d,min.cleanable.dirty.ratio=0.2 --html orders.html

  Why is this log not compacted?
    kafka-log-compaction dry-run --log-dir /var/lib/kafka --config server.properties \\
        --explain __consumer_offsets-7
"""


def parser() -> option_groups.Parser:
    """The command's options."""
    options = option_groups.Parser(_DESCRIPTION, _EPILOG)
    option_groups.add_selectors(options)
    option_groups.add_configuration(options)
    option_groups.add_kafka_version(options)
    group = options.add_argument_group("comparison")
    text = f"settings to compare, or {CONFIGURED}; may be repeated (default: {CONFIGURED})"
    option_groups.add_list(group, "--policy", "K=V,K=V", text, dest="policies")
    text = "do not compare; explain why these partitions are or are not cleaned under each policy; may be repeated"
    option_groups.add_list(group, "--explain", "TOPIC-N", text)
    group.add_argument(
        "--include-active", action="store_true",
        help="compare runs with --include-active, which also clean the last segment of each log; only for exports",
    )  # fmt: skip
    group.add_argument(
        "--allow-keyless", action="store_true",
        help="compare runs with --allow-keyless, which also clean logs with many records without a key",
    )  # fmt: skip
    group.add_argument(
        "--strict", action="store_true",
        help=f"exit with 1 if a run would refuse a log under any policy (default: only under {CONFIGURED})",
    )  # fmt: skip
    option_groups.add_engine(group)
    group = options.add_argument_group("policies through time")
    group.add_argument("--over-time", action="store_true", help="simulate the policies since the first record of the logs")
    option_groups.add_time(group, "--from", "from_time", "show the time from here on (default: the first record)")
    option_groups.add_time(group, "--to", "to_time", "show the time up to here (default: --as-of)")
    text = "time between two samples, e.g. 6h (default: 1d, or less if there are few days)"
    group.add_argument("--every", metavar="TIME", help=text)
    text = "go on for this time, e.g. 30d, with the arrivals of the last 30 days"
    group.add_argument("--ahead", metavar="TIME", help=text)
    text = "find the settings that change least and keep all logs together within this size, e.g. 200GiB"
    group.add_argument("--fit", metavar="SIZE", help=text)
    group = options.add_argument_group("output")
    option_groups.add_file(group, "--report", "write all figures in JSON (schema_version 1)")
    option_groups.add_metrics(group)
    option_groups.add_file(group, "--html", "write the comparison as a self-contained HTML page")
    option_groups.add_result(group)
    option_groups.add_logging(group)
    return options


@call()
def dry_run(
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
    policies: Texts | Sequence[Mapping[str, object]] = (),
    kafka_version: str = AUTO,
    include_active: bool = False,
    allow_keyless: bool = False,
    over_time: bool = False,
    from_time: Time | None = None,
    to_time: Time | None = None,
    every: str | int | None = None,
    ahead: str | int | None = None,
    fit: str | int | None = None,
    engine: str | Engine = AUTO,
    cores: int | None = None,
    spark: SparkSession | None = None,
) -> Comparison | OverTime:
    """Compares policies on logs at rest without writing to them; the data is read once for all policies.

    >>> policies = ["cleanup.policy=compact", "cleanup.policy=delete,retention.ms=3d"]
    >>> compaction.dry_run(log_dir, policies=policies).policies
    ('cleanup.policy=compact', 'cleanup.policy=delete,retention.ms=3d')

    The parameters are the options of ``kafka-log-compaction dry-run``, see ``compact``.

    :param policies: each as text or as settings by name; by default ``configured``
    :param over_time: simulate the policies since the first record; ``every``, ``ahead`` and ``fit`` are text as in the options,
        or numbers of milliseconds and bytes
    :raises UsageError: an argument is invalid
    :raises CompactionError: a directory cannot be read; a log that fails is in the result
    """
    return carry_out({**locals(), "policies": _texts(policies)}, compare)


def carry_out(parameters: Mapping[str, Any], execute: Execute) -> Comparison | OverTime:
    """Runs the command.

    :param parameters: the parameters of ``dry_run``
    :param execute: see ``compare``
    """
    inputs = Inputs.of("dry-run", parameters)
    request = comparison_request(inputs)
    with chosen(parameters["engine"], "dry-run", spark=parameters.get("spark"), cores=parameters.get("cores")) as engine:
        return with_fields(execute(engine, request), origin=provenance(inputs, dry_run, engine))


def compare(engine: Engine, request: ComparisonRequest) -> Comparison | OverTime:
    """Runs the comparison, or the simulation. They are imported only here, so that a wrong call fails at once."""
    engine.require()
    from compaction.compare.compare_policies import compare_with
    from compaction.simulation.over_time import simulate

    with progress() as progress_display:
        start = engine.passes(progress_display)
        return compare_with(start, request) if request.over_time is None else simulate(start, request, request.over_time)


def _texts(policies: Texts | Sequence[Mapping[str, object]]) -> list[str]:
    values = [policies] if isinstance(policies, (str, os.PathLike)) else policies
    return [_policy(policy) if isinstance(policy, Mapping) else os.fspath(policy) for policy in values]


def _policy(settings: Mapping[str, object]) -> str:
    return ",".join(f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, _, value in _parts(settings))


def _parts(settings: Mapping[str, object]) -> list[tuple[str, str, str]]:
    return [text.partition("=") for text in pairs(settings)]


def comparison_request(inputs: Inputs) -> ComparisonRequest:
    """The checked request.

    :raises UsageError: the call is wrong
    """
    selector = read_selector(inputs)
    explained = inputs.parameters.get("explain")
    if explained:
        if inputs.topics or inputs.partitions or inputs.parameters["html"] or inputs.parameters["metrics"]:
            message = "--explain takes neither --topic, --partition, --html nor --metrics"
            raise UsageError(message, hint="name the partitions to explain")
        selector = read_selector(with_fields(inputs, partitions=explained), "--explain")
    base = read_request(with_fields(inputs, dry_run=True), selector)
    policies = tuple(Policy.read(text) for text in inputs.parameters["policies"] or [CONFIGURED])
    names = [policy.name for policy in policies]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UsageError(f"--policy {repeated!r} is given twice", hint="name each policy once")
    for policy in policies:
        base.resolver.with_policy(policy.settings).broker()
    options = {name: inputs.parameters[name] for name in ("include_active", "allow_keyless")}
    return ComparisonRequest(with_fields(base, **options), policies, _span(inputs))


def _span(inputs: Inputs) -> Span | None:
    values = {name: inputs.parameters.get(name) for name in ("from_time", "to_time", "every", "ahead", "fit")}
    if not inputs.parameters.get("over_time"):
        given = next((name for name, value in values.items() if value is not None), None)
        if given is not None:
            raise UsageError(f"--{given.removesuffix('_time')} is an option of --over-time", hint="add --over-time")
        return None
    if inputs.parameters.get("explain") or inputs.parameters["include_active"]:
        raise UsageError("--over-time takes neither --explain nor --include-active", hint="drop one of the options")
    first_ms, last_ms = as_of_ms(values["from_time"]), as_of_ms(values["to_time"])
    end_ms = inputs.now_ms if last_ms is None else last_ms
    if last_ms is not None and (last_ms > inputs.now_ms or values["ahead"] is not None):
        raise UsageError("--to is a time up to --as-of, and not given with --ahead", hint="use --ahead for the time after it")
    if first_ms is not None and first_ms >= end_ms:
        raise UsageError("--from is not before the end of the time that is shown", hint="give an earlier time")
    every_ms, ahead_ms = (read_duration(f"--{name}", values[name]) for name in ("every", "ahead"))
    return Span(first_ms, last_ms, every_ms, ahead_ms or 0, read_size("--fit", values["fit"]))


def main(argv: Sequence[str] | None = None, run: Execute = compare) -> int:
    """Runs the command; returns its exit code. ``argv``: by default those of the process; ``run`` executes a request."""

    def body(arguments: argparse.Namespace) -> int:
        parameters = execution.call_parameters(dry_run, arguments)
        return _explain(parameters, arguments) if arguments.explain else _finish(carry_out(parameters, run), arguments)

    return execution.run_command(parser(), argv, body)


def _explain(parameters: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Explains the logs in this process, from indexes and batch headers only."""
    from compaction.compare import compare_policies

    explain_options = {name: getattr(arguments, name) for name in ("explain", "html", "metrics")}
    inputs = Inputs.of("dry-run", {**parameters, **explain_options})
    request = comparison_request(inputs)
    logs = compare_policies.explain(request)
    document = explanations_to_json(logs, request.base.as_of_ms, provenance(inputs, dry_run))

    def show() -> None:
        if arguments.output == option_groups.JSON:
            sys.stdout.write(document)
        else:
            screen = execution.screen(arguments)
            screen.print(explanation_lines(logs, screen.style))

    code = execution.FAILED if any(log.error is not None for log in logs) else 0
    return execution.finish([(arguments.report, lambda: document)], show, code)


def _finish(result: Comparison | OverTime, arguments: argparse.Namespace) -> int:
    """Writes the requested files, prints a result, and returns the exit code."""
    files = (
        (arguments.report, result.to_json),
        (arguments.metrics, lambda: simulation_metrics(result) if isinstance(result, OverTime) else comparison_metrics(result)),
        (arguments.html, result.to_html),
    )
    refuses = not isinstance(result, OverTime) and result.refused > 0
    code = result.exit_code or (execution.FAILED if arguments.strict and refuses else 0)
    return execution.finish(files, lambda: _show(result, arguments), code)


def _show(result: Comparison | OverTime, arguments: argparse.Namespace) -> None:
    if arguments.output == option_groups.JSON:
        sys.stdout.write(result.to_json())
    else:
        result.print_on(execution.screen(arguments))
    for log in result.logs:
        if log.error is not None:
            log_lines.print_error(f"{log.name}: {log.error}")
    for log in () if isinstance(result, OverTime) else result.logs:
        for outcome in log.outcomes:
            if outcome.fails:
                log_lines.print_error(f"{log.name}, {outcome.policy}: {outcome.reason}")
            elif outcome.status is OutcomeStatus.REFUSED:
                log_lines.print_line(f"refused: {log.name}, {outcome.policy}: {outcome.reason}")
