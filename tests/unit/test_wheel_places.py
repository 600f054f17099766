"""Wheels of programs in a folder and at an index: what is taken of them, and what is refused."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import edgepack
from edgepack.base import paths
from edgepack.base.errors import UsageError
from edgepack.base.progress import make_progress
from edgepack.base.version import VERSION
from edgepack.cli import main
from edgepack.native import prebuilt, wheel_places
from edgepack.native.prebuilt import find_prebuilt, is_available, module_of, package_of
from edgepack.native.wheel import PROGRAM, TEXT, wheel_bytes
from edgepack.native.wheel_places import WheelError, use_places, wheels_from
from tests.onnx_models import Builder

TRIPLE = "mips-linux-gnu"
MODULE = module_of(TRIPLE)
NAME = f"{MODULE}-{VERSION}-py3-none-any.whl"
FILES: Mapping[str, tuple[bytes, int]] = {
    f"{MODULE}/runtime/key/edgepack-run": (b"\x7fELF program", PROGRAM),
    f"{MODULE}/runtime/key/licenses/musl": (b"MIT", TEXT),
    f"{MODULE}/runtime/key2/edgepack-run": (b"another", PROGRAM),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")
    yield
    use_places(())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "wheels"
    place.mkdir()
    (place / NAME).write_bytes(wheel_bytes(FILES, f"{MODULE}-{VERSION}.dist-info"))
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """`folder` by HTTP, whose listing is a page of links."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as http:
        Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()


def found() -> Path | None:
    return find_prebuilt(TRIPLE, "runtime", "key")


def check_found() -> None:
    made = found()
    assert made is not None
    assert (made / "edgepack-run").read_bytes() == b"\x7fELF program"
    assert (made / "edgepack-run").stat().st_mode & 0o777 == 0o755
    assert prebuilt.read_licenses(made) == {"musl": "MIT"}
    assert not (made.parent / "runtime-key2").exists()


def test_a_folder_and_then_the_cache(folder: Path) -> None:
    assert found() is None
    assert not is_available(TRIPLE)
    use_places([str(folder.parent), str(folder)])
    assert is_available(TRIPLE)
    check_found()
    (folder / NAME).unlink()
    use_places(())
    check_found()
    # What was changed in the cache is not used, and made again of the wheel if that is there.
    made = found()
    assert made is not None
    (made / "edgepack-run").write_bytes(b"\x7fELF other")
    assert found() is None


def test_a_place_for_one_call(folder: Path) -> None:
    other = folder.with_name("empty")
    other.mkdir()
    use_places([str(other)])
    with wheels_from(folder):
        assert is_available(TRIPLE)
        with wheels_from([other, str(folder)]):
            assert is_available(TRIPLE)
        with wheels_from(other):
            assert not is_available(TRIPLE)
        with wheels_from(None):
            check_found()
    assert not is_available(TRIPLE)
    with pytest.raises(UsageError, match="http://"), wheels_from("http://packages.example/"):
        pass


@pytest.mark.parametrize("name", ["deploy", "package", "tune"])
def test_python_takes_a_place(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at while the programs are asked for, and no longer."""
    seen: list[bool] = []

    def make_job(*_: object, **__: object) -> None:
        seen.append(is_available(TRIPLE))
        raise UsageError("enough")

    monkeypatch.setattr("edgepack.api.make_job", make_job)
    monkeypatch.setattr("edgepack.flow.deployment.make_job", make_job)
    monkeypatch.chdir(tmp_path)
    Builder().save(tmp_path / "model.onnx", {"x": [1, 4]}, {})
    words = {"board": "local", "device": "local"}
    with pytest.raises(UsageError, match="enough"):
        getattr(edgepack, name)("model.onnx", find_links=folder, **words)
    with pytest.raises(UsageError, match="enough"):
        getattr(edgepack, name)("model.onnx", **words)
    assert seen == [True, False]
    with pytest.raises(WheelError, match="no wheels can be read in nowhere"):
        getattr(edgepack, name)("model.onnx", find_links="nowhere", **words)


def test_a_page_of_links(server: str) -> None:
    use_places([server])
    check_found()


@pytest.mark.parametrize("fits", [True, False])
def test_an_index_with_hashes(folder: Path, server: str, fits: bool) -> None:
    data = (folder / NAME).read_bytes()
    digest = hashlib.sha256(data if fits else b"other").hexdigest()
    files, project = folder / "files", folder / "simple" / package_of(TRIPLE)
    for place in (files, project):
        place.mkdir(parents=True)
    (folder / NAME).rename(files / NAME)
    link = f'<a href="../../files/{NAME}#sha256={digest}">{NAME}</a>'
    (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    use_places([f"{server}/simple"])
    if fits:
        check_found()
    else:
        with pytest.raises(WheelError, match="not the wheel whose hash is in its link"):
            found()


def _changed(data: bytes, name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, content if entry.filename == name else old.read(entry))
    return out.getvalue()


def test_wheels_that_are_not_what_they_should_be(folder: Path) -> None:
    file = folder / NAME
    good = file.read_bytes()
    program = f"{MODULE}/runtime/key/edgepack-run"
    record = f"{MODULE}-{VERSION}.dist-info/RECORD"
    outside = {**FILES, f"{MODULE}/runtime/key/../../../x": (b"x", TEXT)}
    for data, message in (
        (_changed(good, program, b"\x7fELF changed"), "is not what its RECORD lists"),
        (_changed(good, record, b"\xff"), "no RECORD that can be read"),
        (_changed(good, record, b""), "is not what its RECORD lists"),
        (good[: len(good) // 2], "it is no wheel"),
        (wheel_bytes(outside, f"{MODULE}-{VERSION}.dist-info"), "leads out of it"),
    ):
        file.write_bytes(data)
        use_places([str(folder)])
        with pytest.raises(WheelError, match=message):
            found()
        assert not list((folder.parent / "cache").rglob("edgepack-run"))


def test_a_wheel_that_is_much_larger_unpacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_places, "_MOST_BYTES", 100_000)
    # One of its files has room, both have not.
    large = {f"{MODULE}/runtime/key/{name}": (bytes(60_000), TEXT) for name in "ab"}
    whole = zipfile.ZipFile(io.BytesIO(wheel_bytes(large, f"{MODULE}-{VERSION}.dist-info")))
    with zipfile.ZipFile(folder / NAME, "w", zipfile.ZIP_DEFLATED) as made:
        for name in whole.namelist():
            made.writestr(name, whole.read(name))
    use_places([str(folder)])
    with pytest.raises(WheelError, match="is larger than"):
        found()


def test_another_version_and_other_sources(folder: Path) -> None:
    (folder / NAME).rename(folder / NAME.replace(VERSION, "0.0.1"))
    said: list[str] = []
    use_places([str(folder)])
    assert found() is None
    prebuilt.say_why_built(TRIPLE, "the app", make_progress(said.append))
    (folder / NAME.replace(VERSION, "0.0.1")).rename(folder / NAME)
    use_places([str(folder)])
    assert find_prebuilt(TRIPLE, "runtime", "of-other-sources") is None
    prebuilt.say_why_built(TRIPLE, "the app", make_progress(said.append))
    assert said == [
        f"building the app from source: no {package_of(TRIPLE)} {VERSION} is in {folder}",
        f"building the app from source: {folder / NAME} was made with other sources, flags or "
        "compilers",
    ]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("http://wheels.example/simple", "not https"),
        ("ftp://wheels.example", "not https"),
        ("https://me:secret@wheels.example/", "with a password is not taken"),
    ],
)
def test_addresses_that_are_not_taken(place: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        use_places([place])
    assert "secret" not in str(caught.value)


def test_places_that_cannot_be_read(
    tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, message in (
        (str(tmp_path / "none"), "no wheels can be read in"),
        (f"{server}/none", "there is no such page"),
        ("http://127.0.0.1:9", "Connection refused"),
    ):
        use_places([place])
        with pytest.raises(WheelError, match=message):
            found()
    # By the environment, as a company sets it for all.
    monkeypatch.setenv("EDGEPACK_WHEELS", str(tmp_path / "none"))
    assert main(["doctor", "--board", "rasp3b"]) == WheelError.exit_code
    assert "no wheels can be read in" in capsys.readouterr().err
    monkeypatch.setenv("EDGEPACK_WHEELS", "http://wheels.example/")
    assert main(["doctor", "--board", "rasp3b"]) == 2
    assert main(["doctor", "--board", "rasp3b", "--find-links", str(tmp_path)]) in (0, 4)
    assert wheel_places.places() == (str(tmp_path),)
