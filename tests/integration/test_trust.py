"""Who may sign for a device, changed over a real sshd while releases come and go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack import cli
from edgepack.base.errors import RemoteError
from edgepack.bundle import signing
from edgepack.bundle.bundle import Bundle
from edgepack.deploy.remote_tool import call, set_signers
from edgepack.device import LocalDevice
from edgepack.device.base import Stream
from tests.bundles import FakeTool
from tests.device_tool import host_tool
from tests.fake_app import fake_bundle
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.sshd_server import Sshd, public
from tests.ssh_keys import make_key

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(sshd: Sshd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line with --json: its exit code, and what it prints."""
    known = tmp_path / "known_hosts"
    known.write_text(sshd.known_hosts_line + "\n")

    def run(*words: str | Path) -> tuple[int, dict[str, Any]]:
        login = ("--identity", str(sshd.key), "--known-hosts", str(known))
        code = cli.main([*map(str, words), *login, "--json", "-q"])
        out, err = capsys.readouterr()
        return code, json.loads(out or err)

    return run


def signed(folder: Path, version: int, key: Path) -> Bundle:
    bundle = fake_bundle(folder, version=version, tool=FakeTool(path=host_tool(faults=True)))
    signing.sign_folder(bundle, key)
    return bundle


def signers_file(path: Path, *keys: Path) -> Path:
    lines = [f'{key.name}@here namespaces="edgepack-bundle" {public(key)}\n' for key in keys]
    path.write_text("".join(lines))
    return path


def name_of(key: Path) -> str:
    """As `status` and `trust` have it."""
    return f"{key.name}@here {signing.read_public_key(Path(f'{key}.pub')).fingerprint}"


def test_keys_are_rotated_and_revoked(sshd: Sshd, run: Run, tmp_path: Path) -> None:
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    where = ("--device", f"{sshd.user}@127.0.0.1:{sshd.port}", "--root", tmp_path / "root")
    bundles = [signed(tmp_path / f"{i}", i, key) for i, key in enumerate((old, new, old), 1)]
    first = signers_file(tmp_path / "first", old)

    def deploy(bundle: Bundle, *words: str | Path) -> tuple[int, dict[str, Any]]:
        return run("deploy", "--bundle", bundle.path, *where, *words)

    assert deploy(bundles[0], "--signers", first)[0] == 0
    listed = {"signers": [name_of(old)], "list": first.read_text()}
    assert run("trust", "show", *where) == (0, listed)
    assert deploy(bundles[1])[0] == 5

    both = signers_file(tmp_path / "both", old, new)
    code, answer = run("trust", "set", both, *where)
    assert (code, answer["signers"]) == (0, [name_of(old), name_of(new)])
    assert deploy(bundles[1])[0] == 0

    # The old key is stolen: what it signs is refused from now on, what runs stays.
    rest = signers_file(tmp_path / "rest", new)
    assert run("trust", "set", rest, *where)[1]["list"] == rest.read_text()
    code, answer = deploy(bundles[2])
    assert code == 5
    assert "not among the allowed signers" in answer["error"]["message"]
    code, status = run("status", *where)
    assert (code, status["current"]["release"]) == (0, bundles[1].manifest.release)
    assert status["signers"] == [name_of(new)]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [("", 5, "no key is listed"), ("me ssh-rsa AAAA\n", 5, "line 1"),
     ("# only a remark\n", 5, "no key is listed"), (None, 2, "file not found")],
)  # fmt: skip
def test_lists_that_are_none_change_nothing(
    sshd: Sshd, run: Run, tmp_path: Path, text: str | None, code: int, says: str
) -> None:
    key = make_key(tmp_path, "key")
    where = ("--device", f"{sshd.user}@127.0.0.1:{sshd.port}", "--root", tmp_path / "root")
    bundle = signed(tmp_path / "bundle", 1, key)
    good = signers_file(tmp_path / "good", key)
    assert run("deploy", "--bundle", bundle.path, *where, "--signers", good)[0] == 0
    bad = tmp_path / "bad"
    if text is not None:
        bad.write_text(text)
    refused, answer = run("trust", "set", bad, *where)
    assert refused == code
    assert says in answer["error"]["message"]
    assert run("trust", "show", *where)[1]["list"] == good.read_text()
    assert not list((tmp_path / "root").glob(".signers*"))


class Cut(LocalDevice):
    """A device whose link carries half of a list, to the end of a line."""

    def open(self, command: str) -> Stream:
        stream = super().open(command)
        write = stream.write

        def half(data: bytes) -> None:
            write(data[: data.index(b"\n") + 1])

        stream.write = half  # type: ignore[method-assign]
        return stream


def test_half_a_list_is_none(tmp_path: Path) -> None:
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    bundle = signed(tmp_path / "bundle", 1, old)
    root = str(tmp_path / "root")
    bundle_words = ["deploy", "--bundle", str(bundle.path), "--device", "local", "--root", root]
    assert cli.main([*bundle_words, "--signers", str(signers_file(tmp_path / "old_", old))]) == 0
    both = signers_file(tmp_path / "both", new, old).read_bytes()
    with pytest.raises(RemoteError):
        set_signers(Cut(), root, both)
    assert call(LocalDevice(), root, "trust", "show")["signers"] == [name_of(old)]
    set_signers(LocalDevice(), root, both)
    assert call(LocalDevice(), root, "trust", "show")["signers"] == [name_of(new), name_of(old)]


def test_a_fleet(sshd: Sshd, run: Run, tmp_path: Path) -> None:
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    bundle = signed(tmp_path / "bundle", 1, old)
    fleet, first = tmp_path / "fleet.toml", signers_file(tmp_path / "first", old)
    with CuttingProxy(sshd.port) as proxy:
        with (tmp_path / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{proxy.port} {public(sshd.host_key)}\n")
        fleet.write_text(
            f'[defaults]\nuser = "{sshd.user}"\naddress = "127.0.0.1"\nboard = "local"\n'
            '[groups.all_of_them]\ndevices = ["a", "b"]\n'
            f'[devices.a]\nport = {sshd.port}\nroot = "{tmp_path}/a"\n'
            f'[devices.b]\nport = {proxy.port}\nroot = "{tmp_path}/b"\n'
        )
        words = ("--bundle", bundle.path, "--signers", first)
        assert run("fleet", "deploy", fleet, *words)[0] == 0
        rest = signers_file(tmp_path / "rest", new)
        code, printed = run("fleet", "trust", fleet, rest, "--name", "tiny")
    assert code == 0
    assert [(row["device"], row["wave"], row["outcome"], row["signers"]) for row in
            printed["devices"]] == [
        ("a", "canary", "set", name_of(new)), ("b", "wave 1", "set", name_of(new)),
    ]  # fmt: skip
    for name in ("a", "b"):
        assert call(LocalDevice(), f"{tmp_path}/{name}", "trust", "show")["list"] == (
            rest.read_text()
        )
