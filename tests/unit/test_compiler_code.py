"""Machine code that is kept by what it is made from."""

from __future__ import annotations

import hashlib
import itertools
import operator
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from tvm import tirx

from edgepack.base import cache
from edgepack.boards import get_board
from edgepack.compiler.backend.build import build_library
from edgepack.compiler.backend.code import KeptCode, digest_of, key_of
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.llvm import tvm_target
from edgepack.kernels.tiles import tir
from edgepack.native.toolchain import gnu_compiler, select

ASSEMBLY = """define internal i32 @edgepack_test() alwaysinline nounwind {{
  call void asm sideeffect "{}", ""()
  ret i32 0
}}
"""


def doubled(size: int = 8, factor: float = 2.0, comment: str = "nop") -> tirx.PrimFunc:
    """y = factor * x, with a piece of assembly that is too long for a function's text."""
    x, y = (tir.buffer(name, (size,), "float32") for name in "xy")
    body = tir.loop_of(
        "i",
        size,
        lambda i: tir.store(y, tir.load(x, [i], 1) * tirx.const(factor, "float32"), [i], 1),
    )
    call = tir.evaluate(tirx.call_extern("int32", "edgepack_test"))
    return tir.function(
        [x, y], tir.import_functions(ASSEMBLY.format(comment), tir.sequence(call, body))
    )


def combined(
    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr], *, parallel: bool = False
) -> tirx.PrimFunc:
    """z = combine(x, y), element by element."""
    x, y, z = (tir.buffer(name, (8,), "float32") for name in "xyz")
    body = tir.loop_of(
        "i",
        8,
        lambda i: tir.store(z, combine(tir.load(x, [i]), tir.load(y, [i])), [i]),
        parallel=parallel,
    )
    return tir.function([x, y, z], body)


def key(function: tirx.PrimFunc, name: str, cpu: tvm.target.Target) -> str:
    return key_of(digest_of(function), name, cpu)


def target(board: str = "rasp4b-64") -> tvm.target.Target:
    return tvm_target(get_board(board))


def test_what_is_kept_is_not_made_again(tmp_path: Path) -> None:
    made = iter([b"one", b"two"])
    kept = KeptCode(tmp_path / "kernels")
    assert [kept.get("key", lambda: next(made)) for _ in range(2)] == [b"one", b"one"]
    assert kept.get("other", lambda: next(made)) == b"two"
    assert KeptCode(None).get("key", lambda: b"three") == b"three"


@pytest.mark.parametrize("cut", [0, 5, 32, 33, -1])
def test_what_is_cut_off_is_made_again(tmp_path: Path, cut: int) -> None:
    kept = KeptCode(tmp_path)
    kept.get("key", lambda: b"code")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert kept.get("key", lambda: b"code") == b"code"
    assert path.read_bytes() == whole


def test_a_bit_that_flipped_is_seen(tmp_path: Path) -> None:
    kept = KeptCode(tmp_path)
    kept.get("key", lambda: b"code")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(bytes([*whole[:place], whole[place] ^ 1, *whole[place + 1 :]]))
        assert kept.get("key", lambda: b"code") == b"code"
        assert path.read_bytes() == whole


def test_who_cannot_write_there_makes_it_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = iter([b"one", b"two"])
    kept = KeptCode(tmp_path / "file" / "kernels")
    assert [kept.get("key", lambda: next(made)) for _ in range(2)] == [b"one", b"two"]


def test_writers_do_not_meet(tmp_path: Path) -> None:
    code = os.urandom(1 << 16)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: KeptCode(tmp_path).get("key", lambda: code), range(64))
        assert set(map(hash, found)) == {hash(code)}
    assert [path.name for path in tmp_path.iterdir()] == ["key.o"]


def test_the_key_is_of_all_that_code_is_made_from() -> None:
    others = {
        "as it is": key(doubled(), "f", target()),
        "name": key(doubled(), "g", target()),
        "difference": key(combined(operator.sub), "f", target()),
        "its sign": key(combined(lambda x, y: y - x), "f", target()),
        "sum": key(combined(operator.add), "f", target()),
        "loop": key(combined(operator.add, parallel=True), "f", target()),
        "type": key(combined(lambda x, y: tir.cast(x, "int32") + y), "f", target()),
        "other type": key(combined(lambda x, y: tir.cast(x, "uint32") + y), "f", target()),
        "size": key(doubled(9), "f", target()),
        "constant": key(doubled(factor=2.0000002), "f", target()),
        "assembly": key(doubled(comment="nop; nop"), "f", target()),
        "CPU": key(doubled(), "f", target("rasp3b-64")),
        "cores": key(doubled(), "f", tvm_target(replace(get_board("rasp4b-64"), clusters=()))),
    }
    for (one, mine), (other, its) in itertools.combinations(others.items(), 2):
        assert mine != its, f"{one}, {other}"
    assert key(doubled(), "f", target()) == others["as it is"]


def test_kept_code_gives_the_same_bytes(tmp_path: Path) -> None:
    board = get_board("local")
    toolchain = select(board, "gnu" if gnu_compiler(board) else None).toolchain
    kernels = {"f": Kernel.of(doubled()), "g": Kernel.of(doubled(16))}
    kept, found = tmp_path / "kernels", []
    for turn, folder in enumerate([None, kept, kept]):
        code, library = tmp_path / f"{turn}.o", tmp_path / str(turn) / "model.so"
        library.parent.mkdir()
        build_library(kernels, target("local"), toolchain, code, library, folder)
        found.append([hashlib.sha256(path.read_bytes()).digest() for path in (code, library)])
    assert found[0] == found[1] == found[2]
    assert len(list(kept.iterdir())) == len(kernels)


def test_pruning_takes_what_was_not_used(tmp_path: Path) -> None:
    kept = KeptCode(tmp_path / "kernels")
    long_ago = time.time() - 40 * cache.DAY_S
    for key in ("used", "unused"):
        kept.get(key, lambda: b"code")
        os.utime(tmp_path / "kernels" / f"{key}.o", (long_ago, long_ago))
    kept.get("used", lambda: b"code")
    chosen = cache.choose(
        cache.entries(tmp_path), now=time.time(), unused_s=30 * cache.DAY_S, max_bytes=None
    )
    assert [entry.path.name for entry in chosen] == ["unused.o"]
    assert all(map(cache.remove, chosen))
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["used.o"]
