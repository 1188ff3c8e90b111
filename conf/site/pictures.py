"""Makes the pictures of the documents: a dry run and a run on Spark on a terminal, the pages of a comparison and of a count of
bytes, of the sample logs; the page of policies through time, of the log in ``docs/over-time.md``; and charts of the times in
``docs/comparison.md``.

``python conf/site/pictures.py`` writes them to ``docs/pictures/``. The pages need a Chromium on the path.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
SAMPLE = ROOT / "tests/golden/sample-logs.tar.gz"
COLUMNS = 100
_LOGS = ("--log-dir", "kafka-1", "--as-of", "2027-01-01T00:00Z")
DRY_RUN = ("compact", *_LOGS, "--dry-run")
#: of ``spark-submit``, in the root of the project
ON_SPARK = ("--master", "local[*]", "--properties-file", "conf/spark-defaults.conf", "jobs/compact.py")
COPY = (*_LOGS, "--output-dir", "compacted")
COMPARISON = (
    "dry-run", *_LOGS, "--topic", "orders|clickstream|customers", "--html", "page.html",
    "--policy", "cleanup.policy=compact",
    "--policy", "cleanup.policy=delete,retention.ms=-1,retention.bytes=40kB",
    "--policy", "cleanup.policy=[compact,delete],retention.ms=-1,retention.bytes=40kB",
)  # fmt: skip
OVER_TIME = (
    "dry-run", "--log-dir", "kafka-1", "--as-of", "2024-12-03T00:00Z", "--over-time", "--ahead", "30d", "--html", "page.html",
    "--policy", "cleanup.policy=compact",
    "--policy", "cleanup.policy=compact,segment.ms=1d,delete.retention.ms=1h",
    "--policy", "cleanup.policy=compact,max.compaction.lag.ms=6h",
)  # fmt: skip
COUNT = ("count", *_LOGS, "--topic", "orders", "--bytes", "--html", "page.html")
#: row of the table in ``docs/comparison.md`` -> its name in the chart, and whether it is this project's
CHARTED = {
    "`kafka-log-compaction compact`": ("this project, worker processes", True),
    "`spark-submit jobs/compact.py`": ("this project, on Spark", True),
    "Kafka 4.4.0's cleaner": ("Kafka's cleaner", False),
    "DuckDB 2.0 on that export, `arg_max`": ("DuckDB, after an export to Parquet", False),
    "the data source, `max_by` of Spark SQL": ("Spark SQL, max_by", False),
}
_EXPORT = "an export to Parquet by the data source"
#: text, bars of others
CHARTS = {"speed-light.svg": ("#1f2328", "#8c959f"), "speed-dark.svg": ("#e6edf3", "#6e7681")}
_OURS = "#2f81f7"
#: rich's template loads fonts from another site: without them, the reader's own monospaced font is used
_FONT = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_BROWSER = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip


def main() -> None:
    """Makes all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name, make in TERMINALS.items():
        (PICTURES / name).write_text(make(), encoding="utf-8")
    for name in CHARTS:
        (PICTURES / name).write_text(chart(name), encoding="utf-8")
    screenshot(PICTURES / "policies.png", COMPARISON, _sample, 690)
    screenshot(PICTURES / "count.png", COUNT, _sample, 760)
    screenshot(PICTURES / "over-time.png", OVER_TIME, _customers, 740)


def dry_run() -> str:
    """A dry run's call and its result."""
    return svg("dry-run", f"kafka-log-compaction {' '.join(DRY_RUN)}", on_terminal(_command(DRY_RUN)))


def spark_run() -> str:
    """The call of a copy on Spark, the lines of its passes, and its result."""
    submit = str(Path(sys.executable).with_name("spark-submit"))
    on_spark = [str(ROOT / each) if "/" in each else each for each in ON_SPARK]
    call = f"spark-submit {' '.join(ON_SPARK)} \\\n    {' '.join(COPY)}"
    return svg("spark-run", call, on_terminal([submit, *on_spark, *COPY]))


#: the pictures of a terminal
TERMINALS = {"dry-run.svg": dry_run, "spark-run.svg": spark_run}


def chart(name: str) -> str:
    """Seconds of each way to the newest record of each key, as bars."""
    text, others = CHARTS[name]
    page = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
    seconds = {way: float(s) for way, s in re.findall(r"^\| ([^|]+) \| ([\d.]+) \| [\d.]+ \|", page, re.MULTILINE)[::-1]}
    after = {way: seconds[_EXPORT] if "export" in label else 0.0 for way, (label, _) in CHARTED.items()}
    names = [label for label, _ in CHARTED.values()]
    values = [seconds[way] + after[way] for way in CHARTED]
    figure = Figure(figsize=(8, 2.4), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(names, values, height=0.62, color=[_OURS if ours else others for _, ours in CHARTED.values()])
    axes.bar_label(bars, [f"{value:.1f} s" for value in values], padding=5, color=text)
    axes.set_title("Newest record of each key, 3.9 GB, 32 M records, 2 cores", loc="left", color=text, fontsize=10)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.12)
    axes.xaxis.set_visible(False)
    axes.tick_params(axis="y", length=0, colors=text)
    axes.spines[:].set_visible(False)
    drawn = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(drawn, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return re.sub(r" +$", "", drawn.getvalue(), flags=re.MULTILINE)


def on_terminal(command: Sequence[str]) -> str:
    """The passes and the result of a command, with the colours of a terminal."""
    master, terminal = pty.openpty()
    scripts = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "PATH": scripts, "PYTHONPATH": str(ROOT)}
    environment.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as steps:
        with os.fdopen(terminal, "wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the arguments are constants
                command, cwd=_sample(place), env=environment, stdout=output, stderr=steps
            )
        text = b""
        try:
            while block := os.read(master, 65536):
                text += block
        except OSError:
            # Linux reports the end of a terminal as EIO
            pass
        finally:
            os.close(master)
        if process.wait() != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
        steps.seek(0)
        passes = [line for line in steps.read().decode().splitlines(keepends=True) if line.startswith("pass ")]
    return "".join(passes) + text.decode().replace("\r\n", "\n")


def svg(name: str, call: str, result: str) -> str:
    """A terminal with a call and its result."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {call}\n", "bold"))
    console.print(Text.from_ansi(result.rstrip()))
    return console.export_svg(title="", code_format=_FONT.sub("", CONSOLE_SVG_FORMAT), unique_id=name)


def screenshot(target: Path, arguments: tuple[str, ...], logs: Callable[[str], Path], height: int) -> None:
    """The upper part of the page that a command makes.

    :raises FileNotFoundError: there is no Chromium
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("chromium is not on the path: install it")
    with tempfile.TemporaryDirectory() as place:
        directory = logs(place)
        subprocess.run(_command(arguments), cwd=directory, check=True, capture_output=True)  # noqa: S603 - constants
        page = directory / "page.html"
        page.write_text(page.read_text(encoding="utf-8").replace(place, "/backup"), encoding="utf-8")
        flags = (*_BROWSER, f"--window-size=1000,{height}", f"--user-data-dir={place}/profile", f"--screenshot={target}")
        call = [browser, *flags, page.as_uri()]
        subprocess.run(call, check=True, capture_output=True, timeout=120)  # noqa: S603 - a browser with constants


def _sample(place: str) -> Path:
    """A directory with the sample logs in ``kafka-1``."""
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(place, filter="data")
    directory = Path(place)
    next(path for path in directory.iterdir() if path.is_dir()).rename(directory / "kafka-1")
    return directory


def _customers(place: str) -> Path:
    """A directory with the log of ``docs/over-time.md`` in ``kafka-1``."""
    directory = Path(place)
    write = (sys.executable, "-m", "tests.policies.customers", str(directory / "kafka-1"))
    subprocess.run(write, cwd=ROOT, check=True)  # noqa: S603 - constants
    return directory


def _command(arguments: tuple[str, ...]) -> list[str]:
    return [str(Path(sys.executable).with_name("kafka-log-compaction")), *arguments]


if __name__ == "__main__":
    main()
