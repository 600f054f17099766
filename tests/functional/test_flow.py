"""The main job, whole: a trained model on virtual boards, over SSH, with real photos."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from PIL import Image

import edgepack
from edgepack import virtual
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
from edgepack.bundle.manifest import GRAPH, PARAMS
from edgepack.cli import main
from edgepack.deploy.chunks import chunks
from edgepack.deploy.deploy import Report, deploy_bundle
from edgepack.deploy.remote_app import RunRequest, run_on_device
from edgepack.deploy.remote_tool import call
from edgepack.deploy.transfer import Need, frames
from edgepack.device import Device, open_device, open_virtual
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import Project, load_project
from edgepack.flow.reference import compare, run_reference
from edgepack.gate.gate import GateError
from edgepack.virtual.errors import MirrorChangingError
from tests.boards import own_boards
from tests.example import load_build
from tests.schemas import check_output

ROOT = "edgepack/mobilenetv2"
CAT, ESPRESSO = 285, 967
BOARDS = ("local", "rasp3b", "pynq", "rk3399", "ultra96")


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    with own_boards():
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return load_project(load_build().build(tmp_path_factory.mktemp("example")))


@pytest.fixture(scope="module")
def bundle_for(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Bundle]:
    made: dict[str, Bundle] = {}

    def make(board: str) -> Bundle:
        if board not in made:
            # The command line's test has its bundle compared: see also test_verify.
            job = make_job(replace(project, board=board, verify=board == "local"))
            made[board] = package_job(job, tmp_path_factory.mktemp(board))
        return made[board]

    return make


@pytest.fixture
def local_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for board `local`, which deploys below the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def fresh_board(request: pytest.FixtureRequest) -> Iterator[Callable[..., Device]]:
    """Starts a virtual board of this test's own and connects to it."""
    names: list[str] = []
    devices: list[Device] = []

    def start(board: str, **options: Any) -> Device:
        name = f"flow-{board}-{options.get('suite') or 'own'}-{options.get('kind', 'light')}"
        names.append(name)
        device = open_virtual(virtual.up(get_board(board), name=name, **options))
        devices.append(device)
        return device

    yield start
    for device in devices:
        device.close()
    for name in names:
        virtual.down(name)


def check_smoke(report: Report) -> None:
    assert report.smoke_fresh
    assert report.smoke.max_abs_error <= 1e-4 * report.smoke.max_abs_reference
    assert report.smoke.max_abs_reference > 1
    assert report.smoke.top[0]["index"] == CAT
    assert report.smoke.top[0]["label"] == "Egyptian cat"


@pytest.mark.parametrize("board", BOARDS)
def test_outputs_on_every_board_equal_the_reference(
    board: str,
    project: Project,
    bundle_for: Callable[[str], Bundle],
    fresh_board: Callable[..., Device],
    local_home: Path,
    tmp_path: Path,
) -> None:
    profile = get_board(board)
    device = open_device("local", profile) if profile.is_local else fresh_board(board)
    report = deploy_bundle(bundle_for(board), device, ROOT)
    assert report.outcome == "deployed"
    check_smoke(report)

    # The second photo, and the comparison made here, not by the app itself.
    photo = project.model.parent / "coffee.png"
    output = tmp_path / "logits.npy"
    answer = run_on_device(device, ROOT, RunRequest(image=photo, outputs=(output,)))
    assert answer["top"][0]["index"] == ESPRESSO
    assert project.preprocess is not None
    tensor = project.preprocess.load(photo)
    (reference,) = run_reference(project.model, {}, [tensor])
    found = compare(np.load(output), reference, 1e-4)
    assert found.ok, found


def test_unchanged_redeploy_sends_nothing_and_one_layer_only_its_chunks(
    project: Project,
    bundle_for: Callable[[str], Bundle],
    fresh_board: Callable[..., Device],
    tmp_path: Path,
) -> None:
    device = fresh_board("rasp3b")
    first = deploy_bundle(bundle_for("rasp3b"), device, ROOT)
    params = bundle_for("rasp3b").manifest.files[PARAMS].size
    assert first.model_bytes_sent > 10e6
    again = deploy_bundle(bundle_for("rasp3b"), device, ROOT)
    assert (again.outcome, again.sent_bytes) == ("unchanged", 0)

    # The last convolution, the largest layer but the classifier.
    model = onnx.load(project.model)
    (weight,) = (item for item in model.graph.initializer if item.name == "features.18.0.weight")
    values = onnx.numpy_helper.to_array(weight) * np.float32(1.01)
    assert 0.1 * params < values.nbytes < 0.2 * params
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    changed = tmp_path / project.model.name
    onnx.save(model, changed)
    own = replace(project, model=changed, verify=False)
    bundle = package_job(make_job(own), tmp_path / "out")
    report = deploy_bundle(bundle, device, ROOT)
    check_smoke(report)
    print(f"a layer of {values.nbytes} bytes: {report.model_bytes_sent} sent of {params}")
    assert report.model_bytes_sent < 0.2 * params
    assert [name for name in report.sent_files if name.startswith("model/")] == [PARAMS]
    assert "bin/edgepack-run" in report.reused_files
    assert report.previous == first.release


def test_a_change_of_any_layer_sends_less_than_a_fifth(
    bundle_for: Callable[[str], Bundle],
) -> None:
    """Counted in the frames; one tensor is by itself more than a fifth, the classifier's."""
    bundle = bundle_for("rasp3b")
    before = bundle.file(PARAMS).read_bytes()
    base = tuple(chunk.key for chunk in chunks(memoryview(before)))
    plan = json.loads(bundle.file(GRAPH).read_bytes())
    tensors = [tensor for tensor in plan["tensors"] if tensor["storage"] == "params"]
    assert len(tensors) > 50
    random = np.random.default_rng(1)
    large = []
    for tensor in tensors:
        start, size = tensor["offset"], tensor["bytes"]
        after = before[:start] + random.bytes(size) + before[start + size :]
        need = Need(sha256="", size=len(after), have=0, base=base)
        sent = sum(len(frame) for frame, _ in frames(need, memoryview(after)))
        if size > 0.2 * len(before):
            large.append((tensor["name"], size / len(before), sent / len(before)))
        else:
            assert sent < 0.2 * len(before), tensor
    print(f"above a fifth (name, share of {len(before)} bytes, share sent): {large}")
    assert len(large) == 1
    assert large[0][1] == pytest.approx(1280 * 1000 * 4 / len(before), rel=0.05)


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])  # bullseye is the profile's own
def test_the_rasp3b_bundle_runs_on_newer_systems_too(
    suite: str, bundle_for: Callable[[str], Bundle], fresh_board: Callable[..., Device]
) -> None:
    try:
        device = fresh_board("rasp3b", suite=suite)
    except MirrorChangingError as error:  # for days at times, after a point release
        pytest.skip(f"{suite}: {error.hint}")
    report = deploy_bundle(bundle_for("rasp3b"), device, ROOT)
    check_smoke(report)
    assert report.facts.glibc == {"bookworm": "2.36", "trixie": "2.41"}[suite]


@pytest.mark.slow  # builds OpenCV once more
def test_the_gnu_toolchain_serves_boards_with_a_new_enough_glibc(
    project: Project, tmp_path: Path, require_tool: Callable[..., str]
) -> None:
    require_tool("arm-linux-gnueabihf-g++")
    boards = tmp_path / "boards.toml"
    boards.write_text(
        """
        [boards.gnu]
        base = "rasp3b"
        glibc = "2.41"
        os = "Debian trixie"
        virtual = { suite = "trixie", qemu_cpu = "max", part = "0xd03" }
        """
    )
    own = replace(project, verify=False, board="gnu", boards=(boards,), toolchain="gnu")
    job = make_job(own)
    bundle = package_job(job, tmp_path)
    assert bundle.manifest.versions.toolchain.startswith("gnu ")
    device = open_virtual(virtual.up(job.board))
    try:
        check_smoke(deploy_bundle(bundle, device, ROOT))
    finally:
        device.close()
        virtual.down("gnu")


def test_a_bundle_for_cortex_a53_is_refused_for_pynq_before_the_upload(
    bundle_for: Callable[[str], Bundle], fresh_board: Callable[..., Device]
) -> None:
    device = fresh_board("pynq")
    with pytest.raises(GateError, match="vfpv4"):
        deploy_bundle(bundle_for("rasp3b"), device, ROOT)
    assert device.run("ls -A").stdout.split().count("edgepack") == 0


def test_memory_on_a_full_system_board_is_what_was_promised(
    bundle_for: Callable[[str], Bundle], fresh_board: Callable[..., Device]
) -> None:
    device = fresh_board("rasp3b", kind="system")
    bundle = bundle_for("rasp3b")
    report = deploy_bundle(bundle, device, ROOT)
    answer = report.smoke.golden
    budget = answer["params_bytes"] + answer["arena_bytes"] + 8_000_000
    print(f"load {answer['load_ms']:.1f} ms, peak RSS {answer['rss_peak_bytes']}, of {budget}")
    assert answer["arena_bytes"] == bundle.manifest.model.arena_bytes
    assert 0 < answer["rss_peak_bytes"] <= budget


def test_two_folders_give_the_same_tarball(project: Project, tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two/deeper"):
        folder = tmp_path / name
        shutil.copytree(project.model.parent, folder)
        own = load_project(folder / "edgepack.toml", {"verify": False})
        bundle = package_job(make_job(own), folder / "dist")
        digests.add(write_tarball(bundle, folder / "bundle.tar.gz"))
    assert len(digests) == 1


def test_a_tarball_works_without_a_network(
    bundle_for: Callable[[str], Bundle], fresh_board: Callable[..., Device], tmp_path: Path
) -> None:
    bundle = bundle_for("rasp3b")
    tarball = tmp_path / "bundle.tar.gz"
    write_tarball(bundle, tarball)
    assert open_bundle(tarball).manifest == bundle.manifest
    device = fresh_board("rasp3b")
    device.put(tarball, "bundle.tar.gz")
    done = device.run("tar xzf bundle.tar.gz && */bin/edgepack-run --golden --json")
    assert json.loads(done.stdout)["expected"]["ok"] is True
    device.run("*/install && rm -r bundle.tar.gz mobilenetv2-*")
    current = call(device, ROOT, "status")["current"]
    assert current["release"] == bundle.manifest.release
    assert current["health"]["outcome"] == "ok"
    # A deploy finds nothing left to do, and the test that was run there.
    report = deploy_bundle(bundle, device, ROOT)
    assert (report.outcome, report.sent_bytes, report.smoke_fresh) == ("unchanged", 0, False)
    assert report.smoke.top[0]["index"] == CAT


def assert_profile(
    where: Sequence[str], project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device's profile names the model's layers, in JSON and as a table."""
    assert main(["bench", *where, "-n", "2", "--warmup", "0", "--profile", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    check_output("bench", answer)
    profile = answer["profile"]
    assert profile["runs"] == 2
    layers = profile["layers"]
    names = {node.name or node.output[0] for node in onnx.load(project.model).graph.node}
    assert {layer["layer"] for layer in layers if layer["layer"]} <= names
    # MobileNetV2 (arXiv:1801.04381, table 2): 17 blocks of 3 convolutions but the first with 2,
    # two more at the ends, and a matrix product.
    nodes = [node for layer in layers for node in layer["operator"].split("+")]
    assert sum(node in ("Conv", "Gemm", "MatMul") for node in nodes) == 53
    # 300.8 M are the model's multiply-adds (edgepack inspect counts them in the ONNX file).
    assert sum(layer["macs"] for layer in layers) == pytest.approx(300.8e6, rel=0.001)
    assert sum(layer["share"] for layer in layers) == pytest.approx(1)
    for layer in layers:
        assert ("gflops" in layer) == (layer["macs"] > 0)
    assert main(["bench", *where, "-n", "1", "--warmup", "0", "--profile"]) == 0
    lines = capsys.readouterr().out.splitlines()
    header = lines.index(next(line for line in lines if line.startswith("LAYER")))
    titles = ["LAYER", "OPERATOR", "MS (EMULATED)", "SHARE", "GFLOP/S"]
    assert re.split(r"\s{2,}", lines[header]) == titles
    assert len(lines[header + 1 :]) == len(layers) + 2


def assert_api(project: Project, root: str) -> None:
    """What the command line deployed, in Python: arrays that are the reference's, and times."""
    said: list[str] = []
    with edgepack.deploy(
        project=project.model.parent / "edgepack.toml",
        board="rk3399",
        device="virtual",
        root=root,
        progress=said.append,
    ) as deployed:
        assert deployed.report
        assert deployed.report.outcome == "unchanged"
        assert any("asking virtual rk3399" in text for text in said)
        photo = project.model.parent / "coffee.png"
        assert project.preprocess is not None
        tensor = project.preprocess.load(photo)
        (reference,) = run_reference(project.model, {}, [tensor])
        for data in (photo, tensor, Image.open(photo)):
            outputs = deployed.run(data, top=2)
            (logits,) = outputs
            assert compare(logits, reference, 1e-4).ok
            assert outputs.top[0].label == "espresso"
            assert len(outputs.top) == 2
        assert "espresso" in outputs._repr_html_()
        assert_session(deployed, photo)
        assert len(deployed.bench(runs=2, warmup=0).times_ms) == 2
        assert len(deployed.profile(runs=1, warmup=0).layers) > 30
    with edgepack.connect("virtual", board="rk3399", root=root) as again:
        current = again.status().current
        assert current
        assert current.release == deployed.report.release


def assert_session(deployed: edgepack.Deployment, photo: Path) -> None:
    """The real app, kept running, sees in pixels what it sees in the file."""
    alone = deployed.run(photo)
    bgr = cv2.imread(str(photo))
    assert bgr is not None
    other = photo.with_name("chelsea.png")
    with deployed.session(top=5) as session:
        seen = [*session.stream([bgr, bgr[:, :, ::-1].copy()], color="bgr")]
        seen += [session.run(photo), session.run(other), session.run(Image.open(photo))]
    labels = [one.top[0].label for one in seen]
    assert labels[0] == labels[2] == labels[4] == "espresso"
    assert labels[3] == "Egyptian cat"
    # With the channels swapped it is another tensor.
    scores = [one.top[0].score for one in seen]
    assert scores[0] == scores[2] == scores[4] == alone.top[0].score != scores[1]
    assert seen[0].emulated


def test_the_command_line_end_to_end(
    project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """deploy, deploy again, run, bench and package as a user types them."""
    where = ["--project", str(project.model.parent / "edgepack.toml"), "--board", "rk3399"]
    device = ["--device", "virtual", "--root", f"e/{tmp_path.name}"]
    try:
        assert main(["deploy", *where, *device, "--dry-run"]) == 0
        assert "send" in capsys.readouterr().out
        page = tmp_path / "page.html"
        assert main(["deploy", *where, *device, "--html", str(page)]) == 0
        out = capsys.readouterr().out
        text = page.read_text()
        assert "Egyptian cat" in text
        assert "data:image/png;base64," in text
        assert "model/params.bin" in text
        assert "Egyptian cat" in out
        assert "smoke test passed" in out
        assert re.search(r"\ntime .*, run \S+ ms \(emulated\),", out)
        assert re.search(r"\nmemory    peak \S+ MB \(emulated\),", out)
        # All its parts are made: the plan is exact, and there is nothing left to do.
        assert main(["deploy", *where, *device, "--dry-run", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["exact"], plan["steps"], plan["release"]) == (True, [], plan["before"])
        assert main(["status", *where, *device]) == 0
        out = capsys.readouterr().out
        assert re.search(r"tested    ok, \S+ ms \(emulated\), .* MB \(emulated\),", out)
        assert main(["prune", *where, *device, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["removed"] == []
        assert main(["rollback", *where, *device]) == 12
        assert "there is no release before" in capsys.readouterr().err
        photo = str(project.model.parent / "coffee.png")
        assert main(["run", *where, *device, "--image", photo, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        check_output("run", answer)
        assert answer["emulated"]
        assert answer["top"][0]["label"] == "espresso"
        bench_it = ["bench", *where, *device, "-n", "2", "--warmup", "0", "--json"]
        assert main([*bench_it, "--html", str(page)]) == 0
        assert "<svg" in page.read_text()
        bench = json.loads(capsys.readouterr().out)["bench"]
        assert bench["runs"] == len(bench["times_ms"]) == 2
        assert_api(project, device[-1])
        assert_profile([*where, *device], project, capsys)
        out_dir = str(tmp_path / "dist")
        assert main(["package", *where, "-o", out_dir, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        verified = open_bundle(Path(made["bundle"])).verified
        assert verified is not None
        assert verified.emulated[:4] == ("golden", "all-zero", "random", "large random")
        sums = run(["sha256sum", made["package"]]).stdout.split()[0]
        assert made["package_sha256"] == sums
        bad = tmp_path / "bad.png"
        bad.write_text("no image")
        assert main(["run", *where, *device, "--image", str(bad)]) == 2
        explain = ["compile", *where, "-o", str(tmp_path / "c"), "--explain", "--json"]
        assert main([*explain, "--html", str(page)]) == 0
        assert "classifier" in page.read_text()
        layers = json.loads(capsys.readouterr().out)["layers"]
        # 300.8 M are the model's multiply-adds (edgepack inspect counts them in the ONNX file).
        assert sum(layer["macs"] for layer in layers) == pytest.approx(300.8e6, rel=0.001)
        names = {path.name for path in (tmp_path / "c").iterdir()}
        assert names == {"model.so", "graph.json", "params.bin"}
    finally:
        virtual.down("rk3399")
