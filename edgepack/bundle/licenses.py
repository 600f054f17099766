"""The licence texts a bundle carries: of edgepack, of what the app holds, of the model."""

from __future__ import annotations

from collections.abc import Mapping

from edgepack.base.paths import data_file
from edgepack.bundle.manifest import check_path

FOLDER = "licenses"


def gather(runtime: Mapping[str, str], *, model: str | None = None) -> dict[str, str]:
    """Bundle path -> text, sorted by path.

    `runtime` holds the licences of the libraries linked into the app (name -> text,
    the names may have folders), `model` the text of the model's own licence. Raises
    `ManifestError` for a name that is no safe path and ValueError for a name that is
    taken by edgepack itself.
    """
    own = {"edgepack": data_file("LICENSE").read_text(encoding="utf-8")}
    if model is not None:
        own["model"] = model
    if taken := own.keys() & runtime.keys():
        raise ValueError(f"licence names that edgepack itself uses: {sorted(taken)}")
    texts = {**runtime, **own}
    return {check_path(f"{FOLDER}/{name}"): texts[name] for name in sorted(texts)}
