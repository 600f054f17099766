"""A stranger's project and inventory: nothing is run, nothing outside of their folder is read."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base.errors import ConfigError
from edgepack.base.paths import outside_allowed
from edgepack.base.tables import read_toml
from edgepack.fleet import load_fleet
from edgepack.fleet.bounds import MAX_DEPTH
from edgepack.flow.project import load_project
from edgepack.postprocess.gallery import Gallery

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What was cloned, beside something that is nobody else's business."""
    (tmp_path / "own/photos").mkdir(parents=True)
    for name in ("secret.txt", "photos/face.png", "net.onnx", "b.toml", "t.jsonl"):
        (tmp_path / "own" / name).write_text("top secret\n")
    Gallery().write(tmp_path / "own/people.json")
    folder = tmp_path / "clone"
    (folder / "photos").mkdir(parents=True)
    for name in ("net.onnx", "labels.txt", "cat.png", "b.toml", "t.jsonl", "photos/a.png"):
        (folder / name).write_text("a\nb\n")
    return folder


def project(clone: Path, text: str, *, model: str = "net.onnx") -> Path:
    path = clone / "edgepack.toml"
    path.write_text(f'[project]\nmodel = "{model}"\n{text}')
    return path


def absolute(clone: Path, name: str) -> str:
    return str(clone.parent / "own" / name)


def upwards(clone: Path, name: str) -> str:
    return f"photos/../../own/{name}"


def link(clone: Path, name: str) -> str:
    (clone / "link").symlink_to(f"../own/{name}")
    return "link"


def link_to_a_folder(clone: Path, name: str) -> str:
    (clone / "sub").symlink_to(clone.parent / "own")
    return f"sub/{name}"


def link_of_a_link(clone: Path, name: str) -> str:
    (clone / "one").symlink_to("two")
    (clone / "two").symlink_to(absolute(clone, name))
    return "one"


WAYS = (absolute, upwards, link, link_to_a_folder, link_of_a_link)
KEYS = {
    "project.model": ("net.onnx", ""),
    "project.labels": ("secret.txt", 'labels = "{}"'),
    "project.golden_image": ("photos/face.png", 'golden_image = "{}"\n[preprocess]'),
    "project.golden_input": ("secret.txt", 'golden_input = ["{}"]'),
    "project.boards": ("b.toml", 'boards = ["b.toml", "{}"]'),
    "tune.records": ("t.jsonl", '[tune]\nrecords = ["{}"]'),
    "quantize.images": ("photos", '[quantize]\nimages = "{}"'),
    "quantize.judge": ("photos", '[quantize]\njudge = "{}"'),
    "postprocess.charset": ("secret.txt", '[postprocess]\nkind = "ctc"\ncharset = "{}"'),
    "postprocess.gallery": (
        "people.json",
        '[postprocess]\nkind = "embedding"\nscore = 0.5\ngallery = "{}"',
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", KEYS)
def test_paths_that_leave_the_folder(
    clone: Path, key: str, way: Callable[[Path, str], str]
) -> None:
    name, text = KEYS[key]
    there = way(clone, name)
    if key == "project.model":
        path = project(clone, "", model=there)
    else:
        path = project(clone, text.replace("{}", there))
    with pytest.raises(ConfigError) as caught:
        load_project(path)
    message = caught.value.message
    assert str(path) in message and there in message and "leads out of" in message
    assert key in message and "secret" not in message.replace(there, "")
    assert "--allow-outside" in str(caught.value.hint)
    with outside_allowed():
        load_project(path)
    # It is the rule of a file: the command line's own paths are the user's.
    if key == "project.labels":
        load_project(project(clone, ""), {"labels": clone / there})


def test_paths_within_the_folder(clone: Path) -> None:
    (clone / "sub").mkdir()
    (clone / "sub/link").symlink_to("../labels.txt")
    for name in ("labels.txt", "./labels.txt", "sub/../labels.txt", "sub/link"):
        assert load_project(project(clone, f'labels = "{name}"')).labels == clone / name
    # The clone itself may be reached by a link.
    (clone.parent / "short").symlink_to("clone")
    project(clone, 'labels = "sub/link"')
    load_project(clone.parent / "short/edgepack.toml")
    for bad in ("circle", "a\\u0000b"):
        (clone / "circle").unlink(missing_ok=True)
        (clone / "circle").symlink_to("circle")
        with pytest.raises(ConfigError):
            load_project(project(clone, f'labels = "{bad}"'))


def test_links_among_photos_and_records(clone: Path) -> None:
    (clone / "photos/b.png").symlink_to("../../own/photos/face.png")
    path = project(clone, '[quantize]\nimages = "photos"')
    with pytest.raises(ConfigError, match=r"photos/b\.png.* leads out of"):
        load_project(path)
    (clone / "tuning.jsonl").symlink_to("../own/t.jsonl")
    with pytest.raises(ConfigError, match=r"tuning\.jsonl.* leads out of"):
        load_project(project(clone, ""))


def test_a_folder_anywhere_on_this_machine(clone: Path) -> None:
    for root in ("/home/me/.ssh", "../x", "a/../../b", "~/x", "~root/x"):
        for where in ('board = "local"', 'device = "local"'):
            path = project(clone, f'root = "{root}"\n{where}\n')
            with pytest.raises(ConfigError, match="anywhere on this machine"):
                load_project(path)
            with outside_allowed():
                load_project(path)
        load_project(project(clone, f'root = "{root}"\ndevice = "pi@board"\nboard = "rasp3b"\n'))
    load_project(project(clone, 'root = "models/x"\ndevice = "local"\n'))
    load_project(project(clone, 'device = "local"\n'), {"root": "/opt/x"})


@pytest.mark.parametrize("where", ["host_vars/a", "group_vars/all.yml", "group_vars/all/x.yml"])
def test_variables_of_an_inventory(clone: Path, where: str) -> None:
    (clone / "hosts").write_text("a\n")
    (clone.parent / "own/vars").write_text("ansible_user: me\n")
    file = clone / where
    file.parent.mkdir(parents=True)
    file.symlink_to(clone.parent / "own/vars")
    with pytest.raises(ConfigError, match="leads out of"):
        load_fleet(clone / "hosts")
    with outside_allowed(), pytest.raises(ConfigError, match="only Ansible reads that"):
        load_fleet(clone / "hosts")


@pytest.mark.parametrize(("key", "name"), [("identity", "secret.txt"), ("known_hosts", "b.toml")])
def test_keys_of_a_fleet(clone: Path, key: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(clone.parent))
    for there in (absolute(clone, name), f"../own/{name}", f"~/own/{name}"):
        (clone / "fleet.toml").write_text(f'[defaults]\n{key} = "{there}"\n[devices.a]\n')
        with pytest.raises(ConfigError, match="leads out of"):
            load_fleet(clone / "fleet.toml")
    for there in ("keys/mine", "~/.ssh/known_hosts"):
        (clone / "fleet.toml").write_text(f'[defaults]\n{key} = "{there}"\n[devices.a]\n')
        load_fleet(clone / "fleet.toml")
    (clone / "fleet.toml").write_text('[devices.a]\nknown_hosts = "~/.ssh/authorized_keys"\n')
    with pytest.raises(ConfigError, match="leads out of"):
        load_fleet(clone / "fleet.toml")


# ------------------------------------------------ 300 of them, watched

_WATCHED = """
import sys, json
from pathlib import Path
top = Path(sys.argv[1])
from edgepack.flow.project import load_project
from edgepack.fleet import load_fleet
from edgepack.fleet import ansible, fleet_toml
from edgepack.base.errors import EdgepackError
from edgepack.postprocess import spec
import encodings.idna, encodings.unicode_escape
seen, watching = [], False
system = [str(Path(p).resolve()) for p in sys.path if p] + [sys.prefix, sys.base_prefix, "/usr/lib"]
def hook(event, args):
    if not watching:
        return
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
        seen.append([event, repr(args)[:200]])
    elif event == "open" and isinstance(args[0], (str, bytes)):
        path = Path(args[0] if isinstance(args[0], str) else args[0].decode()).resolve()
        if not path.is_relative_to(folder) and not str(path).startswith(tuple(system)):
            seen.append([event, str(path)])
    elif event in ("socket.connect", "socket.getaddrinfo"):
        seen.append([event, repr(args)[:200]])
sys.addaudithook(hook)
ends = {}
for folder in sorted(top.iterdir()):
    file = next(folder.glob("main*"))
    folder = folder.resolve()
    watching = True
    try:
        (load_project if file.name == "main.edgepack" else load_fleet)(file)
        end = "read"
    except EdgepackError as error:
        end = type(error).__name__
        assert len(error.message) < 21000
    watching = False
    ends[end] = ends.get(end, 0) + 1
watching = True
open("/etc/hostname").close()
watching = False
assert seen.pop()[1] == "/etc/hostname"
print(json.dumps([seen, ends]))
"""


def _generated(draw: random.Random, folder: Path, own: Path) -> None:
    """A project or an inventory of somebody who means no good."""
    folder.mkdir()
    (folder / "net.onnx").write_text("x")
    (folder / "labels.txt").write_text("a\n")
    target = draw.choice([str(own / "secret.txt"), "/etc/passwd", "../../own/secret.txt", str(own)])
    for number in range(draw.randint(0, 2)):
        (folder / f"l{number}").symlink_to(target)
    there = draw.choice([target, "l0", "l1", "l0/secret.txt", "labels.txt", "net.onnx"])
    shell = draw.choice(
        ["$(touch {})", "`touch {}`", ";touch {};", "|touch {}", "-oProxyCommand={}"]
    )
    host = draw.choice(["pi@board", shell.replace("{}", f"{own}/mark"), "../../own", "a" * 10**4])
    kind = draw.randrange(5)
    if kind == 0:
        keys = draw.sample(["labels", "golden_image", "model"], 2)
        text = "[project]\n" + "".join(f'{key} = "{there}"\n' for key in keys)
        text += "" if "model" in keys else 'model = "net.onnx"\n'
        text += f'boards = ["{there}"]\n' * draw.randint(0, 1) + f"device = '{host}'\n"
        tail = ['[tune]\nrecords = ["{}"]', '[quantize]\nimages = "{}"', "[preprocess]",
                '[postprocess]\nkind = "ctc"\ncharset = "{}"']  # fmt: skip
        text += draw.choice(tail).replace("{}", there)
        (folder / "main.edgepack").write_text(text)
    elif kind == 1:
        (folder / "main.toml").write_text(
            f"[defaults]\nidentity = '{there}'\n[devices.a]\naddress = '{host}'\n"
            f"jump = ['{host}']\n"
        )
    elif kind == 2:
        arguments = draw.choice(["-J {}", "-o ProxyCommand='{}'", "-i {}", "-F {}", "-l {}"])
        text = f'{draw.choice(["a", host])} ansible_host="{host}" ansible_ssh_common_args='
        (folder / "main").write_text(text + json.dumps(arguments.replace("{}", host)) + "\n")
        (folder / draw.choice(["host_vars", "group_vars"])).symlink_to(target)
    elif kind == 3:
        tag = draw.choice(["!!python/object/apply:os.system", "!include", "!vault", "!!binary"])
        (folder / "main.yml").write_text(
            f"all:\n  hosts:\n    ? {json.dumps(host)}\n    : {{ansible_host: {tag} ['{there}']}}\n"
        )
    else:
        (folder / "main.json").write_text(
            json.dumps({"_meta": {"hostvars": {host: {"ansible_host": there}}}, "../x": [host]})
        )


def test_300_generated_run_nothing_and_read_nothing_outside(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "secret.txt").write_text("ansible_user: top secret\n")
    (tmp_path / "all").mkdir()
    draw = random.Random(40)
    for number in range(300):
        _generated(draw, tmp_path / "all" / f"{number:03}", own)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WATCHED, str(tmp_path / "all")],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": ""},
    )
    seen, ends = json.loads(done.stdout)
    assert seen == []
    assert not (own / "mark").exists()
    assert ends["read"] > 10 and ends["ConfigError"] > 100, ends


# ------------------------------------------------ small files that grow

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "x0: &x0 {ansible_user: a, b: c, d: e}\n" + "".join(
    f"x{n}: &x{n}\n  <<: [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h.yml", f"all:\n  vars:\n    v:\n      {LAUGHS.replace(chr(10), chr(10) + '      ')}"),
        ("h.yml", LAUGHS + "all: {hosts: {a: {ansible_user: *a11}}}\n"),
        ("h.yml", MERGES + "all:\n  hosts:\n    a: *x11\n"),
        ("h.yml", "all: {hosts: {a: {edgepack_labels: &a [*a]}}}\n"),
        ("h.yml", "all: " + "[" * 50_000),
        ("h.yml", "all: " + "{a: " * 5000),
        ("h.yml", "- x\n" * 60_000),
        ("h.yml", f"all: {{vars: {{ansible_port: {'9' * 10_000}}}}}"),
        ("h.yml", "all: {vars: {x: 2026-13-41}}"),
        ("h.yml", "all: {vars: {? [1, 2] : 3}}"),
        ("h.yml", f"all: {{hosts: {{a: {{ansible_port: {'x' * 10**6}}}}}}}"),
        ("h", "a[1:9999]\n" * 50),
        ("h", "a" + "[0:9]" * 300 + "\n"),
        ("h", "a" + "[1:99999]" * 90 + "\n"),
        ("h", f"a[{'0' * 10**5}1:{'9' * 10**5}2]\n"),
        ("h", f"a[1:{'9' * 5000}]\n"),
        ("h", f"a ansible_port={'9' * 5000}\n"),
        ("h", "a ansible_group_priority=1\n[g:vars]\nansible_group_priority=1e999\n[g]\na\n"),
        ("h", f"a x={'(' * 5000}\n[all:vars]\nx={'[' * 5000}\nansible_port=[{'1,' * 5000}]\n"),
        ("h", "x" * 10**6 + "\n"),
        ("h", "'" + "x" * 70_000),
        ("h.json", json.dumps({f"g{n}": {"children": [f"g{n + 1}"]} for n in range(5000)})),
        ("h.json", "[" * 10**6),
        ("h.json", '{"a": ' * 10**5),
        ("h.json", '{"a": {"hosts": [' + "9" * 10_000 + "]}}"),
        ("h.json", '{"a": {"hosts": "' + "x" * 10**6 + '"}}'),
        ("f.toml", "a = " + "[" * 10**5),
        ("f.toml", f"a = {'9' * 10_000}"),
        ("f.toml", ".".join(["a"] * 10**5) + " = 1"),
        ("f.toml", "[" + ".".join(['"a b"'] * 10**5) + "]"),
        ("f.toml", "x = {" + ".".join(["a"] * 10**4) + " = 1}"),
        ("f.toml", '[groups.g]\ndevices = ["a[1:9999]"]\n' + "".join(
            f'[groups.g{n}]\ndevices = ["a[1:9999]"]\n' for n in range(30))),
        ("f.toml", f'[devices.a]\nuser = {["x"] * 10**5}\n'),
        ("f.toml", f'[devices."{"x" * 10**5}"]\n'),
    ],
    ids=lambda value: value[:20] if len(value) > 8 else value,
)  # fmt: skip
def test_a_small_file_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """Refused in little time, memory and text; a minute stands for "for ever".

    The bounds are lower here than they are, to be reached sooner.
    """
    monkeypatch.setattr("edgepack.fleet.yaml_bounds.MAX_VALUES", 50_000)
    monkeypatch.setattr("edgepack.fleet.inventory.MAX_MEMBERS", 20_000)
    path, said = tmp_path / name, tmp_path / "said"
    path.write_text(text)
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        try:
            load_fleet(path)
        except ConfigError as error:
            said.write_text(error.message)
        except BaseException as error:
            said.write_text(f"BUG {error!r}"[:1000])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    message = said.read_text()
    assert not message.startswith("BUG"), message
    assert str(path) in message and len(message) < 21_000


def test_what_is_written_out_within_bounds_is_read(tmp_path: Path) -> None:
    path = tmp_path / "h.yml"
    path.write_text(
        "g:\n  hosts: &h\n    b: &v {ansible_user: pi}\n    a: {<<: *v, ansible_port: 2222}\n"
        "all:\n  hosts: *h\n"
    )
    assert [device.where for device in load_fleet(path).devices] == ["pi@b", "pi@a:2222"]
    groups = {f"g{n}": {"children": [f"g{n + 1}"]} for n in range(MAX_DEPTH - 2)}
    groups[f"g{MAX_DEPTH - 2}"] = {"hosts": ["b"]}
    (tmp_path / "h.json").write_text(json.dumps({"all": {"hosts": ["a"]}, **groups}))
    assert len(load_fleet(tmp_path / "h.json").devices) == 2
    (tmp_path / "t.toml").write_text(f"{'.'.join(['a'] * 60)} = 1\nb = [{'1.5, ' * 1000}]\n")
    assert len(read_toml(tmp_path / "t.toml")["b"]) == 1000
