"""Inventories by Ansible itself, where it is installed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.base.errors import ConfigError
from edgepack.fleet import FleetDevice, load_fleet

ANSIBLE = Path(__file__).parents[1] / "fixtures" / "ansible"


@pytest.fixture
def ansible() -> str:
    found = shutil.which("ansible-inventory")
    if found is None:
        pytest.skip("ansible-inventory is not installed: pip install ansible-core")
    return found


@pytest.mark.usefixtures("ansible")
@pytest.mark.parametrize("kind", ["ini", "yml"])
def test_each_form_of_a_list_is_the_fleet_that_ansible_prints(kind: str) -> None:
    def by_name(path: Path) -> list[FleetDevice]:
        devices = load_fleet(path).devices
        named = [replace(one, groups=tuple(sorted(one.groups))) for one in devices]
        return sorted(named, key=lambda device: device.name)

    assert by_name(ANSIBLE / f"hosts.{kind}") == by_name(ANSIBLE / f"hosts-{kind}.list.json")


@pytest.mark.usefixtures("ansible")
def test_nothing_beside_an_inventory_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/mine.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (tmp_path / "ansible.cfg").write_text(
        f"[defaults]\nvars_plugins = {tmp_path}/plugins\ninventory_plugins = {tmp_path}/plugins\n"
    )
    hosts = tmp_path / "hosts"
    hosts.write_text(f"a x=\"{{{{ lookup('pipe', 'touch {mark}') }}}}\" ansible_user=pi\n")
    (device,) = load_fleet(hosts).devices
    assert device.where == "pi@a"
    (tmp_path / "mine.yml").write_text("plugin: mine\n")
    with pytest.raises(ConfigError, match="ansible-inventory cannot read it"):
        load_fleet(tmp_path / "mine.yml")
    hosts.write_text(f"a ansible_host=\"{{{{ lookup('pipe', 'touch {mark}') }}}}\"\n")
    with pytest.raises(ConfigError, match="ansible_host: a template"):
        load_fleet(hosts)
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("ansible")
def test_a_small_list_of_very_many_hosts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a[1:999999]-[1:999]\n")
    with pytest.raises(ConfigError, match="hosts: "):
        load_fleet(tmp_path / "hosts")
