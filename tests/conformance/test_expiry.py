"""A broker starts on the segments that remain after ``expire``; ``tests/scenarios`` has its rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.ours import expire_ours
from tests.golden import unpack_sample
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tests.scenarios.writer import DAY, T

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

NOW = T + 10 * DAY


def test_a_broker_starts_on_the_remaining_segments(gateway: Gateway, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    settings = ("--set", "cleanup.policy=delete", "--set", "retention.bytes=15000", "--topic", "[a-z].*")
    reports = expire_ours(log_dir, NOW, *settings)
    expected = {name: log for name, log in reports.items() if log["expired_segments"]}
    assert len(expected) > 5
    starts = {(name.rpartition("-")[0], log["partition"]): log["end_offset"] for name, log in expected.items()}
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        for (topic, partition), start in starts.items():
            begin, end = clients.end_offsets(topic)[partition]
            assert begin == start, topic
            read = [record.offset for record in clients.read_all(topic) if record.partition == partition]
            assert min(read, default=end) >= start, topic
