"""The guides on models in a row and counting, from nothing to running, by their own commands.

Only the device is another: this machine, which needs no virtual board, and has no camera.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import pytest

from tests import guides
from tests.functional.test_faces import _bent, _turned
from tests.functional.test_page_reader import LINES, _page
from tests.functional.test_tracker import _save_model
from tests.pipelines import photo


def _local(text: str) -> str:
    assert 'board = "rasp3b"' in text
    return text.replace('board = "rasp3b"', 'board = "local"')


@pytest.mark.slow
def test_the_page_reader_reads_a_page(tmp_path: Path) -> None:
    text = guides.section("stages.md", "A page reader")
    (tmp_path / "edgepack.toml").write_text(_local(guides.project(text)))
    cv2.imwrite(str(tmp_path / "page.png"), _page())
    cv2.imwrite(str(tmp_path / "upside-down.png"), _page()[::-1, ::-1])
    (tmp_path / "pages").mkdir()
    for name, lines in (("page", LINES), ("upside-down", LINES[::-1])):
        (tmp_path / f"pages/{name}.png").write_bytes((tmp_path / f"{name}.png").read_bytes())
        (tmp_path / f"pages/{name}.txt").write_text("\n".join(lines))
    root = tmp_path / "root"
    shell = guides.Shell(tmp_path, {"--device virtual": f"--device local --root {root}"})
    said = {command: shell.run(command) for command in guides.commands(text)}
    assert [command.split()[0] for command in said] == [
        *("pip", "unzip", "python"),
        *["edgepack"] * 4,
    ]
    read = json.loads(said["edgepack run upside-down.png --name page --device virtual --json"])
    texts = [box["answers"]["text"]["text"][0]["text"] for box in read["boxes"]]
    assert tuple(texts) == LINES[::-1]
    # As the page shows it.
    judged = said["edgepack evaluate --images pages"]
    assert (
        judged.splitlines()[:2]
        == text.split("$ edgepack evaluate --images pages\n")[1].split("```")[0].splitlines()
    )


@pytest.mark.slow
def test_the_door_knows_anna(tmp_path: Path) -> None:
    text = guides.section("faces.md")
    (tmp_path / "edgepack.toml").write_text(_local(guides.project(text)))
    face = photo("astronaut.png")
    for name, pixels in {
        "anna-1.png": face,
        "anna-2.png": _turned(face, 12, 0.8, 0.7),
        "ben.png": _bent(face),
    }.items():
        cv2.imwrite(str(tmp_path / name), pixels)
    device = "--device pi@192.168.1.20"
    here = f"--device local --root {tmp_path / 'root'}"
    shell = guides.Shell(tmp_path, {f"{device} --service": here, device: f"--name door {here}"})
    said = {command: shell.run(command) for command in guides.commands(text)}
    assert [command.split()[0] for command in said] == [
        *("pip", "unzip", "npm", "tar"),
        *["edgepack"] * 5,
    ]
    shown = text.split("$ edgepack enroll Anna anna-1.png anna-2.png\n")[1].split("\n$")[0]
    assert said["edgepack enroll Anna anna-1.png anna-2.png"].strip() == shown
    assert "1.0000     0  Anna" in said["edgepack check"]
    answer = json.loads(said[f"edgepack run anna-2.png {device} --json"])
    (box,) = answer["boxes"]
    assert box["answers"]["who"]["top"][0]["label"] == "Anna"


@pytest.mark.parametrize("number", [0, 2, 3])
def test_the_counters_projects_are_checked(tmp_path: Path, number: int) -> None:
    """With a detector; the virtual board of test_sinks_on_boards.py runs the first."""
    blocks = re.findall(r"```toml\n(.*?)```", guides.section("home-assistant.md"), re.DOTALL)
    _save_model(tmp_path / "boxes.onnx")
    (tmp_path / "labels.txt").write_text("person\ndog\n")
    # Its host is of the home that the guide is about.
    tables = blocks[number].replace("homeassistant.local", "192.0.2.10")
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nname = "counter"\nmodel = "boxes.onnx"\nlabels = "labels.txt"\n'
        'board = "local"\n[preprocess]\n'
        'resize = { mode = "exact", height = 128, width = 128 }\n'
        '[postprocess]\npreset = "yolo-end2end"\n' + tables
    )
    shell = guides.Shell(tmp_path, {})
    assert "random inputs" in shell.run("edgepack check")
    said = shell.run(f"edgepack deploy --dry-run --device local --root {tmp_path}/root")
    shown = [line.split(None, 1)[1] for line in said.splitlines() if line.startswith("sink ")]
    if number == 2:
        assert shown == [
            "visitor: person above 0.5 for 0 s, at most every 60 s: pictures from 5 s before to "
            "10 s after, 5 a second, up to 256 MB in /var/lib/clips"
        ]
        return
    assert any(line.startswith("home: mqtt://192.0.2.10:1883") for line in shown)
    if number == 3:
        assert (
            "door: counts person above 0.5, and who crosses 0,240 to 640,240 with the middle of"
            in said
        )
        assert "guest: 'door' is crossed in, at most every 0 s: /usr/local/bin/ring" in shown
        assert (
            "crowd: 5 of person above 0.5 for 10 s, at most every 60 s: /usr/local/bin/ring"
            in shown
        )
