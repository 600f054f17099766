"""Hosts and users from everywhere, at every hop: what is more than a name is refused unused."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.device import Address, SshOptions
from edgepack.device.safe_names import MAX_LENGTH, is_safe
from edgepack.device.ssh import SshDevice
from edgepack.fleet import load_fleet

# ssh.c, valid_hostname: strchr("'`\"$\\;&<>|(){}", c), isspace, iscntrl, a dash in front.
_OPENSSH = "'`\"$\\;&<>|(){}"


def test_each_character_that_openssh_refuses() -> None:
    for code in range(128):
        letter = chr(code)
        refused = letter in _OPENSSH or letter in string.whitespace or code < 32 or code == 127
        assert is_safe(f"a{letter}b") is not refused, repr(letter)
        assert is_safe(f"{letter}b") is not (refused or letter == "-"), repr(letter)
    unprintable = ("\u202eab", "a\u2028b", "a\u00a0b", "a\x85b", "\ud800")
    for name in ("", *unprintable, "a" * (MAX_LENGTH + 1)):
        assert not is_safe(name)
    for name in ("10.0.0.1", "fe80::1%eth0", "pi-3.lan", "DOMAIN+pi", "bücher.example"):
        assert is_safe(name)


def _names(mark: Path, count: int) -> list[str]:
    """`count` names that would make `mark` if a shell saw them, and others like them."""
    draw = random.Random(40)
    touch = f"touch${{IFS}}{mark}"
    shapes = ("$({})", "`{}`", "a;{};", "a|{}", "a&{}&", "a\n{}\n", "'$({})'", '"$({})"', "a\t{}")
    shapes += ("a>{}", "a<{}", "-oProxyCommand={}", "{{{}}}", "a\\{}", "x$({})y", "a b;{}")
    names = []
    for _ in range(count):
        shape = draw.choice(shapes).replace("{}", touch)
        front = "".join(draw.choices(string.ascii_letters + ".", k=draw.randint(0, 4)))
        names.append(front * (not shape.startswith("-")) + shape)
    return names


def test_300_names_run_nothing(tmp_path: Path) -> None:
    """The way is a ProxyCommand that gives the names to a shell, as many are written."""
    mark, asked = tmp_path / "mark", tmp_path / "asked"
    config = tmp_path / "config"
    command = f"ProxyCommand sh -c 'echo %h %r >> {asked}; exit 1'\n"
    for number, name in enumerate(_names(mark, 300)):
        line = name.replace("\n", " ")
        host, user, jump = "board", None, ()
        hop = ""
        match number % 5:
            case 0:
                host = name
            case 1:
                user = name
            case 2:
                jump = (f"a,{name}",)
            case 3:
                hop = f"Host board\n  HostName x{line}\n"
            case 4:
                hop = f"Host board\n  ProxyJump pi@{line}\n"
        config.write_text(f"{hop}Host *\n  {command if 'ProxyJump' not in hop else ''}")
        options = SshOptions(config_file=config, jump=jump)
        with pytest.raises(EdgepackError) as caught:
            SshDevice(Address(host=host, user=user), options=options)
        # Of a jump ssh takes the first word, which may be a name.
        is_word = number % 5 == 4 and is_safe(line.split()[0])
        assert caught.value.exit_code == (6 if is_word else 2), (number, name, caught.value)
        assert len(caught.value.message) < 1000
    assert not mark.exists() and not asked.exists()
    # The same way, with names that are names, is gone.
    config.write_text(f"Host *\n  {command}")
    with pytest.raises(EdgepackError):
        SshDevice(Address(host="board", user="pi"), options=SshOptions(config_file=config))
    assert asked.read_text().split()[0] == "board"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("fleet.toml", '[devices.a]\naddress = "a;$(id)"\n'),
        ("fleet.toml", '[devices.a]\nuser = "a`id`"\n'),
        ("fleet.toml", '[devices.a]\njump = ["b", "c|id"]\n'),
        ("fleet.toml", '[defaults]\naddress = "$(id).{name}"\n[devices.a]\n'),
        ("hosts", "a ansible_host='$(id)'\n"),
        ("hosts", "a ansible_user='x;id'\n"),
        ("hosts", "$(id)\n"),
        ("hosts", "../../etc/passwd ansible_host=10.0.0.1\n"),
        ("hosts", ".. ansible_host=10.0.0.1\n"),
        ("hosts", "[../../etc]\na\n"),
        ("hosts", "a ansible_ssh_common_args='-J b,$(id)'\n"),
        ("hosts", "a ansible_ssh_common_args='-l $(id)'\n"),
        ("hosts.yml", 'all:\n  hosts:\n    "a|id": {}\n'),
        ("hosts.yml", "all:\n  hosts:\n    a: {ansible_host: '-oProxyCommand=id'}\n"),
        ("hosts.json", '{"all": {"hosts": ["a\\u0000b"]}}'),
        ("hosts.json", '{"_meta": {"hostvars": {"a": {"ansible_host": "b&id"}}}}'),
    ],
)
def test_fleets_and_inventories(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(EdgepackError) as caught:
        load_fleet(tmp_path / file)
    assert caught.value.exit_code == 2
    assert str(tmp_path / file) in caught.value.message


def test_a_device_on_the_command_line() -> None:
    for spec in ("$(id)@board", "pi@a;id", "pi@$(id)", "adb:$(id)", "a\u202eb", "x" * 10**6):
        with pytest.raises(UsageError) as caught:
            from edgepack.device import adb

            if adb.serial_of(spec) is None:
                Address.parse(spec)
        assert len(caught.value.message) < 1000
