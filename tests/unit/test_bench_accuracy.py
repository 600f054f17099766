"""The accuracy bench's own parts: photos out of packages, and who is judged by what."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
import pytest

from bench import accuracy, photos
from bench.accuracy import Judged, judged, split
from bench.photos import PACKAGES, Package, Photo


def webp(seed: int, size: int = 240) -> bytes:
    """A picture that is like no other."""
    rough = np.random.default_rng(seed).integers(0, 255, (6, 8, 3)).astype("uint8")
    done, data = cv2.imencode(".webp", cv2.resize(rough, (size + 80, size)))
    assert done
    return data.tobytes()


def test_photos_are_found_in_resource_files_and_folders(tmp_path: Path) -> None:
    whole = b"qres" + webp(1) + b"RIFF" + struct.pack("<I", 9) + b"WAVE" + webp(2) + webp(3, 60)
    (tmp_path / "a.rcc").write_bytes(whole)
    (tmp_path / "b.webp").write_bytes(webp(4, 700))
    package = Package(
        name="p", version="1", path="", sha256="", licence="", files=("*.rcc", "*.webp")
    )
    found = list(photos._images(tmp_path, package))
    # The small one is a button; the large one was made smaller.
    assert [image.shape for image in found] == [(240, 320, 3), (240, 320, 3), (320, 357, 3)]


def test_photos_to_judge_by_are_others(tmp_path: Path) -> None:
    some = [
        Photo(path=tmp_path, package="p", sha256=f"{(7 * number) % 101:03d}")
        for number in range(100)
    ]
    calibration, judge = split(some)
    assert len(calibration) == accuracy.CALIBRATION
    assert {photo.sha256 for photo in (*calibration, *judge)} == {photo.sha256 for photo in some}
    assert split(some[::-1]) == (calibration, judge)


def test_outputs_are_judged_beside_float32() -> None:
    exact = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 1.0]])
    got = np.array([[0.9, 0.0, 0.0], [0.0, 1.0, 1.1]])
    found = judged("mobilenetv2", "some", [exact], [got])
    assert found.top1 == 0.5
    assert found.snr_db == pytest.approx(10 * np.log10(6 / 1.02))
    assert found.f1 is None


def centerface(*faces: tuple[int, int]) -> list[np.ndarray]:
    """CenterFace's outputs as rows of one photo, with faces of 16 pixels in some cells."""
    height, width = accuracy.SHAPES["centerface"][2] // 4, accuracy.SHAPES["centerface"][3] // 4
    maps = [np.zeros((1, count, height, width), "float32") for count in (1, 2, 2, 10)]
    maps[1][:] = np.log(4.0)
    for row, column in faces:
        maps[0][0, 0, row, column] = 0.9
    return [one.reshape(1, -1) for one in maps]


def test_boxes_are_judged_beside_float32() -> None:
    exact = centerface((10, 10), (30, 40))
    (boxes,) = accuracy.boxes_of("centerface", exact)
    wanted = np.array([(34, 34, 50, 50), (154, 114, 170, 130)])
    np.testing.assert_allclose(sorted(box.box for box in boxes), wanted, atol=1e-3)
    assert judged("centerface", "same", exact, exact).f1 == 1.0
    # One is a cell beside, one is lost, one was not there.
    found = judged("centerface", "some", exact, centerface((10, 11), (50, 50)))
    assert found.top1 is None
    assert found.f1 == 0.5
    none = centerface()
    assert judged("centerface", "none", none, none).f1 == 1.0
    assert judged("centerface", "lost", exact, none).f1 == 0.0


def test_packages_say_where_they_are_from() -> None:
    for package in PACKAGES:
        assert package.path.startswith("pool/main/")
        assert len(package.sha256) == 64
        assert package.licence


def test_a_way_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "RESULTS", tmp_path)
    rows = [Judged(way="ours", snr_db=17.94, f1=0.972), Judged(way="theirs")]
    found = {
        "calibrated": 40,
        "judged": 218,
        "cost": 0.05,
        "in_float": ["a"],
        "boxes": 54,
        "rows": [asdict(row) for row in rows],
    }
    (tmp_path / "accuracy.json").write_text(json.dumps({"centerface": found}))
    text = accuracy.report()
    assert "| ours | 17.9 | 0.972 |" in text
    assert "| theirs | fails | - |" in text
