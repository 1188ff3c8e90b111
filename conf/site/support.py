"""Writes ``docs/support.md``, what is supported: ``python conf/site/support.py``. Rows come from the tables of the code where it has
some: layouts, stores, rules of versions, engines, limits.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from compaction.exports import LAYOUTS
from compaction.files.filesystem import DISK, OBJECTS, SCHEMES
from compaction.formats.record_batch import MAX_PLAIN_BYTES
from compaction.kernels.batches import LARGEST_SIZE
from compaction.options.table import CONNECT, LOCAL, SPARK
from compaction.rules.kafka_rules import NEWEST, OLDEST, RULES
from compaction.startup import OLDEST_JAVA

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/support.md"

_WIDTH = 140
#: of tests/object_store, by the names that the library knows; the others use the same library
_TESTED_SCHEMES = ("s3", "gs")
_LAYOUTS = {
    "aiven": ("tiered storage of [Aiven's plugin](exports.md#tiered-storage)", "plain, zstd, encrypted"),
    "local-tiered": ("tiered storage of Kafka's `LocalTieredStorage`", "all"),
    "backup": ("sets of [kafka-backup](exports.md#backup-sets)", "plain, zstd, lz4"),
}
_RULES = {
    "tombstone_retention": "tombstones and markers are dropped by",
    "last_batch": "last batch of a round, if emptied",
    "old_format": "batches of magic 0 and 1",
    "groups_empty_segments": "an empty segment joins any group",
    "limits_decompressed_records": "`max.decompressed.message.bytes` applies",
    "producer_expiration": "an idle producer expires by",
}


class Kip(NamedTuple):
    """A proposal of Kafka.

    :ivar settings: those of the code that are its effect
    :ivar tests: where that is tested; a path
    """

    number: str
    title: str
    state: str
    meaning: str
    tests: str = ""
    settings: tuple[str, ...] = ()


APPLIED, READ, NOT_APPLICABLE = "applied", "read", "not applicable"
KIPS = (
    Kip("32, 33", "timestamps, time index", APPLIED, "read, and built for cleaned segments", "tests/formats"),
    Kip("58", "compaction lag", APPLIED, "younger records are not cleaned", "tests/scenarios/planning.txt", ("min.compaction.lag.ms",)),
    Kip("87", "a flag for tombstones", NOT_APPLICABLE, "no version of Kafka has it: a tombstone is a record without a value"),
    Kip("98", "transactions", APPLIED, "aborted data is dropped, open transactions bound the range", "tests/scenarios/transactions.txt"),
    Kip("101, 279", "leader epochs", APPLIED, "checkpoints are kept, and compared with the batches", "tests/recovery/test_recover.py"),
    Kip("107", "deletion of records", APPLIED, "segments below the log start are deleted", "tests/scenarios/deletion.txt"),
    Kip("110", "zstd", APPLIED, "read and written, as gzip, snappy and lz4", "tests/formats/test_codecs.py"),
    Kip("113, 858", "several log directories", APPLIED, "all in one call; directories marked `-future`, `-stray` or `-delete` are skipped", "tests/commands/calls/unknown_policy.txt"),
    Kip("280", "compaction by timestamp or header", NOT_APPLICABLE, "no version of Kafka has it, and a broker's own cleaner would undo the result"),
    Kip("354", "largest compaction lag", APPLIED, "a log is cleaned even if few of its bytes are dirty", "tests/scenarios/planning.txt", ("max.compaction.lag.ms",)),
    Kip("390", "compression levels", NOT_APPLICABLE, "rewritten batches have the default level of their codec, as in Kafka's cleaner"),
    Kip(
        "405", "tiered storage", READ,
        "[exports](exports.md) are read and written anew; in a broker's directory, `expire` deletes nothing of a tiered topic",
        "tests/kafka/test_tiered_storage.py", ("remote.storage.enable",),
    ),
    Kip("500, 595, 630", "KRaft", READ, "versions, topics and settings come from the metadata log, which is never cleaned", "tests/log/settings"),
    Kip("534", "delete horizon", APPLIED, "by the rules of 3.1 and newer", "tests/scenarios/cleaning.txt", ("delete.retention.ms",)),
    Kip("724", "v2 alone", APPLIED, "by the rules of 4.0 and newer, magic 0 and 1 become v2 when they lose records", "tests/conformance/test_versions.py"),
    Kip("848", "consumer groups", READ, "their offsets topic is cleaned by its policy, as any other, and printed by `dump-log`", "tests/conformance/test_dump.py"),
    Kip("854", "expiration of producers", APPLIED, "by the rules of 3.4 and newer", "tests/log/settings/test_settings.py"),
    Kip("890", "transactions that bump epochs", APPLIED, "a marker may have a newer epoch than its data", "tests/scenarios/transactions.txt"),
    Kip("932", "share groups", READ, "their state topic is cleaned by its policy, as any other, and printed by `dump-log`", "tests/conformance/test_dump.py"),
    Kip("1150", "diskless topics", NOT_APPLICABLE, f"not in Kafka up to {NEWEST}; such a topic has no log directory"),
    Kip("1266", "compacted tiered metadata", NOT_APPLICABLE, f"Kafka up to {NEWEST} creates the topic with the policy `delete`; the policy that it has is applied"),
    Kip("1272", "compacted tiered topics", NOT_APPLICABLE, f"Kafka up to {NEWEST} tiers no compacted topic; uploads are compacted here into new ones"),
)  # fmt: skip

#: Python, Java, PySpark and the tests; docs/install.md has the same
TESTED = (
    ("3.11", "17", "4.3", "all, with Kafka's classes and brokers"),
    ("3.10", "17", "4.0", "`tests/spark`; the wheel on the sample logs"),
    ("3.12", "17", "4.1", "`tests/spark`; the wheel on the sample logs"),
    ("3.13", "17", "4.2", "`tests/spark`; the wheel on the sample logs"),
)
PLATFORMS = (
    ("one machine, Linux", "tested", "tested", "tested"),
    ("one machine, macOS", "no: worker processes need Linux's memory files", "not tried; tested without Linux's own calls", "not tried"),
    ("`local-cluster`", "no", "tested", "tested"),
    ("standalone cluster", "no", "tested", "not tried"),
    ("[Kubernetes](kubernetes.md)", "not tried", "not tried", "not tried"),
    ("YARN", "no", "not tried", "not tried"),
    ("EMR, Dataproc, Glue, Fabric", "no", "read", "EMR Serverless: read"),
    ("Databricks", "no", "classic compute: read", "serverless: read, and it may not fit"),
)
UNSUPPORTED = (
    ("a log that a broker has open, in place", "refused by its lock: copy a snapshot, or stop the broker"),
    ("work in place in a store or an export", "refused: a rename is not atomic there; the cluster's metadata of an export would no longer be true"),
    (
        f"an output segment of more than {LARGEST_SIZE:,} bytes",
        f"its log fails, unchanged. Kafka's cleaner gives the log up, too, up to {NEWEST}; Kafka's trunk divides the output (KAFKA-20036), and"
        " a rule set comes with that release",
    ),
    (f"a batch of more than {MAX_PLAIN_BYTES >> 20} MiB, decompressed", "its log fails: memory is bounded"),
    (f"Kafka before {OLDEST} or after {NEWEST}", "a version that is found gets the rules of the nearest known one, and the report says so; `--kafka-version` refuses it"),
    ("behaviour of Kafka's cleaner that loses data, and the density of indexes", "not mirrored: [versions](versions.md#rules)"),
    ("settings in ZooKeeper", "give them by `--config` or `--set`; nothing is deleted without a policy that is known"),
    ("`@metadata-0` of KRaft 2.8", "its format changed in 3.0"),
    ("sets of kafka-backup with segments in JSON", "refused: of its first versions"),
    ("records of Kafka Connect's sinks", "they have no batches to clean; [a query](exports.md#sinks-of-kafka-connect) finds the newest"),
    ("other layouts of objects, other brokers than Apache Kafka's", "no reader: [add one](how-to-add.md#an-export-layout) as a plug-in"),
    ("Windows", "Python has no `fcntl` there, by which log directories and caches are locked"),
)  # fmt: skip


def layouts() -> list[str]:
    """What each command does with each place of logs."""
    tested, others = (
        [f"`{name}:`" for name, scheme in SCHEMES.items() if (scheme.name in _TESTED_SCHEMES) is known]
        for known in (True, False)
    )
    rows = [
        ("log directory on a disk", "its path", "all", *_commands(in_place=DISK.renames), "a log directory"),
        (
            "log directory in a [store](object-stores.md)", f"{', '.join(tested)}; not tried: {', '.join(others)}", "all",
            *_commands(in_place=OBJECTS.renames), "a log directory",
        ),
    ]  # fmt: skip
    if set(_LAYOUTS) != set(LAYOUTS):
        raise ValueError(f"layouts without a row: {set(_LAYOUTS) ^ set(LAYOUTS)}")
    for name, (title, read) in _LAYOUTS.items():
        lossy = ", with `--accept-loss`" if not LAYOUTS[name].is_tiered else ""
        rows.append((title, f"`{name}+URI`", read, *_commands(in_place=False), f"`--output-layout {name}`{lossy}"))
    return table(("layout", "address", "read", "compact, erase, expire", "verify", "written as"), rows)


def _commands(*, in_place: bool) -> tuple[str, str]:
    return ("in place, copy", "copies, runs in place") if in_place else ("copy", "copies")


def rule_sets() -> list[str]:
    """The rules of each version."""
    rows = []
    ordered = sorted(RULES, key=lambda name: [*map(int, name.split(".")), 99])
    for rules, names in groupby(ordered, RULES.__getitem__):
        described, listed = rules.described(), list(names)
        if set(described) - {"producer_expiration_default_ms"} != set(_RULES):
            raise ValueError("a rule has no column")
        # a minor version beside its own patches is the newest of them
        versions = [name for name in listed if not any(other.startswith(f"{name}.") for other in listed)]
        rows.append(("–".join(dict.fromkeys((versions[0], versions[-1]))), *(_shown(described[name]) for name in _RULES)))
    return table(("Kafka", *_RULES.values()), rows)


def _shown(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value}`" if "." in str(value) else str(value)


def kips() -> list[str]:
    """The state of each proposal."""
    rows = [
        (
            kip.number,
            kip.title,
            kip.state,
            ": ".join([*(f"`{name}`" for name in kip.settings), kip.meaning]),
            f"`{kip.tests}`" if kip.tests else "–",
        )
        for kip in KIPS
    ]
    return table(("KIP", "subject", "state", "here", "tests"), rows)


def page() -> str:
    """The page."""
    pyspark = re.search(r'"pyspark>=(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyspark is not None  # noqa: S101 - the dependency has this form
    parts: Sequence[str | list[str]] = [
        "# What is supported",
        "This page answers whether your logs, your Kafka and your platform are supported, and names what is not, with the reason."
        " `conf/site/support.py` writes it, from the tables of the code where it has some.",
        "## Layouts",
        layouts(),
        "`dry-run`, `count`, `dump-log`, `read_arrow` and the [data source](data-source.md) read all of them. [Exports](exports.md) says against which objects each layout is verified.",
        "## Versions of Kafka",
        "Each log is cleaned by the rules of its cluster's version. [Versions](versions.md) explains the rules, and has the comparisons with"
        " each version's own cleaner.",
        rule_sets(),
        "## KIPs",
        "Applied: a run follows it. Read: its files and records are understood. Not listed is what changes only protocols, clients or controllers.",
        kips(),
        "## Engines and platforms",
        table(("platform", f"`{LOCAL}`", f"`{SPARK}`", f"`{CONNECT}`"), PLATFORMS),
        "Read follows from a platform's documentation and was not tried; [clusters](clusters.md#where-it-runs) says more of each."
        f" `{CONNECT}` needs Spark 4.1 or newer.",
        "## Python, Java and Spark",
        table(("Python", "Java", "PySpark", "tests"), TESTED),
        f"Required are Python 3.10, PySpark {pyspark[1]} and, only on Spark, Java {OLDEST_JAVA}, or newer ones; of Java 25 only 25.0.3 and later,"
        " because older ones can corrupt data (JDK-8377811).",
        "## Not supported",
        table(("what", "reason, and what happens"), UNSUPPORTED),
    ]  # fmt: skip
    return "\n\n".join(textwrap.fill(part, _WIDTH) if isinstance(part, str) else "\n".join(part) for part in parts) + "\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """The lines of a table."""
    return ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
