"""Real models through the real compiler, run here and under qemu, against onnxruntime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_model
from edgepack.flow.quantized import find_precision
from edgepack.flow.reference import make_golden
from edgepack.frontend.errors import UnsupportedOperatorError
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from edgepack.model.errors import DynamicShapeError
from edgepack.native.toolchain import find, select
from tests import onnx_models
from tests.onnx_models import Builder
from tests.plan_on_arm import run_plan_on_arm
from tests.plan_runner import run_plan
from tests.support import require_tool


def compile_for(
    path: Path, out: Path, board: str = "local", kind: str = "gnu", **shapes: tuple[int, ...]
) -> CompiledModel:
    profile = get_board(board)
    toolchain = select(profile, kind if board == "local" else None).toolchain
    return compile_model(ModelSpec(path=path, shapes=shapes), profile, toolchain, out)


def random_inputs(path: Path, seed: int = 0) -> list[np.ndarray]:
    """Values for every input: floats around 0, integers from 1 to 40."""
    random = np.random.default_rng(seed)
    values = []
    for tensor in onnx.load(path).graph.input:
        shape = [dim.dim_value for dim in tensor.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.type.tensor_type.elem_type)
        if dtype.kind == "f":
            values.append(random.normal(size=shape).astype(dtype))
        else:
            values.append(random.integers(1, 40, size=shape).astype(dtype))
    return values


def reference(path: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def assert_close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        # Sums of float16 are rounded after every addition, in another order.
        tolerance = 5e-3 if mine.dtype == np.float16 else 1e-4
        error = np.abs(mine.astype("float64") - theirs.astype("float64")).max()
        assert error <= tolerance * np.abs(theirs.astype("float64")).max()


MODELS = {
    "branches": onnx_models.branches,
    "transformer_block": onnx_models.transformer_block,
    "half_floats": onnx_models.half_floats,
    "half_image": onnx_models.half_image,
    "integers": onnx_models.integers,
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_onnxruntime_here(tmp_path: Path, name: str) -> None:
    path = MODELS[name](tmp_path / "model.onnx")
    compiled = compile_for(path, tmp_path / "out")
    inputs = random_inputs(path)
    # Twice: a second run must not see what the first one left.
    assert_close(run_plan(compiled.folder, inputs, runs=2), reference(path, inputs))


@pytest.mark.parametrize(
    ("board", "cpu"), [("rasp3b", "max"), ("pynq", "cortex-a9"), ("rk3399", "cortex-a72")]
)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_onnxruntime_on_arm(tmp_path: Path, name: str, board: str, cpu: str) -> None:
    triple = get_board(board).triple
    compiler = require_tool(f"{triple}-gcc")
    arch = "aarch64" if triple.startswith("aarch64") else "arm"
    qemu = require_tool(f"qemu-{arch}-static", f"qemu-{arch}")
    path = MODELS[name](tmp_path / "model.onnx")
    compiled = compile_for(path, tmp_path / "out", board)
    inputs = random_inputs(path)
    (tmp_path / "run").mkdir()
    got = run_plan_on_arm(
        compiled.folder,
        inputs,
        compiler=compiler,
        qemu=[qemu, "-cpu", cpu, "-L", f"/usr/{triple}"],
        work=tmp_path / "run",
    )
    assert_close(got, reference(path, inputs))


def test_cortex_a9_code_has_no_fused_multiply_add_and_no_hardware_divide(tmp_path: Path) -> None:
    objdump = require_tool("arm-linux-gnueabihf-objdump")
    for name in ("branches", "integers", "half_floats"):
        path = MODELS[name](tmp_path / f"{name}.onnx")
        compiled = compile_for(path, tmp_path / name, "pynq")
        listing = subprocess.run(
            [objdump, "-d", compiled.library], capture_output=True, text=True, check=True
        ).stdout
        mnemonics = {line.split("\t")[2] for line in listing.splitlines() if line.count("\t") > 2}
        assert "vmul.f32" in mnemonics or name != "branches"
        bad = ("vfma", "vfms", "vfnma", "vfnms", "sdiv", "udiv")
        assert not [m for m in mnemonics if m.startswith(bad)]


@pytest.mark.parametrize("board", ["pynq", "rk3399"])
def test_library_linked_by_gcc_needs_libc_and_libm_only(tmp_path: Path, board: str) -> None:
    profile = get_board(board)
    readelf = require_tool(f"{profile.triple}-readelf")
    path = onnx_models.half_floats(tmp_path / "model.onnx")
    toolchain = find("gnu", profile)
    compiled = compile_model(ModelSpec(path=path), profile, toolchain, tmp_path / "out")
    text = subprocess.run(
        [readelf, "-dW", "--dyn-syms", compiled.library], capture_output=True, text=True, check=True
    ).stdout
    needed = {line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "libm.so.6"}
    missing = [
        line.split()[7] for line in text.splitlines() if " UND " in line and line.split()[7:]
    ]
    own = [name for name in missing if "@" not in name and not name.startswith("_")]
    assert own == ["TVMFFIErrorSetRaisedFromCStrParts"]


def test_equal_input_gives_equal_bytes_in_another_folder_and_process(tmp_path: Path) -> None:
    first = tmp_path / "one" / "model.onnx"
    second = tmp_path / "elsewhere" / "deeper" / "model.onnx"
    for path in (first, second):
        path.parent.mkdir(parents=True)
        onnx_models.branches(path)
    one = compile_for(first, tmp_path / "one" / "out", "rasp3b")
    code = (
        "import sys; from pathlib import Path; from tests.functional.test_compiler import *;"
        "compile_for(Path('model.onnx'), Path('out'), 'rasp3b')"
    )
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {code}"],
        cwd=second.parent,
        check=True,
    )
    for file in (one.library, one.graph, one.params):
        assert file.read_bytes() == (second.parent / "out" / file.name).read_bytes(), file.name
    assert str(tmp_path).encode() not in one.library.read_bytes()
    assert str(Path.home()).encode() not in one.library.read_bytes()


def test_a_quantised_model_computes_as_onnxruntime_does(tmp_path: Path) -> None:
    path = onnx_models.quantized(tmp_path / "model.onnx")
    inputs = random_inputs(path)
    compiled = compile_for(path, tmp_path / "out")
    (got,), (expected,) = run_plan(compiled.folder, inputs), reference(path, inputs)
    assert len(np.unique(expected)) == expected.size, "a model that tells nothing"
    # A sum near the middle between two integers may be rounded to either.
    assert np.abs(got - expected).max() <= 0.002 * 1.001
    # Its golden output is that of the definition, to the bit.
    golden = make_golden(load_model(ModelSpec(path=path)), seed=7)
    (mine,) = run_plan(compiled.folder, golden.inputs)
    np.testing.assert_array_equal(mine, golden.outputs[0])
    assert find_precision(compiled, "float32") == "int8"


def test_artifacts_are_as_compile_model_says(tmp_path: Path) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx", "batch")
    model = load_model(ModelSpec(path=path, shapes={"image": (2, 3, 16, 16)}))
    path.unlink()  # A loaded model is not read again.
    profile = get_board("local")
    compiled = compile_model(model, profile, select(profile, "gnu").toolchain, tmp_path / "out")
    assert sorted(p.name for p in compiled.folder.iterdir()) == [
        "graph.json",
        "kernels.o",
        "model.so",
        "params.bin",
    ]
    assert compiled.objects.read_bytes()[:4] == b"\x7fELF"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    graph = json.loads(compiled.graph.read_text())
    assert graph["format"] == "edgepack-graph"
    assert graph["version"] == 1
    assert graph["model"] == "net"
    assert graph["arena_bytes"] == compiled.arena_bytes
    assert graph["params_bytes"] == compiled.params_bytes == compiled.params.stat().st_size
    assert [t.shape for t in compiled.inputs] == [(2, 3, 16, 16)]
    assert [(t.name, t.shape) for t in compiled.outputs] == [("features", (2, 8, 16, 16))]
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", compiled.library], capture_output=True, text=True, check=True
    ).stdout
    for call in graph["calls"]:
        assert f"__tvm_ffi_{call['kernel']}\n" in symbols


def test_inputs_live_until_they_are_read_and_outputs_from_when_they_are_written(
    tmp_path: Path,
) -> None:
    path = onnx_models.branches(tmp_path / "model.onnx")
    graph = json.loads(compile_for(path, tmp_path / "out").graph.read_text())
    tensors, calls = graph["tensors"], [call["args"] for call in graph["calls"]]

    def span(index: int) -> range:
        tensor = tensors[index]
        return range(tensor["offset"], tensor["offset"] + tensor["bytes"])

    def overlap(one: range, other: range) -> bool:
        return one.start < other.stop and other.start < one.stop

    # A kernel's last argument is its result.
    written = [span(args[-1]) for args in calls]
    for mine in graph["inputs"]:
        read = max(number for number, args in enumerate(calls) if mine in args[:-1])
        assert not any(overlap(one, span(mine)) for one in written[:read])
    for mine in graph["outputs"]:
        place = span(mine)
        parts = [
            number
            for number, one in enumerate(written)
            if place.start <= one.start and one.stop <= place.stop
        ]
        assert not any(overlap(one, place) for one in written[max(parts) + 1 :])
    live = [span(mine) for mine in (*graph["inputs"], *graph["outputs"])]
    for group in (live[: len(graph["inputs"])], live[len(graph["inputs"]) :]):
        assert not any(overlap(one, other) for one in group for other in group if one != other)


def test_outputs_that_are_inputs_constants_or_the_same(tmp_path: Path) -> None:
    b = Builder()
    b.op("Relu", "x", outputs=["y"])
    b.op("Identity", "x", outputs=["same"])
    b.op("Reshape", "x", b.const([6], "int64"), outputs=["view"])
    b.op("Identity", "y", outputs=["again"])
    b.op("Identity", b.const([[1.0, 2.0]], "float32"), outputs=["fixed"])
    path = b.save(
        tmp_path / "model.onnx",
        {"x": [2, 3]},
        {"y": [2, 3], "same": [2, 3], "view": [6], "again": [2, 3], "fixed": [1, 2]},
    )
    compiled = compile_for(path, tmp_path / "out")
    inputs = random_inputs(path)
    assert [t.name for t in compiled.outputs] == ["y", "same", "view", "again", "fixed"]
    assert_close(run_plan(compiled.folder, inputs, runs=2), reference(path, inputs))


def test_a_model_that_computes_nothing(tmp_path: Path) -> None:
    b = Builder()
    b.op("Identity", b.const([[1.0, 2.0]], "float32"), outputs=["fixed"])
    path = b.save(tmp_path / "model.onnx", {"x": [2, 3]}, {"fixed": [1, 2]})
    compiled = compile_for(path, tmp_path / "out")
    inputs = random_inputs(path)
    assert_close(run_plan(compiled.folder, inputs), reference(path, inputs))


def test_operators_that_tvm_lacks_are_replaced_by_their_definition(tmp_path: Path) -> None:
    b = Builder()
    b.op("Celu", "x", alpha=2.0, outputs=["y"])
    b.op("LayerNormalization", "x", b.weight(6), b.weight(6), outputs=["z", "mean", "deviation"])
    path = b.save(
        tmp_path / "model.onnx",
        {"x": [4, 6]},
        {"y": [4, 6], "z": [4, 6], "mean": [4, 1], "deviation": [4, 1]},
    )
    compiled = compile_for(path, tmp_path / "out")
    inputs = random_inputs(path)
    assert_close(run_plan(compiled.folder, inputs), reference(path, inputs))


def test_sequences_of_fixed_length_and_running_sums(tmp_path: Path) -> None:
    b = Builder()
    parts = b.op("SplitToSequence", "x", b.const(2, "int64"), axis=0)
    second = b.op("SequenceAt", parts, b.const(1, "int64"))
    b.op("CumSum", second, b.const(1, "int64"), outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [4, 3]}, {"y": [2, 3]})
    compiled = compile_for(path, tmp_path / "out")
    inputs = random_inputs(path)
    assert_close(run_plan(compiled.folder, inputs), reference(path, inputs))


def test_shapes_that_the_model_computes_are_folded(tmp_path: Path) -> None:
    b = Builder()
    x = b.conv("x", 3, 8)
    batch = b.op("Gather", b.op("Shape", x), b.const(0, "int64"))
    shape = b.op(
        "Concat", b.op("Unsqueeze", batch, b.const([0], "int64")), b.const([-1], "int64"), axis=0
    )
    b.op("Reshape", x, shape, outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": ["n", 3, 8, 8]}, {"y": ["n", "m"]})
    compiled = compile_for(path, tmp_path / "out", x=(1, 3, 8, 8))
    assert [t.shape for t in compiled.outputs] == [(1, 512)]


def test_a_shape_that_depends_on_data_is_refused(tmp_path: Path) -> None:
    b = Builder()
    b.op("Reshape", "x", "shape", outputs=["y"])
    path = b.save(
        tmp_path / "model.onnx",
        {"x": [2, 6], "shape": [2]},
        {"y": [None, None]},
        {"shape": TensorProto.INT64},
    )
    with pytest.raises(DynamicShapeError, match="depends on the data"):
        compile_for(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("ConstantOfShape", {"shape": [2]}),
        ("Expand", {"x": [1, 3], "shape": [2]}),
        ("HannWindow", {"size": []}),
        ("Pad", {"x": [1, 3], "pads": [4]}),
        ("Range", {"start": [], "limit": [], "delta": []}),
        ("Slice", {"x": [1, 3], "starts": [1], "ends": [1]}),
        ("Squeeze", {"x": [1, 3, 1], "axes": [1]}),
        ("Tile", {"x": [1, 3], "repeats": [2]}),
        ("Unsqueeze", {"x": [1, 3], "axes": [1]}),
    ],
)
def test_the_node_whose_shape_depends_on_data_is_named(
    operator: str, inputs: dict[str, list[int]], tmp_path: Path
) -> None:
    """TVM's importer makes several calls of such a node, and only the last one says of which."""
    b = Builder()
    given = b.op("Relu", "x") if "x" in inputs else None
    made = b.op(operator, *(given if name == "x" else name for name in inputs))
    b.op("Cast", made, outputs=["y"], to=TensorProto.FLOAT)
    integers = {name: TensorProto.INT64 for name in inputs if name != "x"}
    path = b.save(tmp_path / "model.onnx", inputs, {"y": None}, integers)
    with pytest.raises(DynamicShapeError, match=rf"{operator}.* depends"):
        compile_for(path, tmp_path / "out")


def test_nothing_is_left_behind_when_an_operator_is_not_supported(tmp_path: Path) -> None:
    b = Builder()
    b.op("RandomNormalLike", "x", outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [2, 6]}, {"y": [2, 6]})
    with pytest.raises(UnsupportedOperatorError, match="RandomNormalLike"):
        compile_for(path, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_equal_constants_are_stored_once(tmp_path: Path) -> None:
    b = Builder()
    weights = b.weight(64, 64)
    copy = b.const(numpy_helper.to_array(b.weights[0]))
    b.op("MatMul", b.op("Relu", b.op("MatMul", "x", weights)), copy, outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [1, 64]}, {"y": [1, 64]})
    # Twice would be 32 KiB; what else there is are biases.
    assert compile_for(path, tmp_path / "out").params_bytes < 20_000


def test_importing_the_compiler_package_does_not_import_tvm() -> None:
    code = "import sys, edgepack.compiler; print('tvm' in sys.modules, 'onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
