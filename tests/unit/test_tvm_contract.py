"""What edgepack uses of TVM and onnx that they do not promise, one test for each name.

After an upgrade the test whose name is no longer there fails. What is used is read from the
compiler's sources, so that a name without a test fails too.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import tvm
from onnx import external_data_helper
from tvm import relax, te, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from edgepack.base.process import run
from edgepack.compiler import load_tvm
from edgepack.compiler.layers.read import _READERS
from edgepack.compiler.limited import ENVIRONMENT
from edgepack.kernels.tiles import tir
from tests.onnx_models import Builder

PACKAGE = Path(__file__).parents[2] / "edgepack"
SOURCES = [
    source
    for room in ("compiler", "frontend", "kernels", "model")
    for source in (PACKAGE / room).rglob("*.py")
]

# Names that are used, each with the test of it below.
TESTED = {
    "_get_convert_map",
    "_convert_operator",
    "_check_for_unsupported_ops",
    "_get_all_tensors",
    "tvm_custom",
    "s_tir.schedule.GetSBlockRealize",
    "FLegalize",
    "target.build.llvm",
    "tirx.noalias",
    "tirx.tvm_call_packed",
    "pragma_import_llvm",
    "tirx.call_llvm_pure_intrin",
    "tirx.call_pure_extern",
    "tirx.call_llvm_intrin",
    "tirx.call_extern",
    "tirx.tvm_access_ptr",
    "tirx.call_ffi_kernel",
}
# A mark for TVM's default schedules, of which edgepack calls none.
WITHOUT_EFFECT = {"tirx.is_scheduled"}
TEXT = re.compile(r"(s_)?tirx?\.\w[\w.]*|target\.build\.\w+|pragma_\w+|FLegalize|tvm_custom")


def trees() -> Iterator[ast.AST]:
    for path in SOURCES:
        yield ast.parse(path.read_text())


def foreign_names(tree: ast.AST) -> set[str]:
    """What a source file calls modules and classes of TVM and onnx."""
    return {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] in ("tvm", "tvm_ffi", "onnx")
    }


def private_names(tree: ast.AST) -> Iterator[str]:
    """Private attributes of TVM and onnx, overridden ones too, and names given to TVM as text."""
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if re.match("_[^_]", name):
                if ast.unparse(node.value).split(".")[0] in foreign:
                    yield name
            case ast.FunctionDef(name=name) if re.match("_[^_]", name):
                if hasattr(onnx_frontend.ONNXGraphImporter, name):
                    yield name
            case ast.Constant(value=str(text)) if TEXT.fullmatch(text):
                yield text


def test_every_private_name_in_use_has_a_test() -> None:
    used = {name for tree in trees() for name in private_names(tree)}
    assert used == TESTED | WITHOUT_EFFECT
    text = Path(__file__).read_text().split("# ---- the tests", 1)[1]
    assert not [name for name in TESTED if name not in text]


# ---- the tests


def test_get_convert_map() -> None:
    """`_get_convert_map`: TVM's converters by the names of ONNX's operators."""
    table = onnx_frontend._get_convert_map()
    assert {"Conv", "Gemm", "Resize"} <= set(table)


class Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.seen: list[tuple[str, str, int]] = []
        self.checked: list[onnx.GraphProto] = []

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        self.checked.append(graph)

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        self.seen.append((op_name, attrs["tvm_custom"]["name"], opset))
        return super()._convert_operator(op_name, inputs, attrs, opset)


def test_convert_operator() -> None:
    """`_convert_operator` is called for each node, whose name is in `tvm_custom`."""
    b = Builder()
    b.op("Abs", b.op("Neg", "x"), outputs=["y"])
    importer = Importer()
    importer.from_onnx(b.model({"x": [2]}, {"y": [2]}).graph, 17)
    assert importer.seen == [("Neg", "Neg_0", 17), ("Abs", "Abs_1", 17)]
    assert isinstance(importer.bb, relax.BlockBuilder)


def test_check_for_unsupported_ops() -> None:
    """`_check_for_unsupported_ops` refuses by TVM's table; without it any operator is tried."""
    b = Builder()
    b.op("LpNormalization", "x", outputs=["y"])
    graph = b.model({"x": [2]}, {"y": [2]}).graph
    importer = Importer()
    with pytest.raises(NotImplementedError, match="LpNormalization"):
        importer.from_onnx(graph, 17)
    assert importer.checked == [graph]
    assert [operator for operator, _, _ in importer.seen] == ["LpNormalization"]


def test_get_all_tensors() -> None:
    """`_get_all_tensors`: weights, and the tensors in attributes."""
    b = Builder()
    value = onnx.helper.make_tensor("inside", 1, [1], [2.0])
    b.op("Add", b.op("Constant", value=value), b.weight(3), outputs=["y"])
    found = external_data_helper._get_all_tensors(b.model({}, {"y": [3]}))
    assert {tensor.name for tensor in found} == {"inside", "c0"}


# What modules of TVM have of its libraries.
_NAMES = """
import json, sys, tvm.relax
made = {name: vars(module) for name, module in sys.modules.items() if name.startswith("tvm.")}
print(json.dumps({name: [*made[name]] for name in made if name.endswith("_ffi_api")}))
"""


def test_list_global_func_names() -> None:
    """`load_tvm` lists them once: modules have the same ones as if each did, and those of the
    library that it loads first."""
    fast, slow = (
        json.loads(run([sys.executable, "-c", start + _NAMES], env=os.environ | ENVIRONMENT).stdout)
        for start in ("import edgepack.compiler.load_tvm", "")
    )
    assert fast.keys() == slow.keys()
    assert len(fast) > 30
    more = {name: set(fast[name]) - set(slow[name]) for name in fast}
    assert {name for name in more if more[name]} == {"tvm.runtime.disco._ffi_api"}
    assert all(set(fast[name]) >= set(slow[name]) for name in fast)


def test_libraries() -> None:
    """Those that `load_tvm` loads first are where it looks for them."""
    for name, _ in load_tvm._LIBRARIES:
        assert (Path(tvm.__file__).parent / "lib" / name).is_file()


def test_get_s_block_realize() -> None:
    assert callable(tvm.get_global_func("s_tir.schedule.GetSBlockRealize"))


def test_f_legalize() -> None:
    """`FLegalize` makes a PrimFunc of an operator."""
    x = relax.Var("x", relax.TensorType([1, 2, 3, 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        call = builder.normalize(relax.op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]))
        made = call.op.get_attr("FLegalize")(builder, call)
        builder.emit_func_output(builder.emit(made))
    assert made.op == tvm.ir.Op.get("relax.call_tir")


def llvm_ir(function: tirx.PrimFunc) -> str:
    module = tvm.IRModule({"f": function.with_attr("global_symbol", "f")})
    with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
        return str(tvm.compile(module, tvm.target.Target("llvm")).mod.inspect_source("ll"))


def copied(*, no_alias: bool) -> tirx.PrimFunc:
    source, target = (tirx.decl_buffer([4], "float32", name) for name in ("source", "target"))
    i = tirx.Var("i", "int32")
    body = tirx.For(i, 0, 4, tirx.ForKind.SERIAL, tirx.BufferStore(target, source[i], [i]))
    return tirx.PrimFunc([source, target], body).with_attr("tirx.noalias", no_alias)


def test_no_alias() -> None:
    """`tirx.noalias`: LLVM may assume that arguments do not overlap."""
    assert ("noalias" in llvm_ir(copied(no_alias=True))) is True
    assert ("noalias" in llvm_ir(copied(no_alias=False))) is False


def test_import_llvm() -> None:
    """`pragma_import_llvm`: functions in LLVM IR, which code can call."""
    marked = copied(no_alias=True)
    assert "asm sideeffect" not in llvm_ir(marked)
    assert "asm sideeffect" in llvm_ir(marked.with_body(tir.not_unrolled(marked.body)))


def test_pure_calls() -> None:
    """`tirx.call_pure_extern` and `tirx.call_llvm_pure_intrin` have what is called first."""
    x = tirx.Var("x", "float32")
    unknown = tirx.call_pure_extern("float32", "name", x)
    assert (unknown.op.name, unknown.args[0].value) == ("tirx.call_pure_extern", "name")
    fence = tir.fence(x)
    assert fence.op.name == "tirx.call_llvm_pure_intrin"
    assert tir.in_fence(fence).same_as(x)
    assert tir.in_fence(unknown) is None


def test_calls_that_read_or_write() -> None:
    """`tirx.call_extern`, `tirx.call_llvm_intrin` and `tirx.tvm_access_ptr` are names of calls."""
    x = tirx.Var("x", "float32")
    assert tirx.call_extern("int32", "name", x).op.name == "tirx.call_extern"
    fetched = tir.prefetch(tir.buffer("b", [4], "float32"), 0)
    assert "call_llvm_intrin" in str(fetched)
    assert tvm.ir.Op.get("tirx.call_llvm_intrin").name == "tirx.call_llvm_intrin"
    assert tvm.ir.Op.get("tirx.tvm_access_ptr").name == "tirx.tvm_access_ptr"


def test_launches_of_a_gpu() -> None:
    """`tirx.call_ffi_kernel` names a function, its tensors, and how many threads it has."""
    from edgepack.compiler.gpu.generic import make_kernel

    a, b = (te.placeholder([300], name=name) for name in "ab")
    function = te.create_prim_func([a, b, te.compute([300], lambda i: a[i] + b[i], name="c")])
    target = tvm.target.Target({"kind": "opencl", "max_num_threads": 256}, host="llvm")
    kernel = make_kernel("add", function, target)
    assert kernel is not None
    (launch,) = kernel.launches
    assert sorted(launch.args) == [0, 1, 2]
    assert launch.grid[0] * launch.block[0] >= 300
    assert launch.function in kernel.text


def test_build_llvm() -> None:
    assert callable(tvm.get_global_func("target.build.llvm"))


def operators() -> set[str]:
    """All operators of Relax and tirx that the compiler names."""
    texts = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {text for text in texts if re.fullmatch(r"relax\.[a-z][\w.]*", text)}
    return {*named, *(f"relax.{name}" for name in _READERS), "tirx.tvm_call_packed"}


@pytest.mark.parametrize("name", sorted(operators()))
def test_operators(name: str) -> None:
    assert tvm.ir.Op.get(name).name == name
