"""``verify`` and ``compact --verify``: output, exit codes and wrong calls."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compaction.commands import compact, verify
from compaction.config.request import CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.run.compact import clean_logs
from compaction.run_report import RunReport
from tests.certifier.story import CONFIG, NOW_MS, Story, build, records
from tests.executed import executed
from tests.local_passes import LocalPasses

SETS = ["--set", *(f"{name}={value}" for name, value in CONFIG.items())]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story.cleaned(tmp_path)


def call(story: Story, *options: object) -> int:
    given = ["--before", story.before, "--after", story.after, "--as-of-ms", NOW_MS, *SETS, *options]
    return verify.main([str(each) for each in given])


def test_logs_that_hold_end_with_0(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(story) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("story-0 holds: 29 -> ")
    assert out.splitlines()[-1].startswith("1 log: 1 holds (")
    assert err == ""


def test_the_report_is_printed_as_json_or_as_one_line(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(story, "--output", "json", "--kafka-version", "4.3") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "holds"
    assert document["options"]["--kafka-version"] == {"value": "4.3", "source": "command line"}
    assert document["kafka_versions"] == {"Kafka 4.3 (--kafka-version)": 1}
    assert call(story, "--quiet") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1 log: 1 holds")


def test_a_violation_ends_with_1_and_is_one_line_on_standard_error(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    offset = story.offset_of("unique-2")
    story.change(offset, records(lambda found: found[1:]))
    assert call(story) == 1
    out, err = capsys.readouterr()
    what = f"story-0:{offset}: record is missing though it is the last of its key"
    assert (f"    {what}\n" in out, err) == (True, f"error: {what} (the first of 1 violations)\n")


def test_the_report_has_the_violations_that_were_printed(story: Story, tmp_path: Path) -> None:
    offset = story.offset_of("unique-2")
    story.change(offset, records(lambda found: found[1:]))
    assert call(story, "--report", tmp_path / "verified.json") == 1
    document = json.loads((tmp_path / "verified.json").read_text())
    assert (document["schema_version"], document["status"], document["as_of_ms"]) == (1, "violated", NOW_MS)
    (log,) = document["logs"]
    assert log["violations"] == [{"offset": offset, "what": "record is missing though it is the last of its key"}]
    assert log["records_before"] == log["records_after"] + sum(log["missing"].values()) + log["lost"]
    assert document["totals"]["violated"] == document["totals"]["lost"] == 1


def test_a_damaged_source_fails_and_is_no_violation(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    file = story.before / "story-0" / f"{0:020d}.log"
    file.write_bytes(file.read_bytes()[:-5])
    assert call(story) == 1
    assert re.search(r"^error: story-0 cannot be verified: \S+\.log at byte \d+: batch", capsys.readouterr().err)


def test_an_unfinished_swap_cannot_be_judged(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    (story.path / f"{0:020d}.log.swap").touch()
    assert call(story) == 1
    assert "a segment swap is unfinished; finish it first" in capsys.readouterr().err


def test_in_place_without_sources_there_is_nothing_to_compare(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """A log compared with itself would hold."""
    for given in (["--in-place", story.after], ["--before", story.after, "--after", story.after]):
        assert verify.main([str(each) for each in (*given, *SETS)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), "nothing to compare: " in err) == ("", 1, True)


def test_in_place_a_log_of_which_nothing_was_replaced_is_not_compared(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(story.before / "story-0", story.before / "story-1")
    assert compacted(story.before, "--partition", "story-0") == 0
    capsys.readouterr()
    report = tmp_path / "report.json"
    given = ["--in-place", story.before, "--as-of-ms", NOW_MS, "--report", report, *SETS]
    assert verify.main([str(each) for each in given]) == 0
    out, err = capsys.readouterr()
    assert "story-1 not compared: it has no .deleted files of the last run\n" in out
    assert ("2 logs: 1 holds, 1 not compared (" in out, err) == (True, "")
    found = json.loads(report.read_text())
    assert [log["status"] for log in found["logs"]] == ["holds", "not_compared"]
    assert found["totals"]["not_compared"] == 1


WHY = {
    "unique-2": "was retained: it is in ",
    "dead-old": "was a tombstone past its delete horizon",
    "x": "was aborted: producer 8 ended its transaction with an ABORT marker",
}


@pytest.mark.parametrize(("key", "answer"), WHY.items())
def test_why_explains_what_became_of_a_record(story: Story, capsys: pytest.CaptureFixture[str], key: str, answer: str) -> None:
    offset = story.offset_of(key, before=True)
    assert call(story, "--why", f"story-0:{offset}") == 0
    assert capsys.readouterr().out.startswith(f"story-0:{offset} {answer}")


def test_why_names_the_record_that_superseded_it(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = story.offset_of("c", first=True, before=True), story.offset_of("c", before=True)
    assert call(story, "--why", f"story-0:{first}") == 0
    assert capsys.readouterr().out == f"story-0:{first} was superseded by offset {last} of the same key, which was retained\n"


def test_why_explains_a_lost_record_and_a_record_without_a_key(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    lost = story.offset_of("unique-2")
    keyless = next(r.offset for s in build() for b in s.batches for r in b.records() if r.key is None)
    story.change(lost, records(lambda found: found[1:]))
    for offset in (lost, keyless, 5_000):
        assert call(story, "--why", f"story-0:{offset}") == 0
    out = capsys.readouterr().out.splitlines()
    assert "is LOST: it is the last record of its key" in out[0]
    assert "was dropped as invalid: it has no key" in out[1]
    assert "there is no record at this offset; before cleaning the log had offsets 0 to" in out[2]


WRONG: dict[str, Callable[[Story], Sequence[object]]] = {
    "give --before and --after, or only --in-place": lambda story: ["--before", story.before],
    "--why 'story' is not TOPIC-N:OFFSET": lambda story: ["--in-place", story.after, "--why", "story"],
    "no such log directory": lambda story: ["--in-place", story.after / "none"],
    "no such partition: story-7": lambda story: ["--in-place", story.after, "--partition", "story-7"],
    "this is one partition's directory": lambda story: ["--in-place", story.path],
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_call_ends_with_2(story: Story, capsys: pytest.CaptureFixture[str], message: str) -> None:
    assert verify.main([str(each) for each in WRONG[message](story)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), message in err) == ("", 1, True)


def test_verify_writes_nothing(story: Story) -> None:
    def tree() -> dict[str, tuple[int, int]]:
        files = (file for root in (story.before, story.after) for file in root.rglob("*"))
        return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in files}

    before = tree()
    assert call(story) == 0
    assert tree() == before


def compacted(log_dir: Path, *options: object, during: Callable[[], None] = lambda: None) -> int:
    def run(_: EngineChoice, request: CompactionRequest) -> RunReport:
        report = clean_logs(LocalPasses, request)
        during()
        return report

    given = ["--log-dir", log_dir, "--as-of-ms", NOW_MS, "--allow-keyless", "--verify", *SETS, *options]
    return executed(compact, [str(each) for each in given], run)


@pytest.mark.parametrize("in_place", [True, False])
def test_compact_verifies_its_result(story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_place: bool) -> None:
    options = () if in_place else ("--output-dir", tmp_path / "copy")
    assert compacted(story.before, *options) == 0
    assert "story-0 holds: 29 -> " in capsys.readouterr().out


def test_compact_ends_with_1_if_its_result_in_place_does_not_hold(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil() -> None:
        left = Story(tmp_path, story.before)
        left.change(left.offset_of("unique-2"), records(lambda found: found[1:]))

    assert compacted(story.before, during=spoil) == 1
    assert "record is missing though it is the last of its key" in capsys.readouterr().err


def test_compact_refuses_to_verify_without_sources(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((story.before / "story-0").iterdir())
    assert compacted(story.before, "--set", "file.delete.delay.ms=0") == 2
    assert "story-0 has file.delete.delay.ms=0 (--set file.delete.delay.ms)" in capsys.readouterr().err
    assert sorted((story.before / "story-0").iterdir()) == before


def test_compact_refuses_to_verify_a_dry_run(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert compacted(story.before, "--dry-run") == 2
    assert "a dry run writes nothing to verify" in capsys.readouterr().err
