from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.base import paths
from edgepack.base.errors import BundleError
from edgepack.bundle.bundle import (
    Bundle,
    DamagedBundleError,
    Golden,
    NotABundleError,
    StageContents,
    open_bundle,
    write_tarball,
)
from edgepack.bundle.manifest import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    ManifestError,
    parse_manifest,
)
from edgepack.bundle.sbom import sbom
from edgepack.bundle.tarball import ArchiveError
from edgepack.bundle.verified import Verified
from edgepack.model import TensorInfo
from tests.bundles import FakeCompiled, FakePreprocess, FakeRuntime, golden, small_bundle

FIXTURE = Path(__file__).parents[1] / "fixtures" / "bundle-schema1.tar.gz"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return small_bundle(tmp_path)


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


EXECUTABLE = {"bin/edgepack-run", "bin/edgepack-device", "install"}


def test_layout(bundle: Bundle) -> None:
    files = tree(bundle.path)
    assert sorted(files) == [
        "bin/edgepack-device",
        "bin/edgepack-run",
        "golden/expected.json",
        "golden/image.png",
        "golden/input.npy",
        "golden/output.npy",
        "install",
        "labels.txt",
        "licenses/edgepack",
        "licenses/zlib",
        "licenses/zstd",
        "manifest.json",
        "model/graph.json",
        "model/model.so",
        "model/params.bin",
        "preprocess.json",
    ]
    assert {name for name, (mode, _) in files.items() if mode == 0o755} == EXECUTABLE
    assert {mode for mode, _ in files.values()} == {0o644, 0o755}
    assert bundle.path.name == f"tiny-rasp3b-{bundle.manifest.release}"
    assert [path.name for path in bundle.path.parent.iterdir()] == [bundle.path.name]
    assert files["labels.txt"][1].decode().splitlines() == ["cat", "dog", "espresso", "Käse"]
    assert json.loads(files["golden/expected.json"][1]) == {"index": 1, "label": "dog"}
    assert np.array_equal(np.load(bundle.file("golden/input.npy")), golden().inputs[0])
    assert bundle.golden_image == "golden/image.png"
    assert b"Apache License" in files["licenses/edgepack"][1]


def test_the_manifest_says_what_is_there(bundle: Bundle) -> None:
    data = bundle.file(MANIFEST_NAME).read_bytes()
    assert bundle.manifest_sha256 == hashlib.sha256(data).hexdigest()
    assert bundle.manifest.total_bytes == sum(
        len(content) for name, (_, content) in tree(bundle.path).items() if name != MANIFEST_NAME
    )
    assert bundle.manifest.compatible.triple == "arm-linux-gnueabihf"
    assert bundle.manifest.versions.toolchain == "zig 0.17.0 (glibc 2.28)"
    assert open_bundle(bundle.path) == bundle


def test_equal_input_equal_bytes(tmp_path: Path) -> None:
    first = small_bundle(tmp_path / "a")
    old_umask = os.umask(0o077)
    try:
        second = small_bundle(tmp_path / "elsewhere")
    finally:
        os.umask(old_umask)
    assert tree(first.path) == tree(second.path)
    assert small_bundle(tmp_path / "a").manifest == first.manifest  # replaces itself
    other = small_bundle(tmp_path / "b", params=b"other")
    assert other.manifest.release != first.manifest.release


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    parts = small_bundle(tmp_path).path.parent.parent / "parts"
    ids = TensorInfo(name="ids", dtype="int64", shape=(1, 2))
    scores = TensorInfo(name="scores", dtype="float32", shape=(1, 4))
    bundle = small_bundle(
        tmp_path,
        preprocess=None,
        labels=None,
        compiled=FakeCompiled(
            library=parts / "model.so",
            graph=parts / "graph.json",
            params=parts / "params.bin",
            inputs=(ids, ids),
            outputs=(scores,),
        ),
        golden=Golden(
            inputs=(np.ones((1, 2), np.int64), np.zeros((1, 2), np.int64)),
            outputs=golden().outputs,
        ),
    )
    names = [name for name in bundle.manifest.files if name.startswith("golden/")]
    assert names == ["golden/input.1.npy", "golden/input.npy", "golden/output.npy"]
    assert bundle.golden_image is None
    assert "labels.txt" not in bundle.manifest.files


def test_a_golden_output_that_is_a_scalar(tmp_path: Path) -> None:
    parts = small_bundle(tmp_path).path.parent.parent / "parts"
    compiled = FakeCompiled(
        library=parts / "model.so",
        graph=parts / "graph.json",
        params=parts / "params.bin",
        outputs=(TensorInfo(name="count", dtype="int64", shape=()),),
    )
    made = golden(outputs=(np.array(3),))
    bundle = small_bundle(tmp_path, compiled=compiled, golden=made)
    assert np.load(bundle.path / "golden/output.npy").shape == ()


def test_an_output_whose_size_depends_on_the_data(tmp_path: Path) -> None:
    parts = small_bundle(tmp_path).path.parent.parent / "parts"
    compiled = FakeCompiled(
        library=parts / "model.so",
        graph=parts / "graph.json",
        params=parts / "params.bin",
        outputs=(TensorInfo(name="found", dtype="float32", shape=(5, 4), bounded=(0,)),),
    )
    for rows in (0, 2, 5):
        made = golden(outputs=(np.zeros((rows, 4), np.float32),))
        bundle = small_bundle(tmp_path, compiled=compiled, golden=made)
        (output,) = parse_manifest(bundle.manifest.to_bytes()).model.outputs
        assert (output.shape, output.bounded) == ((5, 4), (0,))
    for shape in ((6, 4), (2, 3), (2,)):
        made = golden(outputs=(np.zeros(shape, np.float32),))
        with pytest.raises(BundleError, match="smoke test's outputs are"):
            small_bundle(tmp_path, compiled=compiled, golden=made)
    document = json.loads(bundle.manifest.to_bytes())
    assert "bounded" not in document["model"]["inputs"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"name": "a/b"}, "bundle name: 'a/b'"),
     ({"labels": ["one\ntwo"]}, "label 0"),
     ({"labels": [""]}, "label 0"),
     ({"scores": "logits"}, "scores"),
     ({"tolerance": 0.0}, "tolerance"),
     ({"golden": golden(inputs=())}, "smoke test.s inputs are"),
     ({"golden": golden(outputs=(np.zeros((1, 4), np.float64),))}, "smoke test.s outputs are"),
     ({"golden": golden(image=Path("photo.webp"))}, r"photo.webp: not .png or .jpg"),
     ({"golden": golden(image=Path("nowhere.png"))}, "cannot read nowhere.png"),
     ({"runtime": FakeRuntime(app=Path("nowhere"))}, "cannot read nowhere")],
)  # fmt: skip
def test_what_cannot_be_packed(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        small_bundle(tmp_path, **change)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def _link(path: Path) -> None:
    copy = path.rename(path.parent.parent.parent / "elsewhere")
    path.symlink_to(copy)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [(Path.unlink, "missing"), (_append, "257 bytes instead of 256"), (_flip, "sha256 "),
     (lambda path: path.chmod(0o755), "mode 0755 instead of 0644"), (_link, "no plain file"),
     (_folder, "no plain file"), (_fifo, "no plain file")],
)  # fmt: skip
def test_damage_is_named(bundle: Bundle, damage: Callable[[Path], None], problem: str) -> None:
    damage(bundle.file("model/params.bin"))
    with pytest.raises(DamagedBundleError) as caught:
        open_bundle(bundle.path)
    [(file, what)] = caught.value.problems
    assert file == "model/params.bin"
    assert what.startswith(problem)
    assert f"model/params.bin: {problem}" in caught.value.message
    assert str(bundle.path) in caught.value.message


@pytest.mark.parametrize("name", ["extra", "model/extra", "extra/folder/file", "empty/"])
def test_what_is_not_listed_is_damage(bundle: Bundle, name: str) -> None:
    path = bundle.file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("/"):
        path.mkdir()
    else:
        path.write_bytes(b"")
    with pytest.raises(DamagedBundleError, match=f"{name.rstrip('/')}: not in the manifest"):
        open_bundle(bundle.path)


def test_all_problems_are_collected_and_the_first_shown(bundle: Bundle) -> None:
    shutil.rmtree(bundle.file("model"))
    shutil.rmtree(bundle.file("golden"))
    with pytest.raises(DamagedBundleError, match="and 3 more") as caught:
        open_bundle(bundle.path)
    assert len(caught.value.problems) == 7


def test_group_and_other_permissions_are_no_damage(bundle: Bundle) -> None:
    for path in bundle.path.rglob("*"):
        runs = path.is_dir() or str(path.relative_to(bundle.path)) in EXECUTABLE
        path.chmod(0o700 if runs else 0o600)
    assert open_bundle(bundle.path) == bundle


def test_what_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(NotABundleError, match="no such bundle"):
        open_bundle(tmp_path / "nowhere")
    with pytest.raises(NotABundleError, match="not a bundle"):
        open_bundle(tmp_path)
    text = tmp_path / "text.tar.gz"
    text.write_text("hello")
    with pytest.raises(ArchiveError, match=r"text\.tar\.gz"):
        open_bundle(text)


def test_a_manifest_that_lies_is_refused(bundle: Bundle) -> None:
    path = bundle.file(MANIFEST_NAME)
    path.write_text(path.read_text().replace('"raw"', '"softmax"').replace("tiny.onnx", "big.onnx"))
    with pytest.raises(ManifestError, match="release is"):
        open_bundle(bundle.path)


def test_tarballs_are_reproducible(tmp_path: Path) -> None:
    first = small_bundle(tmp_path / "a")
    one = write_tarball(first, tmp_path / "one.tar.gz")
    old_umask = os.umask(0o077)
    try:
        copy = tmp_path / "copy"
        shutil.copytree(first.path, copy, copy_function=shutil.copyfile)
        for name in EXECUTABLE:
            (copy / name).chmod(0o700)
        two = write_tarball(open_bundle(copy), tmp_path / "two.tar.gz")
    finally:
        os.umask(old_umask)
    assert one == two == hashlib.sha256((tmp_path / "two.tar.gz").read_bytes()).hexdigest()
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    later = write_tarball(first, tmp_path / "later.tar.gz", mtime=86400)
    assert later != one


def test_the_signature_travels_beside_the_manifest(bundle: Bundle, tmp_path: Path) -> None:
    """It signs the manifest, so that the manifest cannot list it."""
    assert bundle.signature == b""
    (bundle.path / SIGNATURE_NAME).write_bytes(b"-----BEGIN SSH SIGNATURE-----\n")
    assert open_bundle(bundle.path) == bundle
    write_tarball(bundle, tmp_path / "signed.tar.gz")
    assert open_bundle(tmp_path / "signed.tar.gz").signature == bundle.signature != b""


def test_a_tarball_is_not_written_from_a_damaged_folder(bundle: Bundle, tmp_path: Path) -> None:
    _flip(bundle.file("model/params.bin"))
    with pytest.raises(DamagedBundleError):
        write_tarball(bundle, tmp_path / "out.tar.gz")
    assert not (tmp_path / "out.tar.gz").exists()


def test_the_system_tar_unpacks_it(bundle: Bundle, tmp_path: Path) -> None:
    write_tarball(bundle, tmp_path / "tiny.tar.gz")
    subprocess.run(["tar", "xf", "tiny.tar.gz", "-C", tmp_path], cwd=tmp_path, check=True)
    unpacked = tmp_path / bundle.path.name
    assert tree(unpacked) == tree(bundle.path)
    listing = subprocess.run(
        ["tar", "tvf", tmp_path / "tiny.tar.gz", "--numeric-owner", "--utc"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    assert listing[0].endswith("/manifest.json")
    assert all(" 0/0 " in line and "1970-01-01 00:00" in line for line in listing)


def test_open_bundle_reads_tarballs(bundle: Bundle, tmp_path: Path) -> None:
    archive = tmp_path / "tiny.tar.gz"
    write_tarball(bundle, archive)
    opened = open_bundle(archive)
    assert opened.manifest == bundle.manifest
    assert tree(opened.path) == tree(bundle.path)
    again = opened.path.stat().st_ino
    assert open_bundle(archive).path.stat().st_ino == again  # from the cache
    _flip(opened.file("model/params.bin"))
    assert tree(open_bundle(archive).path) == tree(bundle.path)  # unpacked anew


def test_a_compressed_tarball_made_with_tar_is_read(bundle: Bundle, tmp_path: Path) -> None:
    archive = tmp_path / "own.tgz"
    subprocess.run(["tar", "czf", archive, "-C", bundle.path.parent, bundle.path.name], check=True)
    assert open_bundle(archive).manifest == bundle.manifest


def test_a_damaged_file_in_a_tarball_is_named(bundle: Bundle, tmp_path: Path) -> None:
    write_tarball(bundle, tmp_path / "good.tar.gz")
    data = gzip.decompress((tmp_path / "good.tar.gz").read_bytes())
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(gzip.compress(data.replace(b"the kernels", b"The kernels")))
    with pytest.raises(DamagedBundleError, match=r"bad.tar.gz: .*model/model.so: sha256"):
        open_bundle(bad)
    assert list((paths.cache_dir() / "bundles").glob("*/*")) == []


def test_the_first_bundle_schema_is_still_read() -> None:
    bundle = open_bundle(FIXTURE)
    assert bundle.manifest.schema == 1
    assert bundle.manifest.versions.edgepack == "0.1.0"
    assert bundle.manifest.folder_name == bundle.path.name


def test_the_released_bundle_is_still_read(tmp_path: Path) -> None:
    released = FIXTURE.with_name("bundle-0.1.0-rasp3b.tar.xz")
    archive = tmp_path / "released.tar.gz"
    archive.write_bytes(gzip.compress(lzma.decompress(released.read_bytes()), 1))
    bundle = open_bundle(archive)
    assert (bundle.manifest.schema, bundle.manifest.version) == (2, 7)
    assert bundle.manifest.health.max_memory_mb == 500
    assert bundle.manifest.service is not None
    assert bundle.manifest.service.args == ("--watch", "/var/lib/photos")
    assert bundle.signature.startswith(b"-----BEGIN SSH SIGNATURE-----")


@pytest.mark.parametrize("layer", ["gzip", "tar", "manifest"])
def test_random_damage_gives_typed_errors_only(tmp_path: Path, layer: str) -> None:
    chance = random.Random(layer)
    small = small_bundle(tmp_path)
    archive = tmp_path / "bad.tar.gz"
    write_tarball(small, archive)
    good = archive.read_bytes()
    refused = 0
    for _ in range(150):
        data = bytearray(gzip.decompress(good) if layer != "gzip" else good)
        # The first 4 kB are the manifest's header and the manifest.
        start, end = {"gzip": (0, len(data)), "tar": (0, 512), "manifest": (512, 4096)}[layer]
        for _ in range(chance.choice((1, 1, 5))):
            data[chance.randrange(start, end)] = chance.choice((0, 32, 47, 48, 57, 92, 123, 255))
        archive.write_bytes(data if layer == "gzip" else gzip.compress(data, 1))
        try:
            assert open_bundle(archive).manifest == small.manifest
        except BundleError:
            refused += 1
    assert refused > 100


def test_stages_are_models_of_the_bundle(tmp_path: Path) -> None:
    """Their files are in the manifest, their memory is counted, and the bill of materials says
    which models they are."""
    parts = tmp_path / "parts"
    small_bundle(tmp_path)
    compiled = FakeCompiled(
        library=parts / "model.so",
        graph=parts / "graph.json",
        params=parts / "params.bin",
        arena_bytes=9000,
        model_sha256="cd" * 32,
    )
    stage = StageContents(
        name="breed",
        classes=(1,),
        most=2,
        padding=0.5,
        align={"align": "face", "side": 96},
        compiled=compiled,
        preprocess=FakePreprocess(),
        postprocess=FakePreprocess(),
        labels=("a", "b", "c", "d"),
        golden=golden(),
        model_file="breed.onnx",
        tolerance=0.01,
        verified=Verified(),
    )
    bundle = open_bundle(small_bundle(tmp_path, stages=[stage]).path)
    names = {name for name in bundle.manifest.files if name.startswith("stages")}
    inside = ("graph.json", "model.so", "params.bin")
    assert names == {
        "stages.json",
        *(f"stages/1/model/{name}" for name in inside),
        *(f"stages/1/golden/{kind}put.npy" for kind in ("in", "out")),
        *(f"stages/1/{name}.json" for name in ("manifest", "preprocess", "postprocess")),
        "stages/1/verified.json",
        "stages/1/labels.txt",
    }
    looks = json.loads(bundle.file("stages.json").read_bytes())["stages"]
    align = {"align": "face", "side": 96}
    assert looks == [{"name": "breed", "classes": [1], "most": 2, "padding": 0.5, **align}]
    assert (bundle.manifest.model.arena_bytes, bundle.manifest.model.params_bytes) == (9000, 512)
    models = [
        (one["name"], one["hashes"][0]["content"])
        for one in sbom(bundle)["components"]
        if one["type"] == "machine-learning-model"
    ]
    assert models == [("tiny.onnx", "ab" * 32), ("breed.onnx", "cd" * 32)]
