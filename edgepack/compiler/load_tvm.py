"""Imports TVM, in half of the time that it takes by itself; imported before all that imports it.

While TVM's modules are imported they ask for types that are in a library which TVM loads later, or
not at all. The first one that is not found makes it read the debug information of all libraries, to
say where. And each module has all names of functions listed, of which there are thousands.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tvm_ffi import registry

# The first one's symbols are there for the second one, as TVM has it.
_LIBRARIES = (("libtvm_runtime.so", ctypes.RTLD_GLOBAL), ("libtvm_runtime_extra.so", 0))


def _load_libraries() -> None:
    spec = importlib.util.find_spec("tvm")
    for folder in spec.submodule_search_locations or () if spec else ():
        for name, mode in _LIBRARIES:
            # Without them TVM is slower, or says itself what is wrong.
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(Path(folder) / "lib" / name), mode)


@contextlib.contextmanager
def _names_listed_once() -> Iterator[None]:
    """Modules want the names of TVM's libraries, which are loaded."""
    listed = registry.list_global_func_names
    registry.list_global_func_names = cache(listed)
    try:
        yield
    finally:
        registry.list_global_func_names = listed


if "tvm" not in sys.modules:
    _load_libraries()
    with _names_listed_once():
        importlib.import_module("tvm.relax")
