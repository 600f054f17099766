"""edgepack-sinks with a real broker, and with peers and programs that mean no good."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.boards import get_board
from edgepack.flow.sinks import fetch_mosquitto
from edgepack.native.sinks import build_sinks
from tests.brokers import Subscriber, broker, password_file
from tests.sinks_program import counted
from tests.support import await_that, free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program() -> Path:
    return build_sinks(get_board("local"), fetch_mosquitto).path


def mqtt(folder: Path, port: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "home",
        "scheme": "mqtt",
        "host": "127.0.0.1",
        "port": port,
        "path": "",
        "topic": "door/results",
        "status_topic": "door/status",
        "client_id": "edgepack-door",
        "counting": None,
        "counters": [],
        "counters_topic": "door/counter",
        "discovery": None,
        "username": None,
        "password_file": None,
        "buffer": str(folder),
        "buffer_bytes": 64 << 20,
        **changes,
    }


def http(folder: Path, port: int, **changes: Any) -> dict[str, Any]:
    return mqtt(folder, port, name="hook", scheme="http", path="/seen?by=door", **changes)


def when(**changes: Any) -> dict[str, Any]:
    return {
        "name": "visitor",
        "class": "person",
        "crossing": None,
        "score": 0.6,
        "least": 1,
        "for_s": 0.0,
        "every_s": 0.0,
        "run": [],
        "time_limit_s": 5.0,
        "gpio": None,
        "clip": None,
        **changes,
    }


class Running:
    """The program, as the app starts it."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        sinks: list[dict[str, Any]],
        rules: list[dict[str, Any]],
        environment: dict[str, str],
        counters: list[dict[str, Any]],
    ) -> None:
        file = folder / "sinks.json"
        config = {"schema": 1, "name": "counter", "sinks": sinks, "counters": counters}
        config["when"] = rules
        file.write_text(json.dumps(config))
        self._log = folder / "sinks.log"
        self._metrics = os.memfd_create("metrics")
        os.truncate(self._metrics, 32 << 10)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [program, file, str(self._metrics)],
                stdin=subprocess.PIPE,
                stderr=log,
                pass_fds=[self._metrics],
                env={**os.environ, **environment},
            )

    def say(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=20) == 0, self.log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def metrics(self) -> dict[str, int]:
        data = os.pread(self._metrics, 32 << 10, 0)
        size = int.from_bytes(data[:4], "little")
        lines = data[4 : 4 + size].decode().splitlines()
        return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}

    def rss_kb(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def await_metric(self, name: str, least: int, timeout_s: float = 30) -> None:
        await_that(lambda: self.metrics.get(name, -1) >= least, timeout_s, lambda: self.log)


@contextmanager
def running(
    program: Path,
    folder: Path,
    *,
    sinks: list[dict[str, Any]] | None = None,
    rules: list[dict[str, Any]] | None = None,
    environment: dict[str, str] | None = None,
    counters: list[dict[str, Any]] | None = None,
) -> Iterator[Running]:
    started = Running(program, folder, sinks or [], rules or [], environment or {}, counters or [])
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def line(number: int, *people: float) -> str:
    boxes = [{"index": 0, "label": "person", "score": score} for score in people]
    return json.dumps({"frame": number, "boxes": boxes})


def numbers(messages: list[tuple[bool, str, str]]) -> list[int]:
    return [json.loads(message)["frame"] for _, _, message in messages]


def test_a_broker_gets_lines_and_keeps_what_the_device_is(program: Path, tmp_path: Path) -> None:
    port = free_port()
    counting = {"classes": ["person"], "score": 0.5, "topic": "door/count"}
    sink = mqtt(tmp_path, port, counting=counting, discovery="homeassistant")
    with broker(tmp_path, port), running(program, tmp_path, sinks=[sink]) as sinks:
        with Subscriber(port, "door/results") as results:
            sinks.await_metric('edgepack_sink_up{sink="home"}', 1)
            time.sleep(0.3)
            sinks.say(line(0), line(1, 0.9, 0.7, 0.2), line(2, 0.6))
            assert results.take(3) == [
                (False, "door/results", line(0)),
                (False, "door/results", line(1, 0.9, 0.7, 0.2)),
                (False, "door/results", line(2, 0.6)),
            ]
        with Subscriber(port, "door/count") as state:
            assert state.take(1) == [(True, "door/count", '{"person":1}')]
        with Subscriber(port, "homeassistant/#") as discovery:
            [(kept, topic, message)] = discovery.take(1)
        assert kept
        assert topic == "homeassistant/sensor/edgepack-door_person/config"
        about = json.loads(message)
        assert about["state_topic"] == "door/count"
        assert about["value_template"] == "{{ value_json['person'] }}"
        assert about["availability_topic"] == "door/status"
        with Subscriber(port, "door/status") as status:
            assert status.take(1) == [(True, "door/status", "online")]
            sinks.end()
            assert status.take(1)[0][2] == "offline"


def test_a_line_like_those_before_takes_no_memory(tmp_path: Path) -> None:
    """Two boxes that are tracked, with an answer each, through a counter with a line, two topics
    and a rule: 400 lines after the first hundred ask glibc's malloc for next to nothing."""
    program, counting = counted()
    port, count = free_port(), tmp_path / "count"
    counter = {"name": "gate", "class": "person", "score": 0.5, "for_s": 0.0, "is_foot": False}
    config = {
        "schema": 1,
        "name": "counter",
        "sinks": [
            mqtt(
                tmp_path,
                port,
                counters=["gate"],
                counting={"topic": "door/count", "classes": ["person"], "score": 0.5},
            )
        ],
        "counters": [{**counter, "line": [50, 0, 50, 100]}],
        "when": [when(least=9)],
    }
    (tmp_path / "sinks.json").write_text(json.dumps(config))

    def seen(number: int) -> bytes:
        boxes = [
            {
                "label": "person",
                "score": 0.9,
                "box": [abs(number % 100 - 50) + 10 * track, 10, 60 + 10 * track, 90],
                "track": track,
                "answers": {"shirt": {"top": [{"label": "a shirt of many colours", "score": 0.7}]}},
            }
            for track in ((1, 2) if number % 3 else (1,))
        ]
        return json.dumps({"frame": number + 1000, "boxes": boxes}).encode() + b"\n"

    with broker(tmp_path, port), Subscriber(port, "door/results") as results:
        time.sleep(0.3)
        with subprocess.Popen(
            [program, tmp_path / "sinks.json"],
            stdin=subprocess.PIPE,
            env={**os.environ, "LD_PRELOAD": str(counting), "COUNT": str(count)},
        ) as process:
            assert process.stdin is not None
            asked = []
            for begin in range(0, 500, 100):
                process.stdin.write(b"".join(map(seen, range(begin, begin + 100))))
                process.stdin.flush()
                assert numbers(results.take(100)) == list(range(begin + 1000, begin + 1100))
                asked.append(int.from_bytes(count.read_bytes(), "little"))
            process.stdin.close()
            assert process.wait(timeout=20) == 0
    assert asked[0] > 100
    # What waits at a time varies, and with it the places that are kept for that.
    assert asked[-1] - asked[0] < 40


def test_the_last_will_says_that_it_is_gone(program: Path, tmp_path: Path) -> None:
    port = free_port()
    with broker(tmp_path, port), running(program, tmp_path, sinks=[mqtt(tmp_path, port)]) as sinks:
        sinks.await_metric('edgepack_sink_up{sink="home"}', 1)
        with Subscriber(port, "door/status") as status:
            assert status.take(1)[0][2] == "online"
            sinks.process.kill()
            assert status.take(1)[0][2] == "offline"


def test_an_hour_without_a_broker_loses_nothing(program: Path, tmp_path: Path) -> None:
    """36,000 results, 10 a second; the program is started anew in between."""
    port = free_port()
    sink = mqtt(tmp_path, port)
    with running(program, tmp_path, sinks=[sink]) as sinks:
        sinks.say(*(line(number, 0.9) for number in range(2000)))
        sinks.await_metric('edgepack_sink_waiting_bytes{sink="home"}', 2000 * 60)
        before = sinks.rss_kb()
        sinks.say(*(line(number, 0.9) for number in range(2000, 18000)))
        sinks.await_metric('edgepack_sink_waiting_bytes{sink="home"}', 18000 * 60)
        assert sinks.rss_kb() <= before + 512
        sinks.end()
    with broker(tmp_path, port), Subscriber(port, "door/results") as results:
        time.sleep(0.5)
        with running(program, tmp_path, sinks=[sink]) as sinks:
            sinks.say(*(line(number, 0.9) for number in range(18000, 36000)))
            assert numbers(results.take(36000, timeout_s=120)) == list(range(36000))
            sinks.await_metric('edgepack_sink_sent_total{sink="home"}', 36000)
            assert sinks.rss_kb() <= before + 1024
            assert sinks.metrics['edgepack_sink_dropped_total{sink="home"}'] == 0
            assert sinks.metrics['edgepack_sink_waiting_bytes{sink="home"}'] == 0
            sinks.end()
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["lock", "position"]


def test_the_oldest_go_first_beyond_the_bound_and_are_counted(
    program: Path, tmp_path: Path
) -> None:
    port = free_port()
    count = 30000
    with running(program, tmp_path, sinks=[mqtt(tmp_path, port, buffer_bytes=1 << 20)]) as sinks:
        sinks.say(*(line(number, 0.9) for number in range(count)))
        sinks.await_metric('edgepack_sink_dropped_total{sink="home"}', 1)
        time.sleep(1.5)
        taken = sum(path.stat().st_size for path in (tmp_path / "home").glob("*.lines"))
        assert (7 << 20) // 8 <= taken <= 1 << 20
        with broker(tmp_path, port), Subscriber(port, "door/results") as results:
            dropped = sinks.metrics['edgepack_sink_dropped_total{sink="home"}']
            assert numbers(results.take(count - dropped, timeout_s=90)) == list(
                range(dropped, count)
            )


def test_a_broker_that_comes_and_goes_gets_all_in_order(program: Path, tmp_path: Path) -> None:
    port = free_port()
    sent = 0
    with running(program, tmp_path, sinks=[mqtt(tmp_path, port)]) as sinks:
        seen: list[int] = []
        for _ in range(3):
            with broker(tmp_path, port), Subscriber(port, "door/results") as results:
                time.sleep(0.3)
                sinks.await_metric('edgepack_sink_up{sink="home"}', 1)
                sinks.say(*(line(number) for number in range(sent, sent + 500)))
                sent += 500
                while not seen or seen[-1] < sent - 1:
                    seen += numbers(results.take(1))
            # Some that are written while nobody is there.
            sinks.say(*(line(number) for number in range(sent, sent + 50)))
            sent += 50
            await_that(lambda: sinks.metrics['edgepack_sink_up{sink="home"}'] == 0)
    # At least once: what is not twice is in order, and none is missing.
    assert list(dict.fromkeys(seen)) == list(range(sent - 50))


def test_a_password_comes_from_a_file_that_nobody_else_reads(program: Path, tmp_path: Path) -> None:
    port = free_port()
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    secret.chmod(0o600)
    more = f"password_file {password_file(tmp_path, 'door', 'open sesame')}\n"
    sink = mqtt(tmp_path, port, username="door", password_file=str(secret))
    with broker(tmp_path, port, more=more):
        with running(program, tmp_path, sinks=[sink]) as sinks:
            sinks.await_metric('edgepack_sink_up{sink="home"}', 1)
        secret.chmod(0o640)
        with running(program, tmp_path, sinks=[sink]) as sinks:
            await_that(lambda: f"others may read {secret}" in sinks.log)
        secret.chmod(0o600)
        secret.write_text("swordfish\n")
        with running(program, tmp_path, sinks=[sink]) as sinks:
            await_that(lambda: "the broker refuses" in sinks.log)
        # systemd's credential comes before the file.
        (tmp_path / "home-password").write_text("open sesame")
        given = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
        with running(program, tmp_path, sinks=[sink], environment=given) as sinks:
            sinks.await_metric('edgepack_sink_up{sink="home"}', 1)
            assert (
                "sesame" not in sinks.log + Path(f"/proc/{sinks.process.pid}/cmdline").read_text()
            )


@contextmanager
def peer(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Does the same to everybody who connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(5)
                    with suppress(OSError):
                        talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()


def connack(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"\x20\x02\x00\x00")


def garbage(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(bytes(range(256)) * 64)


def closing(connection: socket.socket) -> None:
    connack(connection)
    connection.recv(64)


def huge(connection: socket.socket) -> None:
    """A message of 256 MB that nobody asked for."""
    connack(connection)
    connection.sendall(b"\x30\xff\xff\xff\x7f\x00\x01a")
    for _ in range(256):
        connection.sendall(bytes(1 << 20))


def wrong_ids(connection: socket.socket) -> None:
    connack(connection)
    for number in range(2000):
        connection.sendall(b"\x40\x02" + (number * 31 % 65536).to_bytes(2, "big"))


@pytest.mark.parametrize("talk", [garbage, closing, huge, wrong_ids])
def test_hostile_brokers_cost_nothing(
    program: Path, tmp_path: Path, talk: Callable[[socket.socket], None]
) -> None:
    with peer(talk) as port, running(program, tmp_path, sinks=[mqtt(tmp_path, port)]) as sinks:
        sinks.say(*(line(number) for number in range(100)))
        sinks.await_metric('edgepack_sink_failures_total{sink="home"}', 2)
        assert sinks.process.poll() is None
        assert sinks.rss_kb() < 16 << 10
        assert "lines wait in" in sinks.log
        sinks.end()
    port = free_port()
    with broker(tmp_path, port), Subscriber(port, "door/results") as results:
        time.sleep(0.3)
        with running(program, tmp_path, sinks=[mqtt(tmp_path, port)]):
            got = list(dict.fromkeys(numbers(results.take(100))))
    # An acknowledgement that was a lie is one to the sender; none of the others is lost.
    assert got == sorted(got)
    assert talk is wrong_ids or len(got) == 100


def test_a_broker_that_never_answers(program: Path, tmp_path: Path) -> None:
    silent = threading.Event()
    with peer(lambda _: silent.wait(12) and None) as port:
        with running(program, tmp_path, sinks=[mqtt(tmp_path, port)]) as sinks:
            sinks.say(line(0))
            await_that(lambda: "the broker gives no answer" in sinks.log, 20)
            begun = time.monotonic()
            sinks.end()
            assert time.monotonic() - begun < 6
        silent.set()


def answering(*answers: bytes) -> tuple[list[bytes], Callable[[socket.socket], None]]:
    """Requests that came, and a server that answers each with the next of `answers`."""
    came: list[bytes] = []
    left = list(answers)

    def talk(connection: socket.socket) -> None:
        text = b""
        while b"\r\n\r\n" not in text:
            text += connection.recv(65536)
        head, _, body = text.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        while len(body) < length:
            body += connection.recv(65536)
        came.append(head + b"\r\n\r\n" + body)
        connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    return came, talk


def test_a_webhook_gets_each_line_once_it_takes_them(program: Path, tmp_path: Path) -> None:
    ok = b"HTTP/1.1 204 No Content\r\n\r\n"
    later = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"
    never = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    came, talk = answering(later, ok, never, ok)
    with peer(talk) as port, running(program, tmp_path, sinks=[http(tmp_path, port)]) as sinks:
        sinks.say(*(line(number) for number in range(20)))
        sinks.await_metric('edgepack_sink_sent_total{sink="hook"}', 19)
        assert sinks.metrics['edgepack_sink_refused_total{sink="hook"}'] == 1
    bodies = [request.partition(b"\r\n\r\n")[2].decode() for request in came]
    assert bodies == [line(0), *(line(number) for number in range(20))]
    assert came[0].startswith(b"POST /seen?by=door HTTP/1.1\r\nHost: 127.0.0.1:")


def test_a_webhook_that_answers_without_end_is_left(program: Path, tmp_path: Path) -> None:
    def endless(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"a" * 65536)

    def no_http(connection: socket.socket) -> None:
        connection.recv(65536)
        while True:
            connection.sendall(b"a" * 65536)

    with peer(endless) as port, running(program, tmp_path, sinks=[http(tmp_path, port)]) as sinks:
        sinks.say(*(line(number) for number in range(5)))
        sinks.await_metric('edgepack_sink_sent_total{sink="hook"}', 5)
    with peer(no_http) as port, running(program, tmp_path, sinks=[http(tmp_path, port)]) as sinks:
        sinks.say(line(0))
        await_that(lambda: "its answer is not HTTP" in sinks.log)
        assert sinks.rss_kb() < 16 << 10


def test_when_runs_a_program_after_a_while_and_not_too_often(program: Path, tmp_path: Path) -> None:
    script = tmp_path / "ring"
    script.write_text(f'#!/bin/sh\necho "$# $1" >> {tmp_path}/rung\ncat >> {tmp_path}/rung\n')
    script.chmod(0o755)
    rule = when(for_s=0.5, every_s=2.0, run=[str(script), "a $(b) c"])
    with running(program, tmp_path, rules=[rule]) as sinks:
        sinks.say(line(0, 0.9), line(1))  # for no time at all
        begun = time.monotonic()
        number = 1
        while time.monotonic() - begun < 3.2:
            number += 1
            sinks.say(line(number, 0.6, 0.7))
            time.sleep(0.05)
        sinks.await_metric('edgepack_action_runs_total{when="visitor"}', 2)
        sinks.say(line(-1, 0.6))  # not above
        time.sleep(0.2)
        sinks.end()
    rung = (tmp_path / "rung").read_text().splitlines()
    assert rung[0::2] == ["1 a $(b) c"] * 2  # no shell has looked at it
    assert [json.loads(text)["boxes"][1]["score"] for text in rung[1::2]] == [0.7, 0.7]


def test_what_the_last_line_wants_is_done(program: Path, tmp_path: Path) -> None:
    """However soon after it the app ends: nearly all of these have not begun by then."""
    names = [f"last-{number}" for number in range(16)]
    rules = [when(name=name, run=["/bin/cp", "/dev/stdin", str(tmp_path / name)]) for name in names]
    with running(program, tmp_path, rules=rules) as sinks:
        sinks.say(line(0, 0.9))
        sinks.end()
    assert [json.loads((tmp_path / name).read_text())["frame"] for name in names] == [0] * 16


def test_when_boxes_are_tracked_one_has_to_stay(program: Path, tmp_path: Path) -> None:
    script = tmp_path / "ring"
    script.write_text(f"#!/bin/sh\ncat >> {tmp_path}/rung\n")
    script.chmod(0o755)
    rules = [
        when(for_s=0.6, every_s=60.0, run=[str(script)]),
        {**when(for_s=0.6, every_s=60.0, run=[str(script)]), "class": "Anna", "name": "anna"},
    ]

    def box(track: int, **more: object) -> dict[str, object]:
        return {"index": 0, "label": "person", "score": 0.9, "track": track, **more}

    with running(program, tmp_path, rules=rules) as sinks:
        for number in range(30):  # many people, each for a moment
            sinks.say(json.dumps({"frame": number, "boxes": [box(number // 4 + 1)]}))
            time.sleep(0.05)
        assert sinks.metrics['edgepack_action_runs_total{when="visitor"}'] == 0
        answers = {"who": {"top": [{"index": 1, "label": "Anna", "score": 0.8}]}}
        for number in range(30, 60):  # one who is missed now and then, and known at times
            boxes = [box(99, answers=answers if number % 3 else {}), box(number)]
            sinks.say(json.dumps({"frame": number, "boxes": boxes[number % 4 == 1 :]}))
            time.sleep(0.05)
        sinks.await_metric('edgepack_action_runs_total{when="visitor"}', 1)
        sinks.await_metric('edgepack_action_runs_total{when="anna"}', 1)
        sinks.end()
    rung = [json.loads(text) for text in (tmp_path / "rung").read_text().splitlines()]
    assert len(rung) == 2
    assert all(one["frame"] >= 40 and one["boxes"][0]["track"] == 99 for one in rung)


def counter(**changes: Any) -> dict[str, Any]:
    """A line across a picture of 100 by 100: who comes down crosses it inwards."""
    return {
        "name": "gate",
        "class": "person",
        "score": 0.5,
        "for_s": 0.0,
        "line": [20.0, 50.0, 80.0, 50.0],
        "is_foot": False,
        **changes,
    }


def walk(*boxes: tuple[int, float, float], label: str = "person") -> str:
    """A line of boxes of 20 by 20 with these tracks and middles."""
    return json.dumps(
        {
            "boxes": [
                {
                    "index": 0,
                    "label": label,
                    "score": 0.9,
                    "track": track,
                    "box": [x - 10, y - 10, x + 10, y + 10],
                }
                for track, x, y in boxes
            ]
        }
    )


def crossings(program: Path, folder: Path, lines: list[str], **changes: Any) -> tuple[int, ...]:
    """In view, seen, in and out after these lines."""
    with running(program, folder, counters=[counter(**changes)]) as sinks:
        sinks.say(*lines)
        sinks.end()
        found = sinks.metrics
    names = ["in_view", "seen_total"]
    counts = [found[f'edgepack_counter_{name}{{counter="gate"}}'] for name in names]
    for direction in ("in", "out"):
        name = f'edgepack_counter_crossings_total{{counter="gate",direction="{direction}"}}'
        counts.append(found[name])
    return tuple(counts)


@pytest.mark.parametrize(
    ("path", "due"),
    [
        ([(50, 30), (50, 45), (50, 60)], (1, 0)),
        ([(50, 60), (50, 40)], (0, 1)),
        ([(50, 30), (50, 70), (50, 30), (50, 70)], (2, 1)),
        ([(50, 40), *[(50, 49.5), (50, 50.5)] * 20, (50, 49.5)], (0, 0)),  # trembles on the line
        ([(50, 40), *[(50, 49.5), (50, 50.5)] * 20, (50, 55)], (1, 0)),  # and goes on
        ([(10, 40), (10, 60)], (0, 0)),  # past its end
        ([(12, 40), (32, 60)], (1, 0)),  # slantwise, just within its end
        ([(90, 40), (95, 60), (50, 60), (50, 40)], (0, 1)),  # around it, and back through it
        ([(30, 40), (70, 42)], (0, 0)),  # along it
    ],
)
def test_who_crosses_a_line_is_counted_by_direction(
    program: Path, tmp_path: Path, path: list[tuple[float, float]], due: tuple[int, int]
) -> None:
    lines = [walk((7, x, y)) for x, y in path]
    assert crossings(program, tmp_path, lines) == (1, 1, *due)
    turned = counter()["line"][2:] + counter()["line"][:2]
    assert crossings(program, tmp_path, lines, line=turned) == (1, 1, *due[::-1])


def test_random_walks_cross_as_often_as_an_independent_count_says(
    program: Path, tmp_path: Path
) -> None:
    """Steps over the line's height: to the left of its ends, to the right, or between."""
    random = np.random.default_rng(5)
    at = {track: random.integers(0, 10, 2) * 10 + 5.0 for track in range(1, 30)}
    lines, due = [walk(*((track, *middle) for track, middle in at.items()))], {"in": 0, "out": 0}
    for _ in range(200):
        for track, was in at.items():
            now = random.integers(0, 10, 2) * 10 + 5.0
            at[track] = now
            if (was[1] < 50) == (now[1] < 50):
                continue
            # Where the way meets the height of the line.
            x = was[0] + (now[0] - was[0]) * (50 - was[1]) / (now[1] - was[1])
            if 21.3 < x < 78.7:
                due["in" if now[1] > 50 else "out"] += 1
        lines.append(walk(*((track, *middle) for track, middle in at.items())))
    line = [21.3, 50.0, 78.7, 50.0]
    found = crossings(program, tmp_path, lines, line=line)
    assert found == (29, 29, due["in"], due["out"])
    assert min(due.values()) > 500


def test_a_counter_by_the_foot_of_a_class_and_above_a_score(program: Path, tmp_path: Path) -> None:
    lines = [walk((7, 50, 30)), walk((7, 50, 45))]  # the lower side from 40 to 55
    assert crossings(program, tmp_path, lines) == (1, 1, 0, 0)
    assert crossings(program, tmp_path, lines, is_foot=True) == (1, 1, 1, 0)
    assert crossings(program, tmp_path, lines, is_foot=True, score=0.9) == (0, 0, 0, 0)
    dogs = [walk((7, 50, 30), label="dog"), walk((7, 50, 70), label="dog")]
    assert crossings(program, tmp_path, dogs) == (0, 0, 0, 0)
    untracked = [line(0, 0.9, 0.8)]
    assert crossings(program, tmp_path, untracked) == (0, 0, 0, 0)


def test_tracks_that_are_gone_cost_no_memory(program: Path, tmp_path: Path) -> None:
    with running(program, tmp_path, counters=[counter()]) as sinks:
        lines = ((walk(*((n * 100 + i, 50, 20) for i in range(1, 101)))) for n in range(1500))
        seen = 'edgepack_counter_seen_total{counter="gate"}'
        sinks.say(*(next(lines) for _ in range(200)))
        sinks.await_metric(seen, 20_000)
        before = sinks.rss_kb()
        sinks.say(*lines)
        sinks.await_metric(seen, 150_000)
        assert sinks.rss_kb() <= before + 64
        assert sinks.metrics['edgepack_counter_in_view{counter="gate"}'] <= 1000


def test_the_broker_keeps_what_counters_say_and_home_assistant_finds_them(
    program: Path, tmp_path: Path
) -> None:
    port = free_port()
    sink = mqtt(tmp_path, port, counters=["gate", "hall"], discovery="homeassistant")
    counters = [counter(), counter(name="hall", line=None)]
    with (
        broker(tmp_path, port),
        running(program, tmp_path, sinks=[sink], counters=counters) as sinks,
    ):
        sinks.say(walk((1, 50, 30), (2, 50, 70)), walk((1, 50, 70), (2, 50, 75)))
        sinks.say(walk((3, 50, 70)))
        sinks.await_metric('edgepack_sink_sent_total{sink="home"}', 3)
        time.sleep(1.2)
        with Subscriber(port, "door/counter/#") as state:
            found = {topic: json.loads(text) for _, topic, text in state.take(2)}
        assert found == {
            "door/counter/gate": {"in_view": 3, "seen": 3, "in": 1, "out": 0},
            "door/counter/hall": {"in_view": 3, "seen": 3},
        }
        with Subscriber(port, "homeassistant/#") as discovery:
            about = [json.loads(text) for _, _, text in discovery.take(6)]
        assert {one["name"]: one["state_class"] for one in about} == {
            "gate in view": "measurement",
            "gate seen": "total_increasing",
            "gate in": "total_increasing",
            "gate out": "total_increasing",
            "hall in view": "measurement",
            "hall seen": "total_increasing",
        }
        assert len({one["unique_id"] for one in about}) == 6
        out = next(one for one in about if one["name"] == "gate out")
        assert out["state_topic"] == "door/counter/gate"
        assert out["value_template"] == "{{ value_json['out'] }}"


def test_when_a_line_is_crossed_or_several_are_there(program: Path, tmp_path: Path) -> None:
    script = tmp_path / "ring"
    script.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/rung\n')
    script.chmod(0o755)
    rules = [
        when(
            name=name,
            run=[str(script), name],
            **{"class": None, "crossing": {"counter": "gate", "direction": name}},
        )
        for name in ("in", "out")
    ]
    rules.append(when(name="three", least=3, run=[str(script), "three"]))
    with running(program, tmp_path, counters=[counter()], rules=rules) as sinks:
        sinks.say(walk((1, 50, 30), (2, 50, 20)), walk((1, 50, 35), (2, 50, 20)))
        sinks.say(line(0, 0.9, 0.9, 0.3))  # two, and one that is unlikely
        sinks.say(walk((1, 50, 70)))
        sinks.await_metric('edgepack_action_runs_total{when="in"}', 1)
        assert sinks.metrics['edgepack_action_runs_total{when="three"}'] == 0
        sinks.say(walk((1, 50, 75), (2, 50, 20), (3, 10, 10)))
        sinks.await_metric('edgepack_action_runs_total{when="three"}', 1)
        sinks.end()
        assert sinks.metrics['edgepack_action_runs_total{when="out"}'] == 0
    assert sorted((tmp_path / "rung").read_text().split()) == ["in", "three"]


def test_what_a_stage_says_of_a_box_starts_a_program(program: Path, tmp_path: Path) -> None:
    script = tmp_path / "ring"
    script.write_text(f"#!/bin/sh\ncat >> {tmp_path}/rung\n")
    script.chmod(0o755)
    rule = {**when(run=[str(script)]), "class": "tabby"}
    top = [{"index": 3, "label": "tabby", "score": 0.9}]
    cat = {"index": 0, "label": "cat", "score": 0.9, "box": [1, 2, 3, 4]}
    for answers in ({"breed": {"top": top}}, {"breed": {"error": "too thin"}, "b": {"top": top}}):
        with running(program, tmp_path, rules=[rule]) as sinks:
            sinks.say(json.dumps({"frame": 0, "boxes": [cat]}))  # nothing of a tabby
            sinks.say(json.dumps({"frame": 1, "boxes": [{**cat, "answers": answers}]}))
            sinks.await_metric('edgepack_action_runs_total{when="visitor"}', 1)
            sinks.end()
    rung = (tmp_path / "rung").read_text().splitlines()
    assert [json.loads(text)["frame"] for text in rung] == [1, 1]


def test_a_program_that_hangs_and_forks_is_killed_whole(program: Path, tmp_path: Path) -> None:
    script = tmp_path / "hang"
    script.write_text(
        f"#!/bin/sh\nfor i in 1 2 3; do setsid sh -c 'echo $$ >> {tmp_path}/pids; sleep 600' & "
        f"done\necho $$ >> {tmp_path}/pids\nsleep 600\n"
    )
    script.chmod(0o755)
    rule = when(run=[str(script)], time_limit_s=1.0)
    missing = when(name="other", run=[str(tmp_path / "none")])
    with running(program, tmp_path, rules=[rule, missing]) as sinks:
        sinks.say(line(0, 0.9), line(1, 0.9))
        sinks.await_metric('edgepack_action_failures_total{when="visitor"}', 1)
        sinks.await_metric('edgepack_action_failures_total{when="other"}', 1)
        pids = [int(text) for text in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 4
        await_that(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5)
        assert "was killed after its time limit" in sinks.log
        assert f"{tmp_path}/none does not start: No such file" in sinks.log
        assert sinks.metrics['edgepack_action_skipped_total{when="visitor"}'] >= 1
        sinks.end()


def test_lines_that_are_none_are_counted(program: Path, tmp_path: Path) -> None:
    port = free_port()
    with broker(tmp_path, port), Subscriber(port, "door/results") as results:
        time.sleep(0.3)
        with running(program, tmp_path, sinks=[mqtt(tmp_path, port)]) as sinks:
            sinks.say("{", "[1]", "x" * (3 << 20), line(7))
            assert numbers(results.take(1)) == [7]
            sinks.await_metric("edgepack_sink_odd_lines_total", 3)


# The kernel's side of its GPIO character device, as far as the program asks: Debian's kernels have
# no gpio-sim; `test_sinks_on_boards.py` has a real chip. TAKEN is a file that is there while
# somebody has the line.
CHIP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/gpio.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int chip = -1;
static int open_chip(const char *path, int flags, mode_t mode) {
  int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
  const int is_chip = strcmp(path, "/dev/gpiochip7") == 0;
  const int fd = real(is_chip ? "/dev/null" : path, flags, mode);
  if (is_chip) chip = fd;
  return fd;
}
int open(const char *path, int flags, ...) {
  va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);
  return open_chip(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);
  return open_chip(path, flags, mode);
}
int ioctl(int fd, unsigned long request, ...) {
  va_list more; va_start(more, request); void *data = va_arg(more, void *); va_end(more);
  int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
  if (request == GPIO_V2_GET_LINE_IOCTL && fd == chip) {
    struct gpio_v2_line_request *line = data;
    if (access(getenv("TAKEN"), F_OK) == 0) { errno = EBUSY; return -1; }
    line->fd = open_chip(getenv("LINE"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    dprintf(line->fd, "line %u of %u for %s, flags %llu\n", line->offsets[0], line->num_lines,
            line->consumer, (unsigned long long)line->config.flags);
    return 0;
  }
  if (request == GPIO_V2_LINE_SET_VALUES_IOCTL) {
    const struct gpio_v2_line_values *values = data;
    dprintf(fd, "%llu of %llu\n", (unsigned long long)values->bits,
            (unsigned long long)values->mask);
    return 0;
  }
  return real(fd, request, data);
}
"""


def test_when_sets_a_gpio_line_that_another_program_has_at_first(
    program: Path, tmp_path: Path
) -> None:
    (tmp_path / "chip.c").write_text(CHIP)
    words = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "chip.so"), str(tmp_path / "chip.c")]
    subprocess.run([*words, "-ldl"], check=True)
    taken = tmp_path / "taken"
    taken.touch()
    environment = {
        "LD_PRELOAD": str(tmp_path / "chip.so"),
        "TAKEN": str(taken),
        "LINE": str(tmp_path / "line"),
    }
    gpio = {"chip": "/dev/gpiochip7", "line": 17, "active_low": True, "pulse_s": 0.2}
    missing = {**gpio, "chip": "/dev/gpiochip99"}
    rules = [when(gpio=gpio), when(name="none", gpio=missing)]
    with running(program, tmp_path, rules=rules, environment=environment) as sinks:
        sinks.say(line(0, 0.9))
        sinks.await_metric('edgepack_action_failures_total{when="visitor"}', 1)
        sinks.await_metric('edgepack_action_failures_total{when="none"}', 1)
        assert "/dev/gpiochip7 line 17: another program has it" in sinks.log
        assert "/dev/gpiochip99: No such file" in sinks.log
        assert not (tmp_path / "line").exists()
        taken.unlink()
        time.sleep(0.4)
        sinks.say(line(1, 0.9))
        sinks.await_metric('edgepack_action_runs_total{when="visitor"}', 2)
        await_that((tmp_path / "line").exists)
        time.sleep(0.4)
        sinks.end()
    # GPIO_V2_LINE_FLAG_ACTIVE_LOW and _OUTPUT of the kernel's uapi: bits 1 and 3.
    assert (tmp_path / "line").read_text().splitlines() == [
        "line 17 of 1 for edgepack, flags 10",
        "1 of 1",
        "0 of 1",
        "0 of 1",
    ]
