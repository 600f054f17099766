"""Files of a linker for kernels, and what it refuses; how they run is in tests/functional."""

from __future__ import annotations

import io
import itertools
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from tvm import tirx

from edgepack.boards import get_board
from edgepack.compiler.backend.build import _machine_code
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.llvm import tvm_target
from edgepack.kernels.tiles import tir
from edgepack.native.linker import LinkError, link_library


def kernel(function: str = "expf") -> tirx.PrimFunc:
    """y = function(x)."""
    x, y = (tir.buffer(name, (8,), "float32") for name in "xy")

    def each(i: tirx.Expr) -> tirx.Stmt:
        return tir.store(y, tirx.call_extern("float32", function, tir.load(x, [i], 1)), [i], 1)

    return tir.function([x, y], tir.loop_of("i", 8, each))


def object_file(folder: Path, board: str, name: str = "f", function: str = "expf") -> Path:
    """Machine code of a kernel."""
    path = folder / f"{board}-{name}-{function}.o"
    _machine_code({name: Kernel.of(kernel(function))}, tvm_target(get_board(board)), path)
    return path


def linked(folder: Path, *objects: Path, builtins: Path | None = None) -> ELFFile:
    out = folder / "model.so"
    link_library(objects, out, soname="model.so", builtins=builtins)
    return ELFFile(io.BytesIO(out.read_bytes()))


def dynamic_names(elf: ELFFile) -> set[str]:
    return {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}


@pytest.mark.parametrize("board", ["rasp3b", "rasp3b-64", "local"])
def test_a_library_exports_kernels_and_hooks_alone(board: str, tmp_path: Path) -> None:
    objects = [object_file(tmp_path, board, name) for name in "fg"]
    elf = linked(tmp_path, *objects)
    first = (tmp_path / "model.so").read_bytes()
    names = dynamic_names(elf)
    assert {"__tvm_ffi_f", "__tvm_ffi_g", "expf"} <= names
    assert all(name.startswith(("__tvm_ffi_", "__TVM", "TVMFFI")) for name in names - {"", "expf"})
    tags = {tag.entry.d_tag: tag for tag in elf.get_section_by_name(".dynamic").iter_tags()}
    assert tags["DT_SONAME"].soname == "model.so"
    assert "DT_TEXTREL" not in tags
    # No segment may be written to and run, and none runs into the next.
    segments = list(elf.iter_segments("PT_LOAD"))
    assert all(one["p_flags"] & 3 != 3 for one in segments)
    for one, following in itertools.pairwise(segments):
        assert one["p_vaddr"] + one["p_memsz"] <= following["p_vaddr"]
        assert following["p_vaddr"] % following["p_align"] == (
            following["p_offset"] % following["p_align"]
        )
    linked(tmp_path, *objects)
    assert (tmp_path / "model.so").read_bytes() == first


def test_what_nobody_has_is_named(tmp_path: Path) -> None:
    lost = object_file(tmp_path, "rasp3b", function="no_such_function")
    with pytest.raises(LinkError, match="no such function: no_such_function") as caught:
        linked(tmp_path, lost)
    assert caught.value.hint is not None
    assert "edgepack[build]" in caught.value.hint
    with pytest.raises(LinkError, match="__tvm_ffi_f is defined twice"):
        linked(tmp_path, object_file(tmp_path, "rasp3b"), lost)
    with pytest.raises(LinkError, match="for another machine"):
        linked(
            tmp_path, object_file(tmp_path, "rasp3b"), object_file(tmp_path, "rasp3b-64", name="g")
        )
    with pytest.raises(LinkError, match="no object file"):
        linked(tmp_path)


def test_a_function_of_the_compiler_is_taken_from_its_archive(tmp_path: Path) -> None:
    """One that has the name which is called, and does nothing else."""
    wanted = object_file(tmp_path, "rasp3b", function="__tvm_ffi_own")
    spare = object_file(tmp_path, "rasp3b", name="own")
    member = spare.read_bytes()
    head = f"{'own.o/':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(member):<10}`\n".encode()
    archive = tmp_path / "libown.a"
    archive.write_bytes(b"!<arch>\n" + head + member)
    for builtins in (spare, archive):
        names = dynamic_names(linked(tmp_path, wanted, builtins=builtins))
        assert "__tvm_ffi_f" in names
        assert "__tvm_ffi_own" not in names
    with pytest.raises(LinkError, match="neither an object file nor an archive"):
        linked(tmp_path, wanted, builtins=Path(__file__))


def test_a_damaged_object_file_is_no_traceback(tmp_path: Path) -> None:
    path = object_file(tmp_path, "rasp3b")
    whole = path.read_bytes()
    for size in (0, 3, 40, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(LinkError):
            linked(tmp_path, path)
    (machine,) = struct.unpack_from("<H", whole, 18)
    assert machine == 40
    path.write_bytes(whole[:18] + b"\x08\0" + whole[20:])  # MIPS
    with pytest.raises(LinkError, match="not an object file for ARM"):
        linked(tmp_path, path)
    # Any byte may be another.
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            linked(tmp_path, path)
        except LinkError:
            continue
