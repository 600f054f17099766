"""Stand-ins for a Mender and a hawkBit server: no such server is started here.

They hold what they are sent in memory, and take only requests that the published descriptions have:
mender-server's backend/services/deployments/docs/management_api.yml and management_api_v2.yml (and,
for phases, NewDeploymentPhase of hosted Mender's), hawkbit's docs/rest-api/mgmt.html (OpenAPI, v1).
Another path, parameter, field or type is answered with 400.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

Answer = tuple[int, Any, dict[str, str]]


class WrongRequestError(Exception):
    """Nothing that the description has."""


def no_fault(_method: str, _path: str) -> None:
    """See `StandIn.fault`."""


@dataclass
class StandIn:
    """What was asked, and how to answer: `fault` sees each request first."""

    authorization: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    fault: Callable[[str, str], Answer | bytes | None] = no_fault

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        raise NotImplementedError


def check(document: Any, kinds: dict[str, Any], needed: set[str]) -> None:
    """Raise `WrongRequestError` unless it is an object of these fields."""
    if not isinstance(document, dict) or not needed <= document.keys() <= kinds.keys():
        raise WrongRequestError(f"fields: {document}")
    for key, value in document.items():
        kind = kinds[key]
        if isinstance(kind, dict):
            check(value, kind, set())
        elif isinstance(kind, list):
            if not isinstance(value, list):
                raise WrongRequestError(f"{key}: {value!r}")
            for entry in value:
                check(entry, kind[0], set())
        elif type(value) not in ((int, float) if kind is float else (kind,)):
            raise WrongRequestError(f"{key}: {value!r}")


def check_query(query: dict[str, str], known: set[str]) -> None:
    if not query.keys() <= known:
        raise WrongRequestError(f"parameters: {query}")


@dataclass
class Mender(StandIn):
    artifacts: dict[str, bytes] = field(default_factory=dict)
    deployments: list[dict[str, Any]] = field(default_factory=list)
    has_version_2: bool = True
    device_types: list[str] = field(default_factory=lambda: ["rasp3b"])

    def answer(  # noqa: PLR0911 - a line for each request
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> Answer:
        v1, v2 = "/api/management/v1/deployments", "/api/management/v2/deployments"
        if (method, path) == ("GET", f"{v1}/artifacts/list"):
            check_query(query, {"name", "description", "device_type", "page", "per_page", "sort"})
            # Its filter finds more than equal names.
            listed = [
                {"id": f"a-{name}", "name": name, "device_types_compatible": self.device_types}
                for name in (*self.artifacts, f"{query['name']}-other")
            ]
            return 200, listed, {}
        if (method, path) == ("POST", f"{v1}/artifacts"):
            parts = body
            if not parts.keys() <= {"size", "description", "artifact"}:
                raise WrongRequestError(f"parts: {list(parts)}")
            if list(parts)[-1] != "artifact":
                raise WrongRequestError("it has to be the last part")
            data = parts["artifact"]
            name = json.loads(re.search(rb'"artifact_name":("[^"]+")', data)[1])  # type: ignore[index]
            if name in self.artifacts:
                return 409, {"error": "already exists", "request_id": "r"}, {}
            self.artifacts[name] = data
            return 201, None, {"Location": f"./artifacts/a-{name}"}
        if (method, path) == ("GET", f"{v2}/deployments") and self.has_version_2:
            check_query(query, {"id", "name", "status", "type", "page", "per_page", "sort"})
            return 200, [one for one in self.deployments if one["name"] == query["name"]], {}
        if (method, path) == ("GET", f"{v1}/deployments"):
            check_query(query, {"status", "type", "search", "page", "per_page", "sort"})
            return 200, self.deployments, {}
        group = re.fullmatch(f"{v1}/deployments/group/([^/]+)", path)
        if method == "POST" and (path == f"{v1}/deployments" or group):
            kinds: dict[str, Any] = {
                "name": str,
                "artifact_name": str,
                "force_installation": bool,
                "phases": [{"batch_size": int, "start_ts": str}],
            }
            if group is None:
                kinds |= {"all_devices": bool}
            check(body, kinds, {"name", "artifact_name"})
            if body["artifact_name"] not in self.artifacts:
                return 422, {"error": "no artifact for the deployment"}, {}
            number = f"d-{len(self.deployments)}"
            self.deployments.append({**body, "id": number, "status": "pending"})
            return 201, None, {"Location": f"./deployments/{number}"}
        status = re.fullmatch(f"{v1}/deployments/d-(\\d+)/status", path)
        if method == "PUT" and status:
            check(body, {"status": str}, {"status"})
            if body["status"] != "aborted":
                raise WrongRequestError(body["status"])
            one = self.deployments[int(status[1])]
            if one["status"] == "finished":
                return 422, {"error": "deployment already finished"}, {}
            one["status"] = "finished"
            return 204, None, {}
        return 404, {"error": "not found"}, {}


_CONDITION = {"condition": str, "expression": str}
_ACTION = {"action": str, "expression": str}
_CONDITIONS = {
    "name": str,
    "description": str,
    "successCondition": _CONDITION,
    "successAction": _ACTION,
    "errorCondition": _CONDITION,
    "errorAction": _ACTION,
    "targetFilterQuery": str,
    "confirmationRequired": bool,
}


@dataclass
class Hawkbit(StandIn):
    modules: list[dict[str, Any]] = field(default_factory=list)
    sets: list[dict[str, Any]] = field(default_factory=list)
    rollouts: list[dict[str, Any]] = field(default_factory=list)
    artifacts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    can_stop: bool = True
    LISTS: ClassVar = {
        "softwaremodules": "modules",
        "distributionsets": "sets",
        "rollouts": "rollouts",
    }

    def answer(  # noqa: PLR0911 - a line for each request
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> Answer:
        kind = path.removeprefix("/rest/v1/")
        if method == "GET" and kind in self.LISTS:
            check_query(query, {"offset", "limit", "sort", "q", "representation"})
            wanted = dict(re.findall(r"(\w+)=='([^']*)'", query["q"]))
            if ";".join(f"{key}=='{value}'" for key, value in wanted.items()) != query["q"]:
                raise WrongRequestError(query["q"])
            listed = getattr(self, self.LISTS[kind])
            found = [one for one in listed if wanted.items() <= one.items()]
            return 200, {"content": found, "total": len(found), "size": len(found)}, {}
        if (method, kind) == ("POST", "softwaremodules"):
            [wanted] = body
            texts = dict.fromkeys(("name", "version", "type", "description", "vendor"), str)
            check(wanted, {**texts, "encrypted": bool}, {"name", "version", "type"})
            return 201, [self._kept(self.modules, wanted)], {}
        if (method, kind) == ("POST", "distributionsets"):
            [wanted] = body
            texts = dict.fromkeys(("name", "version", "type", "description"), str)
            check(wanted, {**texts, "modules": [{"id": int}]}, {"name", "version"})
            known = {one["id"] for one in self.modules}
            if not {one["id"] for one in wanted["modules"]} <= known:
                return 404, {"message": "SoftwareModule with given identifier not found"}, {}
            return 201, [self._kept(self.sets, wanted)], {}
        if match := re.fullmatch(r"softwaremodules/(\d+)/artifacts", kind):
            held = self.artifacts.setdefault(int(match[1]), [])
            if method == "GET":
                check_query(query, {"representation", "useartifacturlhandler"})
                return 200, held, {}
            check_query(query, {"filename", "md5sum", "sha1sum", "sha256sum"})
            if list(body) != ["file"]:
                raise WrongRequestError(f"parts: {list(body)}")
            digest = hashlib.sha256(body["file"]).hexdigest()
            if query["sha256sum"] != digest:
                return 400, {"message": "hashes do not match"}, {}
            entry = {"id": 1, "providedFilename": query["filename"], "hashes": {"sha256": digest}}
            held.append(entry)
            return 201, entry, {}
        if (method, kind) == ("POST", "rollouts"):
            kinds = {**_CONDITIONS, "distributionSetId": int, "amountGroups": int, "type": str}
            group = {**_CONDITIONS, "targetPercentage": float}
            needed = {"name", "targetFilterQuery", "distributionSetId"}
            check(body, {**kinds, "groups": [group]}, needed)
            if body["type"] not in ("soft", "forced", "timeforced", "downloadonly"):
                raise WrongRequestError(body["type"])
            # Groups are made in the background: two polls.
            return 201, self._kept(self.rollouts, {**body, "status": "creating", "polls": 2}), {}
        if match := re.fullmatch(r"rollouts/(\d+)(/start)?", kind):
            one = self.rollouts[int(match[1]) - 1]
            if match[2] is None and method == "GET":
                one["polls"] -= 1
                if one["polls"] <= 0 and one["status"] == "creating":
                    one["status"] = "ready"
                return 200, one, {}
            if match[2] and method == "POST":
                if one["status"] != "ready":
                    return 400, {"message": "Rollout can only be started in state ready"}, {}
                one["status"] = "running"
                return 200, None, {}
        if (match := re.fullmatch(r"rollouts/(\d+)/(stop|pause)", kind)) and method == "POST":
            if match[2] == "stop" and not self.can_stop:
                return 404, None, {}
            one = self.rollouts[int(match[1]) - 1]
            if match[2] == "pause" and one["status"] != "running":
                return 400, {"message": "Rollout can only be paused in state running"}, {}
            one["status"] = "stopping" if match[2] == "stop" else "paused"
            return 204, None, {}
        return 404, {"message": "not found"}, {}

    @staticmethod
    def _kept(where: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
        entry = {**body, "id": len(where) + 1}
        where.append(entry)
        return entry


@contextlib.contextmanager
def running(server: StandIn, certificate: Path | None = None) -> Iterator[str]:
    """The URL of `server`, with TLS by a PEM file of key and certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            split = urllib.parse.urlsplit(self.path)
            size = int(self.headers.get("Content-Length", 0))
            fault = server.fault(self.command, self.path)
            if isinstance(fault, bytes):  # as it is, and the end
                self.wfile.write(fault)
                self.close_connection = True
                return
            data = self.rfile.read(size) if fault is None or size < 1 << 16 else b""
            server.requests.append((self.command, self.path))
            if fault is None:
                fault = self._answer(split, data)
            status, document, headers = fault
            payload = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(payload)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(payload)
            self.close_connection = True

        def _answer(self, split: urllib.parse.SplitResult, data: bytes) -> Answer:
            if self.headers.get("Authorization") != server.authorization:
                return 401, {"error": "no", "message": "no"}, {}
            query = dict(urllib.parse.parse_qsl(split.query, strict_parsing=bool(split.query)))
            kind = self.headers.get("Content-Type", "")
            try:
                body = None
                if kind.startswith("multipart/form-data"):
                    body = _parts(kind, data)
                elif data:
                    if kind != "application/json":
                        raise WrongRequestError(kind)
                    body = json.loads(data)
                    server.bodies.append(body)
                return server.answer(self.command, split.path, query, body)
            except WrongRequestError as error:
                return 400, {"error": str(error), "message": str(error)}, {}

        do_GET = do_POST = do_PUT = handle_one  # noqa: N815 - the names of http.server

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        scheme = "http" if certificate is None else "https"
        try:
            yield f"{scheme}://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()


def _parts(kind: str, data: bytes) -> dict[str, bytes]:
    """The parts of a form, by name, as Python's reader of MIME has them."""
    message = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + data)
    found: dict[str, bytes] = {}
    for part in message.get_payload():
        assert not isinstance(part, str)
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        found[str(name)] = payload
    return found
