"""Recreates ``killed-brokers.tar.gz``: ``python -m tests.golden.make_killed``.

A real broker and real producers write logs and the broker is killed, once with Kafka's defaults and once with
``log.preallocate=true``. The archive has what it left of three topics, with holes as holes, and in ``expected.json`` what is
served after Kafka has recovered these logs and its cleaner has cleaned them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conformance.kafkas import soon_after
from tests.conformance.test_brokers import COMPACT, SEGMENT_BYTES, write
from tests.golden import KILLED, KILLED_DIRS, served_by
from tests.kafka.broker import Broker
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.log import Opening
from tests.scenarios.runner import offsets_of

CONFIG = {**COMPACT, "internal.segment.bytes": SEGMENT_BYTES}
TOPICS = ("plain", "txn", "open")
#: the high watermark is written every five seconds otherwise: what is above it is not cleaned, also after a kill
NEVER_MARKED = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
OVERRIDES: dict[str, dict[str, str]] = {"default": {}, "preallocating": {"log.preallocate": "true"}}


def main() -> int:
    """Creates the archive in this checkout."""
    gateway = shared_gateway()
    with tempfile.TemporaryDirectory(prefix="killed-") as scratch:
        root, expected = Path(scratch), {}
        for name in KILLED_DIRS:
            expected[name] = _one(gateway, root, name)
        (root / "expected.json").write_text(json.dumps(expected, indent=1))
        names = [*KILLED_DIRS, "expected.json"]
        subprocess.run(["tar", "--sparse", "--format=gnu", "-C", root, "-czf", KILLED, *names], check=True)
    print(f"{KILLED}: {KILLED.stat().st_size} bytes")
    return 0


def write_and_kill(gateway: Gateway, log_dir: Path, overrides: Mapping[str, str]) -> None:
    """Superseded records, aborted and committed transactions, and in ``open`` one that has not ended."""
    with Broker(log_dir, {**NEVER_MARKED, **overrides}) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for topic in TOPICS:
            clients.create_topic(topic, 1, CONFIG)
        write(clients, dict.fromkeys(TOPICS))
        with clients.producer(transactional_id="y") as producer:
            producer.java.initTransactions()
            producer.java.beginTransaction()
            producer.send("open", b"k1", b"not committed")
            producer.flush()
            with clients.producer() as other:
                for at in range(60):
                    other.send("open", b"k%d" % (at % 5), b"%d" % at * 20)
            broker.kill()
            producer.vanish()


def _one(gateway: Gateway, root: Path, name: str) -> dict[str, Any]:
    """Writes the log directory ``name``; what is expected of it."""
    written, left = root / f"written-{name}", root / name
    write_and_kill(gateway, written, OVERRIDES[name])
    left.mkdir()
    for path in written.iterdir():
        if path.is_file() and path.name != ".lock":
            shutil.copy2(path, left)
    for topic in TOPICS:
        subprocess.run(["cp", "--archive", "--sparse=always", written / f"{topic}-0", left], check=True)
    points = offsets_of(left, "recovery_points")
    now_ms = soon_after(left)
    logs = {}
    for topic in TOPICS:
        theirs = Path(shutil.copytree(left / f"{topic}-0", root / f"kafkas-{name}" / f"{topic}-0"))
        opening = Opening(now_ms, CONFIG, clean_shutdown=False, recovery_point=points.get(topic, 0))
        if not isinstance(clean_partition_if_due(gateway, theirs, opening, None), CleanResult):
            raise SystemExit(f"{name}: Kafka did not clean {topic}")
        logs[topic] = served_by(theirs)
    return {"as_of_ms": now_ms, "config": CONFIG, "logs": logs}


if __name__ == "__main__":
    raise SystemExit(main())
