"""MobileNetV2 on every board without a C library, and beside the same for boards with glibc."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack import virtual
from edgepack.boards import get_board, load_boards
from edgepack.bundle.manifest import APP
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device import LocalDevice
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import Project, load_project
from edgepack.gate.elf import read_elf
from tests.boards import login, own_boards
from tests.example import load_build
from tests.guest_instructions import instructions

pytestmark = pytest.mark.slow

PROFILES = [board.name for board in load_boards().values() if board.libc == "none"]
BOTH = ("rk3399", "pynq")
"""Boards with glibc, of 64 and of 32 bits."""


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    with own_boards():
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The example, not compared with onnxruntime here: the boards do that."""
    toml = load_build().build(tmp_path_factory.mktemp("example"))
    return replace(load_project(toml), verify=False)


def test_the_profiles_of_the_issue_are_there() -> None:
    assert set(PROFILES) == {
        *("pixel2", "mate10", "mate10pro", "p20", "p20pro", "android-arm64"),
        *("alpine-armv7", "alpine-aarch64", "openwrt-armv7"),
    }


@pytest.mark.parametrize("name", PROFILES)
def test_it_sees_the_cat(project: Project, name: str, tmp_path: Path) -> None:
    bundle = package_job(make_job(replace(project, board=name)), tmp_path)
    board = virtual.up(get_board(name), kind="light")
    device = login(board, "pi")
    try:
        report = deploy_bundle(bundle, device, "edgepack/mobilenetv2")
    finally:
        device.close()
        virtual.down(name)
    assert report.facts.libc == "none"
    top = report.smoke.top[0]
    assert (top["index"], top["label"]) == (285, "Egyptian cat")
    assert report.smoke.max_abs_error <= 1e-4 * report.smoke.max_abs_reference
    print(f"\n{name}: {top['score']:.3f}, error {report.smoke.max_abs_error:.1e}")


@pytest.mark.parametrize("name", BOTH)
def test_the_same_bytes_for_as_many_instructions(
    project: Project, name: str, tmp_path: Path
) -> None:
    counts, outputs = [], []
    for static in (True, False):
        job = make_job(replace(project, board=name, static=static))
        bundle = package_job(job, tmp_path / str(static))
        photo = bundle.file(str(bundle.golden_image))
        out = tmp_path / f"{static}.npy"
        words = ("--image", photo, "--output", out, "--warmup", "0", "--bench")
        once, twice = (instructions(bundle, *words, str(runs)) for runs in (1, 2))
        counts.append(twice - once)
        outputs.append(out.read_bytes())
        print(f"\n{name}: {twice - once:,} instructions, app {bundle.file(APP).stat().st_size:,}")
    assert outputs[0] == outputs[1]
    assert counts[0] == pytest.approx(counts[1], rel=0.005)


def test_this_machine_without_its_library(project: Project, tmp_path: Path) -> None:
    """x86-64: the same form, run here."""
    job = make_job(replace(project, board="local", static=True))
    bundle = package_job(job, tmp_path / "bundle")
    app = read_elf(bundle.file(APP))
    assert (app.interpreter, app.needed, app.undefined) == ("", (), ())
    (tmp_path / "home").mkdir()
    report = deploy_bundle(bundle, LocalDevice(tmp_path / "home"), "model")
    top = report.smoke.top[0]
    assert (top["index"], top["label"]) == (285, "Egyptian cat")
    print(f"\nthis machine: {top['score']:.3f}, error {report.smoke.max_abs_error:.1e}")
