"""``erase``: erases the records of given keys from Kafka log directories at rest.

``compaction.erasure.erase_keys`` has the steps of a run.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.api.engine_choice import ENCRYPTED, Engine, progress, wave_ended
from compaction.api.inputs import Inputs, read_request, read_selector, with_output
from compaction.api.key_inputs import KeyInputs, certified_salt, erased_keys, read_keys
from compaction.api.runs import OnReport, done_before, run_on_engine
from compaction.certifier.certificate import Status, error_line
from compaction.certifier.find_pairs import VerifyRequest
from compaction.cli import execution, log_lines
from compaction.cli.parser import Parser
from compaction.config.request import CompactionRequest
from compaction.names import LogLocation, TopicPartition
from compaction.options.option import CommandOptions
from compaction.options.table import REPORTED, EraseOptions
from compaction.options.values import Texts
from compaction.output.finished import layout
from compaction.run_report import RunReport
from compaction.screen.amounts import counted
from compaction.storage.text_files import PRIVATE, check_writable, write_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from compaction.certifier.find_remains import Remains
    from compaction.erasure.certify_result import Certification, Certify, ErasedLog
    from compaction.erasure.erase_keys import ErasureRequest

Execute = Callable[[Engine, "ErasureRequest"], RunReport]

_DESCRIPTION = """\
Erase all records of given keys from logs at rest, regardless of their cleanup.policy: from clean
and dirty segments, and from committed, aborted and open transactions. Offsets, all other records,
transactions, producers' sequences and log end offsets remain. A broker loads the result, and
producers and consumers continue. Segments without such a record are not written.

Replaced files and leftovers of earlier runs are removed at once, not after file.delete.delay.ms.
The last segment of a log is active: its records are erased only with --include-active, and counted
otherwise. Keys are compared byte by byte, and never printed: the report has their SHA-256 with a
salt of the run. docs/erase.md describes the result, and the copies that no run can reach.
"""

_EPILOG = """\
examples:
  How many records have these keys, and where?
    kafka-log-compaction erase --log-dir /backup/kafka --keys keys.txt --dry-run

  Erase them from a stopped broker's directory, including the last segments:
    kafka-log-compaction erase --log-dir /var/lib/kafka --keys keys.txt --include-active \\
        --report erased.json

  Replace each record by a tombstone, which consumers read:
    kafka-log-compaction erase --log-dir /backup/kafka --topic customers --on-match tombstone \\
        --where prefix=customer-17:

  Write a copy without the keys in a column of a table:
    kafka-log-compaction erase --log-dir /exports/orders --include-active --keys requests.parquet \\
        --keys-column customer_id --output-dir /exports/orders-erased
"""


OPTIONS = CommandOptions("erase", EraseOptions, *REPORTED)


def parser() -> Parser:
    """The command's options."""
    return Parser(OPTIONS, _DESCRIPTION, _EPILOG)


@OPTIONS.function
def erase(log_dirs: Texts, **options: Unpack[EraseOptions]) -> RunReport:
    """Erases all records of some keys from logs at rest, in place or into a copy.

    >>> report = compaction.erase(log_dir, where="prefix=customer-17:", dry_run=True)
    >>> report.to_dict()["erasure"]["keys_found"]
    0

    The parameters are the options of ``kafka-log-compaction erase``, see ``compact``. Keys are never in a report.

    :param keys: files that have the keys
    :param where: patterns of keys
    :param accept_remaining: ``exit_code`` is 0 even if records of the keys remain where the run does not erase
    :param certificate: the file for the certificate of the result
    :param accept_remaining: ``exit_code`` is 0 even if records of the keys remain where the run does not erase
    :raises UsageError: an argument is invalid; nothing was changed
    :raises CompactionError: the run as a whole failed; a log that fails is in the report
    """
    return run(log_dirs, options, lambda report: None, erase_records)


def run(log_dirs: Texts, options: EraseOptions, on_report: OnReport, execute: Execute) -> RunReport:
    """Runs the command.

    :param execute: see ``erase_records``
    """
    path = None if options["certificate"] is None else os.fspath(options["certificate"])

    def work(engine: Engine, inputs: Inputs, report_once: Callable[[RunReport], RunReport]) -> RunReport:
        request = _request(inputs, options)
        if inputs.if_done and path is not None:
            salt = certified_salt(path, request.erasure.criteria)
            if (earlier_report := done_before(_with_salt(request.base, salt or request.erasure.salt))) is not None:
                return report_once(earlier_report)
        if path is not None:
            request = replace(request, certify=_certifier(engine, request, path), certificate=path)
        return report_once(execute(engine, request))

    return run_on_engine(Inputs.of(OPTIONS, log_dirs, options), work, on_report, ENCRYPTED)


def _request(inputs: Inputs, options: EraseOptions) -> ErasureRequest:
    """The checked request.

    :raises UsageError: an argument is invalid
    """
    from compaction.erasure.erase_keys import ErasureRequest
    from compaction.erasure.find_matches import Erasure

    (criteria, places), salt = read_keys(KeyInputs.of(options)), secrets.token_bytes(16)
    base = with_output(inputs, read_request(inputs))
    base = replace(_with_salt(base, salt), include_active=options["include_active"])
    erasure = Erasure(criteria, salt, options["on_match"] == "tombstone")
    partitions = read_selector(inputs).partitions
    internal = frozenset((*inputs.topics, *(partition.topic for partition in partitions)))
    return ErasureRequest(base, erasure, internal, places=places, accepts_remaining=options["accept_remaining"])


def _with_salt(base: CompactionRequest, salt: bytes) -> CompactionRequest:
    """The request whose output records the salt of its run in place of the keys, because keys could be guessed from any hash.
    The certificate with this salt identifies the keys."""
    return base if base.call is None else replace(base, call={**base.call, "keys": salt.hex()})


def erase_records(engine: Engine, request: ErasureRequest) -> RunReport:
    """Erases the keys."""
    engine.require()
    from compaction.erasure.erase_keys import erase_keys

    with progress() as progress_display:
        return erase_keys(engine.passes(progress_display), request, on_wave=wave_ended)


def _certifier(engine: Engine, request: ErasureRequest, path: str) -> Certify:
    """Certifies the logs of a run and writes the certificate, also if all failed."""
    check_writable(path)
    base, erased = request.base, erased_keys(request.erasure.criteria, tombstones=request.erasure.tombstones)

    def certify(run: Sequence[ErasedLog]) -> Certification:
        from compaction.certifier.erasure_certificate import certify_erasure, document, failed_log, status_of
        from compaction.erasure.certify_result import Certification

        # from now on the file is not that of an earlier run, even if this run fails
        Path(path).unlink(missing_ok=True)
        resumed = {log.location.topic_partition for log in run if log.resumed}
        errors: dict[LogLocation, str] = {}
        logs: dict[LogLocation, Mapping[str, Any]] = {}
        elsewhere: list[Remains] = []
        notes: list[str] = []
        for verify_request, by_name in _requests(base, run):
            with progress() as progress_display:
                certified = certify_erasure(engine.passes(progress_display), verify_request, erased)
            for log in certified.logs:
                name = TopicPartition(log["topic"], log["partition"])
                logs[by_name[name]] = {**log, "resumed": name in resumed}
            wrong = (log for log in certified.report.logs if log.status not in (Status.HOLDS, Status.INCOMPLETE))
            errors |= {by_name[log.topic_partition]: f"certificate: {error_line(log)}" for log in wrong}
            elsewhere += certified.report.elsewhere
            notes += (f"{log.name}: {log.left_text}" for log in certified.report.logs if log.remaining)
            notes += (str(file) for file in certified.report.elsewhere if file.records)
        certificate_request = VerifyRequest((), (), base.as_of_ms, include_active=base.include_active)

        def write(failed: Mapping[LogLocation, str]) -> str:
            logs.update({log: failed_log(log.topic_partition, error) for log, error in failed.items()})
            text = document(certificate_request, erased, request.erasure.salt, list(logs.values()), elsewhere)
            write_text(path, text, PRIVATE)
            return status_of(list(logs.values()), elsewhere).value

        status = write({log.location: log.error for log in run if log.error is not None})
        return Certification(status, errors, notes, write)

    return certify


def _requests(
    base: CompactionRequest, run: Sequence[ErasedLog]
) -> Iterator[tuple[VerifyRequest, Mapping[TopicPartition, LogLocation]]]:
    """One request per log directory, with its logs."""
    targets = {} if base.output_dir is None else layout(base.output_dir, base.log_dirs)
    for log_dir in base.log_dirs:
        logs_of_dir = {log.location.topic_partition: log for log in run if log.location.log_dir == log_dir}
        unfailed = {name: log for name, log in logs_of_dir.items() if log.error is None}
        if logs_of_dir:
            yield (
                VerifyRequest(
                    before=(log_dir,) if targets else (),
                    after=(targets.get(log_dir, log_dir),),
                    now_ms=base.as_of_ms,
                    logs=frozenset(unfailed),
                    cleaned_to={name: log.checkpoint for name, log in unfailed.items()},
                    resolver=base.resolver,
                    metadata_dirs=base.metadata_dirs,
                    kafka_version=base.kafka_version,
                    include_active=base.include_active,
                    refused=frozenset(name for name, log in unfailed.items() if log.refused),
                    failed=frozenset(logs_of_dir) - frozenset(unfailed),
                    sources_remain=not targets,
                ),
                {name: log.location for name, log in unfailed.items()},
            )


def main(argv: Sequence[str] | None = None, execute: Execute = erase_records) -> int:
    """Runs the command; returns its exit code. ``argv``: by default those of the process; ``execute`` executes a request."""

    def body(arguments: argparse.Namespace) -> int:
        options = OPTIONS.complete(vars(arguments))
        report, code = execution.run_and_write(partial(run, arguments.log_dirs, options, execute=execute), arguments)
        if report.exit_code and (line := _remaining_line(report)):
            log_lines.print_error(line)
        return code

    return execution.run_command(parser(), argv, body)


def _remaining_line(report: RunReport) -> str:
    """Which records of the keys remain, and the remedy; empty if none is known to remain."""
    hint = "--include-active erases from the last segments, --accept-remaining accepts what remains"
    certificate = report.erasure.get("certificate", {})
    if certificate.get("status") == Status.INCOMPLETE.value:
        message = "records of the keys remain in the log directories"
        return f"{certificate['path']}: certificate: {message}; see the notes; {hint}"
    remaining = report.erasure.get("remaining_records", 0)
    logs = sum(log.remaining_records > 0 for log in report.logs)
    records = f"{counted(remaining, 'record')} of these keys {'remains' if remaining == 1 else 'remain'}"
    return f"{records} in the last segment of {counted(logs, 'log')}; {hint}" if remaining else ""
