"""Erases the records of given keys from Kafka log directories at rest.

Run it with ``spark-submit jobs/erase.py --help``. ``compaction.erasure.erase_keys`` has the steps of a run.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    # a script: of a checkout, or of an installation, in which this package is compaction.jobs
    checkout = Path(__file__).resolve().parent.parent
    __package__ = "jobs" if (checkout / "compaction").is_dir() else "compaction.jobs"
    if __package__ == "jobs":
        sys.path.insert(0, str(checkout))

from compaction.certifier.certificate import Status  # noqa: E402 - the checkout must be on the path first
from compaction.certifier.verify_request import VerifyRequest  # noqa: E402
from compaction.config.request import CompactionRequest  # noqa: E402
from compaction.errors import UsageError  # noqa: E402
from compaction.fs.text_files import PRIVATE, check_writable, write_text  # noqa: E402
from compaction.names import LogLocation, TopicPartition  # noqa: E402
from compaction.output.publish import layout  # noqa: E402
from compaction.report import RunReport  # noqa: E402

from . import _arguments, _command, _keys, _logging, _options, _output_layout  # noqa: E402
from ._certificates import certified_salt  # noqa: E402
from ._command import SessionFactory  # noqa: E402
from .verify import error_line  # noqa: E402

if TYPE_CHECKING:
    from compaction.certifier.find_remains import Remains
    from compaction.erasure.certify_result import Certification, Certify, ErasedLog
    from compaction.erasure.erase_keys import ErasureRequest

_DESCRIPTION = """\
Erase all records of given keys from logs at rest, whatever their cleanup.policy: from clean and
dirty segments, of committed, aborted and open transactions. Offsets, all other records,
transactions, producers' sequences and log end offsets remain; a broker loads the result, and
producers and consumers continue. Segments without such a record are not written.

The replaced files are removed at once, not after file.delete.delay.ms, and so are leftovers of
earlier runs. The last segment of a log is its active one, and only erased from with
--include-active; without it, the records of the keys in it are counted. Keys are compared byte by
byte, and never printed: the report has them as SHA-256 with a salt of the run. docs/erase.md says
what is erased, and what no run can reach.
"""

_EPILOG = f"""\
{_options.CONFIGURATION_HELP}
{_options.EXIT_HELP}
examples:
  How many records have these keys, and where?
    kafka-log-compaction erase --log-dir /backup/kafka --keys keys.txt --dry-run

  Erase them from a stopped broker's directory, including the last segments:
    kafka-log-compaction erase --log-dir /var/lib/kafka --keys keys.txt --include-active \\
        --report erased.json

  Leave a tombstone for each record, so that consumers learn of it:
    kafka-log-compaction erase --log-dir /backup/kafka --topic customers --on-match tombstone \\
        --where prefix=customer-17:

  Write a copy without the keys of a column to another place:
    kafka-log-compaction erase --log-dir /exports/orders --include-active --keys requests.parquet \\
        --keys-column customer_id --output-dir /exports/orders-erased
"""


def parser() -> _options.Parser:
    """The command's options."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    _options.add_selectors(options)
    keys = options.add_argument_group("which keys")
    _keys.add_keys(keys)
    keys.add_argument(
        "--on-match", choices=("drop", "tombstone"), default="drop",
        help="drop the records, or replace each by a tombstone of the same key, offset and timestamp, without headers"
        " (default: drop)",
    )  # fmt: skip
    _options.add_configuration(options)
    _options.add_kafka_version(options)
    group = _options.add_run_options(options)
    _options.add_output(group)
    certificate = "certify the result: write in JSON what was erased, and that nothing else was; exit with 1 if records of the"
    _options.add_file(group, "--certificate", f"{certificate} keys remain, also where the run did not erase")
    group.add_argument(
        "--include-active", action="store_true",
        help="erase from the last segment of each log, too; the result is one that a broker appends to",
    )  # fmt: skip
    return options


def read_request(arguments: argparse.Namespace) -> ErasureRequest:
    """The checked request.

    :raises UsageError: an argument is invalid
    """
    from compaction.erasure.erase_keys import ErasureRequest
    from compaction.erasure.find_matches import Erasure

    if arguments.if_done and arguments.certificate is None:
        what = "--if-done needs --certificate: an output does not say which keys were erased, its certificate does"
        raise UsageError(what, hint="give the same --certificate FILE to each call of the slot")
    (criteria, places), salt = _keys.read_keys(arguments), secrets.token_bytes(16)
    base = _arguments.read_request(arguments)
    base = _arguments.with_output("erase", arguments, base)
    base = replace(_with_salt(base, salt), include_active=arguments.include_active)
    erasure = Erasure(criteria, salt, arguments.on_match == "tombstone")
    partitions = _arguments.read_selector(arguments).partitions
    internal = frozenset((*arguments.topic, *(each.topic for each in partitions)))
    return ErasureRequest(base, erasure, internal, places=places)


def _with_salt(base: CompactionRequest, salt: bytes) -> CompactionRequest:
    """The request whose output records the salt of its run in place of the keys, of which any hash could be guessed. Only the
    certificate with this salt says which keys they were."""
    return base if base.call is None else replace(base, call={**base.call, "keys": salt.hex()})


def erase(session_factory: SessionFactory, request: ErasureRequest) -> RunReport:
    """Erases the keys. Spark is imported here and not before, so that usage errors appear at once.

    :raises UsageError: there is no Java that Spark runs on; nothing was changed
    """
    _command.require_engine(session_factory)
    from compaction.erasure.erase_keys import erase_keys

    with _command.progress() as progress:
        return erase_keys(_command.passes(session_factory, progress), request)


def _certifier(session_factory: SessionFactory, request: ErasureRequest, path: str) -> Certify:
    """Certifies the logs of a run and writes the certificate, also if all failed."""
    if request.base.dry_run:
        raise UsageError("--certificate: a dry run changes nothing that could be certified", hint="drop one of the two options")
    check_writable(path)
    base, erased = request.base, _keys.erased_keys(request.erasure.criteria, tombstones=request.erasure.tombstones)

    def certify(run: Sequence[ErasedLog]) -> Certification:
        from compaction.certifier.erasure_certificate import document, failed_log, status_of
        from compaction.erasure.certify_result import Certification
        from compaction.spark.certify_job import certify_erasure

        # whatever happens now, the file is not that of an earlier run
        Path(path).unlink(missing_ok=True)
        resumed = {log.location.topic_partition for log in run if log.resumed}
        errors: dict[LogLocation, str] = {}
        logs: dict[LogLocation, Mapping[str, Any]] = {}
        elsewhere: list[Remains] = []
        notes: list[str] = []
        for asked, by_name in _requests(base, run):
            with _command.progress() as progress:
                found = certify_erasure(session_factory, asked, erased, progress)
            for log in found.logs:
                name = TopicPartition(log["topic"], log["partition"])
                logs[by_name[name]] = {**log, "resumed": name in resumed}
            wrong = (log for log in found.report.logs if log.status not in (Status.HOLDS, Status.INCOMPLETE))
            errors |= {by_name[log.topic_partition]: f"certificate: {error_line(log)}" for log in wrong}
            elsewhere += found.report.elsewhere
            notes += (f"{log.name}: {log.left_text}" for log in found.report.logs if log.remaining)
            notes += (str(each) for each in found.report.elsewhere if each.records)
        made = VerifyRequest((), (), base.as_of_ms, include_active=base.include_active)

        def write(failed: Mapping[LogLocation, str]) -> str:
            logs.update({log: failed_log(log.topic_partition, error) for log, error in failed.items()})
            text = document(made, erased, request.erasure.salt, list(logs.values()), elsewhere)
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
        of_dir = {log.location.topic_partition: log for log in run if log.location.log_dir == log_dir}
        here = {name: log for name, log in of_dir.items() if log.error is None}
        if of_dir:
            yield VerifyRequest(
                before=(log_dir,) if targets else (),
                after=(targets.get(log_dir, log_dir),),
                now_ms=base.as_of_ms,
                logs=frozenset(here),
                cleaned_to={name: log.checkpoint for name, log in here.items()},
                resolver=base.resolver,
                metadata_dirs=base.metadata_dirs,
                kafka_version=base.kafka_version,
                include_active=base.include_active,
                refused=frozenset(name for name, log in here.items() if log.refused),
                failed=frozenset(of_dir) - frozenset(here),
                sources_remain=not targets,
            ), {name: log.location for name, log in here.items()}


def main(argv: Sequence[str] | None = None, run: Callable[[SessionFactory, ErasureRequest], RunReport] = erase) -> int:
    """Runs the command; returns its exit code.

    :param argv: the arguments; ``None``: those of the process
    :param run: executes a request
    """

    def body(arguments: argparse.Namespace) -> int:
        request = read_request(arguments)
        base: CompactionRequest = request.base
        if arguments.if_done:
            salt = certified_salt(arguments.certificate, request.erasure.criteria)
            asked = _with_salt(base, salt or request.erasure.salt)
            if _command.is_done(asked, arguments):
                return 0
        session = _command.Engine.of(arguments, "erase", _command.ENCRYPTED)
        if arguments.certificate is not None:
            from compaction.startup.java_version import require_java

            # large logs are certified on Spark
            require_java()
            certify = _certifier(session, request, arguments.certificate)
            request = replace(request, certify=certify, certificate=arguments.certificate)
        report = run(session, request)
        code = _command.write_report(report, arguments)
        if report.erasure.get("certificate", {}).get("status") == Status.INCOMPLETE.value:
            what = "records of the keys remain where the run did not erase"
            hint = "the notes say where; --include-active erases from the last segments"
            _logging.print_error(f"{arguments.certificate}: certificate: {what}; {hint}")
        return code

    return _command.run_command(parser(), argv, lambda arguments: _output_layout.in_layout(arguments, body))


if __name__ == "__main__":
    sys.exit(main())
