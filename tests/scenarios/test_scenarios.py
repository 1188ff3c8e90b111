"""Each scenario leaves what Kafka left, however it is cleaned; ``tests/conformance`` compares the answers with Kafka's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from compaction.certifier.certificate import Status
from compaction.certifier.find_pairs import VerifyRequest
from compaction.report import LogStatus
from tests.certifier.certify import certify
from tests.local_job import KAFKA, TopicConfigs, clean_locally, resolver_of
from tests.memory import scratch
from tests.scenarios.draw import draw
from tests.scenarios.finds import printed
from tests.scenarios.language import Scenario, files, parse, scenarios, sections, with_answers
from tests.scenarios.plain import is_plain, plainly
from tests.scenarios.runner import (
    Outcomes,
    Way,
    after_a_dry_run,
    expire_in_copies,
    expire_in_place,
    in_copies,
    in_many_tasks,
    in_place,
    on_spark,
    outcomes,
    rounds_of,
)

ALL = {file: {name: one for name, one in scenarios(file).items() if not one.needs_kafka} for file in files()}
READ = {file: {name: one for name, one in found.items() if not one.version} for file, found in ALL.items()}
#: a file is cleaned, or its segments are deleted
FOUND = {file: found for file, found in READ.items() if not any(one.expires for one in found.values())}
EXPIRED = {file: found for file, found in READ.items() if file not in FOUND}
#: a version of each set of rules
OLDER = "2.8", "3.0", "3.3", "3.9", "4.0"
ANSWERS = {name: one.answers for found in FOUND.values() for name, one in found.items()}
DELETIONS = {name: one.answers for found in EXPIRED.values() for name, one in found.items()}


def certified(version: str) -> Way:
    """By the rules of a version of Kafka: the certifier says that the result holds."""

    def clean(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        reports = clean_locally(log_dir, now_ms, topics, kafka_version=version)
        request = VerifyRequest((), (str(log_dir),), now_ms, exact=True, resolver=resolver_of(topics), kafka_version=version)
        cleaned = [name for name in topics if reports[name].status is LogStatus.CLEANED]
        found = [log for log in certify(request).logs if log.topic in cleaned]
        assert len(found) == len(cleaned)
        assert {log.topic: log.lines() for log in found if log.status is not Status.HOLDS} == {}
        return outcomes(reports.values()), log_dir

    return clean


def answers(way: Way, read: Mapping[str, Mapping[str, Scenario]] = FOUND) -> Mapping[str, list[list[str]]]:
    """What each scenario leaves after each round."""
    left: dict[str, list[list[str]]] = defaultdict(list)
    with scratch() as root:
        for file, found in ((file, found) for file, found in read.items() if found):
            for each in rounds_of(root / file, found, way):
                left[each.name].append(each.answer)
    return left


@pytest.fixture(scope="module")
def left() -> Mapping[str, list[list[str]]]:
    return answers(in_place)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_scenario_leaves_what_kafka_left(left: Mapping[str, list[list[str]]], name: str) -> None:
    assert left[name] == ANSWERS[name]


@pytest.mark.parametrize("way", [in_many_tasks, after_a_dry_run, in_copies], ids=["many tasks", "a dry run", "copies"])
def test_it_does_not_matter_how(way: Way) -> None:
    assert answers(way) == ANSWERS


@pytest.mark.parametrize("version", [KAFKA, *(pytest.param(each, marks=pytest.mark.slow) for each in OLDER)])
def test_the_result_is_certified(version: str) -> None:
    left = answers(certified(version))
    assert left.keys() == ANSWERS.keys()
    assert version != KAFKA or left == ANSWERS


def test_the_answers_of_older_versions_are_those_by_their_rules() -> None:
    older = {name: one for found in ALL.values() for name, one in found.items() if one.version}
    assert older
    for version in {one.version for one in older.values()}:
        found = {name: one for name, one in older.items() if one.version == version}
        assert answers(certified(version), {version: found}) == {name: one.answers for name, one in found.items()}


@pytest.mark.parametrize("file", ALL)
def test_a_printed_scenario_is_the_same_when_it_is_read(file: str) -> None:
    for name, one in ALL[file].items():
        ((read, lines),) = sections(printed(name, one))
        assert (read, parse(lines)) == (name, one)


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_scenario_is_printed(seed: int) -> None:
    assert printed(f"seed{seed}", draw(seed)).count("\nclean at=") > 0


@pytest.mark.parametrize("way", [expire_in_place, expire_in_copies], ids=lambda way: way.__name__)
def test_segments_are_deleted_as_by_kafka(way: Way) -> None:
    assert answers(way, EXPIRED) == DELETIONS


def test_the_plain_cleaner_leaves_the_same() -> None:
    """So random logs, which only it judges, are judged as by Kafka."""
    compacted = {file: {name: one for name, one in found.items() if is_plain(one)} for file, found in FOUND.items()}
    read = {name: one for found in compacted.values() for name, one in found.items()}
    assert len(read) > 100
    assert answers(plainly(read), compacted) == {name: ANSWERS[name] for name in read}
    for name, one in ((name, one) for found in ALL.values() for name, one in found.items() if one.version):
        assert answers(plainly({name: one}, one.version), {"older": {name: one}}) == {name: one.answers}


@pytest.mark.spark
def test_spark_leaves_the_same(request: pytest.FixtureRequest) -> None:
    assert answers(on_spark(request.getfixturevalue("spark"))) == ANSWERS


def test_answers_are_written_below_their_rounds() -> None:
    text = "# a comment\n\nscenario one\nsegment batch a\nclean\n> old\nclean\n\nscenario two\nclean\n> old\n> old\n"
    new = with_answers(text, {"one": [["x", "y"], ["z"]], "two": [["w"]]})
    assert new == "# a comment\n\nscenario one\nsegment batch a\nclean\n> x\n> y\nclean\n> z\n\nscenario two\nclean\n> w\n"


@pytest.mark.parametrize("line", ["batch ab", "set", "fly 3", "writer time=3x", "segment batch a | record"])
def test_a_line_that_is_not_of_the_language_is_named(line: str) -> None:
    lines = ["segment batch a", line] if line != "batch ab" else [line]
    with pytest.raises(ValueError, match=rf"line {len(lines) + 1} of the scenario, '{line.replace('|', '.')}'"):
        parse(lines)
