"""huggingface_hub, which is no package of edgepack's own, from the cache."""

from __future__ import annotations

from bench.fetch import Wheel, unpacked
from tests.support import importable

# With what it needs; hf-xet, for another way of transfer, is left out.
_WHEELS = (
    ("anyio", "4.16.0", "c66ae634e0b8228396b801741beb3294326d4b6102f7bba4041c0dfb58c29026"),
    ("click", "8.5.1", "8bb5376d2006950386f8c6427613334a2acadc5f559cb80e638d00b4df957e37"),
    ("filelock", "4.3.1", "79e43df8e9fe509cd83a3899a7c186c8077cbbe4d200a1ed3705c2f3bb6bc487"),
    ("fsspec", "2026.9.0", "8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f"),
    ("h11", "0.16.0", "63cf8bbe7522de3bf65932fda1d9c2772064ffb3dae62d55932da54b31cb6c86"),
    ("httpcore2", "2.16.2", "16051ae2a42f776007543f32de9349a317b23d2cbb4e1456b4bac0e88b87419a"),
    ("httpx2", "2.16.2", "f05c13aade4c45dbf1c9060647a1058f0acad62398fad96e741269edb33d46f5"),
    (
        "huggingface_hub",
        "2.4.0",
        "42ecfd93ede47bdd333daebbf66a32d7bfe2e18752754fe4d2d4f98a0179d801",
    ),
    ("idna", "3.20", "ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c"),
    ("tqdm", "4.70.1", "c293e525e6fef9c20e8728fd4612df02a0aa31bb5fe91ecd93e123b1b7bffa73"),
    ("truststore", "0.10.5", "9aaaedaefaf06d8b206278cf8b5012bc897f485a874503501e12d776df78951c"),
)


def use_hub_client() -> None:
    """Make `huggingface_hub` importable."""
    importable(
        *(
            unpacked(Wheel(name=name, version=version, platform="any", sha256=sha256))
            for name, version, sha256 in _WHEELS
        )
    )
