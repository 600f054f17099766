"""Models and their sessions."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from typing import Any, NamedTuple

from edgepack_runtime._library import (
    CModelInfo,
    CTensor,
    EdgepackError,
    Status,
    call,
)

# By edgepack_dtype: numpy's name, its typestr, and the struct module's format.
_DTYPES = (
    ("bool", "|b1", "?"),
    ("int8", "|i1", "b"),
    ("uint8", "|u1", "B"),
    ("int16", "<i2", "h"),
    ("uint16", "<u2", "H"),
    ("int32", "<i4", "i"),
    ("uint32", "<u4", "I"),
    ("int64", "<i8", "q"),
    ("uint64", "<u8", "Q"),
    ("float16", "<f2", "e"),
    ("float32", "<f4", "f"),
    ("float64", "<f8", "d"),
)
_TYPESTR = {name: typestr for name, typestr, _ in _DTYPES}
_FORMAT = {name: format_ for name, _, format_ in _DTYPES}
_PIXELS = ("rgb", "bgr", "gray")


class TensorInfo(NamedTuple):
    """An input or output. `dtype` is numpy's name ("float32"); `bound` is the largest shape of an
    output whose shape depends on the data, else None."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    bound: tuple[int, ...] | None


def _info(tensor: CTensor) -> TensorInfo:
    return TensorInfo(
        name=tensor.name.decode(),
        dtype=_DTYPES[tensor.dtype][0],
        shape=tuple(tensor.shape[: tensor.rank]),
        nbytes=tensor.bytes,
        bound=tuple(tensor.bound[: tensor.rank]) if tensor.bound else None,
    )


class _Handle:
    """A handle of the library, closed when nobody refers to it any more."""

    def __init__(self, kind: str, *arguments: object) -> None:
        self._kind = kind
        self.value = ctypes.c_void_p()
        call(f"{kind}_open", *arguments, ctypes.byref(self.value))

    # `call` as it was: a program that ends may have nothing else left.
    def __del__(self, call: Any = call) -> None:
        if self.value:
            call(f"{self._kind}_close", self.value)


class Tensor:
    """An input or output in place, as it was when it was asked for: `data` are its bytes.

    `numpy.asarray(tensor)` is an array of the same memory. That lives as long as anybody refers to
    it, even if the session is closed.
    """

    def __init__(self, tensor: CTensor, owner: _Handle) -> None:
        self.info = _info(tensor)
        self._owner = owner
        self._address: int = tensor.data or 0

    @property
    def data(self) -> memoryview:
        """The bytes, writable."""
        array = (ctypes.c_ubyte * self.info.nbytes).from_address(self._address)
        array._owner = self._owner  # type: ignore[attr-defined]  # as long as the view
        return memoryview(array).cast("B")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.info.shape,
            "typestr": _TYPESTR[self.info.dtype],
            "data": (self._address, False),
        }

    def tolist(self) -> list[Any]:
        """The elements in C order, without numpy."""
        elements = struct.iter_unpack(f"<{_FORMAT[self.info.dtype]}", self.data)
        return [element for (element,) in elements]

    def __repr__(self) -> str:
        return f"Tensor({self.info.name!r}, {self.info.dtype}, {self.info.shape})"


class Model:
    """The model of the bundle in a folder: what `edgepack package` writes, or a device's release.

    Raises EdgepackError if it is damaged or of another machine.
    """

    def __init__(self, bundle: str | os.PathLike[str]) -> None:
        self._handle: _Handle | None = _Handle("model", os.fsencode(bundle))
        info = CModelInfo()
        call("model_get_info", self._handle.value, ctypes.byref(info))
        self.name: str = info.name.decode()
        self.params_bytes: int = info.params_bytes
        """Weights: mapped once, whatever the number of sessions."""
        self.arena_bytes: int = info.arena_bytes
        """What each session takes on top."""
        self.inputs = [self._tensor("model_input", i) for i in range(info.inputs)]
        self.outputs = [self._tensor("model_output", i) for i in range(info.outputs)]
        self.labels = [self._label(i) for i in range(info.labels)]

    def session(self, threads: int = 1) -> Session:
        """Memory to run the model in. `threads` share the work of a run; 0: one per fast core."""
        return Session(self, threads)

    def close(self) -> None:
        """Give the model back; sessions stay as they are."""
        self._handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise EdgepackError(Status.INVALID_HANDLE, "the model was closed")
        return self._handle.value

    def _tensor(self, function: str, index: int) -> TensorInfo:
        tensor = CTensor()
        call(function, self._open(), index, ctypes.byref(tensor))
        return _info(tensor)

    def _label(self, index: int) -> str:
        label = ctypes.c_char_p()
        call("model_label", self._open(), index, ctypes.byref(label))
        return (label.value or b"").decode(errors="replace")


class Session:
    """Runs a model, on one thread at a time: another one gets an EdgepackError (BUSY)."""

    def __init__(self, model: Model, threads: int = 1) -> None:
        self._handle: _Handle | None = _Handle("session", model._open(), threads)
        self._inputs = model.inputs

    def input(self, which: int | str = 0) -> Tensor:
        """An input in place, by position or name: write all inputs before each run."""
        return self._tensor("session_input", self._index(which))

    def output(self, index: int = 0) -> Tensor:
        """An output in place: to be read before the next input is written."""
        return self._tensor("session_output", index)

    def set_input(self, which: int | str, value: Any) -> None:
        """Copy a tensor into an input, by position or name: packed bytes, or anything that has
        numpy's array interface, of the input's dtype and shape and in C order."""
        index = self._index(which)
        address, size, keep = self._address(index, value)
        call("session_set_input", self._open(), index, address, size)
        del keep

    def set_image(self, image: str | os.PathLike[str] | bytes) -> None:
        """Make the input of a JPEG or PNG image, a path or a file's bytes, as the bundle says."""
        if isinstance(image, bytes):
            call("session_set_image", self._open(), image, len(image))
        else:
            call("session_set_image_file", self._open(), os.fsencode(image))

    def set_pixels(self, pixels: Any, order: str = "rgb") -> None:
        """Make the input of pixels, as the bundle says: uint8 of shape (height, width, 3), or
        (height, width) if `order` is "gray". `order` is "rgb", "bgr" or "gray"; `pixels` has
        numpy's array interface, or is a memoryview of that shape."""
        if order not in _PIXELS:
            raise EdgepackError(
                Status.INVALID_ARGUMENT, f"order is {order!r}, none of {', '.join(_PIXELS)}"
            )
        address, shape, keep = _pixels(pixels)
        channels = () if order == "gray" else (3,)
        if len(shape) != 2 + len(channels) or shape[2:] != channels:
            raise EdgepackError(
                Status.INVALID_ARGUMENT, f"pixels have shape {shape}: ({order}) is another one"
            )
        call(
            *("session_set_pixels", self._open(), address),
            *(shape[0], shape[1], 0, _PIXELS.index(order)),
        )
        del keep

    def run(self) -> None:
        """Compute the outputs of the inputs that were written. Stages, if the bundle has some, look
        at the boxes in the image that was set; what they say is in `results`, and no output is
        kept."""
        call("session_run", self._open())

    def track(self, most_missed: int) -> None:
        """Give each box in the results a "track" from the next run on: a number that stays with an
        object from image to image, until it is missed in more than `most_missed` runs in a row."""
        call("session_track", self._open(), most_missed)

    def reset(self) -> None:
        """Make all states what they were before the first run (inputs that keep an output of
        the run before, unless they are written), and end all tracks."""
        call("session_reset", self._open())

    def results(self) -> dict[str, Any]:
        """What the outputs say by the bundle's postprocessing: "top", "boxes", "keypoints",
        "tensors", "areas" or "text", as in `edgepack-run --json`. Boxes have "answers" if the
        bundle has stages."""
        text = ctypes.c_char_p()
        call("session_results", self._open(), ctypes.byref(text))
        found: dict[str, Any] = json.loads(text.value or b"{}")
        return found

    def close(self) -> None:
        """Give the session back. Its memory goes with the last tensor that refers to it."""
        self._handle = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise EdgepackError(Status.INVALID_HANDLE, "the session was closed")
        return self._handle.value

    def _index(self, which: int | str) -> int:
        if isinstance(which, int):
            return which
        names = [info.name for info in self._inputs]
        if which not in names:
            raise EdgepackError(
                Status.INVALID_ARGUMENT, f"there is no input '{which}': {', '.join(names)}"
            )
        return names.index(which)

    def _tensor(self, function: str, index: int) -> Tensor:
        tensor = CTensor()
        handle = self._open()
        call(function, handle, index, ctypes.byref(tensor))
        assert self._handle is not None
        return Tensor(tensor, self._handle)

    def _address(self, index: int, value: Any) -> tuple[Any, int, Any]:
        """Where a value's bytes are, how many, and what keeps them there."""
        interface = getattr(value, "__array_interface__", None)
        if interface is None:
            return _bytes(value)
        if 0 <= index < len(self._inputs):
            info = self._inputs[index]
            typestr, shape = interface["typestr"], tuple(interface["shape"])
            if typestr != _TYPESTR[info.dtype] or shape != info.shape:
                raise EdgepackError(
                    Status.WRONG_INPUT,
                    f"input '{info.name}' is {info.dtype} {info.shape}, not {typestr} {shape}",
                )
        _check_order(interface)
        size = int(interface["typestr"][2:])
        for extent in interface["shape"]:
            size *= extent
        return interface["data"][0], size, value


def _check_order(interface: dict[str, Any]) -> None:
    if interface.get("strides") is not None:
        raise EdgepackError(
            Status.INVALID_ARGUMENT,
            "the array is not packed in C order",
            "give numpy.ascontiguousarray(it)",
        )


def _bytes(value: Any) -> tuple[Any, int, Any]:
    if isinstance(value, bytes):
        return value, len(value), value
    view = memoryview(value)
    if not view.c_contiguous:
        raise EdgepackError(Status.INVALID_ARGUMENT, "the buffer is not packed in C order")
    if view.readonly or view.nbytes == 0:
        copy = view.tobytes()
        return copy, len(copy), copy
    array = (ctypes.c_ubyte * view.nbytes).from_buffer(view.cast("B"))
    return ctypes.addressof(array), view.nbytes, array


def _pixels(value: Any) -> tuple[Any, tuple[int, ...], Any]:
    """Where pixels are, their shape, and what keeps them there."""
    interface = getattr(value, "__array_interface__", None)
    if interface is None:
        view = memoryview(value)
        kind, shape = view.format, tuple(view.shape or ())
        address, _, keep = _bytes(view)
    else:
        _check_order(interface)
        kind, shape = interface["typestr"], tuple(interface["shape"])
        address, keep = interface["data"][0], value
    if kind not in ("|u1", "B"):
        raise EdgepackError(Status.INVALID_ARGUMENT, f"pixels are {kind}, not uint8")
    return address, shape, keep
