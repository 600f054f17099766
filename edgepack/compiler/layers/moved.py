"""Activations on the pixels of an image that a convolution made, as rows, are done before the image
becomes rows.

So the feed-forward layers of SegFormer have it. Done before, an activation is part of the
convolution's kernel. And an image becomes rows by a transposition of its four axes, which is how
one is unpacked: in blocks, the channels of a pixel lie side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax

from edgepack.compiler.layers.tensors import constant_of, dtype_of, shape_of, variables
from edgepack.frontend.origin import mark, origin_of
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.expression import FUNCTIONS

_CONVOLUTIONS = {"nn.conv1d", "nn.conv2d", "nn.conv1d_transpose", "nn.conv2d_transpose"}
_MOVES = {"expand_dims", "permute_dims", "reshape", "squeeze"}
_ARITHMETIC = {"clip", "nn.leakyrelu", "nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu"}
_ARITHMETIC |= FUNCTIONS.keys() - {"prelu"}
# These alone are no activation. Attentions are known by them, and convolutions fold them.
_LINEAR = {"add", "divide", "multiply", "negative", "subtract"}

_Binding = tuple[relax.Var, relax.Expr]


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """How an image becomes rows, and the arithmetic on those. Nothing else reads what is between
    the image and the last result."""

    image: relax.Var
    moves: tuple[_Binding, ...]
    arithmetic: tuple[_Binding, ...] = ()

    @property
    def bindings(self) -> tuple[_Binding, ...]:
        return (*self.moves, *self.arithmetic)

    @property
    def is_flattened_first(self) -> bool:
        """Whether rows and columns become one axis before the channels are last."""
        if len(self.moves) < 2:
            return False
        (flat, reshape), (_, transposition), *_ = self.moves
        batch, channels, *pixels = shape_of(self.image)
        return (
            len(pixels) == 2
            and _name(reshape) == "reshape"
            and shape_of(flat) == (batch, channels, pixels[0] * pixels[1])
            and _name(transposition) == "permute_dims"
            and [int(axis) for axis in transposition.attrs.axes or ()] == [0, 2, 1]
        )


def with_activations_first(module: tvm.IRModule) -> tvm.IRModule:
    """The module with `main`'s activations before what makes rows of images."""
    main = module["main"]
    bindings = [(b.var, b.value) for block in main.body.blocks for b in block.bindings]
    chains = {chain.bindings[-1][0]: chain for chain in _chains(bindings, main.body.body)}
    if not chains:
        return module
    inside = {var for chain in chains.values() for var, _ in chain.bindings}
    blocks = []
    for block in main.body.blocks:
        changed: list[relax.Binding] = []
        for binding in block.bindings:
            if binding.var in chains:
                changed += _reordered(chains[binding.var])
            elif binding.var not in inside:
                changed.append(binding)
        blocks.append(type(block)(changed))
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule({**module.functions, module.get_global_var("main"): function})


def _chains(bindings: Sequence[_Binding], results: relax.Expr) -> list[_Chain]:
    readers: dict[relax.Var, set[relax.Var]] = defaultdict(set)
    for var, value in bindings:
        for read in variables(value):
            readers[read].add(var)
    for var in variables(results):
        readers[var] |= {var}  # as if it read itself: nobody else is the only reader
    images: set[relax.Var] = set()  # and what arithmetic makes of them
    chains: dict[relax.Var, _Chain] = {}
    for var, value in bindings:
        name, read = _name(value), variables(value)
        if dtype_of(var) != FLOAT32.name:
            continue
        if name in _ARITHMETIC:
            is_image = any(item in images and shape_of(item) == shape_of(var) for item in read)
        else:
            is_image = name in _CONVOLUTIONS
        if is_image:
            images.add(var)
        elif name in _MOVES and read[0] in chains and len(readers[read[0]]) == 1:
            chain = chains.pop(read[0])
            chains[var] = replace(chain, moves=(*chain.moves, (var, value)))
        elif name in _MOVES and read[0] in images:
            chains[var] = _Chain(image=read[0], moves=((var, value),))
    for var, chain in chains.items():
        if len(readers[chain.image]) == 1:
            chains[var] = replace(chain, arithmetic=_activation(var, bindings, readers))
    return [chain for chain in chains.values() if chain.arithmetic or chain.is_flattened_first]


def _activation(
    start: relax.Var, bindings: Sequence[_Binding], readers: Mapping[relax.Var, set[relax.Var]]
) -> tuple[_Binding, ...]:
    """The longest arithmetic on a value and on numbers that has one result, and reads nothing else;
    () where it is linear."""
    inside: dict[relax.Var, relax.Expr] = {}
    best: tuple[_Binding, ...] = ()
    shape = shape_of(start)
    for var, value in bindings:
        known, read = {start, *inside}, variables(value)
        if known.isdisjoint(read):
            continue
        if _name(value) not in _ARITHMETIC or shape_of(var) != shape or not known.issuperset(read):
            break
        if not all(_is_number(item) for item in value.args if not isinstance(item, relax.Var)):
            break
        inside[var] = value
        before = [start, *inside][:-1]
        if all(readers[item] <= inside.keys() for item in before):
            best = tuple(inside.items())
    return () if all(_name(value) in _LINEAR for _, value in best) else best


def _is_number(argument: relax.Expr) -> bool:
    """Of arithmetic: a bound of `clip`, or a constant of one element."""
    value = constant_of(argument)
    is_bound = isinstance(argument, tvm.tirx.IntImm | tvm.tirx.FloatImm)
    return is_bound or (value is not None and value.size == 1)


def _reordered(chain: _Chain) -> list[relax.Binding]:
    """Bindings that make the same result, from which alone of ONNX's tensors there is still one."""
    typed = relax.BlockBuilder().normalize
    rows = chain.moves[-1][0]
    now, made = {rows: chain.image}, list[relax.Binding]()

    def emit(call: relax.Call) -> relax.Var:
        value = typed(call)
        made.append(relax.VarBinding(relax.DataflowVar("moved", value.ty), value))
        return made[-1].var

    for var, value in chain.arithmetic:
        arguments = [
            now[item] if isinstance(item, relax.Var) else _without_axes(item) for item in value.args
        ]
        now[var] = emit(_without_result(value, arguments))
    result, value = chain.bindings[-1]
    latest = now[result if chain.arithmetic else rows]
    moves = list(chain.moves)
    if chain.is_flattened_first:
        latest = emit(relax.op.permute_dims(latest, [0, 2, 3, 1]))
        latest = emit(relax.op.reshape(latest, shape_of(moves[1][0])))
        moves = moves[2:]
    for _, move in moves:
        latest = emit(_without_result(move, [latest, *move.args[1:]]))
    last, origin = made.pop().value, origin_of(value)
    made.append(relax.VarBinding(result, last if origin is None else typed(mark(last, origin))))
    return made


def _without_axes(number: relax.Expr) -> relax.Expr:
    """A number that the image takes, too, which may have fewer axes than the rows."""
    value = constant_of(number)
    return number if value is None else relax.const(value.reshape(()))


def _without_result(value: relax.Expr, arguments: Sequence[relax.Expr]) -> relax.Call:
    """A call on other arguments, from the same node, whose result it does not make."""
    call = relax.Call(value.op, list(arguments), value.attrs, value.ty_args)
    origin = origin_of(value)
    return call if origin is None else mark(call, replace(origin, result=""))


def _name(value: relax.Expr) -> str:
    is_operator = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    return value.op.name.removeprefix("relax.") if is_operator else ""
