"""What a function of TVM's loops computes, by numpy: each operation is rounded as IEEE 754 has it.

It runs functions as they are between any two of the compiler's passes, from blocks to what LLVM is
given, so that one pass can be told from another. Memory is bytes: a pass may store bfloat16 as
uint16.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import tirx

Value = Any


class _StopError(Exception):
    """The end of a function."""


class Pointer:
    """Bytes from somewhere on; null if there are none."""

    def __init__(self, data: np.ndarray | None, tensor: np.ndarray | None = None) -> None:
        self.data, self.tensor = data, tensor

    @property
    def is_null(self) -> bool:
        """Whether it points to nothing."""
        return self.data is None and self.tensor is None


class _Arguments(Pointer):
    """What a packed function is called with."""

    @property
    def is_null(self) -> bool:
        return False


def run(function: tirx.PrimFunc, tensors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The tensors after a function has run on copies of them."""
    made = [np.array(tensor) for tensor in tensors]
    machine = _Machine()
    with np.errstate(all="ignore"):
        if len(function.params) == len(made) and all(map(_is_buffer, function.params)):
            for param, tensor in zip(function.params, made, strict=True):
                machine.memory[hash(param)] = _bytes(tensor)
        else:  # what MakePackedAPI makes: a handle, arguments, their count, a result
            machine.arguments = made
            values = (Pointer(None), _Arguments(None), np.int32(len(made)), Pointer(None))
            for param, value in zip(function.params, values, strict=True):
                machine.values[hash(param)] = value
        with contextlib.suppress(_StopError):
            machine.do(function.body)
    return made


def _is_buffer(param: tirx.Var) -> bool:
    return isinstance(param.ty, tirx.BufferType)


def _bytes(tensor: np.ndarray) -> np.ndarray:
    return tensor.reshape(-1).view(np.uint8)


def dtype_of(ty: Any) -> np.dtype:
    """numpy's type of one lane."""
    name = str(ty.dtype.with_lanes(1) if hasattr(ty, "dtype") else ty)
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


@cache
def _snake(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _maximum(a: Value, b: Value) -> Value:
    """NaN if an operand is, and 0 of 0 and -0, as IEEE 754 has it since 2019; processors differ."""
    made = np.maximum(a, b)
    return np.where((a == 0) & (b == 0), a + b, made)[()]


def _minimum(a: Value, b: Value) -> Value:
    return -_maximum(-a, -b) if np.asarray(a).dtype.kind in "fV" else np.minimum(a, b)


_BINARY: dict[type, Callable[[Value, Value], Value]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    # TVM's own, which forget a NaN, are hidden from all passes but the last.
    tirx.Max: _maximum,
    tirx.Min: _minimum,
}
_HIDDEN = {f"edgepack.exact.{kind.__name__}": kind for kind in (*_BINARY, tirx.Div)}
_CALLS: dict[str, Callable[..., Value]] = {
    "tirx.sqrt": np.sqrt,
    "tirx.fabs": np.abs,
    "tirx.floor": np.floor,
    "tirx.ceil": np.ceil,
    "tirx.trunc": np.trunc,
    "tirx.nearbyint": np.rint,
    "tirx.bitwise_not": np.invert,
    "tirx.isnan": np.isnan,
    "tirx.likely": lambda condition: condition,
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
}
_REINTERPRET = "tirx.reinterpret"
_BIT_NODES = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or}
_BIT_NODES |= {"BitwiseXor": np.bitwise_xor, "LShift": np.left_shift, "RShift": np.right_shift}


class _Machine:
    """Runs statements."""

    def __init__(self) -> None:
        self.memory: dict[int, np.ndarray] = {}
        self.values: dict[int, Value] = {}
        self.arguments: list[np.ndarray] = []

    # ------------------------------------------------ statements

    def do(self, item: tirx.Stmt) -> None:
        getattr(self, f"_do_{_snake(type(item))}")(item)

    def _do_seq_stmt(self, item: tirx.SeqStmt) -> None:
        for one in item.seq:
            self.do(one)

    def _do_for(self, item: tirx.For) -> None:
        first, count = self.of(item.min), int(self.of(item.extent))
        step = 1 if item.step is None else int(self.of(item.step))
        kind = dtype_of(item.loop_var.ty)
        for turn in range(int(first), int(first) + count, step):
            self.values[hash(item.loop_var)] = kind.type(turn)
            self.do(item.body)

    def _do_while(self, item: tirx.While) -> None:
        while self.of(item.condition):
            self.do(item.body)

    def _do_if_then_else(self, item: tirx.IfThenElse) -> None:
        if self.of(item.condition):
            self.do(item.then_case)
        elif item.else_case is not None:
            self.do(item.else_case)

    def _do_bind(self, item: tirx.Bind) -> None:
        self.values[hash(item.var)] = self.of(item.value)

    def _do_evaluate(self, item: tirx.Evaluate) -> None:
        self.of(item.value)

    def _do_attr_stmt(self, item: tirx.AttrStmt) -> None:
        self.do(item.body)

    def _do_assert_stmt(self, item: tirx.AssertStmt) -> None:
        assert self.of(item.condition), str(item)

    def _do_return(self, item: tirx.Return) -> None:
        raise _StopError

    def _do_alloc_buffer(self, item: tirx.AllocBuffer) -> None:
        self._allocate(item.buffer)

    def _allocate(self, buffer: tirx.Buffer) -> None:
        size = math.prod(int(extent) for extent in buffer.shape) * dtype_of(buffer).itemsize
        # What is read before it is written shows.
        self.memory[hash(buffer)] = np.full(size, 0xFF, np.uint8)

    def _do_decl_buffer(self, item: tirx.DeclBuffer) -> None:
        data = self.of(item.data)
        assert data.data is not None
        self.memory[hash(item.buffer)] = data.data

    def _do_buffer_store(self, item: tirx.BufferStore) -> None:
        memory, at = self._place(item.buffer, item.indices)
        memory[at] = self.of(item.value)

    def _do_s_block_realize(self, item: Any) -> None:
        block = item.block
        if not self.of(item.predicate):
            return
        for variable, value in zip(block.iter_vars, item.iter_values, strict=True):
            made = dtype_of(variable.var.ty).type(self.of(value))
            self.values[hash(variable.var)] = made
        for buffer in block.alloc_buffers:
            self._allocate(buffer)
        assert not block.match_buffers
        if block.init is not None and all(
            self.values[hash(v.var)] == self.of(v.dom.min)
            for v in block.iter_vars
            if v.iter_type == tirx.IterVar.CommReduce
        ):
            self.do(block.init)
        self.do(block.body)

    # ------------------------------------------------ expressions

    def _place(self, buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> tuple[np.ndarray, Value]:
        """The elements of a buffer's memory, and which of them."""
        memory = self.memory[hash(buffer)].view(dtype_of(buffer))
        at: Value = np.int64(0)
        for index, extent in zip(indices, buffer.shape, strict=True):
            made = np.asarray(self.of(index), np.int64)
            # A vector may hold lanes that nothing takes, but no kernel reads beside its tensors.
            assert ((made >= 0) & (made < int(extent))).all(), f"{buffer.name} {index} at {made}"
            at = at * int(extent) + made
        return memory, at

    def of(self, item: tirx.Expr) -> Value:
        kind = type(item)
        if kind in _BINARY:
            return self._binary(kind, self.of(item.a), self.of(item.b))
        if kind.__name__ in _BIT_NODES:
            return _BIT_NODES[kind.__name__](self.of(item.a), self.of(item.b))
        return getattr(self, f"_of_{_snake(kind)}")(item)

    @staticmethod
    def _binary(kind: type, a: Value, b: Value) -> Value:
        if kind is tirx.Div:
            if np.issubdtype(np.asarray(a).dtype, np.integer):
                return np.asarray(np.trunc(a / b), np.asarray(a).dtype)[()]
            return np.divide(a, b)
        return _BINARY[kind](a, b)

    def _of_div(self, item: tirx.Div) -> Value:
        return self._binary(tirx.Div, self.of(item.a), self.of(item.b))

    def _of_mod(self, item: tirx.Mod) -> Value:
        return np.fmod(self.of(item.a), self.of(item.b))

    def _of_and(self, item: tirx.And) -> Value:
        a = self.of(item.a)
        return a & self.of(item.b) if np.ndim(a) else bool(a) and self.of(item.b)

    def _of_or(self, item: tirx.Or) -> Value:
        a = self.of(item.a)
        return a | self.of(item.b) if np.ndim(a) else bool(a) or self.of(item.b)

    def _of_not(self, item: tirx.Not) -> Value:
        return np.logical_not(self.of(item.a))

    def _of_int_imm(self, item: tirx.IntImm) -> Value:
        return dtype_of(item.ty).type(int(item.value))

    def _of_float_imm(self, item: tirx.FloatImm) -> Value:
        return dtype_of(item.ty).type(float(item.value))

    def _of_var(self, item: tirx.Var) -> Value:
        if hash(item) in self.values:
            return self.values[hash(item)]
        return Pointer(self.memory[hash(item)])

    def _of_cast(self, item: tirx.Cast) -> Value:
        return np.asarray(self.of(item.value)).astype(dtype_of(item.ty))[()]

    def _of_tensor_load(self, item: Any) -> Value:
        memory, at = self._place(item.source, item.indices)
        return memory[at]

    def _of_ramp(self, item: tirx.Ramp) -> Value:
        base, stride = self.of(item.base), self.of(item.stride)
        lanes = np.arange(int(item.lanes)).astype(np.asarray(base).dtype)
        return base + stride * lanes

    def _of_broadcast(self, item: tirx.Broadcast) -> Value:
        value = np.asarray(self.of(item.value))
        return np.tile(value.reshape(-1), int(item.lanes))

    def _of_shuffle(self, item: tirx.Shuffle) -> Value:
        lanes = np.concatenate([np.atleast_1d(self.of(vector)) for vector in item.vectors])
        chosen = [int(self.of(index)) for index in item.indices]
        return lanes[chosen] if len(chosen) > 1 else lanes[chosen[0]]

    def _of_let(self, item: tirx.Let) -> Value:
        self.values[hash(item.var)] = self.of(item.value)
        return self.of(item.body)

    def _either(self, condition: tirx.Expr, then: tirx.Expr, other: tirx.Expr) -> Value:
        holds = self.of(condition)
        if np.ndim(holds):
            return np.where(holds, self.of(then), self.of(other))
        return self.of(then) if holds else self.of(other)

    def _of_select(self, item: tirx.Select) -> Value:
        return self._either(item.condition, item.true_value, item.false_value)

    def _of_string_imm(self, item: tirx.StringImm) -> Value:
        return item.value

    def _of_call(self, call: tvm.ir.Call) -> Value:
        name, args = call.op.name, call.args
        if name == "prim.if_then_else":
            return self._either(*args)
        if name == "tirx.call_pure_extern":
            return self._binary(_HIDDEN[args[0].value], self.of(args[1]), self.of(args[2]))
        if name == "tirx.call_llvm_pure_intrin":
            return self._intrinsic(int(args[0].value), [self.of(arg) for arg in args[1:]])
        if name in _CALLS:
            return _CALLS[name](*map(self.of, args))
        return self._of_reinterpret(call) if name == _REINTERPRET else self._of_memory(name, call)

    def _of_reinterpret(self, call: tvm.ir.Call) -> Value:
        value = self.of(call.args[0])
        if isinstance(value, Pointer):
            return value
        return np.asarray(value).view(dtype_of(call.ty))[()]

    def _of_memory(self, name: str, call: tvm.ir.Call) -> Value:
        """The other calls: pointers, and what a packed function reads of its arguments."""
        args = call.args
        if name == "tirx.buffer_data":
            return Pointer(self.memory[hash(args[0])])
        if name == "tirx.isnullptr":
            return self.of(args[0]).is_null
        if name == "tirx.handle_add_byte_offset":
            return self.of(args[0])
        assert name == "tirx.tvm_struct_get", name
        given, index, field = self.of(args[0]), int(args[1].value), int(args[2].value)
        if isinstance(given, _Arguments):
            # kTVMFFIDLTensorPtr, and the tensor.
            return np.int32(7) if field == 13 else Pointer(None, self.arguments[index])
        return self._of_tensor(given, index, field)

    def _of_tensor(self, given: Pointer, index: int, field: int) -> Value:
        """A field of a DLTensor, by TVMStructFieldKind."""
        if field == 17:  # an element of its shape
            assert given.data is not None
            return given.data.view(np.int64)[index]
        tensor = given.tensor
        assert tensor is not None
        code, bits = (
            {"f": 2, "i": 0, "u": 1, "b": 6, "V": 4}[tensor.dtype.kind],
            tensor.itemsize * 8,
        )
        plain = {4: tensor.ndim, 8: 0, 9: 0, 10: 1, 5: code, 6: bits, 7: 1}
        if field in plain:
            kinds = {5: np.uint8, 6: np.uint8, 7: np.uint16, 8: np.uint64}
            return kinds.get(field, np.int32)(plain[field])
        if field == 2:
            return Pointer(_bytes(np.array(tensor.shape, np.int64)))
        return {1: Pointer(_bytes(tensor)), 3: Pointer(None)}[field]

    @staticmethod
    def _intrinsic(number: int, args: Sequence[Value]) -> Value:
        name = _intrinsic_name(number)
        if name in ("llvm.arithmetic.fence", "llvm.expect"):
            return args[0]
        plain = {
            "llvm.maximum": _maximum,
            "llvm.minimum": _minimum,
            "llvm.fabs": np.abs,
            "llvm.sqrt": np.sqrt,
            "llvm.floor": np.floor,
            "llvm.ceil": np.ceil,
            "llvm.trunc": np.trunc,
            "llvm.rint": np.rint,
            "llvm.nearbyint": np.rint,
            "llvm.roundeven": np.rint,
            "llvm.sin": np.sin,
            "llvm.cos": np.cos,
            "llvm.vector.reduce.and": np.bitwise_and.reduce,
        }
        return plain[name](*args)


def _intrinsic_name(number: int) -> str:
    return str(tvm.target.codegen.llvm_get_intrinsic_name(number))
