"""The commands of ``docs/consumer-offsets.md``, run with a real broker and groups that commit repeatedly."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tests.kafka.jars import LOGGING_CONFIG, require_tools_classpath
from tests.processes import started

pytestmark = pytest.mark.kafka

PAGE = ROOT / "docs" / "consumer-offsets.md"
TOPIC, OFFSETS = "orders", "__consumer_offsets"
GROUPS = ("billing", "reports", "shipping")
COMMITS = 400
#: replaces Kafka's scripts
_JAVA = f"java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={LOGGING_CONFIG} -cp"
_GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def commands() -> list[str]:
    """The lines of the page's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def commit_often(clients: Clients) -> dict[str, int]:
    """Each group commits offsets up to its own last one: every commit supersedes the one before."""
    last = {group: COMMITS - 7 * number for number, group in enumerate(GROUPS)}
    metadata = clients.gateway.cls("org.apache.kafka.clients.consumer.OffsetAndMetadata")
    where = clients.gateway.cls("org.apache.kafka.common.TopicPartition")(TOPIC, 0)
    for group, end in last.items():
        with clients.consumer(group_id=group) as consumer:
            consumer.assign([where])
            for offset in range(1, end + 1):
                consumer.commitSync({where: metadata(offset)})
    return last


class Session:
    """A shell that runs the page's commands, one after the other; it starts and stops a broker."""

    def __init__(self, broker: Broker, place: Path) -> None:
        self.broker, self._place = broker, place
        (place / "bin").mkdir()
        groups = f"{_JAVA} {shlex.quote(require_tools_classpath())} {_GROUPS_TOOL}"
        scripts = {"kafka-consumer-groups.sh": groups, "kafka-log-compaction": f"{shlex.quote(sys.executable)} -m jobs"}
        for name, command in scripts.items():
            (place / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (place / "bin" / name).chmod(0o755)

    def type(self, command: str) -> None:
        """Runs one command, which must succeed."""
        if command.startswith("kafka-server-stop.sh"):
            self.broker.stop()
        elif command.startswith("kafka-server-start.sh"):
            self.broker = Broker(self.broker.log_dir)
        elif not command.startswith("export "):
            done = started(
                ["sh", "-c", command],
                cwd=self._place,
                LOGS=str(self.broker.log_dir),
                BROKER=self.broker.bootstrap,
                COPY=str(self._place / "copy"),
                PATH=f"{self._place / 'bin'}{os.pathsep}{os.environ['PATH']}",
                PYTHONPATH=str(ROOT),
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def log_bytes(log_dir: Path) -> int:
    return sum(file.stat().st_size for file in (log_dir / f"{OFFSETS}-0").glob("*.log"))


@pytest.mark.slow
def test_following_the_page_keeps_every_groups_offsets(gateway: Gateway, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "logs")
    session = Session(broker, tmp_path)
    try:
        clients = Clients(gateway, broker.bootstrap)
        clients.create_topic(TOPIC)
        with clients.producer() as producer:
            for number in range(COMMITS + 50):
                producer.send(TOPIC, b"k%d" % number, b"v%d" % number, timestamp=number)
        clients.commit_as_group(GROUPS[0], TOPIC, 1)
        clients.set_config(OFFSETS, {"segment.ms": "200"})
        last = commit_often(clients)
        time.sleep(0.3)
        clients.commit_as_group("late", TOPIC, 1)
        before: int | None = None
        for command in commands():
            if before is None and "--output-dir" in command:
                before = log_bytes(broker.log_dir)
            session.type(command)
        found = (tmp_path / "groups-after.txt").read_text()
        for group, offset in last.items():
            assert re.search(rf"^{group}\s+{TOPIC}\s+0\s+{offset}\s", found, re.MULTILINE), found
        assert before is not None
        assert log_bytes(broker.log_dir) < before / 5
        assert not session.broker.errors()
        copied = (tmp_path / "offsets-in-the-copy.txt").read_text()
        assert all(f'"group":"{group}"' in copied for group in GROUPS)
        # a group continues with the record after its last commit
        clients = Clients(gateway, session.broker.bootstrap)
        with clients.consumer(group_id="billing", auto_offset_reset="none", max_poll_records="1") as consumer:
            consumer.subscribe([TOPIC])
            polls = (clients.poll(consumer) for _ in range(100))
            records = next(polled for polled in polls if polled)
        assert records[0].offset == last["billing"]
    finally:
        session.broker.close()
        if session.broker is not broker:
            broker.close()
