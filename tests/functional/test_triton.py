"""`edgepack-run --serve` and a client that is not ours: NVIDIA's tritonclient."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.fetch import Wheel, unpacked
from tests.functional.test_serve import Served, means, serving, tensor
from tests.means import SHAPE, means_app
from tests.support import importable

pytestmark = pytest.mark.slow

WHEELS = tuple(
    Wheel(name=name, version=version, platform=platform, sha256=sha256)
    for name, version, platform, sha256 in (
        ("tritonclient", "2.73.0", "any",
         "1f5cec19b0568e037ec4d716ae702984b3ab93e35f72b8f72c5135374dd2be9a"),
        ("geventhttpclient", "2.6.1", "manylinux_2_28_x86_64",
         "1b6d860503aa564d951d80ed09ef2fa7b08c87bf77cff0f55971efb6289b32c1"),
        ("gevent", "26.9.0", "manylinux_2_28_x86_64",
         "8e47e8c24135936bc01198f93aa97061e543a8b0d7a339d34182c35901b41da0"),
        ("greenlet", "3.3.2", "manylinux_2_28_x86_64",
         "8e2cd90d413acbf5e77ae41e5d3c9b3ac1d011a756d7284d7f3f2b806bbd6358"),
        ("zope.event", "6.2", "any",
         "5e755153ac4faf64c10a4b6dd3307680166a3edf65b38df22df592610f8fa874"),
        ("zope.interface", "8.7", "manylinux2014_x86_64",
         "1613beb1fb1b4f457818c5443e985142ec9e71af391bfb26e583e0353f206792"),
        ("brotli", "1.2.1", "manylinux2014_x86_64",
         "6b3c3d5794212a54434b4856f808f7bdf7ad48eacadaadb5b2346fc9a639365a"),
        ("certifi", "2026.10.18", "any",
         "73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62"),
        ("urllib3", "2.8.0", "any",
         "0cf3cae568d36aa9576b28dfb35f11328f1cb974ca7647d9475ebb86c75ac6e3"),
        ("python-rapidjson", "1.25", "manylinux_2_28_x86_64",
         "d2975f036913143206ab034c90b888cf16a1b40440011b2e8ebedfb95e07d089"),
        ("ml-dtypes", "0.5.4", "manylinux_2_28_x86_64",
         "19b9a53598f21e453ea2fbda8aa783c20faff8e1eeb0d7ab899309a0053f1483"),
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def triton() -> Any:
    importable(*map(unpacked, WHEELS))
    return importlib.import_module("tritonclient.http")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return means_app(tmp_path_factory.mktemp("means"))


@pytest.fixture(scope="module")
def server(app: Path) -> Iterator[Served]:
    with serving(app, "--queue", "100") as served:
        yield served


@pytest.fixture
def client(triton: Any, server: Served) -> Iterator[Any]:
    made = triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4)
    yield made
    made.close()


@pytest.fixture
def name(server: Served) -> str:
    return server.model.rpartition("/")[2]


def asked(triton: Any, *, binary: bool) -> Any:
    given = triton.InferInput("x", SHAPE, "FP32")
    given.set_data_from_numpy(tensor(), binary_data=binary)
    return given


def test_health_and_metadata(client: Any, name: str) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(name)
    assert client.is_model_ready(name, "1")
    assert not client.is_model_ready("another")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    said = client.get_model_metadata(name)
    assert said["name"] == name
    assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": list(SHAPE)}]
    assert [one["name"] for one in said["outputs"]] == ["means"]


@pytest.mark.parametrize("sent", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("got", [None, False, True], ids=["any", "json", "binary"])
def test_tensors(
    triton: Any, client: Any, name: str, app: Path, tmp_path: Path, *, sent: bool, got: bool | None
) -> None:
    """In each form the bits of a single run; without a wish the client asks for all, as binary."""
    wanted = [] if got is None else [triton.InferRequestedOutput("means", binary_data=got)]
    answer = client.infer(
        name,
        [asked(triton, binary=sent)],
        outputs=wanted,
        request_id="7",
        timeout=10**6,
        headers={} if sent else {"Content-Type": "application/json"},
    )
    assert answer.get_response()["id"] == "7"
    assert ("data" in answer.get_output("means")) == (got is False)
    np.testing.assert_array_equal(answer.as_numpy("means"), means(app, tmp_path))


def test_many_at_once(triton: Any, client: Any, name: str, app: Path, tmp_path: Path) -> None:
    given = [asked(triton, binary=True)]
    waiting = [client.async_infer(name, given) for _ in range(50)]
    wanted = means(app, tmp_path)
    for one in waiting:
        np.testing.assert_array_equal(one.get_result().as_numpy("means"), wanted)


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_compressed_requests_are_refused(triton: Any, client: Any, name: str, kind: str) -> None:
    """And answers are never compressed, though the client would take it."""
    given = [asked(triton, binary=True)]
    with pytest.raises(triton.InferenceServerException, match="Content-Encoding"):
        client.infer(name, given, request_compression_algorithm=kind)
    assert client.infer(name, given, response_compression_algorithm=kind).as_numpy("means").any()


def test_mistakes_are_told(triton: Any, client: Any, name: str) -> None:
    error = triton.InferenceServerException
    small = triton.InferInput("x", (1, 3, 8, 16), "FP32")
    small.set_data_from_numpy(tensor()[..., :16])
    with pytest.raises(error, match="shape"):
        client.infer(name, [small])
    with pytest.raises(error, match="another"):
        client.infer("another", [asked(triton, binary=True)])
    with pytest.raises(error, match="no output 'mean'"):
        client.infer(
            name, [asked(triton, binary=True)], outputs=[triton.InferRequestedOutput("mean")]
        )
    with pytest.raises(error):  # an extension of Triton's that is not here
        client.get_model_config(name)
