"""Ansible's inventories: what `ansible-inventory --list` prints, or a program that does.

Of any other file Ansible itself is asked where it is installed. Without it a plain list is read: an
INI or YAML file of groups and hosts, each with its own variables.

Taken are the connection variables (`ansible_host`, `ansible_port`, `ansible_user`,
`ansible_ssh_private_key_file`, ProxyJump and the like in `ansible_ssh_common_args`) and our own:
`edgepack_board`, `edgepack_root`, `edgepack_limit_rate`, `edgepack_labels`. Everything else is for
Ansible alone and left aside.
"""

from __future__ import annotations

import ast
import functools
import json
import logging
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from edgepack.base.errors import ConfigError, UsageError, perhaps
from edgepack.base.paths import OutsideError, inside
from edgepack.base.process import run
from edgepack.base.tables import read_text
from edgepack.base.text import one_line, text_lines
from edgepack.device.options import Address
from edgepack.device.patience import parse_rate
from edgepack.device.safe_names import check_host
from edgepack.fleet.bounds import MAX_BYTES, check_size
from edgepack.fleet.inventory import ALL, UNGROUPED, Group, Inventory, home_path
from edgepack.fleet.names import RangeError, expand
from edgepack.fleet.yaml_bounds import check_aliases, check_events

log = logging.getLogger(__name__)

_VAULT = "$ANSIBLE_VAULT"
# A script asks a cloud, perhaps.
_SCRIPT_S = 120.0
# Kibibytes of memory, and blocks of 512 bytes of a file.
_ANSIBLE_LIMITS = f"ulimit -v {4 << 20}; ulimit -f {MAX_BYTES // 512}"
_MOST_SAID = 400
_PORT_DIGITS = 5
_LIST_HINT = "write the values out, or use --limit to leave the host aside"
# Of two names for one thing, as Ansible has them, the later one counts.
_NAMES = {
    "address": ("ansible_host", "ansible_ssh_host"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "identity": ("ansible_private_key_file", "ansible_ssh_private_key_file"),
    "board": ("edgepack_board",),
    "root": ("edgepack_root",),
    "limit_bytes_s": ("edgepack_limit_rate",),
}
_CONNECTIONS = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh")
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
# The classic way to say ProxyJump before there was one.
_PROXY_SSH = re.compile(r"ssh (?:-q )?-W \[?%h\]?:%p (?:-q )?([^\s-]\S*)(?: -q)?")


def read_inventory(path: Path) -> Inventory:
    """The devices of an inventory file; raises ConfigError naming file, line and value."""
    is_program = _is_script(path)
    text = "" if is_program else read_text(path)
    if text.startswith(_VAULT):
        raise ConfigError(
            f"{path}: encrypted by Ansible Vault", hint=f"ansible-vault view {path.name} shows it"
        )
    inventory = Inventory(file=path, join_labels=False)
    inventory.group(ALL)
    check_size(path, text)
    is_json = path.suffix == ".json" or text.lstrip().startswith("{")
    is_yaml = path.suffix in (".yml", ".yaml") or text.lstrip().startswith("---")
    variables = [] if is_json else _vars_files(path.parent)
    ansible = find_ansible()
    if is_json and not is_program:
        _read_json(inventory, text)
    elif ansible and (variables or not is_program):
        if is_yaml:
            _check_yaml(path, text)  # before it is in Ansible's memory
        _read_json(inventory, _ask_ansible(ansible, path, is_program=is_program))
    elif variables:
        raise _not_plain(f"{path}: {variables[0].relative_to(path.parent)}", "variables beside it")
    elif is_program:
        text = _run_script(path)
        check_size(path, text)
        _read_json(inventory, text)
    elif is_yaml:
        _read_yaml(inventory, text)
    else:
        _read_ini(inventory, text)
    _check_names(inventory)
    # Groups of one depth and priority count in the order of their names.
    inventory.groups = dict(sorted(inventory.groups.items()))
    if not inventory.hosts:
        raise ConfigError(f"{path}: no hosts in it", hint="is it an inventory?")
    return inventory


def find_ansible() -> str | None:
    """The program that reads inventories as Ansible does; None if it is not installed."""
    return shutil.which("ansible-inventory")


def _not_plain(where: str, what: str) -> ConfigError:
    return ConfigError(
        f"{where}: only Ansible reads that ({what}), and it is not installed",
        hint="`pip install ansible-core`; or where Ansible is: `ansible-inventory --list -i FILE > "
        "fleet.json`, which is read as well",
    )


def _vars_files(folder: Path) -> list[Path]:
    """The files of variables beside an inventory.

    Raises ConfigError for one outside of the inventory's folder.
    """
    found = []
    for top in (folder / "group_vars", folder / "host_vars"):
        for file in [top, *sorted(top.rglob("*"))]:
            try:
                inside(folder, str(file.relative_to(folder)))
            except OutsideError as error:
                raise ConfigError(
                    f"{file}: {error}", hint="--allow-outside, if you trust whoever made the link"
                ) from None
            if file.is_file() and not file.name.startswith("."):
                found.append(file)
    return found


def _ask_ansible(program: str, path: Path, *, is_program: bool) -> str:
    """What Ansible prints of the inventory `path`. Raises ConfigError.

    Nothing beside the inventory runs: no configuration is taken from its folder, and no plugins but
    those for lists, unless the inventory is a program itself.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        out = Path(folder) / "fleet.json"
        words: list[str | Path] = [program, "--list", "-i", path.absolute(), "--output", out]
        done = run(
            # Of a small file that stands for millions of hosts.
            ["sh", "-c", f'{_ANSIBLE_LIMITS}; exec "$@"', "sh", *words],
            cwd=path.absolute().parent if is_program else Path("/"),
            env={
                "ANSIBLE_INVENTORY_ENABLED": "script" if is_program else "yaml,ini",
                "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
                "ANSIBLE_TRANSFORM_INVALID_GROUP_CHARS": "ignore",
                "ANSIBLE_NOCOLOR": "1",
            },
            timeout_s=_SCRIPT_S,
            check=False,
            error=ConfigError,
            what="ansible-inventory",
        )
        if done.returncode != 0:
            problem = " ".join(done.stderr.split())[-_MOST_SAID:]
            raise ConfigError(
                f"{path}: ansible-inventory cannot read it: {one_line(problem)}",
                hint="`ansible-inventory --list -i FILE > fleet.json` with your own settings makes "
                "a list that is read as well",
            )
        return read_text(out)


def _check_names(inventory: Inventory) -> None:
    """Hosts are safe names, and like groups no paths: files of that name are looked for."""
    for host in inventory.hosts:
        check_host(host, f"{inventory.file}: hosts")
    for name in (*inventory.hosts, *inventory.groups):
        if "/" in name or name.startswith(".") or not name.isprintable():
            raise ConfigError(
                f"{inventory.file}: not a name of a host or a group: {one_line(repr(name))}",
                hint="no '/', no '.' in front",
            )


class _Vars:
    """The variables of one host or group, each with where it was written."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Any, str]] = {}

    def set(self, name: str, value: Any, where: str) -> None:
        self._values[name] = value, where

    def take(self, name: str) -> tuple[Any, str] | None:
        """The value of `name`, which no template may be in: only Ansible can fill them in."""
        found = self._values.get(name)
        if found and isinstance(found[0], Encrypted):
            raise ConfigError(
                f"{found[1]}: {name}: encrypted by Ansible Vault",
                hint="keep addresses, users and names of keys elsewhere",
            )
        if found and isinstance(found[0], Tagged):
            raise _not_plain(found[1], f"a tag of {name}")
        if found and isinstance(found[0], str) and "{{" in found[0]:
            raise ConfigError(f"{found[1]}: {name}: a template: {found[0]!r}", hint=_LIST_HINT)
        return found

    def into(self, values: dict[str, Any]) -> None:
        """Put what concerns us into `values`, under our own names."""
        for key, names in _NAMES.items():
            for name in names:
                if (found := self.take(name)) is not None:
                    values[key] = _plain(key, name, *found)
        if (found := self.take("edgepack_labels")) is not None:
            values["labels"] = _labels(*found)
        for name in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
            if (found := self.take(name)) is not None:
                values |= _ssh_arguments(name, *found)
        connection = self.take("ansible_connection")
        if connection and connection[0] not in _CONNECTIONS:
            raise ConfigError(
                f"{connection[1]}: ansible_connection: {connection[0]!r} is not ssh",
                hint="leave the host out with --limit '!NAME'",
            )
        for name in _PASSWORDS:
            if name in self._values:
                raise ConfigError(
                    f"{self._values[name][1]}: {name}: passwords are not used",
                    hint="put a key there: ssh-copy-id; edgepack logs in with keys only",
                )

    def priority(self) -> int:
        found = self._values.get("ansible_group_priority")
        try:
            return int(found[0]) if found else 1
        except (TypeError, ValueError, OverflowError):
            assert found is not None
            raise ConfigError(
                f"{found[1]}: ansible_group_priority: {found[0]!r} is not a whole number"
            ) from None


def _plain(key: str, name: str, value: Any, where: str) -> Any:
    if key == "port":
        text = str(value)
        if not text.isdecimal() or len(text) > _PORT_DIGITS or not 0 < int(text) < 65536:
            raise ConfigError(f"{where}: {name}: {value!r} is not between 1 and 65535")
        return int(text)
    if key == "limit_bytes_s":
        if (rate := parse_rate(str(value))) is None:
            raise ConfigError(f"{where}: {name}: {value!r} is not a rate", hint="200k or 1.5M")
        return rate
    if isinstance(value, bool | list | dict) or value is None or not str(value).strip():
        raise ConfigError(f"{where}: {name}: {value!r} is not a string")
    text = str(value)
    if text.startswith("-") or text != text.strip() or not text.isprintable():
        raise ConfigError(f"{where}: {name}: {value!r} cannot be used")
    return home_path(text) if key == "identity" else text


def _labels(value: Any, where: str) -> dict[str, str]:
    """{"site": "berlin"}, or in an INI file site=berlin,line=3."""
    if isinstance(value, str):
        pairs = [item.partition("=") for item in value.split(",")]
        if all(equals and key.strip() for key, equals, _ in pairs):
            return {key.strip(): text.strip() for key, _, text in pairs}
    elif isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values()):
        return dict(value)
    raise ConfigError(
        f"{where}: edgepack_labels: cannot read {value!r}", hint="for example site=berlin,line=3"
    )


def _ssh_arguments(name: str, value: Any, where: str) -> dict[str, Any]:
    """What `-o ProxyJump=a,b` and other words for ssh mean to us."""
    # What stands here replaces all of what a group says.
    values: dict[str, Any] = {"jump": ()} if name == "ansible_ssh_common_args" else {}
    try:
        words = shlex.split(str(value or ""))
    except ValueError as error:
        raise ConfigError(f"{where}: {name}: {value!r}: {error}") from None
    todo = iter(words)
    for word in todo:
        if word[:2] in ("-o", "-J", "-i", "-p", "-l"):
            argument = word[2:] or next(todo, "")
            option = {"-J": "ProxyJump", "-i": "IdentityFile", "-p": "Port", "-l": "User"}
            key, _, text = (
                re.sub(r"[\s=]+", "=", argument.strip(), count=1).partition("=")
                if word[:2] == "-o"
                else (option[word[:2]], "=", argument)
            )
            _ssh_option(values, key.lower(), text, name, where)
        else:
            log.info("%s: %s: %s is left aside", where, name, word)
    return values


def _ssh_option(values: dict[str, Any], key: str, text: str, name: str, where: str) -> None:
    if key == "proxycommand" and text.lower() != "none":
        match = _PROXY_SSH.fullmatch(" ".join(text.split()))
        if not match:
            raise ConfigError(
                f"{where}: {name}: cannot use ProxyCommand {text!r}",
                hint="write it as ProxyJump, or put it into ~/.ssh/config, which is read",
            )
        key, text = "proxyjump", match[1]
    if key == "proxyjump":
        hops = () if text.lower() == "none" else tuple(hop.strip() for hop in text.split(","))
        for hop in hops:
            try:
                Address.parse(hop)
            except UsageError:
                raise ConfigError(
                    f"{where}: {name}: ProxyJump: {hop!r} is not user@host or user@host:port"
                ) from None
        values["jump"] = hops
    elif key == "identityfile":
        values["identity"] = home_path(text)
    elif key == "userknownhostsfile" and (files := _words(text, where))[0] != "/dev/null":
        values["known_hosts"] = home_path(files[0])
    elif key in ("port", "user"):
        values[key] = _plain(key, name, text, where)
    elif key in ("stricthostkeychecking", "userknownhostsfile"):
        _warn_once(f"{name}: {key}={text} is not followed: host keys are checked")
    else:
        log.info("%s: %s: %s is left aside", where, name, key)


@functools.cache
def _warn_once(text: str) -> None:
    """A list of ten thousand hosts says the same ten thousand times."""
    log.warning("%s", text)


def _add_hosts(inventory: Inventory, group: Group, pattern: str, own: _Vars, where: str) -> None:
    """Put the hosts that `pattern` stands for into a group, with variables of their own."""
    values: dict[str, Any] = {}
    own.into(values)
    try:
        for host in expand(pattern):
            inventory.add_host(host).update(values)
            inventory.put(host, group)
    except RangeError as error:
        raise ConfigError(f"{where}: {pattern!r}: {error}") from None


# INI


def _read_ini(inventory: Inventory, text: str) -> None:
    check_size(inventory.file, text, lines=True)
    group = UNGROUPED
    for number, raw in enumerate(text_lines(text), 1):
        line, where = raw.strip(), f"{inventory.file}:{number}"
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            group = _section(line, where)
            inventory.group(group)
        else:
            _ini_host(inventory, group, line, where)


def _section(line: str, where: str) -> str:
    match = re.fullmatch(r"\[([^\]:\s]+)(?::(\w+))?\]\s*(?:[#;].*)?", line)
    if not match:
        raise ConfigError(f"{where}: not a section: {line!r}", hint="[group]")
    if match[2]:
        raise _not_plain(where, f"a section of {match[2]}")
    return match[1]


def _ini_host(inventory: Inventory, group: str, line: str, where: str) -> None:
    words = _words(line, where)
    pattern = words[0]
    # A port behind the name, but not the colon of a range or of an IPv6 address.
    match = re.fullmatch(r"((?:[^:\[\]]|\[[^\]]*\])+):(\d+)", pattern)
    own = _Vars()
    if match:
        pattern = match[1]
        own.set("ansible_port", match[2], where)
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{where}: not name=value: {word!r}")
        own.set(name, _literal(value), where)
    _add_hosts(inventory, inventory.group(group), pattern, own, where)


def _words(line: str, where: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}: {line!r}") from None
    if not words:
        raise ConfigError(f"{where}: nothing in {line!r}")
    return words


def _literal(text: str) -> Any:
    """A Python literal if it is one, else the text itself: as Ansible reads INI values."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


# YAML


class Encrypted:
    """A value that Ansible Vault keeps: what it stands for is not for us."""


class Tagged:
    """A value with a tag that only Ansible reads."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Makes no objects of tags, whatever they are the tags of."""


_Loader.add_multi_constructor("!", lambda _loader, _suffix, _node: Tagged())
for _tag in ("!vault", "!vault-encrypted"):
    _Loader.add_constructor(_tag, lambda _loader, _node: Encrypted())


def _check_yaml(path: Path, text: str) -> None:
    """Raise ConfigError for what is no YAML, or more than an inventory is."""
    with _yaml_errors(path, text) as loader:
        node = loader.get_single_node()
        if node is not None:
            check_aliases(path, node)


def _read_yaml(inventory: Inventory, text: str) -> None:
    path = inventory.file
    _check_yaml(path, text)
    with _yaml_errors(path, text) as loader:
        node = loader.get_single_node()
        for name, _, value in _pairs(loader, path, node) if node is not None else ():
            _yaml_group(inventory, loader, name, value)


class _yaml_errors:  # noqa: N801 - used like a function
    """A loader for `text`; what is wrong with it is raised as ConfigError with its line."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text

    def __enter__(self) -> Any:
        check_size(self._path, self._text)
        check_events(self._path, self._text, _Loader)
        try:
            return _Loader(self._text)
        except yaml.YAMLError as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            where = f"{self._path}:{error.problem_mark.line + 1}"
            problem = one_line(error.problem or error)
            raise ConfigError(f"{where}: not valid YAML: {problem}") from None
        # A date that is none, or a number of too many digits, is told by Python itself.
        if isinstance(error, yaml.YAMLError | RecursionError | ValueError | OverflowError):
            raise ConfigError(f"{self._path}: not valid YAML: {one_line(error)}") from None


def _pairs(loader: Any, path: Path, node: Any) -> Iterator[tuple[str, int, Any]]:
    """Key, line and value node of a mapping; an empty value counts as an empty mapping."""
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: not a mapping of names")
    loader.flatten_mapping(node)
    for key, value in node.value:
        yield str(loader.construct_object(key, deep=True)), key.start_mark.line + 1, value


def _yaml_group(inventory: Inventory, loader: Any, name: str, node: Any) -> None:
    path = inventory.file
    group = inventory.group(name)
    for key, at, value in _pairs(loader, path, node):
        if key in ("children", "vars"):
            raise _not_plain(f"{path}:{at}", f"{key} of the group {name}")
        if key != "hosts":
            raise ConfigError(
                f"{path}:{at}: group {name}: unknown key {key!r}",
                hint=perhaps(key, ("hosts", "children", "vars")),
            )
        for pattern, its_line, inner in _pairs(loader, path, value):
            own = _Vars()
            for variable, line, content in _pairs(loader, path, inner):
                own.set(variable, loader.construct_object(content, deep=True), f"{path}:{line}")
            _add_hosts(inventory, group, pattern, own, f"{path}:{its_line}")


# JSON


def _read_json(inventory: Inventory, text: str) -> None:
    """What `ansible-inventory --list` or an inventory script prints."""
    path = inventory.file
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {one_line(error)}") from None
    if not isinstance(top, dict):
        raise ConfigError(f"{path}: not a JSON object")
    meta = _table(top.pop("_meta", {}), f"{path}: _meta")
    for name, content in top.items():
        where = f"{path}: {name}"
        group = inventory.group(name)
        table = {"hosts": content} if isinstance(content, list) else _table(content, where)
        for host in _strings(table.get("hosts", []), f"{where}.hosts"):
            inventory.add_host(host)
            group.hosts.append(host)
        for child in _strings(table.get("children", []), f"{where}.children"):
            inventory.group(child)
            group.children.append(child)
        own = _json_vars(table.get("vars", {}), f"{where}.vars")
        own.into(group.variables)
        group.priority = own.priority()
    for host, content in _table(meta.get("hostvars", {}), f"{path}: _meta.hostvars").items():
        where = f"{path}: _meta.hostvars.{host}"
        _json_vars(content, where).into(inventory.add_host(host))


def _json_vars(content: Any, where: str) -> _Vars:
    own = _Vars()
    for name, value in _table(content, where).items():
        own.set(name, _json_value(value), where)
    return own


def _json_value(value: Any) -> Any:
    """A value that Ansible wrote: JSON has no tags, so it writes tables for !vault and !unsafe."""
    if isinstance(value, dict) and len(value) == 1:
        if "__ansible_vault" in value:
            return Encrypted()
        if "__ansible_unsafe" in value:
            return value["__ansible_unsafe"]
    return value


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {value!r} is not an object")
    return value


def _strings(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{where}: {value!r} is not a list of names")
    return value


# Programs


def _is_script(path: Path) -> bool:
    """Whether Ansible would run the file: a program, and not a list that is executable by chance,
    as all files of a stick or a shared folder can be.

    Raises ConfigError for a script that cannot be run.
    """
    try:
        with path.open("rb") as file:
            first = file.read(4)
    except OSError:
        return False  # `read_text` says why
    if not first.startswith(b"#!") and first != b"\x7fELF":
        return False
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{path}: a program that is not executable", hint=f"chmod +x {path.name}")
    return True


def _run_script(path: Path) -> str:
    """What an inventory script prints, with the variables of all hosts. Raises ConfigError."""
    text = _ask_script(path, "--list")
    try:
        top = json.loads(text)
    except (ValueError, RecursionError):
        return text  # `_read_json` says what is wrong
    if not isinstance(top, dict) or "_meta" in top:
        return text
    # Without it each host is asked for: "Developing dynamic inventory" in Ansible's documentation.
    hosts = {
        host
        for group in top.values()
        for host in (
            group if isinstance(group, list) else _table(group, str(path)).get("hosts", [])
        )
        if isinstance(host, str)
    }
    top["_meta"] = {"hostvars": {host: _host_variables(path, host) for host in sorted(hosts)}}
    return json.dumps(top)


def _host_variables(path: Path, host: str) -> Any:
    text = _ask_script(path, "--host", host)
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} --host {host}: not valid JSON: {error}") from None


def _ask_script(path: Path, *words: str) -> str:
    done = run(
        [path.absolute(), *words],
        cwd=path.absolute().parent,
        timeout_s=_SCRIPT_S,
        error=ConfigError,
        what=f"the inventory {path.name}",
    )
    return done.stdout
