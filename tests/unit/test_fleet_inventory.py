from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import ConfigError, UsageError
from edgepack.device import SshOptions
from edgepack.fleet import FleetDevice, load_fleet, select, with_boards
from edgepack.fleet.ansible import _warn_once
from edgepack.fleet.names import RangeError, expand
from edgepack.fleet.work import check_aliases

ANSIBLE = Path(__file__).parents[1] / "fixtures" / "ansible"


def write(folder: Path, text: str, name: str = "fleet.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("kiosk", ["kiosk"]),
        ("n[8:11]", ["n8", "n9", "n10", "n11"]),
        ("n[08:11]x", ["n08x", "n09x", "n10x", "n11x"]),
        ("n[:2]", ["n0", "n1", "n2"]),
        ("[a:e:2]", ["a", "c", "e"]),
        ("[1:2]-[x:y]", ["1-x", "1-y", "2-x", "2-y"]),
    ],
)
def test_ranges(pattern: str, names: list[str]) -> None:
    assert list(expand(pattern)) == names


def test_a_million_names() -> None:
    names = expand("shop[0000001:1000000]")
    assert next(names) == "shop0000001"
    assert sum(1 for _ in names) == 999_999


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("n[1]", "a bracket that belongs to no range"),
        ("n[1:2", "a bracket that belongs to no range"),
        ("n[01:100]", "different widths"),
        ("n[5:1]", "its end comes before its start"),
        ("n[1:x]", "not a range of numbers or letters"),
        ("n[1:5:0]", "the step"),
        ("n[1:1000001]", "more than 1000000"),
        ("[1:1001]-[1:1000]", "1001000 names"),
    ],
)
def test_bad_ranges(pattern: str, problem: str) -> None:
    with pytest.raises(RangeError, match=problem):
        expand(pattern)


FLEET = """
[fleet]
name = "kiosks"

[rollout]
canary = "lab"
waves = [2, "50%"]
parallel = 4
max_failures = 1
max_failures_total = "5%"
count_unreachable = false
soak_s = 1.5
keep_trying_s = 3600
window = "22:00-04:00"

[defaults]
user = "pi"
board = "rasp3b"
jump = ["ops@gate.example.org:2022"]
identity = "keys/fleet"
labels = { line = "1" }

[groups.lab]
devices = ["bench"]
jump = []

[groups.shops]
children = ["north"]
address = "{name}.example.org"
labels = { kind = "shop" }

[groups.north]
devices = ["shop[01:02]"]
board = "rasp3b-64"
limit_rate = "200k"
labels = { site = "berlin", line = "2" }

[devices."shop[02:03]"]
port = 2200
root = "/srv/model"
limit_rate = "1.5M"

[devices.bench]
address = "10.0.0.9"
user = "root"
"""


def test_every_key_of_fleet_toml(tmp_path: Path) -> None:
    fleet = load_fleet(write(tmp_path, FLEET))
    assert fleet.name == "kiosks"
    assert fleet.settings.to_dict() == {
        "canary": "lab",
        "waves": ["2", "50%"],
        "parallel": 4,
        "max_failures": "1",
        "max_failures_total": "5%",
        "count_unreachable": False,
        "soak_s": 1.5,
        "keep_trying_s": 3600.0,
        "window": "22:00-04:00",
    }
    jump, identity = ("ops@gate.example.org:2022",), tmp_path / "keys/fleet"
    assert fleet.devices == (
        FleetDevice(
            name="bench", address="10.0.0.9", board="rasp3b", user="root", identity=identity,
            labels={"line": "1"}, groups=("lab",),
        ),
        FleetDevice(
            name="shop01", address="shop01.example.org", board="rasp3b-64", user="pi", jump=jump,
            identity=identity, labels={"line": "2", "kind": "shop", "site": "berlin"},
            groups=("shops", "north"), limit_bytes_s=200_000,
        ),
        FleetDevice(
            name="shop02", address="shop02.example.org", board="rasp3b-64", user="pi", jump=jump,
            identity=identity, port=2200, root="/srv/model", limit_bytes_s=1_500_000,
            labels={"line": "2", "kind": "shop", "site": "berlin"}, groups=("shops", "north"),
        ),
        FleetDevice(
            name="shop03", address="shop03", board="rasp3b", user="pi", jump=jump,
            identity=identity, port=2200, root="/srv/model", labels={"line": "1"},
            limit_bytes_s=1_500_000,
        ),
    )  # fmt: skip
    assert fleet.journal("m") == tmp_path / ".edgepack/kiosks/m.jsonl"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ('user = "pi"', 'usr = "pi"', "defaults.usr: unknown key", "'user'"),
        ("port = 2200", "port = 0", r"devices\.shop\[02:03\]\.port: 0 is not between", None),
        ("port = 2200", 'port = "2200"', "port: '2200' is not a whole number", None),
        ("parallel = 4", "parallel = 0", "rollout.parallel: 0 is below 1", None),
        ("soak_s = 1.5", "soak_s = -1.0", "rollout.soak_s: -1.0 is not a number of seconds", None),
        ("max_failures = 1", "max_failures = true", "max_failures: True", None),
        (
            "max_failures = 1",
            'max_failures = "x"',
            "max_failures: 'x' is not a number of dev",
            "5%",
        ),
        ('[2, "50%"]', '[2, "101%"]', "rollout.waves: '101%' is not a number of devices", "5%"),
        ('[2, "50%"]', "[0]", "rollout.waves: each wave must have a device", None),
        ('[2, "50%"]', "[]", "rollout.waves: each wave must have a device", None),
        ('canary = "lab"', 'canary = "lob"', "rollout.canary: 'lob' is not a group", "percentage"),
        ('["shop[01:02]"]', '["shop[1:x]"]', r"groups.north.devices: 'shop\[1:x\]': ", None),
        ('["shop[01:02]"]', '["a b"]', "groups.north.devices: 'a b' is not a name", "letters"),
        ('["shop[01:02]"]', '["lab"]', "lab is a group and a device", "another name"),
        ('children = ["north"]', 'children = ["nord"]', "no such child group: nord", "'north'"),
        ("jump = []", 'children = ["lab"]', "groups contain each other: lab > lab", None),
        ('["ops@gate.example.org:2022"]', '["-oX=y"]', "defaults.jump: '-oX=y' is not user", None),
        ('"10.0.0.9"', '"-oProxyCommand=x"', "devices.bench.address: .* cannot be used", None),
        ('"200k"', '"fast"', "groups.north.limit_rate: 'fast' is not a rate", "1.5M"),
        ('"200k"', "200", "groups.north.limit_rate: 200 is not a string", None),
        ('kind = "shop"', "kind = 3", "groups.shops.labels.kind: 3 is not a string", None),
        ('name = "kiosks"', 'name = "../x"', r"fleet.name: '\.\./x' is not a name", "letters"),
        ('"{name}.example.org"', '"10.0.0.9"', "shop01 and shop02 have the same address", "{name}"),
        ("[groups.lab]", "[groups.all]", "groups.all: not a name for a group", None),
        ("[fleet]", "[flet]", "flet: unknown key", "'fleet'"),
        ("[fleet]", "[[fleet", "not valid TOML", None),
    ],
)
def test_mistakes_in_fleet_toml(
    tmp_path: Path, old: str, new: str, message: str, hint: str | None
) -> None:
    assert old in FLEET
    path = write(tmp_path, FLEET.replace(old, new, 1))
    if old.startswith('"{name}'):
        path = write(tmp_path, FLEET.replace(old, new).replace("port = 2200", ""))
    with pytest.raises(ConfigError, match=message) as caught:
        load_fleet(path)
    assert caught.value.message.startswith(str(path))
    if hint:
        assert hint in str(caught.value.hint)


def test_a_fleet_without_devices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no devices in it"):
        load_fleet(write(tmp_path, "[defaults]\nuser = 'pi'\n"))
    with pytest.raises(ConfigError, match=r"and not of one inventory: fleet\.toml, h"):
        load_fleet(write(tmp_path, "x", "hosts").parent)
    with pytest.raises(ConfigError, match="file not found"):
        load_fleet(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="no hosts in it"):
        load_fleet(write(tmp_path, "# nothing\n", "hosts"))


def test_limits(tmp_path: Path) -> None:
    fleet = load_fleet(write(tmp_path, FLEET))

    def names(*limits: str) -> list[str]:
        return [device.name for device in select(fleet.devices, limits, file=fleet.file)]

    assert names() == names("all") == ["bench", "shop01", "shop02", "shop03"]
    assert names("shops") == ["shop01", "shop02"]
    assert names("shops", "bench") == ["bench", "shop01", "shop02"]
    assert names("shop*", "!shop02") == ["shop01", "shop03"]
    assert names("!lab") == ["shop01", "shop02", "shop03"]
    assert names("line=1") == ["bench", "shop03"]
    with pytest.raises(UsageError, match="called 'shopz'") as caught:
        names("shopz")
    assert caught.value.hint == "perhaps you meant 'shops'"
    with pytest.raises(UsageError, match="no device is left"):
        names("lab", "!bench")


def test_boards(tmp_path: Path) -> None:
    device = FleetDevice(name="a", address="a")
    assert with_boards([device], {"x": 1}, "x")[0].board == "x"
    with pytest.raises(ConfigError, match="a has no board"):
        with_boards([device], {"x": 1}, None)
    with pytest.raises(ConfigError, match="a: unknown board: rasp3") as caught:
        with_boards([device], {"rasp3b": 1}, "rasp3")
    assert "'rasp3b'" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["ini", "yml"])
def test_ansible_inventories_mean_what_ansible_says(kind: str) -> None:
    """hosts-*.list.json are what `ansible-inventory --list` of ansible-core 2.19.14 printed."""
    path = ANSIBLE / f"hosts-{kind}.list.json"
    golden: dict[str, Any] = json.loads(path.read_text())
    hostvars = golden["_meta"]["hostvars"]
    devices = {device.name: device for device in load_fleet(path).devices}
    assert devices.keys() == hostvars.keys()
    for name, variables in hostvars.items():
        device = devices[name]
        assert device.address == variables.get("ansible_host", name)
        assert device.port == variables.get("ansible_port")
        assert device.user == variables.get("ansible_ssh_user", variables.get("ansible_user"))
        assert device.board == variables["edgepack_board"]
        assert device.root == variables.get("edgepack_root")
        assert device.identity == Path("~/.ssh/fleet").expanduser()
        assert device.labels == variables.get("edgepack_labels", {})
        is_behind = "ProxyJump" in variables.get("ansible_ssh_common_args", "")
        assert device.jump == (("ops@gate.example.org:2022",) if is_behind else ())
        direct = {group for group, table in golden.items() if name in table.get("hosts", ())}
        above = {
            group
            for group, table in golden.items()
            if direct & set(table.get("children", ())) and group != "all"
        }
        assert set(device.groups) == (direct | above) - {"ungrouped"}


def test_a_folder_with_an_inventory(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    with pytest.raises(ConfigError, match="not of one inventory: none"):
        load_fleet(tmp_path)
    shutil.copy(ANSIBLE / "hosts-ini.list.json", tmp_path)
    (tmp_path / ".edgepack").mkdir()
    fleet = load_fleet(tmp_path)
    assert (fleet.name, fleet.file) == ("hosts-ini.list", tmp_path / "hosts-ini.list.json")
    assert fleet.devices == load_fleet(ANSIBLE / "hosts-ini.list.json").devices


PLAIN = {
    "hosts.ini": """# a list
loose.example.org ansible_port=2022

[shops]
shop[01:02].example.org   edgepack_board=rasp3b
shop-b ansible_host=10.0.0.7 ansible_user="kiosk-user" # a remark
[kiosks]
kiosk-[a:c:2]:2200 ansible_ssh_user=pi
shop-b
""",
    "hosts.yml": """---
ungrouped:
  hosts:
    loose.example.org: {ansible_port: 2022}
shops:
  hosts:
    shop[01:02].example.org:
      edgepack_board: rasp3b
    shop-b:
      ansible_host: 10.0.0.7
      ansible_user: kiosk-user
kiosks:
  hosts:
    kiosk-[a:c:2]: {ansible_port: 2200, ansible_user: pi}
    shop-b:
""",
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_list_needs_no_ansible(tmp_path: Path, name: str) -> None:
    """Hosts in groups, each with variables of its own, as Ansible's documentation has them."""
    devices = {one.name: one for one in load_fleet(write(tmp_path, PLAIN[name], name)).devices}
    assert {name: (one.where, one.groups) for name, one in devices.items()} == {
        "loose.example.org": ("loose.example.org:2022", ()),
        "shop01.example.org": ("shop01.example.org", ("shops",)),
        "shop02.example.org": ("shop02.example.org", ("shops",)),
        "shop-b": ("kiosk-user@10.0.0.7", ("kiosks", "shops")),
        "kiosk-a": ("pi@kiosk-a:2200", ("kiosks",)),
        "kiosk-c": ("pi@kiosk-c:2200", ("kiosks",)),
    }
    assert devices["shop02.example.org"].board == "rasp3b"


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("hosts", "a\n[g:vars]\nansible_user=pi\n", r"hosts:2: .*\(a section of vars\)"),
        ("hosts", "a\n[g:children]\nh\n", r"hosts:2: .*\(a section of children\)"),
        ("h.yml", "all:\n  vars: {ansible_user: pi}\n", r"h.yml:2: .*\(vars of the group all\)"),
        ("h.yml", "all:\n  children: {g: {}}\n", r"h.yml:2: .*\(children of the group all\)"),
        (
            "h.yml",
            "all:\n  hosts:\n    a: {ansible_user: !unsafe pi}\n",
            r"h.yml:3: .*\(a tag of ansible_user\)",
        ),
        ("group_vars/all", "ansible_user: pi\n", r"group_vars/all: .*\(variables beside it\)"),
        ("host_vars/a/x.yml", "ansible_user: pi\n", r"host_vars/a/x.yml: .*\(variables beside it"),
    ],
)
def test_what_only_ansible_reads_is_refused_without_it(
    tmp_path: Path, name: str, text: str, where: str
) -> None:
    path = write(tmp_path, "a\n", "hosts")
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=where) as caught:
        load_fleet(path if "_vars" in name else tmp_path / name)
    assert "ansible-inventory --list -i FILE > fleet.json" in str(caught.value.hint)


@pytest.fixture
def ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in its place, which tells what it was asked, and prints a list."""
    program = tmp_path / "bin" / "ansible-inventory"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'{{ pwd; ulimit -f; echo "$ANSIBLE_INVENTORY_ENABLED"; echo "$@"; }} > {tmp_path}/asked\n'
        f'cat {tmp_path}/said >&2; [ -e {tmp_path}/list ] && cat {tmp_path}/list > "$5"\n'
    )
    program.chmod(0o755)
    (tmp_path / "said").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (tmp_path / "inventory").mkdir()
    return tmp_path


def test_where_ansible_is_installed_it_is_asked(ansible: Path) -> None:
    shutil.copy(ANSIBLE / "hosts-ini.list.json", ansible / "list")
    path = write(ansible / "inventory", "a\n[g:vars]\nx=1\n", "hosts")
    (ansible / "inventory/group_vars").mkdir()
    write(ansible / "inventory/group_vars", "x: 1\n", "all.yml")
    assert load_fleet(path).devices == load_fleet(ANSIBLE / "hosts-ini.list.json").devices
    folder, blocks, plugins, words = (ansible / "asked").read_text().splitlines()
    # Not the inventory's: a configuration there could have anything run.
    assert (folder, plugins) == ("/", "yaml,ini")
    assert int(blocks) < 1 << 20
    assert words.startswith(f"--list -i {path} --output ")


def test_what_ansible_refuses_is_refused(ansible: Path) -> None:
    write(ansible, "[WARNING]: x\n[ERROR]: Attempting to decrypt\n", "said")
    path = write(ansible / "inventory", "a\n", "hosts")
    with pytest.raises(
        ConfigError, match=r"hosts: ansible-inventory cannot read it: .*to decrypt\n"
    ):
        load_fleet(path)
    (ansible / "asked").unlink()
    with pytest.raises(ConfigError, match=r"h\.yml:2: not valid YAML"):
        load_fleet(write(ansible / "inventory", "all: {", "h.yml"))
    assert not (ansible / "asked").exists()


@pytest.mark.parametrize("text", ["x edgepack_limit_rate=200k\n", "x edgepack_limit_rate=200000\n"])
def test_a_rate_in_an_ansible_inventory(tmp_path: Path, text: str) -> None:
    assert load_fleet(write(tmp_path, text, "hosts")).devices[0].limit_bytes_s == 200_000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-J a@b,c:22", {"jump": ("a@b", "c:22")}),
        ("-o ProxyJump=none", {"jump": ()}),
        ("-oProxyJump=gate", {"jump": ("gate",)}),
        ("-o 'ProxyCommand=ssh -W %h:%p -q ops@gate'", {"jump": ("ops@gate",)}),
        ('-o ProxyCommand="ssh -q -W %h:%p gate"', {"jump": ("gate",)}),
        ("-o UserKnownHostsFile=/k -C", {"known_hosts": Path("/k")}),
        ("-p 22 -l me -i /key", {"port": 22, "user": "me", "identity": Path("/key")}),
    ],
)
def test_ssh_arguments(tmp_path: Path, arguments: str, expected: dict[str, Any]) -> None:
    text = f"a ansible_ssh_common_args={json.dumps(arguments)}\n"
    (device,) = load_fleet(write(tmp_path, text, "hosts")).devices
    assert {key: getattr(device, key) for key in expected} == expected


def test_host_key_checks_are_not_switched_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'a ansible_ssh_common_args="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"'
    _warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        (device,) = load_fleet(write(tmp_path, text, "hosts")).devices
    assert device.known_hosts is None
    assert [record.message.split(": ")[1] for record in caplog.records] == [
        "stricthostkeychecking=no is not followed",
        "userknownhostsfile=/dev/null is not followed",
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hosts", "[a\n", r"hosts:1: not a section: '\[a'"),
        ("hosts", "x\ny oops\n", "hosts:2: not name=value: 'oops'"),
        ("hosts", 'x a="b\n', "hosts:1: No closing quotation"),
        ("hosts", "x[1:\n", r"hosts:1: 'x\[1:': a bracket"),
        ("hosts", "x ansible_port=99999\n", "hosts:1: ansible_port: 99999 is not between"),
        ("hosts", "x ansible_host=-oX\n", "hosts:1: ansible_host: '-oX' cannot be used"),
        ("hosts", "-oX=y\n", "hosts: not a safe name of a host: '-oX=y'"),
        ("hosts", "x ansible_user='a b'\n", "hosts: x: not an address: 'a b@x'"),
        ("hosts", "x ansible_host={{ip}}\n", "hosts:1: ansible_host: a template"),
        ("hosts", "x ansible_connection=winrm\n", "hosts:1: ansible_connection: 'winrm'"),
        ("hosts", "x ansible_password=y\n", "hosts:1: ansible_password: passwords"),
        ("hosts", "x edgepack_limit_rate=k\n", "hosts:1: edgepack_limit_rate: 'k' is not a rate"),
        ("hosts", "x edgepack_labels=y\n", "hosts:1: edgepack_labels: cannot read 'y'"),
        (
            "h.json",
            '{"a": {"hosts": ["x"], "vars": {"ansible_group_priority": "z"}}}',
            "a.vars: ansible_group_priority: 'z' is not a whole number",
        ),
        ("hosts", 'x ansible_ssh_common_args="-J a@"', "ProxyJump: 'a@' is not user@host"),
        (
            "hosts",
            'x ansible_ssh_common_args="-o ProxyCommand=nc\\ %h"',
            "hosts:1: .* cannot use ProxyCommand 'nc %h'",
        ),
        ("h.yml", "all:\n  hots:\n    x:\n", "h.yml:2: group all: unknown key 'hots'"),
        ("h.yml", "all:\n  hosts: [x]\n", "h.yml:2: not a mapping of names"),
        ("h.yml", "all:\n  hosts:\n    x: {ansible_port: a}\n", "h.yml:3: ansible_port: 'a'"),
        ("h.yml", "all: {\n", "h.yml:2: not valid YAML: "),
        (
            "h.yml",
            "all: &a\n  children:\n    b: *x\n",
            "h.yml:3: not valid YAML: .*undefined alias",
        ),
        ("h.json", "{", "h.json: not valid JSON"),
        ("h.json", '{"a": 1}', "h.json: a: 1 is not an object"),
        ("h.json", '{"a": {"hosts": "x"}}', "h.json: a.hosts: 'x' is not a list of names"),
        (
            "h.json",
            '{"_meta": {"hostvars": {"x": {"ansible_port": 0}}}}',
            "_meta.hostvars.x: ansible_port: 0 is not between",
        ),
    ],
)
def test_mistakes_in_ansible_inventories(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_fleet(write(tmp_path, text, name))
    assert str(tmp_path / name) in caught.value.message


@pytest.mark.parametrize("name", ["hosts.ini", "hosts.yml", "hosts-ini.list.json", "fleet.toml"])
def test_damaged_files_are_mistakes_not_bugs(name: str, tmp_path: Path) -> None:
    """Seeded damage: each file is read, or refused with its name; nothing else happens."""
    text = FLEET if name == "fleet.toml" else PLAIN.get(name) or (ANSIBLE / name).read_text()
    dice = random.Random(7)
    refused = 0
    for _ in range(150):
        damaged = list(text)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(damaged))
            length = dice.choice((0, 1, 1, 2, 20))
            damaged[at : at + length] = dice.choice(
                (
                    "",
                    "\0",
                    "[",
                    "]",
                    ":",
                    "{",
                    "}",
                    "'",
                    '"',
                    "=",
                    "\n",
                    "- ",
                    "9" * 9,
                    "é",
                    "%",
                    "!",
                )
            )
        try:
            load_fleet(write(tmp_path, "".join(damaged), name))
        except ConfigError as error:
            assert str(tmp_path / name) in error.message
            refused += 1
    assert 15 < refused < 150


def test_two_aliases_of_one_host(tmp_path: Path) -> None:
    path, config = tmp_path / "fleet.toml", tmp_path / "ssh_config"
    path.write_text('[defaults]\nboard = "pynq"\n[groups.g]\ndevices = ["x", "y", "z"]\n')
    devices = load_fleet(path).devices
    options = SshOptions(config_file=config)
    config.write_text(
        "Host x\n HostName 10.0.0.1\nHost y\n HostName 10.0.0.1\n ProxyJump gate\n"
        "Host z\n HostName 10.0.0.1\n Port 2222\n"
    )
    check_aliases(path, devices, options)
    config.write_text(config.read_text().replace(" ProxyJump gate\n", ""))
    with pytest.raises(ConfigError, match=r"x and y are the same host: 10\.0\.0\.1"):
        check_aliases(path, devices, options)
    check_aliases(path, devices, SshOptions(use_config=False))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"shop.lan"', '"SHOP.lan"'),
        ('"shop.lan"', '"shop.lan."'),
        ('"shop.lan"', '"shop.lan"\nport = 22'),
        ('"2001:db8::1"', '"2001:DB8:0:0::0001"'),
        ('"a"\njump = ["ops@gate"]', '"a"\njump = ["ops@GATE.:22"]'),
    ],
)
def test_one_host_in_two_spellings(tmp_path: Path, one: str, other: str) -> None:
    path = tmp_path / "fleet.toml"
    devices = '[defaults]\nboard = "pynq"\n[groups.g]\ndevices = ["x", "y"]\n'
    path.write_text(f"{devices}[devices.x]\naddress = {one}\n[devices.y]\naddress = {other}\n")
    with pytest.raises(ConfigError, match="x and y have the same address"):
        load_fleet(path)
    path.write_text(path.read_text().replace(other, '"elsewhere"'))
    assert len(load_fleet(path).devices) == 2


def test_phones(tmp_path: Path) -> None:
    """Their serial numbers may be their names; what is for SSH is left aside."""
    text = (
        '[defaults]\nuser = "pi"\nport = 2200\nboard = "pixel2"\n'
        '[groups.phones]\ndevices = ["HT7A1A01234", "R58M.2"]\naddress = "adb:{name}"\n'
        '[devices.net]\naddress = "adb:10.0.0.5:5555"\n[devices.pi]\naddress = "10.0.0.5"\n'
    )
    path = write(tmp_path, text)
    devices = load_fleet(path).devices
    assert {device.name: device.where for device in devices} == {
        "HT7A1A01234": "adb:HT7A1A01234",
        "R58M.2": "adb:R58M.2",
        "net": "adb:10.0.0.5:5555",
        "pi": "pi@10.0.0.5:2200",
    }
    check_aliases(path, devices, SshOptions(use_config=False))
    (host,) = load_fleet(write(tmp_path, "p ansible_host=adb:X1\n", "hosts")).devices
    assert host.where == "adb:X1"
    for old, new, message in (
        ("adb:10.0.0.5:5555", "adb:R58M.2", "R58M.2 and net have the same address: adb:R58M.2"),
        ("adb:10.0.0.5:5555", "adb:-x", "net: not an address: 'adb:-x'"),
        ("adb:10.0.0.5:5555", "adb:a b", "net: not an address: 'adb:a b'"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_fleet(write(tmp_path, text.replace(old, new)))


def script(folder: Path, text: str, mode: int = 0o755) -> Path:
    path = write(folder, text, "hosts.py")
    path.chmod(mode)
    return path


def test_a_program_is_run_as_ansible_runs_it(tmp_path: Path) -> None:
    """As "Developing dynamic inventory" in Ansible's documentation has it, with _meta."""
    listed = {
        "kiosks": {"hosts": ["a", "b"], "vars": {"ansible_user": "pi"}},
        "_meta": {
            "hostvars": {"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}}
        },
    }
    (tmp_path / "data.json").write_text(json.dumps(listed))
    # In its own folder, whatever that of the caller is.
    path = script(tmp_path, '#!/bin/sh\n[ "$*" = --list ] && cat data.json\n')
    fleet = load_fleet(path)
    assert [(one.name, one.address, one.user) for one in fleet.devices] == [
        ("a", "10.0.0.1", "pi"),
        ("b", "10.0.0.2", "pi"),
    ]


def test_without_meta_each_host_is_asked_for(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        '#!/bin/sh\ncase $1 in\n--list) echo \'{"all": ["a", "b"]}\' ;;\n'
        '--host) echo "{\\"ansible_host\\": \\"$2.example.org\\"}" ;;\nesac\n',
    )
    assert [one.address for one in load_fleet(path).devices] == [
        "a.example.org",
        "b.example.org",
    ]


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("#!/bin/sh\necho oh no >&2; exit 3\n", 0o755, "(?s)failed with exit code 3.*oh no"),
        ("#!/bin/sh\necho no JSON\n", 0o755, "not valid JSON"),
        ("#!/bin/sh\necho '[]'\n", 0o755, "not a JSON object"),
        ("#!/bin/sh\necho '{\"all\": 3}'\n", 0o755, "is not an object"),
        ("#!/bin/sh\necho {}\n", 0o644, "a program that is not executable"),
        ("#!/none/python\n", 0o755, "program not found"),
        ("\x7fELF", 0o755, "cannot be executed: .*Exec format error"),
    ],
)
def test_programs_that_fail(tmp_path: Path, text: str, mode: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_fleet(script(tmp_path, text, mode))


def test_a_list_that_is_executable_by_chance_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "kiosk ansible_host=10.0.0.1\n", "hosts")
    path.chmod(0o777)
    assert [one.name for one in load_fleet(path).devices] == ["kiosk"]


VAULT = "!vault |\n          $ANSIBLE_VAULT;1.1;AES256\n          3030\n"


def test_what_the_vault_keeps_is_named_where_it_is_needed(tmp_path: Path) -> None:
    text = f"all:\n  hosts:\n    a:\n      ansible_user: pi\n      secret: {VAULT}"
    assert [one.user for one in load_fleet(write(tmp_path, text, "h.yml")).devices] == ["pi"]
    text = f"all:\n  hosts:\n    a:\n      ansible_host: {VAULT}"
    with pytest.raises(ConfigError, match=r"h.yml:4: ansible_host: encrypted by Ansible Vault"):
        load_fleet(write(tmp_path, text, "h.yml"))
    text = json.dumps(
        {"_meta": {"hostvars": {"a": {"ansible_user": {"__ansible_vault": "$ANSIBLE_VAULT"}}}}}
    )
    with pytest.raises(ConfigError, match="ansible_user: encrypted by Ansible Vault"):
        load_fleet(write(tmp_path, text, "h.json"))
    with pytest.raises(ConfigError, match=r"hosts: encrypted by Ansible Vault"):
        load_fleet(write(tmp_path, "$ANSIBLE_VAULT;1.1;AES256\n3030\n", "hosts"))


def test_unsafe_is_the_text_as_it_is(tmp_path: Path) -> None:
    text = json.dumps({"_meta": {"hostvars": {"a": {"ansible_user": {"__ansible_unsafe": "pi"}}}}})
    assert [one.user for one in load_fleet(write(tmp_path, text, "h.json")).devices] == ["pi"]
