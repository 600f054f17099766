"""The shared library: its functions, and what they are told and tell.

cpp_runtime/sdk/include/edgepack/edgepack.h of edgepack's source says what each of them does.
"""

from __future__ import annotations

import ctypes
import enum
from pathlib import Path
from typing import Any

API = 2
_NAME = "libedgepack.so.1"


class Status(enum.IntEnum):
    """What a function returns."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    BUSY = 3
    BAD_BUNDLE = 4
    BAD_IMAGE = 5
    WRONG_INPUT = 6
    NO_MEMORY = 7
    KERNEL_FAILED = 8
    INTERNAL = 9
    BAD_POSITION = 10
    GPU_FAILED = 11
    GPU_LOST = 12


class EdgepackError(Exception):
    """What a call was refused for: a `Status`, a sentence, and what to do next (or "")."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = Status(status)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class CError(ctypes.Structure):
    """edgepack_error"""

    _fields_ = [
        ("status", ctypes.c_int32),
        ("message", ctypes.c_char * 1024),
        ("hint", ctypes.c_char * 508),
    ]


class CModelInfo(ctypes.Structure):
    """edgepack_model_info"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("params_bytes", ctypes.c_uint64),
        ("arena_bytes", ctypes.c_uint64),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("labels", ctypes.c_int32),
        ("states", ctypes.c_int32),
    ]


class CTensor(ctypes.Structure):
    """edgepack_tensor"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bound", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
    ]


_HANDLE, _INDEX, _TEXT, _DATA, _BYTES = (
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
)
_TENSOR = ctypes.POINTER(CTensor)
# The arguments of each function before its last one, the error.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "model_open": (_TEXT, ctypes.POINTER(_HANDLE)),
    "model_close": (_HANDLE,),
    "model_get_info": (_HANDLE, ctypes.POINTER(CModelInfo)),
    "model_input": (_HANDLE, _INDEX, _TENSOR),
    "model_output": (_HANDLE, _INDEX, _TENSOR),
    "model_label": (_HANDLE, _INDEX, ctypes.POINTER(_TEXT)),
    "session_open": (_HANDLE, _INDEX, ctypes.POINTER(_HANDLE)),
    "session_close": (_HANDLE,),
    "session_input": (_HANDLE, _INDEX, _TENSOR),
    "session_output": (_HANDLE, _INDEX, _TENSOR),
    "session_set_input": (_HANDLE, _INDEX, _DATA, _BYTES),
    "session_get_output": (_HANDLE, _INDEX, _DATA, _BYTES),
    "session_set_image_file": (_HANDLE, _TEXT),
    "session_set_image": (_HANDLE, _DATA, _BYTES),
    "session_set_pixels": (_HANDLE, _DATA, _INDEX, _INDEX, _BYTES, ctypes.c_int32),
    "session_run": (_HANDLE,),
    "session_reset": (_HANDLE,),
    "session_track": (_HANDLE, _INDEX),
    "session_results": (_HANDLE, ctypes.POINTER(_TEXT)),
}


def _load() -> ctypes.CDLL:
    own = Path(__file__).with_name(_NAME)
    # Without one of its own: that of the system.
    library = ctypes.CDLL(str(own) if own.exists() else _NAME)
    library.edgepack_api.restype = ctypes.c_uint32
    if library.edgepack_api() < API:
        raise ImportError(f"{_NAME} is older than this package")
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, f"edgepack_{name}")
        function.argtypes = (*arguments, ctypes.POINTER(CError))
        function.restype = ctypes.c_int32
    library.edgepack_version.restype = ctypes.c_char_p
    return library


_library = _load()


def version() -> str:
    """The version of edgepack that built the library."""
    text: bytes = _library.edgepack_version()
    return text.decode()


def call(name: str, *arguments: object) -> None:
    """The function edgepack_`name`; raises EdgepackError."""
    error = CError()
    if getattr(_library, f"edgepack_{name}")(*arguments, ctypes.byref(error)) != 0:
        raise EdgepackError(
            error.status,
            error.message.decode(errors="replace"),
            error.hint.decode(errors="replace"),
        )
