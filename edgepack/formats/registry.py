"""Images of several boards under one name in a registry, by skopeo, signed as cosign does it.

An index names the image of each platform; an engine takes its own. Signatures lie beside it, under
the tag that cosign, podman and skopeo look at (`sha256-<digest>.sig`), of the index and of each
image, since some verify the one and some the other:
https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.process import run
from edgepack.base.tools import find_tool
from edgepack.boards import Board
from edgepack.bundle.bundle import Bundle
from edgepack.formats import oci
from edgepack.formats.base import PackageError
from edgepack.formats.oci import Blob, OciImage
from edgepack.model.sources.oci import RegistryName, send

_SIGNED = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"


@dataclass(frozen=True, kw_only=True)
class PublishedImages:
    """What lies in the registry: the `address` of the index, and those of the images by board."""

    address: str
    images: Mapping[str, str]
    platforms: Mapping[str, str]
    signed: bool


def check(boards: Sequence[Board], name: str, key: Path | None) -> RegistryName:
    """Check all that can be known before there are bundles; what `name` stands for.

    Raises UsageError for boards that an engine cannot tell apart, a name with a digest, a key that
    is not there; ToolMissingError if a program is not installed.
    """
    reference = RegistryName.parse(name)
    if reference.digest:
        raise UsageError(
            f"{reference}: a digest is what becomes of the images", hint="registry/name:tag"
        )
    seen: dict[str, str] = {}
    for board in boards:
        platform = _words(oci.platform_of(board))
        if platform in seen:
            raise UsageError(
                f"{seen[platform]} and {board.name} are both {platform}: an engine cannot tell "
                "their images apart",
                hint="publish one of them under another tag",
            )
        seen[platform] = board.name
    find_tool("skopeo")
    if key is not None:
        if not key.is_file():
            raise UsageError(f"--pem-key: no such file: {key}")
        find_tool("openssl")
    return reference


def publish(
    bundles: Mapping[str, Bundle], boards: Mapping[str, Board], name: str, key: Path | None = None
) -> PublishedImages:
    """Put the images of `bundles` (by board) under `name`, an address without its scheme.

    Layers that are there already are not sent. Signatures, by the EC key in the PEM file `key`,
    come first: whoever sees the new images finds them signed. Raises what `check` and `oci.image`
    raise, SourceError if the registry does not take it, PackageError if the key cannot sign.
    """
    reference = check([boards[board] for board in bundles], name, key)
    images = {
        board: oci.image(bundle, boards[board], compress=True) for board, bundle in bundles.items()
    }
    index = oci.index_of(images)
    if key is not None:
        for blob in (index, *(image.manifest for image in images.values())):
            signature = _signature(blob, reference, key)
            tag = f"sha256-{blob.digest}.sig"
            _push(signature.blobs, signature.manifest, reference.with_tag(tag))
    _push([blob for one in images.values() for blob in one.blobs], index, reference)
    return PublishedImages(
        address=_address(reference, index),
        images={board: _address(reference, one.manifest) for board, one in images.items()},
        platforms={board: _words(one.platform) for board, one in images.items()},
        signed=key is not None,
    )


def _push(blobs: Sequence[Blob], top: Blob, reference: RegistryName) -> None:
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        layout = Path(name)
        folder = layout / "blobs" / "sha256"
        folder.mkdir(parents=True)
        for blob in (*blobs, top):
            (folder / blob.digest).write_bytes(blob.data)
        index = {"schemaVersion": 2, "manifests": [top.descriptor()]}
        (layout / "index.json").write_text(json.dumps(index))
        (layout / "oci-layout").write_bytes(oci.LAYOUT)
        size_bytes = sum(len(blob.data) for blob in blobs)
        send(layout, reference, size_bytes, options=("--all", "--preserve-digests"))


def _signature(blob: Blob, reference: RegistryName, key: Path) -> OciImage:
    """An image whose layer says which digest is signed for which repository."""
    payload = {
        "critical": {
            "identity": {"docker-reference": f"{reference.host}/{reference.path}"},
            "image": {"docker-manifest-digest": f"sha256:{blob.digest}"},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    layer = Blob(media_type=_SIGNED, data=json.dumps(payload).encode())
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        file, signature = Path(name) / "payload", Path(name) / "signature"
        file.write_bytes(layer.data)
        words = ["dgst", "-sha256", "-sign", str(key), "-out", str(signature), str(file)]
        run([find_tool("openssl"), *words], error=PackageError, what=f"signing with {key}")
        signed = base64.b64encode(signature.read_bytes()).decode()
    return oci.image_of_layer(layer, {_SIGNATURE: signed})


def _address(reference: RegistryName, blob: Blob) -> str:
    return f"oci://{reference.host}/{reference.path}@sha256:{blob.digest}"


def _words(platform: Mapping[str, str]) -> str:
    """As engines write it: linux/arm/v7."""
    names = ("os", "architecture", "variant")
    return "/".join(platform[name] for name in names if name in platform)
