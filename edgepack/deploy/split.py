"""What a candidate can answer in the current release's place, and what it cannot."""

from __future__ import annotations

import json

from edgepack.base.errors import UsageError
from edgepack.bundle.bundle import POSTPROCESS, Bundle
from edgepack.bundle.manifest import GRAPH, STAGES
from edgepack.postprocess.boxes import Boxes
from edgepack.postprocess.classes import Classes
from edgepack.postprocess.ctc import Ctc
from edgepack.postprocess.keypoints import Keypoints
from edgepack.postprocess.spec import parse_postprocess

_HINT = "--shadow without --split compares the two, and the current release alone answers"


class CannotSplitError(UsageError):
    """An A/B test of a release whose answers cannot stand for another's."""


def check_split(bundle: Bundle) -> None:
    """Raise `CannotSplitError` if `bundle` cannot answer a share of another release's pictures.

    cpp_runtime/app/edgepack-run/split.cc answers with the rest.
    """
    if (problem := _problem(bundle)) is not None:
        raise CannotSplitError(f"--split: {bundle.manifest.name} {problem}", hint=_HINT)


def _problem(bundle: Bundle) -> str | None:
    files, service = bundle.manifest.files, bundle.manifest.service
    if STAGES in files:
        return "has models in a row, which answer together"
    if json.loads(bundle.file(GRAPH).read_bytes()).get("states"):
        return "keeps states from frame to frame, and would see a part of them"
    if service is not None and "--track" in service.args:
        return "follows things from frame to frame ([service] args: --track)"
    if POSTPROCESS not in files:
        return None
    spec = parse_postprocess(bundle.file(POSTPROCESS).read_bytes())
    masks = isinstance(spec, Boxes) and spec.makes_masks
    if isinstance(spec, Boxes | Classes | Ctc | Keypoints) and not masks:
        return None
    what = "boxes with masks" if masks else f"answers of the kind {spec.kind!r}"
    return f"gives {what}, which no candidate can give in another release's place yet"
