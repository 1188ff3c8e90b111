"""moto's S3 server in this process, behind a gate that tests close: requests are recorded, refused, cut off or watched."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

REGION = "eu-west-1"
ACCESS_KEY, SECRET_KEY = "AKIAOBJECTSTORETEST", "not-to-be-seen-anywhere"

Environ = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request as it came in; ``number`` counts from 1."""

    number: int
    method: str
    key: str
    query: dict[str, list[str]]
    #: of the range of an object that it requests
    range_bytes: int | None
    #: whether it copies an object inside the store
    copies: bool = False

    @property
    def ranged(self) -> bool:
        """Whether it requests a range of an object."""
        return self.range_bytes is not None

    @property
    def is_write(self) -> bool:
        """Whether it writes an object, or begins or ends that."""
        return self.method in ("PUT", "POST")

    @property
    def is_part(self) -> bool:
        """Whether it uploads a part of an object."""
        return self.method == "PUT" and "partNumber" in self.query


class Refusal(Exception):
    """Answers a request with an error."""

    def __init__(self, status: str, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


class CutOff(Exception):
    """Closes the connection: half way through the answer, or before anything is answered."""


SLOW_DOWN = Refusal("503 Slow Down", "SlowDown")
DENIED = Refusal("403 Forbidden", "AccessDenied")

#: looks at a request before the server does; may raise ``Refusal`` or ``CutOff``
Gate = Callable[[Request], None]


def every(n: int, error: Exception) -> Gate:
    """Fails every ``n``-th request."""

    def gate(request: Request) -> None:
        if request.number % n == 0:
            raise error

    return gate


def once(error: Exception, concerned: Callable[[Request], bool]) -> Gate:
    """Fails the first request of each kind, key and part of those that are concerned."""
    seen: set[tuple[str, str]] = set()

    def gate(request: Request) -> None:
        name = (request.method, f"{request.key} {request.query.get('partNumber')}")
        if concerned(request) and name not in seen:
            seen.add(name)
            raise error

    return gate


class Store:
    """The server. ``requests`` are those since the last ``forget``."""

    def __init__(self) -> None:
        # other suites collect these tests without having the server
        from moto.moto_server.werkzeug_app import create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = create_backend_app("s3")
        self._gate: Gate = lambda request: None
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_quiet_handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.endpoint = f"127.0.0.1:{self._server.port}"

    @property
    def options(self) -> str:
        """The options of a URI of this server."""
        return f"?endpoint_override={self.endpoint}&scheme=http&region={REGION}"

    def stop(self) -> None:
        self._server.shutdown()

    def forget(self) -> None:
        self.requests = []

    @contextmanager
    def gate(self, gate: Gate) -> Iterator[None]:
        """Routes all requests through ``gate``."""
        self._gate, before = gate, self._gate
        self.forget()
        try:
            yield
        finally:
            self._gate = before

    def _answer(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
            key = environ["PATH_INFO"].lstrip("/")
            method, range_bytes = environ["REQUEST_METHOD"], _range_bytes(environ.get("HTTP_RANGE"))
            copies = "HTTP_X_AMZ_COPY_SOURCE" in environ
            request = Request(len(self.requests) + 1, method, key, query, range_bytes, copies)
            self.requests.append(request)
        try:
            self._gate(request)
        except Refusal as refusal:
            # the rest of the request must not be parsed as the next one
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(refusal.status, [("Content-Type", "application/xml"), ("Content-Length", str(len(refusal.body)))])
            return [b"" if request.method == "HEAD" else refusal.body]
        except CutOff:
            return self._cut_off(environ, start)
        answered: Iterable[bytes] = self._app(environ, start)
        return answered

    def _cut_off(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET":
            body = b"".join(self._app(environ, start))
            return [body[: len(body) // 2]]
        environ["wsgi.input"] = io.BytesIO()
        raise ConnectionError("cut off by the test")


def _range_bytes(header: str | None) -> int | None:
    """The size of a range such as ``bytes=0-9``."""
    if header is None:
        return None
    first, last = header.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


def _quiet_handler() -> type:
    """One connection per request, for tests of clients."""
    from werkzeug.serving import WSGIRequestHandler

    class Quiet(WSGIRequestHandler):  # type: ignore[misc]
        """No operation: requests that were cut off are expected."""

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Nothing."""

        def handle_one_request(self) -> None:
            """One request."""
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

    return Quiet
