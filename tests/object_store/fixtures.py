"""An interface to buckets of any store, an S3-compatible store and a server of Google's protocol, with one bucket per test.

Buckets are filled and read by clients that are not this package's.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import quote

import pytest

from compaction.files.calls import call
from compaction.files.manifest import MANIFEST, MARKER
from tests.object_store.server import ACCESS_KEY, DENIED, REGION, SECRET_KEY, CutOff, Request, Store

_BUCKETS = itertools.count()
#: the longest time that a request is held
_HOLD_S = 120
_ROOT = Path(__file__).resolve().parents[2]


def files(directory: Path) -> dict[str, bytes]:
    """Path below a directory -> bytes of all files."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file()}


class Asked(NamedTuple):
    """A request to a server; ``key`` is empty if it concerns no object."""

    method: str
    key: str
    #: uploads a part of an object
    part: bool
    #: requests a range of an object
    ranged: bool
    #: requests a later page of a listing
    next_page: bool


class _Bucket(ABC):
    """One bucket, filled and read by a client that is not this package's.

    A bucket has its ``address`` as a user gives it, and records what is ``asked`` of its server since the last ``forget``.
    While it is ``refusing`` a part of a key, no such object can be written, or read.
    """

    #: methods that a run sends which only reads
    reading: frozenset[str]
    #: the client's error for denied access
    denied: str
    #: names in a page of a listing
    page: int
    #: how many requests may upload the parts of an object of some 30 MB
    parts: range

    def __init__(self) -> None:
        self.name = f"bucket-{next(_BUCKETS)}"

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Upload an object."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """An object's bytes."""

    @abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """Of all objects below ``prefix``."""

    def put_tree(self, directory: Path, prefix: str = "") -> None:
        for name, data in sorted(files(directory).items()):
            self.put(f"{prefix}/{name}".lstrip("/"), data)

    def tree(self, prefix: str) -> dict[str, bytes]:
        """Key below ``prefix`` -> bytes of all objects."""
        return {key[len(prefix) + 1 :]: self.get(key) for key in self.keys(prefix)}


def published(bucket: Bucket, prefix: str = "out") -> dict[str, bytes]:
    """The objects of a finished output, but for its manifest."""
    found = bucket.tree(prefix)
    assert MARKER not in found
    assert MANIFEST in found
    del found[MANIFEST]
    return found


@pytest.fixture(scope="session")
def store(missing: Callable[[str], None]) -> Iterator[Store]:
    if find_spec("moto") is None:
        missing("moto (pip install -e '.[suites]')")
    variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_EC2_METADATA_DISABLED": "true"}
    with patch.dict(os.environ, variables):
        server = Store()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def client(store: Store) -> Any:
    """Another client of the store."""
    import boto3

    return boto3.client("s3", endpoint_url=f"http://{store.endpoint}", region_name=REGION)


class S3Bucket(_Bucket):
    """A bucket of the S3 store."""

    reading = frozenset({"GET", "HEAD"})
    denied = "ACCESS_DENIED"
    page = 1000
    parts = range(2, 8)

    def __init__(self, client: Any, store: Store) -> None:
        super().__init__()
        self._client, self._store = client, store
        client.create_bucket(Bucket=self.name, CreateBucketConfiguration={"LocationConstraint": REGION})

    def address(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}{self._store.options}".replace("/?", "?")

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=key)

    def get(self, key: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def keys(self, prefix: str) -> list[str]:
        """All objects below ``prefix`` without directory markers."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=f"{prefix}/")
        return [found["Key"] for page in pages for found in page.get("Contents", ()) if not found["Key"].endswith("/")]

    def forget(self) -> None:
        self._store.forget()

    def asked(self) -> list[Asked]:
        keys = ((each, each.key.partition("/")[2], "continuation-token" in each.query) for each in self._store.requests)
        return [Asked(each.method, key, each.is_part, each.ranged, next_page) for each, key, next_page in keys]

    @contextmanager
    def refusing(self, part: str, *, reads: bool = False) -> Iterator[None]:

        def gate(request: Request) -> None:
            if part in request.key and (request.method == "GET" if reads else request.is_write):
                raise DENIED

        with self._store.gate(gate):
            yield

    @contextmanager
    def holding(self, part: str) -> Iterator[Callable[[], bool]]:
        """Holds writes of objects with this part in their keys, and drops them at the end; yields whether there was one."""
        held, dropped = threading.Event(), threading.Event()

        def gate(request: Request) -> None:
            if part in request.key and request.is_write:
                held.set()
                dropped.wait(_HOLD_S)
                raise CutOff

        with self._store.gate(gate):
            try:
                yield held.is_set
            finally:
                dropped.set()


@pytest.fixture
def bucket(store: Store, client: Any) -> Iterator[S3Bucket]:
    """An empty bucket."""
    store.forget()
    with call():
        yield S3Bucket(client, store)


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
        """The requests since the rules were given."""
        return json.loads(self.ask("GET", "/test/seen"))

    def stop(self) -> None:
        with self._process as process:
            process.terminate()


@pytest.fixture(scope="session")
def google(missing: Callable[[str], None]) -> Iterator[GoogleServer]:
    if find_spec("gcp_storage_emulator") is None:
        missing("gcp-storage-emulator (pip install -e '.[suites]')")
    server = GoogleServer()
    yield server
    server.stop()


class GoogleBucket(_Bucket):
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
        self._server.gate()

    def asked(self) -> list[Asked]:
        found = ((each["method"], each["key"], bool(each["range"]), bool(each["page"])) for each in self._server.seen())
        return [Asked(method, key, method == "PUT", ranged, next_page) for method, key, ranged, next_page in found]

    @contextmanager
    def refusing(self, part: str, *, reads: bool = False) -> Iterator[None]:
        self._server.gate({"method": "GET" if reads else "POST", "media": reads, "part": part, "status": 403})
        yield
        self._server.gate()


@pytest.fixture
def google_bucket(google: GoogleServer) -> Iterator[GoogleBucket]:
    """An empty bucket."""
    google.gate()
    with call():
        yield GoogleBucket(google)
    google.gate()


Bucket = S3Bucket | GoogleBucket
_S3 = pytest.param("bucket", id="s3", marks=pytest.mark.s3)
_GS = pytest.param("google_bucket", id="gs", marks=pytest.mark.gs)
#: for a test of what does not depend on the client of the store: on the one whose server takes less time
on_one_store = pytest.mark.parametrize("any_bucket", [_GS], indirect=True)


@pytest.fixture(params=[_S3, _GS])
def any_bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket of each store; only the servers of the selected stores are started."""
    found: Bucket = request.getfixturevalue(request.param)
    return found
