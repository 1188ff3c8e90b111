"""The examples of all documents and of the help, as users run them: single calls, for which places that exist here are put for
those that they name, the commands of recipes, and Python on logs that need workers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

import compaction
from compaction.cli import console
from compaction.cli.console import PROGRAM, SUBMIT
from compaction.cli.parser import APPLICATIONS, Parser
from tests.golden import unpack_sample
from tests.jvm import spark_variables
from tests.large_log import KEYS, replace_log, write_large_log
from tests.processes import ROOT, output_of

MODULES = {name: console.application(name) for name in console.COMMANDS}
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "conf").rglob("*.md")])
#: a call with its continuation lines, up to a comment, a pipe, or the end of a quoted command
CALL = re.compile(rf"^(?:\S+=\S+ )*(?:[\d*]+ +)*((?:{PROGRAM} [a-z]|{SUBMIT} jobs/)(?:[^\n\\]|\\\n|\\.)*)", re.MULTILINE)


def parser_of(command: str) -> Parser:
    return Parser(console.load(command).OPTIONS)


def calls(text: str) -> list[str]:
    return [re.split(r" +# | [|>](?: |$)|\)\"$", call.replace("\\\n", " "))[0] for call in CALL.findall(text)]


@pytest.mark.parametrize("name", MODULES)
def test_every_call_in_the_help_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command and as an application of ``spark-submit``."""
    module = MODULES[name]
    shown = {f"{PROGRAM} {name}": f"{PROGRAM} {name}", f"/x/jobs/{module}.py": f"{SUBMIT} jobs/{module}.py"}
    for started, expected in shown.items():
        monkeypatch.setattr("sys.argv", [started])
        if started.endswith(".py") and module not in APPLICATIONS:
            continue
        text = re.sub("^ +", "", parser_of(name).format_help(), flags=re.MULTILINE)
        assert text.startswith(f"usage: {expected} ")
        quoted = calls(text)
        assert len(quoted) >= 2 or name in ("warm-up", "completion")
        for call in quoted:
            assert f"{call} ".startswith(f"{expected} ")
            call = re.sub(r"\$\(date [^)]*\)", "2026-11-22T02:00Z", call).replace("…", "")
            parser_of(name).parse_args(shlex.split(call)[2:])


def test_every_command_that_a_message_names_exists() -> None:
    sources = [path for part in ("compaction", "jobs", "conf") for path in (ROOT / part).rglob("*.py")]
    named = {word for path in sources for word in re.findall(rf"{PROGRAM} ([a-z][a-z-]*)\b", path.read_text())}
    # "... in which kafka-log-compaction is installed", and the end of an address in an example
    assert named - set(MODULES) <= {"is", "python"}
    assert {"count", "dry-run", "warm-up"} <= named


def test_no_document_or_message_installs_this_package_from_an_index() -> None:
    """No index has it: what is installed is a wheel, or a checkout."""
    files = [*DOCUMENTS, *(path for part in ("compaction", "jobs", "conf") for path in (ROOT / part).rglob("*.py"))]
    pattern = re.compile(rf"(?:install|--from) ['\"]?{PROGRAM}(?!-)")
    assert [path.name for path in files if pattern.search(path.read_text())] == []


#: an example whose host is another machine; tests/object_store runs such servers
NOT_HERE = "endpoint_override=minio"
#: times: those of the sample's records begin on 2025-10-09
_TIMES = {r"\$\(date [^)]*\)": "2026-11-22T02:00Z", r"\$\{DAY\}|\$DAY\b": "2026-11-22", "2024-12-03T": "2025-10-11T"}
#: names and offsets that the sample has, for those of examples
_NAMES = {"page-views": "sessions", "__consumer_offsets-7": "__consumer_offsets-0", "orders-0:4711": "orders-0:3", "4711": "3"}
_EXPORTS = {"aiven+s3://tiered/kafka-1": "aiven", "backup+s3://backups/kafka/nightly": "backup"}
#: files that commands write, in the working directory
_FILES = ("--html", "--report", "--metrics")
_BROKER_LOG = "[2026-11-22 02:00:01,001] INFO Starting the log cleaner (org.apache.kafka.storage.internals.log.LogCleaner)\n"


def examples() -> list[tuple[str, str]]:
    """Every example, as the document or command that has it and its words on one line."""
    texts = {page.name: page.read_text() for page in DOCUMENTS}
    helps = {name: re.sub("^ +", "", parser_of(name).format_help(), flags=re.MULTILINE) for name in MODULES}
    found = ((source, " ".join(call.split())) for source, text in {**texts, **helps}.items() for call in calls(text))
    return sorted(set(found))


class Sample:
    """The sample logs, which no example may change, and what other commands have to make of them first."""

    def __init__(self, directory: Path) -> None:
        self.logs = unpack_sample(directory)
        self._directory = directory
        self._made: dict[tuple[str, ...], Path] = {}

    def arguments(self, call: str, place: Path) -> list[str]:
        """The arguments of a call that runs in ``place``, for which all that it reads has been made."""
        for pattern, known in _TIMES.items():
            call = re.sub(pattern, known, call)
        return _Example(self, place, shlex.split(call)[1:]).arguments()

    def made(self, *arguments: str) -> Path:
        """The output of a command, which is run once for the same arguments."""
        if arguments not in self._made:
            output = self._made[arguments] = self._directory / f"made-{len(self._made)}"
            must_run([*arguments, "--output-dir", str(output)], self._directory)
        return self._made[arguments]

    def compacted(self) -> Path:
        """A copy of the logs that was compacted in place."""
        own = self._directory / "compacted"
        if not own.exists():
            must_run(["compact", "--log-dir", str(shutil.copytree(self.logs, own))], self._directory)
        return own

    def export(self, layout: str) -> str:
        """The address of an export of a topic."""
        losses = ["--accept-loss"] if layout == "backup" else []
        policy = ["--topic", "orders", "--set", "cleanup.policy=delete"]
        output = self.made("compact", "--log-dir", str(self.logs), *policy, "--output-layout", layout, *losses)
        return f"{layout}+file://{output}"


@dataclass
class _Example:
    """One example: its words are given values that exist here."""

    sample: Sample
    place: Path
    words: list[str]

    def arguments(self) -> list[str]:
        values, option = [self.words[0]], ""
        for word in self.words[1:]:
            option = word if word.startswith("--") else option
            values.append(word if word.startswith("--") else self._value(option, word))
        self._prepare(values)
        return values

    def _value(self, option: str, word: str) -> str:
        """The value of an option for the example's own one."""
        if option in ("--log-dir", "--before", "--metadata"):
            return self._source(option, word)
        if option == "--in-place":
            return str(self._own() if "--certificate" in self.words else self.sample.compacted())
        if option == "--files":
            return self._file(word)
        if option in ("--output-dir", "--since", "--after"):
            return str(self.place / option.strip("-"))
        return Path(word).name if option in _FILES else _NAMES.get(word, self._written(option, word))

    def _source(self, option: str, word: str) -> str:
        if word in _EXPORTS:
            return self.sample.export(_EXPORTS[word])
        in_place = self.words[0] in ("compact", "expire", "erase") and not {"--output-dir", "--dry-run"} & set(self.words)
        return str(self._own() if in_place and option == "--log-dir" else self.sample.logs)

    def _own(self) -> Path:
        """A log directory that the example may change."""
        own = self.place / "logs"
        if not own.exists():
            shutil.copytree(self.sample.logs, own)
        return own

    def _file(self, word: str) -> str:
        for address, layout in _EXPORTS.items():
            if word.startswith(address):
                return self.sample.export(layout) + word.removeprefix(address)
        name = re.findall(r"(?:orders|__consumer_offsets)-.*", word)[0]
        return str(self.sample.logs / re.sub("^__consumer_offsets-[^/]*", "__consumer_offsets-0", name))

    def _written(self, option: str, word: str) -> str:
        """A file that the example reads, or any other word as it is."""
        # a key that remains in the last segments is an error
        key = "customers-00009" if "--include-active" in self.words or self.words[0] == "verify" else "nobody"
        texts = {"--config": "log.retention.hours=168\n", "--broker-log": _BROKER_LOG, "--keys": f"{key}\n"}
        if option not in texts:
            return word
        file = self.place / Path(word).name
        if file.suffix == ".parquet":
            parquet.write_table(pa.table({self.words[self.words.index("--keys-column") + 1]: [key]}), file)
        else:
            file.write_text(texts[option])
        return file.name

    def _prepare(self, values: list[str]) -> None:
        """Runs what the example has to find."""
        given = dict(zip(values, values[1:], strict=False))
        if "--after" in given:
            others = [*values[1:]]
            for option in ("--before", "--after"):
                del others[others.index(option) : others.index(option) + 2]
            values[values.index("--after") + 1] = str(self.sample.made("compact", "--log-dir", given["--before"], *others))
        if "--since" in given:
            first = ["compact", "--log-dir", given["--log-dir"], "--output-dir", given["--since"], "--replace"]
            must_run(first, self.place)
        if values[0] == "verify" and "--certificate" in given:
            keys = ["--keys", given["--keys"], "--include-active", "--certificate", given["--certificate"]]
            must_run(["erase", "--log-dir", given["--in-place"], *keys], self.place)


_EXAMPLES = [each for each in examples() if NOT_HERE not in each[1]]


def test_only_one_example_is_left_out() -> None:
    (left_out,) = (shlex.split(call) for _, call in examples() if NOT_HERE in call)
    parser_of(left_out[1]).parse_args(left_out[2:])
    assert {shlex.split(call)[1] for _, call in _EXAMPLES} == set(MODULES)
    assert len(_EXAMPLES) > 75


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return Sample(tmp_path_factory.mktemp("sample"))


@pytest.mark.parametrize("call", [pytest.param(call, id=f"{source}: {call[21:70]}") for source, call in _EXAMPLES])
def test_an_example_runs(call: str, sample: Sample, tmp_path: Path) -> None:
    must_run(sample.arguments(call, tmp_path), tmp_path)


def must_run(arguments: list[str], place: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("COLUMNS", "80")
        assert console.main(arguments) == 0, arguments


#: commands of the system and of Kafka, which do nothing here
_STUBS = "kafka-server-start.sh() { :; }\n"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root with the sample as a broker's directory, as a backup and as a snapshot."""
    logs = unpack_sample(tmp_path / "unpacked")
    for name in ("var/lib/kafka/data", "backup/kafka-1", "snap/data"):
        shutil.copytree(logs, tmp_path / name)
    (tmp_path / "opt/kafka/logs").mkdir(parents=True)
    return tmp_path


def follow(page: str, place: Path) -> str:
    """The output of all commands of a page; each has to end with 0."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    script = "\n".join(_BLOCK.findall(text))
    # a value or the beginning of one
    script = re.sub(r"(?<=[ =])/(?=(?:var|backup|snap|opt)/)", f"{place}/", script)
    return run(["bash", "-e", "-c", _STUBS + script], place)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.log"))


def offsets(log_dir: Path) -> set[tuple[str, int, int]]:
    """The newest record of each key."""
    rows = compaction.read_arrow(log_dir, view="latest", columns=["topic", "partition", "offset"]).read_all().to_pylist()
    return {(row["topic"], row["partition"], row["offset"]) for row in rows}


def test_a_full_disk_gets_space_and_keeps_what_its_policies_keep(place: Path) -> None:
    data = place / "var/lib/kafka/data"
    before = size_of(data)
    follow("disk-full.md", place)
    assert size_of(data) < before
    assert list(data.rglob("*.deleted")) == []
    kept, all_newest = offsets(data), offsets(place / "snap/data")
    assert {name for name, *_ in kept} >= {"orders", "customers", "prices"}
    assert kept <= all_newest


def test_each_night_has_a_complete_copy(place: Path) -> None:
    shown = follow("nightly-copy.md", place)
    nights = sorted((place / "backup").glob("2026-*"))
    assert [night.name for night in nights] == ["2026-11-22", "2026-11-23"]
    assert "16 logs: 16 hold" in shown
    for night in nights:
        assert offsets(night) == offsets(nights[0])
        assert size_of(night) < size_of(place / "snap/data")


def test_an_erased_person_does_not_come_back_with_a_restored_backup(place: Path) -> None:
    (place / "erased-keys.txt").write_text("customers-00009\n")
    follow("erase-from-backups.md", place)
    for log_dir in (place / "backup/kafka-1", place / "var/lib/kafka/restored"):
        keys = compaction.read_arrow(log_dir, "customers", columns="key").read_all()["key"].to_pylist()
        assert keys
        assert b"customers-00009" not in keys
    unerased = compaction.read_arrow(place / "snap/data", "customers", columns="key").read_all()["key"].to_pylist()
    assert b"customers-00009" in unerased


def test_the_size_of_a_topic_is_shown_now_and_later(place: Path) -> None:
    shown = follow("topic-size.md", place)
    assert re.search(r"^orders +bytes", shown, re.MULTILINE)
    assert (place / "size.html").stat().st_size > 10_000


def test_an_uncleanable_partition_is_named_and_compacted(place: Path) -> None:
    log = place / "opt/kafka/logs/log-cleaner.log"
    page = (ROOT / "docs/uncleanable.md").read_text(encoding="utf-8")
    (line,) = re.findall("^WARN.*", page, re.MULTILINE)
    log.write_text(_BROKER_LOG)
    follow("uncleanable.md", place)
    log.write_text(f"{_BROKER_LOG}{line}\njava.io.IOException: No space left on device\n")
    found = compaction.doctor(place / "snap/data", broker_logs=log)
    assert [Path(check.area).name for check in found.checks if "given up" in check.name] == ["orders-0"]


#: the tests that run the examples of a page, and the number of these
RUN_BY = {
    "README.md": ("engines/test_workers.py", 1),
    "airflow.md": ("airflow/test_dag.py", 1),
    "data-source.md": ("test_examples.py", 2),
    # on files of other programs, which only Spark reads
    "exports.md": ("source/test_pages.py", 2),
    # the engine: engines/test_workers.py; the option is a part of a module
    "how-to-add.md": ("test_examples.py", 4),
    "newest-values.md": ("test_examples.py", 3),
    "python.md": ("engines/test_workers.py", 1),
    "tables.md": ("source/test_pages.py", 7),
}


def blocks(page: str) -> list[str]:
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_every_page_with_examples_has_a_test_that_runs_them() -> None:
    pages = ["README.md", *(path.name for path in (ROOT / "docs").glob("*.md"))]
    assert {page: len(blocks(page)) for page in pages if blocks(page)} == {page: n for page, (_, n) in RUN_BY.items()}
    for page, (module, _) in RUN_BY.items():
        assert page in (ROOT / "tests" / module).read_text(encoding="utf-8"), page


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with a log that needs workers."""
    place = tmp_path_factory.mktemp("large")
    log_dir = unpack_sample(place)
    replace_log(log_dir, "orders", write_large_log(place / "log", step_ms=60_000) / "orders-0")
    return log_dir


def run(command: list[str], place: Path, program: str = "") -> str:
    """The standard output of a command in the activated environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    packages = os.pathsep.join([str(place), str(ROOT)])
    return output_of(command, cwd=place, given=program, PATH=path, PYTHONPATH=packages, **spark_variables())


SESSION = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("registered", [False, True], ids=["found by Spark", "registered"])
def test_the_examples_of_the_data_source_read_a_large_log(registered: bool, logs: Path, tmp_path: Path) -> None:
    """From standard input, as in a shell."""
    read, register = blocks("data-source.md")
    count = f"print(orders.where('partition = 0').select('key').distinct().count(), {KEYS} + 1)"
    program = SESSION + (register if registered else "") + read.replace("/backup/kafka-1", str(logs)) + count
    found = run([sys.executable, "-"], tmp_path, program)
    assert "|count|" in found
    assert found.splitlines()[-1] == f"{KEYS + 1} {KEYS + 1}"


@pytest.mark.slow
def test_the_newest_values_of_a_large_log_go_into_duckdb_polars_and_a_file(logs: Path, tmp_path: Path) -> None:
    program = "\n".join(blocks("newest-values.md")).replace("/backup/kafka-1", str(logs))
    shown = run([sys.executable, "-"], tmp_path, program)
    partitions = {path.name.partition("-")[2] for path in logs.glob("orders-*")}
    assert set(re.findall(r"^│ +(\d+) │ +\d+ │ \d{4}-", shown, re.MULTILINE)) == partitions
    assert re.search(r"key +┆ value +┆ superseded", shown)
    newest = parquet.read_table(tmp_path / "orders.parquet")
    assert newest.filter(pc.field("partition") == 0).num_rows == KEYS + 1


@pytest.mark.slow
def test_the_export_layout_of_how_to_add_md_passes_its_own_test(logs: Path, tmp_path: Path) -> None:
    """In a package with the page's three files, as it is installed."""
    page = (ROOT / "docs/how-to-add.md").read_text(encoding="utf-8")
    layout, test = blocks("how-to-add.md")[:2]
    (entry_point,) = re.findall(r"^(\[project.entry-points.*\]\n.*\n)", page, re.MULTILINE)
    group, name = re.findall(r'entry-points\."(.+)"\]\n(.*)', entry_point)[0]
    metadata = tmp_path / "flat_layout-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flat-layout\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name.replace(chr(34), '')}\n")
    (tmp_path / "flat_layout.py").write_text(layout)
    (tmp_path / "test_flat_layout.py").write_text(test)
    (tmp_path / "kafka-logs").symlink_to(logs)
    assert "1 passed" in run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_flat_layout.py"], tmp_path)
