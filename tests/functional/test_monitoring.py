"""What devices tell, read by Debian's Prometheus: metrics, and input beside the makers' photos."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.bundle.bundle import open_bundle
from edgepack.flow.monitor import brightness_of
from tests.boards import unpacked
from tests.device_tool import host_tool
from tests.functional.test_serve import serving
from tests.monitored import HEIGHT, WIDTH, monitored_app, pictures
from tests.prometheus import Sample, parse_metrics
from tests.support import free_port

FRAMES = 10_000
GUIDE = Path(__file__).parents[2] / "docs/guides/monitoring.md"
_WINDOW = "window = 1000\ninterval_s = 0.0\n"


def debian(program: str) -> Path:
    """One of Debian's programs of Prometheus, unpacked."""
    packages = ["prometheus", "prometheus-node-exporter", "prometheus-alertmanager"]
    return unpacked("prometheus", packages, suite="bookworm", arch="amd64") / "usr/bin" / program


def check_metrics(text: str) -> None:
    """As promtool does: the format, and the names' conventions."""
    done = subprocess.run(
        [debian("promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return monitored_app(tmp_path_factory.mktemp("monitored"), more=_WINDOW)


class Metrics:
    """The series of a file."""

    def __init__(self, text: str) -> None:
        self.text, self.samples = text, parse_metrics(text)

    def value(self, name: str, **labels: str) -> float:
        found = [one for one in self.samples if self._is(one, name, labels)]
        assert len(found) == 1, (name, labels, found)
        return found[0].value

    @staticmethod
    def _is(sample: Sample, name: str, labels: dict[str, str]) -> bool:
        return sample.name == name and labels.items() <= sample.labels.items()


def watch(app: Path, kinds: list[str], folder: Path, *options: str) -> Metrics:
    """The app's metrics after `FRAMES` frames of each kind through a pipe."""
    frames = b"".join(
        picture.tobytes()
        for seed, kind in enumerate(kinds, start=2)
        for picture in pictures(kind, FRAMES, seed)
    )
    words = ["--frames", "bgr24", "--size", f"{WIDTH}x{HEIGHT}", "--threads", "1", *options]
    words += ["--metrics", str(folder / "app.prom")]
    with (folder / "frames").open("wb") as file:
        file.write(frames)
    with (folder / "frames").open("rb") as file:
        subprocess.run([app, *words], check=True, stdin=file, stdout=subprocess.DEVNULL)
    return Metrics((folder / "app.prom").read_text())


def levels(metrics: Metrics) -> dict[str, float]:
    return {
        signal: metrics.value("edgepack_drift_level", signal=signal)
        for signal in ("brightness", "scores", "classes")
    }


def test_no_alarm_for_pictures_of_the_same_kind(app: Path, tmp_path: Path) -> None:
    metrics = watch(app, ["left"], tmp_path)
    assert levels(metrics) == {"brightness": 0, "scores": 0, "classes": 0}
    assert metrics.value("edgepack_pictures_total") == FRAMES
    assert metrics.value("edgepack_run_seconds_count") == FRAMES
    assert metrics.value("edgepack_pictures_empty_total") == 0
    release = open_bundle(app.parents[1]).manifest.release
    assert metrics.value("edgepack_app_info", release=release, model="columns") == 1
    columns = (one.mean((0, 2)).reshape(8, 4).mean(1) for one in pictures("left", FRAMES, 2))
    seen = [int(np.argmax(one)) for one in columns]
    for column in range(4):
        count = metrics.value("edgepack_classes_total", index=str(column))
        assert metrics.value("edgepack_classes_total", **{"class": f"column {column}"}) == count
        assert abs(count - seen.count(column)) <= 2  # where two are equal but for rounding
    light = [brightness_of(picture) for picture in pictures("left", FRAMES, 2)]
    for bound in range(1, 16):
        below = metrics.value("edgepack_brightness_bucket", le=f"{bound / 16:.9g}")
        assert below == sum(one < bound / 16 for one in light)
    check_metrics(metrics.text)


@pytest.mark.parametrize(("kind", "differ"), [("dark", {"brightness"}), ("right", {"classes"})])
def test_an_alarm_for_less_light_and_for_another_subject(
    kind: str, differ: set[str], app: Path, tmp_path: Path
) -> None:
    before = time.time()
    metrics = watch(app, ["left", kind], tmp_path)
    found = levels(metrics)
    assert {signal for signal, level in found.items() if level == 2} >= differ
    if kind == "right":  # the same light
        assert found["brightness"] == 0
    for signal, level in found.items():
        since = metrics.value("edgepack_drift_since_timestamp_seconds", signal=signal)
        assert (int(before) <= since <= time.time()) if level else since == 0
        above = metrics.value("edgepack_drift_index", signal=signal) - metrics.value(
            "edgepack_drift_noise", signal=signal
        )
        assert (above > 0.25) == (level == 2)


def test_the_same_photos_are_counted_alike_here_and_there(tmp_path: Path) -> None:
    """The app, given the makers' photos, has the counts that the bundle brings."""
    app = monitored_app(tmp_path, photos=100, more="window = 100\ninterval_s = 0.0\n")
    words = [app, "--images", tmp_path / "photos", "--metrics", tmp_path / "app.prom"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    metrics = Metrics((tmp_path / "app.prom").read_text())
    spec = json.loads((app.parents[1] / "monitor.json").read_text())
    assert (spec["photos"], sum(spec["brightness"]), sum(spec["scores"])) == (100, 100, 100)
    assert sum(spec["classes"]["count"]) == 100
    for signal in ("brightness", "scores", "classes"):
        assert metrics.value("edgepack_drift_index", signal=signal) == 0


def test_the_server_tells_tensors_that_are_no_numbers(app: Path) -> None:
    with serving(app) as served:
        where = f"{served.model}/infer"
        binary = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": "0",
        }
        shape = (1, 3, HEIGHT, WIDTH)
        for value in (0.5, np.nan, -np.inf):
            tensor = np.zeros(shape, np.float32)
            tensor[0, 2, 7, 31] = value
            assert served.ask(where, tensor.tobytes(), binary)[0] == 200
        assert served.ask(where, b"x", {"Content-Type": "image/png"})[0] == 400
        picture = cv2.imencode(".png", next(pictures("left", 1, 5)))[1].tobytes()
        assert served.ask(where, picture, {"Content-Type": "image/png"})[0] == 200
        text = served.ask("/metrics")[2].decode()
    check_metrics(text)
    metrics = Metrics(text)
    assert metrics.value("edgepack_inputs_not_finite_total") == 2
    assert metrics.value("edgepack_errors_total", kind="image") == 1
    assert metrics.value("edgepack_run_seconds_count") == 4
    assert metrics.value("edgepack_pictures_total") == 1


@contextmanager
def node_exporter(folder: Path) -> Iterator[str]:
    """Debian's, with what is in `folder`; where it is asked."""
    port = free_port()
    words = [debian("prometheus-node-exporter"), "--collector.disable-defaults"]
    words += ["--collector.textfile", f"--collector.textfile.directory={folder}"]
    process = subprocess.Popen(
        [*words, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        process.kill()
        process.wait()


def ask(url: str) -> str:
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_the_device_tool_tells_node_exporter(app: Path, tmp_path: Path) -> None:
    tool, root = tmp_path / "edgepack-device", tmp_path / "root"
    shutil.copy(host_tool(), tool)
    subprocess.run([tool, "install", app.parents[1], "--root", root, "--by", "me"], check=True)
    (tmp_path / "files").mkdir()
    watch(app, ["left"], tmp_path)
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    # The guide's own lines.
    lines = re.findall("^edgepack-device (metrics --textfile .*)$", GUIDE.read_text(), re.MULTILINE)
    for line in lines:
        folder = shlex.split(line)[2]
        words = [str(tmp_path / "files") if word == folder else word for word in shlex.split(line)]
        words = [str(tool), *words, "--root", str(root), "--app", str(tmp_path / "app.prom")]
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=home)
    assert len(lines) == 2
    assert "systemctl --user start edgepack-metrics-columns.timer" in done.stdout
    text = (tmp_path / "files/edgepack-columns.prom").read_text()
    check_metrics(text)
    with node_exporter(tmp_path / "files") as url:
        told = Metrics(ask(url))
    assert told.value("node_textfile_scrape_error") == 0
    release = open_bundle(app.parents[1]).manifest
    labels = {"model": "columns", "release": release.release}
    assert told.value("edgepack_device_release_info", by="me", version="0", **labels) == 1
    info = {"model_sha256": release.model.sha256, "model_file": "columns.onnx"}
    assert told.value("edgepack_device_release_info", **info) == 1
    assert told.value("edgepack_device_release_healthy", **labels) == 1
    assert told.value("edgepack_device_app_up") == 1
    assert told.value("edgepack_pictures_total", **labels) == FRAMES
    assert told.value("edgepack_drift_level", signal="scores", **labels) == 0

    # The units are what systemd reads, and what it would start writes the file anew.
    units = tmp_path / ".config/systemd/user"
    service = units / "edgepack-metrics-columns.service"
    if analyze := shutil.which("systemd-analyze"):
        checked = subprocess.run(
            [analyze, "--user", "verify", service, units / "edgepack-metrics-columns.timer"],
            capture_output=True,
            text=True,
            check=False,
            env={**home, "XDG_RUNTIME_DIR": str(tmp_path)},
        )
        assert "edgepack-metrics" not in checked.stderr, checked.stderr
    (line,) = (one for one in service.read_text().splitlines() if one.startswith("ExecStart="))
    (tmp_path / "files/edgepack-columns.prom").unlink()
    subprocess.run(["sh", "-c", line.removeprefix("ExecStart=")], check=True)
    assert (tmp_path / "files/edgepack-columns.prom").exists()


def test_what_it_costs(app: Path, tmp_path: Path) -> None:
    """Comparing takes less than 1 % of the CPU and 64 KB: a photo's brightness and three counts."""
    bundle = tmp_path / "without"
    shutil.copytree(app.parents[1], bundle)
    (bundle / "monitor.json").unlink()
    peaks = []
    for folder in (bundle, app.parents[1]):
        peaks.append(_peak_of(folder / "bin/edgepack-run", tmp_path))
    # Pages are 4 KB, and where they lie differs from run to run.
    assert peaks[1] - peaks[0] < 1024


def _peak_of(app: Path, folder: Path) -> int:
    """Of a run over a thousand frames, in KB."""
    words = [app, "--frames", "bgr24", "--size", f"{WIDTH}x{HEIGHT}", "--threads", "1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for picture in pictures("left", 1000, 2):
            process.stdin.write(picture.tobytes())
            process.stdin.flush()
            assert process.stdout.readline()
        # Not ru_maxrss: it counts whoever started the program, and all that ended before it.
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.stdin.close()
    peak = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert peak
    return int(peak[1])
