"""The shipped rules and dashboard beside Debian's Prometheus and Alertmanager: who is told what."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgepack.cli import main
from edgepack.cli.console import Console
from edgepack.cli.fleet_metrics import write_rules
from edgepack.fleet import FleetDevice
from edgepack.fleet.exporter import export
from edgepack.fleet.metrics import AskMetrics, Told
from tests.device_tool import host_tool
from tests.fake_app import fake_bundle
from tests.functional.test_monitoring import ask, debian
from tests.scripted_tool import ScriptedDevice
from tests.support import free_port, require_tool

SHIPPED = resources.files("edgepack.fleet") / "prometheus"
DEVICES = tuple(f"shop{number:02}" for number in range(1, 21))
FAILING = ("shop03", "shop11", "shop20")
FEED, BAD = "0123456789ab", "fedcba987654"
_INSIDE = "/var/lib/prometheus/node-exporter"  # a folder of Debian's package


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    assert write_rules(folder, Console()) == 0
    return folder


def promtool(*words: str | Path) -> str:
    done = subprocess.run([debian("promtool"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_shipped_is_configuration(rules: Path) -> None:
    assert "9 rules found" in promtool("check", "rules", rules / "rules.yml")
    promtool("check", "config", rules / "prometheus.yml")
    words = [debian("amtool"), "check-config", rules / "alertmanager.yml"]
    subprocess.run(words, check=True, capture_output=True)


def labels(device: str, release: str, more: str = "") -> str:
    return f'{{model="mug",release="{release}",device="{device}",job="edgepack-fleet"{more}}}'


def series(release: Callable[[str], str], errors: Callable[[str], str]) -> list[dict[str, str]]:
    """Twenty devices that do a thing a second, each minute."""
    found = []
    for device in DEVICES:
        of = release(device)
        found.append(
            {"series": f"edgepack_run_seconds_count{labels(device, of)}", "values": "0+60x60"}
        )
        more = ',kind="image"'
        values = errors(device)
        found.append(
            {"series": f"edgepack_errors_total{labels(device, of, more)}", "values": values}
        )
    return found


def test_a_release_that_fails_on_three_of_twenty(rules: Path) -> None:
    """By promtool, whose time goes by itself: nothing for 30 minutes, then those three alone."""
    failing = lambda device: device in FAILING  # noqa: E731
    given = series(
        lambda device: BAD if failing(device) else FEED,
        lambda device: "0x30 0+20x30" if failing(device) else "0+1x60",
    )
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "1m",
                "input_series": given,
                "alert_rule_test": [
                    {"eval_time": "29m", "alertname": "EdgepackReleaseFails", "exp_alerts": []},
                    {
                        "eval_time": "40m",
                        "alertname": "EdgepackReleaseFails",
                        "exp_alerts": [
                            {
                                "exp_labels": {
                                    **{"severity": "critical", "model": "mug", "release": BAD},
                                    **{"device": device, "job": "edgepack-fleet"},
                                },
                                "exp_annotations": {
                                    "summary": f"Release {BAD} of mug fails on {device}: more than "
                                    "5 % of what it is given"
                                },
                            }
                            for device in FAILING
                        ],
                    },
                ],
            }
        ],
    }
    (rules / "test.yml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", rules / "test.yml")


@pytest.mark.parametrize(
    ("series", "alert", "said"),
    [
        ('edgepack_drift_level{model="mug",release="r",device="d",signal="scores"} 2',
         "EdgepackInputDiffers",
         "What mug sees on d differs from the photos of release r: scores"),
        ('edgepack_device_release_healthy{model="mug",release="r",instance="d:9100"} 0',
         "EdgepackReleaseUnhealthy",
         "Release r of mug on d:9100 is damaged, or has not passed its test"),
        ('edgepack_device_app_up{model="mug",device="d"} 0', "EdgepackAppDown",
         "The app of mug on d tells nothing"),
        ('edgepack_source_up{model="mug",device="d"} 0', "EdgepackSourceLost",
         "The source of mug on d gives nothing that can be used"),
        ('edgepack_fleet_device_up{device="d"} 0', "EdgepackDeviceUnreachable",
         "d does not answer"),
    ],
)  # fmt: skip
def test_each_alert_names_what_and_where(series: str, alert: str, said: str, rules: Path) -> None:
    name, _, value = series.rpartition(" ")
    own = dict(re.findall(r'([a-z]+)="([^"]*)"', name))
    loaded = yaml.safe_load((rules / "rules.yml").read_text())
    rule = next(one for one in loaded["groups"][0]["rules"] if one["alert"] == alert)
    expected = {"exp_labels": {**own, **rule["labels"]}, "exp_annotations": {"summary": said}}
    checks = [
        {"eval_time": "0m", "alertname": alert, "exp_alerts": []},
        {"eval_time": "70m", "alertname": alert, "exp_alerts": [expected]},
    ]
    well = {"0": "1", "2": "0"}[value]
    checks += [{"eval_time": "170m", "alertname": alert, "exp_alerts": []}]
    tests = {"interval": "1m", "alert_rule_test": checks}
    tests["input_series"] = [{"series": name, "values": f"{value}x80 {well}x100"}]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [tests]}
    (rules / "test.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", rules / "test.yml")


@functools.cache
def names_that_are_told() -> frozenset[str]:
    """All metrics by the sources of both programs, and the exporter's."""
    root = Path(__file__).parents[2]
    text = "".join(
        path.read_text()
        for folder in ("cpp_runtime/app/edgepack-run", "cpp_runtime/device/src", "edgepack/fleet")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".cc", ".py")
    )
    written = set(re.findall(r'"(edgepack_[a-z_]+)"', text))
    written |= {f"edgepack_device_{name}" for name in re.findall(r'Add(?:If)?\("([a-z_]+)"', text)}
    return frozenset(written)


def dashboard_expressions() -> list[str]:
    board = json.loads((SHIPPED / "dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_rules_and_dashboard_ask_for_what_is_told(rules: Path) -> None:
    loaded = yaml.safe_load((rules / "rules.yml").read_text())
    asked = [rule["expr"] for rule in loaded["groups"][0]["rules"]] + dashboard_expressions()
    for name in set(re.findall(r"edgepack_[a-z_]+", " ".join(asked))):
        plain = re.sub(r"_(sum|count)$", "", name)
        assert {name, plain} & names_that_are_told(), name


def test_the_dashboard_is_one(tmp_path: Path) -> None:
    board = json.loads((SHIPPED / "dashboard.json").read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= board.keys()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in board["panels"]:
        assert panel["type"] in ("stat", "timeseries", "table"), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24  # Grafana's grid
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {one["name"] for one in board["templating"]["list"]}
    rules = []
    for number, text in enumerate(dashboard_expressions()):
        assert set(re.findall(r"\$\{?(\w+)", text)) <= variables
        plain = text.replace("$model", ".*").replace("$device", ".*")
        rules.append({"record": f"panel:{number}", "expr": plain})
    groups = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "dashboard.yml").write_text(yaml.safe_dump(groups))
    promtool("check", "rules", "--lint=none", tmp_path / "dashboard.yml")


# --- the real ones ---


@dataclass
class Shops:
    """Twenty scripted devices, whose device tool is a real one's answer and an app's counters."""

    told_by_tool: str
    begun: float = field(default_factory=time.monotonic)
    failing_since: float | None = None

    def text(self, device: str) -> str:
        now = time.monotonic()
        runs = int(100 * (now - self.begun))
        failing = device in FAILING and self.failing_since is not None
        errors = int(50 * (now - self.failing_since)) if failing else 0
        release = re.search(r'release="([0-9a-f]{12})"', self.told_by_tool)
        assert release
        of = f'model="tiny",release="{release[1]}"'
        return (
            f"{self.told_by_tool}# TYPE edgepack_run_seconds histogram\n"
            f"edgepack_run_seconds_count{{{of}}} {runs}\n"
            f"edgepack_run_seconds_sum{{{of}}} {runs / 9}\n"
            "# TYPE edgepack_errors_total counter\n"
            f'edgepack_errors_total{{{of},kind="image"}} {errors}\n'
        )

    def connect(self, device: FleetDevice) -> Any:
        return ScriptedDevice(
            device.name, lambda _: json.dumps({"metrics": self.text(device.name)})
        )


class Inbox:
    """Who is told by Alertmanager: what its webhook got."""

    def __init__(self) -> None:
        self.messages: list[Mapping[str, Any]] = []
        inbox = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.messages.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextlib.contextmanager
def program(*words: str | Path, cwd: Path, ready: str) -> Iterator[None]:
    with (cwd / f"{Path(words[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=cwd, stdout=log, stderr=log)
    try:
        ask(ready)
        yield
    finally:
        process.kill()
        process.wait()


def in_debian(name: str, folder: Path) -> list[str | Path]:
    """The start of a command line for a program that reads files of Debian's beside those in
    `folder`, which is `_INSIDE` to it: in namespaces of its own."""
    path = debian(name)
    root = path.parents[2]
    script = f'mount --rbind "$1" "$2{_INSIDE}" && root=$2 && shift 2 && exec chroot "$root" "$@"'
    words = [require_tool("unshare"), "--map-root-user", "--mount", "--kill-child"]
    return [*words, "sh", "-c", script, "sh", folder, root, f"/{path.relative_to(root)}"]


def changed(path: Path, changes: Mapping[str, str]) -> None:
    text = path.read_text()
    for old, new in changes.items():
        assert old in text, (path, old)
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.slow
def test_the_operator_is_told_which_release_fails_and_where(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shipped files with shorter times, Debian's programs: 3 of 20 devices begin to fail."""
    bundle = fake_bundle(tmp_path / "made")
    tool = tmp_path / "edgepack-device"
    shutil.copy(host_tool(), tool)
    root = tmp_path / "root"
    words = [tool, "--root", root, "--by", "me"]
    subprocess.run([*words, "install", bundle.path], check=True, capture_output=True)
    told_by_tool = subprocess.run([*words, "metrics"], check=True, capture_output=True, text=True)
    shops, told, inbox = Shops(told_by_tool.stdout), Told(), Inbox()
    devices = [FleetDevice(name=name, address=f"{name}.lan", board="local") for name in DEVICES]
    work = AskMetrics(connect=shops.connect, root="r", told=told)

    def page() -> str:
        for device in devices:
            work(device)
        return told.text(devices)

    manager, prometheus = free_port(), free_port()
    changed(rules / "rules.yml", {"5m": "6s", "2m": "2s"})
    changed(rules / "alertmanager.yml", {"30s": "1s", "localhost:9095": f"127.0.0.1:{inbox.port}"})
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(export(0, page))
        addresses = {
            "localhost:9840": where.split("/")[2],
            "localhost:9093": f"127.0.0.1:{manager}",
        }
        changed(rules / "prometheus.yml", {"30s": "1s", **addresses})
        start = functools.partial(program, cwd=rules)
        words = in_debian("prometheus-alertmanager", tmp_path)
        words += [f"--config.file={_INSIDE}/rules/alertmanager.yml"]
        words += [f"--web.listen-address=127.0.0.1:{manager}", "--cluster.listen-address="]
        words += [f"--storage.path={_INSIDE}/alerts"]
        stack.enter_context(start(*words, ready=f"http://127.0.0.1:{manager}/-/ready"))
        url = f"http://127.0.0.1:{prometheus}"
        words = [debian("prometheus"), "--config.file=prometheus.yml"]
        words += [f"--web.listen-address=127.0.0.1:{prometheus}"]
        words += [f"--storage.tsdb.path={tmp_path / 'series'}"]
        stack.enter_context(start(*words, ready=f"{url}/-/ready"))
        time.sleep(12)
        assert inbox.messages == []  # nothing fails yet
        shops.failing_since = time.monotonic()
        end = time.monotonic() + 60
        while (seen := _devices_of(inbox)) != set(FAILING) and time.monotonic() < end:
            time.sleep(0.2)
        assert seen == set(FAILING), inbox.messages
        last = inbox.messages[-1]
        release = bundle.manifest.release
        assert last["groupLabels"]["release"] == release
        for alert in last["alerts"]:
            said = alert["annotations"]["summary"]
            assert release in said and alert["labels"]["device"] in said

        # The same Prometheus tells `fleet status` what runs where.
        fleet = tmp_path / "fleet.toml"
        listed = '[defaults]\nboard = "rasp3b"\n[groups.shops]\ndevices = ["shop[01:21]"]\n'
        fleet.write_text(listed)
        argv = ["fleet", "status", str(fleet), "--name", "tiny", "--json"]
        capsys.readouterr()
        code = main([*argv, "--from", "prometheus", url])
        by_device = {row["device"]: row for row in json.loads(capsys.readouterr().out)["devices"]}
        assert code != 0  # shop21 is not there
        assert by_device["shop21"]["ok"] is False
        for name in DEVICES:
            assert by_device[name]["release"] == release, by_device[name]
            assert (by_device[name]["outcome"], by_device[name]["by"]) == ("ok", "me")
    inbox.server.shutdown()
    inbox.server.server_close()


def _devices_of(inbox: Inbox) -> set[str]:
    return {
        alert["labels"]["device"]
        for one in inbox.messages
        for alert in one["alerts"]
        if alert["labels"]["alertname"] == "EdgepackReleaseFails"
    }
