"""Programs that need no C library: linked with the kernels, and run with nothing around them."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgepack import formats
from edgepack.base.errors import UsageError
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP, GRAPH, LIBRARY
from edgepack.cli import main
from edgepack.deploy.chunks import chunks
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import Project, load_project
from edgepack.gate.elf import read_elf
from edgepack.native.app import build_runtime
from edgepack.native.linked_app import link_app
from edgepack.native.toolchain import select
from tests.functional.test_hardening import missing
from tests.guest_instructions import instructions
from tests.onnx_models import branches, one_conv
from tests.support import require_tool

BOARD = "rk3399"
PREPROCESS = """
[preprocess]
color = "rgb"
resize = { mode = "exact", height = 16, width = 16 }
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
"""


def make_project(folder: Path, model: Callable[[Path], Path]) -> Project:
    """A model of one layer, with a photo, or of a few."""
    folder.mkdir(parents=True)
    model(folder / "model.onnx")
    noise = np.random.RandomState(0).randint(0, 256, (40, 30, 3), np.uint8)
    Image.fromarray(noise).save(folder / "photo.png")
    photo = f'golden_image = "photo.png"\n{PREPROCESS}' if model is one_conv else ""
    (folder / "edgepack.toml").write_text(
        f'[project]\nname = "tiny"\nmodel = "model.onnx"\nboard = "{BOARD}"\n{photo}'
    )
    return load_project(folder / "edgepack.toml")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """One model, linked statically and dynamically, and another, statically."""
    folder = tmp_path_factory.mktemp("static")
    one, other = make_project(folder / "one", one_conv), make_project(folder / "two", branches)
    projects = {
        "static": replace(one, static=True),
        "dynamic": replace(one, static=False, verify=False),
        "other": replace(other, static=True, verify=False),
    }
    return {
        name: package_job(make_job(project), folder / name) for name, project in projects.items()
    }


def emulated(folder: Path, *words: str, flags: Sequence[str] = ()) -> dict[str, Any]:
    """What the app in `folder` says under the emulator, with no library to be found."""
    argv = [require_tool("qemu-aarch64-static"), *flags, folder / APP, "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_app_is_one_file_that_asks_for_nothing(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["static"]
    elf = read_elf(bundle.file(APP))
    assert (elf.interpreter, elf.needed, elf.needs, elf.undefined) == ("", (), (), ())
    assert elf.page_bytes == 64 << 10
    assert missing(bundle.file(APP)) == set()
    assert LIBRARY not in bundle.manifest.files
    assert bundle.manifest.versions.toolchain.endswith("(static, musl)")
    assert "licenses/musl" in bundle.manifest.files
    assert "licenses/glibc-start-files" not in bundle.manifest.files


@pytest.mark.parametrize("pages", [4096, 16384, 65536])
def test_it_runs_with_pages_of_every_size(bundles: dict[str, Bundle], pages: int) -> None:
    folder = bundles["static"].path
    # In a reserved range qemu-user looks for room itself. Elsewhere it asks the kernel, whose pages
    # are smaller than these, and says "out of memory" when that offers no aligned address thrice:
    # mmap_find_vma in its linux-user/mmap.c, 7.2.
    found = emulated(folder, "--golden", flags=("-p", str(pages), "-R", "0x8000000000"))
    assert found["expected"]["max_abs_error"] <= 1e-4 * found["expected"]["max_abs_reference"]


def test_it_runs_in_a_root_with_nothing_else(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(bundles["static"].path, root / "b")
    shutil.copy(require_tool("qemu-aarch64-static"), root / "qemu")
    enter = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot"]
    done = subprocess.run(
        [*enter, root, "/qemu", f"/b/{APP}", "--image", "/b/golden/image.png", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in root.iterdir()) == ["b", "qemu"]


def test_its_outputs_are_those_of_the_dynamic_build(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """To the byte, of a photo: decoding and preprocessing are the same, too."""
    outputs = []
    for name, flags in (("static", ()), ("dynamic", ("-L", "/usr/aarch64-linux-gnu"))):
        folder, out = bundles[name].path, tmp_path / f"{name}.npy"
        image = str(folder / "golden/image.png")
        emulated(folder, "--image", image, "--output", str(out), flags=flags)
        outputs.append(out.read_bytes())
    assert outputs[0] == outputs[1]


def test_it_serves_over_http(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """Sockets, signals and threads of musl: an answer is that of a single run, to the byte."""
    folder = bundles["static"].path
    out = tmp_path / "out.npy"
    model = emulated(folder, "--golden", "--output", str(out))["model"]
    qemu = require_tool("qemu-aarch64-static")
    with subprocess.Popen(
        [qemu, folder / APP, "--serve", f"unix:{tmp_path / 's'}"], stderr=subprocess.PIPE, text=True
    ) as served:
        try:
            assert served.stderr is not None
            assert served.stderr.readline() == f"serving {model} on unix:{tmp_path / 's'}\n"
            got = infer(tmp_path / "s", model, np.load(folder / "golden/input.npy").tobytes())
            served.terminate()
            assert served.wait(60) == 0
        finally:
            served.kill()
    assert got == np.load(out).tobytes()


def infer(path: Path, model: str, tensor: bytes) -> bytes:
    """The only output for the bytes of the only input, of a server on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.settimeout(60)
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(tensor)}\r\n"
        client.sendall(f"{head}Inference-Header-Content-Length: 0\r\n\r\n".encode() + tensor)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        body = answer.read()
        assert answer.status == 200, body
        return body[int(answer.getheader("Inference-Header-Content-Length", "0")) :]


def test_photos_cost_what_they_cost_the_dynamic_build(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """Decoding and resizing, in instructions: what a large photo takes beyond a small one."""
    noise = np.random.RandomState(0).randint(0, 256, (60, 80, 3), np.uint8)
    for name, factor in (("large", 10), ("small", 1)):
        image = Image.fromarray(noise).resize((80 * factor, 60 * factor))
        image.save(tmp_path / f"{name}.jpg", quality=90)
    costs = []
    for name in ("static", "dynamic"):
        large, small = (
            instructions(bundles[name], "--preprocess-only", "--image", tmp_path / f"{size}.jpg")
            for size in ("large", "small")
        )
        costs.append(large - small)
    assert costs[1] > 5_000_000
    assert costs[0] == pytest.approx(costs[1], rel=0.03)


def test_a_program_refuses_the_bundle_of_another_model(bundles: dict[str, Bundle]) -> None:
    """Kernels of one name may do other things there."""
    qemu = require_tool("qemu-aarch64-static")
    program = bundles["static"].file(APP)
    other = str(bundles["other"].path)
    done = subprocess.run(
        [qemu, program, "--bundle", other, "--golden"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert f"{GRAPH} is of another model than this program's kernels" in done.stderr
    assert "run the edgepack-run of the same bundle" in done.stderr


def test_an_update_of_the_model_leaves_the_app_in_front_alone(bundles: dict[str, Bundle]) -> None:
    """What the kernels of two models have in common is not sent again."""
    one, other = (bundles[name].file(APP).read_bytes() for name in ("static", "other"))
    known = {chunk.key for chunk in chunks(memoryview(one))}
    new = sum(chunk.size for chunk in chunks(memoryview(other)) if chunk.key not in known)
    assert len(other) > 2_000_000
    assert new < 0.1 * len(other)


def test_so_do_kernels_with_and_without_data(tmp_path: Path) -> None:
    """Which have a segment more, and so a larger header in front of all."""
    board = get_board(BOARD).without_libc()
    runtime = build_runtime(board, select(board, None).toolchain)
    graph = tmp_path / "graph.json"
    graph.write_text('{"calls":[{"kernel":"one"}]}')
    sources = {
        "without": "int __tvm_ffi_one(void) { return 0; }\n",
        "with": "static int count, first = 7;\n"
        "int __tvm_ffi_one(void) { return ++count + ++first; }\n",
    }
    programs = []
    for name, text in sources.items():
        source, code = tmp_path / f"{name}.c", tmp_path / name / "kernels.o"
        source.write_text(text)
        code.parent.mkdir()
        words = [*runtime.toolchain.cc, *runtime.flags, "-c", "-O1", "-fPIC", source, "-o", code]
        runtime.toolchain.run(words)
        link_app(runtime, code, graph, code.with_name("app"))
        programs.append(code.with_name("app").read_bytes())
    headers = [int.from_bytes(program[56:58], "little") for program in programs]  # e_phnum
    assert headers[1] == headers[0] + 1
    for one, other in (programs, programs[::-1]):
        known = {chunk.key for chunk in chunks(memoryview(one))}
        new = sum(chunk.size for chunk in chunks(memoryview(other)) if chunk.key not in known)
        assert new < 0.1 * len(other)


def test_equal_input_gives_equal_bytes(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    project = replace(make_project(tmp_path / "again", one_conv), static=True)
    again = package_job(make_job(project), tmp_path / "out")
    assert again.manifest == bundles["static"].manifest


def test_the_parts_of_an_android_app(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    board = get_board(BOARD)
    made = [
        formats.write_package("android-lib", bundles["static"], board, tmp_path / name).path
        for name in ("a", "b")
    ]
    assert made[0].read_bytes() == made[1].read_bytes()
    shutil.unpack_archive(made[0], tmp_path / "main", "zip")
    program = tmp_path / "main/jniLibs/arm64-v8a/libedgepack_run.so"
    program.chmod(0o755)
    assets = tmp_path / "main/assets/tiny"
    assert not (assets / "bin").exists()
    qemu = require_tool("qemu-aarch64-static")
    subprocess.run([qemu, program, "--bundle", assets, "--golden"], check=True)
    with pytest.raises(UsageError, match="needs glibc, which Android has not"):
        formats.write_package("android-lib", bundles["dynamic"], board, tmp_path)


def test_a_container_of_a_static_bundle_holds_nothing_else(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    package = formats.write_package("oci", bundles["static"], get_board(BOARD), tmp_path)
    shutil.unpack_archive(package.path, tmp_path / "image", "tar")
    blobs = tmp_path / "image/blobs/sha256"
    (image,) = json.loads((tmp_path / "image/index.json").read_text())["manifests"]
    layers = json.loads((blobs / image["digest"].removeprefix("sha256:")).read_text())["layers"]
    assert len(layers) == 3  # programs, weights, the rest
    for item in layers:
        with tarfile.open(blobs / item["digest"].removeprefix("sha256:")) as layer:
            assert {Path(name).parts[0] for name in layer.getnames()} == {"edgepack"}


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = make_project(tmp_path / "p", one_conv)
    toml = str(project.model.parent / "edgepack.toml")
    out = str(tmp_path / "dist")
    words = ["package", "--project", toml, "--no-verify", "--out", out, "--json"]
    assert main([*words, "--static"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert json.loads((Path(made["bundle"]) / "manifest.json").read_text())["schema"] == 3
    assert main([*words, "--static", "--toolchain", "gnu"]) == 2
    assert "cannot build for rk3399 without a C library" in capsys.readouterr().err
    assert main([*words, "--board", "pixel2", "--no-static"]) == 2
    assert "--static: pixel2 has no C library" in capsys.readouterr().err
