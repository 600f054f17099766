"""[[sink]] and [[when]]: what they may say, and what of a device follows from it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import ConfigError
from edgepack.base.tables import Table
from edgepack.bundle.service import Service, access
from edgepack.bundle.sinks import SinkTables, check_sinks, take_sinks, with_sinks
from edgepack.deploy.service_files import Place, init_script, systemd_unit
from edgepack.flow.sinks import prove_sinks

SINK = {"name": "home", "url": "mqtt://192.0.2.7", "buffer": "/var/lib/door"}
COUNTER = {"name": "door", "class": "person", "line": [0, 200, 640.5, 200]}
WHEN = {"name": "visitor", "class": "person", "run": ["/usr/local/bin/ring", "twice"]}
CAMERA = Service(args=("--camera", "/dev/video0", "--preview", "8080"))
PLACE = Place(name="door", root="/opt/door", owner="pi", tool="/usr/local/lib/x")


def tables(
    sinks: list[dict[str, Any]],
    rules: list[dict[str, Any]] | None = None,
    counters: list[dict[str, Any]] | None = None,
) -> SinkTables:
    values = {"sink": sinks, "when": rules or [], "counter": counters or []}
    return take_sinks(Table(values, file="edgepack.toml"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nmae": "x"}, "sink[0].nmae: unknown key"),
        ({"name": "../etc"}, "sink[0].name: '../etc' is not letters"),
        ({"url": "mqtts://192.0.2.7"}, "there is no TLS here"),
        ({"url": "https://192.0.2.7/x"}, "there is no TLS here"),
        ({"url": "amqp://192.0.2.7"}, "neither mqtt:// nor http://"),
        ({"url": "mqtt://"}, "has no host"),
        ({"url": "mqtt://bücher.example"}, "'bücher.example' is not ASCII"),
        ({"url": "mqtt://192.0.2.7:99999"}, "sink[0].url"),
        ({"url": "mqtt://192.0.2.7/a/b"}, "has a path"),
        ({"url": "mqtt://a b/"}, "sink[0].url"),
        ({"buffer": "door"}, "sink[0].buffer: 'door' is not an absolute path"),
        ({"buffer": "/var/../etc"}, "sink[0].buffer"),
        ({"buffer_mb": 0}, "sink[0].buffer_mb: 0 is not from 1"),
        ({"topic": "a/#"}, "sink[0].topic: 'a/#' has a wildcard"),
        ({"topic": ""}, "sink[0].topic: '' is no topic"),
        ({"password_file": "/etc/door"}, "sink[0].password_file: there is no username"),
        ({"discovery": "homeassistant"}, "sink[0].discovery: there is neither `count`"),
        ({"count": ["a", "a"]}, "sink[0].count"),
        ({"count": ["a"], "score": 1.5}, "sink[0].score: 1.5 is not from 0"),
        ({"url": "http://192.0.2.7", "username": "x"}, "sink[0].username: is for mqtt:// only"),
        ({"url": 7}, "sink[0].url: 7 is not a string"),
    ],
)
def test_a_sink_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        tables([{**SINK, **changes}])
    assert words in error.value.message


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as error:
        tables([{**SINK, "url": "mqtt://door:sesame@192.0.2.7"}])
    assert "sesame" not in error.value.message
    assert "password_file" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": ["ring"]}, "when[0].run: 'ring' is not the absolute path"),
        ({"run": ["/bin/../ring"]}, "when[0].run"),
        ({"run": []}, "when[0].run: missing"),
        ({"for_s": -1.0}, "when[0].for_s: -1.0 is not from 0"),
        ({"score": 1.0}, "when[0].score"),
        ({"gpio": {"line": -1}}, "when[0].gpio.line: -1"),
        ({"gpio": {"line": 1, "chip": "/dev/mem"}}, "when[0].gpio.chip: '/dev/mem'"),
        ({"gpio": {}}, "when[0].gpio.line: missing"),
        ({"least": 0}, "when[0].least: 0 is not from 1"),
        ({"direction": "in"}, "when[0].direction: there is no `counter`"),
        ({"counter": "door", "direction": "in"}, "when[0].class: is about what is seen"),
    ],
)
def test_an_action_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        tables([], [{**WHEN, **changes}])
    assert words in error.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"folder": "clips"}, "when[0].clip.folder: 'clips' is not an absolute path"),
        ({"folder": "/srv/../etc"}, "when[0].clip.folder"),
        ({"before_s": 61}, "when[0].clip.before_s: 61.0 is not from 0 to 60 seconds"),
        ({"after_s": -1}, "when[0].clip.after_s"),
        ({"frames_per_s": 0}, "when[0].clip.frames_per_s: 0 is not from 0.1 to 30"),
        ({"mb": 0}, "when[0].clip.mb: 0 is not from 1"),
        ({"seconds": 5}, "when[0].clip.seconds: unknown key"),
    ],
)
def test_a_clip_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        tables([], [{**WHEN, "clip": {"folder": "/srv/clips", **changes}}])
    assert words in error.value.message


def test_a_clip_is_of_pictures_that_follow_one_another() -> None:
    clip = {"folder": "/srv/clips", "before_s": 2}
    found = tables([], [{"name": "visitor", "class": "person", "clip": clip}])
    service = with_sinks(CAMERA, found)
    assert service is not None
    check_sinks(found, service, ["person"], boxes=True)
    assert access(service).writes == ("/srv/clips",)
    (rule,) = json.loads(found.to_json("door"))["when"]
    assert rule["run"] == []
    assert rule["clip"] == {
        "folder": "/srv/clips",
        "before_s": 2.0,
        "after_s": 5.0,
        "frames_per_s": 5.0,
        "bytes": 256 << 20,
    }
    assert found.lines() == [
        "visitor: person above 0.5 for 0 s, at most every 60 s: pictures from 2 s before to 5 s "
        "after, 5 a second, up to 256 MB in /srv/clips"
    ]
    with pytest.raises(ConfigError, match=r"when\[0\].clip: the photos of --watch"):
        check_sinks(found, Service(args=("--watch", "/srv/photos")), ["person"], boxes=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"line": [0, 1, 2]}, "counter[0].line: [0.0, 1.0, 2.0] is not x and y of two points"),
        ({"line": [5, 6, 5, 6]}, "counter[0].line: [5.0, 6.0, 5.0, 6.0] is the same point twice"),
        ({"line": [0, 1, 2, float("nan")]}, "counter[0].line"),
        ({"line": "0,1"}, "counter[0].line: '0,1' is not"),
        ({"by": "feet"}, "counter[0].by: unknown value 'feet'"),
        ({"score": 1}, "counter[0].score"),
        ({"for_s": -1}, "counter[0].for_s"),
        ({"clas": "x"}, "counter[0].clas: unknown key"),
    ],
)
def test_a_counter_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        tables([], [], [{**COUNTER, **changes}])
    assert words in error.value.message


def test_a_counter_follows_tracks_of_boxes_and_is_named_as_it_is() -> None:
    crossing = {"name": "in", "counter": "door", "direction": "in", "run": ["/bin/ring"]}
    sink = {**SINK, "counters": ["door"], "discovery": "homeassistant"}
    found = tables([sink], [crossing], [COUNTER])
    tracking = Service(args=(*CAMERA.args, "--track", "15"))
    check_sinks(found, tracking, ["person"], boxes=True)
    check_sinks(found, None, ["person"], boxes=True)
    with pytest.raises(ConfigError, match="a counter follows tracks") as error:
        check_sinks(found, CAMERA, ["person"], boxes=True)
    assert error.value.hint == 'add "--track", "15" to them'
    with pytest.raises(ConfigError, match="counts boxes, and the model"):
        check_sinks(found, tracking, ["person"], boxes=False)
    with pytest.raises(ConfigError, match=r"counter\[0\].class: the labels have no class"):
        check_sinks(found, tracking, ["dog"], boxes=True)
    for wrong, words in (
        (tables([sink], [], [{**COUNTER, "name": "doors"}]), "sink[0].counters: there is no"),
        (tables([], [crossing], []), "when[0].counter: there is no [[counter]] 'door'"),
        (
            tables([], [crossing], [{key: COUNTER[key] for key in ("name", "class")}]),
            "when[0].counter: 'door' has no line",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            check_sinks(wrong, tracking, ["person"], boxes=True)
        assert words in error.value.message
    document = json.loads(found.to_json("counter"))
    (written,) = document["counters"]
    assert written["class"] == "person"
    assert written["line"] == [0.0, 200.0, 640.5, 200.0]
    assert document["sinks"][0]["counters_topic"] == "edgepack/{hostname}/counter/counter"
    assert document["when"][0]["crossing"] == {"counter": "door", "direction": "in"}
    assert found.lines()[0] == (
        "door: counts person above 0.5, and who crosses 0,200 to 640.5,200 with its middle"
    )
    assert found.lines()[2] == "in: 'door' is crossed in, at most every 60 s: /bin/ring"


def test_two_of_a_name() -> None:
    with pytest.raises(ConfigError, match="two are called 'home'"):
        tables([SINK, SINK])


def test_a_class_that_there_is_none_of_is_named() -> None:
    found = tables([], [{**WHEN, "class": "persn"}])
    with pytest.raises(ConfigError) as error:
        check_sinks(found, None, ["person", "dog"], boxes=True)
    assert "when[0].class: the labels have no class 'persn'" in error.value.message
    assert error.value.hint == "perhaps you meant 'person'"
    with pytest.raises(ConfigError, match="is never seen"):
        check_sinks(found, None, None, boxes=True)
    check_sinks(tables([], [{**WHEN, "class": "0"}]), None, None, boxes=False)


def test_a_service_that_answers_only_has_no_lines_for_a_sink() -> None:
    with pytest.raises(ConfigError, match="without pictures of its own"):
        check_sinks(tables([SINK]), Service(args=("--serve", "8080")), None, boxes=True)


def test_a_host_that_does_not_resolve_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, *_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, f"no {host}")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    named = {**SINK, "url": "mqtt://homeasistant"}
    with pytest.raises(ConfigError) as error:
        prove_sinks(tables([named]), None, None, boxes=True)
    assert "sink[0].url: the host 'homeasistant' of 'home' does not resolve" in error.value.message
    prove_sinks(tables([{**named, "resolve": False}]), None, None, boxes=True)
    prove_sinks(tables([SINK]), None, None, boxes=True)


def test_what_a_service_touches_follows_from_sinks_and_actions() -> None:
    secret = {"username": "door", "password_file": "/etc/door-password"}
    found = tables([{**SINK, **secret}], [{**WHEN, "gpio": {"line": 17}}])
    service = with_sinks(CAMERA, found)
    assert service is not None
    touched = access(service)
    assert touched.connects == ("192.0.2.7",)
    assert touched.writes == ("/var/lib/door",)
    assert touched.reads == ("/usr/local/bin/ring",)
    assert touched.devices == ("/dev/gpiochip0", "/dev/video0")
    assert touched.groups == ("gpio", "video")
    unit = systemd_unit(PLACE, service)
    assert "IPAddressDeny=any\nIPAddressAllow=localhost 192.0.2.7\n" in unit
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n" in unit
    assert "LoadCredential=home-password:/etc/door-password\n" in unit
    assert "ReadWritePaths=/var/lib/door\n" in unit
    assert "DeviceAllow=/dev/gpiochip0 rw" in unit
    assert "PrivateNetwork" not in unit
    assert "--writable /var/lib/door" in init_script(PLACE, service)


def test_without_sinks_a_service_is_what_it_was() -> None:
    assert with_sinks(CAMERA, SinkTables()) is CAMERA
    quiet = Service(args=("--watch", "/srv/photos"))
    assert "PrivateNetwork=yes" in systemd_unit(PLACE, quiet)
    acting = with_sinks(quiet, tables([], [WHEN]))
    assert acting is not None
    assert "PrivateNetwork=yes" in systemd_unit(PLACE, acting)


def test_a_host_with_a_name_needs_a_name_server() -> None:
    service = with_sinks(CAMERA, tables([{**SINK, "url": "mqtt://broker.example"}]))
    assert service is not None
    unit = systemd_unit(PLACE, service)
    assert "IPAddressAllow=any\n" in unit
    assert "SocketBindAllow=udp\nSocketBindDeny=any\n" in unit


@pytest.mark.parametrize(
    "word", ["connect=example.org", "secret=/etc/x", "write=etc", "read=/a/../b", "sudo", ""]
)
def test_arguments_of_a_manifest_say_what_they_may(word: str) -> None:
    with pytest.raises(ConfigError, match="--sinks"):
        access(Service(args=("--watch", "/srv", "--sinks", word)))


def test_what_the_device_reads_has_no_secret_and_the_bundles_name() -> None:
    secret = {"username": "door", "password_file": "/etc/door-password", "count": ["person"]}
    text = tables([{**SINK, **secret}], [WHEN]).to_json("counter")
    document = json.loads(text)
    (sink,) = document["sinks"]
    assert sink["topic"] == "edgepack/{hostname}/counter"
    assert sink["status_topic"] == "edgepack/{hostname}/counter/status"
    assert sink["counting"]["topic"] == "edgepack/{hostname}/counter/count"
    assert sink["client_id"] == "edgepack-counter-{hostname}"
    assert sink["password_file"] == "/etc/door-password"
    assert "resolve" not in sink
    assert document["when"][0]["class"] == "person"


def test_lines_for_a_person() -> None:
    gpio = {"line": 17}
    assert tables([SINK], [{**WHEN, "score": 0.6, "for_s": 2.0, "gpio": gpio}]).lines() == [
        "home: mqtt://192.0.2.7:1883 edgepack/{hostname}/{name}, up to 64 MB wait in /var/lib/door",
        "visitor: person above 0.6 for 2 s, at most every 60 s: /usr/local/bin/ring, "
        "/dev/gpiochip0 line 17",
    ]


def test_a_project_file_with_sinks_is_read(tmp_path: Path) -> None:
    from edgepack.flow.project import _read_file

    file = tmp_path / "edgepack.toml"
    file.write_text(
        '[project]\n[[sink]]\nname = "home"\nurl = "mqtt://192.0.2.7"\nbuffer = "/var/lib/door"\n'
    )
    assert _read_file(file)["sinks"].sinks[0].port == 1883
