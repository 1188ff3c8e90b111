"""The command line of erasures: which keys are read, wrong calls, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from compaction.certifier import erased_keys
from compaction.cli.parser import Parser
from compaction.commands import erase, verify
from compaction.errors import UsageError
from compaction.files.durable import DurableSteps
from compaction.formats import keys as key_list
from compaction.formats.keys import KeyCriteria
from compaction.options.inputs import Inputs
from compaction.options.keys import read_keys
from compaction.options.table import KEY_FORMATS
from compaction.report import LogReport
from compaction.run.log import Log
from compaction.run.run import Run
from tests.erasure.test_erase_keys import records_in, write_odd
from tests.files.test_lock import held_elsewhere
from tests.golden import unpack_sample
from tests.processes import run


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with the log ``odd-0``, beside which files can be written."""
    write_odd(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def call(log_dir: Path) -> list[str]:
    """A call that erases the key ``k`` with a certificate."""
    keys, file = log_dir.parent / "keys", log_dir.parent / "certificate.json"
    keys.write_bytes(b"k\n")
    return ["--log-dir", str(log_dir), "--include-active", "--keys", str(keys), "--certificate", str(file)]


def criteria(*options: object) -> KeyCriteria:
    """What selects the keys of a call."""
    given = vars(Parser(erase.OPTIONS).parse_args(["--log-dir", ".", *map(str, options)]))
    return read_keys(Inputs.of(erase.OPTIONS, erase.OPTIONS.complete(given)))[0]


def keys_of(*options: object) -> object:
    return criteria(*options).keys.to_pylist()


def test_the_formats_are_those_of_key_lists() -> None:
    assert KEY_FORMATS == key_list.FORMATS


def test_keys_are_read_from_lines_and_columns(tmp_path: Path) -> None:
    text, table, rows = (tmp_path / name for name in ("keys.txt", "keys.parquet", "keys.csv"))
    text.write_bytes(b"a\n\nb\na\n")
    columns = {"raw": pa.array([b"\xff", None, b""], pa.binary()), "name": ["x", "", None], "number": [1, 2, 3]}
    parquet.write_table(pa.table(columns), table)
    rows.write_text("id,other\n007,1\n,2\n7f,3\n", encoding="utf-8")
    assert keys_of("--keys", text, text) == [b"a", b"b"]
    assert keys_of("--keys", table, "--keys-column", "raw") == [b"\xff", b""]
    assert keys_of("--keys", table, "--keys-column", "name") == [b"x"]
    with pytest.raises(UsageError, match="--keys-column: number has the type int64"):
        keys_of("--keys", table, "--keys-column", "number")
    assert keys_of("--keys", rows, "--keys-column", "id") == [b"007", b"7f"]
    rows.write_text("id\n07\n\n7f\n", encoding="utf-8")
    assert keys_of("--keys", rows, "--keys-column", "id", "--keys-format", "hex") == [b"\x07", b"\x7f"]


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_only_a_line_feed_ends_a_pattern_of_a_file(tmp_path: Path, odd: str) -> None:
    patterns = tmp_path / "patterns"
    patterns.write_bytes(f"prefix=tenant1{odd}\nprefix=a{odd}b\r\n\r\n".encode())
    found = [each.text for each in criteria("--where", f"@{patterns}").patterns]
    assert found == [f"tenant1{odd}" if odd != "\r" else "tenant1", f"a{odd}b"]


def test_a_directory_that_is_in_use_is_refused(log_dir: Path, call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = records_in(log_dir)
    with held_elsewhere(log_dir):
        assert erase.main(call) == 2
    assert f"error: {log_dir}: log directory is in use" in capsys.readouterr().err
    assert records_in(log_dir) == before


def test_what_a_copy_records_of_its_request_does_not_let_keys_be_guessed(log_dir: Path) -> None:
    keys, copies = log_dir.parent / "keys", [log_dir.parent / "one", log_dir.parent / "other"]
    keys.write_bytes(b"k\n")
    options = ["--include-active", "--where", "prefix=kkk", "--as-of-ms", "1700000000000", "--replace"]
    recorded = []
    for copy in copies:
        assert erase.main(["--log-dir", str(log_dir), "--keys", str(keys), "--output-dir", str(copy), *options]) == 0
        recorded.append(json.loads((copy / "_finished.json").read_text())["request"])
    # a salt of each run, and nothing else that depends on the keys
    assert recorded[0].pop("keys") != recorded[1].pop("keys")
    assert recorded[0] == recorded[1] and recorded[0]["where"] == ["[hidden]"]


def changed(value: Any) -> Iterator[Any]:
    """A JSON document with another value of the same type in each of its fields."""
    for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        for other in changed(value[name]):
            copy = value.copy()
            copy[name] = other
            yield copy
    if isinstance(value, (dict, list)):
        return
    others = {"holds": "incomplete", "drop": "tombstone", True: False, False: True}
    yield others[value] if value in others else value + 1 if isinstance(value, int) else f"{value}0"


def test_no_field_of_a_certificate_can_be_changed_unnoticed(
    log_dir: Path, call: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(KeyCriteria, "secret", lambda self, salt: salt + self.keys[0].as_py())
    assert erase.main(call) == 0
    file, again = Path(call[-1]), ["--in-place", *call[1:2], *call[3:]]
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document, sort_keys=True))
    assert verify.main(again) == 0
    others = list(changed(document))
    assert len(others) > 40 and document not in others
    for other in others:
        file.write_text(json.dumps(other))
        assert verify.main(again) != 0, other
    capsys.readouterr()
    file.write_text(json.dumps({**document, "on_match": "tombstone"}))
    assert verify.main(again) == 1
    assert f"error: {file}: --certificate: it was changed after it was written" in capsys.readouterr().err


def test_a_result_that_is_not_certified_fails_and_its_sources_remain(
    log_dir: Path, call: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erased_keys, "matching", lambda criteria, keys: np.zeros(len(keys), np.bool_))
    assert erase.main(call) == 1
    error = capsys.readouterr().err
    assert "odd-0:4: batch without an erased key is missing, or differs from its source" in error
    copy_away = "copy them away before the next run or a broker's start, which remove them\n"
    assert error.endswith(f"; the replaced segments remain as .deleted files: {copy_away}")
    assert len(list(log_dir.rglob("*.log.deleted"))) == 3
    assert json.loads(Path(call[-1]).read_text())["status"] == "violated"


def test_a_run_that_moves_the_cleaner_checkpoint_is_not_certified(
    log_dir: Path, call: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = log_dir / "cleaner-offset-checkpoint"
    checkpoint.write_text("0\n1\nodd 0 5\n")
    assert erase.main(call) == 0
    finish = Run._finish

    def moving(run: Run, log: Log) -> DurableSteps[LogReport]:
        checkpoint.write_text("0\n1\nodd 0 16\n")
        return finish(run, log)

    monkeypatch.setattr(Run, "_finish", moving)
    assert erase.main(call) == 1
    assert "cleaner-offset-checkpoint has offset 16, it had offset 5" in capsys.readouterr().err


@pytest.mark.spark
def test_a_run_on_spark_erases_and_leaves_nothing_of_the_keys_in_sparks_files(tmp_path: Path) -> None:
    logs, local = unpack_sample(tmp_path), tmp_path / "spark"
    local.mkdir()
    keys, report = tmp_path / "keys", tmp_path / "report.json"
    keys.write_bytes(b"".join(b"no-such-key-%d\n" % number for number in range(100_000)))
    call = ["--log-dir", str(logs), "--keys", str(keys), "--where", "regex=.*1.*", "--include-active", "--report", str(report)]
    call += ["--engine", "spark"]
    ended = run("erase", *call, "--topic", "orders", "payments", SPARK_LOCAL_DIRS=str(local), TMPDIR=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    document = json.loads(report.read_text())
    assert document["totals"]["erased_records"] > 0
    left = [path for path in (*local.rglob("*"), *logs.rglob("*")) if path.is_file()]
    assert not [path for path in left if b"no-such-key-" in path.read_bytes()]
    assert not list(logs.rglob("*.deleted"))
