"""PyTorch programs (`torch.export.save`) as ONNX models, by PyTorch's own exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgepack.base.errors import ModelError
from edgepack.model.errors import NotOnnxError

_OPSET = 18  # the lowest that the exporter writes without converting


class TorchExtraError(ModelError):
    """The packages that read PyTorch programs are not installed."""


class NotExportedError(NotOnnxError):
    """The file is no program that PyTorch can load and export."""


def read_exported(path: Path) -> Any:
    """The program at `path` as an `onnx.ModelProto`; its weights are in it.

    Raises `TorchExtraError`, and `NotExportedError` with PyTorch's own reason.
    """
    try:
        import onnxscript  # type: ignore[import-not-found]  # noqa: F401 - what the exporter needs
        import torch  # type: ignore[import-not-found]
    except ImportError as error:
        raise TorchExtraError(
            f"{path}: PyTorch programs are read with packages that are not installed: "
            f"{error.name or 'torch'}",
            hint="pip install 'edgepack[torch]', or export the model to ONNX where torch is: "
            "torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)",
        ) from None
    try:
        program = torch.export.load(path)
        exported = torch.onnx.export(program, dynamo=True, opset_version=_OPSET, verbose=False)
        return exported.model_proto
    except Exception as error:
        # Its own exceptions have no common class but this.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotExportedError(
            f"{path}: PyTorch cannot load or export this program: {reason}",
            hint="write it with torch.export.save, by a version of torch that is not newer",
        ) from error
