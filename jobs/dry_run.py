"""Compares policies on Kafka log directories at rest, and explains why a log is or is not cleaned.

Run it with ``spark-submit jobs/dry_run.py --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

if not __package__:
    # a script: of a checkout, or of an installation, in which this package is compaction.jobs
    checkout = Path(__file__).resolve().parent.parent
    __package__ = "jobs" if (checkout / "compaction").is_dir() else "compaction.jobs"
    if __package__ == "jobs":
        sys.path.insert(0, str(checkout))

from compaction.compare.comparison_metrics import comparison_metrics  # noqa: E402
from compaction.compare.figures import ComparedLog, Comparison, OutcomeStatus  # noqa: E402
from compaction.compare.html_page import to_html  # noqa: E402
from compaction.compare.json_document import explanations_to_json, to_json  # noqa: E402 - the checkout must be on the path first
from compaction.compare.terminal import print_comparison, print_explanations  # noqa: E402
from compaction.config import Policy  # noqa: E402
from compaction.config.policy import CONFIGURED  # noqa: E402
from compaction.config.request import ComparisonRequest  # noqa: E402
from compaction.errors import UsageError  # noqa: E402
from compaction.logdir.discover import Selector  # noqa: E402

from . import _arguments, _command, _logging, _options  # noqa: E402
from ._command import SessionFactory  # noqa: E402
from ._provenance import provenance  # noqa: E402

_DESCRIPTION = """\
Compare policies on logs at rest without writing to them: bytes, records, segments and tombstones
before and after, how often keys repeat, the age of the removed records, the positions of the
retained ones, and how many rounds a broker would need. The data is read once for all policies.
The figures are exact: a run with the same settings has the same figures.

With --explain, print instead why logs are or are not cleaned: every condition with its value, its
bound, the source of its configuration, and what would change the result. This reads only indexes
and batch headers.
"""

_EPILOG = f"""\
{_options.CONFIGURATION_HELP}
policies:
  --policy "KEY=VALUE,KEY=VALUE" overrides the rest of the configuration. Put the values of a list in
  brackets, or join them by +. The policy {CONFIGURED!r} changes nothing; it is the default.

{_options.EXIT_HELP}
  A refusal of a log, because many of its records have no key, is an answer and no failure under a
  policy other than {CONFIGURED!r}; --strict makes it one.

examples:
  What would compaction, or three days of retention, or both, free on these topics?
    kafka-log-compaction dry-run --log-dir /backup/kafka --topic 'orders.*' \\
        --policy cleanup.policy=compact \\
        --policy cleanup.policy=delete,retention.ms=3d \\
        --policy 'cleanup.policy=[compact,delete],retention.ms=3d' \\
        --html orders.html --report orders.json

  Why is this log not compacted?
    kafka-log-compaction dry-run --log-dir /var/lib/kafka --config server.properties \\
        --explain __consumer_offsets-7
"""


def parser() -> _options.Parser:
    """The command's options."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    _options.add_selectors(options)
    _options.add_configuration(options)
    _options.add_kafka_version(options)
    options.set_defaults(dry_run=True)
    group = options.add_argument_group("what to compare")
    text = f"settings to compare, or {CONFIGURED}; may be repeated (default: {CONFIGURED})"
    _options.add_list(group, "--policy", "K=V,K=V", text, dest="policies")
    text = "only explain why these partitions are or are not cleaned under each policy; may be repeated"
    _options.add_list(group, "--explain", "TOPIC-N", text)
    group.add_argument(
        "--include-active", action="store_true",
        help="the directories are exports that no broker will append to: the active segment of each log is cleaned too",
    )  # fmt: skip
    group.add_argument(
        "--allow-keyless", action="store_true",
        help="compare runs with this option: logs with many records without a key are cleaned too",
    )  # fmt: skip
    group.add_argument(
        "--strict", action="store_true",
        help=f"exit with 1 if a run would refuse a log under any of the policies, and not only under {CONFIGURED}",
    )  # fmt: skip
    _options.add_engine(group)
    group = options.add_argument_group("what to write")
    _options.add_file(group, "--report", "write all figures in JSON (schema_version 1)")
    _options.add_metrics(group)
    _options.add_file(group, "--html", "write the comparison as a self-contained HTML page")
    _options.add_result(group)
    _options.add_logging(group)
    return options


def read_request(arguments: argparse.Namespace) -> ComparisonRequest:
    """The validated request.

    :raises UsageError: the call is wrong
    """
    base = _arguments.read_request(arguments, _selector(arguments))
    policies = tuple(Policy.read(text) for text in arguments.policies or [CONFIGURED])
    names = [policy.name for policy in policies]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--policy {twice!r} is given twice", hint="name each policy once")
    for policy in policies:
        base.resolver.with_policy(policy.settings).broker()
    base = replace(base, include_active=arguments.include_active, allow_keyless=arguments.allow_keyless)
    return ComparisonRequest(base, policies)


def _selector(arguments: argparse.Namespace) -> Selector:
    """The logs to compare, or those to explain."""
    if not arguments.explain:
        return _arguments.read_selector(arguments)
    if arguments.topic or arguments.partition or arguments.html or arguments.metrics:
        what = "--explain takes neither --topic, --partition, --html nor --metrics"
        raise UsageError(what, hint="name the partitions to explain")
    return _arguments.read_selector(argparse.Namespace(topic=[], partition=arguments.explain), "--explain")


def compare(session_factory: SessionFactory, request: ComparisonRequest) -> Comparison:
    """Run the comparison. Spark is imported only here, so that a wrong call fails at once."""
    _command.require_engine(session_factory)
    from compaction.compare.compare_policies import compare_with

    with _command.progress() as progress:
        return compare_with(_command.passes(session_factory, progress), request)


def explain(request: ComparisonRequest) -> tuple[ComparedLog, ...]:
    """Explain the logs, without Spark."""
    from compaction.compare import compare_policies

    return compare_policies.explain(request)


def main(argv: Sequence[str] | None = None, run: Callable[[SessionFactory, ComparisonRequest], Comparison] = compare) -> int:
    """Run the command and return its exit code.

    :param argv: the options, those of the process when ``None``
    :param run: executes a request
    """

    def body(arguments: argparse.Namespace) -> int:
        request = read_request(arguments)
        if arguments.explain:
            return _explain(request, arguments)
        return _finish(run(_command.Engine.of(arguments, "dry-run"), request), arguments)

    return _command.run_command(parser(), argv, body)


def _explain(request: ComparisonRequest, arguments: argparse.Namespace) -> int:
    logs = explain(request)
    document = explanations_to_json(logs, request.base.as_of_ms, provenance(arguments))

    def show() -> None:
        if arguments.output == _options.JSON:
            sys.stdout.write(document)
        else:
            print_explanations(logs, _command.screen(arguments))

    code = _command.FAILED if any(log.error is not None for log in logs) else 0
    return _command.finish([(arguments.report, lambda: document)], show, code)


def _finish(comparison: Comparison, arguments: argparse.Namespace) -> int:
    """Write the requested files, print a comparison, and return the exit code."""
    comparison = replace(comparison, origin=provenance(arguments))
    files = (
        (arguments.report, lambda: to_json(comparison)),
        (arguments.metrics, lambda: comparison_metrics(comparison)),
        (arguments.html, lambda: to_html(comparison)),
    )
    code = comparison.exit_code or (_command.FAILED if arguments.strict and comparison.refused else 0)
    return _command.finish(files, lambda: _show(comparison, arguments), code)


def _show(comparison: Comparison, arguments: argparse.Namespace) -> None:
    if arguments.output == _options.JSON:
        sys.stdout.write(to_json(comparison))
    else:
        print_comparison(comparison, _command.screen(arguments))
    for log in comparison.logs:
        if log.error is not None:
            _logging.print_error(f"{log.name}: {log.error}")
        for outcome in log.outcomes:
            if outcome.fails:
                _logging.print_error(f"{log.name}, {outcome.policy}: {outcome.reason}")
            elif outcome.status is OutcomeStatus.REFUSED:
                _logging.print_line(f"refused: {log.name}, {outcome.policy}: {outcome.reason}")


if __name__ == "__main__":
    sys.exit(main())
