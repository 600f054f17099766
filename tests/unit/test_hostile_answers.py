"""Whatever a device answers: a record, or an error that names the device. Never a traceback."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import EdgepackError, RemoteError
from edgepack.cli.console import Console
from edgepack.cli.fleet_run import Rollout, carry_out
from edgepack.cli.result_lines import (
    answer_lines,
    bench_lines,
    profile_lines,
    smoke_lines,
    status_lines,
)
from edgepack.deploy import remote_service, remote_tool
from edgepack.deploy.answers import MAX_DEPTH, MAX_VALUES, SenselessError, parse_object
from edgepack.deploy.remote_app import RunRequest, ask_app
from edgepack.deploy.transfer import MAX_EVENTS, Exchange, InstallRequest
from edgepack.fleet import Fleet, Journal, Settings, Share
from edgepack.fleet.work import AskStatus, SetTrust
from tests.scripted_fleet import devices
from tests.scripted_tool import (
    ANSWERS,
    DONE,
    STATE,
    STATUS,
    ScriptedDevice,
    ScriptedStream,
    connector,
)

REQUEST = InstallRequest(
    manifest=b"{}", signature=b"", signers=b"", by="me", session="1", keep=3, wait_s=1, silence_s=5
)


def exchange(*lines: str) -> Exchange:
    stream = ScriptedStream([f"{line}\n".encode(errors="surrogateescape") for line in lines])
    return Exchange(stream, "board", step=lambda _: None)


def show_app(device: ScriptedDevice) -> list[str]:
    answer = ask_app(device, "r", RunRequest(golden=True))  # type: ignore[arg-type]
    lines = answer_lines(answer)
    lines += bench_lines(answer.bench) if answer.bench else []
    return lines + (profile_lines(answer.profile) if answer.profile else [])


def show_done(text: str) -> list[str]:
    done = exchange(text).finish()
    return smoke_lines(done.smoke, fresh=True) if done.smoke else []


def device(text: str) -> Any:
    return ScriptedDevice("board", lambda _command: text)


COMMANDS: dict[str, Callable[[str], object]] = {
    "status": lambda text: status_lines(remote_tool.status(device(text), "r"), "r"),
    "trust show": lambda text: remote_tool.trust(device(text), "r"),
    "trust set": lambda text: remote_tool.set_signers(device(text), "r", b"list"),
    "rollback": lambda text: remote_tool.rollback(device(text), "r"),
    "prune": lambda text: remote_tool.prune(device(text), "r", keep=1),
    "receive: state": lambda text: exchange(text).ask(REQUEST),
    "receive: done": show_done,
    "run": lambda text: show_app(device(text)),
    "trial status": lambda text: remote_tool.trial(device(text), "r", "status").lines(),
    "error": lambda text: remote_tool.status(device(text), "r"),
}


def test_good_answers() -> None:
    """Else the tests below would show nothing."""
    for name, ask in COMMANDS.items():
        if name != "error":
            ask(json.dumps(ANSWERS[name]))
    with pytest.raises(remote_tool.LockedError, match="board: wait"):
        COMMANDS["error"](json.dumps(ANSWERS["error"]))


TEXTS = {
    "nothing": "",
    "words": "Segmentation fault\n",
    "half": '{"current": {"rel',
    "a list": "[]",
    "a number": "7",
    "null": "null",
    "empty": "{}",
    "deep lists": '{"current": ' + "[" * 200_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "many values": '{"releases": [' + "0," * (MAX_VALUES + 1) + "0]}",
    "a long number": '{"version": ' + "9" * 100_000 + "}",
    "infinity": '{"version": 1e999, "current": Infinity}',
    "no number": '{"version": NaN}',
    "a lone surrogate": '{"error": {"kind": "\\ud800", "message": "\\udfff"}}',
    "an error that is none": '{"error": 7}',
    "an error without words": '{"error": {}}',
    "an error of lists": '{"error": {"kind": [], "message": [[]], "hint": {}}}',
    "no text": "\udcff\x00\udcfe{",
    "a long string that never ends": '{"tool": "' + "x" * 1_000_000,
    "backslashes": '{"tool": "' + "\\\\" * 300_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_answers_without_sense(command: str, text: str) -> None:
    with pytest.raises(EdgepackError, match=r"^board: |command failed on board") as failed:
        COMMANDS[command](text)
    shown = str(failed.value)
    assert len(shown) < 5000
    assert all(character.isprintable() or character == "\n" for character in shown)


WRONG: tuple[Any, ...] = (None, True, -1, 1.5, 2**70, "\x1b[2J\u202e", [], [[]], [7], {}, {"a": 1})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value in a document."""
    if path:
        yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(document: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> str:
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    change(at, path[-1])
    return json.dumps(copy)


def either(command: str, text: str) -> EdgepackError | None:
    """The error it ends in, if any; all else than these fails the test."""
    try:
        COMMANDS[command](text)
    except EdgepackError as error:
        return error
    return None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_missing_and_of_every_wrong_type(command: str) -> None:
    refused = 0
    for path in places(ANSWERS[command]):
        refused += bool(
            either(command, changed(ANSWERS[command], path, lambda at, key: at.pop(key)))
        )
        for value in WRONG:
            text = changed(ANSWERS[command], path, lambda at, key: at.__setitem__(key, value))  # noqa: B023
            error = either(command, text)
            refused += bool(error)
            if isinstance(error, SenselessError):
                assert error.message.startswith("board: edgepack-")
    assert refused > 10


def test_the_field_is_named() -> None:
    text = changed(
        STATUS, ("current", "health", "latency_ms"), lambda at, key: at.update({key: []})
    )
    with pytest.raises(SenselessError) as failed:
        COMMANDS["status"](text)
    assert failed.value.message == (
        "board: edgepack-device status: current.health.latency_ms: [] is not a number"
    )
    text = changed(STATE, ("needs", 0, "have"), lambda at, key: at.update({key: 10}))
    with pytest.raises(SenselessError, match=r"receive: needs\[0\]\.have: 10 of 9 bytes"):
        COMMANDS["receive: state"](text)


@pytest.mark.parametrize("command", COMMANDS)
def test_random_damage(command: str) -> None:
    """Bytes turned, cut, doubled and put in, by a seed for each command."""
    dice = random.Random(command)
    good = json.dumps(ANSWERS[command])
    scraps = ["{", "[", '"', "}", "\\", "null", "-1", "1e9", "\x00", "\ud800", "true", ":", ","]
    for _ in range(200):
        text = good
        for _ in range(dice.randint(1, 4)):
            at, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
            text = dice.choice(
                [text[:at] + text[end:], text[:at] + dice.choice(scraps) + text[at:],
                 text[:at] + text[at:end] * 2 + text[end:], text[:at] + chr(dice.randrange(128))
                 + text[at + 1 :]]
            )  # fmt: skip
        either(command, text.encode(errors="replace").decode())


def test_an_answer_is_never_much_larger_in_memory() -> None:
    """The worst of 1 MiB: what is refused is refused before it is objects."""
    bombs = ['{"a":[' + "{}," * 150_000, '{"a":' * 200_000, '{"a":"' + "\\u0041" * 170_000]
    tracemalloc.start()
    try:
        for bomb in bombs:
            with pytest.raises(SenselessError):
                parse_object(bomb, "board")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    with pytest.raises(SenselessError, match=f"more than {MAX_DEPTH} levels"):
        parse_object('{"a":' + nested + "}", "board")
    # Brackets in strings are none.
    assert parse_object('{"a": "' + "[" * 1000 + '\\"["}', "board")["a"].endswith('"[')


def test_steps_without_an_end() -> None:
    endless = ['{"event": "step", "name": "x"}', "noise"] * MAX_EVENTS
    with pytest.raises(SenselessError, match=f"{MAX_EVENTS} lines and no state"):
        exchange(*endless).ask(REQUEST)
    with pytest.raises(SenselessError, match=r"receive: text: \[\] is not a string"):
        exchange('{"event": "step", "text": []}').ask(REQUEST)
    with pytest.raises(SenselessError, match="receive: event: 7 is not a string"):
        exchange('{"event": 7}').ask(REQUEST)
    assert exchange('{"event": "news"}', json.dumps(DONE)).finish().outcome == "deployed"


@pytest.mark.parametrize("work", [AskStatus, SetTrust])
def test_the_other_199_results_are_shown(
    work: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One hostile device of each kind in a fleet of 200."""
    fleet = devices(200)
    hostile = {f"d{n:05}": text for n, text in enumerate(TEXTS.values(), 1)}
    answers = {
        name: (lambda _command, text=text: text)  # type: ignore[misc]
        for name, text in hostile.items()
    }
    everything = Share(value=100, percent=True)
    settings = Settings(
        canary=Share(value=0), waves=(everything,), parallel=8, max_failures=everything,
        max_failures_total=everything,
    )  # fmt: skip
    more = {"signers": b"list"} if work is SetTrust else {}
    rollout = Rollout(
        fleet=Fleet(name="f", file=tmp_path, devices=tuple(fleet), settings=settings),
        settings=settings, devices=fleet, model="m",
        work=work(connect=connector(answers), root="r", **more),
    )  # fmt: skip
    with Journal(tmp_path / "journal") as journal:
        plan = rollout.plan(journal)
        code = carry_out(rollout, plan, journal, Console(as_json=True), None)
    printed = json.loads(capsys.readouterr().out)
    assert code == RemoteError.exit_code
    assert printed["status"] == "complete"
    assert printed["devices_ok"] == 200 - len(hostile)
    bad = {row["device"]: row["error"] for row in printed["devices"] if not row["ok"]}
    assert bad.keys() == hostile.keys()
    assert all(name in error for name, error in bad.items())


@pytest.mark.parametrize(
    "text",
    ["", "x", "/r\npi\n0\nupstart\nroot\n{}", "/r\npi\n0\nsystemd\nking\n{}",
     "/r\npi\n0\ninit\nroot\n{}", "/r\npi\n0\ncron\nuser\n" + "[" * 100_000,
     "/r;reboot\npi\n0\ncron\nuser\n{}", "\n" * 100],
)  # fmt: skip
def test_what_a_service_is_made_of(text: str) -> None:
    with pytest.raises(EdgepackError):
        remote_service.look(device(text), "r")
