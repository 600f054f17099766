"""What is refused before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepack.base.errors import ConfigError
from edgepack.flow.job import make_job
from edgepack.flow.project import load_project
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
