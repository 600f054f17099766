"""Files of other formats: what they are, and how the same model becomes ONNX.

By their names first; by how they begin, where the name says nothing or something else.
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from edgepack.model.errors import NotOnnxError

_KERAS = "keras.saving.load_model({name!r}).export('model.onnx', format='onnx')"
_YOLO = "yolo export model=best.pt format=onnx"
# What a file of another format is, and how the same model becomes ONNX.
_OTHERS: dict[str, tuple[str, str]] = {
    ".keras": ("a Keras model", f"with Keras 3 and tf2onnx: {_KERAS}"),
    ".h5": ("a Keras model", f"with Keras 3 and tf2onnx: {_KERAS}"),
    ".hdf5": ("a Keras model", f"with Keras 3 and tf2onnx: {_KERAS}"),
    ".pb": (
        "a TensorFlow graph",
        "python -m tf2onnx.convert --saved-model {folder} --output model.onnx",
    ),
    ".eim": (
        "a program of Edge Impulse with the model inside",
        "download the model itself, ONNX or TensorFlow Lite, from the project's dashboard there",
    ),
    ".pdmodel": (
        "a Paddle model",
        "paddle2onnx --model_dir . --model_filename {name} --params_filename {stem}.pdiparams "
        "--save_file model.onnx",
    ),
    ".pdiparams": (
        "the weights of a Paddle model",
        "paddle2onnx --model_dir . --model_filename {stem}.pdmodel --params_filename {name} "
        "--save_file model.onnx",
    ),
    ".torchscript": (
        "a TorchScript program",
        f"{_YOLO}; or torch.onnx.export(torch.jit.load({{name!r}}), (example,), 'model.onnx', "
        "dynamo=False)",
    ),
    ".safetensors": (
        "weights without their graph",
        "optimum-cli export onnx --model FOLDER onnx/",
    ),
    ".gguf": (
        "weights of a language model without its graph",
        "optimum-cli export onnx --model FOLDER onnx/, of the model that it was made from",
    ),
    ".ckpt": (
        "a checkpoint: weights without their graph",
        "where it was made, with PyTorch Lightning: model.to_onnx('model.onnx', example)",
    ),
    ".cbm": (
        "a model of CatBoost",
        "where it was made: model.save_model('model.onnx', format='onnx')",
    ),
    ".ubj": (
        "a model of XGBoost",
        "where it was made: onnx.save(onnxmltools.convert_xgboost(model, initial_types=[('x', "
        "FloatTensorType([None, FEATURES]))]), 'model.onnx')",
    ),
}
_LIGHTGBM = (
    "where it was made: onnx.save(onnxmltools.convert_lightgbm(model, initial_types=[('x', "
    "FloatTensorType([None, FEATURES]))]), 'model.onnx')"
)
_PICKLE = (
    "a Python pickle, which would run code if it were read",
    "where it was made: onnx.save(skl2onnx.to_onnx(model, X[:1].astype('float32')), 'model.onnx')",
)
_OTHERS |= dict.fromkeys((".pkl", ".pickle", ".joblib"), _PICKLE)
_OTHERS |= dict.fromkeys((".jit", ".ptl"), _OTHERS[".torchscript"])
_NO_MODELS = {
    **dict.fromkeys((".jpg", ".jpeg", ".png"), ("a photo", "edgepack check --image")),
    ".csv": ("a table", "edgepack check --rows"),
}
_WEIGHTS = "where it was made, with the model: torch.onnx.export(model, inputs, 'model.onnx')"
_OTHERS |= {
    ".pte": (
        "a program of ExecuTorch",
        "torch.export.save(torch.export.export(model.eval(), (example,)), 'model.pt2')",
    ),
    ".pdparams": (
        "weights of Paddle without their graph",
        "where it was made: paddle.onnx.export(model, 'model', input_spec=[...])",
    ),
    ".msgpack": ("weights without their graph", "optimum-cli export onnx --model FOLDER onnx/"),
    ".weights": ("weights of darknet without their graph", _WEIGHTS),
}
_OTHERS[".onnx_data"] = ("weights that lie beside an ONNX model", "name the .onnx file")
# What is made of a model and never becomes one again.
_BUILT_FROM = f"export what it was built from, for example: {_YOLO}"
_OTHERS |= {
    suffix: (f"{what}, which runs on one kind of {where}", _BUILT_FROM)
    for suffixes, what, where in (
        ((".engine", ".trt", ".plan"), "a TensorRT engine", "GPU"),
        ((".rknn",), "a model compiled by Rockchip's RKNN", "accelerator"),
        ((".hef",), "a model compiled for Hailo", "accelerator"),
        ((".om",), "a model compiled for Ascend", "accelerator"),
        ((".kmodel",), "a model compiled by nncase", "accelerator"),
        ((".dlc",), "a model converted by Qualcomm's SNPE", "accelerator"),
        ((".blob",), "a model compiled for Myriad", "accelerator"),
        ((".cvimodel", ".bmodel"), "a model compiled for Sophgo", "accelerator"),
        ((".axmodel",), "a model compiled for Axera", "accelerator"),
    )
    for suffix in suffixes
}
_OTHERS |= {
    suffix: (f"a model in the form of {what}", _BUILT_FROM)
    for suffix, what in {
        ".mnn": "MNN",
        ".param": "ncnn",
        ".xml": "OpenVINO",
        ".mlmodel": "Core ML",
        ".mlpackage": "Core ML",
        ".mlmodelc": "Core ML",
        ".tmfile": "Tengine",
        ".nb": "Paddle Lite",
        ".ort": "onnxruntime",
        ".mar": "TorchServe",
        ".caffemodel": "Caffe",
        ".prototxt": "Caffe",
        ".uff": "TensorRT's parser",
    }.items()
}


def check_format(path: Path) -> None:
    """Raise `NotOnnxError` for a file whose name says that another tool has to convert it."""
    name = path.name.lower()
    suffix = ".onnx_data" if name.endswith(".onnx.data") else path.suffix.lower()
    if (other := _OTHERS.get(suffix)) is not None:
        raise _convert(path, *other)


def check_content(path: Path, data: bytes) -> None:
    """Raise `NotOnnxError` for a file that is no ONNX model and begins as one of another kind."""
    if (option := _NO_MODELS.get(path.suffix.lower())) is not None:
        what, words = option
        raise NotOnnxError(f"{path}: {what}, not a model", hint=f"{words} {path}")
    if data.startswith(b"version https://git-lfs"):
        raise NotOnnxError(
            f"{path}: a Git LFS pointer, not the model itself", hint="fetch it with `git lfs pull`"
        )
    for begin, offset, what, hint in _BEGINNINGS:
        if data.startswith(begin, offset):
            raise NotOnnxError(
                f"{path}: not an ONNX model, but {what}", hint=hint.format(path=path)
            )
    for begin, offset, suffix in _BEGINNINGS_OF:
        if data.startswith(begin, offset):
            raise _convert(path, *_OTHERS[suffix])
    head = data[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not data:
        raise NotOnnxError(
            f"{path}: not an ONNX model, but an empty file", hint="copy or download it again"
        )
    if head.startswith((b"<!doctype", b"<html")):
        raise NotOnnxError(
            f"{path}: not an ONNX model, but a web page",
            hint="download the file itself, not the page that shows it",
        )
    if head.startswith(b"{") and b'"learner"' in head:
        raise _convert(path, *_OTHERS[".ubj"])
    if head.startswith(b"{") and (b'"graph-model"' in head or b'"layers-model"' in head):
        raise _convert(path, "a model of TensorFlow.js", _OTHERS[".pb"][1])
    if data.startswith(b"PK\x03\x04"):
        raise _of_archive(path)


def _convert(path: Path, what: str, hint: str) -> NotOnnxError:
    return NotOnnxError(
        f"{path}: {what}: edgepack reads ONNX, TFLite and exported PyTorch programs",
        hint=hint.format(name=path.name, stem=path.stem, folder=path.parent),
    )


def _of_archive(path: Path) -> NotOnnxError:
    """Keras and PyTorch write ZIP files, too."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {PurePosixPath(name).name for name in archive.namelist()[:_MOST_NAMES]}
    except (OSError, ValueError, zipfile.BadZipFile):
        names = set()
    if "model.weights.h5" in names:
        return _convert(path, *_OTHERS[".keras"])
    if "constants.pkl" in names:
        return _convert(path, *_OTHERS[".torchscript"])
    if "data.pkl" in names:
        return _convert(path, "weights of PyTorch without their graph", _WEIGHTS)
    return NotOnnxError(f"{path}: not an ONNX model, but a ZIP archive", hint=f"unzip {path}")


_HEAD = 4096
_MOST_NAMES = 10_000
# What a file begins with, at which byte, and what it is then.
_BEGINNINGS = (
    (b"\x1f\x8b", 0, "compressed by gzip", "gunzip {path}, or tar xzf {path}"),
    (b"\xfd7zXZ\0", 0, "compressed by xz", "unxz {path}, or tar xJf {path}"),
    (b"BZh", 0, "compressed by bzip2", "bunzip2 {path}, or tar xjf {path}"),
    (b"\x28\xb5\x2f\xfd", 0, "compressed by zstd", "unzstd {path}"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7z archive", "7z x {path}"),
    (b"Rar!", 0, "a RAR archive", "unrar x {path}"),
    (b"ustar", 257, "a TAR archive", "tar xf {path}"),
    (b"TFL3", 4, "a TFLite model", "call it .tflite"),
    (b"\x89PNG", 0, "a photo", "edgepack check --image {path}"),
    (b"\xff\xd8\xff", 0, "a photo", "edgepack check --image {path}"),
    (b"%PDF", 0, "a document", "name the model"),
    (b"\x7fELF", 0, "a program or library", "name the model that it was made from"),
    (b"tree\nversion=", 0, "a model of LightGBM", _LIGHTGBM),
)
_BEGINNINGS_OF = (
    *((bytes((0x80, version)), 0, ".pkl") for version in range(2, 6)),
    (b"\x89HDF\r\n", 0, ".h5"),
    (b"ORTM", 4, ".ort"),
    (b"ET1", 4, ".pte"),
    (b"GGUF", 0, ".gguf"),
    (b'{"', 8, ".safetensors"),
    (b"7767517\n", 0, ".param"),
    (b"CBM1", 0, ".cbm"),
    (b"{L\0\0\0\0\0\0\0\x07learner", 0, ".ubj"),
    (b"ftrt", 0, ".engine"),
    (b"RKNN", 0, ".rknn"),
)
