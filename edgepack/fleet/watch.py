"""A live page of a rollout, on loopback: one page, one stream of events, one button.

Who asks must know the address, which has 128 random bits in it, and must ask by a name of this
machine: a web page from elsewhere knows neither, even if its own name leads here. The page runs its
own script, named by its hash, and loads nothing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import secrets
import threading
from collections.abc import Callable, Iterator

from edgepack.base.errors import UsageError
from edgepack.base.page import text
from edgepack.fleet.watch_page import BODY, SCRIPT, STYLE
from edgepack.fleet.watched import Watched

_LOOPBACK = "127.0.0.1"
_MOST_STREAMS = 8
_EVERY_S = 1.0
_ASK_S = 30.0


def _hash(part: str) -> str:
    digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
    return f"'sha256-{digest}'"


POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _WatchServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, title: str, watched: Watched) -> None:
        super().__init__((_LOOPBACK, port), _WatchHandler)
        self.title, self.watched = title, watched
        self.token = secrets.token_urlsafe(16)
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self.closing = threading.Event()
        own = self.server_address[1]
        self.hosts = (f"{_LOOPBACK}:{own}", f"localhost:{own}")


class _WatchHandler(http.server.BaseHTTPRequestHandler):
    timeout = _ASK_S
    server: _WatchServer
    server_version, sys_version = "edgepack", ""

    def do_GET(self) -> None:
        """The page, or its stream of events."""
        self._answer({"": self._page, "events": self._events})

    def do_POST(self) -> None:
        """The button."""
        self._answer({"stop": self._stop})

    def _answer(self, pages: dict[str, Callable[[], None]]) -> None:
        origin = self.headers.get("Origin")
        if self.headers.get("Host", "") not in self.server.hosts:
            self._send(403, "ask by localhost\n")
        elif origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            self._send(403, "not for other pages\n")
        else:
            _, token, page = (*self.path.split("/", 2), "", "")[:3]
            # In bytes: a path may have letters that are not ASCII.
            known = hmac.compare_digest(token.encode(), self.server.token.encode())
            if known and page in pages:
                pages[page]()
            else:
                self._send(404, "not there\n")

    def _page(self) -> None:
        title = text(self.server.title)
        head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        body = f"<h1>{title}</h1>{BODY}<script>{SCRIPT}</script>"
        page = f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>'
        self._send(200, page, kind="text/html; charset=utf-8")

    def _stop(self) -> None:
        if self.server.watched.stop():
            self._send(202, "asked\n")
        else:
            self._send(409, "no rollout is under way\n")

    def _events(self) -> None:
        if not self.server.streams.acquire(blocking=False):
            self._send(503, "too many pages are open\n")
            return
        try:
            self._head(200, "text/event-stream")
            self._event("waves", self.server.watched.waves())
            version = -1
            while not self.server.closing.is_set():
                version, news = self.server.watched.since(version)
                self._event("news", news)
                self.server.closing.wait(_EVERY_S)
        except OSError:
            pass  # the page was closed
        finally:
            self.server.streams.release()
            self.close_connection = True

    def _event(self, name: str, value: object) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _send(self, code: int, body: str, *, kind: str = "text/plain; charset=utf-8") -> None:
        data = body.encode()
        self._head(code, kind, len(data))
        self.wfile.write(data)

    def _head(self, code: int, kind: str, length: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the address is a secret."""


@contextlib.contextmanager
def watch_page(port: int, title: str, watched: Watched) -> Iterator[str]:
    """Serve the page of `watched` on loopback alone; its address. 0 takes any free port.

    Raises UsageError if nothing can listen there.
    """
    try:
        server = _WatchServer(port, title, watched)
    except OSError as error:
        raise UsageError(
            f"--port: cannot listen on {_LOOPBACK}:{port}: {error.strerror}",
            hint="choose another port",
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{server.hosts[0]}/{server.token}/"
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
