"""Images of a batch that are put side by side for a convolution, as one layer.

`frontend.volumes` writes a convolution of a volume so: slices of the images, with zeros around the
first and the last one, joined by channels. As a layer of its own that moves no bytes, mostly. So is
what makes a volume of the channels that a transposed convolution has side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tvm import relax

from edgepack.compiler.layers.read import Reading
from edgepack.compiler.layers.tensors import dtype_of, shape_of, variables
from edgepack.kernels.layer import Layer, Stack, Unstack
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.value import Value

_Made = Mapping[relax.Var, relax.Expr]
_RANK = 4  # (N, C, H, W)


@dataclass(frozen=True, kw_only=True)
class _StackOf:
    """What a variable stacks, and the variables between it and that."""

    source: relax.Var
    stack: Stack
    inside: tuple[relax.Var, ...]


@dataclass(frozen=True, kw_only=True)
class _Images:
    """Images of `source` from number `first` on, `step` apart."""

    source: relax.Var
    first: int = 0
    step: int = 1


def with_stacks(read: Reading, function: relax.Function, takes: Callable[[Layer], bool]) -> Reading:
    """The reading, with one layer for images that are put side by side where only convolutions read
    them, and for what makes images of channels, if a rule `takes` it."""
    made = {b.var: b.value for block in function.body.blocks for b in block.bindings}
    found = {read.values.of(var): item for var, item in _stacks(made, function).items()}
    back = {read.values.of(var) for var, call in made.items() if _is_unstacked(var, call)}

    def whole(layer: Layer) -> Layer:
        item = found.get(layer.output)
        if item is not None:
            source = read.values.of(item.source)
            changed = replace(layer, operator=item.stack, inputs=(source,))
        else:
            changed = replace(layer, operator=Unstack()) if layer.output in back else layer
        return changed if changed is not layer and takes(changed) else layer

    if not found and not back:
        return read
    layers = list(map(whole, read.layers))
    inside = {
        read.values.of(var)
        for layer in layers
        if isinstance(layer.operator, Stack)
        for var in found[layer.output].inside
    }
    inside -= {read.values.of(var) for var in variables(function.body.body)}
    # The last ones first: what they read may be read by nobody else.
    for layer in reversed(list(layers)):
        if layer.output in inside and not any(layer.output in _read_by(one) for one in layers):
            layers.remove(layer)
    return replace(read, layers=layers)


def _read_by(layer: Layer) -> tuple[Value, ...]:
    return (*layer.inputs, *layer.operands)


def _stacks(made: _Made, function: relax.Function) -> dict[relax.Var, _StackOf]:
    """What variables stack that only convolutions read."""
    found = {var: item for var in made if (item := _read(var, made)) is not None}
    if not found:
        return {}
    readers: dict[relax.Var, list[relax.Expr]] = defaultdict(list)
    for expr in (*made.values(), function.body.body):
        for var in variables(expr):
            readers[var].append(expr)

    def by_convolutions(var: relax.Var, *, any_groups: bool) -> bool:
        return all(_is_convolution(expr, var, any_groups=any_groups) for expr in readers[var])

    return {
        var: item
        for var, item in found.items()
        if readers[var] and by_convolutions(var, any_groups=item.stack.taps == 1)
    }


def _is_convolution(expr: relax.Expr, image: relax.Var, *, any_groups: bool) -> bool:
    """Whether it is a convolution of an image, in one group if not in any."""
    return (
        _name(expr) in ("nn.conv2d", "nn.conv2d_transpose")
        and expr.args[0].same_as(image)
        and not expr.args[1].same_as(image)
        and (any_groups or int(expr.attrs.groups) == 1)
    )


def _is_unstacked(var: relax.Var, call: relax.Expr) -> bool:
    """Whether channels of images become images of their own."""
    if _name(call) != "reshape" or not isinstance(call.args[0], relax.Var):
        return False
    given, made = shape_of(call.args[0]), shape_of(var)
    if len(given) != _RANK or len(made) != _RANK or dtype_of(var) != FLOAT32.name:
        return False
    return 1 < given[0] < made[0] and made[0] % given[0] == 0 and given[2:] == made[2:]


def _name(expr: relax.Expr | None) -> str:
    return str(getattr(getattr(expr, "op", None), "name", "")).removeprefix("relax.")


def _read(var: relax.Var, made: _Made) -> _StackOf | None:
    """What a variable stacks, if it does."""
    parts = _parts(var, made[var])
    cuts = [_cut(part, made.get(part)) for part in parts]
    if not cuts or any((it.source, it.step) != (cuts[0].source, cuts[0].step) for it in cuts):
        return None
    first = cuts[0]
    source, before = _padded(first.source, made.get(first.source))
    shape, is_float = shape_of(source), dtype_of(source) == FLOAT32.name
    in_order = [cut.first - first.first for cut in cuts] == list(range(len(cuts)))
    # Around a batch of one image there are no others: it may be a part of a joint.
    if not (in_order and is_float and len(shape) == _RANK and shape[0] > 1):
        return None
    stack = Stack(taps=len(cuts), stride=first.step, before=before - first.first)
    between = [part for part in (*parts, first.source) if part not in (var, source)]
    return _StackOf(source=source, stack=stack, inside=tuple(dict.fromkeys(between)))


def _parts(var: relax.Var, call: relax.Expr) -> list[relax.Var]:
    """What a variable has side by side as channels; a cut of some images is one by itself."""
    if _name(call) == "strided_slice" and _cut(var, call).source is not var:
        return [var]
    if _name(call) != "concat" or not isinstance(call.args[0], relax.Tuple):
        return []
    is_joint = call.attrs.axis is not None and int(call.attrs.axis) % _RANK == 1
    parts = list(call.args[0].fields)
    are_images = all(len(shape_of(part)) == _RANK for part in parts)
    return parts if is_joint and are_images else []


def _cut(part: relax.Var, call: relax.Expr | None) -> _Images:
    """Of what a part is some images, if it is."""
    if call is None or _name(call) != "strided_slice" or not isinstance(call.args[0], relax.Var):
        return _Images(source=part)
    try:
        axes, begin, _, steps = ([int(item) for item in argument] for argument in call.args[1:5])
    except (TypeError, ValueError):
        return _Images(source=part)
    if axes != [0] or begin[0] < 0 or steps[0] < 1:
        return _Images(source=part)
    return _Images(source=call.args[0], first=begin[0], step=steps[0])


def _padded(var: relax.Var, call: relax.Expr | None) -> tuple[relax.Var, int]:
    """What a variable is with images of zeros before and behind it, and those before it."""
    if call is None or _name(call) != "nn.pad" or str(call.attrs.pad_mode) != "constant":
        return var, 0
    before, _, *others = (int(width) for width in call.attrs.pad_width)
    if any(others) or float(call.attrs.pad_value) or not isinstance(call.args[0], relax.Var):
        return var, 0
    return call.args[0], before
