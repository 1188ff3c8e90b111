"""``dry-run``: compares policies on log directories at rest, and explains why a log is or is not cleaned."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from compaction.cli import execution, log_lines
from compaction.commands.runs import provenance
from compaction.config.request import ComparisonRequest, Span
from compaction.config.sources import CONFIGURED, Policy
from compaction.engine_choice import EngineChoice, chosen
from compaction.errors import UsageError
from compaction.options.inputs import Inputs, read_request, read_selector
from compaction.options.option import CommandOptions
from compaction.options.table import EXPLAIN, REPORTED, DryRunOptions
from compaction.options.values import Texts, read_duration
from compaction.policies.comparison import Comparison, comparison_metrics
from compaction.policies.result import OverTime, simulation_metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
the present with the arrivals of the last days.
"""

_EPILOG = f"""\
policies:
  --policy "KEY=VALUE,KEY=VALUE" overrides the configuration. Put the values of a list in brackets,
  or join them by +. The policy {CONFIGURED!r} overrides nothing; it is the default.

refused logs:
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


OPTIONS = CommandOptions("dry-run", DryRunOptions, EXPLAIN, *REPORTED, description=_DESCRIPTION, epilog=_EPILOG)


@OPTIONS.function
def dry_run(log_dirs: Texts, **options: Unpack[DryRunOptions]) -> Comparison | OverTime:
    """Compares policies on logs at rest without writing to them; the data is read once for all policies.

    >>> policies = ["cleanup.policy=compact", "cleanup.policy=delete,retention.ms=3d"]
    >>> compaction.dry_run(log_dir, policies=policies).policies
    ('cleanup.policy=compact', 'cleanup.policy=delete,retention.ms=3d')

    The parameters are the options of ``kafka-log-compaction dry-run``, see ``compact``.

    :param policies: each as text or as settings by name; by default ``configured``
    :param over_time: simulate the policies since the first record; ``every`` and ``ahead`` are text as in the options, or
        numbers of milliseconds
    :raises UsageError: an argument is invalid
    :raises CompactionError: a directory cannot be read; a log that fails is in the result
    """
    inputs = Inputs.of(OPTIONS, options, log_dirs=log_dirs)
    request = comparison_request(inputs)
    with chosen(inputs) as engine:
        return replace(execute(engine, request), origin=provenance(inputs, engine))


def execute(engine: EngineChoice, request: ComparisonRequest) -> Comparison | OverTime:
    """Runs the comparison, or the simulation. They are imported only here, so that a wrong call fails at once."""
    with engine.running() as start:
        from compaction.policies.compare_policies import compare_with
        from compaction.policies.over_time import simulate

        return compare_with(start, request) if request.over_time is None else simulate(start, request, request.over_time)


def comparison_request(inputs: Inputs, explained: Sequence[str] = ()) -> ComparisonRequest:
    """The checked request.

    :param explained: the partitions of ``--explain``
    :raises UsageError: the call is wrong
    """
    selector = read_selector(inputs.having(partitions=explained), "--explain") if explained else read_selector(inputs)
    base = read_request(inputs.having(dry_run=True), selector)
    policies = tuple(map(Policy.read, inputs["policies"] or [CONFIGURED]))
    names = [policy.name for policy in policies]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UsageError(f"--policy {repeated!r} is given twice", hint="name each policy once")
    for policy in policies:
        base.resolver.with_policy(policy.settings).broker()
    base = replace(base, include_active=inputs["include_active"], allow_keyless=inputs["allow_keyless"])
    return ComparisonRequest(base, policies, _span(inputs) if inputs["over_time"] else None)


def _span(inputs: Inputs) -> Span:
    first_ms, last_ms = inputs["from_time"], inputs["to_time"]
    end_ms = inputs.now_ms if last_ms is None else last_ms
    if end_ms > inputs.now_ms:
        raise UsageError("--to is a time up to --as-of, and not given with --ahead", hint="use --ahead for the time after it")
    if first_ms is not None and first_ms >= end_ms:
        raise UsageError("--from is not before the end of the time that is shown", hint="give an earlier time")
    every_ms, ahead_ms = read_duration("--every", inputs["every"]), read_duration("--ahead", inputs["ahead"])
    return Span(first_ms, last_ms, every_ms, ahead_ms or 0)


def _explain(arguments: argparse.Namespace) -> int:
    """Explains the logs in this process, from indexes and batch headers only."""
    from compaction.policies import compare_policies

    inputs = Inputs.of(OPTIONS, OPTIONS.complete(vars(arguments)), log_dirs=arguments.log_dirs)
    request = comparison_request(inputs, arguments.explain)
    return execution.finish(replace(compare_policies.explain(request), origin=provenance(inputs)), arguments)


def _body(arguments: argparse.Namespace) -> int:
    """Writes the requested files, prints the result, and returns the exit code."""
    if arguments.explain:
        return _explain(arguments)
    result: Comparison | OverTime = OPTIONS.run(vars(arguments))
    if isinstance(result, OverTime):
        return execution.finish(result, arguments, simulation_metrics)
    code = execution.FAILED if arguments.strict and result.refused else result.exit_code
    code = execution.finish(result, arguments, comparison_metrics, code)
    for line in result.refusals():
        log_lines.print_line(line)
    return code


main = partial(execution.run_command, OPTIONS, _body)
