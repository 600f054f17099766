from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack import formats
from edgepack.base.errors import UsageError
from edgepack.base.paths import data_file
from edgepack.base.process import run
from edgepack.base.tools import DEBIAN_PACKAGES, ToolMissingError
from edgepack.boards import get_board
from edgepack.bundle.bundle import open_bundle
from edgepack.formats import Options, base, deb
from tests.bundles import small_bundle

FIXTURE = Path(__file__).parents[1] / "fixtures" / "bundle-schema1.tar.gz"


@pytest.mark.parametrize("kind", formats.FORMATS)
def test_every_format_is_explained_and_its_programs_installed(kind: str) -> None:
    guide = data_file("docs/guides/update-systems.md").read_text(encoding="utf-8")
    assert f"\n| `{kind}` |" in guide
    installed = data_file("dev").read_text(encoding="utf-8").split()
    for program in formats.FORMATS[kind].programs:
        assert DEBIAN_PACKAGES[program] in installed


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    file = tmp_path / "some.pem"
    file.touch()
    return file


@pytest.fixture
def every_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("debian", {}, "unknown format: debian"),
        ("deb", {"key": "pem"}, "--pem-key is not for the format deb"),
        ("tar", {"compatible": "x"}, "--compatible is not for the format tar"),
        ("mender", {"cert": "pem"}, "--pem-cert is not for the format mender"),
        ("rauc", {}, "the format rauc needs --pem-key"),
        ("rauc", {"key": "pem"}, "the format rauc needs --pem-cert"),
        ("mender", {"key": Path("/no/such.pem")}, "--pem-key: no such file: /no/such.pem"),
        ("mender", {"compatible": "a\nb"}, r"--compatible: 'a\\nb'"),
        ("mender", {"compatible": "-x"}, "--compatible: '-x'"),
    ],
)
def test_options_that_do_not_fit(
    kind: str, options: dict[str, Any], message: str, pem: Path, every_tool: None
) -> None:
    given = {key: pem if value == "pem" else value for key, value in options.items()}
    with pytest.raises(UsageError, match=message):
        formats.check(kind, Options(**given))


@pytest.mark.parametrize(
    ("kind", "program", "package"),
    [
        ("deb", "dpkg-deb", "dpkg"),
        ("oci", "mmdebstrap", "mmdebstrap"),
        ("mender", "mender-artifact", "mender-artifact"),
        ("rauc", "rauc", "rauc"),
        ("rauc", "mksquashfs", "squashfs-tools"),
    ],
)
def test_a_missing_tool_is_named_with_its_package(
    kind: str, program: str, package: str, pem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shutil.which", lambda name, **_: None if name == program else f"/usr/bin/{name}"
    )
    options = Options(key=pem, cert=pem) if kind == "rauc" else Options()
    with pytest.raises(ToolMissingError, match=f"not found: {program}") as missing:
        formats.check(kind, options)
    assert missing.value.hint == f"sudo apt-get install {package}"


@pytest.mark.parametrize("kind", ["deb", "mender", "rauc"])
def test_an_old_bundle_cannot_install_itself(
    kind: str, tmp_path: Path, pem: Path, every_tool: None
) -> None:
    bundle = open_bundle(FIXTURE)
    options = Options(key=pem, cert=pem) if kind == "rauc" else Options()
    with pytest.raises(base.NoInstallerError, match="no installer in this bundle"):
        formats.write_package(kind, bundle, get_board("rasp3b"), tmp_path / "out", options)
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_file()]


def test_names_and_versions_for_debian(tmp_path: Path) -> None:
    manifest = small_bundle(tmp_path, name="Cat_or@Dog", version=7).manifest
    assert deb.common_name(manifest) == "edgepack-cat-or-dog"
    assert deb.package_name(manifest) == "edgepack-cat-or-dog-rasp3b"
    assert deb.package_version(manifest) == f"7+{manifest.release}"


@pytest.mark.parametrize("name", sorted(p.name for p in base.SCRIPTS.iterdir()))
def test_device_scripts_are_plain_shell(
    name: str, tmp_path: Path, require_tool: Callable[..., str]
) -> None:
    text = base.script(name, {"NAME": "tiny", "PACKAGE": "edgepack-tiny-rasp3b"})
    assert "@" not in text.replace('"$@"', "")
    (tmp_path / name).write_text(text)
    # Debian's sh, which takes no bashism; boards have it or busybox's.
    run([require_tool("dash"), "-n", tmp_path / name])
