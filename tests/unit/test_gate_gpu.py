"""GPUs and drivers that a bundle's kernels do not run on are refused before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgepack.bundle.manifest import CUBIN, GRAPH, OPENCL_TEXT, PTX
from edgepack.gate.cuda import find_old_driver, later_than, runs_on
from edgepack.gate.gate import Problem, gpu_problems

CUDA = ("libcuda.so.1",)
OPENCL = ("libOpenCL.so.1",)
RENDER = ("/dev/dri/renderD128",)
NEEDS = {"api": "cuda", "arch": "sm_87", "driver": "12.2", "launches": [], "copies": []}


def facts(**said: Any) -> Any:
    nothing = {
        "gpu_drivers": (*CUDA, *OPENCL),
        "gpu_closed": (),
        "gpu_archs": (),
        "nvidia_driver": "",
        "jetson_linux": "",
        "cuda_compat": False,
        "opencl_drivers": (),
        "user": "ann",
    }
    return SimpleNamespace(**{**nothing, **said})


def problems(folder: Path, *files: str, gpu: object = NEEDS, **said: Any) -> list[Problem]:
    """Of a bundle with these files besides the plan, on a device that said this."""
    (folder / GRAPH).parent.mkdir(exist_ok=True)
    (folder / GRAPH).write_text(json.dumps({"gpu": gpu}))
    bundle: Any = SimpleNamespace(
        manifest=SimpleNamespace(files=dict.fromkeys([GRAPH, *files])),
        file=lambda name: folder / name,
    )
    return [*gpu_problems(bundle, facts(**said))]


# (the device's release of Jetson Linux, CUDA that is needed, CUDA that its driver is of, or none if
# that is new enough), by NVIDIA's archive of JetPack.
JETSONS = [
    ("35.4.1", "12.2", "11.4"),
    ("34.1.1", "12.2", "11.4"),
    ("35.4.1", "11.4", ""),
    ("35.6.4", "11.8", "11.4"),
    ("32.7.1", "11.4", "10.2"),
    ("32.7.1", "10.2", ""),
    ("36.2.0", "12.2", ""),
    ("36.3", "12.6", "12.2"),
    ("36.4.0", "12.6", ""),
    ("36.4.3", "12.2", ""),
    ("36.4.3", "11.4", ""),
    ("36.4.3", "13.0", "12.6"),
    ("38.2.0", "13.0", ""),
    ("99.1.0", "20.0", ""),
    ("21.4.0", "12.2", ""),  # of before this table
]


@pytest.mark.parametrize(("release", "need", "there"), JETSONS)
def test_drivers_of_jetsons(release: str, need: str, there: str) -> None:
    old = find_old_driver(facts(jetson_linux=release), need)
    assert (old is not None) == bool(there)
    if old:
        assert f"Jetson Linux {release} " in old.text
        assert old.text.endswith(f"is of CUDA {there}")


@pytest.mark.parametrize(
    ("driver", "need", "branch"),
    [
        ("525.147.05", "12.2", 535),
        ("530.30.02", "12.2", 535),
        ("535.54.03", "12.2", 0),
        ("535.43.02", "12.2", 0),  # a beta of the same branch
        ("550.54.14", "12.2", 0),
        ("470.42.01", "11.4", 0),
        ("465.19.01", "11.4", 470),
        ("390.157", "11.4", 470),
        ("560.28.03", "12.7", 0),  # no toolkit of 12.7, but a driver: 565
        ("565.57.01", "12.7", 0),
        ("565.57.01", "12.8", 570),
        ("575.51.03", "13.0", 580),
        ("580.65.06", "13.0", 0),
        ("590.44.01", "13.1", 0),
        ("999.1", "99.0", 0),
        ("390.157", "9.0", 0),
        ("540.4.0", "12.6", 0),  # that of a Jetson whose release is not known
    ],
)
def test_drivers_of_cards(driver: str, need: str, branch: int) -> None:
    old = find_old_driver(facts(nvidia_driver=driver), need)
    assert (old.text if old else "") == (
        f"the device has NVIDIA's driver {driver}, and that takes {branch} at least"
        if branch
        else ""
    )


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"jetson_linux": "35.4.1", "cuda_compat": True},
        {"nvidia_driver": "470.42.01", "cuda_compat": True},
        {"jetson_linux": "35.4.1", "nvidia_driver": "550.54.14"},  # a Jetson with a card
    ],
)
def test_a_driver_that_may_do(said: dict[str, Any]) -> None:
    assert find_old_driver(facts(**said), "12.2") is None


def test_a_jetson_with_two_old_drivers() -> None:
    old = find_old_driver(facts(jetson_linux="35.4.1", nvidia_driver="470.42.01"), "12.2")
    assert old is not None
    assert "JetPack 5" in old.text


@pytest.mark.parametrize("need", ["", "12", "12.2.1", "x.y", "9" * 5000 + ".0", "-1.0"])
def test_a_need_that_is_none(need: str) -> None:
    assert find_old_driver(facts(jetson_linux="32.7.1"), need) is None


@pytest.mark.parametrize(
    ("arch", "archs", "runs"),
    [
        ("sm_87", ("sm_87",), True),
        ("sm_86", ("sm_89",), True),
        ("sm_87", ("sm_86",), False),
        ("sm_87", ("sm_72",), False),
        ("sm_72", ("sm_87",), False),
        ("sm_90", ("sm_100",), False),
        ("sm_100", ("sm_103",), True),
        ("sm_87", ("sm_75", "sm_87"), True),
        ("sm_87", ("sm_75", "sm_90"), False),
        ("sm_87", (), True),
        ("", ("sm_87",), True),
        ("sm_90a", ("sm_87",), True),  # not known to be otherwise
    ],
)
def test_machine_code_and_gpus(arch: str, archs: tuple[str, ...], runs: bool) -> None:
    assert runs_on(arch, archs) is runs


@pytest.mark.parametrize(
    ("arch", "archs", "later"),
    [
        ("sm_87", ("sm_90",), True),
        ("sm_72", ("sm_87",), True),
        ("sm_87", ("sm_89",), True),
        ("sm_90", ("sm_110",), True),
        ("sm_87", ("sm_87",), False),
        ("sm_87", ("sm_86", "sm_75"), False),
        ("sm_90a", ("sm_100",), False),
        ("", ("sm_100",), False),
        ("sm_87", (), False),
    ],
)
def test_gpus_that_a_driver_may_compile_for(arch: str, archs: tuple[str, ...], later: bool) -> None:
    assert later_than(arch, archs) is later


def test_a_later_gpu_needs_ptx_and_a_driver_for_it(tmp_path: Path) -> None:
    later = {"gpu_archs": ("sm_90",), "nvidia_driver": "525.147.05"}
    needs = {**NEEDS, "driver": "11.4", "ptx": "11.8"}
    assert problems(tmp_path, CUBIN, PTX, gpu=needs, **later) == []
    needs["ptx"] = "12.2"
    (problem,) = problems(tmp_path, CUBIN, PTX, gpu=needs, **later)
    assert problem.text == (
        "machine code for sm_87, which drivers of CUDA 12.2 and newer compile again for later "
        "GPUs; the device's is sm_90, and the device has NVIDIA's driver 525.147.05, and that "
        "takes 535 at least"
    )
    assert "gpu.arch is sm_90" in problem.hint
    assert "newer driver" in problem.hint
    for files, gpu in (((CUBIN,), needs), ((CUBIN, PTX), {**needs, "ptx": ""})):
        (problem,) = problems(tmp_path, *files, gpu=gpu, **later)
        assert problem.text == "machine code for sm_87; the device's GPU is sm_90"
    (problem,) = problems(tmp_path, CUBIN, PTX, gpu=needs, gpu_archs=("sm_86",))
    assert problem.text == "machine code for sm_87; the device's GPU is sm_86"


def test_an_old_driver_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, CUBIN, jetson_linux="35.4.1", gpu_archs=("sm_87",))
    assert problem.file == CUBIN
    assert problem.text == (
        "needs a driver of CUDA 12.2 or newer; the device has Jetson Linux 35.4.1 (JetPack 5), "
        "whose driver is of CUDA 11.4"
    )
    assert "profile for JetPack 5" in problem.hint
    assert "--compute cpu" in problem.hint
    (problem,) = problems(tmp_path, CUBIN, jetson_linux="32.7.1")
    assert "profile" not in problem.hint  # there is none for JetPack 4


def test_another_gpu_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, CUBIN, gpu_archs=("sm_72",))
    assert problem.text == "machine code for sm_87; the device's GPU is sm_72"
    assert "gpu.arch is sm_72" in problem.hint
    both = problems(tmp_path, CUBIN, gpu_archs=("sm_72",), jetson_linux="35.4.1")
    assert ["12.2" in both[0].text, "sm_72" in both[1].text] == [True, True]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((CUBIN,), {}),
        ((CUBIN,), {"jetson_linux": "36.2.0", "gpu_archs": ("sm_87",)}),
        ((CUBIN, "model/cpu/graph.json"), {"jetson_linux": "35.4.1", "gpu_archs": ("sm_72",)}),
        ((OPENCL_TEXT,), {"jetson_linux": "35.4.1", "gpu_archs": ("sm_72",)}),
        ((), {"jetson_linux": "35.4.1", "gpu_archs": ("sm_72",)}),
    ],
)
def test_what_is_let_through(files: tuple[str, ...], said: dict[str, Any], tmp_path: Path) -> None:
    assert problems(tmp_path, *files, **said) == []


@pytest.mark.parametrize("gpu", [None, [], "cuda", {}, {"arch": 87, "driver": ["12.2"]}])
def test_a_plan_that_does_not_say_what_it_needs(gpu: object, tmp_path: Path) -> None:
    said = {"jetson_linux": "32.7.1", "gpu_archs": ("sm_53",)}
    assert problems(tmp_path, CUBIN, gpu=gpu, **said) == []


@pytest.mark.parametrize(
    ("file", "closed", "drivers", "node"),
    [
        (OPENCL_TEXT, RENDER, ("libRusticlOpenCL.so.1",), RENDER[0]),
        (OPENCL_TEXT, RENDER, ("libMesaOpenCL.so.1", "libigdrcl.so"), RENDER[0]),
        (OPENCL_TEXT, RENDER, ("libRusticlOpenCL.so.1", "libpocl.so.2"), ""),
        (OPENCL_TEXT, RENDER, ("libpocl.so.2",), ""),
        (OPENCL_TEXT, RENDER, (), ""),  # it may be a vendor's, without a loader
        (OPENCL_TEXT, ("/dev/dri/renderD128", "/dev/mali0"), (), "/dev/mali0"),
        (CUBIN, RENDER, (), ""),
        (CUBIN, RENDER, ("libRusticlOpenCL.so.1",), ""),
        (CUBIN, ("/dev/dri/renderD128", "/dev/nvmap"), (), "/dev/nvmap"),
    ],
)
def test_a_node_that_is_closed(
    file: str, closed: tuple[str, ...], drivers: tuple[str, ...], node: str, tmp_path: Path
) -> None:
    said = problems(tmp_path, file, gpu_closed=closed, opencl_drivers=drivers)
    assert [problem.text for problem in said] == (
        [f"runs on a GPU, whose {node} ann may not open"] if node else []
    )
