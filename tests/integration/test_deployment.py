"""The Python API on this machine, with the real device tool: see test_flow for a real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import edgepack
from edgepack.base.errors import ModelError, RemoteError, UsageError
from edgepack.bundle.bundle import Bundle
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.deploy import Report, deploy_bundle
from edgepack.device import LocalDevice
from edgepack.flow.deployment import Deployment
from tests.fake_app import fake_bundle
from tests.schemas import check_output

ROOT = "edgepack/tiny"
INPUT = np.zeros((1, 3, 2, 2))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    return fake_bundle(folder / "a"), fake_bundle(folder / "b", weights=b"other" * 99)


@pytest.fixture
def reports(bundles: tuple[Bundle, Bundle], tmp_path: Path) -> list[Report]:
    device = LocalDevice(tmp_path)
    return [deploy_bundle(bundle, device, ROOT) for bundle in bundles]


@pytest.fixture
def deployed(reports: list[Report], tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(LocalDevice(tmp_path), ROOT, reports[-1]) as deployment:
        yield deployment


def test_photos_and_arrays_give_arrays(deployed: Deployment, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    image = Image.new("RGB", (4, 4))
    image.save(photo)
    for data in (photo, str(photo), image):
        outputs = deployed.run(data)
        assert outputs.names == ("scores",)
        (scores,) = outputs
        # What small_bundle has as its golden output.
        np.testing.assert_array_equal(scores, [[0.0, 1.0, 0.5, 0.25]])
        assert outputs.top[0].label == "dog"
        assert outputs.times_ms == {"run": 1.5}
        assert "scores: float32 (1, 4); best dog 0.9000" in repr(outputs)
    for tensor in (INPUT, INPUT.tolist(), {"input": INPUT.astype(np.float32)}):
        assert deployed.run(tensor)[0].shape == (1, 4)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.zeros((3, 2, 2)), r"'input' is float32 \(1, 3, 2, 2\), the array is float64 \(3, 2"),
        (INPUT.astype(complex), "the array is complex128"),
        ({"image": INPUT}, "inputs are input; given: image"),
        ({"input": INPUT, "b": INPUT}, "given: input, b"),
    ],
)
def test_an_array_that_does_not_fit_is_not_sent(
    deployed: Deployment, data: object, said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        deployed.run(data)  # type: ignore[arg-type]


def test_status_and_rollback(deployed: Deployment, reports: list[Report]) -> None:
    first, second = reports
    status = deployed.status()
    check_output("status", status.document)
    assert (now := status.current)
    assert now.release == second.release
    back = deployed.rollback()
    check_output("rollback", back.document)
    assert back.release == first.release
    assert deployed.run(INPUT)[0].shape == (1, 4)
    assert deployed.rollback(to=second.release).before == first.release
    with pytest.raises(RemoteError, match="there is no release ffffffffffff"):
        deployed.rollback(to="f" * 12)
    # The fake app measures nothing.
    with pytest.raises(SenselessError, match="measured nothing"):
        deployed.bench(runs=1)
    assert second.release in repr(deployed)
    assert second.release in deployed._repr_html_()
    assert second.release in deployed.status()._repr_html_()


def test_what_was_deployed_before_is_found_by_its_name(
    deployed: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with edgepack.connect("local", name="tiny") as again:
        assert again.status() == deployed.status()
    with pytest.raises(UsageError, match="which deployed model"):
        edgepack.connect("local")


def test_the_function_keeps_its_name_whatever_is_imported() -> None:
    import edgepack.deploy.deploy
    from edgepack.deploy import remote_tool

    assert callable(edgepack.deploy)
    assert remote_tool.status
    with pytest.raises(TypeError, match="no argument 'lables'; perhaps you meant 'labels'"):
        edgepack.deploy("m.onnx", board="local", device="local", lables="x.txt")
