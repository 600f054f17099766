"""Trials on this machine: real releases, the real app and its live frames, the real device tool."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import edgepack
from edgepack.base.errors import NothingThereError, UsageError
from edgepack.bundle.bundle import Bundle
from edgepack.cli import main
from edgepack.deploy.deploy import deploy_bundle, preview
from edgepack.deploy.options import DeployOptions, TrialRules
from edgepack.deploy.remote_pictures import fetch_pictures
from edgepack.deploy.remote_tool import rollback, status, trial
from edgepack.deploy.trial import TrialStatus
from edgepack.device import LocalDevice
from edgepack.fleet.exposition import parse_exposition
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests.integration import sshd_server
from tests.monitored import COLUMNS, HEIGHT, WIDTH, pictures
from tests.onnx_models import Builder
from tests.support import free_port, parent

ROOT = "edgepack/columns"
LONGEST_S = 180.0
RULES = TrialRules(seconds=8, share=1.0, min_pictures=1, max_latency=50.0)
"""What is measured on a machine that does other things, too, says little of latency."""


def release(folder: Path, *, order: list[int], version: int) -> Bundle:
    """A release of a model whose class is the brightest of eight columns, in this `order`."""
    b = Builder()
    b.op("ReduceMean", "x", keepdims=0, axes=[1, 2], outputs=["rows"])
    b.op("Reshape", "rows", b.const(np.array([1, COLUMNS, 4], np.int64)), outputs=["eighths"])
    b.op("ReduceMean", "eighths", keepdims=0, axes=[2], outputs=["means"])
    b.op("Gather", "means", b.const(np.array(order, np.int64)), axis=1, outputs=["scores"])
    folder.mkdir()
    b.save(folder / "columns.onnx", {"x": [1, 3, HEIGHT, WIDTH]}, {"scores": [1, COLUMNS]})
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "columns.onnx"\nboard = "local"\nverify = false\n'
        f"version = {version}\n"
        "[preprocess]\nscale = 1.0\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n"
        f'resize = {{ mode = "exact", height = {HEIGHT}, width = {WIDTH} }}\n'
    )
    return package_job(make_job(load_project(folder / "edgepack.toml")), folder / "bundle")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """The current release, one that says the same, and one that numbers its columns otherwise."""
    folder, as_it_is = tmp_path_factory.mktemp("bundles"), list(range(COLUMNS))
    return {
        "first": release(folder / "first", order=as_it_is, version=1),
        "same": release(folder / "same", order=as_it_is, version=2),
        "other": release(folder / "other", order=as_it_is[::-1], version=3),
    }


class Board:
    """This machine as a device, with the current release's app on a stream of frames."""

    def __init__(self, home: Path, bundles: dict[str, Bundle]) -> None:
        self.device, self.root, self.bundles = LocalDevice(home), home / ROOT, bundles
        self.answers = 0
        self.said: list[dict[str, Any]] = []

    def deploy(self, name: str, rules: TrialRules | None = None) -> str:
        options = DeployOptions(trial=rules, replace_model=True)
        return deploy_bundle(self.bundles[name], self.device, ROOT, options=options).outcome

    def current(self) -> str:
        return (self.root / "current").readlink().name

    def id(self, name: str) -> str:
        return self.bundles[name].manifest.release

    def trial(self, action: str = "status") -> TrialStatus:
        return trial(self.device, ROOT, action)

    def until(self, holds: Callable[[TrialStatus], bool]) -> TrialStatus:
        end = time.monotonic() + LONGEST_S
        while not holds(now := self.trial()):
            assert time.monotonic() < end, now
            time.sleep(0.1)
        return now

    def over(self) -> TrialStatus:
        return self.until(lambda it: it.phase not in ("running", "activating"))

    def processes(self, program: Path, *words: str) -> list[int]:
        """Those that run a program with these first words."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                said = (process / "cmdline").read_text().split("\0")[1:]
                if (process / "exe").readlink() == program and said[: len(words)] == [*words]:
                    found.append(int(process.name))
        return found

    def runner(self) -> int:
        """The process that runs the trial; what it starts looks the same until its own program."""
        found = self.processes(self.root / "bin/edgepack-device", "trial", "run")
        (process,) = [one for one in found if parent(one) not in (None, *found)]
        return process

    def candidates(self, name: str) -> list[int]:
        """Processes of that release's app which read frames."""
        program = self.root / "releases" / self.id(name) / "bin/edgepack-run"
        return self.processes(program, "--frames")

    @contextlib.contextmanager
    def live(self, account: str = "", *more: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """The current release's app, fed with frames; every line is an answer."""
        app = self.root / "releases" / self.current() / "bin/edgepack-run"
        words = [app, "--frames", "bgr24", "--size", f"{WIDTH}x{HEIGHT}", "--threads", "1"]
        words += more
        if account:
            words = ["setpriv", f"--reuid={account}", "--regid=nogroup", "--clear-groups", *words]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        into, out, done = process.stdin, process.stdout, threading.Event()
        frames = [picture.tobytes() for picture in pictures("left", 100, 7)]

        def feed() -> None:
            with contextlib.suppress(BrokenPipeError):
                while not done.wait(0.01):
                    into.write(frames[self.answers % 100])
                    into.flush()

        def read() -> None:
            for line in out:
                self.said.append(json.loads(line))
                self.answers += "frame" in self.said[-1]

        threads = [threading.Thread(target=feed), threading.Thread(target=read)]
        for thread in threads:
            thread.start()
        try:
            yield process
        finally:
            done.set()
            threads[0].join()
            with contextlib.suppress(BrokenPipeError):
                into.close()
            process.wait(60)
            threads[1].join()


def stop_if_any(board: Board) -> None:
    with contextlib.suppress(NothingThereError):
        board.trial("stop")


@pytest.fixture
def board(tmp_path: Path, bundles: dict[str, Bundle]) -> Iterator[Board]:
    board = Board(tmp_path, bundles)
    board.deploy("first")
    yield board
    stop_if_any(board)


def test_a_candidate_that_says_the_same_is_activated_on_the_device(board: Board) -> None:
    assert board.deploy("same", RULES) == "on trial"
    assert board.current() == board.id("first")
    with board.live():
        done = board.over()
        assert board.answers > 0
    assert (done.phase, done.agreement) == ("activated", 1.0)
    assert done.pictures >= RULES.min_pictures
    assert (done.differing, done.incomparable, done.crashes) == (0, 0, 0)
    assert done.latency_ratio is not None
    assert done.peak_bytes > 0
    assert board.current() == board.id("same")
    assert board.candidates("same") == []
    # It was tested as any other, and there is a way back.
    current = status(board.device, ROOT).current
    assert current is not None
    assert current.health is not None
    assert rollback(board.device, ROOT).release == board.id("first")


def test_what_the_candidate_may(board: Board) -> None:
    board.deploy("same", replace(RULES, seconds=600))
    with board.live():
        board.until(lambda it: it.pictures > 0)
        (process,) = board.candidates("same")
        text = Path(f"/proc/{process}/status").read_text()
        facts = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        # A filter (2), which nothing that it starts can leave.
        assert (facts["Seccomp"], facts["NoNewPrivs"]) == ("2", "1")
        # Root's candidate has none of root's rights.
        assert (int(facts["CapEff"], 16), int(facts["CapPrm"], 16)) == (0, 0)
        assert os.sched_getscheduler(process) == os.SCHED_IDLE
        assert os.getpriority(os.PRIO_PROCESS, process) == 19
        assert Path(f"/proc/{process}/oom_score_adj").read_text() == "1000\n"
        # All its memory is counted, of all its threads.
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        (resident,) = (int(line.split()[1]) for line in rollup if line.startswith("Rss:"))
        assert board.until(lambda it: it.peak_bytes >= resident * 1024).runs
        # Metrics name it, for who sees no more of the device.
        tool = [board.root / "bin/edgepack-device", "metrics", "--root", board.root]
        told = parse_exposition(subprocess.check_output(tool, text=True), "metrics").samples
        (info,) = (one for one in told if one.name == "edgepack_device_trial_info")
        assert info.labels == {
            "model": "columns", "release": board.id("same"), "before": board.id("first"),
            "phase": "running",
        }  # fmt: skip
        board.trial("stop")
    # Nobody else reads how it went, or hands over pictures, once it is over.
    assert not (board.root / "trial/frames").exists()


def test_a_candidate_that_says_otherwise_is_dropped(board: Board, tmp_path: Path) -> None:
    board.deploy("other", replace(RULES, keep_disagreements=3))
    with board.live():
        done = board.over()
    # The brightest column is one of the first four: of the others' numbers none is the same.
    assert (done.phase, done.agreement, done.differing) == ("dropped", 0.0, done.pictures)
    assert "needed is 0.98" in done.reason
    assert board.current() == board.id("first")

    # What the releases disagree about is kept, for its owner alone.
    kept = board.root / "trial/pictures"
    assert (kept.stat().st_mode & 0o777, done.kept) == (0o700, 3)
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    found = fetch_pictures(board.device, ROOT, done, tmp_path / "found")
    assert len(found) == 3
    for path in found:
        answers = json.loads(path.with_suffix(".json").read_text())
        (column, *_), (other, *_) = (
            [one["index"] for one in json.loads(answers[key])["top"]]
            for key in ("current", "candidate")
        )
        assert other == COLUMNS - 1 - column
        # It shows what the answers are about.
        picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        assert picture.shape == (HEIGHT, WIDTH)
        assert np.argmax(picture.reshape(HEIGHT, COLUMNS, -1).mean(axis=(0, 2))) == column
        assert path.stat().st_mode & 0o777 == 0o600
    board.deploy("first")
    assert not kept.exists()


def test_without_pictures_nothing_is_activated(board: Board) -> None:
    board.deploy("same", replace(RULES, seconds=0.5))
    done = board.over()
    assert done.phase == "dropped"
    assert done.reason == "only 0 pictures were compared, 1 are needed"
    assert board.current() == board.id("first")


def test_a_slow_candidate_is_dropped_before_it_sees_a_picture(board: Board) -> None:
    board.deploy("same", replace(RULES, max_latency=1e-6))
    done = board.over()
    assert done.phase == "dropped"
    assert "times as long as release" in done.reason
    assert done.pictures == 0


def test_the_candidate_that_dies_and_dies_is_dropped_and_the_app_runs_on(board: Board) -> None:
    board.deploy("same", replace(RULES, seconds=600))
    with board.live() as app:
        done = board.trial()
        end = time.monotonic() + LONGEST_S
        while done.phase == "running":
            for process in board.candidates("same"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            assert time.monotonic() < end
            time.sleep(0.02)
            done = board.trial()
        assert app.poll() is None
        answers = board.answers
        while board.answers == answers:
            assert time.monotonic() < end
            time.sleep(0.02)
    assert (done.phase, done.crashes) == ("dropped", 3)
    assert "the candidate crashed 3 times" in done.reason
    assert board.current() == board.id("first")


def test_a_trial_that_is_killed_goes_on_when_it_is_resumed(board: Board) -> None:
    board.deploy("same", replace(RULES, seconds=600))
    with board.live():
        board.until(lambda it: it.latency_ratio is not None)
        process = board.runner()
        os.kill(process, signal.SIGKILL)
        now = board.until(lambda it: not it.runs)
        assert now.interrupted
        assert board.current() == board.id("first")
        # It is not pruned, for its trial is not over.
        assert (board.root / "releases" / board.id("same")).is_dir()
        assert board.trial("resume").release == board.id("same")
        board.until(lambda it: it.runs)
        stopped = board.trial("stop")
    assert (stopped.phase, stopped.reason) == ("stopped", "stopped by the operator")
    # That of the runner that was killed ends when it sees that nobody feeds it.
    board.until(lambda _: board.candidates("same") == [])
    with pytest.raises(NothingThereError):
        board.trial("stop")


def test_the_operator_may_decide_and_another_deploy_ends_a_trial(board: Board) -> None:
    board.deploy("same", replace(RULES, seconds=600))
    with pytest.raises(UsageError, match=f"a trial of release {board.id('same')} runs"):
        board.deploy("other", RULES)
    assert board.trial("activate").phase == "activated"
    assert board.current() == board.id("same")
    with pytest.raises(UsageError, match="is current: it needs no trial"):
        board.deploy("same", RULES)
    board.deploy("other", replace(RULES, seconds=600))
    board.deploy("first")
    done = board.over()
    assert done.phase == "dropped"
    assert done.reason == f"release {board.id('first')} became current meanwhile"


def test_a_trial_by_the_python_api(board: Board, tmp_path: Path) -> None:
    rules = edgepack.TrialRules(
        seconds=600, share=1.0, min_pictures=1, max_latency=50.0, keep_disagreements=1
    )
    project = board.bundles["other"].path.parents[1] / "edgepack.toml"
    options = edgepack.DeployOptions(trial=rules, replace_model=True)
    with edgepack.deploy(
        project=project, device="local", root=str(board.root), options=options
    ) as deployed:
        assert deployed.report is not None
        assert deployed.report.outcome == "on trial"
        assert deployed.trial_status().rules == rules
    with edgepack.connect("local", root=str(board.root)) as deployed:
        with board.live():
            board.until(lambda it: it.kept == 1)
            (picture,) = deployed.trial_pictures(tmp_path / "kept")
            answers = json.loads(picture.with_suffix(".json").read_text())
            assert answers["current"] != answers["candidate"]
            stopped = deployed.stop_trial()
        assert (stopped.phase, stopped.release) == ("stopped", board.id("other"))
        for act in (deployed.stop_trial, deployed.resume_trial, deployed.activate_trial):
            with pytest.raises(edgepack.EdgepackError, match="trial"):
                act()
        with pytest.raises(UsageError, match=r"^folder: .*: File exists$"):
            deployed.trial_pictures(picture)

        board.deploy("same", replace(RULES, seconds=600))
        board.until(lambda it: it.latency_ratio is not None)
        os.kill(board.runner(), signal.SIGKILL)
        board.until(lambda it: it.interrupted)
        assert deployed.resume_trial().release == board.id("same")
        board.until(lambda it: it.runs)
        assert deployed.activate_trial().phase == "activated"
        current = deployed.status().current
        assert current is not None
        assert current.release == board.id("same")


def test_the_app_is_killed_and_its_next_one_is_found(board: Board) -> None:
    board.deploy("same", replace(RULES, seconds=600))
    with board.live() as app:
        board.until(lambda it: it.latency_ratio is not None)
        app.kill()
    seen = board.trial().pictures
    with board.live():
        board.until(lambda it: it.pictures > seen)
    board.trial("stop")


def test_a_service_of_another_account_takes_part(bundles: dict[str, Bundle]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start the app as another account")
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        Path(folder).chmod(0o755)
        board = Board(Path(folder), bundles)
        board.deploy("first")
        board.deploy("same", replace(RULES, seconds=600))
        with board.live("nobody"):
            board.until(lambda it: it.pictures > 0)
            # Root's candidate is nobody, where nobody can reach it.
            (process,) = board.candidates("same")
            text = Path(f"/proc/{process}/status").read_text()
            assert "\nUid:\t65534\t65534\t65534\t65534\n" in text
            assert "\nGid:\t65534\t65534\t65534\t65534\n" in text
            assert "\nGroups:\t \n" in text
            assert board.trial("stop").agreement == 1.0


def test_what_strangers_hand_over_is_left(board: Board) -> None:
    board.deploy("same", replace(RULES, seconds=600))
    board.until(lambda it: it.latency_ratio is not None)
    about = {"format": "bgr24", "width": WIDTH, "height": HEIGHT}
    memory, (pipe, other_end) = os.memfd_create("short"), os.pipe()
    os.write(memory, b"short")
    process = board.runner()
    for said, handed in (
        (b"no words about a picture", memory),
        (json.dumps(about | {"picture_bytes": 2**40, "answer_bytes": 1}).encode(), memory),
        (json.dumps(about | {"picture_bytes": 768, "answer_bytes": 10}).encode(), memory),
        # Whose reading would wait without end.
        (json.dumps(about | {"picture_bytes": 1, "answer_bytes": 1}).encode(), pipe),
        (json.dumps(about | {"picture_bytes": 1, "answer_bytes": 1}).encode(), None),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(LONGEST_S)
            stranger.connect(str(board.root / "trial/frames"))
            assert float(stranger.recv(100)) == RULES.share
            socket.send_fds(stranger, [said], [] if handed is None else [handed])
            assert stranger.recv(100) == b"", said  # it hangs up
    for fd in (memory, pipe, other_end):
        os.close(fd)
    assert board.runner() == process
    with board.live():
        done = board.until(lambda it: it.pictures > 0)
        board.trial("stop")
    assert (done.agreement, done.crashes) == (1.0, 0)


@pytest.mark.parametrize(
    ("thumbnail", "claimed", "kept"),
    [
        (b"\xff\xd8\xff a small picture", None, 1),
        (b"GIF89a", None, 0),
        (b"\xff\xd8\xff" + bytes(70_000), None, 0),
        (b"\xff\xd8\xff", 60_000, 0),
        (b"\xff\xd8\xff", 2**60, 0),
    ],
    ids=["picture", "no JPEG", "large", "shorter than it says", "endless"],
)
def test_what_is_kept_is_bounded(
    board: Board, thumbnail: bytes, claimed: int | None, kept: int
) -> None:
    """Somebody hands over what is to be kept in place of the app."""
    board.deploy("same", replace(RULES, seconds=600, keep_disagreements=2))
    board.until(lambda it: it.latency_ratio is not None)
    picture, answer = bytes(3 * WIDTH * HEIGHT), b'{"top":[{"index":99,"score":1}]}\n'
    about = {
        "format": "bgr24", "width": WIDTH, "height": HEIGHT, "picture_bytes": len(picture),
        "answer_bytes": len(answer), "thumbnail_bytes": claimed or len(thumbnail),
    }  # fmt: skip
    memory = os.memfd_create("picture")
    os.write(memory, picture + answer + thumbnail)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as app:
        app.settimeout(LONGEST_S)
        app.connect(str(board.root / "trial/frames"))
        assert app.recv(100).split() == [b"1.000000", b"320"]
        socket.send_fds(app, [json.dumps(about).encode()], [memory])
        # It hangs up, or asks for the next one when that is done.
        hung_up = app.recv(100) == b""
        done = board.until(lambda it: hung_up or it.differing > 0)
    os.close(memory)
    assert hung_up == (claimed == 60_000)
    assert (done.differing, done.kept) == (0 if hung_up else 1, kept)
    pictures = board.root / "trial/pictures"
    assert len(list(pictures.glob("*.jpg"))) == kept
    board.trial("stop")


def answered_by(line: dict[str, Any], board: Board) -> str:
    """Which release answered."""
    name = line.get("release", board.id("first"))
    return {board.id("first"): "first", board.id("other"): "other"}[name]


def missed_of(metrics: Path) -> dict[str, int]:
    """How many of the candidate's pictures the current release answered, by reason, as the app
    last wrote it: every ten seconds, and at its end."""
    if not metrics.exists():
        return {}
    return {
        one.labels["kind"]: int(one.value)
        for one in parse_exposition(metrics.read_text(), "metrics").samples
        if one.name == "edgepack_split_missed_total"
    }


def pictures_by_release(text: str, board: Board) -> Counter[str]:
    """Of an app's metrics: how many pictures each release answered; classes are as many."""
    pictures: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    for one in parse_exposition(text, "metrics").samples:
        name = answered_by(one.labels, board)
        if one.name == "edgepack_pictures_total":
            pictures[name] += int(one.value)
        elif one.name == "edgepack_classes_total" and int(one.value):
            # The brightest column is one of the first four, which the other release calls the last.
            assert (int(one.labels["index"]) >= COLUMNS // 2) == (name == "other")
            classes[name] += int(one.value)
    assert classes == pictures
    return pictures


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_candidate_answers_a_share_of_live_frames(board: Board, tmp_path: Path) -> None:
    """The brightest column is one of the first four, of which the candidate says the others'."""
    metrics = tmp_path / "app.prom"
    rules = replace(RULES, seconds=600, split=0.5, min_agreement=0)
    plan = preview(board.bundles["other"], board.device, ROOT, options=DeployOptions(trial=rules))
    text = f"beside {board.id('first')}, on its pictures; 0.5 of them it answers; then decide"
    assert ("trial", text) in plan.steps
    board.deploy("other", rules)

    def by(name: str) -> list[dict[str, Any]]:
        lines = [line for line in board.said if "frame" in line]
        return [line for line in lines if answered_by(line, board) == name]

    with board.live("", "--metrics", metrics) as app:
        wait_for(lambda: len(by("other")) >= 20)
        board.until(lambda it: it.answered >= 20)
        (process,) = board.candidates("other")

        def late() -> bool:
            """A candidate that hangs with a picture is late with it, and then busy; one that hangs
            before it has asked for the next picture is busy only."""
            os.kill(process, signal.SIGSTOP)
            before = len(by("first"))
            wait_for(lambda: len(by("first")) >= before + 20)
            os.kill(process, signal.SIGCONT)
            before = len(by("other"))
            wait_for(lambda: len(by("other")) > before)
            return missed_of(metrics).get("late", 0) > 0

        wait_for(late)
        assert app.poll() is None
        status = board.trial("stop")
        # Who answers without a trial?
        before = len(by("first"))
        wait_for(lambda: len(by("first")) >= before + 5)
    lines = [line for line in board.said if "frame" in line]
    assert [line["frame"] for line in lines] == list(range(len(lines)))
    for line in lines:
        said = line["top"][0]["index"]
        assert (said >= COLUMNS // 2) == (answered_by(line, board) == "other"), line
    assert (status.agreement, status.rules.split) == (0.0, 0.5)
    assert 20 <= status.answered <= len(by("other"))
    answers = Counter(answered_by(line, board) for line in lines)
    assert pictures_by_release(metrics.read_text(), board) == answers
    samples = parse_exposition(metrics.read_text(), "metrics").samples
    count = {
        one.labels["release"]: int(one.value)
        for one in samples
        if one.name == "edgepack_split_seconds_count"
    }
    assert count[board.id("other")] == len(by("other"))
    assert 20 <= count[board.id("first")] <= len(by("first"))
    missed = missed_of(metrics)
    assert missed["late"] >= 1
    assert missed["busy"] >= 1
    assert missed["invalid"] == missed["unfit"] == 0


def test_a_candidate_answers_photos_that_are_sent_and_that_come(
    board: Board, tmp_path: Path
) -> None:
    board.deploy("other", replace(RULES, seconds=600, share=1.0, split=1.0, min_agreement=0))
    app = board.root / "releases" / board.id("first") / "bin/edgepack-run"
    photo = next(pictures("left", 1, 3))
    jpeg = cv2.imencode(".jpg", photo)[1].tobytes()
    seen = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    column = int(seen.reshape(HEIGHT, COLUMNS, -1).mean(axis=(0, 2)).argmax())
    said: list[tuple[str, int]] = []

    def ask(port: int) -> bool:
        address = f"http://127.0.0.1:{port}/v2/models/columns/infer"
        request = urllib.request.Request(address, jpeg, {"Content-Type": "image/jpeg"})
        with contextlib.suppress(urllib.error.URLError):
            with urllib.request.urlopen(request, timeout=60) as answer:
                line = json.load(answer)
            said.append((answered_by(line, board), line["top"][0]["index"]))
        return ("other", COLUMNS - 1 - column) in said

    port = free_port()
    with subprocess.Popen([app, "--serve", f"127.0.0.1:{port}", "--threads", "1"]) as served:
        wait_for(lambda: ask(port))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            told = answer.read().decode()
        served.terminate()
    assert pictures_by_release(told, board) == Counter(name for name, _ in said)
    # What else answered is the current release.
    assert set(said) <= {("other", COLUMNS - 1 - column), ("first", column)}

    folder, results, number = tmp_path / "photos", tmp_path / "results.jsonl", 0
    folder.mkdir()

    def read_results() -> None:
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        said[:] = [(answered_by(line, board), line["top"][0]["index"]) for line in lines]
        assert [line["image"] for line in lines] == [f"{at}.jpg" for at in range(len(lines))]

    def watch() -> bool:
        nonlocal number
        (tmp_path / "part.jpg").write_bytes(jpeg)
        (tmp_path / "part.jpg").rename(folder / f"{number}.jpg")
        number += 1
        read_results()
        return ("other", COLUMNS - 1 - column) in said

    results.touch()
    words = [app, "--watch", folder, "--results", results, "--threads", "1"]
    words += ["--metrics", tmp_path / "app.prom"]
    with subprocess.Popen(words) as watching:
        wait_for(watch)
        watching.terminate()
    read_results()
    assert set(said) <= {("other", COLUMNS - 1 - column), ("first", column)}
    told = (tmp_path / "app.prom").read_text()
    assert pictures_by_release(told, board) == Counter(name for name, _ in said)
    board.trial("stop")


def fleet(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `edgepack fleet`, and what it reports."""
    code = main(["fleet", *words, "--json", "-q"])
    out, err = capsys.readouterr()
    assert out, err
    return code, json.loads(out)


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {row["device"]: row["outcome"] for row in report["devices"]}


def test_a_fleet_tries_a_release_before_it_gets_it(
    bundles: dict[str, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real servers and device tools on this machine, each with a folder of its own."""
    names = ("bench", "shop1", "shop2")
    boards = {name: Board(tmp_path / name, bundles) for name in names}
    text = '[rollout]\nwaves = [1]\nmax_failures = 0\n[defaults]\nboard = "local"\n'
    with contextlib.ExitStack() as stack:
        for name, board in boards.items():
            server = sshd_server.start(tmp_path / f"{name}-sshd")
            stack.callback(server.stop)
            (tmp_path / f"{name}-hosts").write_text(server.known_hosts_line + "\n")
            text += (
                f'[devices.{name}]\naddress = "127.0.0.1"\nport = {server.port}\n'
                f'user = "{server.user}"\nidentity = "{server.key}"\n'
                f'known_hosts = "{tmp_path}/{name}-hosts"\nroot = "{board.root}"\n'
            )
            stack.callback(stop_if_any, board)
        file = tmp_path / "shops.toml"
        file.write_text(text)

        def deploy(name: str, *words: str) -> tuple[int, dict[str, Any]]:
            bundle = ("--bundle", str(bundles[name].path))
            return fleet(capsys, "deploy", str(file), *bundle, "--replace", *words)

        assert deploy("first")[0] == 0
        # The canary and the first wave: the rest is for later.
        words = ("--shadow", "10m", "--max-latency", "50", "--split", "0.05")
        code, report = deploy("same", *words)
        assert (code, report["action"], report["status"]) == (0, "trial", "complete")
        assert outcomes(report) == {"bench": "on trial", "shop1": "on trial"}
        assert [board.current() for board in boards.values()] == [boards["bench"].id("first")] * 3
        code, report = fleet(capsys, "status", str(file), "--name", "columns")
        assert code == 0
        told = {row["device"]: (row["trial_phase"], row["trial"]) for row in report["devices"]}
        assert told["shop2"] == (None, None)
        for name in names[:2]:
            assert told[name][0] == "running"
            assert f"{boards[name].id('same')} running" in told[name][1]
            assert boards[name].trial().rules.split == 0.05
        # Nobody is ahead of the trials, which go on.
        code, report = deploy("same")
        assert (code, report["reason"]) == (2, "1 of 1 canaries failed")
        assert outcomes(report) == {"bench": "on trial", "shop1": "waiting", "shop2": "waiting"}
        assert boards["bench"].trial().runs

        boards["bench"].trial("activate")
        boards["shop1"].trial("stop")
        code, report = deploy("same")
        assert code == 0
        assert outcomes(report) == {
            "bench": "unchanged", "shop1": "activated", "shop2": "deployed",
        }  # fmt: skip

        # Where it was dropped it is not deployed, and that counts.
        shop = ("--limit", "shop1", "--shadow", "10m", "--max-latency", "0.000001")
        assert deploy("other", *shop)[0] == 0
        assert boards["shop1"].over().phase == "dropped"
        code, report = fleet(capsys, "status", str(file), "--name", "columns", "--limit", "shop1")
        (row,) = report["devices"]
        assert "dropped: it takes" in row["trial"]
        code, report = deploy("other", "--canary", "0")
        assert code == 8
        assert outcomes(report) == {"bench": "deployed", "shop1": "dropped", "shop2": "waiting"}
        (error,) = (row["error"] for row in report["devices"] if row["error"])
        assert "its trial dropped release" in error
        assert boards["shop1"].current() == boards["shop1"].id("same")

        # What is undone must not come back by itself.
        assert deploy("other", "--limit", "shop2", "--shadow", "10m", "--max-latency", "50")[0] == 0
        code, report = fleet(capsys, "rollback", str(file), "--name", "columns")
        assert code == 0
        assert outcomes(report) == {
            "bench": "rolled back", "shop1": "unchanged", "shop2": "trial stopped",
        }  # fmt: skip
        assert [board.current() for board in boards.values()] == [boards["bench"].id("same")] * 3
        # Asked for by name, it is deployed all the same.
        assert deploy("other", "--limit", "shop1", "--again")[0] == 0
        assert boards["shop1"].current() == boards["shop1"].id("other")
