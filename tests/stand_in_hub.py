"""A stand-in for the Hugging Face hub: the requests that its client makes to find and fetch files.

It serves repositories made of bytes, of which it keeps the git and LFS names as the hub does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`repositories` by name; `fetched` are the files that were asked for, `asked` all paths,
    `sent` replaces what a file has on its way."""

    repositories: Mapping[str, Mapping[str, bytes]]
    branches: tuple[str, ...] = ("main", "v1.0", "refs/pr/1")
    sent: dict[str, bytes] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def about(self, name: str) -> bytes:
        """What the API says of a repository."""
        siblings = []
        for file, data in self.repositories[name].items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, object] = {"rfilename": file, "size": len(data), "blobId": blob}
            if file.endswith((".onnx", ".onnx_data", ".tflite")):
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()


@contextlib.contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def refuse(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(path)
            if path.startswith("/api/models/"):
                name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
                if name not in hub.repositories:
                    return self.refuse("RepoNotFound")
                if revision not in ("", COMMIT, *hub.branches):
                    return self.refuse("RevisionNotFound")
                return self.answer(hub.about(name), {"Content-Type": "application/json"})
            name, _, rest = path.lstrip("/").partition("/resolve/")
            commit, _, file = rest.partition("/")
            if commit != COMMIT or file not in hub.repositories.get(name, {}):
                return self.refuse("EntryNotFound")
            data = hub.repositories[name][file]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
            if self.command == "GET":
                hub.fetched.append(file)
            return self.answer(hub.sent.get(file, data), headers)

        def answer(self, data: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(200)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
