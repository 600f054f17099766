"""State and plans: text in, steps out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle import Bundle
from edgepack.device import LocalDevice
from edgepack.errors import UsageError
from edgepack.manifest import MANIFEST_NAME, PARAMS
from edgepack.release import (
    DeployPlan,
    DeviceState,
    FileState,
    Layout,
    is_prefix,
    parse_state,
    plan,
    state_command,
    wanted_files,
)
from tests.fake_app import fake_bundle

OLD, OLDER, OLDEST = "a" * 12, "b" * 12, "c" * 12


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return fake_bundle(tmp_path_factory.mktemp("bundle"))


def make_plan(bundle: Bundle, state: DeviceState, *, tested: bool = True, keep: int = 3) -> Any:
    return plan(bundle, state, tested=tested, sha256sum="sha256sum", keep=keep)


def sums(bundle: Bundle) -> dict[str, str]:
    return {path: file.sha256 for path, file in wanted_files(bundle).items()}


def kinds(todo: DeployPlan) -> list[str]:
    return [step.kind for step in todo.steps]


@pytest.mark.parametrize("root", ["", "/", "-x", "~", "~root/x", "a\nb"])
def test_what_is_no_root(root: str) -> None:
    with pytest.raises(UsageError, match="--root"):
        Layout.of(root)


def test_roots() -> None:
    assert Layout.of("~/edge pack/x/").root == "edge pack/x"
    assert Layout.of("/opt/x").enter("ls") == "cd /opt/x && ls"
    assert Layout.of("edge pack").enter("ls") == "cd './edge pack' && ls"


def test_empty_device(bundle: Bundle) -> None:
    todo = make_plan(bundle, DeviceState())
    assert kinds(todo) == ["prepare", "send", "verify", "publish", "activate", "smoke"]
    assert {send.path for send in todo.sends} == set(wanted_files(bundle))
    assert todo.send_bytes == sum(file.size for file in wanted_files(bundle).values())
    assert [line.split()[0] for line in todo.lines()] == kinds(todo)


def test_nothing_to_do(bundle: Bundle) -> None:
    release = bundle.manifest.release
    state = DeviceState(current=release, releases=(release,), here=sums(bundle))
    assert make_plan(bundle, state).steps == ()
    assert make_plan(bundle, state).lines() == [
        f"nothing to do: release {release} is current, whole and tested"
    ]
    assert kinds(make_plan(bundle, state, tested=False)) == ["smoke"]


def test_older_release_made_current_again(bundle: Bundle) -> None:
    release = bundle.manifest.release
    state = DeviceState(current=OLD, releases=(OLD, release), here=sums(bundle))
    todo = make_plan(bundle, state)
    assert kinds(todo) == ["activate", "smoke"]
    assert todo.send_bytes == 0


def test_one_weight_changed(bundle: Bundle) -> None:
    claims = dict(sums(bundle))
    del claims[MANIFEST_NAME]
    claims[PARAMS] = "0" * 64
    state = DeviceState(current=OLD, releases=(OLD,), claims={OLD: claims})
    todo = make_plan(bundle, state)
    assert {send.path for send in todo.sends} == {PARAMS, MANIFEST_NAME}
    assert set(todo.reused) == set(wanted_files(bundle)) - {PARAMS, MANIFEST_NAME}


def test_damaged_release_is_replaced_and_its_good_files_are_kept(bundle: Bundle) -> None:
    release = bundle.manifest.release
    here = {**sums(bundle), PARAMS: "0" * 64}
    todo = make_plan(bundle, DeviceState(current=release, releases=(release,), here=here))
    assert todo.replaces
    assert [send.path for send in todo.sends] == [PARAMS]


def test_cut_upload_goes_on(bundle: Bundle) -> None:
    data = bundle.file(PARAMS).read_bytes()
    whole = wanted_files(bundle)
    part = {
        PARAMS: FileState(sha256=hashlib.sha256(data[:1000]).hexdigest(), size=1000),
        "model/model.so": whole["model/model.so"],
        "labels.txt": FileState(sha256="0" * 64, size=3),
        "stray": FileState(sha256="0" * 64, size=3),
    }
    todo = make_plan(bundle, DeviceState(part=part))
    offsets = {send.path: send.offset for send in todo.sends}
    assert offsets[PARAMS] == 1000
    assert "model/model.so" not in offsets
    assert offsets["labels.txt"] == 0
    prepare = " ".join(todo.steps[0].commands)
    part_folder = f"releases/{bundle.manifest.release}.part"
    assert f"rm -f -- {part_folder}/labels.txt {part_folder}/stray" in prepare
    assert "model.so" not in prepare


def test_prefix(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")

    def state(data: bytes) -> FileState:
        return FileState(sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    assert is_prefix(file, state(b"01234"))
    assert not is_prefix(file, state(b""))
    assert not is_prefix(file, state(b"0123x"))
    assert not is_prefix(file, state(b"0123456789"))
    assert not is_prefix(file, state(b"0123456789a"))


@pytest.mark.parametrize(
    ("keep", "removed"),
    [(1, {OLDER, OLDEST}), (2, {OLDER, OLDEST}), (3, {OLDEST}), (4, set())],
)
def test_old_releases_go_but_never_current_or_previous(
    bundle: Bundle, keep: int, removed: set[str]
) -> None:
    state = DeviceState(current=OLD, previous=OLDER, releases=(OLD, OLDER, OLDEST))
    assert set(make_plan(bundle, state, keep=keep).removed) == removed
    release = bundle.manifest.release
    unchanged = DeviceState(
        current=release, previous=OLDEST, releases=(release, OLD, OLDEST), here=sums(bundle)
    )
    assert OLDEST not in make_plan(bundle, unchanged, keep=1).removed


def test_leftovers_go(bundle: Bundle) -> None:
    state = DeviceState(leftovers=(f"{OLD}.part", f"{OLDER}.old"))
    assert make_plan(bundle, state).removed == (f"{OLD}.part", f"{OLDER}.old")


def test_state_of_a_real_folder(bundle: Bundle, tmp_path: Path) -> None:
    release = bundle.manifest.release
    device = LocalDevice(tmp_path)
    layout = Layout(root="it's a root")
    command = state_command(layout, release, "sha256sum")
    assert parse_state(device.run(command).stdout, release) == DeviceState()
    device.run(
        f'cd {tmp_path} && mkdir -p "it\'s a root/releases" && cd "it\'s a root" && '
        f"cp -r {bundle.path} releases/{OLD} && cp -r {bundle.path} releases/{release} && "
        f"mkdir releases/{release}.part releases/{OLDER}.part releases/{OLDER}.old releases/x && "
        f"echo hello >releases/{release}.part/a && ln -s releases/{OLD} current && "
        f"ln -s releases/{OLDEST} previous && touch -d 2001-01-01 releases/{OLD} && "
        f"echo '{{\"a\":1}}' >releases/{release}.smoke.json"
    )
    state = parse_state(f"Welcome!\n{device.run(command).stdout}", release)
    assert state.current == OLD
    assert state.previous is None  # names nothing
    assert state.releases == (release, OLD)
    assert state.claims[OLD] == {
        path: entry.sha256 for path, entry in bundle.manifest.files.items()
    }
    assert state.here == sums(bundle)
    hello = hashlib.sha256(b"hello\n").hexdigest()
    assert state.part == {"a": FileState(sha256=hello, size=6)}
    assert set(state.leftovers) == {f"{OLDER}.part", f"{OLDER}.old"}
    assert state.smoke == {"a": 1}
