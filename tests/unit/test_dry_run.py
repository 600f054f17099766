"""`deploy --dry-run` of a project that was never built: it asks, and makes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgepack.base import paths
from edgepack.base.paths import NotCachedError, atomic_dir, only_cached
from edgepack.base.process import Beside
from edgepack.boards import get_board
from edgepack.cli import main
from edgepack.device.facts import parse_facts
from edgepack.gate.gate import GateError
from edgepack.gate.profile import profile_problems
from tests.onnx_models import Builder
from tests.scripted_tool import NEW, STATUS, ScriptedDevice

FACTS = Path(__file__).parent / "facts"
PI = "raspberry-pi-3b-bullseye-32"


def answers(*files: str, tool: str = "", **more: str) -> str:
    """What devices said, of several the last that was asked; `more` are other facts."""
    said = {
        case["fact"]: case["output"]
        for file in files
        for case in json.loads((FACTS / f"{file}.json").read_text())
    }
    said |= {**more, "tool": tool}
    return "".join(f"\n@@edgepack:{name}\n{text}" for name, text in said.items())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    build = Builder()
    build.op("MatMul", "x", build.weight(8, 3), outputs=["scores"])
    return build.save(tmp_path / "net.onnx", {"x": [1, 8]}, {"scores": [1, 3]})


def dry_run(
    model: Path,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
) -> tuple[int, str, ScriptedDevice]:
    """Exit code, output, and the device that was asked; the cache is empty, and stays so."""
    device = ScriptedDevice("pi@board", lambda it: json.dumps(STATUS) if "status" in it else said)
    monkeypatch.setattr("edgepack.flow.deployment.open_device", lambda *_, **__: device)
    cache = model.parent / "cache"
    monkeypatch.setattr(paths, "_cache_dir", cache)
    to = ("--board", "rasp3b", "--device", "pi@board")
    code = main(["deploy", str(model), *to, "--dry-run", *words])
    assert [
        file.name for file in cache.rglob("*") if file.is_file() and file.suffix != ".lock"
    ] == []
    return code, capsys.readouterr().out, device


def test_what_is_not_built_is_not_built(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = answers(PI, tool="edgepack-device 1.0 protocol 1")
    code, out, device = dry_run(model, said, monkeypatch, capsys)
    assert code == 0
    assert "device    Raspberry Pi 3 Model B Rev 1.2: Raspbian GNU/Linux 11 (bullseye)" in out
    assert "gate      lets programs for rasp3b pass\n" in out
    assert f"current   {NEW}\n" in out
    assert out.count("to be built, about ") == 3
    assert "--bundle" in out.splitlines()[-1]
    assert len(device.commands) == 2  # its facts, its status
    code, out, _ = dry_run(model, said, monkeypatch, capsys, "--json")
    found: dict[str, Any] = json.loads(out)
    assert (code, found["exact"], found["before"]) == (0, False, NEW)
    assert (found["release"], found["send_bytes"], found["steps"]) == (None, None, None)
    assert [part["cached"] for part in found["parts"]] == [False] * 3
    assert found["parts"][0]["size_bytes"] == model.stat().st_size
    assert found["facts"]["machine"] == "armv7l"


def test_a_device_of_another_kind_is_refused_before_anything_is_built(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, device = dry_run(model, answers(PI, "alpine-armv7-musl"), monkeypatch, capsys)
    assert code == GateError.exit_code
    assert "gate      refuses it: rasp3b programs want the loader /lib/ld-linux-armhf.so.3" in out
    assert "the device has /lib/ld-musl-armhf.so.1" in out
    assert len(device.commands) == 1  # there is no device tool to ask
    said = answers(PI).replace("neon", "no")
    code, out, _ = dry_run(model, said, monkeypatch, capsys, "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["text"].partition(";")[0]) == (5, "has neon")


JETSON = {
    "gpu": "libcuda.so.1\n",
    "nvidia_driver": "# R36 (release), REVISION: 3.0, GCID: 36923193, BOARD: generic\n",
    "gpu_archs": "nvidia,tegra234\n",
}


@pytest.mark.parametrize(
    ("said", "compute", "text", "hint"),
    [
        ({}, "gpu", "", ""),
        ({"gpu": ""}, "gpu", "runs on a GPU by libcuda.so.1, which is not there", "--compute cpu"),
        (
            {"gpu": "libcuda.so.1\n/dev/nvhost-gpu\n"},
            "gpu",
            "runs on a GPU, whose /dev/nvhost-gpu pi may not open",
            "often video or render",
        ),
        (
            {"nvidia_driver": "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: generic\n"},
            "gpu",
            "needs a driver of CUDA 12.2 or newer; the device has Jetson Linux 35.4.1 (JetPack 5)",
            "profile for JetPack 5",
        ),
        (
            {"gpu_archs": "nvidia,tegra194\n"},
            "gpu",
            "machine code for sm_87; the device's GPU is sm_72",
            "gpu.arch is sm_72",
        ),
        ({"gpu_archs": "9.0\n"}, "gpu", "", ""),  # its driver compiles PTX
        ({"gpu": ""}, "gpu, else cpu", "", ""),
        ({"gpu": ""}, "cpu", "", ""),
    ],
)
def test_what_a_gpu_lacks_is_known_before_anything_is_built(
    said: dict[str, str],
    compute: str,
    text: str,
    hint: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither NVRTC nor a driver is asked."""
    answer = answers(PI, "rk3399-aarch64-trixie", **{**JETSON, **said})
    answer = answer.replace(" cpuid", " cpuid fphp asimdhp asimddp")  # as of the Jetson's cores
    words = ("--board", "jetson-orin-nano-jetpack6", "--compute", compute)
    code, out, _ = dry_run(model, answer, monkeypatch, capsys, *words, "--json")
    problems = json.loads(out)["problems"]
    assert code == (GateError.exit_code if text else 0)
    assert len(problems) == bool(text)
    for problem in problems:
        assert problem["file"] == "model/kernels.cubin"
        assert problem["text"].startswith(text)
        assert hint in problem["hint"]


def test_a_deploy_is_refused_for_its_gpu_before_anything_is_built(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = answers(PI, "rk3399-aarch64-trixie", **{**JETSON, "gpu_archs": "nvidia,tegra194\n"})
    device = ScriptedDevice("pi@board", lambda _: said.replace(" cpuid", " fphp asimdhp asimddp"))
    monkeypatch.setattr("edgepack.flow.deployment.open_device", lambda *_, **__: device)
    monkeypatch.setattr(
        "edgepack.flow.deployment.package_job", lambda *_, **__: pytest.fail("it was built")
    )
    to = ("--board", "jetson-orin-nano-jetpack6", "--device", "pi@board", "--compute", "gpu")
    assert main(["deploy", str(model), *to]) == GateError.exit_code
    said = capsys.readouterr().err
    assert "net for jetson-orin-nano-jetpack6 does not fit" in said
    assert "machine code for sm_87; the device's GPU is sm_72" in said
    assert len(device.commands) == 1


def test_programs_that_need_no_c_library_run_where_there_is_another() -> None:
    facts = parse_facts("pi", "r", answers(PI, "alpine-armv7-musl"))
    board = get_board("rasp3b")
    assert len([*profile_problems(board, "2.28", facts)]) == 1
    assert [*profile_problems(board.without_libc(), "", facts)] == []


def test_a_virtual_board_that_does_not_run_is_not_started(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edgepack.virtual.up", lambda *_, **__: pytest.fail("it was started"))
    code, out, device = dry_run(model, "", monkeypatch, capsys, "--device", "virtual")
    assert (code, device.commands) == (0, [])
    assert "device    does not run; a deploy starts it\n" in out
    assert "send      at most about " in out


def test_only_what_is_in_the_cache_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")

    def make() -> None:
        with atomic_dir(tmp_path / "cache" / "a"):
            pass

    with only_cached():
        with pytest.raises(NotCachedError, match="cache/a"):
            make()
        with pytest.raises(NotCachedError), Beside() as beside:
            beside.start(make).result()
        with atomic_dir(tmp_path / "elsewhere"):
            pass
    make()
    assert (tmp_path / "cache" / "a").is_dir()
