"""The dump command: options, output, findings, errors and exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from compaction.cli.parser import Parser
from compaction.commands import dump_log
from compaction.dumping.batch_reader import RESTORE_HINT
from tests.dumping.segments import T0, Made, write_partition, write_segment
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record

ROOT = Path(__file__).resolve().parents[2]


class Ended(NamedTuple):
    """The result of a call."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def dumped(self) -> list[str]:
        """The names of the files dumped."""
        return [line.rpartition("/")[2] for line in self.lines if line.startswith("Dumping ")]

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


class Call:
    """Runs the command in this process."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *argv: object) -> Ended:
        code = dump_log.main([str(each) for each in argv])
        captured = self._capture.readouterr()
        return Ended(code, captured.out.decode(), captured.err.decode())

    def refused(self, *argv: object) -> str:
        """The error line of a wrong call that prints nothing else."""
        ended = self(*argv)
        assert (ended.code, ended.out) == (2, "")
        (line,) = ended.err.splitlines()
        return line


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes]) -> Call:
    return Call(capfdbinary)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three segments with the even offsets 0 to 494."""
    write_partition(tmp_path / "orders-0")
    return tmp_path / "orders-0"


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return write_segment(tmp_path / "one-0")


def spawned(*argv: object, head: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a separate process; with ``head``, its reader stops after that number of lines."""
    command = [sys.executable, str(ROOT / "jobs" / "dump_log.py"), *map(str, argv)]
    if head is None:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stderr is not None
    lines = [started.stdout.readline() for _ in range(head)]
    started.stdout.close()
    errors = started.stderr.read()
    started.stderr.close()
    return subprocess.CompletedProcess(command, started.wait(timeout=120), "".join(lines), errors)


class TestWrongCalls:
    @pytest.mark.parametrize(
        ("argv", "expected"),
        [
            ((), "the following arguments are required: --files"),
            (("--files", "/no/such.log"), "/no/such.log: no such file or directory"),
            (("--files", "x.log", "--max-bytes", "-1"), "'-1' is not a number between 0 and 2147483647"),
            (("--files", "x.log", "--max-message-size", "1k"), "'1k' is not a number"),
            (("--files", "x.log", "--offsets", "5:4"), "'5:4' ends before it begins"),
            (("--files", "x.log", "--offsets", ":"), "':' is not A:B"),
            (("--files", "x.log", "--offsets", "9223372036854775808"), "past the largest offset"),
            (("--files", "x.log", "--timestamp", "yesterday"), "'yesterday' is not a number"),
            (("--files", "x.log", "--offsets", "1", "--timestamp", "2"), "--offsets and --timestamp select different records"),
            (("--files", "x.log", "--offsets-decoder", "--transaction-log-decoder"), "not allowed with argument"),
            (("--files", "x.log", "--value-decoder-class", "my.Decoder"), "decoder class 'my.Decoder' cannot be loaded"),
            (("--files", "x.log", "--key-decoder-class", "org.apache.kafka.tools.api.DefaultDecoder"), "cannot be loaded"),
            (("--files", "x.log", "--print"), "unrecognized arguments: --print"),
        ],
    )
    def test_give_one_error_line_and_no_output(self, dump: Call, argv: Sequence[str], expected: str) -> None:
        assert expected in dump.refused(*argv)

    def test_if_one_file_is_missing_none_is_printed(self, dump: Call, made: Made) -> None:
        assert "no such file" in dump.refused("--files", made.path, "/no/such.log")

    @pytest.mark.parametrize("name", ["segment.log", "x.index", "99999999999999999999.timeindex", "a.txnindex"])
    def test_names_without_a_base_offset_are_refused(self, dump: Call, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"")
        assert "does not start with the segment's base offset" in dump.refused("--files", tmp_path / name)

    def test_a_directory_with_nothing_to_dump_is_refused(self, dump: Call, tmp_path: Path) -> None:
        assert "contains no segments" in dump.refused("--files", tmp_path)

    def test_lookups_in_files_other_than_logs_are_refused(self, dump: Call, made: Made) -> None:
        line = dump.refused("--files", made.path.with_suffix(".index"), "--offsets", "1:2")
        assert "require a log, not this index" in line


class TestHelp:
    def test_every_option_is_listed(self, dump: Call) -> None:
        ended = dump("--help-all")
        assert ended.code == 0
        known = {name for action in Parser(dump_log.OPTIONS)._actions for name in action.option_strings}
        shown = set(re.findall(r"(?<!\S)--[a-z-]+", ended.out))
        assert known - shown <= {"--help", "-h"}


class TestLogs:
    def test_batches_without_records(self, dump: Call, made: Made) -> None:
        ended = dump("--files", made.path)
        assert (ended.code, ended.err) == (0, "")
        assert ended.lines[:2] == [f"Dumping {made.path}", "Log starting offset: 0"]
        assert [int(found) for found in re.findall(r" position: (\d+)", ended.out)] == list(made.positions)

    def test_records_with_and_without_contents(self, dump: Call, made: Made) -> None:
        deep, contents = dump("--files", made.path, "--deep-iteration"), dump("--files", made.path, "--print-data-log")
        assert len(deep.lines) == len(contents.lines) == 2 + 12 + 48
        assert "payload" not in deep.out
        assert contents.lines[3] == (
            f"| offset: 0 CreateTime: {T0} keySize: 5 valueSize: 1 sequence: -1 headerKeys: [] key: key-0 payload: v"
        )
        assert deep.err.splitlines()[:2] == [f"Non-consecutive offsets in {made.path}", "  0 is followed by 2"]
        assert deep.code == 0

    @pytest.mark.parametrize("option", ["--value-decoder-class", "--key-decoder-class", "--offsets-decoder"])
    def test_a_decoder_prints_contents(self, dump: Call, made: Made, option: str) -> None:
        assert " key: " in dump("--files", made.path, option).out

    def test_record_metadata_can_be_skipped(self, dump: Call, made: Made) -> None:
        assert dump("--files", made.path, "--print-data-log", "--skip-record-metadata").lines[3] == "| key: key-0 payload: v"

    def test_files_are_separated_by_spaces_or_commas(self, dump: Call, partition: Path) -> None:
        logs = sorted(partition.glob("*.log"))
        names = [log.name for log in logs]
        assert dump("--files", *logs).dumped == names
        assert dump("--files", ",".join(map(str, logs))).dumped == names
        assert dump("--files", logs[0], "--files", f"{logs[1]},{logs[2]}").dumped == names

    def test_a_torn_tail_is_reported_but_is_not_an_error(self, dump: Call, made: Made) -> None:
        made.path.write_bytes(made.path.read_bytes()[:-4])
        ended = dump("--files", made.path)
        assert (
            ended.lines[-1]
            == f"Found {made.path.stat().st_size - made.positions[-1]} invalid bytes at the end of {made.path.name}"
        )
        assert (ended.code, ended.err) == (0, "")

    def test_a_batch_that_extends_past_the_end_is_damage_if_batches_follow_its_start(self, dump: Call, made: Made) -> None:
        content = bytearray(made.path.read_bytes())
        content[made.positions[5] + 8] = 0x10
        made.path.write_bytes(bytes(content))
        ended = dump("--files", made.path)
        assert ended.lines[-1] == f"Found {len(content) - made.positions[5]} invalid bytes at the end of {made.path.name}"
        assert ended.errors == [
            f"error: {made.path} at byte {made.positions[5]}: batch runs into the batches after it; {RESTORE_HINT}"
        ]
        assert ended.code == 1

    def test_a_batch_that_fails_its_crc_is_printed_and_reported_as_an_error(self, dump: Call, made: Made) -> None:
        content = bytearray(made.path.read_bytes())
        for number in (4, 7):
            content[made.positions[number] + 65] ^= 1
        made.path.write_bytes(bytes(content))
        ended = dump("--files", made.path)
        assert ended.code == 1
        assert ended.out.count("isvalid: true") == 10
        assert ended.errors == [
            f"error: {made.path} at byte {made.positions[4]}: 2 batches fail their CRC; this is the first; {RESTORE_HINT}"
        ]

    def test_after_damage_the_other_files_are_dumped(self, dump: Call, partition: Path) -> None:
        logs = sorted(partition.glob("*.log"))
        size = logs[1].stat().st_size
        logs[1].write_bytes(logs[1].read_bytes() + bytes(100) + b"x")
        ended = dump("--files", *logs)
        assert ended.code == 1
        assert ended.dumped == [log.name for log in logs]
        (error,) = ended.errors
        assert error == f"error: {logs[1]} at byte {size}: batch has an impossible size of 0 bytes; {RESTORE_HINT}"

    @pytest.mark.parametrize("zeros", [5, 17, 100, 10 << 20])
    def test_a_preallocated_tail_is_reported_but_is_not_an_error(self, dump: Call, partition: Path, zeros: int) -> None:
        active = sorted(partition.glob("*.log"))[-1]
        os.truncate(active, active.stat().st_size + zeros)
        ended = dump("--files", active)
        assert (ended.code, ended.err) == (0, "")
        assert ended.lines[-1] == f"Found {zeros} invalid bytes at the end of {active.name}"
        assert dump("--files", partition, "--offsets", "1000000").code == 0
        assert dump("--files", partition, "--timestamp", T0 + 10**9).code == 0

    def test_an_unknown_file_is_ignored(self, dump: Call, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("something")
        assert dump("--files", path) == (0, f"Dumping {path}\n", f"Ignoring unknown file {path}\n")


class TestLookups:
    def test_one_offset_is_found_in_any_segment(self, dump: Call, partition: Path) -> None:
        ended = dump("--files", partition, "--offsets", "260", "--print-data-log")
        assert ended.dumped == ["00000000000000000200.log"]
        assert [line for line in ended.lines if line.startswith("|")][0].startswith("| offset: 260 ")
        assert ended.lines[2].startswith("Looking for offsets 260:260 from position: ")

    @pytest.mark.parametrize(
        ("given", "expected"),
        [("90:205", [*range(90, 95, 2), *range(200, 206, 2)]), ("490:", [490, 492, 494]), (":3", [0, 2]), ("95:199", [])],
    )
    def test_a_range_of_offsets_selects_records(self, dump: Call, partition: Path, given: str, expected: list[int]) -> None:
        ended = dump("--files", partition, "--offsets", given, "--deep-iteration")
        assert [int(found) for found in re.findall(r"^\| offset: (\d+)", ended.out, re.MULTILINE)] == expected
        assert ended.code == 0

    def test_the_first_record_at_or_after_a_timestamp_is_found(self, dump: Call, partition: Path) -> None:
        ended = dump("--files", partition, "--timestamp", T0 + 10 * 250 + 1, "--deep-iteration")
        assert ended.dumped == ["00000000000000000200.log"]
        assert ended.lines[2].startswith(f"First record at or after timestamp {T0 + 2501}: offset: 252 timestamp: {T0 + 2520} ")
        assert [line[:13] for line in ended.lines if line.startswith("|")] == ["| offset: 252"]

    def test_a_timestamp_after_the_last_record_finds_nothing(self, dump: Call, partition: Path) -> None:
        ended = dump("--files", partition, "--timestamp", T0 + 10**6)
        assert ended.lines[-1] == f"No record at or after timestamp {T0 + 10**6}"
        assert (ended.code, ended.dumped) == (0, ["00000000000000000400.log"])


class TestIndexes:
    @pytest.mark.parametrize("batches", [0, 1, 3])
    def test_a_preallocated_index_without_entries_is_not_an_error(self, dump: Call, tmp_path: Path, batches: int) -> None:
        path = tmp_path / "t-0" / f"{24:020d}.log"
        path.parent.mkdir()
        made = [Batch([Record(24 + at, T0, b"k", b"v")]).encode() for at in range(batches)]
        path.write_bytes(b"".join(made))
        for kind, size in ((".index", 8 * 16), (".timeindex", 12 * 16)):
            path.with_suffix(kind).write_bytes(bytes(size))
        ended = dump("--files", path.with_suffix(".index"), path.with_suffix(".timeindex"))
        assert (ended.code, ended.errors) == (0, [])
        # Kafka's tool lists what it takes for an entry
        assert ("timestamp mismatch" if batches else "not found") in ended.err

    def test_the_advice_for_an_index_is_safe_beside_a_broker_and_right_for_each_kind(self, dump: Call, made: Made) -> None:
        for kind in (".index", ".timeindex"):
            index = made.path.with_suffix(kind)
            content = index.read_bytes()
            index.write_bytes(content[:-8] + b"\0\0\1\0" + content[-4:])
            (error,) = dump("--files", index).errors
            assert "if a broker is running" in error
            assert "else remove the segment's .index" in error

    def test_entries_are_printed(self, dump: Call, made: Made) -> None:
        ended = dump("--files", made.path.with_suffix(".index"), made.path.with_suffix(".timeindex"))
        assert (ended.code, ended.err) == (0, "")
        assert ended.lines[1] == f"offset: 30 position: {made.positions[3]}"
        assert ended.lines[5] == f"timestamp: {T0 + 300} offset: 30"

    def test_verifying_valid_indexes_prints_no_entries(self, dump: Call, partition: Path) -> None:
        ended = dump("--files", partition, "--verify-index-only")
        assert (ended.code, ended.err) == (0, "")
        assert len(ended.lines) == len(ended.dumped) == 6

    def test_an_entry_that_disagrees_with_the_log_is_an_error(self, dump: Call, made: Made) -> None:
        index = made.path.with_suffix(".index")
        content = index.read_bytes()
        index.write_bytes(content[:8] + b"\x00\x00\x00\x31" + content[12:])
        ended = dump("--files", index, "--verify-index-only")
        assert ended.code == 1
        assert ended.lines == [f"Dumping {index}"]
        assert ended.err.splitlines()[:2] == [f"Mismatches in :{index}", "  Index offset: 49, log offset: 54"]
        assert ended.errors[0].startswith(f"error: {index} at byte 8: 1 of the index's entries do not point at")

    def test_the_sanity_check_reports_each_index(self, dump: Call, made: Made) -> None:
        index, times = made.path.with_suffix(".index"), made.path.with_suffix(".timeindex")
        assert dump("--files", index, times, "--index-sanity-check").lines[1::2] == [
            f"{index} passed sanity check.",
            f"{times} passed sanity check.",
        ]
        index.write_bytes(index.read_bytes() + b"odd")
        ended = dump("--files", index, times, "--index-sanity-check")
        assert ended.code == 1
        assert "its size of 27 bytes is not a multiple of 8" in ended.errors[0]
        assert ended.lines[-1] == f"{times} passed sanity check."

    def test_a_missing_offset_index_is_an_error(self, dump: Call, made: Made) -> None:
        made.path.with_suffix(".index").unlink()
        ended = dump("--files", made.path.with_suffix(".timeindex"))
        assert ended.code == 1
        assert ended.errors == [
            f"error: {made.path.with_suffix('.index')}: the segment's index is missing; put it next to the segment's log"
        ]


class TestDirectories:
    @pytest.fixture(scope="class")
    @classmethod
    def sample(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return unpack_sample(tmp_path_factory.mktemp("sample"))

    def test_a_partition_directory_prints_all_of_its_files(self, dump: Call, sample: Path) -> None:
        ended = dump("--files", f"{sample}/payments-0/")
        assert (ended.code, ended.err) == (0, "")
        kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
        assert set(ended.dumped) == {path.name for path in (sample / "payments-0").iterdir() if path.suffix in kinds}
        assert ended.dumped[:3] == ["00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"]

    def test_nothing_is_written(self, dump: Call, sample: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in sample.rglob("*")}
        dump("--files", *(path for path in sample.iterdir() if path.is_dir()), "--print-data-log")
        assert {path: path.stat().st_mtime_ns for path in sample.rglob("*")} == before


class TestProcess:
    def test_the_job_file_runs_as_a_script(self, made: Made) -> None:
        done = spawned("--files", made.path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"Dumping {made.path}\n")

    def test_it_ends_without_an_error_if_the_reader_closes_the_pipe(self, tmp_path: Path) -> None:
        made = write_segment(tmp_path / "long-0", batches=1_500)
        done = spawned("--files", made.path, "--print-data-log", head=1)
        assert (done.returncode, done.stderr) == (0, "")
