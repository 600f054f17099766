"""What is said of steps that take long; the clock is the test's own."""

from __future__ import annotations

import io
import threading

import pytest

from edgepack.base import apart, progress
from edgepack.base.apart import Apart
from edgepack.base.process import Beside, run
from edgepack.cli import ticker
from edgepack.cli.ticker import Ticker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "REDRAW_S", 1e6)


def test_elsewhere_than_on_a_terminal_a_line_each_half_minute() -> None:
    clock, out = Clock(), io.StringIO()
    it = Ticker(out, on_terminal=False, clock=clock)
    it.begin("building OpenCV")
    for second in range(0, 100):
        clock.now = second
        it.tick()
    assert out.getvalue() == "".join(
        f"    still: building OpenCV {time}\n" for time in ("0:30", "1:00", "1:30")
    )
    # The next step begins anew, and what is quick is not said again.
    it.begin("linking")
    clock.now += 29
    it.tick()
    it.stop()
    clock.now += 60
    it.tick()
    assert "linking" not in out.getvalue()


def test_what_is_counted_has_a_share_and_an_estimate() -> None:
    clock, out = Clock(), io.StringIO()
    it = Ticker(out, on_terminal=False, clock=clock)
    it.begin("building the app")
    clock.now = 10  # CMake configures
    it.now("", 0, 40)
    clock.now = 40
    it.now("", 10, 40)
    it.tick()
    assert out.getvalue() == "    still: building the app 25% 0:40 about 1:30 left\n"


def test_on_a_terminal_the_line_is_redrawn_and_makes_room() -> None:
    clock, out = Clock(), io.StringIO()
    it = Ticker(out, on_terminal=True, clock=clock)
    it.begin("compiling")
    it.tick()
    assert out.getvalue() == ""  # it may end at once
    clock.now = 5
    it.now("Conv_3", 1, 2)
    it.tick()
    line = "    compiling (Conv_3) [##########          ] 50% 0:05"
    assert out.getvalue() == line
    with it.aside():
        out.write("a note\n")
    assert out.getvalue() == f"{line}\r\x1b[Ka note\n"


def test_each_thread_has_its_step_and_none_when_it_ends() -> None:
    clock, out = Clock(), io.StringIO()
    it = Ticker(out, on_terminal=False, clock=clock)
    it.begin("compiling")
    other = threading.Thread(target=it.begin, args=("building",))
    other.start()
    other.join()
    clock.now = 30
    it.tick()
    assert out.getvalue() == "    still: compiling 0:30\n"


class Heard:
    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []
        self.ends = 0

    def now(self, text: str, done: int, total: int) -> None:
        self.heard.append((text, done, total))

    def ended(self) -> None:
        self.ends += 1


def test_what_ninja_counts_is_heard_and_the_output_is_whole() -> None:
    listener = Heard()
    script = "echo '[1/2] one'; echo bad >&2; echo other; echo '[2/2] two'"
    with progress.heard_by(listener):
        done = run(["sh", "-c", script, "--build"])
        with Beside() as beside:
            beside.start(int).result()
    assert listener.heard == [("", 1, 2), ("", 2, 2)]
    assert (done.stdout, done.stderr) == ("[1/2] one\nother\n[2/2] two\n", "bad\n")
    assert listener.ends == 1
    run(["sh", "-c", script, "--build"])
    assert len(listener.heard) == 2


def test_what_another_process_works_on_is_heard() -> None:
    listener = Heard()
    with progress.heard_by(listener):
        Apart().call(apart.at, "scheduling the kernel conv", 3, 9)
    assert listener.heard == [("scheduling the kernel conv", 3, 9)]
