"""A server of Google Cloud Storage's protocol, a bucket a test, and ways to fill and read it that are not this package's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from compaction.files.calls import call
from tests.object_store.fixtures import Asked, Bucket

_ROOT = Path(__file__).resolve().parents[2]


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
        """A response's body, or its ``Location`` without a body."""
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


class GoogleBucket(Bucket):
    """A bucket of the server of Google Cloud Storage's protocol."""

    reading = frozenset({"GET"})
    denied = "PERMISSION_DENIED"
    page = 100
    # left to itself, the client waits for an answer to each of 17 writes
    parts = range(4, 7)

    def __init__(self, server: GoogleServer) -> None:
        super().__init__()
        self._server = server
        about = json.dumps({"name": self.name}).encode()
        server.ask("POST", "/storage/v1/b", about, {"Content-Type": "application/json"})

    def address(self, key: str = "") -> str:
        how = f"?endpoint_override={self._server.endpoint}&scheme=http&retry_limit_seconds=20"
        return f"gs://anonymous@{self.name}/{key}{how}".replace("/?", "?")

    def put(self, key: str, data: bytes) -> None:
        # in one request, the emulator does not take empty ones
        begin = f"/upload/storage/v1/b/{self.name}/o?uploadType=resumable&name={quote(key, safe='')}"
        session = self._server.ask("POST", begin).decode().partition(self._server.endpoint)[2]
        place = f"bytes 0-{len(data) - 1}/{len(data)}" if data else "bytes */0"
        self._server.ask("PUT", session, data, {"Content-Range": place})

    def remove(self, key: str) -> None:
        self._server.ask("DELETE", f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}")

    def get(self, key: str) -> bytes:
        return self._server.ask("GET", f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}?alt=media")

    def keys(self, prefix: str) -> list[str]:
        found: list[str] = []
        page = "0"
        while page:
            path = f"/storage/v1/b/{self.name}/o?prefix={quote(prefix, safe='')}%2F&pageToken={page}"
            listing = json.loads(self._server.ask("GET", path))
            found += [each["name"] for each in listing["items"]]
            page = listing.get("nextPageToken", "")
        return found

    def forget(self) -> None:
        """Begin a new list of requests, without rules."""
        self._server.gate()

    def asked(self) -> list[Asked]:
        return [
            Asked(
                request["method"],
                request["key"],
                part=request["method"] == "PUT",
                ranged=bool(request["range"]),
                next_page=bool(request["page"]),
            )
            for request in self._server.seen()["requests"]
        ]

    @contextmanager
    def refusing(self, part: str, *, reads: bool = False) -> Iterator[None]:
        self._server.gate({"method": "GET" if reads else "POST", "media": reads, "part": part, "status": 403})
        yield
        self._server.gate()

    @contextmanager
    def holding(self, part: str) -> Iterator[Callable[[], bool]]:
        self._server.gate({"method": "PUT", "part": part, "status": 0})
        yield lambda: bool(self._server.seen()["held"])
        self._server.gate()


@pytest.fixture
def google_bucket(google: GoogleServer) -> Iterator[GoogleBucket]:
    """An empty bucket."""
    google.gate()
    with call():
        yield GoogleBucket(google)
    google.gate()
