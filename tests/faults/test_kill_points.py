"""The device tool is killed, or its link cut, at every step: what is left is always whole.

After each death: what is current is the old or the new release, every hash of it right; the
next deploy completes; and the one after that changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from edgepack.base.errors import ConnectError, EdgepackError, RemoteError
from edgepack.base.paths import data_file
from edgepack.bundle.bundle import Bundle
from edgepack.deploy.options import TrialRules
from edgepack.device import Address, ConnectionLostError, SshOptions
from edgepack.device.ssh import SshDevice
from tests.bundles import FakeTool
from tests.device_tool import host_tool
from tests.fake_app import FAKE_APP, fake_bundle
from tests.faults import preload
from tests.faults.rig import Rig
from tests.faults.scenarios import Bundles, Scenario, make_bundles, scenarios
from tests.integration import sshd_server
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.sshd_server import Sshd

TRIAL = ("trial.begin", "trial.write", "trial.rename", "trial.spawn", "trial.end")
"""Steps of a trial: see `test_a_trial_that_dies`."""
ACTIVATION = "trial.activate"
"""See `test_a_trial_that_dies_as_it_activates`; what comes after it are the steps of any."""
SEED = 20261121
SHORT = (20, 5)
LONG = (150, 50)
"""So many kills of the tool, and of the connection."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A scenario, the device it begins on, and the names of all steps in it, in order."""

    scenario: Scenario
    rig: Rig
    steps: tuple[str, ...]


@pytest.fixture(scope="module")
def tool() -> Path:
    return host_tool(faults=True)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """In memory, where there is such a place: a kill leaves what was written, flushed or not."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def bundles(home: Path, tool: Path) -> Bundles:
    (home / "bundles").mkdir()
    return make_bundles(home / "bundles", tool)


@pytest.fixture(scope="module")
def prepared(home: Path, tool: Path, bundles: Bundles) -> list[Prepared]:
    return prepare(home, "links", Rig(root=home, tool=tool), scenarios(bundles))


@pytest.fixture(scope="module")
def copying(home: Path, tool: Path, bundles: Bundles) -> list[Prepared]:
    """What makes releases, where they are copies."""
    chosen = [one for one in scenarios(bundles) if one.name in ("update", "repair")]
    return prepare(home, "copies", refusing_links(home, tool), chosen)


def refusing_links(home: Path, tool: Path) -> Rig:
    """A device that refuses hard links, as Android does."""
    return Rig(root=home, tool=tool, environment=preload.environment(links="no"))


def prepare(home: Path, name: str, like: Rig, chosen: list[Scenario]) -> list[Prepared]:
    """Each scenario done once without a fault, to learn its steps."""
    result = []
    for number, scenario in enumerate(chosen):
        rig = replace(like, root=home / f"{name}-{number}")
        scenario.prepare(rig)
        log = home / f"{name}-steps-{number}"
        trial = rig.copy_to(home / "trial")
        scenario.act(trial, "", log)
        assert trial.current() in scenario.currents
        result.append(Prepared(scenario=scenario, rig=rig, steps=tuple(log.read_text().split())))
    return result


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = sshd_server.start(tmp_path_factory.mktemp("sshd") / "server")
    yield server
    server.stop()


def connect(server: Sshd, port: int) -> SshDevice:
    """Through a proxy if `port` is its."""
    options = SshOptions(
        use_config=False,
        identity=server.key,
        identities_only=True,
        host_keys=(server.known_hosts_line.replace(f":{server.port}]", f":{port}]", 1)
                   .replace(f"]:{server.port} ", f"]:{port} "),),
    )  # fmt: skip
    return SshDevice(Address(host="127.0.0.1", user=server.user, port=port), options=options)


def deploy_through(port: int, rig: Rig, bundle: Bundle, server: Sshd) -> None:
    """As far as the proxy lets it."""
    with contextlib.suppress(ConnectError, RemoteError):
        device = connect(server, port)
        try:
            rig.deploy(bundle, device=device)
        finally:
            device.close()


def check_after(rig: Rig, scenario: Scenario) -> None:
    """The assertions of this file's first lines; the tool has not run since it died."""
    if scenario.name != "repair":  # that is damaged to begin with
        assert rig.current() in scenario.currents
    report = rig.deploy(scenario.after)
    assert rig.current() == scenario.after.manifest.release
    assert not (rig.root / "state" / "pending.json").exists()
    assert rig.left_over() == []
    before = rig.snapshot()
    again = rig.deploy(scenario.after)
    assert (again.outcome, again.received_bytes) == ("unchanged", 0), report
    assert rig.snapshot() == before


def kill(prepared: Prepared, home: Path, fault: str) -> None:
    rig = prepared.rig.copy_to(home / "trial")
    log = home / "killed"
    log.unlink(missing_ok=True)
    with contextlib.suppress(EdgepackError):
        prepared.scenario.act(rig, fault, log)
    # It died at its last step and not at a step before.
    steps = log.read_text().split()
    assert tuple(steps) == prepared.steps[: len(steps)], fault
    check_after(rig, prepared.scenario)


def step_names() -> set[str]:
    """All names of steps in the tool's source."""
    names: set[str] = set()
    for file in (data_file("cpp_runtime") / "device" / "src").glob("*.cc"):
        text = file.read_text()
        names |= set(re.findall(r'\bStep\("([a-z.-]+)"\)', text))
        for name in re.findall(r'Replace\((?:[^;]*?), "([a-z.]+)"(?:, 0\d+)?\)', text):
            names |= {f"{name}.write", f"{name}.rename"}
    names |= {"unit.write", "unit.rename", "unit.link"}  # on lines of their own
    for link in ("current", "previous"):
        names |= {f"{link}.link", f"{link}.rename", f"{link}.remove"}
    return names


def test_no_step_is_forgotten(prepared: list[Prepared], copying: list[Prepared]) -> None:
    done = {name for one in (*prepared, *copying) for name in one.steps}
    assert step_names() - done == {*TRIAL, ACTIVATION}
    assert done - step_names() == set()


def test_every_step_once(prepared: list[Prepared], copying: list[Prepared], home: Path) -> None:
    left = step_names()
    for one in (*prepared, *copying):
        for name in dict.fromkeys(one.steps):
            if name in left:
                left.remove(name)
                kill(one, home, f"kill:{name}")
    assert left == {*TRIAL, ACTIVATION}


def until(holds: Callable[[], bool], log: Path) -> None:
    """Waits for another process; for ever would hide that it hangs."""
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def trial_of(rig: Rig) -> tuple[str, bool]:
    """The phase of the trial on record, and whether it runs."""
    told = json.loads(rig.call("trial", "status").stdout)
    return told["trial"]["phase"], told["runs"]


@pytest.mark.parametrize("step", TRIAL)
def test_a_trial_that_dies(step: str, bundles: Bundles, home: Path, tool: Path) -> None:
    """At its beginning and its end, which is a process beside the one that was asked for it. It
    is over or interrupted then, and no deploy minds it."""
    rig = Rig(root=home / step, tool=tool)
    rig.deploy(bundles.first)
    log = home / f"{step}.log"
    rules = TrialRules(seconds=0.1)
    with contextlib.suppress(EdgepackError):
        rig.attempt(bundles.second, trial=rules, fault=f"kill:{step}", log=log)
    until(lambda: log.read_text().split()[-1] == step, log)
    assert rig.current() == bundles.first.manifest.release
    if step in TRIAL[:3]:  # nothing is on record
        status = rig.call("trial", "status")
        assert "there was no trial here" in status.stdout + status.stderr
    else:  # a step is in the log a moment before its process is dead
        until(lambda: not trial_of(rig)[1], log)
        assert trial_of(rig)[0] == "running"
    check_after(rig, Scenario(
        name="trial",
        prepare=lambda _: None,
        act=lambda *_: None,
        currents=frozenset({bundles.first.manifest.release}),
        after=bundles.second,
    ))  # fmt: skip


@pytest.fixture(scope="module")
def seeing(home: Path, tool: Path) -> tuple[Bundle, Bundle]:
    """Two releases whose fake app says the same of every picture of three bytes."""
    answer = """echo '{"top":[{"index":1,"label":"dog","score":0.9}]}'"""
    app = FAKE_APP.replace(
        "here=",
        f"""case "$*" in
  *--frames*) while [ "$(head -c 3 | wc -c)" -eq 3 ]; do {answer}; done; exit;;
  *--bench*) echo '{{"bench":{{"min_ms":1.5}}}}'; exit;;
esac
here=""",
        1,
    )
    one, other = (
        fake_bundle(home / name, app=app, weights=name.encode() * 999, tool=FakeTool(path=tool))
        for name in ("seeing-1", "seeing-2")
    )
    return one, other


@contextlib.contextmanager
def pictures(rig: Rig) -> Iterator[None]:
    """What an app does meanwhile: hands over a picture with its answer for each request."""
    answer = b'{"top":[{"index":1,"label":"dog","score":0.9}]}'
    about = {
        "format": "bgr24", "width": 1, "height": 1, "picture_bytes": 3,
        "answer_bytes": len(answer),
    }  # fmt: skip
    done, memory = threading.Event(), os.memfd_create("picture")
    os.write(memory, bytes(3) + answer)

    def hand_over() -> None:
        while not done.wait(0.02):
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as app,
            ):
                app.settimeout(1)
                app.connect(str(rig.root / "trial/frames"))
                while app.recv(100) and not done.is_set():
                    socket.send_fds(app, [json.dumps(about).encode()], [memory])

    thread = threading.Thread(target=hand_over)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.close(memory)


@pytest.mark.parametrize("step", [ACTIVATION, "current.rename", "trial.end"])
def test_a_trial_that_dies_as_it_activates(
    step: str, seeing: tuple[Bundle, Bundle], home: Path, tool: Path
) -> None:
    """One release or the other is current; `trial resume` goes on, and activates it once."""
    first, second = seeing
    rig = Rig(root=home / f"activates-{step}", tool=tool)
    rig.deploy(first)
    log = home / f"activates-{step}.log"
    rules = TrialRules(seconds=4, share=1, min_pictures=1, max_latency=50)

    with pictures(rig):
        rig.attempt(second, trial=rules, fault=f"kill:{step}", log=log)
        until(lambda: log.read_text().split()[-1] == step and not trial_of(rig)[1], log)
        assert trial_of(rig)[0] == ("running" if step == ACTIVATION else "activating")
        assert rig.current() == (second if step == "trial.end" else first).manifest.release
        assert rig.call("trial", "resume").returncode == 0
        until(lambda: trial_of(rig) == ("activated", False), log)
    assert rig.current() == second.manifest.release
    assert rig.deploy(second).outcome == "unchanged"
    assert rig.left_over() == []


@pytest.mark.parametrize(
    "count", [SHORT[0], pytest.param(LONG[0], marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_kills_at_random(prepared: list[Prepared], home: Path, count: int) -> None:
    rng = random.Random(SEED)
    for _ in range(count):
        one = rng.choice(prepared)
        kill(one, home, f"kill:{rng.randrange(len(one.steps)) + 1}")


def test_kills_where_releases_are_copies(copying: list[Prepared], home: Path) -> None:
    """At each step of making one."""
    for one in copying:
        files = [path for path in (one.rig.root / "releases").rglob("*") if path.is_file()]
        assert {path.stat().st_nlink for path in files} == {1}
        for number, name in enumerate(one.steps):
            if name.startswith("release.") and name not in one.steps[:number]:
                kill(one, home, f"kill:{name}")


@pytest.mark.slow
def test_kills_at_random_where_releases_are_copies(
    home: Path, tool: Path, bundles: Bundles
) -> None:
    prepared = prepare(home, "all-copies", refusing_links(home, tool), scenarios(bundles))
    rng = random.Random(SEED)
    for _ in range(LONG[0]):
        one = rng.choice(prepared)
        kill(one, home, f"kill:{rng.randrange(len(one.steps)) + 1}")


@pytest.mark.parametrize(
    "count", [SHORT[1], pytest.param(LONG[1], marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_cut_connections(prepared: list[Prepared], home: Path, server: Sshd, count: int) -> None:
    rng = random.Random(SEED)
    over_a_link = [one for one in prepared if one.scenario.name in ("first deploy", "update")]
    for _ in range(count):
        one = rng.choice(over_a_link)
        rig = one.rig.copy_to(home / "trial")
        # Key exchange and login take some 4 kB, the first deploy 4 MB, the update 0.1 MB.
        size = 4_000_000 if one.scenario.name == "first deploy" else 100_000
        with CuttingProxy(server.port, cut_after=rng.randrange(1_000, size)) as proxy:
            deploy_through(proxy.port, rig, one.scenario.after, server)
        check_after(rig, one.scenario)


def test_the_device_finishes_alone(home: Path, server: Sshd, tool: Path) -> None:
    """The link dies while the golden input runs: the release becomes current all the same."""
    started, go_on = home / "started", home / "go-on"
    wait = f"touch {started}; while [ ! -e {go_on} ]; do sleep 0.1; done"
    app = FAKE_APP.replace("here=", f"{wait}\nhere=", 1)
    bundle = fake_bundle(home / "patient", app=app, tool=FakeTool(path=tool))
    rig = Rig(root=home / "alone", tool=tool)
    device = connect(server, server.port)

    def hang_up() -> None:
        while not started.exists():
            time.sleep(0.05)
        device.close()

    with pytest.raises(ConnectionLostError):
        rig.deploy(bundle, device=device, when_sent=hang_up)
    go_on.touch()
    assert wait_until_idle(rig)["current"]["release"] == bundle.manifest.release
    assert rig.current() == bundle.manifest.release


def wait_until_idle(rig: Rig) -> dict[str, dict[str, str]]:
    """The status when nobody holds the lock any more."""
    for _ in range(1200):
        done = rig.call("status")
        status = json.loads(done.stdout)
        if status.get("lock") is None and status.get("current"):
            return dict(status)
        time.sleep(0.05)
    raise AssertionError(f"still busy: {done.stdout}")
