"""What is said of steps that take long; the clock is the test's own."""

from __future__ import annotations

import io
import re
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from edgepack.base import apart, progress
from edgepack.base.apart import Apart
from edgepack.base.process import Beside, run
from edgepack.cli import ticker
from edgepack.cli.durations import Durations
from edgepack.cli.ticker import Ticker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "REDRAW_S", 1e6)


def ticker_of(
    out: io.StringIO, clock: Clock, tmp_path: Path, *, on_terminal: bool = False
) -> Ticker:
    file = tmp_path / "steps.json"
    return Ticker(out, on_terminal=on_terminal, clock=clock, durations=Durations(file))


def test_elsewhere_than_on_a_terminal_a_line_each_half_minute(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path)
    it.begin("building OpenCV")
    for second in range(0, 100):
        clock.now = second
        it.tick()
    assert out.getvalue() == "==> building OpenCV\n" + "".join(
        f"    still: building OpenCV {time}\n" for time in ("0:30", "1:00", "1:30")
    )
    # The next step begins anew, and what is quick is not said again.
    it.begin("linking")
    clock.now += 29
    it.tick()
    it.stop()
    clock.now += 60
    it.tick()
    assert out.getvalue().count("linking") == 1


def test_what_is_counted_has_a_share_and_an_estimate(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path)
    it.begin("building the app")
    clock.now = 10  # CMake configures
    it.now("", 0, 40)
    clock.now = 40
    it.now("", 10, 40)
    it.tick()
    assert out.getvalue().endswith("    still: building the app 25% 0:40 about 1:30 left\n")


def build(it: Ticker, clock: Clock, *, link_s: float) -> list[str]:
    """39 files of a second each, and a last one; what was said of what is left, each second."""
    said = []
    it.begin("building for arm64 with zig 0.17.0")
    it.now("", 0, 40)
    for done in range(1, 40):
        clock.now += 1
        it.now("", done, 40)
        said.append(left_of(it))
    for _ in range(round(link_s)):
        clock.now += 1
        said.append(left_of(it))
    it.begin("next")
    it.stop()
    return said


def left_of(it: Ticker) -> str:
    out = cast("io.StringIO", it._out)
    out.truncate(0)
    it.tick()
    return "".join(re.findall(r"about (\d+:\d\d) left", out.getvalue()))


def test_an_estimate_that_was_overtaken_is_not_made_again(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    said = build(it, clock, link_s=60)
    assert (said[9], said[37]) == ("0:30", "0:02")
    assert said[38] == "0:01"
    assert set(said[39:]) == {""}


def test_an_estimate_that_grows_by_half_is_not_made_again(tmp_path: Path) -> None:
    """One file a second, then one in three seconds: 40 s in all, then 63 s after 14 files."""
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    it.begin("compiling")
    it.now("", 0, 40)
    said = []
    for done in range(1, 30):
        clock.now += 1 if done <= 10 else 3
        it.now("", done, 40)
        said.append(left_of(it))
    assert (said[9], said[12]) == ("0:30", "0:39")
    assert set(said[13:]) == {""}


def test_what_a_few_took_is_no_estimate_for_many(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    for count, second in ((5, 1), (116, 5)):
        it.begin(f"compiling {count} kernels")
        it.now("", 0, count)
        for done in range(1, count):
            clock.now += second
            it.now("", done, count)
            if (count, done) == (116, 29):
                assert left_of(it) == "7:15"  # as long for each of the other 87
        it.ended()


def test_the_second_time_the_last_link_has_its_weight(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    build(ticker_of(out, clock, tmp_path, on_terminal=True), clock, link_s=61)
    # Of another version, on a machine that is as fast: 100 seconds in all.
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    said = build(it, clock, link_s=61)
    seconds = [int(text[0]) * 60 + int(text[2:]) for text in said[4:-1]]
    assert len(seconds) > 90
    assert all(abs(100 - second - left) <= 2 for second, left in enumerate(seconds, start=5))


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"building for arm#7 with zig #": [1]}',
        "[]",
        "[[[[",
        '{"building for arm#7 with zig #": [[0.5, 9], [1, 3]]}',
    ],
)
def test_a_damaged_memory_is_none(tmp_path: Path, content: str) -> None:
    clock, out = Clock(), io.StringIO()
    file = tmp_path / "steps.json"
    file.write_text(content.replace("KEY", "building for arm#7 with zig #"))
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    assert build(it, clock, link_s=2)[9] == "0:30"


def test_on_a_terminal_a_step_has_one_row_which_stays(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    it.begin("compiling")
    it.now("", 0, 2)
    clock.now = 5
    it.now("Conv_3", 1, 2)
    it.tick()
    with it.aside():
        out.write("a note\n")
    it.begin("linking")
    it.stop()
    row = "==> compiling (Conv_3) [##########          ] 50% 0:05 about 0:05 left"
    assert out.getvalue() == "".join(
        [
            "==> compiling",
            f"\r\x1b[J{row}",
            "\r\x1b[Ja note\n",
            "==> compiling (0:05)\n",
            "==> linking",
            "\r\x1b[J==> linking\n",
        ]
    )


def test_steps_of_several_threads_have_rows_below_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    it.begin("compiling 25 kernels")
    may_end = threading.Event()

    def other() -> None:
        it.begin("building the program")
        may_end.wait()

    thread = threading.Thread(target=other)
    thread.start()
    while out.getvalue().count("building") < 1:
        time.sleep(0.01)
    clock.now = 3
    out.truncate(0)
    out.seek(0)
    it.tick()
    may_end.set()
    thread.join()
    rows = "==> compiling 25 kernels 0:03\n==> building the program 0:03"
    assert out.getvalue() == f"\r\x1b[1A\x1b[J{rows}"


@pytest.mark.parametrize("columns", [200, 80, 50, 40, 30, 10])
def test_a_row_fits_and_its_words_are_whole(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path, on_terminal=True)
    text = "toolchain: zig 0.17.0 (glibc 2.28): meets the floor 2.31 of Raspberry Pi OS bullseye"
    it.begin(text)
    it.now("", 0, 2)
    clock.now = 100
    it.now("mobilenet/features/conv_1/Clip", 1, 2)
    out.truncate(0)
    out.seek(0)
    it.tick()
    row = out.getvalue().rpartition("\x1b[J")[2]
    assert len(row) < columns
    words = set(f"==> {text} (mobilenet/features/conv_1/Clip)".split())
    drawn = re.sub(r"\[.*?\]|50%|1:40|about|left", "", row).split()
    assert set(drawn) <= words | {"…"}
    assert ("about 1:40 left" in row) == (columns >= 80)


def test_each_thread_has_its_step_and_none_when_it_ends(tmp_path: Path) -> None:
    clock, out = Clock(), io.StringIO()
    it = ticker_of(out, clock, tmp_path)
    it.begin("compiling")
    other = threading.Thread(target=it.begin, args=("building",))
    other.start()
    other.join()
    clock.now = 30
    it.tick()
    assert out.getvalue().splitlines()[2:] == ["    still: compiling 0:30"]


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
    with progress.attach_listener(listener):
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
    with progress.attach_listener(listener):
        Apart().call(apart.at, "scheduling the kernel conv", 3, 9)
    assert listener.heard == [("scheduling the kernel conv", 3, 9)]
