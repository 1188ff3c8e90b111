"""``erase``: erases the records of given keys from Kafka log directories at rest.

``compaction.erasure.erase_keys`` has the steps of a run.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.api.engine_choice import AUTO, ENCRYPTED, Engine, progress, wave_ended
from compaction.api.inputs import Inputs, NamedSettings, Texts, Time, read_request, read_selector, with_output
from compaction.api.key_inputs import KeyInputs, certified_salt, erased_keys, read_keys
from compaction.api.runs import carried_out, done_before
from compaction.certifier.certificate import Status, error_line
from compaction.certifier.find_pairs import VerifyRequest
from compaction.cli import execution, log_lines, option_groups
from compaction.config.request import CompactionRequest
from compaction.errors import UsageError
from compaction.names import LogLocation, TopicPartition
from compaction.output.target import layout
from compaction.run_report import RunReport
from compaction.storage.text_files import PRIVATE, check_writable, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

_EPILOG = f"""\
{option_groups.CONFIGURATION_HELP}
{option_groups.EXIT_HELP}
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


def parser() -> option_groups.Parser:
    """The command's options."""
    options = option_groups.Parser(_DESCRIPTION, _EPILOG)
    option_groups.add_selectors(options)
    keys = options.add_argument_group("keys")
    option_groups.add_keys(keys)
    keys.add_argument(
        "--on-match", choices=("drop", "tombstone"), default="drop",
        help="drop the records, or replace each by a tombstone of the same key, offset and timestamp, without headers"
        " (default: drop)",
    )  # fmt: skip
    option_groups.add_configuration(options)
    option_groups.add_kafka_version(options)
    group = option_groups.add_run_options(options)
    option_groups.add_output(group)
    certificate = "write a certificate in JSON: the erased records, and the proof that nothing else was changed; exit with 1 if"
    option_groups.add_file(group, "--certificate", f"{certificate} records of the keys remain in the log directories")
    group.add_argument(
        "--include-active", action="store_true",
        help="also erase from the last segment of each log; a broker can append to the result",
    )  # fmt: skip
    return options


def erase(
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
    keys: Texts = (),
    keys_format: str = "text",
    keys_column: str | None = None,
    where: Texts = (),
    on_match: str = "drop",
    kafka_version: str = AUTO,
    dry_run: bool = False,
    include_active: bool = False,
    certificate: str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    output_layout: str | None = None,
    accept_loss: str | None = None,
    replace: bool = False,
    if_done: str | None = None,
    engine: str | Engine = AUTO,
    spark: SparkSession | None = None,
) -> RunReport:
    """Erases all records of some keys from logs at rest, in place or into a copy.

    >>> report = compaction.erase(log_dir, where="prefix=customer-17:", dry_run=True)
    >>> report.to_dict()["erasure"]["keys_found"]
    0

    The parameters are the options of ``kafka-log-compaction erase``, see ``compact``. Keys are never in a report.

    :param keys: files that have the keys
    :param where: patterns of keys
    :param certificate: the file for the certificate of the result
    :raises UsageError: an argument is invalid; nothing was changed
    :raises CompactionError: the run as a whole failed; a log that fails is in the report
    """
    return carry_out(locals(), lambda report: None, erase_records)


def carry_out(parameters: Mapping[str, Any], on_report: Callable[[RunReport], None], execute: Execute) -> RunReport:
    """Runs the command.

    :param parameters: the parameters of ``erase``
    :param on_report: called with the report before the result is written in another layout
    :param execute: see ``erase_records``
    """
    path = None if parameters["certificate"] is None else os.fspath(parameters["certificate"])
    if parameters["if_done"] and path is None:
        message = "--if-done needs --certificate: only a certificate records which keys were erased"
        raise UsageError(message, hint="give the same --certificate FILE to each call of the slot")
    recorded_parameters = {**parameters, "certificate": path, "where": ["[hidden]"] * len(KeyInputs.of(parameters).where)}
    inputs = Inputs.of(
        "erase", recorded_parameters, "include_active", "on_match", "keys_format", "keys_column", "where", "certificate"
    )

    def work(engine: Engine, inputs: Inputs, report_once: Callable[[RunReport], RunReport]) -> RunReport:
        request = _request(inputs, parameters)
        if inputs.if_done and path is not None:
            salt = certified_salt(path, request.erasure.criteria)
            if (earlier_report := done_before(_with_salt(request.base, salt or request.erasure.salt))) is not None:
                return report_once(earlier_report)
        if path is not None:
            request = with_fields(request, certify=_certifier(engine, request, path), certificate=path)
        return report_once(execute(engine, request))

    return carried_out(inputs, erase, work, on_report, ENCRYPTED)


def _request(inputs: Inputs, parameters: Mapping[str, Any]) -> ErasureRequest:
    """The checked request.

    :raises UsageError: an argument is invalid
    """
    from compaction.erasure.erase_keys import ErasureRequest
    from compaction.erasure.find_matches import Erasure

    (criteria, places), salt = read_keys(KeyInputs.of(parameters)), secrets.token_bytes(16)
    base = with_output(inputs, read_request(inputs))
    base = with_fields(_with_salt(base, salt), include_active=parameters["include_active"])
    erasure = Erasure(criteria, salt, parameters["on_match"] == "tombstone")
    partitions = read_selector(inputs).partitions
    internal = frozenset((*inputs.topics, *(partition.topic for partition in partitions)))
    return ErasureRequest(base, erasure, internal, places=places)


def _with_salt(base: CompactionRequest, salt: bytes) -> CompactionRequest:
    """The request whose output records the salt of its run in place of the keys, because keys could be guessed from any hash.
    The certificate with this salt identifies the keys."""
    return base if base.call is None else with_fields(base, call={**base.call, "keys": salt.hex()})


def erase_records(engine: Engine, request: ErasureRequest) -> RunReport:
    """Erases the keys."""
    engine.require()
    from compaction.erasure.erase_keys import erase_keys

    with progress() as progress_display:
        return erase_keys(engine.passes(progress_display), request, on_wave=wave_ended)


def _certifier(engine: Engine, request: ErasureRequest, path: str) -> Certify:
    """Certifies the logs of a run and writes the certificate, also if all failed."""
    if request.base.dry_run:
        raise UsageError("--certificate: a dry run changes nothing to certify", hint="drop one of the two options")
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


def main(argv: Sequence[str] | None = None, run: Execute = erase_records) -> int:
    """Runs the command; returns its exit code. ``argv``: by default those of the process; ``run`` executes a request."""

    def body(arguments: argparse.Namespace) -> int:
        parameters = execution.call_parameters(erase, arguments)
        report, code = execution.run_and_write(partial(carry_out, parameters, execute=run), arguments)
        if report.erasure.get("certificate", {}).get("status") == Status.INCOMPLETE.value:
            message = "records of the keys remain in the log directories"
            hint = "see the notes; --include-active erases from the last segments"
            log_lines.print_error(f"{arguments.certificate}: certificate: {message}; {hint}")
        return code

    return execution.run_command(parser(), argv, body)
