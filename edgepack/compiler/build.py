"""PrimFuncs -> machine code -> model.so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tvm
from tvm import tirx

from edgepack.toolchain import Toolchain, link_shared


def build_library(
    kernels: dict[str, tirx.PrimFunc],
    target: tvm.target.Target,
    toolchain: Toolchain,
    out: Path,
) -> None:
    """Compile the kernels and link them into the shared library `out`.

    Each kernel is exported as `__tvm_ffi_<name>` (tvm_ffi's TVMFFISafeCallType).
    Raises ToolchainError when the link fails.
    """
    module = tvm.IRModule(
        {name: function.with_attr("global_symbol", name) for name, function in kernels.items()}
    )
    # Storage rewrite merges small local buffers into ones so large that they are
    # taken from the workspace pool: a call per accumulator.
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_storage_rewrite": True}):
        library = tvm.compile(module, target)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        code = Path(folder) / "kernels.o"
        library.mod.write_to_file(str(code), "o")
        link_shared(toolchain, [code], out, flags=["-s"])
