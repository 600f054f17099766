"""What devices and a Prometheus say is read with bounds; the exporter is for this machine."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import ConnectError, RemoteError, UsageError
from edgepack.cli import main
from edgepack.cli.fleet_metrics import RULES
from edgepack.deploy.answers import SenselessError
from edgepack.fleet import FleetDevice
from edgepack.fleet.exporter import export
from edgepack.fleet.exposition import MAX_BYTES, MAX_SAMPLES, exposition_text, parse_exposition
from edgepack.fleet.from_prometheus import LookUp, NotKnownError, ask_prometheus
from edgepack.fleet.metrics import AskMetrics, Told
from tests.scripted_tool import ScriptedDevice

TEXT = (
    "# HELP edgepack_device_releases Releases.\n# TYPE edgepack_device_releases gauge\n"
    'edgepack_device_releases{model="mug"} 3\n'
    "# TYPE edgepack_run_seconds histogram\n"
    'edgepack_run_seconds_bucket{model="mug",le="1"} 6\n'
    'edgepack_run_seconds_bucket{model="mug",le="+Inf"} 7\n'
    'edgepack_run_seconds_sum{model="mug"} 1.5e+01\nedgepack_run_seconds_count{model="mug"} 7\n'
)


def test_what_is_written_is_read() -> None:
    read = parse_exposition('a{b="c\\"d\\\\\\n}",e="x"} +Inf\nf NaN\n# a remark\ng -1.5e-3\n', "x")
    assert [(one.name, dict(one.labels), one.value) for one in read.samples] == [
        ("a", {"b": 'c"d\\ }', "e": "x"}, "+Inf"),
        ("f", {}, "NaN"),
        ("g", {}, "-1.5e-3"),
    ]
    read = parse_exposition(TEXT, "x")
    again = parse_exposition(exposition_text(read.samples, read.types, read.helps), "x")
    assert again == read


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a one\n",
        "a  1\n",
        "a 1 1700000000\n",
        'a{b="c" 1\n',
        'a{b="c",b="d"} 1\n',
        'a{b="c\\x"} 1\n',
        'a{b=c} 1\n',
        "{} 1\n",
        "9a 1\n",
        "a 0x10\n",
        "a\x1b[2J 1\n",
        "a 1\n" * (MAX_SAMPLES + 1),
        "#" * (MAX_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(SenselessError, match="bench: metrics"):
        parse_exposition(text, "bench")


def device(name: str) -> FleetDevice:
    return FleetDevice(name=name, address=f"{name}.lan", board="rasp3b")


def asked(told: Told, text: str, returncode: int = 0) -> AskMetrics:
    def connect(to: FleetDevice) -> Any:
        return ScriptedDevice(to.name, lambda _: text, returncode)

    return AskMetrics(connect=connect, root="r", told=told)


def test_a_page_of_two_devices_of_which_one_is_silent() -> None:
    told = Told()
    devices = [device("one"), device("two"), device("three")]
    asked(told, json.dumps({"metrics": TEXT}))(devices[0])
    with pytest.raises(RemoteError):
        asked(told, "", 7)(devices[1])
    page = parse_exposition(told.text(devices), "page")
    values = {(one.name, one.labels["device"]): one.value for one in page.samples}
    assert values[("edgepack_fleet_device_up", "one")] == "1"
    assert values[("edgepack_fleet_device_up", "two")] == "0"
    assert ("edgepack_fleet_device_up", "three") not in values  # nobody asked it yet
    assert values[("edgepack_run_seconds_count", "one")] == "7"
    buckets = [one.labels["le"] for one in page.samples if one.name.endswith("_bucket")]
    assert buckets == ["+Inf"]
    assert page.types["edgepack_run_seconds"] == "histogram"
    # What it said before is old, and not told.
    with pytest.raises(RemoteError):
        asked(told, "", 7)(devices[0])
    assert "edgepack_device_releases" not in told.text(devices)


def test_a_device_cannot_speak_for_another() -> None:
    told = Told()
    lies = (
        'edgepack_x{device="three",model="m"} 1\nedgepack_x{device="two",model="m"} 1\n'
        'edgepack_fleet_device_up{device="two"} 1\nup 1\n'
    )
    asked(told, json.dumps({"metrics": lies}))(device("one"))
    samples = parse_exposition(told.text([device("one"), device("two")]), "page").samples
    assert len([one for one in samples if one.name == "edgepack_x"]) == 1
    assert {one.labels["device"] for one in samples} == {"one"}
    assert {one.name for one in samples} == {
        "edgepack_x", "edgepack_fleet_device_up", "edgepack_fleet_asked_timestamp_seconds"
    }  # fmt: skip


def get(where: str, path: str, host: str | None = None) -> tuple[int, str]:
    address = where.split("/")[2]
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_exporter_answers_programs_on_this_machine() -> None:
    with export(0, lambda: TEXT) as where:
        assert where.startswith("http://127.0.0.1:")
        assert get(where, "/metrics") == (200, TEXT)
        assert get(where, "/metrics", "localhost:9840") == (200, TEXT)
        assert get(where, "/")[0] == 404
        for host in ("evil.example", "evil.example:9840", "localhost.evil.example", ""):
            assert get(where, "/metrics", host)[0] == 403
        port = int(where.split(":")[2].split("/")[0])
        with pytest.raises(UsageError, match="cannot listen"), export(port, lambda: TEXT):
            pass


@contextmanager
def prometheus(answer: bytes | Callable[[str], bytes], status: int = 200) -> Iterator[str]:
    """Something that gives each question the same answer, or one by its query."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"][0]
            self.wfile.write(answer if isinstance(answer, bytes) else answer(query))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def vector(*series: object) -> bytes:
    data = {"resultType": "vector", "result": series}
    return json.dumps({"status": "success", "data": data}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"status":"error","error":"\\u001b[2J no"}',
        b'{"status":"success"}',
        b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
        b'{"status":"success","data":{"resultType":"vector","result":{}}}',
        vector({"metric": {"device": 1}, "value": [1, "1"]}),
        vector({"metric": {}, "value": [1]}),
        vector({"metric": {}, "value": [1, 1]}),
        vector({"metric": {}, "value": [1, "one"]}),
        vector({"metric": {}}),
        b'{"a":' * 1000,
    ],
)
def test_an_answer_that_is_none_of_prometheus(answer: bytes) -> None:
    with prometheus(answer) as url, pytest.raises(SenselessError) as refusal:
        ask_prometheus(url, "mug")
    assert "\x1b" not in str(refusal.value)


def test_who_does_not_answer() -> None:
    with prometheus(b"no", 503) as url, pytest.raises(ConnectError, match="status 503"):
        ask_prometheus(url, "mug")
    for url in ("file:///etc/passwd", "localhost:9090", "http://", "ftp://x"):
        with pytest.raises(UsageError, match="not an address"):
            ask_prometheus(url, "mug")
    with pytest.raises(ConnectError):
        ask_prometheus("http://127.0.0.1:1", "mug")


def test_a_device_is_found_by_its_label_or_its_address() -> None:
    # The same series to each question, as if they were those that were asked for.
    labels = {
        "release": "0" * 12,
        "signal": "scores",
        "version": "3",
        "by": "me",
        "model_file": "m.onnx",
    }
    answer = vector(
        {"metric": {"device": "one", **labels}, "value": [1, "1"]},
        {"metric": {"instance": "two.lan:9100", **labels, "version": "x"}, "value": [1, "1"]},
    )
    with prometheus(answer) as url:
        known = ask_prometheus(url, 'mu"g')
    work = LookUp(known=known)
    one, two = work(device("one")), work(device("two"))
    assert (one.outcome, one.release, one.details["version"]) == (
        "ok, scores drift", "0" * 12, 3
    )  # fmt: skip
    assert one.details["since"] == "1970-01-01T00:00:01Z"
    assert (two.release, two.details["version"]) == ("0" * 12, None)
    with pytest.raises(NotKnownError, match="three"):
        work(device("three"))


def test_the_last_trial_of_a_device() -> None:
    release, candidate, other = "0" * 12, "1" * 12, "2" * 12

    def trial(name: str, before: str, phase: str, of: str = candidate) -> dict[str, Any]:
        labels = {"device": name, "release": of, "before": before, "phase": phase}
        return {"metric": labels, "value": [1, "1"]}

    devices = ("none", "runs", "ended", "activated", "past")
    answers = {
        "edgepack_device_release_info": [
            {"metric": {"device": name, "release": release}, "value": [1, "1"]} for name in devices
        ],
        "edgepack_device_trial_info": [
            trial("runs", release, "running"),
            # Pushed before it ended.
            trial("ended", release, "running"),
            trial("ended", release, "dropped"),
            trial("activated", other, "activated", of=release),
            trial("past", other, "dropped"),
        ],
        "edgepack_device_trial_agreement": [
            {"metric": {"device": "runs", "release": candidate}, "value": [1, "0.5"]},
            {"metric": {"device": "ended", "release": other}, "value": [1, "0.7"]},
        ],
    }
    with prometheus(lambda query: vector(*answers.get(query.split("{")[0], []))) as url:
        work = LookUp(known=ask_prometheus(url, "mug"))
    told = {name: work(device(name)).details for name in devices}
    assert {name: (one["trial_phase"], one["trial"]) for name, one in told.items()} == {
        "none": (None, None),
        "runs": ("running", f"{candidate} running, answers agree by 50.00%"),
        "ended": ("dropped", f"{candidate} dropped"),
        "activated": ("activated", f"{release} activated"),
        "past": (None, None),
    }


def test_rules_are_written_and_never_over_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "rules", str(tmp_path / "new")]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(RULES)
    assert main(["fleet", "rules", str(tmp_path / "new")]) == 0
    (tmp_path / "new/rules.yml").write_text("mine")
    assert main(["fleet", "rules", str(tmp_path / "new")]) == 2
    assert (tmp_path / "new/rules.yml").read_text() == "mine"
    assert "is there, and differs" in capsys.readouterr().err


def test_the_command_asks_until_it_is_ended(tmp_path: Path) -> None:
    """With a scripted transport on which no device has a release."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('[groups.shops]\nboard = "rasp3b"\ndevices = ["shop[1:3]"]\n')
    words = ["fleet", "metrics", str(fleet), "--name", "mug", "--port", "0", "--every", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fleet_operator", str(tmp_path / "facts"), "", "0", *words],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"3 devices at (http://127\.0\.0\.1:[0-9]+)/metrics, every 1 s", said)
        assert found, said + process.stderr.read()
        end = time.monotonic() + 60
        while 'device_up{device="shop3",board="rasp3b"} 0' not in get(found[1], "/metrics")[1]:
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        # Each device's silence is said once, however often it is asked.
        assert len(re.findall("shop1 ", process.stderr.read())) <= 2
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
