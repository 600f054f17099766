"""What a bundle is made of, as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/).

Made from what the bundle itself says: the manifest's files and versions, and its licence texts,
one for each library that is linked into its programs. The same bundle gives the same bytes.
"""

from __future__ import annotations

import base64
import itertools
import json
import uuid
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from edgepack.base.errors import BundleError
from edgepack.base.tables import Table, read_json
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.licenses import FOLDER
from edgepack.bundle.manifest import (
    APP,
    DEVICE_TOOL,
    LIBRARY,
    MANIFEST_NAME,
    STAGES_FOLDER,
    Versions,
)

_OWN = ("edgepack", "model")
_PROGRAMS = {APP: "application", DEVICE_TOOL: "application", LIBRARY: "library"}


def sbom(bundle: Bundle) -> dict[str, Any]:
    """The document, for JSON. Its licence texts are those in the bundle's licenses/."""
    manifest = bundle.manifest
    root = f"bundle:{manifest.folder_name}"
    files = [
        {
            "type": _PROGRAMS.get(path, "file"),
            "bom-ref": f"file:{path}",
            "name": path,
            "hashes": [{"alg": "SHA-256", "content": entry.sha256}],
        }
        for path, entry in sorted(manifest.files.items())
    ]
    model = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": manifest.model.file,
        "hashes": [{"alg": "SHA-256", "content": manifest.model.sha256}],
        **_license(bundle, "model"),
    }
    libraries = [
        {
            "type": "library",
            "bom-ref": f"library:{name}",
            "name": name,
            **_version(name, manifest.versions),
            **_license(bundle, name),
        }
        for name in _licensed(bundle)
        if name not in _OWN
    ]
    parts = [model, *_stage_models(bundle), *libraries, *files]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, bundle.manifest_sha256).urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "firmware",
                "bom-ref": root,
                "name": manifest.name,
                "version": f"{manifest.version}+{manifest.release}",
                "hashes": [{"alg": "SHA-256", "content": bundle.manifest_sha256}],
                "properties": [{"name": "edgepack:board", "value": manifest.board}],
            },
            "tools": {
                "components": [
                    {
                        "type": "application",
                        "name": "edgepack",
                        "version": manifest.versions.edgepack,
                        **_license(bundle, "edgepack"),
                    },
                    {
                        "type": "application",
                        "name": "apache-tvm",
                        "version": manifest.versions.tvm,
                    },
                    {
                        "type": "application",
                        "name": "toolchain",
                        "version": manifest.versions.toolchain,
                    },
                ]
            },
        },
        "components": parts,
        "dependencies": [{"ref": root, "dependsOn": [str(part["bom-ref"]) for part in parts]}],
    }


def _stage_models(bundle: Bundle) -> Iterator[dict[str, Any]]:
    """The models after the first, as their folders say."""
    for number in itertools.count(1):
        about = f"{STAGES_FOLDER}/{number}/{MANIFEST_NAME}"
        if about not in bundle.manifest.files:
            return
        table = Table(
            read_json(bundle.file(about), error=BundleError), file=about, error=BundleError
        )
        model = Table(table.take("model", dict), file=about, path="model", error=BundleError)
        yield {
            "type": "machine-learning-model",
            "bom-ref": f"model:{number}",
            "name": model.take("file", str),
            "hashes": [{"alg": "SHA-256", "content": model.take("sha256", str)}],
        }


def to_bytes(bundle: Bundle) -> bytes:
    """`sbom` as a file."""
    return json.dumps(sbom(bundle), indent=2).encode() + b"\n"


def _licensed(bundle: Bundle) -> list[str]:
    """What the files in licenses/ are named after, as paths below it."""
    return sorted(
        str(PurePosixPath(path).relative_to(FOLDER))
        for path in bundle.manifest.files
        if path.startswith(f"{FOLDER}/")
    )


def _license(bundle: Bundle, name: str) -> dict[str, Any]:
    path = f"{FOLDER}/{name}"
    if path not in bundle.manifest.files:
        return {}
    text = base64.b64encode(bundle.file(path).read_bytes()).decode()
    attachment = {"contentType": "text/plain", "encoding": "base64", "content": text}
    return {"licenses": [{"license": {"name": f"licence of {name}", "text": attachment}}]}


def _version(name: str, versions: Versions) -> dict[str, str]:
    """Of those libraries that the manifest has it of."""
    return {"version": versions.opencv} if name == "opencv" else {}
