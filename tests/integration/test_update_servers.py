"""`publish mender` and `publish hawkbit` against stand-ins for both servers (`update_servers`)."""

from __future__ import annotations

import base64
import io
import json
import logging
import socket
import tarfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import edgepack
from edgepack.base.errors import EdgepackError, NothingThereError, TimeLimitError, UsageError
from edgepack.base.process import run
from edgepack.base.secret_files import read_secret
from edgepack.cli import main
from edgepack.formats import hawkbit, mender_server, rest
from edgepack.formats.rest import Server, ServerAnswerError, ServerCutError, ServerRefusesError
from tests.integration.update_servers import Hawkbit, Mender, StandIn, no_fault, running
from tests.support import free_port, require_tool

TOKEN = "eyJ0b2tlbiI6.secret-1234"
NAME = "tiny-rasp3b-0123456789ab"


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Of the form that mender-artifact 3 writes; test_formats.py makes real ones."""
    header = {
        "payloads": [{"type": "edgepack"}],
        "artifact_provides": {"artifact_name": NAME},
        "artifact_depends": {"device_type": ["rasp3b"]},
    }
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        _add(archive, "header-info", json.dumps(header, separators=(",", ":")).encode())
    path = tmp_path / f"{NAME}.mender"
    with tarfile.open(path, "w") as archive:
        _add(archive, "version", b'{"format":"mender","version":3}')
        _add(archive, "header.tar", inner.getvalue())
        _add(archive, "data/0000.tar", bytes(range(256)) * 4000)
    return path


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hawkbit, "_POLL_S", 0.0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Key and certificate of 127.0.0.1, of an authority that no system knows."""
    folder = tmp_path_factory.mktemp("tls")
    words = [require_tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=stand-in", "-addext", "subjectAltName=IP:127.0.0.1"]
    run([*words, "-keyout", folder / "key", "-out", folder / "cert"])
    (folder / "both.pem").write_text((folder / "key").read_text() + (folder / "cert").read_text())
    yield folder / "both.pem"


def bearer() -> str:
    return f"Bearer {TOKEN}"


# --- Mender ---


def test_mender_gets_the_artifact_and_a_deployment_in_phases(
    artifact: Path, token: Path, certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Mender(authorization=bearer())
    with running(server, certificate) as url:
        words = ["publish", "mender", url, "--add", str(artifact), "--token-file", str(token)]
        words += ["--ca-file", str(certificate), "--group", "shop floor", "--json"]
        words += ["--phases", "5,25,100"]
        before = datetime.now(UTC)
        assert main(words) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {
            "artifact": NAME, "uploaded": True, "deployment": "d-0", "created": True,
        }  # fmt: skip
        assert server.artifacts == {NAME: artifact.read_bytes()}
        [body] = server.bodies
        assert body["name"] == f"{NAME} shop floor"
        first, second, last = body["phases"]
        assert first == {"batch_size": 5}
        assert second["batch_size"] == 20
        assert last.keys() == {"start_ts"}
        starts = [datetime.fromisoformat(one["start_ts"]) - before for one in (second, last)]
        assert [round(start.total_seconds() / 3600) for start in starts] == [24, 48]
        assert server.requests[-1] == (
            "POST",
            "/api/management/v1/deployments/deployments/group/shop%20floor",
        )
        # Again: it looks, and does nothing.
        server.requests.clear()
        assert main(words) == 0
        again = json.loads(capsys.readouterr().out)
        assert again == {**said, "uploaded": False, "created": False}
        assert {method for method, _ in server.requests} == {"GET"}


def test_mender_to_all_devices_of_a_server_without_version_2(artifact: Path) -> None:
    server = Mender(authorization=bearer(), has_version_2=False)
    with running(server) as url:
        to = Server(url=url, authorization=bearer())
        found = mender_server.read_artifact(artifact)
        done = mender_server.publish(to, found)
        assert (done.uploaded, done.deployment) == (True, None)
        done = mender_server.publish(to, found, mender_server.MenderDeployment())
        assert (done.uploaded, done.created) == (False, True)
        done = mender_server.publish(to, found, mender_server.MenderDeployment())
        assert (done.deployment, done.created) == ("d-0", False)
        assert server.bodies == [{"name": NAME, "artifact_name": NAME, "all_devices": True}]
        # The same name for another type of device is another artifact: the server decides.
        server.device_types = ["beaglebone"]
        assert not mender_server.publish(to, found).uploaded


def test_a_run_that_was_cut_is_run_again(artifact: Path) -> None:
    """The server takes the artifact, and goes away before it says so."""
    server = Mender(authorization=bearer())
    cut = [True]

    def fault(method: str, path: str) -> bytes | None:
        return b"" if method == "POST" and "/group/" in path and cut.pop() else None

    server.fault = fault
    with running(server) as url:
        to = Server(url=url, authorization=bearer())
        found = mender_server.read_artifact(artifact)
        wanted = mender_server.MenderDeployment(group="canary")
        with pytest.raises(ServerCutError, match=r"POST .*group/canary") as caught:
            mender_server.publish(to, found, wanted)
        assert "run the command again" in str(caught.value)
        server.fault = no_fault
        done = mender_server.publish(to, found, wanted)
        assert (done.uploaded, done.created) == (False, True)
        assert len(server.artifacts) == len(server.deployments) == 1


def test_mender_stops_what_it_was_told_to_deploy(
    artifact: Path, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Mender(authorization=bearer())
    with running(server) as url:
        words = ["publish", "mender", url, "--add", str(artifact), "--token-file", str(token)]
        for group in ("canary", "shop floor"):
            assert main([*words, "--group", group]) == 0
        capsys.readouterr()
        stop = [*words, "--stop", "--group", "shop floor", "--json"]
        assert main(stop) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {"artifact": NAME, "deployment": "d-1", "state": "aborted"}
        assert [one["status"] for one in server.deployments] == ["pending", "finished"]
        # Again: it is over, and nothing is sent.
        server.requests.clear()
        assert main(stop) == 0
        assert json.loads(capsys.readouterr().out) == {**said, "state": "finished"}
        assert {method for method, _ in server.requests} == {"GET"}
        assert main([*words, "--stop", "--all-devices"]) == 12
        assert f"there is no deployment {NAME}" in capsys.readouterr().err


def test_files_that_are_no_artifacts(tmp_path: Path, artifact: Path) -> None:
    (tmp_path / "text.mender").write_text("none")
    with tarfile.open(tmp_path / "other.mender", "w") as archive:
        _add(archive, "version", b"{}")
    cut = tmp_path / "cut.mender"
    cut.write_bytes(artifact.read_bytes()[:1600])
    for path in (tmp_path / "text.mender", tmp_path / "other.mender", tmp_path / "none", cut):
        with pytest.raises(UsageError, match=path.name):
            mender_server.read_artifact(path)
    (tmp_path / "photo.png").touch()
    for name in ("photo.png", "tiny-0123456789ab.tar.gz"):
        with pytest.raises(UsageError, match=r"not a file"):
            hawkbit.read_package(tmp_path / name)


# --- hawkBit ---


def test_hawkbit_gets_module_set_and_a_rollout_in_groups(
    artifact: Path, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = base64.b64encode(f"DEFAULT\\admin:{TOKEN}".encode()).decode()
    server = Hawkbit(authorization=f"Basic {pair}")
    with running(server) as url:
        words = ["publish", "hawkbit", url, "--add", str(artifact), "--token-file", str(token)]
        words += ["--user", "DEFAULT\\admin", "--targets", "name==cam-*", "--json"]
        words += ["--phases", "5,25,100", "--success", "90", "--max-failed", "3"]
        assert main(words) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {
            "module": "edgepack-tiny-rasp3b", "version": "0123456789ab", "uploaded": True,
            "distribution_set": 1, "rollout": 1, "state": "starting",
        }  # fmt: skip
        [one] = server.rollouts
        assert (one["status"], one["targetFilterQuery"]) == ("running", "name==cam-*")
        assert one["successCondition"] == {"condition": "THRESHOLD", "expression": "90"}
        assert one["errorCondition"] == {"condition": "THRESHOLD", "expression": "3"}
        # Of 10,000 targets, as hawkBit counts: a share of those that are left.
        left, groups = 10_000.0, []
        for group in one["groups"]:
            groups.append(round(left * group["targetPercentage"] / 100))
            left -= groups[-1]
        assert groups == [500, 2000, 7500]
        assert server.sets[0]["modules"] == [{"id": 1}]

        server.requests.clear()
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out) == {
            **said,
            "uploaded": False,
            "state": "running",
        }
        assert {method for method, _ in server.requests} == {"GET"}

        # Other bytes under the same release.
        artifact.write_bytes(artifact.read_bytes() + bytes(512))
        assert main(words) == 2
        assert "another file of this name" in capsys.readouterr().err


def test_hawkbit_goes_on_wherever_it_was_cut(artifact: Path) -> None:
    """After each of its requests but the last: the server did it, and nobody heard so."""
    package = hawkbit.read_package(artifact)
    rollout = hawkbit.HawkbitRollout(targets="name==*")
    for number in range(1, 11):
        server = Hawkbit(authorization=bearer())
        with running(server) as url:
            to = Server(url=url, authorization=bearer())

            def fault(
                method: str, path: str, server: Hawkbit = server, number: int = number
            ) -> bytes | None:
                return b"" if len(server.requests) == number else None

            server.fault = fault
            with pytest.raises(ServerCutError):
                hawkbit.publish(to, package, rollout)
            server.fault = no_fault
            hawkbit.publish(to, package, rollout)
        assert (len(server.modules), len(server.sets), len(server.rollouts)) == (1, 1, 1)
        assert len(server.artifacts[1]) == 1
        assert server.rollouts[0]["status"] == "running"


def test_a_rollout_that_is_never_ready_and_one_that_failed(artifact: Path) -> None:
    package = hawkbit.read_package(artifact)
    rollout = hawkbit.HawkbitRollout(targets="name==*")
    server = Hawkbit(authorization=bearer())
    with running(server) as url:
        to = Server(url=url, authorization=bearer())
        hawkbit.publish(to, package)
        entry = {"id": 1, "name": f"{package.name} {package.version}", "polls": 10**6}
        server.rollouts.append({**entry, "status": "creating"})
        with pytest.raises(TimeLimitError, match="not ready"):
            hawkbit.publish(to, package, rollout, sleep=lambda _: None)
        server.rollouts[0]["status"] = "waiting_for_approval"
        assert hawkbit.publish(to, package, rollout).state == "waiting_for_approval"
        server.rollouts[0]["status"] = "error_creating"
        with pytest.raises(ServerAnswerError, match="'error_creating'"):
            hawkbit.publish(to, package, rollout)


@pytest.mark.parametrize(("can_stop", "state"), [(True, "stopping"), (False, "paused")])
def test_hawkbit_stops_a_rollout_or_pauses_it(
    artifact: Path, token: Path, capsys: pytest.CaptureFixture[str], can_stop: bool, state: str
) -> None:
    server = Hawkbit(authorization=bearer(), can_stop=can_stop)
    with running(server) as url:
        words = ["publish", "hawkbit", url, "--add", str(artifact), "--token-file", str(token)]
        stop = [*words, "--stop", "--json"]
        assert main(stop) == 12
        assert "there is no rollout edgepack-tiny-rasp3b 0123456789ab" in capsys.readouterr().err
        assert main([*words, "--targets", "name==*"]) == 0
        capsys.readouterr()
        for _ in range(2):
            assert main(stop) == 0
            assert json.loads(capsys.readouterr().out) == {
                "module": "edgepack-tiny-rasp3b", "version": "0123456789ab", "rollout": 1,
                "state": state,
            }  # fmt: skip
            assert server.rollouts[0]["status"] == state


# --- from Python ---


def test_the_functions_do_what_the_commands_do(artifact: Path, token: Path) -> None:
    mender = Mender(authorization=bearer())
    with running(mender) as url:
        sent = edgepack.publish_mender(
            url, artifact, group="canary", phases=[5, 100], token_file=token
        )
        assert (sent.uploaded, sent.deployment, sent.created) == (True, "d-0", True)
        assert [one.get("batch_size") for one in mender.bodies[0]["phases"]] == [5, None]
        stopped = edgepack.stop_mender(url, artifact, group="canary", token_file=token)
        assert (stopped.deployment, stopped.state) == ("d-0", "aborted")
        with pytest.raises(NothingThereError):
            edgepack.stop_mender(url, artifact, token_file=token)
    server = Hawkbit(authorization=bearer())
    with running(server) as url:
        done = edgepack.publish_hawkbit(
            url, artifact, targets="name==*", max_failed=3, token_file=token
        )
        assert (done.rollout, done.state) == (1, "starting")
        assert server.rollouts[0]["errorCondition"]["expression"] == "3"
        assert edgepack.stop_hawkbit(url, artifact, token_file=token).state == "stopping"


def test_mistakes_in_python_are_said_in_its_words(artifact: Path, token: Path) -> None:
    url = "https://x.example"
    for call, said in (
        (lambda: edgepack.publish_mender(url, artifact, phases=[5, 100]), "phases: of whom"),
        (lambda: edgepack.publish_hawkbit(url, artifact, phases=[100]), "phases: of whom"),
        (
            lambda: edgepack.publish_mender(url, artifact, group="a", all_devices=True),
            "do not go together",
        ),
        (
            lambda: edgepack.publish_hawkbit(url, artifact, targets="a", phases=[5, 25]),
            "does not rise",
        ),
        (
            lambda: edgepack.publish_hawkbit(url, artifact, targets="a", success=101),
            "success: 101",
        ),
        (
            lambda: edgepack.publish_mender("http://x.example", artifact, token_file=token),
            "without TLS",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            call()


# --- what can come back ---


def _reply(status: int, data: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


ERRORS: dict[str, tuple[bytes, type[EdgepackError], str]] = {
    "401": (_reply(401, b'{"error":"expired"}'), ServerRefusesError, "not accepted: expired"),
    "403": (_reply(403, b""), ServerRefusesError, "does not allow"),
    "404": (_reply(404, b"<html>nginx"), ServerAnswerError, "status 404: not there: <html>nginx"),
    "409": (_reply(409, b'{"message":"taken"}'), ServerAnswerError, "in use: taken"),
    "413": (_reply(413, b"<html>large"), ServerAnswerError, "larger than the server"),
    "422": (_reply(422, b'{"error":"no device"}'), ServerAnswerError, "cannot do that: no device"),
    "423": (_reply(423, b""), ServerAnswerError, "locked"),
    "429": (_reply(429, b""), ServerAnswerError, "too many requests"),
    "500": (_reply(500, b'{"error":7}'), ServerAnswerError, "the server fails"),
    "502": (_reply(502, b"Bad Gateway"), ServerAnswerError, "status 502.*Bad Gateway"),
    "moved": (
        _reply(302, b"", "Location: https://elsewhere.example/"),
        ServerAnswerError,
        "points to https://elsewhere.example/",
    ),
    "a page": (_reply(200, b"<html>log in"), ServerAnswerError, "no JSON: <html>log in"),
    "nothing": (b"", ServerCutError, "GET "),
    "no http": (b"SSH-2.0-x\r\n\r\n", ServerCutError, "GET "),
    "half": (_reply(200, b'{"content":[]}')[:-5], ServerCutError, "middle of the answer"),
    "huge": (_reply(200, b"[" + b"1," * (3 << 20)), ServerAnswerError, "more than 4 MB"),
    "headers": (b"HTTP/1.1 200 x\r\n" + b"A: b\r\n" * 5000, ServerCutError, "headers"),
    "deep": (_reply(200, b"[" * 10**6), ServerAnswerError, "no JSON"),
    "a list": (_reply(200, b"[1, 2]"), ServerAnswerError, "no object"),
    "no list": (_reply(200, b'{"content": 7}'), ServerAnswerError, "content"),
    "no id": (
        _reply(200, b'{"content":[{"name":"edgepack-tiny-rasp3b","version":"0123456789ab"}]}'),
        ServerAnswerError,
        "id",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_answer_has_its_error(
    name: str, artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, kind, words = ERRORS[name]
    server = StandIn(authorization="", fault=lambda *_: data)
    caplog.set_level(logging.DEBUG)
    with running(server) as url:
        to = Server(url=url, authorization=bearer())
        with pytest.raises(kind, match=words) as caught:
            hawkbit.publish(to, hawkbit.read_package(artifact))
    assert TOKEN not in f"{caught.value} {caplog.text} {to!r}"


def test_an_upload_that_is_refused_before_its_end(artifact: Path) -> None:
    """As nginx does it: 413 and the end, while megabytes are still to come."""
    artifact.write_bytes(artifact.read_bytes() + bytes(20 << 20))
    server = Mender(authorization=bearer())
    server.fault = lambda method, _: _reply(413, b"too large") if method == "POST" else None
    with running(server) as url:
        to = Server(url=url, authorization=bearer())
        with pytest.raises((ServerAnswerError, ServerCutError), match="POST"):
            mender_server.publish(to, mender_server.read_artifact(artifact))


def test_a_server_that_drips_is_left(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers a byte at a time: each comes in time, all of them never do."""
    monkeypatch.setattr(rest, "_ANSWER_S", 0.3)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                try:
                    connection.sendall(b"HTTP/1.1 200 x\r\nA: ")
                    while not stop.wait(0.02):
                        connection.sendall(b"b")
                except OSError:
                    pass

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        to = Server(url=f"http://127.0.0.1:{listening.getsockname()[1]}", authorization=bearer())
        try:
            with pytest.raises(ServerCutError):
                hawkbit.publish(to, hawkbit.read_package(artifact))
        finally:
            stop.set()
            thread.join()


def test_only_a_server_that_can_prove_its_name_gets_the_token(
    artifact: Path, certificate: Path
) -> None:
    server = Mender(authorization=bearer())
    package = hawkbit.read_package(artifact)
    with running(server, certificate) as url:
        with pytest.raises(ServerCutError, match="certificate is not trusted"):
            hawkbit.publish(Server(url=url, authorization=bearer()), package)
        other = url.replace("127.0.0.1", "localhost")  # the certificate is of the address
        to = Server(url=other, authorization=bearer(), ca_file=certificate)
        with pytest.raises(ServerCutError, match="not trusted"):
            hawkbit.publish(to, package)
    assert server.requests == []
    for bad, words in (
        ("http://mender.example.org", "without TLS"),
        ("https://me:secret@mender.example.org", "password in it"),
        ("ftp://mender.example.org", "not the address"),
        ("mender.example.org", "not the address"),
        ("https://mender.example.org/?a=b", "not the address"),
        ("https://[::1", "not the address"),
        ("https://mender.example.org/a b", "not the address"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            Server(url=bad, authorization=bearer())
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="--ca-file"):
        Server(url="https://x.example", authorization="", ca_file=artifact)
    with pytest.raises(ServerCutError):
        to = Server(url=f"http://127.0.0.1:{free_port()}", authorization=bearer())
        hawkbit.publish(to, package)


def test_the_token_is_read_from_where_nobody_else_can(
    artifact: Path, token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.delenv("MENDER_TOKEN", raising=False)
    words = ["publish", "mender", "https://127.0.0.1:1", "--add", str(artifact)]
    assert main(words) == 2
    assert "$MENDER_TOKEN" in capsys.readouterr().err
    for mode in (0o640, 0o604, 0o602, 0o660):
        token.chmod(mode)
        assert main([*words, "--token-file", str(token)]) == 2
        assert "chmod 600" in capsys.readouterr().err
    token.chmod(0o600)
    for text in ("", "two\nlines", "é", "a\x00b", "x" * 20_000):
        token.write_text(text)
        with pytest.raises(UsageError, match="one printable line") as caught:
            read_secret(token, "--token-file")
        assert not text or text not in str(caught.value)
    for path in (token.parent / "none", token.parent):
        with pytest.raises(UsageError):
            read_secret(path, "--token-file")
    monkeypatch.setenv("MENDER_TOKEN", TOKEN)
    assert main(["-vv", *words]) == 6
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err


# --- before anything is sent ---


def test_a_dry_run_prints_the_requests_that_an_empty_server_gets(
    artifact: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAWKBIT_TOKEN", TOKEN)
    server = Hawkbit(authorization=bearer())
    with running(server) as url:
        words = [
            "publish",
            "hawkbit",
            url,
            "--add",
            str(artifact),
            "--targets",
            "name==*",
            "--json",
        ]
        assert main([*words, "--dry-run"]) == 0
        noted = json.loads(capsys.readouterr().out)["requests"]
        assert server.requests == []
        assert main(words) == 0

    # Ids are the server's, and it may be asked more often whether groups are ready.
    def plain(path: str) -> str:
        return path.replace("/0", "/1")

    sent = list(dict.fromkeys(server.requests))
    assert [(one["method"], plain(one["path"])) for one in noted] == sent


def test_options_that_do_not_fit(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mender = ["publish", "mender", "https://x.example", "--add", str(artifact), "--dry-run"]
    hawk = ["publish", "hawkbit", *mender[2:]]
    for words, said in (
        ([*mender, "--phases", "5,100"], "of whom"),
        ([*hawk, "--phases", "5,100"], "of whom"),
        ([*mender[:-1], "--stop"], "of whom"),
        ([*mender, "--group", "a", "--stop"], "the server knows"),
        ([*hawk, "--stop"], "the server knows"),
        ([*hawk, "--stop", "--phases", "5,100"], "do not go together"),
        ([*mender, "--group", "a", "--all-devices"], "not allowed"),
        ([*mender, "--group", "a", "--phases", "5,25"], "does not rise"),
        ([*mender, "--group", "a", "--phases", "25,5,100"], "does not rise"),
        ([*mender, "--group", "a", "--phases", "0,100"], "does not rise"),
        ([*mender, "--group", "a", "--phases", "x"], "not like"),
        ([*hawk, "--targets", "a", "--success", "101"], "more than 100"),
        ([*mender[:2], "http://x.example", *mender[3:]], "without TLS"),
    ):
        try:
            status = main(words)
        except SystemExit as ended:
            status = int(str(ended.code))
        assert status == 2
        assert said in capsys.readouterr().err
