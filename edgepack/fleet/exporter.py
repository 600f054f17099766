"""A page of metrics over HTTP, for a Prometheus on this machine."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator

from edgepack.base.errors import UsageError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOOPBACK = "127.0.0.1"
# Names by which a program on this machine asks: another one may be a web page's own, pointed here.
_HOSTS = ("localhost", _LOOPBACK)
_ASK_S = 30.0


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        super().__init__((_LOOPBACK, port), _PageHandler)
        self.text = text


class _PageHandler(http.server.BaseHTTPRequestHandler):
    timeout = _ASK_S
    server: _Server
    server_version, sys_version = "edgepack", ""

    def do_GET(self) -> None:
        """The page, and nothing else."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS:
            self.send_error(403, "ask by localhost")
        elif self.path != "/metrics":
            self.send_error(404, "there is /metrics")
        else:
            body = self.server.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: Prometheus asks all the time."""


@contextlib.contextmanager
def export(port: int, text: Callable[[], str]) -> Iterator[str]:
    """Serve what `text` gives at /metrics, on loopback alone; where. 0 takes any free port.

    Raises UsageError if nothing can listen there.
    """
    try:
        server = _Server(port, text)
    except OSError as error:
        raise UsageError(
            f"--port: cannot listen on {_LOOPBACK}:{port}: {error.strerror}",
            hint="choose another port",
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{_LOOPBACK}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
