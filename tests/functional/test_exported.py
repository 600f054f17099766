"""PyTorch programs come in as ONNX models that give what PyTorch gives.

torch is an optional extra of gigabytes and no package of the tests': without it these are skipped,
in CI, too. To run them: `pip install 'edgepack[torch]'`, then pytest -m slow with this file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.boards import get_board
from edgepack.cli import main
from edgepack.compiler import compile_model
from edgepack.compiler.backend.run import run_plan
from edgepack.model import ModelSpec, read_model
from edgepack.model.exported import NotExportedError, UnsafeProgramError
from edgepack.native.toolchain import select

REASON = "PyTorch, which is no package of the tests', is not installed"
torch: Any = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("onnxscript", reason=REASON)

# The warnings are PyTorch's about its own LSTM, about TorchScript, and about what its own exporter
# calls.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:The tensor attributes", "ignore:`torch.jit", "ignore:`isinstance"
    ),
]


def _cnn() -> Any:
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, stride=2), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(16, 10)),
    )


def _mlp() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 5), nn.Softmax(-1)
    )


def _lstm() -> Any:
    class LastOfSequence(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 16, batch_first=True)
            self.linear = torch.nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            return self.linear(self.lstm(x)[0][:, -1])

    return LastOfSequence()


def _saved(path: Path, model: Any, x: Any) -> Path:
    torch.export.save(torch.export.export(model.eval(), (x,)), path)
    return path


@pytest.mark.parametrize(
    ("model", "shape"), [(_cnn, (1, 3, 32, 32)), (_mlp, (2, 12)), (_lstm, (1, 7, 8))]
)
def test_a_program_gives_what_pytorch_gives(
    model: Callable[[], Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net, x = model(), torch.randn(shape)
    path = _saved(tmp_path / "net.pt2", net, x)
    spec = ModelSpec(path=path)
    assert [info.shape for info in read_model(spec).inputs] == [shape]
    board = get_board("local")
    built = compile_model(spec, board, select(board).toolchain, tmp_path / "out")
    (got,) = run_plan(built.folder, [x.numpy()])
    with torch.no_grad():
        np.testing.assert_allclose(got, net(x).numpy(), rtol=1e-3, atol=1e-5)


def test_open_sizes_are_given_by_their_input(tmp_path: Path) -> None:
    net, x = torch.nn.Linear(12, 3), torch.randn(2, 12)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "net.pt2")
    (info,) = read_model(ModelSpec(path=tmp_path / "net.pt2")).inputs
    name = info.name
    assert isinstance(info.shape[0], str)
    given = read_model(ModelSpec(path=tmp_path / "net.pt2", shapes={name: (5, 12)}))
    assert [info.shape for info in (*given.inputs, *given.outputs)] == [(5, 12), (5, 3)]


def test_what_pytorch_writes_otherwise_is_named(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    weights, script = tmp_path / "weights.pt2", tmp_path / "script.pt2"
    torch.save(net.state_dict(), weights)
    torch.jit.save(torch.jit.trace(net, torch.ones(1, 3)), script)
    with pytest.raises(NotExportedError, match=r"weights\.pt2: .* but weights of torch\.save"):
        read_model(ModelSpec(path=weights))
    with pytest.raises(NotExportedError, match=r"script\.pt2: .* but a TorchScript archive"):
        read_model(ModelSpec(path=script))


class _Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_among_the_example_inputs_is_not_run(tmp_path: Path) -> None:
    """PyTorch's own loader would: it tries again without its restrictions."""
    good = _saved(tmp_path / "good.pt2", torch.nn.Linear(3, 2), torch.ones(1, 3))
    bad, made = tmp_path / "bad.pt2", tmp_path / "made"
    pickled = tmp_path / "inputs"
    torch.save(((_Touch(made),), {}), pickled)
    replaced = 0
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(bad, "w") as new:
        for name in old.namelist():
            inputs = "/sample_inputs/" in name
            replaced += inputs
            new.writestr(name, pickled.read_bytes() if inputs else old.read(name))
    assert replaced == 1
    with pytest.raises(UnsafeProgramError, match="would run what it holds"):
        read_model(ModelSpec(path=bad))
    assert not made.exists()


def test_sizes_that_the_program_leaves_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come from the command line, where nothing of PyTorch's own warnings is to be seen."""
    torch.manual_seed(0)
    net = _cnn().eval()
    batch, size = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("size", min=16, max=512)
    program = torch.export.export(
        net, (torch.randn(2, 3, 64, 48),), dynamic_shapes=({0: batch, 2: size},)
    )
    path, out = tmp_path / "net.pt2", tmp_path / "out"
    torch.export.save(program, path)
    (info,) = read_model(ModelSpec(path=path)).inputs
    assert info.shape[1] == 3 and isinstance(info.shape[0], str)
    assert main(["inspect", str(path), "--board", "local"]) == 0
    shown = capsys.readouterr()
    assert f"can be compiled: yes, with --shape {info.name}=1,3," in shown.out
    assert "Skipping" not in shown.err
    where = ["--board", "local", "-o", str(out)]
    assert main(["compile", str(path), "--shape", f"{info.name}=1,3,40,48", *where]) == 0
    x = torch.randn(1, 3, 40, 48)
    np.testing.assert_allclose(
        run_plan(out, [x.numpy()])[0], net(x).detach().numpy(), rtol=1e-4, atol=1e-6
    )
