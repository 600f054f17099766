"""A package and its rollout on an Eclipse hawkBit server, by its management API.

https://eclipse.dev/hawkbit/rest-api: a software module has the file, a distribution set the module,
and a rollout offers the set to groups of targets, one after the other. What is there already is
left alone, so that a run that was cut is simply run again.
"""

from __future__ import annotations

import hashlib
import re
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import NothingThereError, TimeLimitError, UsageError
from edgepack.base.tables import Table
from edgepack.formats.rest import Requests, RestAnswer, ServerAnswerError, Upload

_API = "/rest/v1"
# As `package` names files: `<name>-<board>-<release>` and what the format adds.
_FILE = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,80})-(?P<release>[0-9a-f]{12})\.[a-z.]+")
_POLLS, _POLL_S = 150, 2.0
_STARTED = ("starting", "running", "paused", "finished", "stopping", "stopped")
_WAITING = "waiting_for_approval"
_OVER = ("finished", "stopping", "stopped", "deleting", "deleted")


@dataclass(frozen=True, kw_only=True)
class HawkbitPackage:
    """A file that `package` made; the types are hawkBit's keys of module and set."""

    path: Path
    name: str
    version: str
    module_type: str = "application"
    set_type: str = "app"


@dataclass(frozen=True, kw_only=True)
class HawkbitRollout:
    """Who is to get it: targets by a filter of hawkBit's, in groups.

    `phases` are percentages of the targets that have it by then, the last is 100. The next group
    begins when `success` percent of one succeeded; at `max_failed` percent of failures all pauses.
    """

    targets: str
    phases: Sequence[int] = (100,)
    success: int = 100
    max_failed: int = 1


@dataclass(frozen=True, kw_only=True)
class HawkbitPublished:
    """What a run did: whether the file was sent, and the rollout's id and state."""

    name: str
    version: str
    uploaded: bool
    distribution_set: int
    rollout: int | None
    state: str | None


@dataclass(frozen=True, kw_only=True)
class HawkbitStopped:
    """A rollout that goes no further, and its state: `paused` by a server that stops none."""

    name: str
    version: str
    rollout: int
    state: str


def read_package(path: Path) -> HawkbitPackage:
    """A package by its file's name. Raises UsageError if `package` does not name files so."""
    match = _FILE.fullmatch(path.name)
    if match is None or not path.is_file():
        raise UsageError(
            f"{path}: not a file that `edgepack package` made",
            hint="--format rauc, mender, deb or tar: what the devices' client takes",
        )
    return HawkbitPackage(path=path, name=f"edgepack-{match['name']}", version=match["release"])


def publish(
    server: Requests,
    package: HawkbitPackage,
    rollout: HawkbitRollout | None = None,
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> HawkbitPublished:
    """Bring the package to `server` unless it is there, and then start a rollout, if one is given.

    Raises UsageError if another file is there under this release, TimeLimitError if the server does
    not get the groups ready, and what `Requests.ask` raises.
    """
    module = _find_or_make(
        server,
        "softwaremodules",
        package,
        {"type": package.module_type, "vendor": "edgepack"},
    )
    uploaded = _upload(server, module, package)
    chosen = _find_or_make(
        server,
        "distributionsets",
        package,
        {"type": package.set_type, "modules": [{"id": module}]},
    )
    started: tuple[int | None, str | None] = (None, None)
    if rollout is not None:
        started = _start(server, package, chosen, rollout, sleep)
    return HawkbitPublished(
        name=package.name,
        version=package.version,
        uploaded=uploaded,
        distribution_set=chosen,
        rollout=started[0],
        state=started[1],
    )


def stop(server: Requests, package: HawkbitPackage) -> HawkbitStopped:
    """End the rollout that `publish` made; a server of a version that cannot do that pauses it.

    Raises NothingThereError if there is none, and what `Requests.ask` raises.
    """
    name = _rollout_name(package)
    found = next(iter(_search(server, "rollouts", {"name": name})), None)
    if found is None:
        raise NothingThereError(f"there is no rollout {name}")
    number, state = found.take("id", int), found.take("status", str)
    path = f"{_API}/rollouts/{number}"
    if state not in _OVER:
        answer = server.ask("POST", f"{path}/stop", expected=(200, 204, 404))
        if answer.status != 404:
            state = "stopping"
        elif state != "paused":
            server.ask("POST", f"{path}/pause", expected=(200, 204))
            state = "paused"
    return HawkbitStopped(name=package.name, version=package.version, rollout=number, state=state)


def _rollout_name(package: HawkbitPackage) -> str:
    return f"{package.name} {package.version}"


def _find_or_make(server: Requests, kind: str, package: HawkbitPackage, more: Any) -> int:
    """The id of what is called as the package is, made if it is not there."""
    names = {"name": package.name, "version": package.version}
    for entry in _search(server, kind, names):
        return entry.take("id", int)
    answer = server.ask(
        "POST",
        f"{_API}/{kind}",
        body=[{**names, **more}],
        expected=(201,),
        example=RestAnswer(status=201, document=[{"id": 0, **names}]),
    )
    made = _tables(answer.document, f"POST {_API}/{kind}")
    if len(made) != 1:
        raise ServerAnswerError(f"POST {_API}/{kind}: {len(made)} were made; one was asked for")
    return made[0].take("id", int)


def _upload(server: Requests, module: int, package: HawkbitPackage) -> bool:
    """Send the file unless it is there; whether it was sent."""
    with package.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path = f"{_API}/softwaremodules/{module}/artifacts"
    answer = server.ask("GET", path, example=RestAnswer(status=200, document=[]))
    for entry in _tables(answer.document, f"GET {path}"):
        if entry.take("providedFilename", str) != package.path.name:
            continue
        hashes = _table(entry.take("hashes", dict), f"GET {path}")
        if hashes.take("sha256", str) == digest:
            return False
        raise UsageError(
            f"{package.path}: another file of this name is in the software module "
            f"{package.name} {package.version}",
            hint="publish the file that was published first, or delete that one on the server",
        )
    query = urllib.parse.urlencode({"filename": package.path.name, "sha256sum": digest})
    server.ask(
        "POST",
        f"{path}?{query}",
        upload=Upload(path=package.path, name="file"),
        expected=(201,),
        example=RestAnswer(status=201, document=None),
    )
    return True


def _start(
    server: Requests,
    package: HawkbitPackage,
    chosen: int,
    rollout: HawkbitRollout,
    sleep: Callable[[float], object],
) -> tuple[int, str]:
    """The rollout's id and state, once it was started or was found to be so."""
    name = _rollout_name(package)
    found = next(iter(_search(server, "rollouts", {"name": name})), None)
    path = f"{_API}/rollouts"
    if found is None:
        answer = server.ask(
            "POST",
            path,
            body=_body(name, chosen, rollout),
            expected=(201,),
            example=RestAnswer(status=201, document={"id": 0, "status": "creating"}),
        )
        found = _table(answer.document, f"POST {path}")
    number, state = found.take("id", int), found.take("status", str)
    # Groups are made in the background.
    for _ in range(_POLLS):
        if state != "creating":
            break
        sleep(_POLL_S)
        answer = server.ask(
            "GET",
            f"{path}/{number}",
            example=RestAnswer(status=200, document={"id": number, "status": "ready"}),
        )
        state = _table(answer.document, f"GET {path}/{number}").take("status", str)
    if state == "creating":
        raise TimeLimitError(
            f"{name}: the groups are not ready after {_POLLS * _POLL_S:.0f} s",
            hint="run the command again: it goes on there",
        )
    if state == "ready":
        # 204 is what some versions answer.
        server.ask(
            "POST",
            f"{path}/{number}/start",
            expected=(200, 204),
            example=RestAnswer(status=200, document=None),
        )
        return number, "starting"
    if state not in (*_STARTED, _WAITING):
        raise ServerAnswerError(f"{name}: its rollout is '{state}'", hint="look at it in hawkBit")
    return number, state


def _body(name: str, chosen: int, rollout: HawkbitRollout) -> dict[str, Any]:
    groups, before = [], 0
    for share in rollout.phases:
        # hawkBit counts in what the groups before have left.
        groups.append(
            {
                "name": f"up to {share} %",
                "targetPercentage": round(100 * (share - before) / (100 - before), 4),
            }
        )
        before = share
    return {
        "name": name,
        "distributionSetId": chosen,
        "targetFilterQuery": rollout.targets,
        "type": "forced",
        "successCondition": {"condition": "THRESHOLD", "expression": str(rollout.success)},
        "successAction": {"action": "NEXTGROUP", "expression": ""},
        "errorCondition": {"condition": "THRESHOLD", "expression": str(rollout.max_failed)},
        "errorAction": {"action": "PAUSE", "expression": ""},
        "groups": groups,
    }


def _search(server: Requests, kind: str, names: dict[str, str]) -> list[Table]:
    """Those of a kind that are called exactly so."""
    query = ";".join(f"{key}=='{value}'" for key, value in names.items())
    path = f"{_API}/{kind}?{urllib.parse.urlencode({'q': query, 'limit': 500})}"
    answer = server.ask("GET", path, example=RestAnswer(status=200, document={"content": []}))
    entries = _table(answer.document, f"GET {path}").take("content", list)
    found = []
    for entry in entries:
        if isinstance(entry, dict) and all(entry.get(key) == names[key] for key in names):
            found.append(_table(entry, f"GET {path}"))
    return found


def _tables(document: Any, where: str) -> list[Table]:
    if not isinstance(document, list):
        raise ServerAnswerError(f"{where}: the answer is no list")
    return [_table(entry, where) for entry in document]


def _table(document: Any, where: str) -> Table:
    if not isinstance(document, dict):
        raise ServerAnswerError(f"{where}: the answer is no object")
    return Table(document, file=where, error=ServerAnswerError)
