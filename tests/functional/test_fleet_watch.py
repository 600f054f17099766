"""`fleet watch`: rollouts to ten thousand scripted devices, seen by a client and a real browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgepack
from edgepack.base.errors import RemoteError
from edgepack.cli.console import Console
from edgepack.cli.fleet_run import Rollout, carry_out
from edgepack.fleet import (
    FleetDevice,
    Journal,
    RolloutPlan,
    Settings,
    Share,
    Stop,
    load_fleet,
    make_plan,
    roll_out,
)
from edgepack.fleet.journal import stop_file
from edgepack.fleet.watch import POLICY, watch_page
from edgepack.fleet.watched import MOST_SQUARES, Watched
from tests.browser import Browse, browse
from tests.scripted_fleet import FakeWork, Log, devices

__all__ = ["browse"]

MARKUP = '<img src="x" onerror="document.title=1"><script>document.title=2</script>'
BROKEN = [f"d{number:05}" for number in range(7, 10_000, 1000)]
SETTINGS = Settings(
    canary=Share(value=1),
    waves=(Share(value=10, percent=True), Share(value=100, percent=True)),
    parallel=8,
    max_failures=Share(value=100),
    max_failures_total=Share(value=100),
)


def begin(release: str) -> dict[str, Any]:
    return {"event": "begin", "action": "deploy", "releases": {"rasp3b": release}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[RolloutPlan, Path]:
    """The journal of a rollout to ten thousand devices, of which ten failed."""
    path = tmp_path_factory.mktemp("watch") / "m.jsonl"
    work = FakeWork(broken=BROKEN, error=RemoteError(MARKUP))
    plan = make_plan(devices(10_000), SETTINGS)
    with Journal(path) as journal:
        journal.write(begin(work.release))
        result = roll_out(plan, SETTINGS, work, Log(), journal=journal)
        journal.write({"event": "end", **result.to_dict()})
    return plan, path


class Client:
    """What a page does, by HTTP alone."""

    def __init__(self, address: str) -> None:
        url = urllib.parse.urlsplit(address)
        self.host, self.path = url.netloc, url.path

    def ask(
        self, method: str, path: str, **headers: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request(method, path, headers=headers)
        return connection, connection.getresponse()

    def status(self, method: str, path: str, **headers: str) -> int:
        connection, answer = self.ask(method, path, **headers)
        with contextlib.closing(connection):
            return answer.status

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[tuple[str, Any]]]:
        connection, answer = self.ask("GET", f"{self.path}events")
        assert answer.getheader("Content-Type") == "text/event-stream"

        def each() -> Iterator[tuple[str, Any]]:
            while name := answer.readline().decode().strip().removeprefix("event: "):
                data = answer.readline().decode().removeprefix("data: ")
                assert answer.readline() == b"\n"
                yield name, json.loads(data)

        try:
            yield each()
        finally:
            connection.close()


def test_a_page_from_python(tmp_path: Path) -> None:
    """As a line comes to the journal, the page that a program opened tells of it."""
    (tmp_path / "fleet.toml").write_text('[groups.d]\nboard = "rasp3b"\ndevices = ["d[1:3]"]\n')
    fleet = edgepack.load_fleet(tmp_path / "fleet.toml")
    work = FakeWork()
    with edgepack.watch_fleet(fleet, "mug") as where, Client(where).events() as events:
        assert next(events)[0] == "waves"
        with Journal(fleet.journal("mug")) as journal:
            journal.write(begin(work.release))
            roll_out(make_plan(fleet.devices, SETTINGS), SETTINGS, work, Log(), journal=journal)
        seen: set[int] = set()
        while len(seen) < 3:
            _, said = next(events)
            seen |= {number for number, state in said.get("states", ()) if state == 1}
    with pytest.raises(OSError):
        Client(where).status("GET", Client(where).path)


def test_ten_thousand_devices_as_the_journal_has_them(done: tuple[RolloutPlan, Path]) -> None:
    plan, path = done
    watched = Watched(plan, [path])
    watched.read()
    with watch_page(0, "m to fleet", watched) as where, Client(where).events() as events:
        kind, waves = next(events)
        assert kind == "waves"
        names = [name for wave in waves["waves"] for name in wave["devices"]]
        assert [wave["total"] for wave in waves["waves"]] == [1, 1000, 8999]
        kind, news = next(events)
        assert (kind, news["status"], news["under_way"]) == ("news", "complete", False)
        states = {names[number]: state for number, state in news["states"]}
        assert {name for name, state in states.items() if state == 2} == set(BROKEN)
        assert sum(state == 1 for state in states.values()) == 10_000 - len(BROKEN)
        assert news["errors"] == [[MARKUP, len(BROKEN)]]
        assert {row[0] for row in news["failed"]} == set(BROKEN)
        # Nothing new: nothing is sent of any device.
        assert next(events)[1]["states"] == []


def test_a_journal_that_grows_and_begins_anew(tmp_path: Path) -> None:
    plan, path = make_plan(devices(5), SETTINGS), tmp_path / "m.jsonl"
    watched = Watched(plan, [path])
    watched.read()
    version, news = watched.since(-1)
    assert news["status"] == "no rollout yet" and not watched.stop()
    first, second = FakeWork(release="a" * 12), FakeWork(release="b" * 12)
    with Journal(path) as journal:
        journal.write(begin(first.release))
        result = roll_out(plan, SETTINGS, first, Log(), journal=journal)
        watched.read()
        version, news = watched.since(version)
        assert news["states"] == [[number, 1] for number in range(5)]
        assert (news["status"], news["under_way"]) == ("under way", True)
        journal.write({"event": "end", **result.to_dict()})
        # Another release: what was done for the one before does not count.
        journal.write(begin(second.release))
        with path.open("ab") as file:
            file.write(b'\xff{"no line"\n{"device": "d00001", "half a l')
        watched.read()
        version, news = watched.since(version)
        assert news["states"] == [[number, 0] for number in range(5)]


def test_the_button_stops_the_rollout(tmp_path: Path) -> None:
    plan, path = make_plan(devices(50), SETTINGS), tmp_path / "m.jsonl"
    begun, go_on = threading.Event(), threading.Event()

    def hold(_device: object) -> None:
        begun.set()
        assert go_on.wait(60)

    work, results = FakeWork(before_end=hold), []
    with Journal(path) as journal:
        journal.write(begin(work.release))
        stop = Stop(file=stop_file(path))
        thread = threading.Thread(
            target=lambda: results.append(
                roll_out(plan, SETTINGS, work, Log(), journal=journal, stop=stop)
            )
        )
        thread.start()
        assert begun.wait(60)
        watched = Watched(plan, [path])
        watched.read()
        with watch_page(0, "m", watched) as where:
            client = Client(where)
            assert client.status("POST", f"{client.path}stop") == 202
        go_on.set()
        thread.join(60)
        assert results[0].status == "interrupted"
        # The canary was under way, and ended; no wave was begun.
        assert work.begun == ["d00001"]
        journal.write({"event": "end", **results[0].to_dict()})
    watched.read()
    with watch_page(0, "m", watched) as where:
        client = Client(where)
        assert client.status("POST", f"{client.path}stop") == 409


def test_who_is_not_let_in(done: tuple[RolloutPlan, Path], tmp_path: Path) -> None:
    """Who does not know the address, and web pages from elsewhere, by any name of this machine."""
    plan, _ = done
    path = tmp_path / "m.jsonl"
    with Journal(path) as journal:
        journal.write(begin("a" * 12))
    watched = Watched(plan, [path])
    watched.read()
    with watch_page(0, MARKUP, watched) as where:
        client = Client(where)
        port = client.host.rpartition(":")[2]
        page, stop = client.path, f"{client.path}stop"
        for path_asked in ("/", "/events", "//", "/x/events", f"{page}x", f"{page}../", "/é/"):
            assert client.status("GET", urllib.parse.quote(path_asked)) == 404
        assert client.status("POST", "/stop") == client.status("POST", "/x/stop") == 404
        assert client.status("GET", stop) == 404
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
            assert client.status("GET", page, Host=host) == 403
            assert client.status("POST", stop, Host=host) == 403
        for origin in ("http://evil.example", "null", "https://localhost", "http://127.0.0.1:1"):
            assert client.status("POST", stop, Origin=origin) == 403
        assert not stop_file(path).exists()
        assert client.status("POST", stop, Origin=f"http://localhost:{port}") == 202
        connection, answer = client.ask("GET", page)
        body = answer.read().decode()
        connection.close()
        assert answer.getheader("Content-Security-Policy") == POLICY
        assert "unsafe" not in POLICY and POLICY.startswith("default-src 'none'")
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert "<img" not in body  # a title is text
    with watch_page(0, "m", watched) as other:
        assert Client(other).path != page


def test_a_larger_fleet_has_no_squares() -> None:
    plan = make_plan(devices(MOST_SQUARES + 1), SETTINGS)
    watched = Watched(plan, [])
    assert [wave["devices"] for wave in watched.waves()["waves"]] == [[], [], []]
    assert watched.since(-1)[1]["states"] == []


FLEET = '[defaults]\nboard = "rasp3b"\n[groups.all-of-them]\ndevices = ["d[00001:00009]"]\n'


def test_a_rollout_takes_the_file_and_takes_it_away(tmp_path: Path) -> None:
    """One from before stops nothing."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    fleet = load_fleet(tmp_path / "fleet.toml")
    path = fleet.journal("m")
    with Journal(path) as journal:
        for asks, code in ((False, 0), (True, 130)):
            stop_file(path).touch()

            def ask(_device: FleetDevice, asks: bool = asks) -> None:
                assert asks or not stop_file(path).exists()
                if asks:
                    stop_file(path).touch()

            work = FakeWork(before_end=ask, release=f"{asks}")
            rollout = Rollout(
                fleet=fleet, settings=SETTINGS, devices=fleet.devices, work=work, model="m"
            )
            plan = rollout.plan(journal)
            assert carry_out(rollout, plan, journal, Console(quiet=True), None) == code
            assert work.begun == (["d00001"] if asks else [one.name for one in fleet.devices])
            assert not stop_file(path).exists()


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    words = ["fleet", "watch", str(tmp_path / "fleet.toml"), "--name", "m", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "edgepack", *words], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        said = "".join(iter(command.stdout.readline, "}\n")) + "}"
        client = Client(json.loads(said)["address"])
        assert client.status("GET", client.path) == 200
        with client.events() as events:
            assert next(events)[0] == "waves"
            assert next(events)[1]["status"] == "no rollout yet"
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0


class Seen(Watched):
    """Notes when a page has been told all there is, and a second time."""

    told = 0
    twice = threading.Event()

    def since(self, version: int) -> tuple[int, dict[str, Any]]:
        self.told += 1
        if self.told > 2:
            self.twice.set()
        return super().since(version)


def test_a_real_browser_shows_it(done: tuple[RolloutPlan, Path], browse: Browse) -> None:
    """The browser prints the page once its stream has ended: the command ends before that."""
    plan, path = done
    watched = Seen(plan, [path])
    watched.read()
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(watch_page(0, "m to fleet", watched))

        def end() -> None:
            watched.twice.wait(60)
            stack.close()

        thread = threading.Thread(target=end)
        thread.start()
        shown = browse(where, "--dump-dom", "--virtual-time-budget=2000")
        thread.join()
    assert shown.count('class="ok"') == 10_000 - len(BROKEN)
    assert shown.count('class="bad"') == len(BROKEN)
    assert "edgepack fleet watch has ended" in shown
    assert f"wave 2: {8999 - 9} of 8999 done, 9 failed" in shown
    # What a device said is text, and was not run.
    assert "&lt;img src=" in shown and "<img" not in shown
    assert "<title>m to fleet</title>" in shown
