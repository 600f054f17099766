"""An artifact and its deployment on a Mender server, by its management API.

https://docs.mender.io/api/#management-api-deployments: what is there already is left alone, so that
a run that was cut is simply run again. Phases are of Mender's paid plans.
"""

from __future__ import annotations

import tarfile
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from edgepack.base.errors import NothingThereError, UsageError
from edgepack.base.tables import Table, parse_json
from edgepack.formats.rest import Requests, RestAnswer, ServerAnswerError, Upload

_API = "/api/management/v1/deployments"
_API_2 = "/api/management/v2/deployments"
_MAX_HEADER = 1 << 20
_HINT = "`edgepack package --format mender` makes such a file"


@dataclass(frozen=True, kw_only=True)
class MenderArtifact:
    """A .mender file: its name, and the types of devices that take it."""

    path: Path
    name: str
    device_types: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MenderDeployment:
    """Who is to get it: a `group`, or all devices.

    `phases` are percentages of the devices that have it by then, the last is 100; each begins
    `hours` after the one before, the first at `begin`.
    """

    group: str | None = None
    phases: Sequence[int] = ()
    hours: float = 24.0
    begin: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class MenderPublished:
    """What a run did: whether the file was sent, and the deployment, new or there already."""

    name: str
    uploaded: bool
    deployment: str | None
    created: bool


@dataclass(frozen=True, kw_only=True)
class MenderStopped:
    """A deployment that is over: by this run (`aborted`), or before it (`finished`)."""

    artifact: str
    deployment: str
    state: str


def read_artifact(path: Path) -> MenderArtifact:
    """What is in the header of a .mender file. Raises UsageError if it is none."""
    try:
        with tarfile.open(path) as archive:
            member = next((one for one in archive if one.name.startswith("header.tar")), None)
            inner = None if member is None else archive.extractfile(member)
            if inner is None:
                raise UsageError(f"{path}: no artifact of Mender's", hint=_HINT)
            with tarfile.open(fileobj=inner) as header:
                info = header.extractfile("header-info")
                data = b"" if info is None else info.read(_MAX_HEADER)
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise UsageError(f"{path}: no artifact of Mender's: {error}", hint=_HINT) from None
    table = Table(parse_json(data, file=path, error=UsageError), file=path, error=UsageError)
    provides = Table(table.take("artifact_provides", dict), file=path, error=UsageError)
    depends = Table(table.take("artifact_depends", dict), file=path, error=UsageError)
    return MenderArtifact(
        path=path,
        name=provides.take("artifact_name", str),
        device_types=depends.take_list("device_type", str),
    )


def publish(
    server: Requests, artifact: MenderArtifact, deployment: MenderDeployment | None = None
) -> MenderPublished:
    """Bring the artifact to `server` unless it is there, and then deploy it, if that is asked for.

    Raises what `Requests.ask` raises.
    """
    uploaded = not _is_there(server, artifact)
    if uploaded:
        # 409: somebody was faster.
        answer = server.ask(
            "POST",
            f"{_API}/artifacts",
            upload=Upload(path=artifact.path, name="artifact", texts={"description": "edgepack"}),
            expected=(201, 409),
            example=RestAnswer(status=201, document=None),
        )
        uploaded = answer.status == 201
    number, created = None, False
    if deployment is not None:
        number, created = _deploy(server, artifact.name, deployment)
    return MenderPublished(
        name=artifact.name, uploaded=uploaded, deployment=number, created=created
    )


def stop(server: Requests, artifact: MenderArtifact, group: str | None = None) -> MenderStopped:
    """End the deployment that `publish` made: who does not have the artifact yet does not get it.

    Raises NothingThereError if there is none, and what `Requests.ask` raises.
    """
    name = _deployment_name(artifact.name, group)
    known = _find_deployment(server, name, artifact.name)
    if known is None:
        raise NothingThereError(
            f"there is no deployment {name}", hint="stop the group that you published to"
        )
    number, state = known.take("id", str), known.take("status", str)
    if state != "finished":
        server.ask(
            "PUT",
            f"{_API}/deployments/{urllib.parse.quote(number, safe='')}/status",
            body={"status": "aborted"},
            expected=(204,),
        )
        state = "aborted"
    return MenderStopped(artifact=artifact.name, deployment=number, state=state)


def _deployment_name(artifact: str, group: str | None) -> str:
    return artifact if group is None else f"{artifact} {group}"


def _deploy(
    server: Requests, artifact: str, deployment: MenderDeployment
) -> tuple[str | None, bool]:
    """The deployment's id, and whether it is new."""
    group = deployment.group
    name = _deployment_name(artifact, group)
    known = _find_deployment(server, name, artifact)
    if known is not None:
        return known.take("id", str), False
    body: dict[str, Any] = {"name": name, "artifact_name": artifact}
    where = f"{_API}/deployments"
    if group is None:
        body["all_devices"] = True
    else:
        where += f"/group/{urllib.parse.quote(group, safe='')}"
    if deployment.phases:
        body["phases"] = _phases(deployment)
    answer = server.ask(
        "POST", where, body=body, expected=(201,), example=RestAnswer(status=201, document=None)
    )
    return answer.last_part or None, True


def _is_there(server: Requests, artifact: MenderArtifact) -> bool:
    query = urllib.parse.urlencode({"name": artifact.name, "per_page": 500})
    path = f"{_API}/artifacts/list?{query}"
    answer = server.ask("GET", path, expected=(200, 404))
    for entry in _entries(answer, path):
        types = entry.take("device_types_compatible", list, None) or []
        if entry.take("name", str) == artifact.name and set(artifact.device_types) <= set(
            map(str, types)
        ):
            return True
    return False


def _find_deployment(server: Requests, name: str, artifact: str) -> Table | None:
    """A deployment of that name, for servers with the API's version 2 and before."""
    for path in (
        f"{_API_2}/deployments?{urllib.parse.urlencode({'name': name, 'per_page': 500})}",
        f"{_API}/deployments?{urllib.parse.urlencode({'search': name, 'per_page': 500})}",
    ):
        answer = server.ask("GET", path, expected=(200, 404))
        for entry in _entries(answer, path):
            if (entry.take("name", str), entry.take("artifact_name", str)) == (name, artifact):
                return entry
        if answer.status == 200:
            break
    return None


def _entries(answer: RestAnswer, path: str) -> list[Table]:
    if answer.status == 404 or answer.document is None:
        return []
    if not isinstance(answer.document, list) or not all(
        isinstance(entry, dict) for entry in answer.document
    ):
        raise ServerAnswerError(f"GET {path}: the answer is no list of objects")
    return [Table(entry, file=f"GET {path}", error=ServerAnswerError) for entry in answer.document]


def _phases(deployment: MenderDeployment) -> list[dict[str, Any]]:
    """In Mender's words: a share of the devices, and when it begins; the last is the rest."""
    phases = []
    before = 0
    for number, share in enumerate(deployment.phases):
        phase: dict[str, Any] = {}
        if number + 1 < len(deployment.phases):
            phase["batch_size"] = share - before
        if number:
            begin = deployment.begin or datetime.now(UTC)
            start = begin + timedelta(hours=deployment.hours * number)
            phase["start_ts"] = start.strftime("%Y-%m-%dT%H:%M:%SZ")
        phases.append(phase)
        before = share
    return phases
