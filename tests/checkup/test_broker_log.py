"""What a broker's log says about its cleaner, in the words of each Kafka."""

from __future__ import annotations

from compaction.checkup.log_health import read_broker_log
from compaction.names import TopicPartition

ORDERS, GROUPS = TopicPartition("orders", 3), TopicPartition("__consumer_offsets", 7)
MARKED = """\
[2026-11-22 02:00:01,001] INFO Starting the log cleaner (org.apache.kafka.storage.internals.log.LogCleaner)
[2026-11-22 02:00:16,345] WARN [kafka-log-cleaner-thread-0]: Unexpected exception thrown when cleaning log \
LogUnified(dir=/data/orders-3, topicId=abc, topic=orders, partition=3). Marking its partition (orders-3) as uncleanable \
(org.apache.kafka.storage.internals.log.LogCleaner)
org.apache.kafka.storage.internals.log.LogCleaningException: Record size 0 is less than the minimum record overhead (14)
\tat org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread.cleanFilthiestLog(LogCleaner.java:600)
Caused by: org.apache.kafka.common.errors.CorruptRecordException: Record size 0 is less than the minimum record overhead (14)
[2026-11-22 02:00:31,345] INFO something else
"""
ENDED = "[2018-01-01 10:00:00,000] ERROR [kafka-log-cleaner-thread-1]: Error due to (kafka.log.LogCleaner)\n"


def read(text: str) -> tuple[dict[TopicPartition, str], set[int]]:
    found = read_broker_log(text.splitlines(keepends=True))
    return found.uncleanable, found.dead_threads


def test_a_partition_that_was_given_up_has_its_first_cause() -> None:
    cause = "org.apache.kafka.common.errors.CorruptRecordException: Record size 0 is less than the minimum record overhead (14)"
    assert read(MARKED) == ({ORDERS: cause}, set())


def test_a_scala_brokers_words_are_the_same() -> None:
    line = "WARN Unexpected exception thrown when cleaning log Log(dir=/d). Marking its partition (__consumer_offsets-7) as"
    text = f"{line} uncleanable (kafka.log.LogCleaner)\nkafka.log.LogCleaningException: no room\n"
    assert read(text) == ({GROUPS: "kafka.log.LogCleaningException: no room"}, set())


def test_a_thread_that_ended_with_an_error_is_dead() -> None:
    assert read(ENDED) == ({}, {1})
    assert read(MARKED + ENDED)[1] == {1}


def test_a_restart_forgets_both() -> None:
    assert read(MARKED + ENDED + MARKED.splitlines(keepends=True)[0]) == ({}, set())


def test_threads_that_a_shutdown_stops_did_not_die() -> None:
    stopped = "INFO Shutting down the log cleaner. (LogCleaner)\nINFO [kafka-log-cleaner-thread-0]: Stopped (LogCleaner)\n"
    assert read(stopped) == ({}, set())
    assert read(stopped.splitlines(keepends=True)[1]) == ({}, {0})


def test_errors_far_from_the_warning_are_none_of_its_causes() -> None:
    lines = MARKED.splitlines(keepends=True)
    text = "".join([*lines[:2], *["INFO nothing\n"] * 100, "java.io.IOException: of something else\n"])
    assert read(text) == ({ORDERS: ""}, set())


def test_an_empty_log_and_other_lines_say_nothing() -> None:
    assert read("") == read("garbage \x00 \ufffd\nMarking its partition (not a partition) as uncleanable\n") == ({}, set())
