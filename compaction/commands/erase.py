"""``erase``: erases the records of given keys from Kafka log directories at rest.

``compaction.erasure.erase_keys`` has the steps of a run.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from compaction.commands.runs import done_before, logs_done, main_of, run_on_engine
from compaction.config.request import CompactionRequest
from compaction.engine_choice import ENCRYPTED, EngineChoice, surroundings
from compaction.errors import UsageError
from compaction.files.text_files import check_writable
from compaction.options.inputs import Inputs, read_request, read_selector, with_output
from compaction.options.option import CommandOptions
from compaction.options.table import REPORTED, EraseOptions
from compaction.options.values import Texts
from compaction.report import RunReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from compaction.erasure.erase_keys import ErasureRequest
    from compaction.formats.keys import KeyCriteria

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


OPTIONS = CommandOptions("erase", EraseOptions, *REPORTED, description=_DESCRIPTION, epilog=_EPILOG)


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
    :raises UsageError: an argument is invalid; nothing was changed
    :raises CompactionError: the run as a whole failed; a log that fails is in the report
    """
    return run_on_engine(Inputs.of(OPTIONS, options, log_dirs=log_dirs), _run, ENCRYPTED)


def _run(engine: EngineChoice, inputs: Inputs) -> RunReport:
    from compaction.options.keys import erased_keys

    request = _request(inputs)
    if inputs["certificate"] is not None:
        path: str = inputs["certificate"]
        salt = _certified_salt(path, request.erasure.criteria) if inputs["if_done"] else None
        if (earlier_report := done_before(inputs, _with_salt(request.base, salt or request.erasure.salt))) is not None:
            return logs_done(engine, inputs, earlier_report)
        check_writable(path)
        # the certifier must support the patterns
        erased_keys(request.erasure.criteria, tombstones=request.erasure.tombstones)
        request = replace(request, certificate=path)
    return logs_done(engine, inputs, execute(engine, request))


def _request(inputs: Inputs) -> ErasureRequest:
    """The checked request.

    :raises UsageError: an argument is invalid
    """
    from compaction.erasure.erase_keys import ErasureRequest
    from compaction.erasure.find_matches import Erasure
    from compaction.options.keys import read_keys

    (criteria, places), salt = read_keys(inputs), secrets.token_bytes(16)
    base = with_output(inputs, read_request(inputs))
    base = replace(_with_salt(base, salt), include_active=inputs["include_active"])
    erasure = Erasure(criteria, salt, inputs["on_match"] == "tombstone")
    partitions = read_selector(inputs).partitions
    internal = frozenset((*inputs["topics"], *(partition.topic for partition in partitions)))
    return ErasureRequest(base, erasure, internal, places=places, accepts_remaining=inputs["accept_remaining"])


def _with_salt(base: CompactionRequest, salt: bytes) -> CompactionRequest:
    """The request whose output records the salt of its run in place of the keys, because keys could be guessed from any hash.
    The certificate with this salt identifies the keys."""
    return base if base.call is None else replace(base, call={**base.call, "keys": salt.hex()})


def _certified_salt(path: str, criteria: KeyCriteria) -> bytes | None:
    """The salt of the run that wrote a certificate; ``None`` if there is no certificate of these keys.

    :raises CompactionError: the certificate has changed since it was written
    """
    from compaction.options.keys import read_sealed

    try:
        return bytes.fromhex(read_sealed(path, criteria)["salt"])
    except UsageError:
        return None


def execute(engine: EngineChoice, request: ErasureRequest) -> RunReport:
    """Erases the keys."""
    with engine.running() as start:
        from compaction.erasure.erase_keys import erase_keys

        return erase_keys(start, request, on_wave=surroundings().on_wave)


main = main_of(OPTIONS)
