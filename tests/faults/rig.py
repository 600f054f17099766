"""A device folder on this machine, releases for it, and a device tool that dies on command."""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgepack.base.errors import RemoteError
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.bundle.manifest import MANIFEST_NAME, release_id
from edgepack.deploy.options import TrialRules
from edgepack.deploy.transfer import Exchange, Installed, InstallRequest
from edgepack.device import Device, LocalDevice

SIGNATURE = "manifest.json.sig"
_SILENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Rig:
    """The releases below `root`, and the tool that looks after them, a build with faults.

    `environment` is what the tool finds there on top of this process's.
    """

    root: Path
    tool: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def deploy(self, bundle: Bundle, **options: Any) -> Installed:
        """The report of a deploy; see `attempt`. What arrived wrong is sent once more."""
        try:
            return self.attempt(bundle, **options)
        except RemoteError as error:
            if "did not arrive as it is in the manifest" not in error.message:
                raise
        return self.attempt(bundle, **options)

    def attempt(
        self,
        bundle: Bundle,
        *,
        fault: str = "",
        log: Path | None = None,
        keep: int = 3,
        device: Device | None = None,
        instead: Mapping[str, Path] | None = None,
        when_sent: Callable[[], None] = lambda: None,
        trial: TrialRules | None = None,
    ) -> Installed:
        """The report of a deploy over one stream; raises what `Exchange` raises.

        `instead` has other files than the bundle's to send, by the hash that is asked for. With
        `trial` the release is tried beside the current one.
        """
        stream = (device or LocalDevice(self.root.parent)).open(
            self.command("receive", fault=fault, log=log)
        )
        try:
            exchange = Exchange(stream, "device", step=lambda _: None)
            signature = bundle.path / SIGNATURE
            state = exchange.ask(
                InstallRequest(
                    manifest=bundle.file(MANIFEST_NAME).read_bytes(),
                    signature=signature.read_bytes() if signature.exists() else b"",
                    signers=b"",
                    by="tester@rig",
                    session=secrets.token_hex(8),
                    keep=keep,
                    wait_s=60,
                    silence_s=_SILENCE_S,
                    trial=trial,
                )
            )
            files = {
                entry.sha256: bundle.file(path) for path, entry in bundle.manifest.files.items()
            }
            exchange.send(state.needs, {**files, **(instead or {})})
            when_sent()
            return exchange.finish()
        finally:
            stream.close()

    def command(self, *words: str, fault: str = "", log: Path | None = None) -> str:
        """A shell command that runs the tool here."""
        settings = {"EDGEPACK_FAULT": fault, "EDGEPACK_FAULT_LOG": str(log or "")}
        settings |= self.environment
        return shlex.join(
            [
                "env",
                *(f"{key}={value}" for key, value in settings.items() if value),
                str(self.tool),
                *("--root", str(self.root)),
                *words,
            ]
        )

    def call(
        self, *words: str, fault: str = "", log: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the tool here, with --json."""
        command = self.command(*words, "--json", fault=fault, log=log)
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    def current(self) -> str | None:
        """The release that is current, all of whose files have just been read and are right."""
        link = self.root / "current"
        if not link.is_symlink():
            return None
        folder = self.root / link.readlink()
        document = json.loads((folder / MANIFEST_NAME).read_bytes())
        files = document["files"]
        found = {
            str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()
        }
        for name in (MANIFEST_NAME, SIGNATURE):
            found.pop(name, None)
        assert found.keys() == files.keys()
        for name, path in found.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == files[name]["sha256"], name
            if files[name]["mode"] == "0755":
                assert path.stat().st_mode & stat.S_IXUSR, name
        release = str(document["release"])
        assert folder.name == release
        return release

    def left_over(self) -> list[str]:
        """What a command that ended in the middle may leave, and the next install has to remove."""
        files = [
            path
            for path in self.root.rglob("*")
            if path.name.endswith((".new", ".old", ".part")) or path.parent.name == "incoming"
        ]
        # A release's record, and the copies of its manifest, go with it.
        for path in (self.root / "state").glob("[0-9a-f]" * 12 + ".*"):
            if not (self.root / "releases" / path.name.partition(".")[0]).exists():
                files.append(path)
        return sorted(str(path.relative_to(self.root)) for path in files)

    def snapshot(self) -> dict[str, tuple[int, int, int, int]]:
        """All that is here but the lock: what nothing may change."""
        return {
            str(path.relative_to(self.root)): (
                status.st_ino,
                status.st_mode,
                status.st_size,
                status.st_mtime_ns,
            )
            for path in sorted(self.root.rglob("*"))
            if path.name != ".lock" and not path.is_dir()
            for status in [path.lstat()]
        }

    def copy_to(self, root: Path) -> Rig:
        """The same device once more, links and all."""
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "-a", self.root, root], check=True)
        return replace(self, root=root)


def of_schema_1(bundle: Bundle, folder: Path) -> Bundle:
    """A copy of `bundle` in `folder` as the first version of edgepack would have made it."""
    document = json.loads(bundle.file(MANIFEST_NAME).read_bytes())
    for key in ("version", "health", "service"):
        del document[key]
    for path in ("bin/edgepack-device", "install"):
        document["files"].pop(path, None)
    document["schema"] = 1
    document["release"] = release_id(document)
    target = folder / f"{document['name']}-{document['board']}-{document['release']}"
    for path in document["files"]:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(bundle.file(path), target / path)
        (target / path).chmod(int(document["files"][path]["mode"], 8))
    text = json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False)
    (target / MANIFEST_NAME).write_text(text)
    return open_bundle(target)


def sign(bundle: Bundle, key: Path) -> None:
    """Sign `bundle` with OpenSSH itself."""
    manifest = bundle.file(MANIFEST_NAME)
    (bundle.path / SIGNATURE).unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "edgepack-bundle", manifest],
        check=True,
        capture_output=True,
    )
