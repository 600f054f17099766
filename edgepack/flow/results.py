"""What the app makes of a model's outputs, against the reference, before a bundle goes anywhere."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import BundleError, ConfigError
from edgepack.base.process import run
from edgepack.base.tables import parse_json
from edgepack.base.tools import ToolMissingError
from edgepack.boards import Board, load_boards
from edgepack.bundle.bundle import Bundle, Golden
from edgepack.flow.own_program import own_program
from edgepack.flow.reference import Array, of_first
from edgepack.flow.stages import OpenStage, choose, crop_tensor
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select
from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.results import (
    Box,
    Found,
    Results,
    ResultsMismatchError,
    check_equal,
)
from edgepack.preprocess.image import load_image
from edgepack.preprocess.spec import PreprocessSpec

# cpp_runtime/device/src/process.cc: kMaxOut, of which times and memory take little.
_MOST_ANSWER_BYTES = (6 << 20) - (64 << 10)
_TIMEOUT_S = 300.0
# Of all models of a bundle, on each box.
_MOST_TIMEOUT_S = 3600.0


class ResultsSizeError(ConfigError):
    """The smoke test's photo gives more than a device reads of its app."""


def golden_results(
    golden: Golden,
    outputs: Sequence[str],
    postprocess: PostprocessSpec,
    preprocess: PreprocessSpec | None,
    labels: Sequence[str],
) -> tuple[Results, tuple[int, int] | None]:
    """The reference's results of golden outputs, which `outputs` names; and the photo's size.

    The size (height, width) is None if there is no photo: coordinates are then the input's.
    """
    by_name = dict(zip(outputs, golden.outputs, strict=True))
    tensors = [of_first(by_name[name], _batch(golden)) for name in postprocess.outputs]
    if golden.image is None or preprocess is None:
        return postprocess.run(tensors, None, labels), None
    height, width = load_image(golden.image, accept=preprocess.accepted).shape[:2]
    return postprocess.run(tensors, preprocess.geometry(height, width), labels), (height, width)


def _batch(golden: Golden) -> int:
    return next((array.shape[0] for array in golden.inputs if array.ndim == 4), 1)


def check_size(results: Results) -> None:
    """Raise `ResultsSizeError` if a device could not read these results in its smoke test."""
    size = len(json.dumps(results.to_dict(), separators=(",", ":")))
    if size > _MOST_ANSWER_BYTES:
        raise ResultsSizeError(
            f"the smoke test's photo gives {size / 1e6:.1f} MB of results, of which a device reads "
            f"{_MOST_ANSWER_BYTES / 1e6:.1f} MB",
            hint="masks are most: a smaller golden_image, a higher score in [postprocess], or "
            'outputs = ["output0"], which gives boxes without masks',
        )


def check_results(
    bundle: Bundle,
    board: Board,
    golden: Golden,
    postprocess: PostprocessSpec,
    preprocess: PreprocessSpec | None,
    labels: Sequence[str],
) -> bool:
    """Compare the app's results of the golden outputs with the reference's.

    The app is the bundle's own, emulated if need be; one for this machine where there is no
    emulator, or nothing that it could link with. False: nothing was compared, for that one would
    have to be built, and there is no compiler. Raises `ResultsMismatchError`, `ResultsSizeError`,
    and `BundleError` if the app fails.
    """
    names = [tensor.name for tensor in bundle.manifest.model.outputs]
    want, size = golden_results(golden, names, postprocess, preprocess, labels)
    check_size(want)
    app = _app(bundle, board)
    if app is None:
        return False
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        words: list[str | Path] = ["--bundle", bundle.path, "--json"]
        for index, name in enumerate(postprocess.outputs):
            path = Path(folder) / f"{index}.npy"
            output = of_first(golden.outputs[names.index(name)], _batch(golden))
            np.save(path, np.ascontiguousarray(output))
            words += ["--postprocess", path]
        if size is not None:
            words += ["--size", f"{size[1]}x{size[0]}"]
        done = run(
            [*app, *words],
            timeout_s=_TIMEOUT_S,
            error=BundleError,
            what="the app's postprocessing",
        )
    answer = parse_json(done.stdout.encode(), file="edgepack-run", error=BundleError)
    check_equal(
        answer, want, size or postprocess.size or (1, 1), what=f"{bundle.path}: postprocessing"
    )
    return True


def check_stages(
    bundle: Bundle, board: Board, stages: Sequence[OpenStage], golden: Golden
) -> str | None:
    """Run the golden photo through all stages with the bundle's own app, emulated if need be.

    What each stage is given there has to be what the reference would give it of the same boxes, and
    it has to look at the same ones. None if that was compared, else why not.
    Raises `ResultsMismatchError`, and `BundleError` if the app fails.
    """
    app = own_program(bundle, board)
    image = next((name for name in bundle.manifest.files if name.startswith("golden/image.")), None)
    if app is None or image is None or golden.image is None:
        return "there is no emulator, or no C library for the program"
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        words = ("--bundle", bundle.path, "--image", bundle.file(image), "--json")
        done = run(
            [*app, *words, "--threads", "1", "--save-crops", folder],
            timeout_s=min(
                _MOST_TIMEOUT_S, _TIMEOUT_S * (1 + sum(one.stage.most for one in stages))
            ),
            error=BundleError,
            what="the app with all stages",
        )
        answer = parse_json(done.stdout.encode(), file="edgepack-run", error=BundleError)
        check_crops(answer, Path(folder), stages, golden.image, what=str(bundle.path))
    return None


def check_crops(
    answer: Mapping[str, Any],
    folder: Path,
    stages: Sequence[OpenStage],
    image: Path,
    *,
    what: str,
) -> None:
    """Raise `ResultsMismatchError` unless the app, which gave `answer` for a photo, gave its stages
    what the reference gives them of the same boxes; it is in `folder`."""
    accept = ("gray", "alpha", "16bit")
    photo = load_image(image, accept=accept)
    boxes = [
        Box(
            index=one["index"],
            label="",
            score=one["score"],
            box=tuple(one["box"]),
            points=tuple(map(tuple, one.get("points", ()))),
            answers={
                name: Results(
                    top=tuple(
                        Found(index=best["index"], label="", score=best["score"])
                        for best in said.get("top", ())
                    )
                )
                for name, said in one.get("answers", {}).items()
            },
        )
        for one in answer.get("boxes", ())
    ]
    counts = {one["stage"]: one for one in answer.get("stages", ())}
    for opened in stages:
        name = opened.stage.name
        chosen, dropped = choose(opened, boxes)
        seen = [i for i, one in enumerate(answer["boxes"]) if name in one.get("answers", {})]
        if chosen != seen or counts[name]["dropped"] != dropped:
            raise ResultsMismatchError(
                f"{what}: stage '{name}' looks at boxes {seen}, the reference at {chosen}"
            )
        for index in chosen:
            if "error" in answer["boxes"][index]["answers"][name]:
                continue
            tensor = np.load(folder / f"{name}.{index}.npy")
            wanted = crop_tensor(opened, photo, boxes[index])
            if not _same_tensor(tensor, wanted):
                raise ResultsMismatchError(
                    f"{what}: stage '{name}' is given other pixels of box {index}"
                )


def _same_tensor(tensor: Array, wanted: Array) -> bool:
    """Whether pixels are the same; numbers made of them as near as those of a photo."""
    if tensor.dtype != wanted.dtype or tensor.shape != wanted.shape:
        return False
    if tensor.dtype.kind != "f":
        return bool(np.array_equal(tensor, wanted))
    return bool(np.allclose(tensor, wanted, rtol=1e-6, atol=1e-6))


def _app(bundle: Bundle, board: Board) -> tuple[str | Path, ...] | None:
    """The start of a command line that runs edgepack-run here; None if nothing does."""
    if (own := own_program(bundle, board)) is not None:
        return own
    local = load_boards().get("local")
    if local is None:  # this machine runs no Linux
        return None
    with contextlib.suppress(ToolMissingError):
        return (build_runtime(local, select(local).toolchain).app,)
    return None
