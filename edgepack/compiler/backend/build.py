"""PrimFuncs -> machine code -> kernels.o and model.so."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm import s_tir, tirx

from edgepack.base import apart
from edgepack.compiler.backend import exact, inside, nested, parallel, rare
from edgepack.compiler.backend.code import KeptCode, key_of
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.schedule.vectors import to_loops
from edgepack.native.linker import link_library
from edgepack.native.toolchain import Toolchain, link_relocatable, link_shared

# What TVM does by default (`tvm.s_tir.pipeline`) to kernels that are loops already, less what is
# for GPUs and for blocks and does nothing here but take time. Storage rewrite would merge small
# local buffers into ones so large that they are taken from the workspace pool: a call per
# accumulator.
_PASSES = (
    nested.cut_nested,
    s_tir.transform.CanonicalizeLoop,
    s_tir.transform.AnnotateIrregularLoop,
    exact.hide_remainders,
    tirx.transform.FlattenBuffer,
    exact.show_remainders,
    lambda: tirx.transform.NarrowDataType(32),
    tirx.transform.VectorizeLoop,
    exact.hide,
    tirx.transform.UnrollLoop,
    s_tir.transform.RenormalizeSplitPattern,
    tirx.transform.StmtSimplify,
    tirx.transform.RemoveNoOp,
    s_tir.transform.RewriteUnsafeSelect,
    exact.show,
    tirx.transform.CommonSubexprElim,
    rare.branch_to_rare,
    tirx.transform.SplitHostDevice,
    tirx.transform.MakePackedAPI,
    tirx.transform.LowerTVMBuiltin,
    tirx.transform.LowerIntrin,
    nested.cut_nested,
)


def build_library(
    kernels: Mapping[str, Kernel],
    target: tvm.target.Target,
    toolchain: Toolchain,
    code: Path,
    out: Path,
    kept: Path | None = None,
) -> None:
    """Compile the kernels into the object file `code` and link that into the shared library `out`.

    Without a compiler there is no `code`: that is for programs, which a compiler links.

    Each kernel is exported as `__tvm_ffi_<name>` (tvm_ffi's TVMFFISafeCallType). Machine code that
    is in the folder `kept` already is not made again; the bytes are the same.
    The symbol table stays, for it tells code from constants: without it the
    disassembly of 32-bit ARM shows instructions that are none. Raises
    ToolchainError when the link fails.
    """
    cache = KeptCode(kept)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        parts = []
        for index, (name, kernel) in enumerate(kernels.items()):
            apart.at(f"making machine code of {name}", index, len(kernels))
            part = Path(folder) / f"{index}.o"
            part.write_bytes(
                cache.get(
                    key_of(f"{kernel.facts.digest} {kernel.numbers}", name, target),
                    lambda: _machine_code({name: kernel}, target, part),  # noqa: B023
                )
            )
            parts.append(part)
        if not parts:  # all is constant, and no linker links nothing
            parts.append(Path(folder) / "none.o")
            parts[0].write_bytes(_machine_code({}, target, parts[0]))
        if not toolchain.has_compiler:
            link_library(parts, out, soname=out.name, builtins=toolchain.builtins)
            return
        link_relocatable(toolchain, parts, code)
        # zig's linker always brings the whole of its compiler-rt, gcc's the shared libgcc.
        flags = ["-Wl,--gc-sections"] + (["-static-libgcc"] if toolchain.kind == "gnu" else [])
        # Not from `code`: of what every part has, conversions of halves, one is enough.
        link_shared(toolchain, parts, out, flags=flags)
    out.write_bytes(drop_debug_sections(out.read_bytes()))


def _machine_code(kernels: dict[str, Kernel], target: tvm.target.Target, out: Path) -> bytes:
    """The object file of some kernels, made as `out`."""
    bound = target.with_host(target)
    module = tvm.IRModule({name: _prepared(kernel, name) for name, kernel in kernels.items()})
    passes = [tirx.transform.BindTarget(bound), *(make() for make in _PASSES)]
    with tvm.transform.PassContext(opt_level=3):
        module = tvm.transform.Sequential(passes)(module)
        library = tvm.get_global_func("target.build.llvm")(module, bound)
    library.write_to_file(str(out), "o")
    return out.read_bytes()


def _prepared(kernel: Kernel, name: str) -> tirx.PrimFunc:
    """A kernel of loops that cores share evenly, exported by its name.

    Raises UnboundedAccessError if it might read or write beside its tensors.
    """
    function, numbers = kernel.function, kernel.numbers
    if isinstance(function.body, s_tir.SBlockRealize):
        function = to_loops(function, numbers)
    function = inside.guard_positions(parallel.in_parts(function), numbers)
    inside.verify(function, name, numbers)
    return function.with_attr("global_symbol", name)


def drop_debug_sections(elf: bytes) -> bytes:
    """A linked ELF file without its `.debug_*` sections, else unchanged.

    What `strip --strip-debug` does, which zig has only together with dropping
    the symbols; the sections hold half of the file, and paths of this machine.
    Their headers stay, as empty SHT_NULL ones, so that no section number changes.
    """
    # Elf32_Ehdr, Elf64_Ehdr: e_shoff; then e_shentsize, e_shnum, e_shstrndx.
    wide = elf[4] == 2
    word = "<Q" if wide else "<I"
    shoff_at, shentsize_at = (0x28, 0x3A) if wide else (0x20, 0x2E)
    # Elf32_Shdr, Elf64_Shdr: sh_name and sh_type (4 bytes each), then words.
    flags_at, offset_at, size_at = (8, 24, 32) if wide else (8, 16, 20)
    align_at = 48 if wide else 32
    sht_null, sht_nobits, shf_alloc = 0, 8, 2

    (table,) = struct.unpack_from(word, elf, shoff_at)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, shentsize_at)
    headers = [
        bytearray(elf[table + i * entry_size : table + (i + 1) * entry_size]) for i in range(count)
    ]

    def get(header: bytearray, at: int) -> int:
        return int(struct.unpack_from(word, header, at)[0])

    names = get(headers[names_index], offset_at)

    def is_debug(header: bytearray) -> bool:
        (name,) = struct.unpack_from("<I", header)
        return elf.startswith(b".debug_", names + name)

    kept = bytearray(
        elf[
            : max(
                get(h, offset_at) + (0 if h[4] == sht_nobits else get(h, size_at))
                for h in headers
                if get(h, flags_at) & shf_alloc
            )
        ]
    )
    for header in headers:
        if get(header, flags_at) & shf_alloc or header[4] == sht_null:
            continue
        if is_debug(header):
            header[4:] = bytes(len(header) - 4)
            continue
        start, size = get(header, offset_at), get(header, size_at)
        kept.extend(bytes(-len(kept) % max(get(header, align_at), 1)))
        struct.pack_into(word, header, offset_at, len(kept))
        kept.extend(elf[start : start + size])
    kept.extend(bytes(-len(kept) % 8))
    struct.pack_into(word, kept, shoff_at, len(kept))
    return bytes(kept) + b"".join(headers)
