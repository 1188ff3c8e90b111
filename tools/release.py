"""``python -m tools.release``: builds the packages of a release, and tries them as a user has them. ``make release`` runs it.

The wheel and the source distribution are built into ``dist/``. Each is installed into an empty environment, in which the sample
logs are compacted by each engine: worker processes, a Spark session, and a Spark Connect server. All must leave the same bytes.
Then it prints what to upload, and the licences of what users install. Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compaction import __version__
from tests.kafka.broker import free_ports, listens

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SAMPLE, SAMPLE_AS_OF_MS = ROOT / "tests/golden/sample-logs.tar.gz", "1798761600000"
_SERVER_STARTS_S = 180.0


def unready(version: str) -> list[str]:
    """What contradicts the version of the package: the changelog, the citation, images, and changes without a commit."""
    problems = []
    if f"## [{version}] - " not in (ROOT / "CHANGELOG.md").read_text():
        problems.append(f"CHANGELOG.md has no section [{version}]")
    citation = ROOT / "CITATION.cff"
    if citation.exists() and not re.search(rf'^version: "?{re.escape(version)}"?$', citation.read_text(), re.MULTILINE):
        problems.append(f"CITATION.cff does not have the version {version}")
    for path in (ROOT / "docs/kubernetes.md", *sorted((ROOT / "conf/kubernetes").glob("*.yaml"))):
        named = set(re.findall(r"kafka-log-compaction(?:-spark)?:([\w.]+)", path.read_text()))
        problems += [f"{path.relative_to(ROOT)} names the image {other}" for other in sorted(named - {version})]
    return problems


def build() -> tuple[Path, Path]:
    """The wheel and the source distribution of this checkout."""
    shutil.rmtree(DIST, ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", DIST, ROOT])
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])
    return wheel, sdist


def install(package: Path, place: Path) -> Path:
    """Installs a package and all that it needs into an empty environment; returns its directory of commands."""
    run([sys.executable, "-m", "venv", place])
    run([place / "bin/python", "-m", "pip", "install", "-c", ROOT / "constraints.txt", f"{package}[connect]"])
    shown = run([place / "bin/kafka-log-compaction", "--version"]).strip()
    if shown != f"kafka-log-compaction {__version__}":
        raise SystemExit(f"{package.name} installs {shown}")
    return place / "bin"


def compact_by_each_engine(commands: Path, place: Path) -> dict[str, float]:
    """The seconds of each engine for the sample.

    :raises SystemExit: two engines leave different bytes
    """
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(place, filter="data")
    (source,) = place.iterdir()
    seconds, bytes_of = {}, {}
    with connect_server(commands, place) as remote:
        for engine in ("local", "spark", "connect"):
            began, output = time.monotonic(), place / f"by-{engine}"
            call: list[str | Path] = [commands / "kafka-log-compaction", "compact", "--engine", engine, "--log-dir", source]
            call += ["--output-dir", output, "--as-of-ms", SAMPLE_AS_OF_MS, "--include-active"]
            run(call, cwd=place, **({"SPARK_REMOTE": remote} if engine == "connect" else {}))
            seconds[engine], bytes_of[engine] = time.monotonic() - began, contents(output)
    if any(found != bytes_of["local"] for found in bytes_of.values()) or not bytes_of["local"]:
        raise SystemExit(f"the engines left different bytes in {place}")
    return seconds


def contents(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file of an output, by its path; without the lock, which is empty."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextmanager
def connect_server(commands: Path, place: Path) -> Iterator[str]:
    """The address of a Spark Connect server of the environment, which runs in the block."""
    (port,) = free_ports(1)
    spark = Path(run([commands / "python", "-c", "import pyspark; print(*pyspark.__path__)"]).strip())
    log = place / "server.log"
    settings = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false", "spark.local.dir": place / "local"}
    options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    own = {"SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": spark}
    own |= {"SPARK_LOG_DIR": place, "SPARK_PID_DIR": place, "PYSPARK_PYTHON": commands / "python"}
    with log.open("wb") as out:
        server = subprocess.Popen(
            [spark / "sbin/start-connect-server.sh", "--master", "local[2]", *options],
            env=environment(**{name: str(value) for name, value in own.items()}), cwd=place,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _SERVER_STARTS_S
        while not listens(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the Spark Connect server did not start:\n" + log.read_text(errors="replace")[-2000:])
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def licences(commands: Path) -> str:
    """The table of what an environment with the package has."""
    (packages,) = commands.parent.glob("lib/*/site-packages")
    call = [sys.executable, "-m", "tools.licences", "--extras", "connect"]
    return run(call, cwd=ROOT, PYTHONPATH=str(packages))


def environment(**own: str) -> dict[str, str]:
    """The variables of a new process, which uses nothing of this checkout's environment."""
    foreign = ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_REMOTE", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS")
    return {**{name: value for name, value in os.environ.items() if name not in foreign}, **own}


def run(command: Sequence[str | Path], cwd: Path = ROOT, **own: str) -> str:
    """The standard output of a command.

    :raises SystemExit: it fails
    """
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment(**own), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def main() -> None:
    """Builds, tries, and prints what to upload."""
    problems = unready(__version__)
    if (ROOT / ".git").exists() and run(["git", "status", "--porcelain"]).strip():
        problems.append("the checkout has changes that are not committed")
    if problems:
        raise SystemExit("not ready to be released: " + "; ".join(problems))
    packages = build()
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        for package in packages:
            place = Path(scratch, package.suffix[1:])
            commands = install(package, place)
            sample = Path(scratch, f"sample-{package.suffix[1:]}")
            seconds = compact_by_each_engine(commands, sample)
            times = ", ".join(f"{engine} {took:.1f} s" for engine, took in seconds.items())
            print(f"{package.name}: installed; the sample has the same bytes by each engine: {times}", flush=True)
        table = licences(commands)
    print(f"\nLicences of what it installs:\n\n{table}\nTo upload:\n")
    for package in packages:
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        print(f"  {package.relative_to(ROOT)}, {package.stat().st_size:,} bytes, SHA-256 {digest}")
    print(f"\n  git tag v{__version__} && git push origin v{__version__}\n  {sys.executable} -m twine upload dist/*")


if __name__ == "__main__":
    main()
