"""Everything the device tool does that can be interrupted, each as one act on a device."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import EdgepackError
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import PARAMS
from tests.bundles import FakeTool
from tests.fake_app import FAKE_WRONG_APP, fake_bundle
from tests.faults.rig import Rig, of_schema_1, sign
from tests.integration.sshd_server import make_key

_WEIGHTS = 4_400_000  # more than what the tool flushes at once, less than what takes time


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """`first` and `second` differ in some weights, `wrong` computes nonsense; all are signed.

    `bare` is `first` in the first schema, without a device tool.
    """

    first: Bundle
    second: Bundle
    wrong: Bundle
    bare: Bundle


def make_bundles(folder: Path, tool: Path) -> Bundles:
    """Real bundles for this machine with a fake edgepack-run; `tool` is their device tool."""
    weights = np.random.default_rng(1).integers(0, 200, _WEIGHTS, dtype=np.uint8)
    changed = weights.copy()
    changed[600_000:650_000] += 1
    changed[650_000:750_000] = 0  # compresses
    bundles = {
        name: fake_bundle(folder / name, weights=content.tobytes(), tool=FakeTool(path=tool), **app)
        for name, content, app in (
            ("first", weights, {}),
            ("second", changed, {}),
            ("wrong", weights, {"app": FAKE_WRONG_APP}),
        )
    }
    bundles["bare"] = of_schema_1(bundles["first"], folder)
    key = make_key(folder / "key")
    for bundle in bundles.values():
        sign(bundle, key)
    return Bundles(**bundles)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`prepare` makes the device, `act` is what is interrupted, with a fault and a log.

    `currents` are the releases that may be current afterwards, None if none may be. `after`
    is what is deployed then.
    """

    name: str
    prepare: Callable[[Rig], object]
    act: Callable[[Rig, str, Path | None], object]
    currents: frozenset[str | None]
    after: Bundle


def scenarios(bundles: Bundles) -> list[Scenario]:
    """All of them; every step of the tool is in one at least."""
    first, second = bundles.first, bundles.second
    a, b, bad = (one.manifest.release for one in (first, second, bundles.wrong))

    def deploy(bundle: Bundle, **options: Any) -> Callable[[Rig, str, Path | None], object]:
        return lambda rig, fault, log: rig.deploy(bundle, fault=fault, log=log, **options)

    def failing(bundle: Bundle) -> Callable[[Rig, str, Path | None], object]:
        def act(rig: Rig, fault: str, log: Path | None) -> None:
            with contextlib.suppress(EdgepackError):
                rig.deploy(bundle, fault=fault, log=log)

        return act

    def call(*words: str) -> Callable[[Rig, str, Path | None], object]:
        return lambda rig, fault, log: rig.call(*words, fault=fault, log=log)

    def corrupted(rig: Rig, fault: str, log: Path | None) -> None:
        """The weights do not arrive as they were."""
        wrong = rig.root.parent / "wrong-weights"
        wrong.write_bytes(bytes(_WEIGHTS))
        wanted = second.manifest.files[PARAMS].sha256
        with contextlib.suppress(EdgepackError):
            rig.attempt(second, fault=fault, log=log, instead={wanted: wrong})

    told = first.path.parent / "told"
    told.mkdir(exist_ok=True)

    def tell(rig: Rig, fault: str, log: Path | None) -> None:
        """Write metrics and the timer that writes them again."""
        words = ("metrics", "--textfile", str(told), "--timer")
        command = rig.command(*words, fault=fault, log=log)
        script = f"export XDG_CONFIG_HOME={told}; {command}"
        subprocess.run(["sh", "-c", script], capture_output=True, check=False)

    archive = first.path.parent / "second.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", second.path.parent, second.path.name], check=True)

    return [
        Scenario(
            name="first deploy",
            prepare=_nothing,
            act=deploy(first),
            currents=frozenset({None, a}),
            after=first,
        ),
        Scenario(
            name="update",
            prepare=lambda rig: rig.deploy(first),
            act=deploy(second),
            currents=frozenset({a, b}),
            after=second,
        ),
        Scenario(
            name="release that does not work",
            prepare=lambda rig: rig.deploy(first),
            act=failing(bundles.wrong),
            currents=frozenset({a, bad}),
            after=second,
        ),
        Scenario(
            name="first release does not work",
            prepare=_nothing,
            act=failing(bundles.wrong),
            currents=frozenset({None, bad}),
            after=first,
        ),
        Scenario(
            name="prune",
            prepare=lambda rig: (_fill(rig, bundles), _leave_litter(rig)),
            act=call("prune", "--keep", "1"),
            currents=frozenset({b}),
            after=second,
        ),
        Scenario(
            name="repair",
            prepare=lambda rig: (rig.deploy(first), rig.deploy(second), _damage(rig, second)),
            act=deploy(second),
            # What was damaged stays so until the last byte has come; see `damaged`.
            currents=frozenset({b}),
            after=second,
        ),
        Scenario(
            name="layout of the first version",
            prepare=lambda rig: _first_layout(rig, bundles.bare),
            act=deploy(second),
            currents=frozenset({bundles.bare.manifest.release, b}),
            after=second,
        ),
        Scenario(
            name="rollback",
            prepare=lambda rig: (rig.deploy(first), rig.deploy(second)),
            act=call("rollback"),
            currents=frozenset({a, b}),
            after=first,
        ),
        Scenario(
            name="recovery",
            prepare=lambda rig: (rig.deploy(first), _cut(rig, second, "kill:health.golden")),
            act=call("recover"),
            currents=frozenset({a, b}),
            after=second,
        ),
        Scenario(
            name="recovery that gives up",
            prepare=lambda rig: (
                rig.deploy(first),
                _cut(rig, second, "kill:health.golden"),
                rig.call("recover", fault="kill:health.golden"),
            ),
            act=call("recover"),
            currents=frozenset({a, b}),
            after=second,
        ),
        Scenario(
            name="leftovers",
            prepare=lambda rig: (rig.deploy(first), _cut(rig, second, "kill:release.fsync")),
            act=deploy(second),
            currents=frozenset({a, b}),
            after=second,
        ),
        Scenario(
            name="archive",
            prepare=lambda rig: rig.deploy(first),
            act=call("install", str(archive)),
            currents=frozenset({a, b}),
            after=second,
        ),
        Scenario(
            name="folder without the tool",
            prepare=_nothing,
            act=call("install", str(bundles.bare.path)),
            currents=frozenset({None, bundles.bare.manifest.release}),
            after=second,
        ),
        Scenario(
            name="metrics",
            prepare=lambda rig: rig.deploy(first),
            act=tell,
            currents=frozenset({a}),
            after=second,
        ),
        Scenario(
            name="content that arrives wrong",
            prepare=lambda rig: rig.deploy(first),
            act=corrupted,
            currents=frozenset({a}),
            after=second,
        ),
    ]


def _cut(rig: Rig, bundle: Bundle, fault: str) -> None:
    with contextlib.suppress(EdgepackError):
        rig.deploy(bundle, fault=fault)


def _fill(rig: Rig, bundles: Bundles) -> None:
    for bundle in (bundles.bare, bundles.first, bundles.second):
        rig.deploy(bundle, keep=10)


def _leave_litter(rig: Rig) -> None:
    """A cut upload, and content that no release needs."""
    (rig.root / "incoming" / f"{'0' * 64}.part").write_bytes(b"cut")
    (rig.root / "store" / ("0" * 64)).write_bytes(b"unneeded")


def _nothing(rig: Rig) -> None:
    """A device on which edgepack never was."""
    rig.root.mkdir()


def _damage(rig: Rig, bundle: Bundle) -> None:
    """Take the execute bit and a file from the current release, and put a stranger in."""
    folder = rig.root / "releases" / bundle.manifest.release
    (folder / "bin" / "edgepack-run").chmod(0o444)
    (folder / PARAMS).unlink()
    (folder / "stray").write_bytes(b"?")


def _first_layout(rig: Rig, bundle: Bundle) -> None:
    """As issue 2's deploys left a device: plain files, a link, and a lock that went stale."""
    rig.root.mkdir(parents=True)
    target = rig.root / "releases" / bundle.manifest.release
    shutil.copytree(bundle.path, target, ignore=shutil.ignore_patterns("*.sig"))
    (rig.root / "current").symlink_to(f"releases/{target.name}")
    (rig.root / ".lock").symlink_to("desk-00 1 token 00000000-0000-0000-0000-000000000000")
    (target.parent / f"{target.name}.smoke.json").write_text(json.dumps({"fingerprint": ""}))
