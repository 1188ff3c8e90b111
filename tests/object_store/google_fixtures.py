"""A server of Google Cloud Storage's protocol, a bucket a test, and ways to fill and read it that are not this package's."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from compaction.storage.places import OPTIONS_VARIABLE

_ROOT = Path(__file__).resolve().parents[2]
_BUCKETS = itertools.count()


class GoogleServer:
    """The server, in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.object_store.google_server"]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip().decode()
        assert port, "the server of Google Cloud Storage does not start"
        self.endpoint = f"127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
        """An answer's body, or where it has none the place that it names."""
        client = HTTPConnection(self.endpoint, timeout=60)
        with closing(client):
            client.request(method, path, body, headers or {})
            answer = client.getresponse()
            data = answer.read()
        assert answer.status == 200, (method, path, answer.status)
        return data or answer.getheader("Location", "").encode()

    def gate(self, *rules: dict[str, Any]) -> None:
        """From now on these rules; see ``google_server.Gate``."""
        whole = [{"method": "GET", "part": "", "media": False, "status": 503, "times": 10**9, **rule} for rule in rules]
        self.ask("POST", "/test/gate", json.dumps(whole).encode())

    def seen(self) -> Any:
        """``requests`` since the rules were given, and how many of them were ``held``."""
        return json.loads(self.ask("GET", "/test/seen"))

    def stop(self) -> None:
        """Ends it."""
        with self._process as process:
            process.terminate()


@pytest.fixture(scope="session")
def google(missing: Callable[[str], None]) -> Iterator[GoogleServer]:
    """The server."""
    if find_spec("gcp_storage_emulator") is None:
        missing("gcp-storage-emulator (pip install -e '.[suites]')")
    server = GoogleServer()
    yield server
    server.stop()


class GoogleBucket:
    """One bucket, filled and read by a client that is not this package's."""

    def __init__(self, server: GoogleServer, name: str) -> None:
        self._server, self.name = server, name
        server.ask("POST", "/storage/v1/b", json.dumps({"name": name}).encode(), {"Content-Type": "application/json"})

    def address(self, key: str = "") -> str:
        """As a user gives it."""
        how = f"?endpoint_override={self._server.endpoint}&scheme=http&retry_limit_seconds=20"
        return f"gs://anonymous@{self.name}/{key}{how}".replace("/?", "?")

    def put_tree(self, directory: Path, prefix: str) -> None:
        """Upload a directory."""
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                self.put(f"{prefix}/{file.relative_to(directory)}", file.read_bytes())

    def put(self, key: str, data: bytes) -> None:
        """Upload an object."""
        # in one request, the emulator does not take empty ones
        begin = f"/upload/storage/v1/b/{self.name}/o?uploadType=resumable&name={quote(key, safe='')}"
        session = self._server.ask("POST", begin).decode().partition(self._server.endpoint)[2]
        place = f"bytes 0-{len(data) - 1}/{len(data)}" if data else "bytes */0"
        self._server.ask("PUT", session, data, {"Content-Range": place})

    def tree(self, prefix: str) -> dict[str, bytes]:
        """Key below ``prefix`` -> bytes of all objects."""
        found: dict[str, bytes] = {}
        page = "0"
        while page:
            path = f"/storage/v1/b/{self.name}/o?prefix={quote(prefix, safe='')}%2F&pageToken={page}"
            listing = json.loads(self._server.ask("GET", path))
            found.update({each["name"][len(prefix) + 1 :]: self.get(each["name"]) for each in listing["items"]})
            page = listing.get("nextPageToken", "")
        return found

    def get(self, key: str) -> bytes:
        """An object's bytes."""
        return self._server.ask("GET", f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}?alt=media")


@pytest.fixture
def google_bucket(google: GoogleServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleBucket]:
    """An empty bucket."""
    monkeypatch.setenv(OPTIONS_VARIABLE, "{}")
    google.gate()
    yield GoogleBucket(google, f"bucket-{next(_BUCKETS)}")
    google.gate()
