"""A release of edgepack itself: sdist, wheel, SBOM, and one signature over the hashes of all.

    ./dev release --key FILE [--out DIR]

The same commit gives the same bytes. Whoever has the list of signers checks all of it by
ssh-keygen and sha256sum alone; SECURITY.md says how.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from edgepack.base.errors import BundleError, EdgepackError, UsageError
from edgepack.base.process import run
from edgepack.bundle.signing import read_public_key

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "edgepack-release"
"""Of the signature: a key that may sign releases of edgepack may not sign bundles by that."""
SUMS = "SHA256SUMS"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./dev release", description=__doc__.splitlines()[0])
    parser.add_argument("--key", type=Path, required=True, help="a private key, or the .pub of one "
                        "in ssh-agent")  # fmt: skip
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    args = parser.parse_args()
    try:
        if changed := run(["git", "-C", ROOT, "status", "--porcelain"]).stdout:
            raise UsageError(f"what is not committed is in no release:\n{changed}")
        for path in release(args.key, args.out):
            print(path)
    except EdgepackError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


def release(key: Path, out: Path) -> list[Path]:
    """Build it twice, compare, check and sign: the files in `out`, which must be empty or new.

    Raises UsageError for a key that is none, BundleError for a build that is not what is tracked
    or not the same twice, ToolError.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"--out: not empty: {out}")
    out.mkdir(parents=True, exist_ok=True)
    if not key.is_file():
        raise UsageError(f"--key: no such file: {key}")
    with tempfile.TemporaryDirectory() as again:
        files, others = build(out), build(Path(again))
        for path, other in zip(files, others, strict=True):
            if path.read_bytes() != other.read_bytes():
                raise BundleError(f"{path.name}: not the same when it is built again")
    sbom = out / f"{files[0].name.removesuffix('.tar.gz')}.cdx.json"
    sbom.write_text(json.dumps(bill(files), indent=2, sort_keys=True) + "\n")
    sums = out / SUMS
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in (*files, sbom)))
    run(["ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", key, sums])
    signature = out / f"{SUMS}.sig"
    with tempfile.NamedTemporaryFile("w", suffix=".signers") as signers:
        public = key if key.suffix == ".pub" else Path(f"{key}.pub")
        read_public_key(public)
        line = " ".join(public.read_text().split()[:2])
        signers.write(f'release namespaces="{NAMESPACE}" {line}\n')
        signers.flush()
        check(out, Path(signers.name), "release")
    return [*files, sbom, sums, signature]


def build(out: Path) -> list[Path]:
    """sdist and wheel, by the pinned hatchling, with the time of the commit."""
    time = run(["git", "-C", ROOT, "log", "-1", "--format=%ct"]).stdout.strip()
    words = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", out]
    run(words, cwd=ROOT, env={**os.environ, "SOURCE_DATE_EPOCH": time})
    return [next(out.glob("edgepack-*.tar.gz")), next(out.glob("edgepack-*.whl"))]


def check(folder: Path, signers: Path, principal: str) -> None:
    """As SECURITY.md tells everybody to. Raises ToolError, of ssh-keygen or of sha256sum."""
    script = (
        f"ssh-keygen -Y verify -f {signers} -I {principal} -n {NAMESPACE} -s {SUMS}.sig <{SUMS} "
        f"&& sha256sum --check --strict {SUMS}"
    )
    run(["sh", "-c", script], cwd=folder)


def sha256(path: Path) -> str:
    """Of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bill(files: list[Path]) -> dict[str, Any]:
    """What it is made of and needs, as CycloneDX 1.6: the files, and all that the lock names."""
    lock = (ROOT / "requirements.lock").read_text()
    version = files[0].name.removesuffix(".tar.gz").partition("-")[2]
    digest = "".join(sha256(path) for path in files)
    own = [
        {
            "type": "file",
            "bom-ref": f"file:{path.name}",
            "name": path.name,
            "hashes": [{"alg": "SHA-256", "content": sha256(path)}],
        }
        for path in files
    ]
    needed = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{pinned}",
            "purl": f"pkg:pypi/{name}@{pinned}",
            "name": name,
            "version": pinned,
        }
        for name, pinned in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE)
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, digest).urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "edgepack",
                "name": "edgepack",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [*own, *needed],
        "dependencies": [{"ref": "edgepack", "dependsOn": [one["bom-ref"] for one in needed]}],
    }


if __name__ == "__main__":
    sys.exit(main())
