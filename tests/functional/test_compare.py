"""`edgepack compare`: planted faults are found, and named, on a device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.boards import get_board
from edgepack.bundle.manifest import GRAPH, PARAMS
from edgepack.cli import main
from edgepack.compiler.backend.report import Stored
from edgepack.device import Device, open_device
from edgepack.flow.compare import Compared, compare_layers
from edgepack.flow.job import Job, make_job, package_job
from edgepack.flow.project import load_project
from tests.boards import own_boards
from tests.onnx_models import Builder, quantized

ROOT = "edgepack/net"


def net(path: Path, epsilon: float = 1e-5) -> Path:
    """Convolutions of equal and of other shapes, a batch normalisation, a residual, a product."""
    b = Builder(5)
    stem = b.conv("image", 3, 8, strides=[2, 2])
    statistics = [b.weight(8), b.weight(8), b.weight(8), b.const(b.random.uniform(0, 1e-3, 8), "f")]
    normal = b.op("BatchNormalization", stem, *statistics, epsilon=epsilon)
    one = b.op("Relu", b.conv(b.op("Relu", normal), 8, 8))
    other = b.op("Sigmoid", b.conv(one, 8, 8))
    total = b.op("Add", b.conv(other, 8, 8), one)
    vector = b.op("Flatten", b.op("GlobalAveragePool", total))
    b.op("Gemm", vector, b.weight(8, 5), b.weight(5), outputs=["scores"])
    return b.save(path, {"image": [1, 3, 18, 22]}, {"scores": [1, 5]})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net")
    net(folder / "net.onnx")
    file = folder / "edgepack.toml"
    text = '[project]\nmodel = "net.onnx"\nboard = "rasp3b"\ndevice = "virtual"\nverify = false\n'
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def job(project: Path) -> Job:
    return make_job(load_project(project))


@pytest.fixture(scope="module")
def device(project: Path) -> Iterator[Device]:
    """A board with the model on it."""
    with own_boards():
        assert main(["deploy", "--project", str(project)]) == 0
        device = open_device("virtual", get_board("rasp3b"))
        yield device
        device.close()


@pytest.fixture
def damage(device: Device, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Changes a file of the release there; it is put back in the end."""
    changed: list[str] = []

    def change(name: str, edit: Callable[[Any], Any], root: str = ROOT) -> None:
        path, local = f"{root}/current/{name}", tmp_path / "file"
        device.run(f"chmod u+w {path} $(dirname {path}) && cp -p {path} {path}.was")
        changed.append(path)
        device.get(path, local)
        local.write_bytes(edit(local.read_bytes()))
        # The chunks of an earlier release may be the same file.
        device.run(f"rm {path}")
        device.put(local, path)

    yield change
    for path in changed:
        device.run(f"mv -f {path}.was {path}")


def found_on(device: Device, job: Job) -> Compared:
    return compare_layers(job, device, ROOT)


def test_no_layer_diverges_where_nothing_is_wrong(
    device: Device, project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert main(["compare", "--project", str(project), "--all", "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "no layer diverges" in printed
    # Every layer that is one: all convolutions, with what follows them, and the product.
    for node in ("Conv_0", "Conv_3", "Conv_5", "Conv_7", "Gemm_11"):
        assert f" {node} " in printed
        assert f"<td>{node}</td>" in page.read_text()


def test_a_changed_weight(device: Device, job: Job, damage: Callable[..., None]) -> None:
    plan: dict[str, Any] = {}
    damage(GRAPH, lambda content: plan.update(json.loads(content)) or content)
    call = next(c for c in plan["calls"] if c["layer"]["name"] == "Conv_7")
    largest = max(
        (plan["tensors"][i] for i in call["args"] if plan["tensors"][i]["storage"] == "params"),
        key=lambda tensor: tensor["bytes"],
    )

    def edit(content: bytes) -> bytes:
        values = np.frombuffer(content, np.float32).copy()
        first = largest["offset"] // 4
        where = first + int(np.abs(values[first : first + largest["bytes"] // 4]).argmax())
        values[where] *= 1.5
        return values.tobytes()

    damage(PARAMS, edit)
    compared = found_on(device, job)
    assert compared.same_plan
    first = compared.first
    assert first is not None
    assert first.layer == "Conv_7"
    # What comes before is untouched, and the output shows it.
    assert [layer.ok for layer in compared.layers].index(False) > 1
    assert not compared.layers[-1].ok


def test_a_swapped_kernel(device: Device, job: Job, damage: Callable[..., None]) -> None:
    """The convolution with Relu is called where the one with Sigmoid is due, and vice versa."""

    def edit(content: bytes) -> bytes:
        graph = json.loads(content)
        calls = {call["layer"]["name"]: call for call in graph["calls"]}
        one, other = calls["Conv_3"], calls["Conv_5"]
        assert one["kernel"] != other["kernel"]
        one["kernel"], other["kernel"] = other["kernel"], one["kernel"]
        return json.dumps(graph).encode()

    damage(GRAPH, edit)
    compared = found_on(device, job)
    assert not compared.same_plan
    assert compared.first is not None
    assert compared.first.layer == "Conv_3"


def test_another_epsilon(
    device: Device, job: Job, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device has the model of another export; everything else is the same."""
    before = Path(device.run(f"readlink {ROOT}/current").stdout.strip()).name
    other = replace(job.project, model=net(tmp_path / "net.onnx", epsilon=1e-3))
    bundle = package_job(make_job(other), tmp_path / "bundle")
    deploy = ["deploy", "--bundle", str(bundle.path)]
    assert main([*deploy, "--board", "rasp3b", "--device", "virtual", "--root", ROOT]) == 0
    compared = found_on(device, job)
    assert compared.same_plan
    assert compared.first is not None
    assert compared.first.layer == "Conv_0"

    capsys.readouterr()
    assert main(["compare", "--project", str(project), "--release", before, "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert changed["other"] == before
    assert PARAMS in changed["files"]
    assert GRAPH not in changed["files"]
    assert "model" in changed["facts"]
    assert changed["output"]["max_abs_difference"] > 0
    by_call = {layer["call"]: layer["layer"] for layer in changed["layers"]}
    assert by_call[changed["first_differing"]] == "Conv_0"


def test_integers(
    device: Device, tmp_path: Path, damage: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A quantised model: its layers equal their definition to the bit, and a wrong weight shows."""
    quantized(tmp_path / "net.onnx")
    file, root = tmp_path / "edgepack.toml", "edgepack/integers"
    file.write_text('[project]\nmodel = "net.onnx"\nboard = "rasp3b"\nverify = false\n')
    deploy = ["deploy", "--project", str(file), "--device", "virtual", "--root", root]
    assert main(deploy) == 0
    job = make_job(load_project(file))
    compared = compare_layers(job, device, root)
    assert compared.same_plan
    integers = [layer for layer in compared.layers if layer.rule != "generic"]
    assert len(integers) >= 4
    assert {layer.max_abs_error for layer in integers} == {0}
    assert max(layer.max_abs_reference for layer in integers) > 20
    graph = json.loads(device.run(f"cat {root}/current/{GRAPH}").stdout)
    weights = max(
        (tensor for tensor in graph["tensors"] if tensor["dtype"] == "int8"
         and tensor["storage"] == "params"), key=lambda tensor: tensor["bytes"]
    )  # fmt: skip
    used = graph["tensors"].index(weights)
    call = next(i for i, call in enumerate(graph["calls"]) if used in call["args"])

    def edit(content: bytes) -> bytes:
        values = bytearray(content)
        for at in range(weights["offset"], weights["offset"] + weights["bytes"], 7):
            values[at] ^= 0x40
        return bytes(values)

    damage(PARAMS, edit, root)
    first = compare_layers(job, device, root).first
    assert first is not None
    assert first.call == call
    capsys.readouterr()


def test_the_layers_of_a_volume_are_compared_as_the_model_has_them(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are done as images: of as many as channels, too, which no shape tells apart."""
    assert device  # the board runs
    b, value = Builder(6), "volume"
    for number in range(3):
        attributes = {"kernel_shape": [3] * 3, "pads": [1] * 6}
        made = b.op("Conv", value, b.weight(8, 8, 3, 3, 3), **attributes)
        value = b.op("Relu", made, outputs=["y" if number == 2 else f"relu{number}"])
    b.save(tmp_path / "volumes.onnx", {"volume": [1, 8, 8, 6, 7]}, {"y": [1, 8, 8, 6, 7]})
    file = tmp_path / "edgepack.toml"
    text = (
        '[project]\nmodel = "volumes.onnx"\nboard = "rasp3b"\ndevice = "virtual"\nverify = false\n'
    )
    file.write_text(text)
    assert main(["deploy", "--project", str(file)]) == 0
    capsys.readouterr()
    assert main(["compare", "--project", str(file), "--all"]) == 0
    printed = capsys.readouterr().out
    assert "no layer diverges" in printed
    assert "1x8x8x6x7" in printed


def test_a_blocked_tensor_is_read_as_the_model_has_it() -> None:
    """Every element is its own place, written down by the layout's definition."""
    n, c, h, w, block, top, left = 2, 6, 3, 4, 4, 1, 2
    stored = np.full((n * 2, top + h + 1, left + w, block), -1.0, np.float32)
    for index in np.ndindex(n, c, h, w):
        image, channel, row, column = index
        place = (image * 2 + channel // block, top + row, left + column, channel % block)
        stored[place] = np.ravel_multi_index(index, (n, c, h, w))
    layout = Stored(batch=n, channels=c, height=h, width=w, block=block, top=top, left=left)
    image_values = np.arange(n * c * h * w).reshape(n, c, h, w)
    np.testing.assert_array_equal(layout.plain(stored, (n, c, h, w)), image_values)
    # Behind an image of zeros, and in front of one.
    around = np.full((2, *stored.shape[1:]), -1.0, np.float32)
    between = np.concatenate([around, stored, around])
    plain = replace(layout, front=1).plain(between, (n, c, h, w))
    np.testing.assert_array_equal(plain, image_values)

    # One row of pixels: a sequence (N, C, L), or the rows of a matrix (N, C).
    one = Stored(batch=1, channels=c, height=1, width=w, block=block, top=top, left=left)
    row = stored[:2, top - 1 : top + 2]
    sequence = image_values[:1, :, 0]
    row[:, 0] = row[:, 2] = -1.0
    np.testing.assert_array_equal(one.plain(row, (1, c, w)), sequence)
    np.testing.assert_array_equal(one.plain(row, (w, c)), sequence[0].T)
