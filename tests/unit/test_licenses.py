from __future__ import annotations

import pytest

from edgepack.bundle.licenses import gather
from edgepack.bundle.manifest import ManifestError


def test_all_of_them_sorted_by_path() -> None:
    texts = gather({"zlib": "z", "opencv/libpng": "p"}, model="m")
    assert list(texts) == [
        "licenses/edgepack",
        "licenses/model",
        "licenses/opencv/libpng",
        "licenses/zlib",
    ]
    assert texts["licenses/zlib"] == "z"
    assert texts["licenses/model"] == "m"
    assert "Apache License" in texts["licenses/edgepack"]


def test_without_a_model_licence() -> None:
    assert list(gather({})) == ["licenses/edgepack"]


def test_names_must_be_safe_and_free() -> None:
    with pytest.raises(ManifestError, match="unsafe path"):
        gather({"../zlib": "z"})
    with pytest.raises(ValueError, match="edgepack"):
        gather({"edgepack": "x"})
