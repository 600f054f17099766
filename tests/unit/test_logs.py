"""`edgepack logs`: the script that is sent, run here by a shell, and its answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import NothingThereError
from edgepack.cli import main
from edgepack.deploy import remote_service
from edgepack.deploy.remote_service import Site, _log_script, log_of
from edgepack.device import LocalDevice
from tests.support import require_tool


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder whose service cron starts: a fake crontab of this test's own says so."""
    site = Site(
        name="tiny",
        root=str(tmp_path),
        owner="pi",
        login="pi",
        kind="cron",
        rights="user",
        triple="",
        service=None,
    )
    fake = tmp_path / "bin" / "crontab"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho '* * * * * x # {site.title}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    monkeypatch.setattr(remote_service, "look", lambda *_: site)
    (tmp_path / "service.log.1").write_text("1\n2\n")
    (tmp_path / "service.log").write_text("3\n4\x1b[0m\n")
    return site


def test_the_last_lines_come_from_both_parts(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_of(LocalDevice(), site.root, count=3) as log:
        assert (log.service, log.kind) == ("edgepack-tiny", "cron")
        assert list(log.lines) == ["2", "3", "4\x1b[0m"]
    where = ["logs", "--root", site.root, "--device", "local"]
    assert main([*where, "-n", "2"]) == 0
    assert capsys.readouterr().out == "3\n4\\x1b[0m\n"  # nothing of it steers a terminal
    assert main([*where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == ["1", "2", "3", "4\x1b[0m"]


@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "sh"]])
def test_following_goes_on_until_nobody_listens(
    shell: list[str], site: Site, tmp_path: Path
) -> None:
    require_tool(shell[0])
    script = _log_script(site, 1, follow=True)
    child = subprocess.Popen(
        [*shell, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == ["cron\n", "4\x1b[0m\n"]
        with (tmp_path / "service.log").open("a") as log:
            log.write("5\n")
        assert child.stdout.readline() == "5\n"
        child.stdin.close()
        assert child.stdout.read() == ""  # `tail` has ended
    assert child.returncode != 0


def test_no_service_is_said(site: Site, tmp_path: Path) -> None:
    (tmp_path / "bin" / "crontab").write_text("#!/bin/sh\n")
    device: Any = LocalDevice()
    with pytest.raises(NothingThereError, match="no service of") as caught:
        log_of(device, site.root).__enter__()
    assert "edgepack service install" in str(caught.value.hint)
