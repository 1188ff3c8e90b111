"""The report of a run, as JSON. It never contains a record's key or value. ``compaction.screen.run_table`` prints it.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``run_id``, ``as_of_ms``, ``dry_run`` | the run, its "now" in milliseconds, whether nothing was written |
| ``status`` | ``done``, ``nothing_to_do`` (no log needed work), ``failed`` (at least one log failed; the others are done) |
| ``schema_version`` | 1; fields are added, never renamed or removed |
| ``totals`` | ``logs`` is their number, ``cleaned``, ``skipped`` and ``failed`` those of each status, ``policy_unknown`` those
    with an unknown policy; the others are the sums of the counts below; ``seconds`` is the elapsed time of the run |
| ``waves`` | one object per wave: the fields of ``WaveReport`` |
| ``kafka_versions`` | the versions whose rules applied, with the number of logs: the fields of ``VersionUsed`` |
| ``erasure`` | only of a run that erased keys: the given and found keys, by salted hashes |
| ``logs`` | one object per log: the fields of ``LogReport`` |
| ``tool``, ``command``, ``options``, ``settings`` | the call and its environment (``compaction.commands.provenance``) |

There are two kinds of bytes and of records. ``disk_bytes_*`` are the bytes of all segments of a log, ``stored_records_*`` and
``removed_records`` the stored records of the cleaned range and those that it has lost; text output shows these. ``bytes_*`` and
``records_*`` count the batches that were read in the cleaned range, and their output, as Kafka's ``CleanerStats`` does. The
figures of a dry run equal those of the real run.
Bytes of a name that are not UTF-8 are escaped (``compaction.printable``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Protocol

from compaction.report import LogReport, LogStatus, RunStatus, VersionUsed, WaveReport
from compaction.results import PageResult
from compaction.screen.run_table import run_lines, summary
from compaction.screen.text_table import Line, Style, wrapped

SCHEMA_VERSION = 1
#: the status of the certificate of a complete erasure
HOLDS = "holds"
#: that of one that leaves records of the keys where it does not reach
INCOMPLETE = "incomplete"
#: the fields of a log that are summed for the run
_COUNTS = tuple(count.name for count in fields(LogReport) if count.type == "int" and count.default == 0)


class Verified(Protocol):
    """The result of a verification, as ``verify`` returns it."""

    @property
    def exit_code(self) -> int:
        """0 if all logs hold."""

    def lines(self, style: Style | None = None) -> Iterable[Line]:
        """As lines of text."""


@dataclass(frozen=True)
class RunReport(PageResult):
    """The outcome of one run.

    ``seconds`` is its elapsed time. ``origin`` has the call and its environment, see ``compaction.commands.provenance``.
    ``erasure`` is that of a run that erased keys, see ``compaction.erasure.erasure_report``.
    ``copied``: the result is, or would be, a copy beside the unchanged source.
    """

    page = "run"
    #: the page has no key, not even a salted hash
    not_on_page: ClassVar[frozenset[str]] = frozenset({"options", "erasure"})

    run_id: str
    as_of_ms: int
    dry_run: bool
    logs: tuple[LogReport, ...]
    seconds: float = 0.0
    kafka_versions: tuple[VersionUsed, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    erasure: Mapping[str, Any] = field(default_factory=dict)
    copied: bool = False
    #: the place and size of a copy in another layout than a log directory's
    written: str = ""
    #: the output directory, if an earlier run of the same request wrote it
    done_before: str = ""
    #: the certificates of ``verify``, one for each log directory
    verified: tuple[Verified, ...] = ()
    waves: tuple[WaveReport, ...] = ()
    #: the number of logs that a run in progress has not done
    remaining_logs: int = 0

    @property
    def status(self) -> RunStatus:
        """Failed if any log failed, else done if any log was cleaned or lost segments to the delete policy."""
        if any(log.status is LogStatus.FAILED for log in self.logs):
            return RunStatus.FAILED
        changed = any(log.status is LogStatus.CLEANED or log.expired_segments for log in self.logs)
        return RunStatus.DONE if changed else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """0: done, or nothing to do. 1: at least one log failed, an erasure is incomplete or its certificate does not hold, or
        the verification found a violation."""
        failed = self.status is RunStatus.FAILED or not self._erased
        return 1 if failed or any(verification.exit_code for verification in self.verified) else 0

    @property
    def _erased(self) -> bool:
        """Whether an erasure has done all that the call demands; a dry run demands nothing."""
        certified = self.erasure.get("certificate", {}).get("status", HOLDS)
        if self.erasure.get("remaining_accepted", False):
            return certified in (HOLDS, INCOMPLETE)
        remaining = 0 if self.dry_run else self.erasure.get("remaining_records", 0)
        return certified == HOLDS and not remaining

    @property
    def totals(self) -> dict[str, int | float]:
        """Logs by status, and the sums of their counts."""
        by_status = {status.value: sum(log.status is status for log in self.logs) for status in LogStatus}
        sums = {name: sum(getattr(log, name) for log in self.logs) for name in _COUNTS}
        unknown = sum(log.policy_unknown for log in self.logs)
        return {"logs": len(self.logs), **by_status, "policy_unknown": unknown, **sums, "seconds": round(self.seconds, 3)}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document as a dictionary."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": self.dry_run,
            "status": self.status.value,
            **self.origin,
            "totals": self.totals,
            "waves": [{**asdict(wave), "seconds": round(wave.seconds, 3)} for wave in self.waves],
            "kafka_versions": [asdict(kafka_version) for kafka_version in self.kafka_versions],
            **({"erasure": dict(self.erasure)} if self.erasure else {}),
            "logs": [{**asdict(log), "status": log.status.value, **_seconds(log)} for log in self.logs],
        }

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """See ``Result``."""
        used_style = style or Style()
        if self.done_before:
            yield from wrapped(self.summary(), used_style)
        else:
            yield from run_lines(self, used_style, all_rows=all_rows, details=details)
        yield from (Line(self.written),) if self.written else ()
        for verification in self.verified:
            yield from verification.lines(used_style)

    def summary(self) -> str:
        """The number of logs, their outcomes, bytes on disk."""
        if self.done_before:
            return f"{self.done_before}: done already by the same request; nothing was written"
        return summary(self)


def _seconds(log: LogReport) -> dict[str, float]:
    return {name: round(getattr(log, name), 3) for name in ("seconds", "task_seconds")}
