"""The combinations of options that are errors. One applies to each command that has its options."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Combination:
    """Options that contradict each other, or that need others.

    :ivar given: an error if one of these keywords is given, with one of ``excluded``, or with none of ``needed``
    :ivar of: commands; by default all that have the options
    """

    given: tuple[str, ...]
    message: str
    hint: str
    excluded: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    of: tuple[str, ...] = ()

    def applies(self, command: str, keywords: Container[str]) -> bool:
        """Whether a command has the options."""
        named = any(name in keywords for name in self.excluded or self.needed) and any(name in keywords for name in self.given)
        return named and (not self.of or command in self.of)


_DROP = "drop one of the two options"
_LIMITS = ("max_duration", "max_rewrite", "min_freed")

COMBINATIONS = (
    Combination(("release_early",), "--release-early: a copy replaces no segments", _DROP, excluded=("output_dir",)),
    Combination(
        ("release_early",), "--release-early removes what --verify compares the result with", _DROP, excluded=("verify",)
    ),
    Combination(
        _LIMITS, "--max-duration, --max-rewrite and --min-freed limit runs in place: a copy has all logs",
        "drop --output-dir, or the limits", excluded=("output_dir",),
    ),
    Combination(
        ("max_duration",), "--max-duration: a dry run cannot say how fast the run would be", _DROP, excluded=("dry_run",)
    ),
    Combination(("accept_loss",), "--accept-loss is an option of --output-layout", "see --help", needed=("output_layout",)),
    Combination(
        ("output_layout",), "--output-layout needs --output-dir", "name a new directory, or a URI", needed=("output_dir",)
    ),
    Combination(
        ("output_layout",), "--output-layout cannot be combined with --replace and --if-done", "name a new directory",
        excluded=("replace", "if_done"),
    ),
    Combination(("output_layout",), "--output-layout cannot be combined with --since", _DROP, excluded=("since",)),
    Combination(
        ("if_done",), "--if-done needs --certificate: only a certificate records which keys were erased",
        "give the same --certificate FILE to each call of the slot", needed=("certificate",),
    ),
    Combination(("replace", "if_done"), "--replace and --if-done need --output-dir", "see --help", needed=("output_dir",)),
    Combination(
        ("if_done",), "--if-done needs --as-of: without it each run has another time", "e.g. --as-of 2026-11-22T02:00Z",
        needed=("as_of",),
    ),
    Combination(
        ("since",), "--since needs --output-dir, and no --dry-run", "see --help", excluded=("dry_run",), needed=("output_dir",)
    ),
    Combination(("certificate",), "--certificate: a dry run changes nothing to certify", _DROP, excluded=("dry_run",)),
    Combination(
        ("keys", "where"), "--keys and --where need --certificate", "see --help", needed=("certificate",), of=("verify",)
    ),
    Combination(
        ("explain",), "--explain takes neither --topic, --partition, --html nor --metrics", "name the partitions to explain",
        excluded=("topics", "partitions", "html", "metrics"),
    ),
    Combination(
        ("over_time",), "--over-time takes neither --explain nor --include-active", "drop one of the options",
        excluded=("explain", "include_active"),
    ),
    *(
        Combination((name,), f"{flag} is an option of --over-time", "add --over-time", needed=("over_time",))
        for name, flag in (
            ("from_time", "--from"), ("to_time", "--to"), ("every", "--every"), ("ahead", "--ahead"), ("fit", "--fit"),
        )
    ),
    Combination(
        ("to_time",), "--to is a time up to --as-of, and not given with --ahead", "use --ahead for the time after it",
        excluded=("ahead",),
    ),
    *(
        Combination((name,), f"{flag} is an option of a count of bytes", "add --bytes", needed=("stored",))
        for name, flag in (("group_by", "--group-by"), ("as_of", "--as-of"))
    ),
    Combination(
        ("stored",), "with a count of bytes, records are those of read_committed", "omit --isolation-level",
        excluded=("isolation_level",),
    ),
    Combination(
        ("broker_logs",), "--broker-log needs --log-dir", "give the log directories of that broker", needed=("log_dirs",)
    ),
    Combination(("offsets",), "--offsets and --timestamp select different records", _DROP, excluded=("timestamp",)),
)  # fmt: skip
