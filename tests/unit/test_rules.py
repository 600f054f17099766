"""Any rule can be left out: then another one or TVM makes what it would have made."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.frontend.load import load_model
from edgepack.kernels import rules
from edgepack.kernels.rules.rule import Rule
from edgepack.kernels.rules.table import RULES
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import save_cases

# What the model below has; there is nothing in it for the other rules.
OF_ROWS = ("attention", "product", "norm", "softmax", "extremum", "resize")


def model(path: Path) -> Path:
    """One thing for each rule on tensors as the model has them."""
    net, width, heads = Builder(seed=1), 64, 4
    parts = net.const([1, 24, heads, width // heads], "int64")

    def split(value: str, perm: Sequence[int]) -> str:
        product = net.op("MatMul", value, net.weight(width, width))
        return net.op("Transpose", net.op("Reshape", product, parts), perm=perm)

    x = net.op("LayerNormalization", "x", net.weight(width), net.weight(width), axis=-1)
    q, k, v = (split(x, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    shares = net.op("Softmax", net.op("MatMul", q, k), axis=-1)
    merged = net.op("Transpose", net.op("MatMul", shares, v), perm=[0, 2, 1, 3])
    merged = net.op("Reshape", merged, net.const([1, 24, width], "int64"))
    scores = net.op("Softmax", net.op("MatMul", merged, net.weight(width, 96)), axis=-1)
    larger = net.op("Resize", "image", "", net.const([1, 1, 1.5, 1.5], "float32"), mode="linear")
    return save_cases(
        path,
        net,
        {"x": (1, 24, width), "image": (1, 3, 20, 20)},
        {"best": net.op("ArgMax", scores, axis=-1), "larger": larger},
    )


def made_by(path: Path, some: Sequence[Rule] | None) -> set[str]:
    """The names of the rules that make the model's kernels."""
    _, _, reports, _ = plan_model(
        load_model(ModelSpec(path=path)), get_board("rasp4b-64"), rules=some
    )
    return {report.rule for report in reports}


def test_all_are_used_unless_others_are_given(tmp_path: Path) -> None:
    path = model(tmp_path / "model.onnx")
    assert made_by(path, None) >= set(OF_ROWS)
    assert made_by(path, ()) <= {"generic", "layout"}


@pytest.mark.parametrize("name", OF_ROWS)
def test_one_is_left_out(tmp_path: Path, name: str) -> None:
    path = model(tmp_path / "model.onnx")
    left = made_by(path, [rule for rule in RULES if rule.name != name])
    assert name not in left
    assert left >= set(OF_ROWS) - {name}
    assert "generic" in left or name == "attention"  # whose parts other rules make


@pytest.mark.parametrize(
    ("name", "operator"),
    [("range", "DynamicRange"), ("quantize", "DynamicIntegers")],
    ids=["range", "quantize"],
)
def test_what_nothing_else_can_make_is_refused(tmp_path: Path, name: str, operator: str) -> None:
    net = Builder()
    results = ["whole", "scale", "zero"]
    net.op("DynamicQuantizeLinear", "x", outputs=results)
    path = save_cases(
        tmp_path / "model.onnx", net, {"x": (4, 32)}, {f"{item}_": item for item in results}
    )
    assert made_by(path, None) >= {"range", "quantize"}
    with pytest.raises(ValueError, match=f"no rule is given for .*{operator}"):
        made_by(path, [rule for rule in RULES if rule.name != name])


def test_all_rules_are_in_one_table() -> None:
    """A kernel that nobody can leave out, tune or explain would be one made beside the table."""
    modules = [
        importlib.import_module(f"{rules.__name__}.{item.name}")
        for item in pkgutil.iter_modules(rules.__path__)
    ]
    defined = {
        id(rule)
        for module in modules
        for _, rule in inspect.getmembers(module)
        if isinstance(rule, Rule)
    }
    unlisted = defined - {id(rule) for rule in RULES}
    # Conversions and changes of layout are put in where they are needed.
    assert len(unlisted) <= 1
