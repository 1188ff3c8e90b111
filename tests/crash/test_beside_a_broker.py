"""A real broker on the directories: after the job was stopped, while the job runs, running during a dry run, and on copies of
snapshots (a sample of ``tests.crash.snapshots``)."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import compaction
from tests.crash.snapshots import Served, check_snapshots, served
from tests.crash.surroundings import run, run_until
from tests.golden import unpack_sample
from tests.kafka.broker import Broker, BrokerError
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

TOPICS = ("orders", "payments")
OPTIONS = ("--topic", *TOPICS, "--as-of-ms", "1760100000000", "--set", "file.delete.delay.ms=0")


def batches(log_dir: Path) -> dict[str, bytes]:
    """All batches of each log, in any of its segments."""
    logs = [path for topic in TOPICS for path in log_dir.glob(f"{topic}-*")]
    return {log.name: b"".join(path.read_bytes() for path in sorted(log.glob("*.log"))) for log in logs}


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return unpack_sample(tmp_path)


#: changes before which the job is stopped; ``tests.output.test_states_against_kafka`` has all, without a broker
STOPS: dict[str, tuple[str, int]] = {
    "before the commit point": (r"rename to \.compaction-swap:", 0),
    "after the commit point": (r"rename to .*\.log\.swap:", 0),
    "among the sources": (r"rename to .*\.log\.deleted:", 1),
    "in the second group": (r"rename to .*\.timeindex\.swap:", 1),
    "before the checkpoint": ("rename to cleaner-offset-checkpoint:", 0),
}


class Undisturbed(NamedTuple):
    """The changes of a run, the committed records served before and after it, the log end offsets, and its logs' batches."""

    steps: list[str]
    originals: Served
    survivors: Served
    ends: object
    batches: dict[str, bytes]


@pytest.fixture(scope="module")
def undisturbed(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    before, after = (unpack_sample(tmp_path_factory.mktemp(name)) for name in ("before", "after"))
    ended, steps = run_until(after, None, *OPTIONS)
    assert ended is not None and ended.code == 0, ended
    batches_after = batches(after)
    originals, ends = served(gateway, before, *TOPICS, committed_only=True)
    survivors, ends_after = served(gateway, after, *TOPICS, committed_only=True)
    assert ends == ends_after
    assert survivors.items() < originals.items()
    assert {topic for topic, _, _ in originals.keys() - survivors.keys()} == set(TOPICS)
    return Undisturbed(steps, originals, survivors, ends, batches_after)


@pytest.mark.parametrize(("sign", "later"), STOPS.values(), ids=STOPS)
def test_a_broker_started_after_a_stop_serves_every_survivor(
    sign: str, later: int, undisturbed: Undisturbed, log_dir: Path, gateway: Gateway
) -> None:
    at = [number for number, step in enumerate(undisturbed.steps) if re.match(sign, step)][later]
    ended, done = run_until(log_dir, at, *OPTIONS)
    assert ended is None and len(done) == at
    found, found_ends = served(gateway, log_dir, *TOPICS, committed_only=True)
    assert found_ends == undisturbed.ends
    assert undisturbed.survivors.items() <= found.items() <= undisturbed.originals.items()
    assert run(log_dir, *OPTIONS).code == 0
    assert batches(log_dir) == undisturbed.batches


# a broker that does not start leaves its scratch directory to the garbage collector
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_a_broker_does_not_start_while_the_job_runs(log_dir: Path) -> None:
    errors = []

    def start() -> None:
        try:
            Broker(log_dir)
        except BrokerError as error:
            errors.append(str(error))

    assert run(log_dir, *OPTIONS, events={"before_rewrite": start}).code == 0
    assert len(errors) == 1
    assert "lock" in errors[0].lower()
    gc.collect()


def test_the_job_refuses_the_directory_of_a_running_broker(log_dir: Path) -> None:
    with Broker(log_dir) as broker:
        before = _files(log_dir)
        for options in ((), ("--output-dir", log_dir.parent / "out")):
            ended = run(log_dir, *OPTIONS, *options)
            assert ended.code == 2
            who = f"process {broker.pid} (java) holds .lock"
            assert f"error: {log_dir}: log directory is in use: {who}; stop the broker" in ended.err
        assert _files(log_dir) == before
        assert broker.running


def test_a_dry_run_reads_and_warns_that_a_broker_is_running(
    log_dir: Path, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    at_rest = run(log_dir, *OPTIONS, "--dry-run")
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        before = _files(log_dir)
        ended = run(log_dir, *OPTIONS, "--dry-run")
        assert _files(log_dir) == before
        assert ended.code == 0
        assert f"{log_dir}: process {broker.pid} (java) is at work here" in caplog.text
        assert "\n5 logs (in use; figures are a snapshot): " in ended.out
        for line, at_rest_line in zip(_figures(ended.out), _figures(at_rest.out), strict=True):
            assert line == at_rest_line
        counted = compaction.count(log_dir, engine="local")
        assert (counted.exit_code, counted.in_use) == (0, frozenset({str(log_dir)}))

        def produce() -> None:
            with clients.producer() as producer:
                producer.send("orders", b"late", b"value", partition=0)
                producer.flush()

        moved = run(log_dir, *OPTIONS, "--dry-run", events={"before_rewrite": produce})
        assert moved.code == 0
        assert "\n1 log (the log changed while it was read): orders-0\n" in moved.out
        assert broker.running
        assert len(clients.read_all("orders")) > 0


def test_a_snapshot_of_a_running_broker_is_compacted_to_a_copy_that_serves_the_same(tmp_path: Path) -> None:
    assert min(check_snapshots(tmp_path, 2, seed=7)) > 0


def _figures(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.endswith(" cleaned") or line.startswith("total, ")]


def _files(log_dir: Path) -> dict[str, tuple[int, int]]:
    """Size and mtime of all segment files of the cleaned topics; a broker rewrites other files from time to time."""
    paths = [path for topic in TOPICS for path in log_dir.glob(f"{topic}-*/{'[0-9]' * 20}.*")]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}
