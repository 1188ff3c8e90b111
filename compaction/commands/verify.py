"""``verify``: proves that cleaned logs lost no record and changed none, except as cleaning may."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Any, NamedTuple

from compaction.api.engine_choice import AUTO, ENCRYPTED, Engine, chosen, progress
from compaction.api.inputs import (
    Inputs,
    NamedSettings,
    Texts,
    Time,
    join_tail,
    read_kafka_version,
    read_metadata_dirs,
    read_resolver,
    read_selector,
    texts,
    usage_errors,
)
from compaction.api.key_inputs import KeyInputs, with_certificate
from compaction.api.provenance import provenance
from compaction.certifier.certificate import Status, VerifyReport, error_line
from compaction.certifier.find_pairs import VerifyRequest
from compaction.cli import execution, log_lines, option_groups
from compaction.errors import UsageError
from compaction.locking.access import Purpose, access
from compaction.logdir.discover import Selector, check_log_dirs, discover, require_logs
from compaction.names import TopicPartition, parse_partition_dir
from compaction.storage.mixed import file_system
from compaction.storage.remote import require_finished
from compaction.storage.uri import parse_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compaction.certifier.checks.erased_keys import ErasedKeys

_DESCRIPTION = """\
Prove that the logs of --after are a valid result of cleaning those of --before. Each retained
record equals its source byte by byte. Each missing record has a reason: superseded by a later
record of the same key, a tombstone past its delete horizon, aborted, a transaction marker,
without a key, below the log start, or expired. Offsets, CRCs, indexes, transactions,
checkpoints and the active segment are checked too; in a copy also leader epochs, topic ids,
producer snapshots, and the broker's own files.

Keys are compared byte by byte, and records are read by code that the cleaner does not use. The
directories are only read. docs/verify.md explains the result.
"""

_EPILOG = f"""\
{option_groups.CONFIGURATION_HELP}
exit status:
  0  all logs hold; with --why: the answer was printed
  1  at least one log is violated or cannot be verified, or records of erased keys remain
  2  nothing to compare, or a wrong call (option, configuration, no such directory, a live broker)

examples:
  Is a compacted copy valid?
    kafka-log-compaction verify --before /exports/orders --after /exports/orders-compacted \\
        --set cleanup.policy=compact --include-active

  Is the result of the last run on this directory valid? Its sources remain until the next run.
    kafka-log-compaction verify --in-place /var/lib/kafka --report verified.json

  Why was this record dropped?
    kafka-log-compaction verify --in-place /var/lib/kafka --why orders-0:4711
"""


def parser() -> option_groups.Parser:
    """The command's options."""
    options = option_groups.Parser(_DESCRIPTION, _EPILOG)
    group = options.add_argument_group("logs")
    for name, text in (
        ("--before", "log directories before cleaning"),
        ("--after", "log directories after cleaning; logs are paired by topic and partition"),
        ("--in-place", "log directories that were cleaned in place; they are compared with the .deleted files of the last run"),
    ):
        option_groups.add_list(group, name, "DIR", text)
    option_groups.add_names(group)
    keys = options.add_argument_group("certificates of erasures")
    text = "a certificate of erase to verify; needs the keys that were given to erase"
    keys.add_argument("--certificate", metavar="FILE", help=text)
    option_groups.add_keys(keys)
    option_groups.add_configuration(options)
    option_groups.add_kafka_version(options)
    _add_rules(options)
    return options


def _add_rules(options: option_groups.Parser) -> None:
    group = options.add_argument_group("rules and output")
    group.add_argument("--include-active", action="store_true", help="the logs were cleaned with --include-active")
    group.add_argument(
        "--several-rounds", action="store_true",
        help="allow more than one round of cleaning, in which delete horizons may have been set and have passed",
    )  # fmt: skip
    group.add_argument(
        "--strict", action="store_true",
        help="report retained superseded records as violations; Kafka may retain some, without loss",
    )  # fmt: skip
    option_groups.add_engine(group)
    group.add_argument("--why", metavar="TOPIC-N:OFFSET", help="explain only the fate of this record of --before")
    option_groups.add_file(group, "--report", "write a report in JSON (schema_version 1)")
    option_groups.add_short_result(group)
    option_groups.add_logging(group)


class VerifyInputs(NamedTuple):
    """A checked call: the request, and the record of ``--why``, or the certificate of an erasure and its keys."""

    request: VerifyRequest
    why: tuple[TopicPartition, int] | None = None
    certificate: Mapping[str, Any] | None = None
    erased: ErasedKeys | None = None
    certificate_path: str | None = None


def verify(
    before: Texts = (),
    after: Texts = (),
    *,
    in_place: Texts = (),
    topics: Texts = (),
    partitions: Texts = (),
    allow_empty: bool = False,
    tail: str | None = None,
    private_keys: Texts = (),
    certificate: str | os.PathLike[str] | None = None,
    keys: Texts = (),
    keys_format: str = "text",
    keys_column: str | None = None,
    where: Texts = (),
    config: Texts = (),
    settings: NamedSettings = (),
    metadata: Texts = (),
    assume_default_policy: bool = False,
    as_of: Time | None = None,
    kafka_version: str = AUTO,
    include_active: bool = False,
    several_rounds: bool = False,
    strict: bool = False,
    engine: str | Engine = AUTO,
    spark: SparkSession | None = None,
) -> VerifyReport:
    """Proves that the logs of ``after`` are a valid result of cleaning those of ``before``; or those of ``in_place``, of
    cleaning the segments that the last run replaced.

    >>> report = compaction.verify(log_dir, copy, settings={"cleanup.policy": "compact"})
    >>> report.status.value
    'holds'

    The parameters are the options of ``kafka-log-compaction verify``, see ``compact``.

    :raises UsageError: an argument is invalid, or there is nothing to compare
    :raises CompactionError: a directory cannot be read; a log that cannot be verified is in the report
    """
    parameters = locals()
    call, inputs = read_call(parameters)
    with chosen(engine, "verify", spark=spark, settings=ENCRYPTED) as tasks:
        report = _verify(tasks, call)
        return with_fields(report, origin=provenance(inputs, verify, tasks))


def _verify(engine: Engine, call: VerifyInputs) -> VerifyReport:
    if call.certificate is None or call.erased is None:
        return certified(engine, call.request)
    from compaction.certifier.erasure_certificate import certify_erasure, compare

    request = call.request
    with _shared_locks(request), progress() as progress_display:
        certified_logs = certify_erasure(engine.passes(progress_display), request, call.erased)
    report = compare(call.certificate, certified_logs, request.logs or frozenset(), with_before=bool(request.before))
    return with_fields(report, certificate=call.certificate_path)


def certified(engine: Engine, request: VerifyRequest) -> VerifyReport:
    """Certifies the logs. The kernels are imported only here, so that a wrong call fails at once."""
    from compaction.certifier.certify import certify

    with _shared_locks(request), progress() as progress_display:
        return certify(engine.passes(progress_display), request)


def _explained(engine: Engine, request: VerifyRequest, offset: int) -> list[str]:
    """The fate of one record of the requested log, as lines of text."""
    from compaction.certifier import explain_record

    with _shared_locks(request), progress() as progress_display:
        return explain_record.explain(engine.passes(progress_display), request, offset)


def read_call(parameters: Mapping[str, Any]) -> tuple[VerifyInputs, Inputs]:
    """The checked call, and the inputs that all commands have in common.

    :param parameters: the parameters of ``verify``, and of its option ``--why``
    :raises UsageError: the call is wrong
    """
    path, keys = parameters["certificate"], KeyInputs.of(parameters)
    parameters = {**parameters, "certificate": path if path is None else os.fspath(path), "where": (), "log_dirs": ()}
    inputs = Inputs.of("verify", {**parameters, **{name: texts(parameters[name]) for name in ("before", "after", "in_place")}})
    sides: dict[str, list[str]] = {name: inputs.parameters[name] for name in ("before", "after", "in_place")}
    in_place = bool(sides["in_place"])
    if in_place == bool(sides["after"]) or in_place == bool(sides["before"]):
        raise UsageError("give --before and --after, or only --in-place", hint="see --help")
    resolver, selector, why = read_resolver(inputs), read_selector(inputs), _read_why(parameters.get("why"))
    if why is not None:
        selector = Selector(partitions=frozenset({why[0]}), option="--why")
    before = _log_dirs(inputs, sides["before"], "--before")
    after = _log_dirs(inputs, sides["in_place"] or sides["after"], "--in-place" if in_place else "--after")
    if not inputs.allow_empty:
        _require_logs(before or after, selector)
    request = VerifyRequest(
        before=before,
        after=after,
        now_ms=inputs.now_ms,
        exact=inputs.as_of_ms is not None,
        selector=selector,
        resolver=resolver,
        metadata_dirs=read_metadata_dirs(inputs),
        kafka_version=read_kafka_version(inputs),
        include_active=parameters["include_active"],
        several_rounds=parameters["several_rounds"],
        strict=parameters["strict"],
    )
    if parameters["certificate"] is None:
        if keys.keys or keys.where:
            raise UsageError("--keys and --where need --certificate", hint="see --help")
        return VerifyInputs(request, why), inputs
    request, certificate, erased = with_certificate(parameters["certificate"], keys, request)
    return VerifyInputs(request, why, certificate, erased, parameters["certificate"]), inputs


def _log_dirs(inputs: Inputs, paths: Sequence[str], option: str) -> tuple[str, ...]:
    uris = [parse_uri(path, option) for path in paths]
    if option == "--before":
        join_tail(inputs.tail, uris)
    with usage_errors():
        result = check_log_dirs(file_system(uris), uris)
        for path in result:
            require_finished(path)
    return result


def _require_logs(log_dirs: Sequence[str], selector: Selector) -> None:
    with usage_errors():
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


def show(report: VerifyReport, print_line: Callable[[str], None] = print, *, only_summary: bool = False) -> int:
    """Prints the report, with a line for each log that does not hold on standard error, and returns the exit code."""
    log_lines.end_steps()
    for line in [report.summary()] if only_summary else [line.text for line in report.lines()]:
        print_line(line)
    for log in report.logs:
        if log.status in (Status.VIOLATED, Status.FAILED, Status.INCOMPLETE):
            log_lines.print_error(error_line(log))
    for directory in report.directories:
        log_lines.print_error(directory.lines()[0])
    return report.exit_code


def _finish(report: VerifyReport, arguments: argparse.Namespace) -> int:
    """Writes the requested file, prints the report in the form that the options ask for, and returns the exit code."""
    as_json = arguments.output == option_groups.JSON

    def print_it() -> None:
        show(report, _print_nothing if as_json else print, only_summary=arguments.quiet)
        if as_json:
            sys.stdout.write(report.to_json())

    return execution.finish([(arguments.report, report.to_json)], print_it, report.exit_code)


def _print_nothing(line: str) -> None:
    """Used if a JSON document is printed instead."""


def main(argv: Sequence[str] | None = None, engine: Engine | None = None) -> int:
    """Runs the command; returns its exit code, see ``compact``."""

    def body(arguments: argparse.Namespace) -> int:
        parameters = execution.call_parameters(verify, arguments) | ({} if engine is None else {"engine": engine})
        if arguments.why is None:
            return _finish(verify(**parameters), arguments)
        call, _ = read_call({**parameters, "why": arguments.why})
        if call.why is not None:
            with chosen(parameters["engine"], "verify", settings=ENCRYPTED) as tasks:
                print("\n".join(_explained(tasks, call.request, call.why[1])))
        return 0

    return execution.run_command(parser(), argv, body)
