"""The Python API on this machine, with the real device tool: see test_flow for a real model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import edgepack
from edgepack.base.errors import ModelError, RemoteError, UsageError
from edgepack.base.process import processes
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.deploy import Report, deploy_bundle
from edgepack.device import LocalDevice
from edgepack.flow.deployment import Deployment
from edgepack.preprocess.image import AlphaImageError, GrayImageError
from edgepack.preprocess.spec import PreprocessSpec
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
        deployed.run(data)  # type: ignore[call-overload]


# What edgepack-run does with frames of 4x2 pixels: a line for each, here with the frame's hash and
# the number of the process.
STREAMING = """#!/bin/sh
frame=0
while [ $# -gt 0 ]; do
  case $1 in --frames) form=$2;; --size) size=$2;; --top) top=$2;; esac
  shift
done
case $form in gray) bytes=8;; *) bytes=24;; esac
[ "$size" = 4x2 ] || {
  echo '{"error":{"code":2,"message":"bad size '"$size"'","hint":"x"}}'
  exit 2
}
sum() { dd bs=1 count=$bytes 2>/dev/null | sha256sum | cut -c1-64; }
while hash=$(sum); do
  [ "$hash" != e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 ] || break
  echo '{"frame":'$frame',"edgepack":"fake","run_ms":1.5,"form":"'$form'","hash":"'$hash'",' \\
    '"pid":'$$',"top":[{"index":1,"label":"dog","score":0.9}]}'
  frame=$((frame + 1))
done
echo '{"end":{"frames":'$frame'}}'
"""
PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A device where that runs as the app: nothing tests it, as it is put there by hand."""
    home = tmp_path_factory.mktemp("streaming")
    app = home / ROOT / "current" / APP
    app.parent.mkdir(parents=True)
    app.write_text(STREAMING)
    app.chmod(0o755)
    spec = PreprocessSpec(input="input", accept=("gray",))
    (home / ROOT / "current" / "preprocess.json").write_text(spec.to_json())
    with Deployment(LocalDevice(home), ROOT) as deployment:
        yield deployment


def test_a_session_keeps_the_app_for_all_photos_of_a_size(
    streaming: Deployment, tmp_path: Path
) -> None:
    image = Image.fromarray(PIXELS)
    image.save(tmp_path / "photo.png")
    with streaming.session(top=3) as session:
        seen = [*session.stream([PIXELS, PIXELS[::-1]], color="rgb")]
        pids = {one.document["pid"] for one in seen}
        assert len(pids) == 1
        assert [one.document["frame"] for one in seen] == [0, 1]
        assert seen[0].top[0].label == "dog"
        assert seen[0].times_ms == {"run": 1.5}
        assert "dog" in seen[0]._repr_html_()
        # A Pillow image has the same bytes; a file comes as OpenCV reads it.
        assert session.run(image).document["hash"] == digest(PIXELS)
        assert session.run(tmp_path / "photo.png").document["hash"] == digest(PIXELS[:, :, ::-1])
        gray = session.run(PIXELS[:, :, 0], color="gray")
        assert (gray.document["form"], gray.document["hash"]) == ("gray", digest(PIXELS[:, :, 0]))
        running = gray.document["pid"]
    assert [one.document["hash"] for one in seen] == [digest(PIXELS), digest(PIXELS[::-1])]
    with pytest.raises(UsageError, match="the session is closed"):
        session.run(PIXELS, color="rgb")
    assert running not in {one.pid for one in processes()}


def digest(array: npt.NDArray[np.uint8]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def test_what_the_app_refuses_is_an_error_and_the_session_goes_on(streaming: Deployment) -> None:
    with streaming.session() as session:
        with pytest.raises(UsageError, match="bad size 3x3"):
            session.run(np.zeros((3, 3, 3), np.uint8), color="rgb")
        assert session.run(PIXELS, color="bgr").document["form"] == "bgr24"


def test_what_the_release_would_not_take_is_refused_here(tmp_path: Path) -> None:
    """The app counts such frames as broken and says nothing: nobody would wait for its answer."""
    current = tmp_path / ROOT / "current"
    (current / "bin").mkdir(parents=True)
    with Deployment(LocalDevice(tmp_path), ROOT) as deployment, deployment.session() as session:
        with pytest.raises(UsageError, match="takes no photos"):
            session.run(PIXELS, color="rgb")
        (current / "preprocess.json").write_text(PreprocessSpec(input="input").to_json())
        with pytest.raises(GrayImageError, match="made for colours"):
            session.run(PIXELS[:, :, 0], color="gray")
        Image.fromarray(PIXELS[:, :, 0]).save(tmp_path / "gray.png")
        with pytest.raises(GrayImageError, match="is gray"):
            session.run(tmp_path / "gray.png")
        for mode, error in (("L", GrayImageError), ("RGBA", AlphaImageError)):
            with pytest.raises(error):
                session.run(Image.new(mode, (4, 2)))


@pytest.mark.parametrize(
    ("array", "color", "said"),
    [
        (PIXELS, None, "nobody says in which order its channels are"),
        (PIXELS, "yuv", "color: unknown: 'yuv'"),
        (PIXELS / 255, "rgb", r"uint8 \(height, width, 3\); this one is float64 \(2, 4, 3\)"),
        (PIXELS.transpose(2, 0, 1), "rgb", r"this one is uint8 \(3, 2, 4\)"),
        (PIXELS, "gray", r"gray pixels is uint8 \(height, width\)"),
        (PIXELS[:0], "rgb", "an array without pixels"),
    ],
)
def test_pixels_that_are_none_are_not_guessed(
    array: object, color: str | None, said: str, streaming: Deployment, deployed: Deployment
) -> None:
    with streaming.session() as session, pytest.raises(UsageError, match=said):
        session.run(array, color=color)
    if color is not None:
        with pytest.raises(UsageError, match=said):
            deployed.run(array, color=color)  # type: ignore[call-overload]


def test_pixels_and_lists_of_photos(
    deployed: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[npt.NDArray[np.uint8]] = []
    put = deployed.device.put

    def note(local: Path, remote: str, **more: object) -> None:
        sent.append(np.asarray(Image.open(local)))
        put(local, remote)

    monkeypatch.setattr(deployed.device, "put", note)
    image = Image.fromarray(PIXELS)
    image.save(tmp_path / "photo.png")
    files: list[str | Path] = [tmp_path / "photo.png", str(tmp_path / "photo.png")]
    listed = deployed.run(files) + deployed.run([image])
    arrays: list[Any] = [PIXELS, PIXELS]
    listed += deployed.run(arrays, color="rgb")
    assert [one.top[0].label for one in listed] == ["dog"] * 5
    deployed.run(PIXELS[:, :, ::-1], color="bgr")
    deployed.run(PIXELS[:, :, 1], color="gray")
    for array in sent[:6]:
        np.testing.assert_array_equal(array, PIXELS)
    np.testing.assert_array_equal(sent[6], PIXELS[:, :, 1])
    # Without a color an array is a tensor.
    with pytest.raises(ModelError, match="the array is uint8") as error:
        deployed.run(PIXELS)
    assert 'color="bgr"' in str(error.value.hint)


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
        # Not `now`, and what it is in.
        one, other = again.status(), deployed.status()
        assert (one.current, one.previous) == (other.current, other.previous)
        assert one.current is not None
    with pytest.raises(UsageError, match="which deployed model"):
        edgepack.connect("local")


def test_the_function_keeps_its_name_whatever_is_imported() -> None:
    import edgepack.deploy.deploy
    from edgepack.deploy import remote_tool

    assert callable(edgepack.deploy)
    assert remote_tool.status
    with pytest.raises(TypeError, match="no argument 'lables'; perhaps you meant 'labels'"):
        edgepack.deploy("m.onnx", board="local", device="local", lables="x.txt")
