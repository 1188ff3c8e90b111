"""A real broker on a directory that was changed while it was stopped, and real clients of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kafka.broker import Broker, host_partition
from tests.kafka.cleaner import clean_partition
from tests.kafka.clients import Clients, Consumed
from tests.kafka.encode import Batch, Record
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

T = 1_700_000_000_000
HOUR = 3_600_000
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "600"}
NOW = Opening(T + 720 * HOUR, COMPACT)


class Written(NamedTuple):
    """A stopped broker's log directory, and what consumers read of it before, with and without aborted records."""

    log_dir: Path
    all: list[Consumed]
    committed: list[Consumed]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, gateway: Gateway) -> Written:
    """A cleanly closed log directory: 60 transactional records of 10 keys over six hours, every second transaction aborted."""
    log_dir = tmp_path_factory.mktemp("broker") / "logs"
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        clients.create_topic("t", 1, COMPACT)
        with clients.producer(transactional_id="x", compression_type="zstd") as producer:
            producer.java.initTransactions()
            for round_ in range(6):
                with producer.transaction(commit=round_ % 2 == 0):
                    for at in range(10):
                        key, time = b"k%d" % at, T + round_ * (HOUR + 1) + at
                        producer.send("t", key, b"v%d" % round_, timestamp=time, headers=[("null", None), ("h", b"1")])
        return Written(log_dir, clients.read_all("t"), clients.read_all("t", committed_only=True))


@pytest.fixture
def produced(written: Written) -> Path:
    """Its log directory."""
    return written.log_dir


def test_consumers_see_keys_values_headers_and_times(written: Written) -> None:
    assert (len(written.all), len(written.committed)) == (60, 30)
    assert written.all[0] == (0, 0, T, b"k0", b"v0", (("null", None), ("h", b"1")))


def test_a_broker_adopts_a_partition_that_was_cleaned_at_rest(produced: Path, gateway: Gateway) -> None:
    clean_partition(gateway, produced / "t-0", NOW)
    with Broker(produced) as broker:
        left = Clients(gateway, broker.bootstrap).read_all("t", committed_only=True)
        assert not broker.errors()
    assert [(one.key, one.value) for one in left] == [(b"k%d" % at, b"v4") for at in range(10)]
    assert len({one.offset for one in left}) == 10


def test_a_broker_serves_a_partition_that_replaced_its_own(produced: Path, gateway: Gateway, tmp_path: Path) -> None:
    with KafkaLog(gateway, tmp_path / "t-0", NOW) as log:
        log.append(Batch([Record(5, T, b"other", b"log")]).encode())
    host_partition(produced, tmp_path / "t-0")
    with Broker(produced) as broker:
        assert [one[1:5] for one in Clients(gateway, broker.bootstrap).read_all("t")] == [(5, T, b"other", b"log")]


def test_flushed_records_survive_kill_9(tmp_path: Path, gateway: Gateway) -> None:
    broker = Broker(tmp_path / "logs")
    clients = Clients(gateway, broker.bootstrap)
    clients.create_topic("t")
    with clients.producer() as producer:
        producer.send("t", b"k", b"v")
    broker.kill()
    assert not broker.running
    assert not (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    with Broker(tmp_path / "logs") as again:
        assert [one.value for one in Clients(gateway, again.bootstrap).read_all("t")] == [b"v"]
    broker.close()
