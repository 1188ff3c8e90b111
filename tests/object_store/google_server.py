"""A server of the protocol of Google Cloud Storage, as ``python -m tests.object_store.google_server``: it prints its port.

It has a process of its own, as pyarrow holds the interpreter while it opens an object to read. ``/test/…`` is for the tests: it
tells what was asked for, and sets a gate that refuses requests.
"""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.storage import Storage

#: names in a page of a listing; the store's own thousand would only take longer
_PAGE = 100


class Memory(Storage):  # type: ignore[misc]
    """Objects in memory."""

    def _write_config_to_file(self) -> None:
        """No operation: the state is not persistent."""


class Response(emulator.Response):  # type: ignore[misc]
    """An answer; listings come in pages, which the emulator's do not."""

    def json(self, obj: dict[str, Any]) -> None:
        if obj.get("kind") == "storage#objects":
            start = int(parse_qs(urlsplit(self._handler.path).query).get("pageToken", ["0"])[0])
            more = {"nextPageToken": str(start + _PAGE)} if start + _PAGE < len(obj["items"]) else {}
            obj = {**obj, "items": obj["items"][start : start + _PAGE], **more}
        super().json(obj)


class Gate:
    """Which requests are let through. A rule (JSON): ``method``, ``part`` of the key, ``media`` (whether it reads content),
    ``status`` to answer with, ``times``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rules: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []

    def status(self, request: dict[str, Any]) -> int | None:
        """What to answer instead of the server; ``None``: nothing."""
        with self._lock:
            self.requests.append(request)
            for rule in self.rules:
                if rule["times"] and rule["part"] in request["key"] and all(request[k] == rule[k] for k in ("method", "media")):
                    rule["times"] -= 1
                    return int(rule["status"])
        return None


class Handler(emulator.RequestHandler):  # type: ignore[misc]
    """One request. The emulator's state is single-threaded; a slow client does not block other requests."""

    lock = threading.Lock()
    gate = Gate()
    wfile: Any

    def _answer(self, do: Callable[[], None]) -> None:
        address = urlsplit(self.path)
        if address.path.startswith("/test/"):
            return self._for_tests(address.path)
        query = parse_qs(address.query)
        key = query["name"][0] if "name" in query else unquote(address.path.partition("/o/")[2])
        told = {"media": query.get("alt") == ["media"], "page": query.get("pageToken"), "range": self.headers.get("Range")}
        status = self.gate.status({"method": self.command, "key": key, **told})
        if status is not None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return self._send(status, b"{}")
        client: Any = self.wfile
        answer = self.wfile = io.BytesIO()
        try:
            with self.lock:
                do()
        finally:
            self.wfile = client
        client.write(answer.getvalue())
        return None

    def _for_tests(self, path: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/test/gate":
            self.gate.rules, self.gate.requests = json.loads(body), []
        self._send(200, json.dumps(self.gate.requests).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_header(self, keyword: str, value: str) -> None:
        """The emulator says of an upload that has nothing yet that it has a byte; the store says nothing."""
        if (keyword, value) != ("Range", "bytes=0-0"):
            super().send_header(keyword, value)

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def do_PUT(self) -> None:
        self._answer(super().do_PUT)

    def do_POST(self) -> None:
        self._answer(super().do_POST)

    def do_DELETE(self) -> None:
        self._answer(super().do_DELETE)

    def handle_one_request(self) -> None:
        """A client that was killed, or has read enough, is no news."""
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True


class Server(ThreadingHTTPServer):
    """Any number of connections at once."""

    request_queue_size = 256


if __name__ == "__main__":
    logging.disable()
    emulator.Response = Response
    server = Server(("127.0.0.1", 0), partial(Handler, Memory(use_memory_fs=True)))
    print(server.server_port, flush=True)
    server.serve_forever()
