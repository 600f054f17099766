"""Files from outside that the operator's machine reads, changed at random: inventories, project
files, PyTorch programs, labels, records of tuning, what exporters and `edgepack quantize` say of a
model in its file or beside it.

Whatever comes of one, it is a value, or an error of ours with a message that a terminal can show;
and while it is read no program is started, nothing is connected to, and no file is opened that lies
neither beside it nor in Python or edgepack.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from edgepack.base.errors import EdgepackError
from edgepack.base.paths import data_file
from edgepack.fleet.ansible import read_inventory
from edgepack.flow.exporters import read_exporter
from edgepack.flow.project import load_project, read_labels
from edgepack.flow.quantized import AGREEMENT, CALIBRATION, read_quantization
from edgepack.flow.records import Confirmation, Trial, read_records
from edgepack.kernels.choices import Way
from edgepack.model import ModelSpec, read_model
from edgepack.model.states import read_declared
from tests.onnx_models import Builder

MOST_MESSAGE = 5_000
"""Beside what it quotes of the file, which may be all of a line."""

_CALLS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
_WORDS = (
    b"&a ", b"*a", b"<<: *a", b"!!python/object/apply:os.system [id]", b"!!binary x", b"%TAG ! x\n",
    b"- ", b"? ", b": ", b"{", b"}", b"[", b"]", b"'", b'"', b"\t", b"\r", b"\0", b"#", b"|", b">",
    b"[a:children]\n", b"[a:vars]\n", b"a[0:99999999]", b"a[a:z]", b"ansible_host=-oProxyCommand=a",
    b"ansible_ssh_common_args='-o ProxyCommand=id'", b"{{ lookup('pipe', 'id') }}", b"../../",
    b"/etc/passwd", b"1e999", b"-1", b"0x", b"nan", b"true", b"null", b"99999999999999999999",
    b"\xff", b"\xe2\x80\xae", b"\x1b[2J", b"[project]\n", b"[[a]]\n", b"model = ", b"a.b = 1\n",
)  # fmt: skip
_INI = b"""[shops]
one ansible_host=10.0.0.1 ansible_user=pi edgepack_board=rasp3b
two[01:03].example ansible_port=2222
[more]
one edgepack_labels='{"city": "Bern"}'
"""
_YAML = b"""all:
  hosts: &hosts
    one: {ansible_host: 10.0.0.1, ansible_user: pi}
    two.example:
      ansible_port: 2222
      edgepack_board: rasp3b
more:
  hosts:
    <<: *hosts
"""
_JSON = b"""{"shops": {"hosts": ["one"], "vars": {"edgepack_board": "rasp3b"}},
"_meta": {"hostvars": {"one": {"ansible_host": "10.0.0.1"}}}}"""
_PROJECT = b"""[project]
model = "model.onnx"
board = "rasp3b"
name = "flowers"
labels = "labels.txt"
optimize = "speed"
[preprocess]
preset = "torchvision-imagenet"
[postprocess]
kind = "classes"
[health]
timeout_s = 10
[service]
args = ["--watch", "/in"]
"""


@dataclass(frozen=True, kw_only=True)
class Outside:
    """A reader of files from outside: `documents` are good ones by the name of their file."""

    documents: Callable[[], Mapping[str, bytes]]
    read: Callable[[Path], object]
    mutate: Callable[[random.Random, bytes], bytes]

    def try_mutants(self, count: int, *, seed: int) -> tuple[int, int]:
        """How many of `count` mutants are read and refused. Fails for one that does neither."""
        source = random.Random(seed)
        documents = sorted(self.documents().items())
        accepted = 0
        with tempfile.TemporaryDirectory(prefix="edgepack-outside-") as name:
            folder = Path(name)
            (folder / "labels.txt").write_text("cat\ndog\n")
            (folder / "model.onnx").write_bytes(b"")
            with watched(folder) as seen:
                for _ in range(count):
                    file, data = source.choice(documents)
                    path = folder / file
                    path.write_bytes(self.mutate(source, data))
                    accepted += self._try(path, seen)
        return accepted, count - accepted

    def _try(self, path: Path, seen: list[str]) -> bool:
        try:
            self.read(path)
        except EdgepackError as error:
            said = f"{error.message}\n{error.hint or ''}"
            assert len(said) < MOST_MESSAGE + path.stat().st_size, path.read_bytes()[:1000]
            return False
        except Exception as error:
            raise AssertionError(f"{error!r} for {path.read_bytes()[:4000]!r}") from error
        finally:
            assert seen == [], (seen, path.read_bytes()[:4000])
        return True


_watched: list[tuple[tuple[str, ...], list[str]]] = []
_hooked: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    allowed, seen = _watched[-1]
    if event.startswith(_CALLS):
        seen.append(f"{event}: {arguments!r}"[:300])
    elif event == "open" and isinstance(arguments[0], str | bytes):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not path.startswith(allowed):
            seen.append(f"open: {path}")


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """What is opened, started and connected to in this block that has nothing to do with a file in
    `folder`."""
    if not _hooked:
        sys.addaudithook(_audit)  # for ever: there is no way to take it off
        _hooked.append(True)
    prefixes = {sys.prefix, sys.base_prefix, str(data_file("boards.toml").parent), str(folder)}
    allowed = tuple(os.path.realpath(prefix) for prefix in prefixes if prefix)
    seen: list[str] = []
    _watched.append((allowed, seen))
    try:
        yield seen
    finally:
        _watched.pop()


def mutate_text(source: random.Random, data: bytes) -> bytes:
    """`data` with up to six pieces of it, or words of its language, elsewhere."""
    for _ in range(source.randint(1, 6)):
        at = source.randrange(len(data) + 1)
        end = min(len(data), at + source.choice((0, 0, 1, 4, 20)))
        match source.randrange(4):
            case 0:
                piece = source.choice(_WORDS)
            case 1:
                start = source.randrange(len(data) + 1)
                piece = data[start : start + source.randint(1, 60)]
            case 2:
                piece = bytes([source.randrange(256)])
            case _:
                piece = source.choice(_WORDS) * source.choice((1, 2, 50, 2000))
        data = data[:at] + piece + data[end:]
    return data[: 1 << 17]


def mutate_archive(source: random.Random, data: bytes) -> bytes:
    """A zip whose bytes, or whose members, are others."""
    if source.random() < 0.5:
        changed = bytearray(data)
        for _ in range(source.randint(1, 8)):
            changed[source.randrange(len(changed))] = source.randrange(256)
        return bytes(changed[: source.choice((len(changed), source.randrange(len(changed) + 1)))])
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as archive:
        names = old.namelist()
        for name in names:
            content = old.read(name)
            if source.random() < 0.3:
                content = mutate_text(source, content)
            others = [*names, f"../{name}", f"/{name}", f"{name}\0", "net/data.pkl"]
            new = source.choice(others) if source.random() < 0.2 else name
            if source.random() < 0.9:
                kind = source.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # two of a name are meant
                    archive.writestr(zipfile.ZipInfo(new), content, kind)
    return out.getvalue()


def _programs() -> Mapping[str, bytes]:
    """As far as one is read here before PyTorch does, which is no part of this environment."""
    graph = {
        "graph": {"sizes": [{"as_expr": {"expr_str": "2*s0"}}]},
        "schema_version": {"major": 8},
    }
    members = {
        "net/version": "3", "net/archive_format": "pt2", "net/byteorder": "little",
        "net/models/model.json": json.dumps(graph), "net/data/weights/w": "0" * 64,
        "net/data/sample_inputs/model.pt": "x",
    }  # fmt: skip
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return {"net.pt2": out.getvalue()}


def _inventories() -> Mapping[str, bytes]:
    return {"hosts.ini": _INI, "hosts.yml": _YAML, "hosts.json": _JSON}


def _read_fleet(path: Path) -> object:
    return read_inventory(path).devices()


def _read_labels(path: Path) -> object:
    labels = read_labels(path)
    assert all(label.replace("\t", " ").isprintable() for label in labels), labels[:10]
    return labels


def _records() -> Mapping[str, bytes]:
    said = {
        "cpu": "cortex-a72 +neon", "compiler": "1", "ms": 1.5, "default_ms": 2.0, "ratio": 0.75,
        "low": 0.7, "high": 0.8, "blocks": 30,
    }  # fmt: skip
    way = Way(rule="winograd")
    records = (
        Trial(kernel="conv 1 3 8 8", choice=way, **said),
        Confirmation(model="5e" * 32, choices={"conv 1 3 8 8": way}, **said),
    )
    return {"tuning.jsonl": "".join(f"{record.to_json()}\n" for record in records).encode()}


_SAID = {
    CALIBRATION: "5e" * 32, AGREEMENT: "0.9667", "edgepack.states": '{"x": ["y", [0]]}',
    "author": "Ultralytics", "task": "detect", "stride": "32", "imgsz": "[640, 640]",
    "names": "{0: 'person', 1: 'bicycle'}",
}  # fmt: skip


def _model(said: Mapping[str, str]) -> onnx.ModelProto:
    build = Builder()
    build.op("Relu", "x", outputs=["y"])
    proto = build.model({"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]})
    onnx.helper.set_model_props(proto, dict(said))
    return proto


def _mutate_said(source: random.Random, data: bytes) -> bytes:
    """A model whose metadata is another."""
    proto = onnx.load_from_string(data)
    for entry in source.sample(list(proto.metadata_props), source.randint(1, 3)):
        entry.value = mutate_text(source, entry.value.encode()).decode(errors="replace")
    return proto.SerializeToString()


def _read_said(path: Path) -> object:
    model = read_model(ModelSpec(path=path))
    return read_quantization(model), read_declared(model.proto), read_exporter(model)


_SETTINGS = {
    "config.json": b"""{"architecture": "resnet18", "num_classes": 2, "pretrained_cfg":
{"input_size": [3, 224, 224], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
"interpolation": "bicubic", "crop_pct": 0.875, "label_names": ["cat", "dog"]},
"id2label": {"0": "cat", "1": "dog"}}""",
    "preprocessor_config.json": b"""{"crop_size": {"height": 224, "width": 224}, "do_resize": true,
"do_center_crop": true, "do_normalize": true, "image_mean": [0.5, 0.5, 0.5], "resample": 3,
"image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 256},
"image_processor_type": "ViTImageProcessor"}""",
}


def _read_beside(path: Path) -> object:
    model = path.parent / "net.onnx"
    model.write_bytes(_model({}).SerializeToString())
    for other in _SETTINGS.keys() - {path.name}:
        (path.parent / other).unlink(missing_ok=True)
    return read_exporter(read_model(ModelSpec(path=model)))


READERS: Mapping[str, Outside] = {
    "inventory": Outside(documents=_inventories, read=_read_fleet, mutate=mutate_text),
    "project": Outside(
        documents=lambda: {"edgepack.toml": _PROJECT}, read=load_project, mutate=mutate_text
    ),
    "program": Outside(
        documents=_programs,
        read=lambda path: read_model(ModelSpec(path=path)),
        mutate=mutate_archive,
    ),
    "labels": Outside(
        documents=lambda: {"labels.txt": "Katze\nchien\n猫\n".encode()},
        read=_read_labels,
        mutate=mutate_text,
    ),
    "records": Outside(
        documents=_records, read=lambda path: read_records([path]), mutate=mutate_text
    ),
    "metadata": Outside(
        documents=lambda: {"said.onnx": _model(_SAID).SerializeToString()},
        read=_read_said,
        mutate=_mutate_said,
    ),
    "settings": Outside(documents=lambda: _SETTINGS, read=_read_beside, mutate=mutate_text),
}
"""By the names that `./dev fuzz` takes."""


def names() -> Sequence[str]:
    """Of `READERS`."""
    return tuple(READERS)
