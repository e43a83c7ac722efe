"""/metrics, /readyz and /healthz: a small server for the loopback address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from tias_slurm.errors import InputError, printable

TEXT = "text/plain; version=0.0.4; charset=utf-8"
_IDLE_S = 10.0  # a client that says nothing for so long is sent away


class Answers(NamedTuple):
    """What the server tells. `ready` and `healthy` return why not; "": yes."""

    metrics: Callable[[], bytes]
    ready: Callable[[], str]
    healthy: Callable[[], str]


class Server:
    """Serves in a thread of its own until `close`."""

    def __init__(self, listen: tuple[str, int], answers: Answers) -> None:
        """`listen`: address and port. Raises InputError if that cannot be had."""
        host, port = listen

        class Handler(_Handler):
            told = answers

        kind = type("_Server6", (_Server,), {"address_family": socket.AF_INET6}) if ":" in host else _Server
        try:
            self._server = kind((host, port), Handler)
        except OSError as error:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise InputError(
                f"[metrics] listen: {printable(where)}: {error.strerror or error}; choose a free address"
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no event."""


class _Handler(BaseHTTPRequestHandler):
    told: Answers
    timeout = _IDLE_S
    server_version = "tias-slurm"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, self.told.metrics(), TEXT)
        elif path in ("/readyz", "/healthz"):
            why = self.told.ready() if path == "/readyz" else self.told.healthy()
            self._send(503 if why else 200, f"{why or 'ok'}\n".encode())
        else:
            self._send(404, b"/metrics, /readyz or /healthz\n")

    do_HEAD = do_GET  # noqa: N815

    def _send(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not logged: a scrape is no event."""
