"""Recreates ``sample-logs.tar.gz``: ``python -m tests.golden.make_sample [FILE]``.

A real broker and real producers write a log directory of many small segments, the broker is stopped cleanly, and the complete
directory is packed. Record times are fixed if the topic allows it, so that segments roll by ``segment.ms`` at the same offsets
every time; broker times (markers, ``LogAppendTime``, internal topics) and ids are those of the run.
"""

from __future__ import annotations

import gzip
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.golden import SAMPLE, SAMPLE_ROOT
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients, Producer
from tests.kafka.encode import CODECS
from tests.kafka.gateway import Gateway, shared_gateway
from tests.waiting import wait_until

#: 2025-10-09T08:53:20Z
START_MS = 1_760_000_000_000
HOUR_MS = 3_600_000
#: rolls a segment with the broker's own times as soon as the producer pauses
SOON = {"segment.ms": "200"}
PAUSE_S = 0.3
LATER = {"segment.ms": "604800000"}
COMPACT = {"cleanup.policy": "compact", "segment.ms": str(HOUR_MS)}

#: topic -> partitions, settings; each for one situation
TOPICS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    # all codecs, tombstones, headers
    "orders": (3, COMPACT),
    # segments are deleted soon after they are cleaned: both policies in one log
    "customers": (1, {**COMPACT, "delete.retention.ms": "60000"}),
    "prices": (1, {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime", **SOON}),
    "payments": (2, {"cleanup.policy": "compact", **SOON}),
    # its last transaction never ends
    "payments-open": (1, {"cleanup.policy": "compact", **SOON}),
    "clickstream": (2, {"cleanup.policy": "delete", "segment.ms": str(HOUR_MS), "retention.ms": str(48 * HOUR_MS)}),
    # its oldest segments are deleted by size, whatever the date
    "sessions": (1, {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "20000"}),
    # too young to be cleaned for ten years
    "ledger": (1, {**COMPACT, "min.compaction.lag.ms": str(87_600 * HOUR_MS)}),
    "never-written": (1, COMPACT),
}
#: cleaned by the broker once, with few records since: its dirty ratio is below the limit
CLEANED = "inventory"
#: of all topics that may be cleaned, as the broker has them; internal ones have others
CONFIGS: Mapping[str, Mapping[str, str]] = {**{topic: config for topic, (_, config) in TOPICS.items()}, CLEANED: COMPACT}


def main(arguments: list[str]) -> int:
    """Creates the archive at the given path, by default in this checkout."""
    target = Path(arguments[0]) if arguments else SAMPLE
    gateway = shared_gateway()
    with tempfile.TemporaryDirectory(prefix="sample-") as scratch:
        log_dir = Path(scratch) / SAMPLE_ROOT
        write_cleaned_topic(gateway, log_dir)
        write_topics(gateway, log_dir)
        pack(log_dir, target)
    sys.stdout.write(f"{target}: {target.stat().st_size} bytes\n")
    return 0


def write_cleaned_topic(gateway: Gateway, log_dir: Path) -> None:
    """One topic that the broker's own cleaner has cleaned, with its checkpoint and delete horizons."""
    cleaning = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200", "log.cleaner.dedupe.buffer.size": "4194304"}
    with Broker(log_dir, cleaning) as broker:
        clients = Clients(gateway, broker.bootstrap)
        clients.create_topic(CLEANED, 1, {**COMPACT, "min.cleanable.dirty.ratio": "0.001"})
        with clients.producer(compression_type="zstd", linger_ms="500") as producer:
            for hour in range(5):
                send_round(producer, CLEANED, hour, keys=400, records=400)
            # the active segment, which becomes dirty when more is written
            send_round(producer, CLEANED, 5, keys=20, records=20)
        # until the cleaner has reached the active segment
        active = max(int(path.stem) for path in (log_dir / f"{CLEANED}-0").glob("*.log"))
        checkpoint, reached = log_dir / "cleaner-offset-checkpoint", f"{CLEANED} 0 {active}"
        wait_until(lambda: checkpoint.exists() and reached in checkpoint.read_text(encoding="utf-8").splitlines())
        clients.set_config(CLEANED, {"min.cleanable.dirty.ratio": "0.5"})


def write_topics(gateway: Gateway, log_dir: Path) -> None:
    """All other topics, with the cleaner disabled."""
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic, (partitions, config) in TOPICS.items():
            clients.create_topic(topic, partitions, config)
        write_by_time(clients)
        write_prices(clients)
        write_transactions(clients)
        leave_a_transaction_open(clients)
        read_as_groups(clients)
        for topic in ("prices", "payments", "payments-open", "__consumer_offsets"):
            clients.set_config(topic, LATER)


def write_by_time(clients: Clients) -> None:
    """The topics with the producer's timestamps: one segment per hour."""
    for hour in range(10):
        with clients.producer(compression_type=CODECS[hour % len(CODECS)], linger_ms="500", batch_size="1500") as producer:
            for partition in range(3):
                send_round(producer, "orders", hour, keys=150, records=150, partition=partition)
            send_round(producer, "customers", hour, keys=60, records=100)
            send_round(producer, "sessions", hour, keys=40, records=60)
            for partition in range(2):
                send_round(producer, "clickstream", hour, keys=1000, records=60, partition=partition)
            if hour < 3:
                send_round(producer, "ledger", hour, keys=20, records=30)
    with clients.producer(compression_type="lz4") as producer:
        for hour in (6, 7):
            send_round(producer, CLEANED, hour, keys=20, records=20)


def send_round(producer: Producer, topic: str, hour: int, *, keys: int, records: int, partition: int = 0) -> None:
    """The records of an hour: random keys from a fixed seed; one in ten is a tombstone, some have headers."""
    draw = random.Random(f"{topic}-{partition}-{hour}")
    step_ms = HOUR_MS * 9 // 10 // records
    for at in range(records):
        key = f"{topic}-{draw.randrange(keys):05d}".encode()
        value = None if draw.random() < 0.1 else value_of(draw, hour, at)
        headers = [("trace", draw.randbytes(4)), ("origin", None)] if at % 25 == 0 else []
        stamp = START_MS + hour * (HOUR_MS + 1) + at * step_ms + draw.randrange(step_ms // 2)
        producer.send(topic, key, value, partition=partition, timestamp=stamp, headers=headers)
    producer.flush()


def value_of(draw: random.Random, hour: int, at: int) -> bytes:
    """A small JSON document; one in fifty is empty."""
    if at % 50 == 7:
        return b""
    words = " ".join(draw.choice(("red", "green", "blue", "large", "small", "fast")) for _ in range(draw.randrange(1, 12)))
    return f'{{"hour": {hour}, "at": {at}, "amount": {draw.randrange(100_000)}, "note": "{words}"}}'.encode()


def write_prices(clients: Clients) -> None:
    """``LogAppendTime`` is the broker's clock, so segments roll when the producer pauses."""
    draw = random.Random("prices")
    with clients.producer(compression_type="snappy", linger_ms="500", batch_size="1000") as producer:
        for hour in range(6):
            for at in range(120):
                producer.send("prices", b"price-%d" % draw.randrange(80), value_of(draw, hour, at))
            producer.flush()
            time.sleep(PAUSE_S)


def write_transactions(clients: Clients) -> None:
    """Two producers alternate between both partitions; every third transaction aborts, and some cross a segment's end."""
    draw = random.Random("payments")
    with transactional(clients, "payer-1", "gzip") as one, transactional(clients, "payer-2", "none") as two:
        for turn in range(14):
            producer = (one, two)[turn % 2]
            with producer.transaction(commit=turn % 3 != 1):
                for half in range(2):
                    for at in range(15):
                        key = b"payment-%d" % draw.randrange(60)
                        value = None if draw.random() < 0.1 else value_of(draw, turn, at)
                        producer.send("payments", key, value, partition=draw.randrange(2))
                    producer.flush()
                    if half == 0 and turn % 4 == 1:
                        time.sleep(PAUSE_S)
            time.sleep(PAUSE_S / 2)


def leave_a_transaction_open(clients: Clients) -> None:
    """Committed transactions, then one that never ends, then more data after it."""
    draw = random.Random("payments-open")
    topic = "payments-open"
    with transactional(clients, "payer-3", "lz4") as producer:
        for turn in range(4):
            with producer.transaction():
                for at in range(40):
                    producer.send(topic, b"payment-%d" % draw.randrange(30), value_of(draw, turn, at))
            time.sleep(PAUSE_S)
        producer.java.beginTransaction()
        producer.send(topic, b"payment-1", b"never committed")
        producer.flush()
        time.sleep(PAUSE_S)
        with clients.producer() as plain:
            for turn in range(3):
                for at in range(30):
                    plain.send(topic, b"payment-%d" % draw.randrange(30), value_of(draw, turn, at))
                plain.flush()
                time.sleep(PAUSE_S)
        producer.vanish()


@contextmanager
def transactional(clients: Clients, name: str, codec: str) -> Iterator[Producer]:
    """A transactional producer, ready to begin."""
    config = {"transactional_id": name, "compression_type": codec, "linger_ms": "200", "transaction_timeout_ms": "900000"}
    with clients.producer(**config) as producer:
        producer.java.initTransactions()
        yield producer


def read_as_groups(clients: Clients) -> None:
    """Consumer groups commit repeatedly: ``__consumer_offsets`` grows by segments of the same few keys."""
    clients.commit_as_group("billing", "orders", 1)
    clients.set_config("__consumer_offsets", SOON)
    for _ in range(4):
        for group in ("billing", "shipping", "reports"):
            clients.commit_as_group(group, "orders", 12)
        time.sleep(PAUSE_S)


def pack(log_dir: Path, target: Path) -> None:
    """Packs the directory with sorted names, no owner and full seconds, so that the same directory gives the same archive."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        archive.add(log_dir, SAMPLE_ROOT, recursive=False, filter=plain)
        for path in sorted(log_dir.rglob("*")):
            archive.add(path, f"{SAMPLE_ROOT}/{path.relative_to(log_dir)}", recursive=False, filter=plain)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
