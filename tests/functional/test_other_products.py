"""A vendor's own signed bundles, for the same board: of another name, an unraised version, too old.

The real tool does it, on this machine.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle import signing
from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
from edgepack.bundle.manifest import MANIFEST_NAME, SIGNATURE_NAME, TIME_FORMAT
from tests.bundles import FakeTool
from tests.device_tool import host_tool
from tests.fake_app import fake_bundle
from tests.ssh_keys import make_key, public

REFUSED = 5
Make = Callable[..., Bundle]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("keys")
    return [make_key(folder, name) for name in ("first", "second", "third")]


@pytest.fixture
def make(tmp_path: Path, keys: list[Path]) -> Make:
    """Makes a signed bundle."""
    count = itertools.count()

    def bundle(*, signed_by: tuple[int, ...] = (0,), params: str = "", **changes: Any) -> Bundle:
        number = next(count)
        tool = FakeTool(path=host_tool(faults=True))
        weights = (params or f"weights {number}").encode()
        made = fake_bundle(tmp_path / f"b{number}", weights=weights, tool=tool, **changes)
        for key in signed_by:
            signing.sign_folder(made, keys[key], add=True)
        return made

    return bundle


class Device:
    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, *words: str | Path) -> tuple[int, dict[str, Any]]:
        argv = [host_tool(faults=True), "--root", self.root, "--json", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
        assert "Sanitizer" not in done.stderr
        return done.returncode, json.loads(done.stdout or "{}")

    def takes(self, bundle: Bundle | Path, *words: str | Path) -> dict[str, Any]:
        path = bundle.path if isinstance(bundle, Bundle) else bundle
        code, answer = self.run("install", path, *words)
        assert code == 0, answer
        return answer

    def refuses(self, bundle: Bundle | Path, kind: str, *words: str | Path) -> str:
        before = self.state()
        path = bundle.path if isinstance(bundle, Bundle) else bundle
        code, answer = self.run("install", path, *words)
        assert (code, answer["error"]["kind"]) == (REFUSED, kind), answer
        assert self.state() == before
        return str(answer["error"]["message"])

    def state(self) -> dict[str, Any]:
        kept = [self.root / "current", *self.root.glob("trust/*"), *self.root.glob("state/*")]
        return {
            path.name: path.readlink() if path.is_symlink() else path.read_bytes()
            for path in kept
            if path.name != "clock" and (path.is_symlink() or path.exists())
        }


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "device")


def signers(folder: Path, keys: list[Path], *policy: str, spaces: str = "edgepack-bundle") -> Path:
    lines = [f"# edgepack: {one}" for one in policy]
    lines += [f'{key.name}@x namespaces="{spaces}" {public(key)}' for key in keys]
    file = folder / "allowed_signers"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_another_name_is_refused_and_leaves_the_floor(
    device: Device, make: Make, tmp_path: Path
) -> None:
    device.takes(make(name="guard", version=2))
    toy = make(name="toy-demo", version=900)
    message = device.refuses(toy, "wrong-name")
    assert "toy-demo" in message and "guard" in message
    tarball = tmp_path / "toy.tar.gz"
    write_tarball(toy, tarball)
    device.refuses(tarball, "wrong-name")
    device.refuses(toy, "wrong-name", "--allow-downgrade")
    device.refuses(make(name="Guard", version=900), "wrong-name")
    assert device.takes(make(name="guard", version=3))["outcome"] == "deployed"


def test_a_name_that_is_lost_is_that_of_what_is_here(device: Device, make: Make) -> None:
    """As on a device whose tool was of a time when no name was pinned."""
    device.takes(make(name="guard", version=2))
    for damage in (None, b"", b"toy-demo", b"\xff\n"):
        name = device.root / "trust/name"
        if damage is None:
            name.unlink()
        else:
            name.write_bytes(damage)
        assert "guard" in device.refuses(make(name="toy-demo", version=900), "wrong-name")
    code, answer = device.run("repair")
    assert code == 0 and (device.root / "trust/name").read_text() == "guard\n", answer
    device.takes(make(name="guard", version=3))


def test_a_name_that_is_asked_for_holds_at_the_first_install(device: Device, make: Make) -> None:
    toy = make(name="toy-demo", version=900)
    device.refuses(toy, "wrong-name", "--name", "guard")
    assert not (device.root / "trust/name").exists()
    device.takes(toy, "--name", "toy-demo")


def test_floors_are_kept_by_name(device: Device, make: Make) -> None:
    device.takes(make(name="guard", version=7))
    highest = device.root / "state/highest.json"
    assert json.loads(highest.read_text()) == {"version": 7, "name": "guard", "others": []}
    highest.write_text('{"version": 900, "name": "toy-demo", "others": []}\n')
    device.takes(make(name="guard", version=3))
    assert json.loads(highest.read_text()) == {
        "version": 3,
        "name": "guard",
        "others": [{"name": "toy-demo", "version": 900}],
    }
    device.refuses(make(name="guard", version=2), "downgrade")
    # What an older tool wrote has no name, and counts.
    highest.write_text('{"version": 9}\n')
    device.refuses(make(name="guard", version=8), "downgrade")
    device.takes(make(name="guard", version=9))
    assert json.loads(highest.read_text())["version"] == 9


def test_a_product_is_pinned_with_the_name(device: Device, make: Make) -> None:
    device.takes(make(version=1, product="door-7"))
    for product in (None, "door-8"):
        assert "door-7" in device.refuses(make(version=2, product=product), "wrong-product")
    device.takes(make(version=2, product="door-7"))
    assert (device.root / "trust/name").read_text() == "tiny\n"
    assert (device.root / "trust/product").read_text() == "door-7\n"


def test_the_device_says_which_release_of_equal_version_was_here(
    device: Device, make: Make
) -> None:
    first, other = make(version=3), make(version=3)
    assert device.takes(first)["same_version"] is None
    assert device.takes(other)["same_version"] == first.manifest.release
    # An older one comes back: not without a word.
    assert device.takes(first)["same_version"] == other.manifest.release
    assert device.takes(first)["same_version"] == other.manifest.release  # unchanged
    assert device.takes(make(version=4))["same_version"] is None


def test_after_its_time_a_bundle_is_refused(device: Device, make: Make, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    soon, past = ((now + timedelta(days=days)).strftime(TIME_FORMAT) for days in (30, -1))
    assert "valid until" in device.refuses(make(version=1, valid_until=past), "expired-bundle")
    device.takes(make(version=1, valid_until=soon))
    device.refuses(make(version=2, valid_until=past), "expired-bundle")
    _, status = device.run("status")
    assert status["newest"]["version"] == 1 and status["newest"]["valid_until"] == soon
    assert status["now"] >= now.strftime(TIME_FORMAT)
    # A clock that is set back does not make it valid again: the latest time seen counts.
    clock = device.root / "trust/clock"
    later = (now + timedelta(days=60)).timestamp()
    subprocess.run(["touch", "-d", f"@{int(later)}", clock], check=True)
    device.refuses(make(version=3, valid_until=soon), "expired-bundle")


def test_a_device_can_ask_for_an_end(
    device: Device, make: Make, keys: list[Path], tmp_path: Path
) -> None:
    file = signers(tmp_path, keys[:1], "require-valid-until = yes")
    soon = (datetime.now(UTC) + timedelta(days=30)).strftime(TIME_FORMAT)
    device.takes(make(version=1, valid_until=soon), "--signers", file)
    assert "until when" in device.refuses(make(version=2), "expired-bundle")
    device.takes(make(version=2, valid_until=soon))


def test_two_have_to_sign(device: Device, make: Make, keys: list[Path], tmp_path: Path) -> None:
    file = signers(tmp_path, keys[:2], "min-signers = 2")
    device.refuses(make(version=1), "too-few-signers", "--signers", file)
    both = make(version=1, signed_by=(0, 1))
    answer = device.takes(both, "--signers", file)
    assert answer["signer"].count("SHA256:") == 2
    # ssh-keygen checks the first of them.
    path = both.path
    subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-f", file, "-I", "first@x", "-n", "edgepack-bundle",
         "-s", path / SIGNATURE_NAME],
        input=(path / MANIFEST_NAME).read_bytes(), check=True, capture_output=True,
    )  # fmt: skip
    assert signing.verify(path, file).principal == "first@x"
    one = make(version=2)
    signature = one.path / SIGNATURE_NAME
    once = signature.read_bytes()
    for text in (once, once + once, once * 8):
        signature.write_bytes(text)
        assert "1 of 2" in device.refuses(one, "too-few-signers")
        with pytest.raises(signing.TooFewSignersError):
            signing.verify(one.path, file)
    signature.write_bytes(once * 9)
    device.refuses(one, "bad-signature")
    # Of a stranger and of another bundle: neither counts.
    device.refuses(make(version=2, signed_by=(0, 2)), "too-few-signers")
    device.refuses(make(version=2, signed_by=(2,)), "unknown-signer")
    for order in (once + signing.split_signatures(both.signature)[1], both.signature + once):
        signature.write_bytes(order)
        device.refuses(one, "bad-signature")
    for junk in (once + b"x\n" + once, b"x" + once + once, once[:-30] + once, once + once[:-30]):
        signature.write_bytes(junk)
        device.refuses(one, "bad-signature")
    # A stranger beside the two does no harm.
    device.takes(make(version=3, signed_by=(2, 1, 0)))


def test_two_keys_of_one_name_are_one_signer(
    device: Device, make: Make, keys: list[Path], tmp_path: Path
) -> None:
    file = signers(tmp_path, keys[:2], "min-signers = 2")
    lines = file.read_text().replace("second@x", "first@x")
    file.write_text(f"{lines}third@x {public(keys[2])}\nfourth@x {public(keys[0])}\n")
    device.refuses(make(version=1, signed_by=(0, 1)), "too-few-signers", "--signers", file)
    device.takes(make(version=1, signed_by=(1, 2)), "--signers", file)


@pytest.mark.parametrize(
    "policy",
    ["min-signers = 3", "min-signers = 0", "min-signers = 9", "min-signers = 02", "min-signers",
     "serial = -1", "serial = 1x", "serial = 99999999999999999999", "minsigners = 2",
     "require-valid-until = no", "serial = 1\n# edgepack: serial = 2"],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_no_list(
    device: Device, make: Make, keys: list[Path], tmp_path: Path, policy: str
) -> None:
    file = signers(tmp_path, keys[:2], policy)
    device.refuses(make(version=1, signed_by=(0, 1)), "bad-signers", "--signers", file)
    assert not (device.root / "trust/allowed_signers").exists()


def test_a_list_that_pinned_keys_signed(
    device: Device, make: Make, keys: list[Path], tmp_path: Path
) -> None:
    """Keys are rotated and revoked by a stick; what is brought again, or by others, is refused."""
    both = "edgepack-bundle,edgepack-signers"

    def brought(name: str, new: list[Path], serial: int, by: list[Path], space: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        file = signers(folder, new, f"serial = {serial}", spaces=both)
        signature = b""
        for key in by:
            subprocess.run(
                ["ssh-keygen", "-Y", "sign", "-q", "-n", space, "-f", key, file], check=True
            )
            signature += file.with_name(f"{file.name}.sig").read_bytes()
            file.with_name(f"{file.name}.sig").unlink()
        file.with_name(f"{file.name}.sig").write_bytes(signature)
        return file

    def refused(file: Path, kind: str) -> None:
        before = device.state()
        code, answer = device.run("trust", "update", file)
        assert (code, answer["error"]["kind"]) == (REFUSED, kind), answer
        assert device.state() == before

    space = "edgepack-signers"
    old = brought("old", keys[:1], 1, keys[:1], space)
    device.takes(make(signed_by=(), version=1))
    refused(old, "no-signers")
    device.takes(make(version=1), "--signers", old)
    new = brought("new", keys[1:2], 2, keys[:1], space)
    refused(brought("stranger", keys[2:], 3, keys[2:], space), "unknown-signer")
    refused(brought("itself", keys[2:], 3, keys[1:2], space), "unknown-signer")
    refused(brought("purpose", keys[2:], 3, keys[:1], "edgepack-bundle"), "bad-signature")
    refused(brought("equal", keys[2:], 1, keys[:1], space), "downgrade")
    changed = brought("changed", keys[1:2], 2, keys[:1], space)
    changed.write_text(changed.read_text() + "# more\n")
    refused(changed, "bad-signature")
    clock = (device.root / "trust/clock").stat().st_mtime
    code, answer = device.run("trust", "update", new)
    assert code == 0 and [who.split()[0] for who in answer["signers"]] == ["second@x"]
    assert (device.root / "trust/clock").stat().st_mtime == clock  # it says nothing of the time
    device.refuses(make(version=2), "unknown-signer")
    device.takes(make(version=2, signed_by=(1,)))
    refused(old, "unknown-signer")  # the revoked key's own list, again
    refused(brought("back", keys[:1], 1, keys[1:2], space), "downgrade")


def test_a_list_may_be_signed_by_keys_that_say_so_only(
    device: Device, make: Make, keys: list[Path], tmp_path: Path
) -> None:
    """As `edgepack keygen` and the first use write it, a key signs bundles, and no lists."""
    device.takes(make(version=1))
    file = signers(tmp_path, keys[1:2], "serial = 2")
    subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-q", "-n", "edgepack-signers", "-f", keys[0], file],
        check=True,
    )
    code, answer = device.run("trust", "update", file)
    assert (code, answer["error"]["kind"]) == (REFUSED, "unknown-signer"), answer


# ------------------------------------------------ what is signed


def test_what_is_signed_has_a_new_version(
    make: Make, tmp_path: Path, keys: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from edgepack.cli import main

    key = make_key(tmp_path, "own")

    def sign(bundle: Bundle) -> int:
        return main(["sign", str(bundle.path), "--key", str(key)])

    assert sign(make(signed_by=(), version=0)) == 0
    none = make(signed_by=(), version=0)
    assert sign(none) == 2
    assert "it has no version, and this key signed" in capsys.readouterr().err
    assert not (none.path / SIGNATURE_NAME).exists()
    first = make(signed_by=(), version=5)
    assert sign(first) == sign(first) == 0
    second = make(signed_by=(), version=5)
    assert sign(second) == 2
    assert "same version 5" in capsys.readouterr().err
    assert sign(make(signed_by=(), version=5, name="another")) == 0
    assert sign(make(signed_by=(), version=6)) == 0
    copy = tmp_path / "copy"
    shutil.copytree(second.path, copy / second.path.name)
    tarball = tmp_path / "second.tar.gz"
    write_tarball(replace(second, path=copy / second.path.name), tarball)
    before = tarball.read_bytes()
    assert main(["sign", str(tarball), "--key", str(key)]) == 2
    assert tarball.read_bytes() == before
    assert open_bundle(tarball).signature in (b"", None)
