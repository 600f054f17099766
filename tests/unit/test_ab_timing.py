"""`edgepack bench --compare`, and what the device's clock and temperature are meanwhile."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import RemoteError
from edgepack.base.intervals import interval, median_interval, share_interval
from edgepack.cli import main
from edgepack.deploy.ab_timing import ROUNDS, time_in_turns
from edgepack.deploy.answers import Answer
from edgepack.deploy.app_answers import AppAnswer
from edgepack.deploy.conditions import Conditions, parse_conditions
from edgepack.deploy.processor_timing import time_processors
from edgepack.deploy.remote_app import RunRequest
from tests.scripted_tool import ANSWERS, ScriptedDevice

# A Raspberry Pi 3B that is too warm: bit 2 is throttled now, bit 18 that it was.
PI = """\
scaling_governor ondemand
scaling_cur_freq 600000
cpuinfo_max_freq 1200000
scaling_governor ondemand
scaling_cur_freq 1100000
cpuinfo_max_freq 1200000
temp 82350
temp 61000
throttled=0x40004
"""


def test_conditions_of_a_warm_pi() -> None:
    found = parse_conditions(PI)
    assert found == Conditions(
        governors=("ondemand",),
        mhz=1100,
        max_mhz=1200,
        celsius=82.35,
        throttled=("throttled",),
    )
    assert str(found) == "1100 of 1200 MHz, governor ondemand, 82.3 °C, throttled"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not known"),
        ("throttled=0x0\n", "not throttled"),
        ("temp -5\ntemp 999999\ntemp 41000\n", "41.0 °C"),  # broken sensors
        ("scaling_governor \x1b[31mred\nscaling_cur_freq 9999999999999\n", "not known"),
        ("temp 4\u0661000\nthrottled=0xzz\nnonsense\n", "not known"),
    ],
)
def test_conditions_that_a_device_does_not_tell_are_left_out(text: str, expected: str) -> None:
    assert str(parse_conditions(text)) == expected


def test_the_interval_is_that_of_the_rounds_ratios() -> None:
    # ln 0.9 and 0 in turns: their standard deviation is half of it times sqrt(10 / 9), which over
    # sqrt(10) and times 2.262 makes 0.377 of it.
    found = interval([10.0] * ROUNDS, [9.0, 10.0] * (ROUNDS // 2))
    assert found == pytest.approx((0.9487, 0.9117, 0.9871), abs=1e-4)


A, B = "a" * 12, "b" * 12


def device(ms: dict[str, float]) -> ScriptedDevice:
    """Answers with each release's time; the commands that it got are kept."""

    def answer(command: str) -> str:
        if "/sys/" in command:
            return PI
        (release,) = re.findall(r"releases/(\w+)/", command)
        times: dict[str, Any] = dict.fromkeys(
            ("mean_ms", "min_ms", "max_ms", "p50_ms", "p90_ms", "p99_ms"), ms[release]
        )
        bench = {"runs": 5, "warmup": 1, "std_ms": 0.0, **times, "times_ms": [ms[release]] * 5}
        return json.dumps({**ANSWERS["run"], "bench": bench})

    return ScriptedDevice("pi", answer)


def test_releases_take_turns_and_so_does_who_goes_first() -> None:
    pi = device({A: 10.0, B: 8.0})
    found = time_in_turns(pi, "root", (A, B), ["--warmup", "1"], runs=5)
    assert (found.ratio, found.told) == (pytest.approx(0.8), True)
    order = [match[1] for c in pi.commands if (match := re.search(r"releases/(\w+)/\S+ --gol", c))]
    assert order == [A, B, B, A] * (ROUNDS // 2)
    assert all("--bench 5 --warmup 1" in c for c in pi.commands if "--golden" in c)
    assert found.before.throttled == ("throttled",)
    assert not time_in_turns(device({A: 10.0, B: 10.0}), "root", (A, B), [], runs=5).told


def two_processors(cpu: dict[str, Any] | None, gpu: dict[str, Any] | None) -> ScriptedDevice:
    """Its app says `processor` as these, by what it is asked; the GPU takes half of the time."""

    def answer(command: str) -> str:
        if "/sys/" in command:
            return PI
        if "--golden" not in command:
            return ""
        on_cpu = "EDGEPACK_GPU_LOST=3" in command
        ms, load_ms = (10.0, 20.0) if on_cpu else (5.0, 80.0)
        if "CACHE_DIRECTORY=/nonexistent" in command and not on_cpu:
            load_ms = 9000.0
        times: dict[str, Any] = dict.fromkeys(
            ("mean_ms", "min_ms", "max_ms", "p50_ms", "p90_ms", "p99_ms"), ms
        )
        bench = {"runs": 5, "warmup": 1, "std_ms": 0.0, **times, "times_ms": [ms] * 5}
        said = {"load_ms": load_ms, "rss_peak_bytes": 44_000_000, "params_bytes": 1}
        said |= {"arena_bytes": 1, "bench": bench}
        processor = cpu if on_cpu else gpu
        return json.dumps(
            {**ANSWERS["run"], **said, **({"processor": processor} if processor else {})}
        )

    return ScriptedDevice("pi", answer)


ON_CPU = {"on": "cpu", "gpu_failures": 0, "why": "the GPU's driver hung in the last 3 starts"}
ON_GPU = {"on": "gpu", "gpu": "Mali-G610", "gpu_bytes": 30_000_000, "gpu_failures": 0}


def test_processors_take_turns_on_one_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pi = two_processors(ON_CPU, ON_GPU)
    monkeypatch.setattr("edgepack.cli.bench.open_release", lambda *_: (pi, "root"))
    words = ["bench", "--name", "m", "--device", "pi@x", "--runs", "5", "--compare", "cpu", "gpu"]
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert (
        out[0]
        == "CPU       10.00 ms, load 20.00 ms, first result after 30.00 ms; memory peak 44.0 MB"
    )
    assert out[1] == (
        "GPU       5.00 ms, load 80.00 ms, first result after 9005 ms; memory peak 44.0 MB, and "
        "30.0 MB of the GPU's (Mali-G610)"
    )
    assert out[2].startswith("GPU / CPU 0.500, with 95 % confidence")
    runs = ["EDGEPACK_GPU_LOST=3" in c for c in pi.commands if "--bench 5 " in c]
    assert runs == [True, False, False, True] * (ROUNDS // 2)
    # Without a kernel that a driver has compiled before: once on each.
    assert len([c for c in pi.commands if "CUDA_CACHE_DISABLE=1" in c]) == 2
    assert main([*words[:-2], "gpu", "cpu", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ratio"] == pytest.approx(2)
    assert said["uses"]["gpu"]["first_ms"] == 9005


@pytest.mark.parametrize(
    ("cpu", "gpu", "message"),
    [
        (None, None, "has no plan for a GPU"),
        (ON_GPU, ON_GPU, "has no plan for the CPU"),
        (ON_CPU, {"on": "cpu", "gpu_failures": 0, "why": "no driver"}, "run the model: no driver"),
        (ON_CPU, {**ON_GPU, "gpu_failures": 1, "why": "it hung"}, "run the model: it hung"),
    ],
)
def test_a_processor_that_does_not_run_the_release(
    cpu: dict[str, Any] | None, gpu: dict[str, Any] | None, message: str
) -> None:
    pi = two_processors(cpu, gpu)
    with pytest.raises(RemoteError, match=message):
        time_processors(pi, "root", ("cpu", "gpu"), [], runs=5)
    assert not [command for command in pi.commands if "--bench 5" in command]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cpu", B], "'cpu' is not 12 hex digits"),
        (["cpu", "gpu", "--profile"], "neither --profile nor --html"),
        ([A, A], "that is one release twice"),
        (["current", B], "'current' is not 12 hex digits"),
        ([A, B, "--profile"], "neither --profile nor --html"),
    ],
)
def test_what_cannot_be_compared(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--name", "m", "--device", "pi@nowhere", "--compare", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_interval_of_the_median_leaves_out_what_a_coin_would() -> None:
    # Of ten ratios one lies beyond either end: of ten coins, one or none shows heads in 11 of 1024
    # cases, and two or fewer in 56, more than 2.5 %.
    ratios = [0.1, 0.8, 0.85, 0.9, 0.9, 0.92, 0.93, 0.95, 0.96, 40.0]
    assert median_interval([1.0] * 10, ratios) == (0.91, 0.8, 0.96)
    # Of six, both ends are there: none heads in 1 of 64 cases.
    assert median_interval([2.0] * 6, [2, 4, 6, 8, 10, 12]) == (3.5, 1, 6)


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_of_a_share(hits: int, count: int, low: float, high: float) -> None:
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert share_interval(hits, count) == pytest.approx((low, high), abs=6e-5)
    mirrored = share_interval(count - hits, count)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=6e-5)
    assert share_interval(0, 0) == (0, 1)


def test_the_page_of_a_bench_says_of_what_and_how_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(command: str) -> str:
        if "/sys/" in command:
            return PI
        return json.dumps(ANSWERS["status" if "status" in command else "run"])

    pi = ScriptedDevice("pi", answer)
    monkeypatch.setattr("edgepack.cli.bench.open_release", lambda *_: (pi, "r"))
    file = tmp_path / "bench.html"
    assert main(["bench", "--name", "m", "--device", "pi@nowhere", "--html", str(file)]) == 0
    made = file.read_text()
    conditions = str(parse_conditions(PI))
    assert made.count(conditions) == 2
    assert "°C" in conditions
    assert f"{ANSWERS['status']['current']['release']}, of m.onnx" in made
    assert made.count("<circle") == len(ANSWERS["run"]["bench"]["times_ms"])
    # With the project at hand, its photo is one frame: decoding and all.
    monkeypatch.chdir(tmp_path)
    Path("photo.png").write_bytes(b"photo")
    Path("edgepack.toml").write_text(
        '[project]\nname = "m"\nmodel = "m.onnx"\ngolden_image = "photo.png"\n'
        'board = "rasp3b"\ndevice = "pi@nowhere"\n[preprocess]\n'
    )
    Path("m.onnx").write_bytes(b"")
    asked: list[RunRequest] = []

    def ask(_device: Any, _root: str, request: RunRequest) -> AppAnswer:
        asked.append(request)
        times = {"decode_ms": 4.0, "preprocess_ms": 2.0} if request.image else {}
        return AppAnswer.read(Answer({**ANSWERS["run"], **times}, "app"))

    monkeypatch.setattr("edgepack.cli.bench.ask_app", ask)
    assert main(["bench", "--html", str(file)]) == 0
    assert [one.image and one.image.name for one in asked] == ["photo.png", None]
    bar = file.read_text().partition("parts of a frame")[2]
    widths = [float(width) for width in re.findall(r'width="([\d.]+)"', bar)[:3]]
    assert [width / sum(widths) for width in widths] == pytest.approx(
        [4 / 7, 2 / 7, 1 / 7], abs=1e-3
    )
    pi.commands.clear()
    assert main(["bench"]) == 0
    assert not any("status" in command for command in pi.commands)
