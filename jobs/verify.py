"""Proves that cleaned logs lost no record and changed none, except as cleaning may.

Run it with ``spark-submit jobs/verify.py --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if not __package__:
    # a script: of a checkout, or of an installation, in which this package is compaction.jobs
    checkout = Path(__file__).resolve().parent.parent
    __package__ = "jobs" if (checkout / "compaction").is_dir() else "compaction.jobs"
    if __package__ == "jobs":
        sys.path.insert(0, str(checkout))

from compaction.certifier.certificate import LogCertificate, Status, VerifyReport  # noqa: E402
from compaction.certifier.verify_request import VerifyRequest  # noqa: E402
from compaction.errors import UsageError  # noqa: E402 - the checkout must be on the path first
from compaction.fs.uri import parse_uri  # noqa: E402
from compaction.locking.access import Purpose, access  # noqa: E402
from compaction.logdir.discover import Selector, check_log_dirs, discover, require_logs  # noqa: E402
from compaction.names import TopicPartition, parse_partition_dir  # noqa: E402
from compaction.stores.mixed import file_system  # noqa: E402
from compaction.stores.remote import require_finished  # noqa: E402

from . import _arguments, _command, _keys, _logging, _options  # noqa: E402
from ._certificates import with_certificate  # noqa: E402
from ._command import SessionFactory  # noqa: E402
from ._exports import join_tail  # noqa: E402
from ._provenance import provenance  # noqa: E402

if TYPE_CHECKING:
    from compaction.certifier.checks.erased_keys import ErasedKeys

_DESCRIPTION = """\
Prove that the logs of --after are a valid result of cleaning those of --before. Each retained
record equals its source byte by byte. Each missing record has a reason: superseded by a later
record of the same key, a tombstone past its delete horizon, aborted, a transaction marker,
without a key, below the log start, or expired. Offsets, CRCs, indexes, transactions,
checkpoints and the active segment are checked too; in a copy also leader epochs, topic ids,
producer snapshots, and the broker's own files.

Keys are compared byte by byte, and none of the cleaner's code that reads records is used. The
directories are only read. docs/verify.md explains the result.
"""

_EPILOG = f"""\
{_options.CONFIGURATION_HELP}
exit status:
  0  all logs hold; with --why: the answer was printed
  1  at least one log is violated or could not be judged, or records of erased keys remain
  2  nothing to compare, or a wrong call (option, configuration, no such directory, a live broker)

examples:
  Is a compacted copy valid?
    kafka-log-compaction verify --before /exports/orders --after /exports/orders-compacted \\
        --set cleanup.policy=compact --include-active

  Is the result of the last run on this directory valid? Its sources remain until the next run.
    kafka-log-compaction verify --in-place /var/lib/kafka --report verified.json

  What became of one record?
    kafka-log-compaction verify --in-place /var/lib/kafka --why orders-0:4711
"""


class Call(NamedTuple):
    """A validated call: the request, and the record of ``--why``, or the certificate of an erasure and its keys."""

    request: VerifyRequest
    why: tuple[TopicPartition, int] | None = None
    certificate: Mapping[str, Any] | None = None
    erased: ErasedKeys | None = None


def parser() -> _options.Parser:
    """The command's options."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    group = options.add_argument_group("which logs")
    for name, text in (
        ("--before", "log directories before cleaning"),
        ("--after", "log directories after cleaning; logs are paired by topic and partition"),
        ("--in-place", "log directories that were cleaned in place; they are compared with the .deleted files of the last run"),
    ):
        _options.add_list(group, name, "DIR", text)
    _options.add_names(group)
    keys = options.add_argument_group("whether keys were erased")
    text = "compute this certificate of erase --certificate again; with its keys, as they were given to erase"
    keys.add_argument("--certificate", metavar="FILE", help=text)
    _keys.add_keys(keys)
    _options.add_configuration(options)
    _options.add_kafka_version(options)
    _add_rules(options)
    return options


def _add_rules(options: _options.Parser) -> None:
    group = options.add_argument_group("what to allow, and what to write")
    group.add_argument("--include-active", action="store_true", help="the logs were cleaned with --include-active")
    group.add_argument(
        "--several-rounds", action="store_true",
        help="there was more than one round in between: delete horizons may have been set and have passed",
    )  # fmt: skip
    group.add_argument(
        "--strict", action="store_true",
        help="retained superseded records are violations; Kafka retains some, and that loses nothing",
    )  # fmt: skip
    group.add_argument("--why", metavar="TOPIC-N:OFFSET", help="only explain what became of this record of --before")
    _options.add_file(group, "--report", "write a report in JSON (schema_version 1)")
    _options.add_engine(group)
    _options.add_short_result(group)
    _options.add_logging(group)


def read_call(arguments: argparse.Namespace) -> Call:
    """The validated call.

    :raises UsageError: the call is wrong
    """
    in_place = bool(arguments.in_place)
    if in_place == bool(arguments.after) or in_place == bool(arguments.before):
        raise UsageError("give --before and --after, or only --in-place", hint="see --help")
    resolver, selector, why = _arguments.read_resolver(arguments), _arguments.read_selector(arguments), _read_why(arguments.why)
    if why is not None:
        selector = Selector(partitions=frozenset({why[0]}), option="--why")
    before = _log_dirs(arguments, arguments.before, "--before")
    after = _log_dirs(arguments, arguments.in_place or arguments.after, "--in-place" if in_place else "--after")
    if not arguments.allow_empty:
        _require_logs(before or after, selector)
    exact = arguments.as_of_ms is not None
    request = VerifyRequest(
        before=before,
        after=after,
        now_ms=_arguments.as_of_ms(arguments),
        exact=exact,
        selector=selector,
        resolver=resolver,
        metadata_dirs=_arguments.read_metadata_dirs(arguments),
        kafka_version=_arguments.read_kafka_version(arguments),
        include_active=arguments.include_active,
        several_rounds=arguments.several_rounds,
        strict=arguments.strict,
    )
    if arguments.certificate is None:
        if arguments.keys or arguments.where:
            raise UsageError("--keys and --where need --certificate", hint="see --help")
        return Call(request, why)
    request, certificate, erased = with_certificate(arguments, request)
    return Call(request, why, certificate, erased)


def _log_dirs(arguments: argparse.Namespace, given: Sequence[str], option: str) -> tuple[str, ...]:
    uris = [parse_uri(path, option) for path in given]
    if option == "--before":
        join_tail(arguments, uris)
    with _arguments.usage_errors():
        found = check_log_dirs(file_system(uris), uris)
        for path in found:
            require_finished(path)
    return found


def _require_logs(log_dirs: Sequence[str], selector: Selector) -> None:
    with _arguments.usage_errors():
        files = file_system(log_dirs)
        require_logs(files, discover(files, log_dirs, selector), log_dirs, selector)


def _read_why(text: str | None) -> tuple[TopicPartition, int] | None:
    if text is None:
        return None
    name, _, offset = text.rpartition(":")
    log = parse_partition_dir(name)
    if log is None or not offset.isdecimal():
        raise UsageError(f"--why {text!r} is not TOPIC-N:OFFSET", hint="e.g. --why orders-0:4711")
    return log, int(offset)


def _shared_locks(request: VerifyRequest) -> AbstractContextManager[object]:
    """Hold shared locks on all directories, so that no broker starts on them."""
    log_dirs = tuple(dict.fromkeys((*request.before, *request.after)))
    return access(file_system(log_dirs), log_dirs, Purpose.COPY)


def verify(session_factory: SessionFactory, request: VerifyRequest) -> VerifyReport:
    """Certify the logs. The kernels are imported only here, so that a wrong call fails at once."""
    from compaction.certifier.certify import certify

    with _shared_locks(request), _command.progress() as progress, _command.passes(session_factory, progress) as start:
        return certify(start, request)


def verify_erasure(
    session_factory: SessionFactory, request: VerifyRequest, certificate: Mapping[str, Any], erased: ErasedKeys
) -> VerifyReport:
    """Certify an erasure again, and compare the result with its certificate."""
    from compaction.certifier.erasure_certificate import certify_erasure, compare

    with _shared_locks(request), _command.progress() as progress, _command.passes(session_factory, progress) as start:
        found = certify_erasure(start, request, erased)
    return compare(certificate, found, request.logs or frozenset(), with_before=bool(request.before))


def explain(session_factory: SessionFactory, request: VerifyRequest, offset: int) -> list[str]:
    """What became of one record of the requested log, as lines of text."""
    from compaction.certifier import explain_record

    with _shared_locks(request), _command.progress() as progress, _command.passes(session_factory, progress) as start:
        return explain_record.explain(start, request, offset)


def show(report: VerifyReport, print_line: Callable[[str], None] = print, *, only_summary: bool = False) -> int:
    """Print the report, with a line for each log that does not hold on standard error, and return the exit code."""
    _logging.end_steps()
    lines = [*report.lines(), *report.elsewhere_lines(), *report.versions(), *report.certificate_lines()]
    for line in [*([] if only_summary else lines), report.summary()]:
        print_line(line)
    for log in report.logs:
        if log.status in (Status.VIOLATED, Status.FAILED, Status.INCOMPLETE):
            _logging.print_error(error_line(log))
    for each in report.directories:
        _logging.print_error(each.lines()[0])
    return report.exit_code


def _finish(report: VerifyReport, arguments: argparse.Namespace) -> int:
    """Write the requested file, print the report in the form that the options ask for, and return the exit code."""
    report = replace(report, origin=provenance(arguments))
    as_json = arguments.output == _options.JSON

    def print_it() -> None:
        show(report, _print_nothing if as_json else print, only_summary=arguments.quiet)
        if as_json:
            sys.stdout.write(report.to_json())

    return _command.finish([(arguments.report, report.to_json)], print_it, report.exit_code)


def _print_nothing(line: str) -> None:
    """A JSON document takes the place of the lines."""


def error_line(log: LogCertificate) -> str:
    if log.status is Status.INCOMPLETE:
        return f"{log.name}: {log.left_text}"
    if not log.violations:
        return f"{log.name} cannot be verified: {log.reason}"
    first = log.violations[0]
    return f"{log.name}:{first.offset}: {first.what} (the first of {log.violation_count} violations)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    :param argv: the options, those of the process when ``None``
    """

    def body(arguments: argparse.Namespace) -> int:
        call, engine = read_call(arguments), _command.Engine.of(arguments, "verify", _command.ENCRYPTED)
        if call.why is not None:
            print("\n".join(explain(engine, call.request, call.why[1])))
            return 0
        if call.certificate is not None and call.erased is not None:
            report = verify_erasure(engine, call.request, call.certificate, call.erased)
            return _finish(replace(report, certificate=arguments.certificate), arguments)
        return _finish(verify(engine, call.request), arguments)

    return _command.run_command(parser(), argv, body)


if __name__ == "__main__":
    sys.exit(main())
