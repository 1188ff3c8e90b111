"""Kafka starts on the sample, serves it, and finds the situations that the sample is meant to have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import unpack_sample
from tests.kafka.broker import Broker
from tests.kafka.cleaner import clean_partition, select
from tests.kafka.clients import Clients
from tests.kafka.gateway import shared_gateway
from tests.kafka.log import KafkaLog, Opening

pytestmark = pytest.mark.kafka

#: a month after the sample's fixed record times, before its broker's own times
AS_OF = Opening(1_760_000_000_000 + 30 * 86_400_000, {"cleanup.policy": "compact"})


@pytest.mark.slow
def test_a_broker_serves_every_topic_of_it(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    with Broker(log_dir) as broker:
        clients = Clients(shared_gateway(), broker.bootstrap)
        counts = {
            topic: len(clients.read_all(topic)) for topic in ("orders", "customers", "prices", "never-written", "sessions")
        }
        payments, committed = clients.read_all("payments"), clients.read_all("payments", committed_only=True)
        assert not broker.errors()
    assert counts == {"orders": 4500, "customers": 1000, "prices": 720, "never-written": 0, "sessions": 600}
    assert 0 < len(committed) < len(payments)
    assert not list(log_dir.glob("*-stray"))


def test_the_cleaner_finds_much_to_remove(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    for log in ("orders-0", "customers-0", "payments-0", "prices-0", "__consumer_offsets-0"):
        stats = clean_partition(shared_gateway(), log_dir / log, AS_OF).stats
        assert stats.messages_written < stats.messages_read / 2, log


def test_the_topic_that_was_cleaned_is_below_the_ratio(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    checkpoint = int((log_dir / "cleaner-offset-checkpoint").read_text(encoding="utf-8").split()[-1])
    with KafkaLog(shared_gateway(), log_dir / "inventory-0", AS_OF) as log:
        assert 0 < select(log, checkpoint).ratio < 0.5


def test_an_open_transaction_holds_back_the_end(tmp_path: Path) -> None:
    with KafkaLog(shared_gateway(), unpack_sample(tmp_path) / "payments-open-0", AS_OF) as log:
        active = log.java.activeSegment().baseOffset()
        assert 0 < select(log, None).first_uncleanable_offset <= log.java.lastStableOffset() < active
