from __future__ import annotations

from pathlib import Path

import pytest

from edgepack.base import tools
from edgepack.virtual import apt
from edgepack.virtual.apt import choose_mirror

URL = "http://mirror.invalid/debian/"


@pytest.mark.parametrize(
    ("listing", "on_debian", "expected"),
    [
        (f"{URL}|bookworm|main|Debian", True, URL),
        (f"{URL}|bookworm|main|Debian", False, URL),
        # Before the first `apt-get update` the origin is not known.
        (f"{URL}|trixie|main|$(ORIGIN)", True, URL),
        (f"{URL}|trixie|main|$(ORIGIN)", False, None),
        ("http://mirror.invalid/ubuntu/|noble|main|Ubuntu", False, None),
        ("http://mirror.invalid/raspbian/|bookworm|main|Raspbian", False, None),
        # Only the main archive holds all suites.
        (f"{URL}|bookworm-security|main|Debian", True, None),
        (f"{URL}|bookworm|contrib|Debian", True, None),
        ("https://vendor.invalid/|bookworm|stable|Vendor", True, None),
        ("cdrom://[Debian]/|bookworm|main|Debian", True, None),
        ("", True, None),
        (f"https://vendor.invalid/|stable|main|Vendor\n{URL}|sid|main|Debian", False, URL),
    ],
)
def test_choose_mirror(listing: str, on_debian: bool, expected: str | None) -> None:
    assert choose_mirror(listing, on_debian=on_debian) == expected


def test_missing_keys_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "_KEYRINGS", (Path("/nonexistent/keys.gpg"),))
    with pytest.raises(tools.ToolMissingError) as caught:
        apt.unpack(["bash"], Path("/nonexistent"), suite="bookworm", arch="armhf")
    assert "apt-get install debian-archive-keyring" in str(caught.value)
