"""What is refused before anything is compiled."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import itertools
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.base.errors import ConfigError, ImageError
from edgepack.boards import get_board
from edgepack.compiler import compiled
from edgepack.flow import job as job_module
from edgepack.flow import verify as verify_module
from edgepack.flow.check import check_project
from edgepack.flow.golden import SenselessGoldenError
from edgepack.flow.job import Job, compile_task, make_job, package_job
from edgepack.flow.project import load_project
from edgepack.flow.reference import ExpectedClassError
from edgepack.preprocess.image import GrayImageError, NotAnImageError
from tests.onnx_models import Builder


def project(folder: Path, labels: int, **changes: str) -> Path:
    build = Builder()
    build.op("MatMul", "x", build.weight(8, 3), outputs=["scores"])
    model = build.model({"x": (1, 8)}, {"scores": (1, 3)})
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    (folder / "labels.txt").write_text("".join(f"class {i}\n" for i in range(labels)))
    values = {"model": "net.onnx", "labels": "labels.txt", "board": "rasp3b", **changes}
    path = folder / "edgepack.toml"
    path.write_text("[project]\n" + "".join(f'{k} = "{v}"\n' for k, v in values.items()))
    return path


@pytest.mark.parametrize("count", [2, 4])
def test_labels_must_be_as_many_as_the_classes(tmp_path: Path, count: int) -> None:
    with pytest.raises(ConfigError, match=rf"labels.txt: {count} labels, .*'scores' has 3 classes"):
        make_job(load_project(project(tmp_path, count)))
    assert make_job(load_project(project(tmp_path, 3))).labels == ("class 0", "class 1", "class 2")


def test_an_unknown_board_is_named_with_where_it_was_given(tmp_path: Path) -> None:
    path = project(tmp_path, 3, board="rapsberry")
    with pytest.raises(ConfigError, match=rf"{path}: unknown board: rapsberry"):
        make_job(load_project(path))
    with pytest.raises(ConfigError, match="--board: unknown board: rasp3") as caught:
        make_job(load_project(path, {"board": "rasp3"}))
    assert caught.value.hint == "perhaps you meant 'rasp3b'"


# ------------------------------------------------ the key of the cache

PACKAGE = Path(job_module.__file__).parents[1]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(load_project(project(tmp_path, 3)))


def test_everything_a_job_compiles_from_changes_the_key(job: Job) -> None:
    toolchain = job.toolchain
    compiler = toolchain.toolchain
    others = [
        replace(job, model=replace(job.model, sha256="0" * 64)),
        replace(job, model=replace(job.model, name="other")),
        replace(job, project=replace(job.project, shapes={"x": (1, 8)})),
        replace(job, project=replace(job.project, constants={"x": 1.0})),
        replace(job, project=replace(job.project, optimize="size")),
        replace(job, project=replace(job.project, precision="float16")),
        replace(job, project=replace(job.project, quantized="int8")),
        replace(job, board=get_board("pynq")),
        replace(job, toolchain=replace(toolchain, toolchain=replace(compiler, version="0.1"))),
    ]
    keys = [compile_task(each).key for each in (job, *others)]
    keys.append(compile_task(job, floats={"conv": "why"}).key)
    assert len(set(keys)) == len(keys)
    same = replace(job, board=replace(job.board, title="another name"))
    assert compile_task(same).key == keys[0]


@pytest.mark.parametrize("name", compiled._DEPENDENCIES)
def test_another_version_of_a_package_changes_the_key(
    job: Job, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before, version = compile_task(job).key, importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda asked: "0.1" if asked == name else version(asked)
    )
    assert compile_task(job).key != before


def test_a_change_in_any_module_of_the_compiler_changes_the_key(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiled, "_PACKAGE", Path(shutil.copytree(PACKAGE, tmp_path / "edgepack")))
    keys = {compile_task(job).key}
    for count, source in enumerate([*imported_by_the_compiler(), PACKAGE / "cpus.json"], start=2):
        copy = tmp_path / "edgepack" / source.relative_to(PACKAGE)
        text = copy.read_text()
        copy.write_text(text + "\n")
        keys.add(compile_task(job).key)
        assert len(keys) == count, f"{source.relative_to(PACKAGE)} is not in the key"
        copy.write_text(text)


def test_the_key_has_every_package_that_the_compiler_imports() -> None:
    names = {
        name.split(".")[0]
        for source in imported_by_the_compiler()
        for name in imports_of(source)
        if not name.startswith("edgepack")
    }
    distributions = importlib.metadata.packages_distributions()
    # Extras that are not installed here are called as their modules.
    found = {distributions.get(name, [name])[0] for name in names - sys.stdlib_module_names}
    # protobuf only parses the model's file.
    assert found - {"protobuf"} == {
        *compiled._DEPENDENCIES,
        *itertools.chain.from_iterable(compiled._READS_WITH.values()),
    }


@functools.cache
def imports_of(source: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return frozenset(found)


@functools.cache
def imported_by_the_compiler() -> list[Path]:
    """All modules of this package that compiling a loaded model may run."""
    left = list((PACKAGE / "compiler").rglob("*.py"))
    found = set[Path]()
    while left:
        source = left.pop()
        if source in found:
            continue
        found.add(source)
        for name in imports_of(source):
            path = PACKAGE.parent / name.replace(".", "/")
            modules = (path.with_suffix(".py"), path / "__init__.py")
            left += [m for m in modules if m.exists() and m != PACKAGE / "__init__.py"]
    return sorted(found)


# ------------------------------------------------ the photos that a board holds


@pytest.mark.parametrize(
    ("tables", "max_pixels"),
    [
        ("", (1024 << 20) // 2 // 12),  # rasp3b has 1 GiB
        ('[service]\nargs = ["--watch", "/in"]\n', (1024 << 20) // 2 // 12),
        ('[service]\nargs = ["--watch", "/in"]\nmemory_mb = 200\n', 12_500_000),
        ("[preprocess]\nmax_pixels = 7\n", 7),
    ],
)
def test_the_limit_of_pixels_is_what_the_board_or_the_service_holds(
    tmp_path: Path, tables: str, max_pixels: int
) -> None:
    build = Builder()
    build.op("GlobalAveragePool", "x", outputs=["y"])
    model = build.model({"x": (1, 3, 8, 8)}, {"y": (1, 3, 1, 1)})
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    if "[preprocess]" not in tables:
        tables += "[preprocess]\n"
    tables += "resize = { mode = 'exact', height = 8, width = 8 }\n"
    path = tmp_path / "edgepack.toml"
    path.write_text(f'[project]\nmodel = "net.onnx"\nboard = "rasp3b"\n{tables}')
    preprocess = make_job(load_project(path)).preprocess
    assert preprocess is not None
    assert preprocess.max_pixels == max_pixels


def nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        pytest.fail("something is compiled")

    for name in ("within", "build_runtime", "build_device_tool"):
        monkeypatch.setattr(job_module, name, never)


@pytest.mark.parametrize(
    ("pixels", "error"),
    [(np.zeros((9, 9), np.uint8), GrayImageError), (None, NotAnImageError)],
)
def test_a_photo_that_is_none_is_found_before_anything_is_compiled(
    pixels: np.ndarray | None, error: type[ImageError], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    nothing_compiles(monkeypatch)
    net = Builder()
    net.op("Relu", net.conv("x", 3, 8), outputs=["y"])
    net.save(tmp_path / "net.onnx", {"x": [1, 3, 8, 8]}, {"y": [1, 8, 8, 8]})
    photo = tmp_path / "photo.png"
    photo.write_text("no image")
    if pixels is not None:
        cv2.imwrite(str(photo), pixels)
    file = tmp_path / "edgepack.toml"
    file.write_text(
        '[project]\nmodel = "net.onnx"\ngolden_image = "photo.png"\nboard = "rasp3b"\n'
        '[preprocess]\nresize = { mode = "exact", height = 8, width = 8 }\n'
    )
    with pytest.raises(error, match=r"photo\.png"):
        package_job(make_job(load_project(file)), tmp_path / "dist")


@pytest.mark.parametrize("how", ["random", "tensor", "quantised"])
@pytest.mark.parametrize(
    ("operators", "why"),
    [
        (["Abs", "Neg", "Sqrt"], "output 'y' is not a number"),
        (["Abs", "Neg", "Relu"], "all values of 'y' are one"),
        # Neither NaN nor flat, but not of the input.
        (["Abs", "Neg", "Relu", "ramp"], "'y' are the same for all inputs"),
    ],
)
def test_a_golden_that_tells_nothing_is_found_before_anything_is_compiled(
    operators: list[str], why: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_compiles(monkeypatch)
    net = Builder()
    value = "x"
    if how == "quantised":
        steps = [net.const(np.float32(0.1)), net.const(np.int8(0))]
        value = net.op("DequantizeLinear", net.op("QuantizeLinear", value, *steps), *steps)
    for operator in operators:
        if operator == "ramp":
            value = net.op("Add", value, net.const(np.arange(8, dtype="float32")))
        else:
            value = net.op(operator, value)
    net.op("Identity", value, outputs=["y"])
    net.save(tmp_path / "net.onnx", {"x": [1, 8]}, {"y": [1, 8]})
    # Square roots of what is below 0: of all of it, so no 0 is among them.
    np.save(tmp_path / "x.npy", np.linspace(1, 2, 8, dtype="float32")[None])
    file = tmp_path / "edgepack.toml"
    golden = 'golden_input = ["x.npy"]\n' if how != "random" else ""
    file.write_text(f'[project]\nmodel = "net.onnx"\nboard = "rasp3b"\n{golden}')
    with pytest.raises(SenselessGoldenError, match=why) as refused:
        package_job(make_job(load_project(file)), tmp_path / "dist")
    checked = check_project(load_project(file))
    with pytest.raises(SenselessGoldenError, match=why):
        checked.check_expected()
    assert "golden_input" in str(refused.value.hint)
    # Who wants the bundle all the same gets it.
    check_project(load_project(file, {"verify": False})).check_expected()


def test_another_class_is_found_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_compiles(monkeypatch)
    net = Builder()
    pooled = net.op("Flatten", net.op("GlobalAveragePool", "x"))
    net.op("Identity", pooled, outputs=["y"])
    net.save(tmp_path / "net.onnx", {"x": [1, 3, 8, 8]}, {"y": [1, 3]})
    photo = np.zeros((8, 8, 3), np.uint8)
    photo[..., 2] = 200  # red, as OpenCV writes it
    photo[0, 0] = 90
    cv2.imwrite(str(tmp_path / "photo.png"), photo)
    file = tmp_path / "edgepack.toml"
    file.write_text(
        '[project]\nmodel = "net.onnx"\ngolden_image = "photo.png"\nboard = "rasp3b"\n'
        'expected_class = 2\n[preprocess]\nresize = { mode = "exact", height = 8, width = 8 }\n'
    )
    with pytest.raises(ExpectedClassError, match="class 0") as refused:
        package_job(make_job(load_project(file)), tmp_path / "dist")
    assert 'color = "bgr"' in str(refused.value.hint)


@pytest.mark.parametrize(
    ("flags", "cpu"), [("fma abm f16c bmi1 bmi2 movbe avx2", "haswell"), ("fma", "native")]
)
def test_what_is_only_compared_is_for_the_plainest_cpu_that_this_one_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, cpu: str
) -> None:
    class ReachedError(Exception):
        """The build for this machine has been asked for."""

    def compile_for(job: Job, **_: object) -> compiled.CompiledModel:
        asked.append(job.board.cpu)
        if job.board.is_local:
            raise ReachedError
        return real(job)

    asked: list[str] = []
    real = job_module.compile_job
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    monkeypatch.setattr(job_module, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(job_module, "compile_job", compile_for)
    # As a network that would take too long under an emulator.
    monkeypatch.setattr(verify_module, "_EMULATED_MACS", 0)
    with pytest.raises(ReachedError):
        package_job(make_job(load_project(project(tmp_path, 3))), tmp_path / "out")
    assert asked[-1] == cpu
