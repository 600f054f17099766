"""`edgepack sdk`: the library, and programs in C, C++ and Python that are built on it."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from PIL import Image

from edgepack import virtual
from edgepack.base.process import run
from edgepack.boards import Board, get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP
from edgepack.cli import main
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device import open_device
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.native import sdk as native
from edgepack.native.opencv import tool
from edgepack.native.sdk import SdkBuild, build_sdk, wheel_name, write_sdk
from edgepack.native.toolchain import Toolchain, select
from edgepack.virtual.rootfs import rootfs
from tests.app_targets import SOURCE
from tests.boards import login, own_boards, tar_of_missing, unpacked
from tests.functional.test_hardening import missing
from tests.onnx_models import Builder, gather
from tests.schemas import check_output
from tests.support import require_tool

SYMBOLS = (SOURCE.parent / "sdk" / "symbols.txt").read_text().split()
PROJECT = """
[project]
name = "tiny"
model = "model.onnx"
board = "{board}"
labels = "labels.txt"
golden_image = "photo.png"
verify = false

[preprocess]
color = "rgb"
resize = {{ mode = "exact", height = 16, width = 16 }}
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
"""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A board, the library for it, and how its programs run here."""

    board: Board
    toolchain: Toolchain
    build: SdkBuild
    folder: Path
    emulator: tuple[str, ...]


# Of the others, a bundle of each, and programs under an emulator: minutes.
BOARDS = ["local", pytest.param("rasp3b", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=BOARDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    board = get_board(request.param)
    toolchain = select(board).toolchain
    build = build_sdk(board, toolchain)
    folder = tmp_path_factory.mktemp("sdk") / "it"
    write_sdk(build, folder)
    emulator: tuple[str, ...] = ()
    if not board.is_local:
        name = {"armhf": "qemu-arm-static", "arm64": "qemu-aarch64-static"}[board.debian_arch]
        emulator = (require_tool(name), "-L", f"/usr/{board.triple}")
    return Target(board=board, toolchain=toolchain, build=build, folder=folder, emulator=emulator)


@pytest.fixture(scope="module")
def bundle(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A classifier of photos."""
    folder = tmp_path_factory.mktemp("tiny")
    b = Builder(3)
    features = b.op("GlobalAveragePool", b.op("Relu", b.conv("image", 3, 8)))
    b.op("Gemm", b.op("Flatten", features), b.weight(8, 4), b.weight(4), outputs=["scores"])
    b.save(folder / "model.onnx", {"image": [1, 3, 16, 16]}, {"scores": [1, 4]})
    for name, seed in (("photo", 0), ("other", 1)):
        noise = np.random.default_rng(seed).integers(0, 256, (40, 30, 3), np.uint8)
        noise[..., seed] //= 2
        Image.fromarray(noise).save(folder / f"{name}.png")
    (folder / "labels.txt").write_text("ant\nbee\ncat\nd\N{LATIN SMALL LETTER O WITH STROKE}g\n")
    (folder / "edgepack.toml").write_text(PROJECT.format(board=target.board.name))
    bundle = package_job(make_job(load_project(folder / "edgepack.toml")), folder / "dist")
    shutil.copy(folder / "photo.png", bundle.path.parent)
    shutil.copy(folder / "other.png", bundle.path.parent)
    return bundle


@pytest.fixture(scope="module")
def photos(bundle: Bundle) -> tuple[Path, Path]:
    return bundle.path.parent / "photo.png", bundle.path.parent / "other.png"


@pytest.fixture(scope="module")
def seen(target: Target, bundle: Bundle, photos: tuple[Path, Path]) -> tuple[Any, ...]:
    """What edgepack-run says of each photo."""
    found = []
    for photo in photos:
        words: list[str | Path] = [*target.emulator, bundle.file(APP), "--json"]
        words += ["--image", photo, "--threads", "1"]
        found.append(json.loads(run(words).stdout)["top"])
    assert found[0] != found[1]
    assert len(found[0]) == 4
    return tuple(found)


# ------------------------------------------------ what is in it


def test_the_interface_is_the_list_that_is_committed(target: Target) -> None:
    nm = require_tool("nm")
    said = run([nm, "-D", "--defined-only", target.build.shared]).stdout.splitlines()
    names = [line.split()[-1] for line in said]
    # The versions themselves are absolute symbols to some linkers.
    assert sorted(name for name in names if "@" in name) == sorted(SYMBOLS)
    assert {name for name in names if "@" not in name} <= {
        *("EDGEPACK_1", "EDGEPACK_2", "EDGEPACK_KERNELS_1")
    }
    said = run([nm, "--extern-only", "--defined-only", target.build.static]).stdout.splitlines()
    defined = {words[2] for line in said if len(words := line.split()) == 3}
    assert defined == {symbol.partition("@")[0] for symbol in SYMBOLS}


def test_every_function_of_the_header_is_in_the_list() -> None:
    header = (SOURCE.parent / "sdk" / "include" / "edgepack" / "edgepack.h").read_text()
    compiler = require_tool("gcc")
    words = [compiler, "-E", "-P", "-DEDGEPACK_EXPORT=EXPORTED", "-x", "c", "-"]
    text = run(words, input=header.encode()).stdout
    declared = {
        part.partition("(")[0].split()[-1].lstrip("*") for part in text.split("EXPORTED")[1:]
    }
    assert declared == {
        symbol.partition("@@")[0] for symbol in SYMBOLS if symbol.startswith("edgepack_")
    }


def test_the_shared_library_needs_libc_only_and_is_hardened(target: Target) -> None:
    with target.build.shared.open("rb") as file:
        elf = ELFFile(file)
        dynamic = elf.get_section_by_name(".dynamic")
        needed = {tag.needed.split(".so")[0] for tag in dynamic.iter_tags("DT_NEEDED")}
        assert [tag.soname for tag in dynamic.iter_tags("DT_SONAME")] == [native.SONAME]
        assert elf.get_section_by_name(".symtab") is None
    loader = Path(target.board.target.loader).name.split(".so")[0]
    assert needed <= {"libc", "libm", "libdl", "libpthread", loader}
    assert missing(target.build.shared) <= {"a position-independent program"}
    content = target.build.shared.read_bytes() + target.build.static.read_bytes()
    for folder in (Path.home(), SOURCE):
        assert os.fsencode(folder) not in content


def test_the_wheel_is_the_same_again_and_what_pip_takes(target: Target, tmp_path: Path) -> None:
    wheel = target.folder / "python" / wheel_name(target.build)
    assert wheel.read_bytes() == native.make_board_wheel(target.build)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith("/RECORD"))
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert sorted(row[0] for row in rows) == sorted(names)
        for name, digest, size in rows:
            if name != record:
                data = archive.read(name)
                expected = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={expected}", len(data))
        library = archive.read(f"edgepack_runtime/{native.SONAME}")
        assert library == target.build.shared.read_bytes()
        assert any(name.endswith("/licenses/opencv") for name in names)
    if target.board.is_local:
        assert platform.machine() in wheel.name
        installed(target, tmp_path)


def installed(target: Target, folder: Path) -> Path:
    """The wheel, as pip installs it into a folder that Python looks into."""
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    run(
        [*pip, "--disable-pip-version-check", "--target", site, *target.folder.glob("python/*.whl")]
    )
    return site


# ------------------------------------------------ programs


def lines_of(target: Target, program: Path, *words: str | Path) -> list[str]:
    """What a program says; its library is found in the folder."""
    done = subprocess.run(
        [*target.emulator, program, *words],
        env={"LD_LIBRARY_PATH": str(target.folder / "lib"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("package", ["edgepack", "edgepack-static"])
def test_the_example_in_c_with_pkg_config(
    target: Target,
    bundle: Bundle,
    photos: tuple[Path, Path],
    seen: tuple[Any, ...],
    package: str,
    tmp_path: Path,
) -> None:
    require_tool("pkg-config")
    source = target.folder / "share" / "edgepack" / "examples" / "embed-c"
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    compiler = "gcc" if target.board.is_local else f"{target.board.triple}-gcc"
    flags = "-O2 -std=c99 -Wall -Wextra -Wpedantic -Wconversion -Werror"
    chosen = [f"PACKAGE={package}", f"CC={require_tool(compiler)}", f"CFLAGS={flags}"]
    run(
        [require_tool("make"), "-C", tmp_path, *chosen],
        env={"PKG_CONFIG_PATH": str(target.folder / "lib" / "pkgconfig")},
    )
    program = tmp_path / "embed-c"
    with program.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    assert (native.SONAME in needed) == (package == "edgepack")
    tensor, found = lines_of(target, program, bundle.path, photos[0])
    assert tensor == "scores: float32 (1, 4)"
    assert json.loads(found) == {"top": seen[0]}

    done = subprocess.run(
        [*target.emulator, program, tmp_path],
        env={"LD_LIBRARY_PATH": str(target.folder / "lib")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot read {tmp_path}/manifest.json: No such file")


def test_a_program_may_have_functions_of_the_same_names(
    target: Target, bundle: Bundle, tmp_path: Path
) -> None:
    """Those of zlib, libpng, libjpeg and a C++ library are within both libraries."""
    names = ("deflate", "inflate", "png_read_info", "jpeg_read_header", "_Znwm", "_Znwj")
    own = "".join(f"int {name}(void) {{ return {i}; }}\n" for i, name in enumerate(names))
    example = target.folder / "share" / "edgepack" / "examples" / "embed-c" / "main.c"
    (tmp_path / "main.c").write_text(example.read_text() + own)
    compiler = "gcc" if target.board.is_local else f"{target.board.triple}-gcc"
    ask = [require_tool("pkg-config"), "--cflags", "--libs"]
    for package in ("edgepack", "edgepack-static"):
        env = {"PKG_CONFIG_PATH": str(target.folder / "lib" / "pkgconfig")}
        flags = run([*ask, package], env=env).stdout.split()
        # Seen by the library, as far as it looks.
        words: list[str | Path] = [require_tool(compiler), "-w", "-fno-builtin", "-rdynamic"]
        program = tmp_path / package
        run([*words, "-o", program, tmp_path / "main.c", *flags])
        assert lines_of(target, program, bundle.path)[0] == "scores: float32 (1, 4)"


def test_the_example_in_cpp_with_cmake(
    target: Target,
    bundle: Bundle,
    photos: tuple[Path, Path],
    seen: tuple[Any, ...],
    tmp_path: Path,
) -> None:
    source = target.folder / "share" / "edgepack" / "examples" / "embed-cpp"
    compiler = "g++" if target.board.is_local else f"{target.board.triple}-g++"
    run(
        [
            *(tool("cmake"), "-S", source, "-B", tmp_path, "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DCMAKE_PREFIX_PATH={target.folder}",
            f"-DCMAKE_CXX_COMPILER={require_tool(compiler)}",
            "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wconversion -Werror",
            *([] if target.board.is_local else ["-DCMAKE_SYSTEM_NAME=Linux"]),
        ]
    )
    run([tool("cmake"), "--build", tmp_path])
    # Three threads on one model.
    given = [photos[0], photos[1], photos[0]]
    lines = lines_of(target, tmp_path / "embed-cpp", bundle.path, *given)
    for photo, line, top in zip(given, lines, [seen[0], seen[1], seen[0]], strict=True):
        assert line.startswith(f"{photo}: ")
        assert json.loads(line.removeprefix(f"{photo}: ")) == {"top": top}


def test_the_guide_builds_and_its_programs_are_the_headers_words(
    target: Target, tmp_path: Path
) -> None:
    guide = (SOURCE.parents[1] / "docs" / "guides" / "embedding.md").read_text()
    (commands,) = re.findall(r"## Building\n\n```\n(.*?)```", guide, re.DOTALL)
    # The wheel is installed above, into a folder.
    lines = [line for line in commands.splitlines() if not line.startswith("pip ")]
    assert len(lines) == 2
    shutil.copytree(target.folder, tmp_path / "sdk", symlinks=True)
    make, cmake = lines
    local = target.board.is_local
    run(["sh", "-c", make.replace("arm-linux-gnueabihf-", "") if local else make], cwd=tmp_path)
    if local:
        run(["sh", "-c", cmake], cwd=tmp_path)
    assert (tmp_path / "sdk" / "share" / "edgepack" / "examples" / "embed-c" / "embed-c").exists()

    header = (target.folder / "include" / "edgepack" / "edgepack.h").read_text()
    (example,) = re.findall(r"```c\n(.*?)```", guide, re.DOTALL)
    assert "".join(f" *     {line}\n" for line in example.splitlines()) in header
    header = (target.folder / "include" / "edgepack" / "edgepack.hpp").read_text()
    (example,) = re.findall(r"```cpp\n(.*?)```", guide, re.DOTALL)
    assert "".join(f"//     {line}\n" for line in example.splitlines()) in header


@pytest.mark.slow
@pytest.mark.parametrize("target", ["rasp3b", "rasp3b-64"], indirect=True)
def test_the_examples_on_a_virtual_board(
    target: Target,
    bundle: Bundle,
    photos: tuple[Path, Path],
    seen: tuple[Any, ...],
    tmp_path: Path,
) -> None:
    """With zig, for the board's glibc is older than that of Debian's compiler; and Debian's Python
    of the board's own architecture, without numpy.
    """
    assert target.board.virtual is not None
    suite = target.board.virtual.suite
    arch = target.board.debian_arch
    python = unpacked("python3", ["python3"], suite=suite, arch=arch)
    archive = tmp_path / "python.tar"
    tar_of_missing(python, rootfs(suite, arch), archive)
    site = tmp_path / "site"
    with zipfile.ZipFile(target.folder / "python" / wheel_name(target.build)) as wheel:
        wheel.extractall(site)
    run(["tar", "-C", site, "-cf", tmp_path / "site.tar", "."])
    examples = target.folder / "share" / "edgepack" / "examples"
    programs = []
    for static in (False, True):
        kind = "-static" if static else ""
        ask = [require_tool("pkg-config"), "--cflags", "--libs", f"edgepack{kind}"]
        env = {"PKG_CONFIG_PATH": str(target.folder / "lib" / "pkgconfig")}
        flags = run(ask, env=env).stdout.split()
        for compiler, source in (
            (target.toolchain.cc, "embed-c/main.c"),
            ((*target.toolchain.cxx, "-std=c++17"), "embed-cpp/main.cc"),
        ):
            program = tmp_path / f"{source.partition('/')[0]}{kind}"
            # As edgepack-run is linked: zig has that C++ library already.
            words: list[str | Path] = [*compiler, *target.board.runtime_flags["zig"]]
            words += ["-O2", "-s", "-pie", "-fPIC", "-o", program, examples / source]
            target.toolchain.run([*words, *flags, "-lpthread"])
            programs.append(program)
    with own_boards():
        device = open_device("virtual", target.board)
        try:
            deploy_bundle(bundle, device, "edgepack/tiny")
            library = target.folder / "lib" / native.SONAME
            for path in (*programs, *photos, library):
                device.put(path, path.name)
            for program in programs:
                device.run(f"chmod +x {program.name}")
                said = device.run(
                    f"LD_LIBRARY_PATH=$PWD ./{program.name} edgepack/tiny/current {photos[0].name}"
                ).stdout.splitlines()[-1]
                assert json.loads(said[said.index("{") :]) == {"top": seen[0]}
            (board,) = virtual.list_running()
            root = login(board, "root")
            root.put(archive, "/root/python.tar")
            root.run("tar -C / -xf /root/python.tar")
            root.close()
            device.put(tmp_path / "site.tar", "site.tar")
            device.put(examples / "embed-python" / "name.py", "name.py")
            device.run("mkdir site && tar -C site -xf site.tar")
            words = f"name.py edgepack/tiny/current {photos[0].name} {photos[1].name}"
            interpreter = "$(ls /usr/bin/python3.? /usr/bin/python3.?? 2> /dev/null)"
            start = f"PYTHONPATH=site LC_ALL=C.UTF-8 {interpreter} -W error"
            said = device.run(f"{start} {words}").stdout
            assert said.splitlines() == [
                f"{photo.name}: { ({'top': top}) }" for photo, top in zip(photos, seen, strict=True)
            ]
        finally:
            device.close()


def test_another_pointer_size_is_no_match(target: Target, tmp_path: Path) -> None:
    """A cross build that forgot its prefix finds no library of the wrong machine."""
    version = target.folder / "lib" / "cmake" / "edgepack" / "edgepackConfigVersion.cmake"
    script = tmp_path / "ask.cmake"
    script.write_text(
        f'include("{version}")\nmessage("${{PACKAGE_VERSION_COMPATIBLE}}'
        ' ${PACKAGE_VERSION_EXACT} ${PACKAGE_VERSION_UNSUITABLE}")\n'
    )

    def ask(**variables: object) -> str:
        words = [f"-D{name}={value}" for name, value in variables.items()]
        return run([tool("cmake"), *words, "-P", script]).stderr.strip()

    own = native._POINTER_BYTES[target.board.triple.partition("-")[0]]
    find = {"PACKAGE_FIND_VERSION": "0.1.0", "PACKAGE_FIND_VERSION_MAJOR": 0}
    assert ask(CMAKE_SIZEOF_VOID_P=own, **find) == "TRUE TRUE"
    assert ask(CMAKE_SIZEOF_VOID_P=12 - own, **find).endswith("TRUE")
    find = {"PACKAGE_FIND_VERSION": "1.0", "PACKAGE_FIND_VERSION_MAJOR": 1}
    assert ask(CMAKE_SIZEOF_VOID_P=own, **find) == "FALSE"


# ------------------------------------------------ Python


@pytest.fixture(scope="module")
def python(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package; of this machine alone: there is no ARM Python here."""
    if not target.board.is_local:
        pytest.skip("Python for this board is not on this machine")
    return installed(target, tmp_path_factory.mktemp("python"))


def said_by(python: Path, script: str, *words: str | Path) -> list[str]:
    """What a script prints that finds the package."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *words],
        env={"PYTHONPATH": str(python), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_in_python(
    target: Target, python: Path, bundle: Bundle, photos: tuple[Path, Path], seen: tuple[Any, ...]
) -> None:
    example = target.folder / "share" / "edgepack" / "examples" / "embed-python" / "name.py"
    lines = said_by(python, example.read_text(), bundle.path, *photos)
    assert lines == [
        f"{photo}: { ({'top': top}) }" for photo, top in zip(photos, seen, strict=True)
    ]


def test_tensors_without_numpy_and_with_it(
    python: Path, bundle: Bundle, photos: tuple[Path, Path]
) -> None:
    script = """
import sys
from edgepack_runtime import EdgepackError, Model

bundle, photo = sys.argv[1:]
golden = bundle + "/golden/input.npy"
with open(golden, "rb") as file:
    data = file.read()[-3 * 16 * 16 * 4:]
model = Model(bundle)
print(model.name, model.inputs[0], model.outputs[0], model.labels)
session = model.session()
session.set_input("image", data)
session.run()
first = session.output().tolist()
session.input("image").data[:] = data
session.run()
print(session.output().tolist() == first, "numpy" in sys.modules)

import numpy as np
expected = np.load(bundle + "/golden/output.npy")
print(bool(np.abs(np.array(first) - expected).max() <= 1e-4 * np.abs(expected).max()))
session.set_input(0, np.load(golden))
inside = np.asarray(session.input(0))
print(inside.shape, inside.dtype, np.array_equal(inside, np.load(golden)))
inside[...] = 0
print(bytes(session.input(0).data) == bytes(inside.nbytes))
inside[...] = np.load(golden)
session.run()
output = np.asarray(session.output())
print(output.flatten().tolist() == first, output.flags.owndata)
from PIL import Image
pixels = np.asarray(Image.open(photo))
for order, image in (("rgb", pixels), ("bgr", np.ascontiguousarray(pixels[..., ::-1]))):
    session.set_pixels(image, order)
    session.run()
    by_pixels = session.results()
    session.set_image(photo)
    session.run()
    print(by_pixels == session.results())
with open(photo, "rb") as file:
    session.set_image(file.read())
session.run()
print(by_pixels == session.results())

kept = np.asarray(session.output())
was = kept.tolist()
session.close()
model.close()
print(kept.tolist() == was)
"""
    lines = said_by(python, script, bundle.path, photos[0])
    assert lines[0] == (
        "model TensorInfo(name='image', dtype='float32', shape=(1, 3, 16, 16), nbytes=3072, "
        "bound=None) TensorInfo(name='scores', dtype='float32', shape=(1, 4), nbytes=16, "
        "bound=None) ['ant', 'bee', 'cat', 'døg']"
    )
    assert lines[1:] == [
        "True False",
        "True",
        "(1, 3, 16, 16) float32 True",
        "True",
        "True False",
        *["True"] * 4,
    ]


def test_weights_are_mapped_once_and_threads_give_the_same_bits(
    python: Path, bundle: Bundle
) -> None:
    script = """
import sys, threading
import numpy as np
from edgepack_runtime import Model

def mappings():
    with open("/proc/self/maps") as maps:
        return sum("params.bin" in line for line in maps)

model = Model(sys.argv[1])
inputs = np.random.default_rng(0).normal(size=(4, 50, 1, 3, 16, 16)).astype(np.float32)

def outputs(session, images):
    found = []
    for image in images:
        session.set_input(0, image)
        session.run()
        found.append(bytes(session.output().data))
    return found

with model.session() as alone:
    expected = [outputs(alone, images) for images in inputs]
sessions = [model.session(threads) for threads in (1, 1, 2, 3)]
again = Model(sys.argv[1] + "/../" + sys.argv[1].rpartition("/")[2])
print(mappings())
again.close()
print(mappings())
found = [None] * len(sessions)

def work(i):
    found[i] = outputs(sessions[i], inputs[i])

threads = [threading.Thread(target=work, args=(i,)) for i in range(len(sessions))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found == expected, len({output for images in expected for output in images}))
model.close()
print(mappings())
sessions.clear()
print(mappings())
"""
    # A model that is opened twice is mapped twice; sessions map nothing.
    assert said_by(python, script, bundle.path) == ["2", "1", "True 200", "1", "0"]


def test_states_in_python(target: Target, python: Path, tmp_path: Path) -> None:
    b = Builder()
    b.op("Add", "x", "sum", outputs=["total"])
    b.save(tmp_path / "model.onnx", {"x": [3], "sum": [3]}, {"total": [3]})
    flags = {
        "model": tmp_path / "model.onnx",
        "board": target.board.name,
        "states": {"sum": "total"},
        "verify": False,
    }
    made = package_job(make_job(load_project(None, flags)), tmp_path / "dist")
    script = """
import sys
from array import array
from edgepack_runtime import Model

model = Model(sys.argv[1])
session, other = model.session(), model.session()

def run(one):
    one.set_input("x", array("f", [1, 2, 3]))
    one.run()
    print(one.output().tolist())

run(session)
run(session)
run(other)
session.set_input("sum", array("f", [10, 10, 10]))
run(session)
session.reset()
run(session)
"""
    one = "[1.0, 2.0, 3.0]"
    due = [one, "[2.0, 4.0, 6.0]", one, "[11.0, 12.0, 13.0]", one]
    assert said_by(python, script, made.path) == due


def test_a_position_that_is_none_in_python(target: Target, python: Path, tmp_path: Path) -> None:
    flags = {"model": gather(tmp_path), "board": target.board.name, "verify": False}
    made = package_job(make_job(load_project(None, flags)), tmp_path / "dist")
    script = """
import sys
from array import array
from edgepack_runtime import EdgepackError, Model

model = Model(sys.argv[1])
session = model.session()
session.set_input("rows", array("f", range(24)))
for ids in ([3, 0], [1, 2**40], [1, -5], [-1, -4]):
    session.set_input("ids", array("q", ids))
    try:
        session.run()
        print(session.output().tolist()[6])
    except EdgepackError as error:
        print(error.status.name, error.message)
"""
    what = "BAD_POSITION Gather 'pick': its input 'indices' ('ids') has"
    assert said_by(python, script, made.path) == [
        "0.0",
        f"{what} {2**40} at [1], which is not between -4 and 3",
        f"{what} -5 at [1], which is not between -4 and 3",
        "0.0",
    ]


def test_mistakes_in_python(python: Path, bundle: Bundle) -> None:
    script = """
import sys
import numpy as np
from edgepack_runtime import EdgepackError, Model

def refused(call, *arguments):
    try:
        call(*arguments)
    except EdgepackError as error:
        print(error.status.name, error.message)

refused(Model, "/nowhere")
model = Model(sys.argv[1])
refused(model.session, -1)
session = model.session()
zeros = np.zeros((1, 3, 16, 16), np.float32)
refused(session.set_input, 0, b"123")
refused(session.set_input, 0, zeros[0])
refused(session.set_input, 0, zeros.astype(np.float64))
refused(session.set_input, 0, np.asfortranarray(np.zeros((1, 3, 16, 16), np.float32)))
refused(session.set_input, 1, zeros)
refused(session.set_input, "picture", zeros)
refused(session.output, 7)
refused(session.set_image, b"GIF89a")
refused(session.set_pixels, zeros)
refused(session.set_pixels, np.zeros((4, 4), np.uint8))
refused(session.set_pixels, np.zeros((4, 4), np.uint8), "yuv")
session.close()
session.close()
refused(session.run)
refused(session.output)
model.close()
refused(model.session)
"""
    shape = "(1, 3, 16, 16)"
    assert said_by(python, script, bundle.path) == [
        "BAD_BUNDLE there is no bundle in /nowhere",
        "INVALID_ARGUMENT threads is -1: 0 to 256",
        f"INVALID_ARGUMENT input 'image' is float32 {shape}, 3072 bytes, not 3",
        f"WRONG_INPUT input 'image' is float32 {shape}, not <f4 (3, 16, 16)",
        f"WRONG_INPUT input 'image' is float32 {shape}, not <f8 {shape}",
        "INVALID_ARGUMENT the array is not packed in C order",
        "INVALID_ARGUMENT there is no input 1: the model has 1",
        "INVALID_ARGUMENT there is no input 'picture': image",
        "INVALID_ARGUMENT there is no output 7: the model has 1",
        "BAD_IMAGE not a JPEG or PNG image: (in memory)",
        "INVALID_ARGUMENT pixels are <f4, not uint8",
        "INVALID_ARGUMENT pixels have shape (4, 4): (rgb) is another one",
        "INVALID_ARGUMENT order is 'yuv', none of rgb, bgr, gray",
        "INVALID_HANDLE the session was closed",
        "INVALID_HANDLE the session was closed",
        "INVALID_HANDLE the model was closed",
    ]


# ------------------------------------------------ the command


def test_the_command(target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sdk"
    words = ["sdk", "--board", target.board.name, "--out", str(out)]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    check_output("sdk", said)
    assert (said["triple"], said["glibc"]) == (target.board.triple, target.toolchain.glibc)
    for key in ("shared", "static", "wheel"):
        assert Path(said[key]).is_file()
    assert said["shared_bytes"] == target.build.shared.stat().st_size

    def files(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    assert files(out) == files(target.folder)
    assert main(words) == 2
    assert f"--out: {out} is not empty" in capsys.readouterr().err
    assert files(out) == files(target.folder)
    assert main(["sdk", "--board", "alpine-armv7", "--out", str(tmp_path / "no")]) == 2
    assert "alpine-armv7 runs static programs, which load no library" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
