"""Requests to a server of updates, over HTTPS: what is sent, and what can come back.

Nothing is followed anywhere else, so that the token goes to the server that was named and to no
other; answers are bounded in size and time.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import secrets
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edgepack.base.errors import ConnectError, RefusedError, UsageError
from edgepack.base.secret_files import check_secret, read_secret
from edgepack.base.text import one_line

log = logging.getLogger(__name__)

_MAX_ANSWER = 4 << 20
_ANSWER_S = 120.0
_CONNECT_S = 30.0
# What a slow line brings: an upload that takes longer has ended.
_SLOWEST_BYTES_S = 20e3
_BLOCK = 1 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_AGAIN = "run the command again: what is there already is not sent a second time"


class ServerCutError(ConnectError):
    """The server cannot be reached, or went away in the middle."""


class ServerRefusesError(RefusedError):
    """The server does not let this token in, or not to do this."""


class ServerAnswerError(ConnectError):
    """The server answers with an error, or with something that is no answer."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A form with texts and, as its last part, the file `path` under the name `name`."""

    path: Path
    name: str
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RestAnswer:
    """A status that was expected, what came with it (None for nothing), and where it points."""

    status: int
    document: Any
    location: str = ""

    @property
    def last_part(self) -> str:
        """Of `location`: the id of what was made."""
        return self.location.rstrip("/").rpartition("/")[2]


class Requests(Protocol):
    """Who sends requests, or only notes them."""

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        upload: Upload | None = None,
        expected: Sequence[int] = (200,),
        example: RestAnswer | None = None,
    ) -> RestAnswer:
        """The answer to a request. `example` is what a dry run takes for it; None is 404.

        Raises `ServerCutError`, `ServerRefusesError`, `ServerAnswerError`.
        """


@dataclass(kw_only=True)
class NotedRequests:
    """Notes requests; nothing is sent."""

    requests: list[dict[str, Any]] = field(default_factory=list)

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        upload: Upload | None = None,
        expected: Sequence[int] = (200,),
        example: RestAnswer | None = None,
    ) -> RestAnswer:
        """See `Requests`."""
        noted: dict[str, Any] = {"method": method, "path": path}
        if body is not None:
            noted["body"] = body
        if upload is not None:
            noted["form"] = {**upload.texts, upload.name: str(upload.path)}
        self.requests.append(noted)
        return example or RestAnswer(status=404, document=None)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server at `url`, which may have a path. `authorization` is the header's value."""

    url: str
    authorization: str = field(repr=False)
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.ca_file is not None:
            _context(self.ca_file)

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        upload: Upload | None = None,
        expected: Sequence[int] = (200,),
        example: RestAnswer | None = None,
    ) -> RestAnswer:
        """See `Requests`."""
        del example
        where = f"{method} {one_line(self.url)}{one_line(path)}"
        log.info("%s", where)
        headers = {"Authorization": self.authorization, "Accept": "application/json"}
        parts: Iterator[bytes] = iter(())
        size = 0
        if upload is not None:
            boundary = secrets.token_hex(16)
            before, after = _form(upload, boundary)
            size = len(before) + upload.path.stat().st_size + len(after)
            headers["Content-Type"] = f"multipart/form-data; boundary={boundary}"
            parts = _pieces(before, upload.path, after)
        elif body is not None:
            data = json.dumps(body).encode()
            size = len(data)
            headers["Content-Type"] = "application/json"
            parts = iter((data,))
        if method != "GET":
            headers["Content-Length"] = str(size)
        try:
            with self._connection(_ANSWER_S + size / _SLOWEST_BYTES_S) as connection:
                _send(connection, method, check_url(self.url)[3] + path, headers, parts)
                return _receive(connection, expected, where)
        except ssl.SSLCertVerificationError as error:
            raise ServerCutError(
                f"{where}: its certificate is not trusted: {error.verify_message}",
                hint="--ca-file names the certificate of your own authority",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            said = one_line(error, limit=200) or type(error).__name__
            raise ServerCutError(f"{where}: {said}", hint=_AGAIN) from None

    @contextmanager
    def _connection(self, limit_s: float) -> Iterator[http.client.HTTPConnection]:
        """A connection that ends after `limit_s`, also with a server that drips bytes."""
        scheme, host, port, _ = check_url(self.url)
        connection: http.client.HTTPConnection
        if scheme == "https":
            context = _context(self.ca_file)
            connection = http.client.HTTPSConnection(
                host, port, timeout=_CONNECT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
        connection.connect()
        connection.sock.settimeout(_ANSWER_S)
        sock = connection.sock

        ended = threading.Event()

        def end() -> None:
            ended.set()
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(limit_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield connection
        except ServerAnswerError:
            _check_in_time(ended, limit_s)
            raise
        else:
            # An end in the headers looks like an answer without a body.
            _check_in_time(ended, limit_s)
        finally:
            timer.cancel()
            connection.close()


def open_server(
    url: str,
    *,
    token_file: Path | None,
    variable: str,
    user: str | None = None,
    ca_file: Path | None = None,
) -> Server:
    """The server at `url`, with the token of a file or else of an environment `variable`.

    With `user` it is that user's password. Raises UsageError if there is no token, or a file that
    others can read.
    """
    check_url(url)
    if token_file is not None:
        secret = read_secret(token_file, "--token-file")
    elif text := os.environ.get(variable):
        secret = check_secret(text, f"${variable}")
    else:
        raise UsageError(f"no token for {url}", hint=f"--token-file FILE, or ${variable}")
    authorization = f"Bearer {secret}"
    if user is not None:
        authorization = f"Basic {base64.b64encode(f'{user}:{secret}'.encode()).decode()}"
    return Server(url=url, authorization=authorization, ca_file=ca_file)


def _check_in_time(ended: threading.Event, limit_s: float) -> None:
    if ended.is_set():
        raise TimeoutError(f"no answer within {limit_s:.0f} s")


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: Mapping[str, str],
    parts: Iterator[bytes],
) -> None:
    connection.putrequest(method, path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    # A server that does not want the rest says so, and closes.
    with suppress(BrokenPipeError, ConnectionResetError):
        for part in parts:
            connection.send(part)


def _receive(
    connection: http.client.HTTPConnection, expected: Sequence[int], where: str
) -> RestAnswer:
    answer = connection.getresponse()
    data = answer.read(_MAX_ANSWER + 1)
    if len(data) > _MAX_ANSWER:
        raise ServerAnswerError(f"{where}: an answer of more than {_MAX_ANSWER >> 20} MB")
    if answer.length:
        raise ServerCutError(f"{where}: it went away in the middle of the answer", hint=_AGAIN)
    document, is_json = _parse(data)
    location = one_line(answer.getheader("Location", ""))
    if answer.status not in expected:
        raise _error(where, answer.status, document, location, data)
    if data.strip() and not is_json:
        raise ServerAnswerError(
            f"{where}: status {answer.status}, and no JSON: {one_line(_start(data))}",
            hint="is that the address of the server, and of no page in front of it?",
        )
    return RestAnswer(status=answer.status, document=document, location=location)


def check_url(url: str) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path of an address. Raises UsageError."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise UsageError(
            f"not the address of a server: {one_line(url)}", hint="https://mender.example.org"
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "the address has a name or password in it, which others on this machine could read",
            hint="--token-file",
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"not the address of a server: {one_line(url)}")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise UsageError(
            f"{one_line(url)}: without TLS everybody on the way can read the token",
            hint=f"https://{host}; http is for a server on this machine",
        )
    return parts.scheme, host, port, parts.path.rstrip("/")


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca-file: {ca_file}: {one_line(error, limit=200)}") from None


def _form(upload: Upload, boundary: str) -> tuple[bytes, bytes]:
    """What comes before the file and after it, of multipart/form-data (RFC 7578)."""
    lines = []
    for name, text in upload.texts.items():
        lines += [f"--{boundary}", f'Content-Disposition: form-data; name="{name}"', "", text]
    file = upload.path.name.replace("\\", "_").replace('"', "_")
    lines += [
        f"--{boundary}",
        f'Content-Disposition: form-data; name="{upload.name}"; filename="{file}"',
        "Content-Type: application/octet-stream",
        "",
        "",
    ]
    return "\r\n".join(lines).encode(), f"\r\n--{boundary}--\r\n".encode()


def _pieces(before: bytes, path: Path, after: bytes) -> Iterator[bytes]:
    yield before
    with path.open("rb") as file:
        while data := file.read(_BLOCK):
            yield data
    yield after


def _parse(data: bytes) -> tuple[Any, bool]:
    try:
        return json.loads(data), True
    except (ValueError, RecursionError):
        return None, False


def _start(data: bytes) -> str:
    return data[:200].decode(errors="replace")


_MEANINGS: Mapping[int, tuple[str, str | None]] = {
    400: ("it does not understand the request", None),
    404: ("not there", "is that the server's address? A path before /api belongs to it"),
    409: ("it is there already, or in use", None),
    413: (
        "the file is larger than the server, or what is in front of it, takes",
        "nginx: client_max_body_size",
    ),
    422: ("it cannot do that", None),
    423: ("it is locked: part of a release that was given out", "publish a new version"),
    429: ("too many requests", "try again in a minute"),
}


def _error(where: str, status: int, document: Any, location: str, data: bytes) -> Exception:
    said = one_line(_message(document) or _start(data), limit=300)
    end = f": {said}" if said else ""
    if status in (401, 407):
        return ServerRefusesError(
            f"{where}: status {status}: the token is not accepted{end}",
            hint="--token-file: has it ended, or is it another server's?",
        )
    if status == 403:
        return ServerRefusesError(f"{where}: status 403: the token does not allow that{end}")
    if 300 <= status < 400:
        return ServerAnswerError(
            f"{where}: status {status}: it points to {location or 'another place'}",
            hint="give that address: the token is sent nowhere else",
        )
    if status >= 500:
        return ServerAnswerError(f"{where}: status {status}: the server fails{end}", hint=_AGAIN)
    meaning, hint = _MEANINGS.get(status, ("it refuses", None))
    return ServerAnswerError(f"{where}: status {status}: {meaning}{end}", hint=hint)


def _message(document: Any) -> str:
    """What Mender (`error`) and hawkBit (`message`) say of an error."""
    if not isinstance(document, dict):
        return ""
    texts = (document.get(key) for key in ("error", "message", "errorCode"))
    return next((text for text in texts if isinstance(text, str) and text), "")
