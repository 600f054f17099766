"""What happens with results on the device: the tables `[[counter]]`, `[[sink]]` and `[[when]]`,
checked.

They travel in the bundle as `sinks.json`, which edgepack-sinks reads there; never a password, only
the name of a file on the device. What of the device they touch becomes arguments of the service.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgepack.base.errors import ConfigError, perhaps
from edgepack.base.tables import Table
from edgepack.bundle.service import Service, access

CONFIG = "sinks.json"
OPTION = "--sinks"
SCHEMA = 1

_MOST = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PATH = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
_CHIP = re.compile(r"/dev/gpiochip\d+")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_PORTS = {"mqtt": 1883, "http": 80}
_TLS = {
    "mqtts": "have a mosquitto on the device pass it on (docs/guides/home-assistant.md has its "
    "configuration), and name that one: mqtt://127.0.0.1",
    "https": "have a proxy on the device add TLS, and name that one: http://localhost:PORT",
}
_SECONDS = 86400.0
_TRACK = "--track"
_MOST_AT_ONCE = 100
_MOST_PIXELS = 1e6
_MOST_AROUND = 60.0
_MOST_RATE = 30.0
_SOURCES = ("--images", "--frames", "--camera", "--watch")


@dataclass(frozen=True, kw_only=True)
class Counting:
    """How many of `classes` above `score` are seen."""

    classes: tuple[str, ...]
    score: float
    topic: str


@dataclass(frozen=True, kw_only=True)
class TrackCounter:
    """Counts tracks of the class `seen` above `score` that are there for `for_s`, and those that
    cross `line` (x and y of its two ends, in pixels): by the middle of their box, or of its lower
    side if `is_foot`."""

    name: str
    seen: str
    score: float
    for_s: float
    line: tuple[float, ...] | None
    is_foot: bool


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where results go.

    `scheme` is "mqtt" or "http". What the other side does not take waits in the folder `buffer` of
    the device, `buffer_bytes` of it at most. `password_file` is a file there, too. In topics and
    `client_id` "{hostname}" is the device's, "{name}" the bundle's. `resolve` is whether the host
    has a name that the machine that builds knows as well. The broker keeps what `counting` and the
    `counters` of these names say; `discovery` is Home Assistant's prefix.
    """

    name: str
    scheme: str
    host: str
    port: int
    path: str
    topic: str
    status_topic: str
    client_id: str
    counting: Counting | None
    counters: tuple[str, ...]
    counters_topic: str
    discovery: str | None
    username: str | None
    password_file: str | None
    buffer: str
    buffer_bytes: int
    resolve: bool = True

    @property
    def is_address(self) -> bool:
        """Whether the host is an address and no name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Gpio:
    """A line of a GPIO chip, which is on for `pulse_s`."""

    chip: str
    line: int
    active_low: bool
    pulse_s: float


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Pictures as JPEG in `folder` of the device, from `before_s` before something is seen to
    `after_s` after it; at most `frames_per_s`, and `bytes` of all the action's clips."""

    folder: str
    before_s: float
    after_s: float
    frames_per_s: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Who crosses the line of `counter`: "in", to the right of the way from its first end to its
    second, or "out"."""

    counter: str
    direction: str


@dataclass(frozen=True, kw_only=True)
class When:
    """What is done on the device once `least` of `seen` have been there above `score` for `for_s`,
    or at a `crossing`; at most once in `every_s`. `run` is a program with its arguments, killed
    after `time_limit_s`."""

    name: str
    seen: str | None
    crossing: Crossing | None
    score: float
    least: int
    for_s: float
    every_s: float
    run: tuple[str, ...]
    time_limit_s: float
    gpio: Gpio | None
    clip: Clip | None


@dataclass(frozen=True, kw_only=True)
class SinkTables:
    """All of a project's counters, sinks and actions."""

    counters: tuple[TrackCounter, ...] = ()
    sinks: tuple[Sink, ...] = ()
    rules: tuple[When, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.counters or self.sinks or self.rules)

    @property
    def classes(self) -> Iterable[tuple[str, str]]:
        """The classes that are named, with the tables that name them."""
        for index, counter in enumerate(self.counters):
            yield f"counter[{index}].class", counter.seen
        for index, sink in enumerate(self.sinks):
            for name in sink.counting.classes if sink.counting else ():
                yield f"sink[{index}].count", name
        for index, rule in enumerate(self.rules):
            if rule.seen is not None:
                yield f"when[{index}].class", rule.seen

    def to_json(self, bundle: str) -> str:
        """`sinks.json` of the bundle of that name."""
        counters = [dataclasses.asdict(counter) for counter in self.counters]
        sinks = [dataclasses.asdict(sink) for sink in self.sinks]
        rules = [dataclasses.asdict(rule) for rule in self.rules]
        for sink in sinks:
            del sink["resolve"]
            for table in (sink, sink["counting"] or {}):
                for key in {"topic", "status_topic", "counters_topic", "client_id"} & table.keys():
                    table[key] = table[key].replace("{name}", bundle)
        for table in (*counters, *rules):
            table["class"] = table.pop("seen")
        document = {"schema": SCHEMA, "name": bundle, "sinks": sinks, "counters": counters}
        document["when"] = rules
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    def words(self) -> tuple[str, ...]:
        """What of the device they touch, as arguments of the app that `service_access` reads."""
        found: list[str] = []
        for sink in self.sinks:
            found.append(f"connect={sink.host if sink.is_address else 'any'}")
            found.append(f"write={sink.buffer}")
            if sink.password_file is not None:
                found.append(f"secret={sink.name}-password:{sink.password_file}")
        for rule in self.rules:
            if rule.run:
                found.append(f"read={rule.run[0]}")
            if rule.gpio is not None:
                found.append(f"device={rule.gpio.chip}")
            if rule.clip is not None:
                found.append(f"write={rule.clip.folder}")
        return tuple(word for one in dict.fromkeys(found or ["none"]) for word in (OPTION, one))

    def lines(self) -> list[str]:
        """A line for a person about each."""
        sinks = [
            f"{sink.name}: {sink.scheme}://{sink.host}:{sink.port}{sink.path}"
            + (f" {sink.topic}" if sink.topic else "")
            + f", up to {sink.buffer_bytes >> 20} MB wait in {sink.buffer}"
            for sink in self.sinks
        ]
        rules = []
        for rule in self.rules:
            does = [*([rule.run[0]] if rule.run else [])]
            does += [f"{rule.gpio.chip} line {rule.gpio.line}"] if rule.gpio else []
            does += [_clip_line(rule.clip)] if rule.clip else []
            what = f"{rule.seen} above {rule.score:g} for {rule.for_s:g} s"
            if rule.least > 1:
                what = f"{rule.least} of {what}"
            if rule.crossing is not None:
                what = f"'{rule.crossing.counter}' is crossed {rule.crossing.direction}"
            rules.append(
                f"{rule.name}: {what}, at most every {rule.every_s:g} s: {', '.join(does)}"
            )
        return [*map(_counter_line, self.counters), *sinks, *rules]


def _counter_line(counter: TrackCounter) -> str:
    text = f"{counter.name}: counts {counter.seen} above {counter.score:g}"
    text += f" that stays {counter.for_s:g} s" if counter.for_s else ""
    if counter.line is None:
        return text
    left, top, right, bottom = (f"{number:g}" for number in counter.line)
    at = "the middle of its lower side" if counter.is_foot else "its middle"
    return f"{text}, and who crosses {left},{top} to {right},{bottom} with {at}"


def _clip_line(clip: Clip) -> str:
    return (
        f"pictures from {clip.before_s:g} s before to {clip.after_s:g} s after, "
        f"{clip.frames_per_s:g} a second, up to {clip.bytes >> 20} MB in {clip.folder}"
    )


def take_sinks(top: Table) -> SinkTables:
    """The sinks and actions of `top`. Raises ConfigError naming the key."""
    counters = tuple(
        _take_counter(Table(values, file=top.file, path=f"counter[{index}]"))
        for index, values in enumerate(top.take_list("counter", dict, ()))
    )
    sinks = tuple(
        _take_sink(Table(values, file=top.file, path=f"sink[{index}]"))
        for index, values in enumerate(top.take_list("sink", dict, ()))
    )
    rules = tuple(
        _take_when(Table(values, file=top.file, path=f"when[{index}]"))
        for index, values in enumerate(top.take_list("when", dict, ()))
    )
    for key, names in (
        ("counter", [one.name for one in counters]),
        ("sink", [one.name for one in sinks]),
        ("when", [one.name for one in rules]),
    ):
        if len(names) > _MOST:
            raise top.fail(key, f"{len(names)} tables; at most {_MOST} are possible")
        for one in names:
            if names.count(one) > 1:
                raise top.fail(key, f"two are called '{one}'", hint="give each its own `name`")
    return SinkTables(counters=counters, sinks=sinks, rules=rules)


def check_sinks(
    tables: SinkTables, service: Service | None, labels: Sequence[str] | None, *, boxes: bool
) -> None:
    """Raise ConfigError for a service that has no lines for them, or a class or counter that there
    is none of. `boxes` is whether the model gives boxes."""
    if not tables:
        return
    _check_counters(tables, service, boxes)
    options = {word.partition("=")[0] for word in service.args} if service is not None else set()
    for index, rule in enumerate(tables.rules):
        if rule.clip is not None and "--watch" in options:
            raise ConfigError(
                f"when[{index}].clip: the photos of --watch do not follow one another",
                hint="take the pictures by --camera, --frames or --images",
            )
    if service is not None and not any(word.partition("=")[0] in _SOURCES for word in service.args):
        raise ConfigError(
            "[service] args: without pictures of its own there are no results for a sink",
            hint="add one of " + ", ".join(_SOURCES),
        )
    for where, name in tables.classes:
        if labels is not None and name not in labels:
            raise ConfigError(
                f"{where}: the labels have no class '{name}'", hint=perhaps(name, labels)
            )
        if labels is None and not name.isdecimal():
            raise ConfigError(
                f"{where}: there are no labels, so '{name}' is never seen",
                hint="name a file of `labels` in [project], or give the number of the class",
            )


def _check_counters(tables: SinkTables, service: Service | None, boxes: bool) -> None:
    lines = {counter.name: counter.line is not None for counter in tables.counters}
    named = [
        (f"sink[{index}].counters", name)
        for index, sink in enumerate(tables.sinks)
        for name in sink.counters
    ]
    for index, rule in enumerate(tables.rules):
        if rule.crossing is None:
            continue
        where = f"when[{index}].counter"
        named.append((where, rule.crossing.counter))
        if not lines.get(rule.crossing.counter, True):
            raise ConfigError(
                f"{where}: '{rule.crossing.counter}' has no line that could be crossed",
                hint="give that counter its `line`",
            )
    for where, name in named:
        if name not in lines:
            raise ConfigError(
                f"{where}: there is no [[counter]] '{name}'", hint=perhaps(name, lines)
            )
    if not lines:
        return
    if not boxes:
        raise ConfigError(
            "counter[0]: it counts boxes, and the model's [postprocess] gives none",
            hint="classes are counted by the `count` of a [[sink]]",
        )
    if service is not None and _TRACK not in {word.partition("=")[0] for word in service.args}:
        raise ConfigError(
            "[service] args: a counter follows tracks, and boxes are not tracked",
            hint=f'add "{_TRACK}", "15" to them',
        )


def with_sinks(service: Service | None, tables: SinkTables) -> Service | None:
    """The service with what the sinks and actions touch. Raises ConfigError."""
    if service is None or not tables or OPTION in service.args:
        return service
    changed = dataclasses.replace(service, args=(*service.args, *tables.words()))
    access(changed)
    return changed


def _take_sink(table: Table) -> Sink:
    name = _take_name(table)
    scheme, host, port, path = _take_url(table)
    buffer = _take_path(table, "buffer")
    buffer_mb = table.take("buffer_mb", int, 64)
    username = table.take("username", str, None)
    password_file = _take_path(table, "password_file") if table.has("password_file") else None
    if password_file is None:
        table.take("password_file", str, None)
    resolve = table.take("resolve", bool, True)
    topic = _take_topic(table, "topic", "edgepack/{hostname}/{name}")
    client_id = table.take("client_id", str, "edgepack-{name}-{hostname}")
    counting = _take_counting(table, topic)
    counters = table.take_list("counters", str, ())
    discovery = _take_topic(table, "discovery", "") or None
    table.finish()
    if not 1 <= buffer_mb <= 1 << 20:
        raise table.fail("buffer_mb", f"{buffer_mb} is not from 1 to {1 << 20}")
    if password_file is not None and username is None:
        raise table.fail("password_file", "there is no username")
    for key, text in (("client_id", client_id), ("username", username)):
        if text is not None and (not text.isprintable() or not 0 < len(text) <= 256):
            raise table.fail(key, f"{text!r} is empty, too long or not one printable line")
    if scheme != "mqtt":
        for key, value in (("username", username), ("count", counting), ("counters", counters)):
            if value:
                raise table.fail(key, "is for mqtt:// only")
        topic = client_id = ""
    if len(counters) > _MOST or len(set(counters)) < len(counters):
        raise table.fail("counters", f"{len(counters)} names, or one twice; at most {_MOST}")
    if discovery is not None and counting is None and not counters:
        raise table.fail(
            "discovery",
            "there is neither `count` nor `counters`",
            hint='for example count = ["person"]',
        )
    return Sink(
        name=name,
        scheme=scheme,
        host=host,
        port=port,
        path=path,
        topic=topic,
        status_topic=f"{topic}/status" if topic else "",
        client_id=client_id,
        counting=counting,
        counters=counters,
        counters_topic=f"{topic}/counter" if topic else "",
        discovery=discovery,
        username=username,
        password_file=password_file,
        buffer=buffer,
        buffer_bytes=buffer_mb << 20,
        resolve=resolve,
    )


def _take_counting(table: Table, topic: str) -> Counting | None:
    classes = table.take_list("count", str, ())
    score = _take_score(table)
    if not classes:
        if score is not None:
            raise table.fail("score", "there is no `count`", hint='for example count = ["person"]')
        return None
    if len(classes) > _MOST or len(set(classes)) < len(classes):
        raise table.fail("count", f"{len(classes)} classes, or one twice; at most {_MOST}")
    return Counting(
        classes=classes,
        score=0.5 if score is None else score,
        topic=f"{topic}/count",
    )


def _take_counter(table: Table) -> TrackCounter:
    score = _take_score(table)
    line = table.take_list("line", float, ())
    counter = TrackCounter(
        name=_take_name(table),
        seen=table.take("class", str),
        score=0.5 if score is None else score,
        for_s=_take_seconds(table, "for_s", 0.0),
        line=line or None,
        is_foot=table.take_choice("by", ("middle", "foot"), "middle") == "foot",
    )
    table.finish()
    if not line:
        return counter
    if len(line) != 4 or not all(abs(number) <= _MOST_PIXELS for number in line):
        raise table.fail("line", f"{list(line)} is not x and y of two points, in pixels")
    if line[:2] == line[2:]:
        raise table.fail("line", f"{list(line)} is the same point twice")
    return counter


def _take_when(table: Table) -> When:
    name = _take_name(table)
    crossing = None
    if table.has("counter"):
        for key in ("class", "score", "least", "for_s"):
            if table.has(key):
                raise table.fail(key, "is about what is seen, and `counter` about who crosses")
    seen = table.take("class", str, None)
    counter = table.take("counter", str, None)
    if seen is None and counter is None:
        raise table.fail("class", "missing", hint="say what has to be seen, or a `counter`")
    direction = table.take_choice("direction", ("in", "out"), None)
    if counter is not None:
        if direction is None:
            raise table.fail("direction", "missing", hint='it must be "in" or "out"')
        crossing = Crossing(counter=counter, direction=direction)
    elif direction is not None:
        raise table.fail("direction", "there is no `counter`")
    score = _take_score(table)
    least = table.take("least", int, 1)
    for_s = _take_seconds(table, "for_s", 0.0)
    every_s = _take_seconds(table, "every_s", 60.0)
    run = table.take_list("run", str, ())
    time_limit_s = _take_seconds(table, "time_limit_s", 10.0)
    gpio_table = table.take_table("gpio", required=False)
    clip_table = table.take_table("clip", required=False)
    table.finish()
    if not 1 <= least <= _MOST_AT_ONCE:
        raise table.fail("least", f"{least} is not from 1 to {_MOST_AT_ONCE}")
    if run and (not _PATH.fullmatch(run[0]) or ".." in run[0].split("/")):
        raise table.fail(
            "run",
            f"{run[0]!r} is not the absolute path of a program on the device",
            hint="no shell looks at it: give the program and each argument as a text of its own",
        )
    if len(run) > 64 or any(len(word) > 1024 or "\0" in word for word in run):
        raise table.fail("run", "too many or too long words")
    if not run and gpio_table is None and clip_table is None:
        raise table.fail(
            "run", "missing", hint="say what is to be done: `run`, `gpio`, `clip` or several"
        )
    return When(
        name=name,
        seen=seen,
        crossing=crossing,
        score=0.5 if score is None else score,
        least=least,
        for_s=for_s,
        every_s=every_s,
        run=run,
        time_limit_s=time_limit_s,
        gpio=None if gpio_table is None else _take_gpio(gpio_table),
        clip=None if clip_table is None else _take_clip(clip_table),
    )


def _take_gpio(table: Table) -> Gpio:
    gpio = Gpio(
        chip=table.take("chip", str, "/dev/gpiochip0"),
        line=table.take("line", int),
        active_low=table.take("active_low", bool, False),
        pulse_s=_take_seconds(table, "pulse_s", 1.0),
    )
    table.finish()
    if not _CHIP.fullmatch(gpio.chip):
        raise table.fail("chip", f"{gpio.chip!r} is not /dev/gpiochipN")
    if not 0 <= gpio.line <= 65535:
        raise table.fail("line", f"{gpio.line} is not from 0 to 65535")
    return gpio


def _take_clip(table: Table) -> Clip:
    folder = _take_path(table, "folder")
    before_s = _take_seconds(table, "before_s", 5.0, most=_MOST_AROUND)
    after_s = _take_seconds(table, "after_s", 5.0, most=_MOST_AROUND)
    frames_per_s = table.take("frames_per_s", float, 5.0)
    mb = table.take("mb", int, 256)
    table.finish()
    if not 0.1 <= frames_per_s <= _MOST_RATE:
        raise table.fail("frames_per_s", f"{frames_per_s:g} is not from 0.1 to {_MOST_RATE:g}")
    if not 1 <= mb <= 1 << 20:
        raise table.fail("mb", f"{mb} is not from 1 to {1 << 20}")
    return Clip(
        folder=folder,
        before_s=before_s,
        after_s=after_s,
        frames_per_s=frames_per_s,
        bytes=mb << 20,
    )


def _take_name(table: Table) -> str:
    name = table.take("name", str)
    if not _NAME.fullmatch(name):
        raise table.fail("name", f"{name!r} is not letters, digits, - and _")
    return name


def _take_score(table: Table) -> float | None:
    score = table.take("score", float, None)
    if score is not None and not 0 <= score < 1:
        raise table.fail("score", f"{score} is not from 0 to below 1")
    return score


def _take_seconds(table: Table, key: str, default: float, *, most: float = _SECONDS) -> float:
    value = table.take(key, float, default)
    if not 0 <= value <= most:
        raise table.fail(key, f"{value} is not from 0 to {most:g} seconds")
    return value


def _take_path(table: Table, key: str) -> str:
    path = table.take(key, str)
    if not _PATH.fullmatch(path) or ".." in path.split("/"):
        raise table.fail(key, f"{path!r} is not an absolute path on the device")
    return path


def _take_topic(table: Table, key: str, default: str) -> str:
    topic = table.take(key, str, default)
    if topic == default:
        return topic
    if not topic or len(topic) > 512 or not topic.isprintable() or topic.startswith("$"):
        raise table.fail(key, f"{topic!r} is no topic")
    if any(sign in topic for sign in "+#"):
        raise table.fail(key, f"{topic!r} has a wildcard, which nobody can publish to")
    return topic


def _take_url(table: Table) -> tuple[str, str, int, str]:
    """The scheme, host, port and path of `url`."""
    url = table.take("url", str)
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise table.fail("url", f"{url!r}: {error}") from None
    if parts.username is not None or parts.password is not None:
        # Not shown: it may hold a password.
        raise table.fail(
            "url", "has a user or password", hint="give `username` and `password_file` instead"
        )
    if parts.scheme in _TLS:
        raise table.fail("url", f"{url!r}: there is no TLS here", hint=_TLS[parts.scheme])
    if parts.scheme not in _PORTS:
        raise table.fail("url", f"{url!r} is neither mqtt:// nor http://")
    if not host.isascii():
        raise table.fail(
            "url", f"{url!r}: {host!r} is not ASCII", hint="write the name as DNS has it: xn--..."
        )
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise table.fail("url", f"{url!r} has no host") from None
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    if parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise table.fail("url", f"{url!r} is not an address")
    if parts.scheme == "mqtt" and path not in ("", "/"):
        raise table.fail("url", f"{url!r} has a path", hint="name the topic in `topic`")
    return (
        parts.scheme,
        host,
        _PORTS[parts.scheme] if port is None else port or 1,
        "" if parts.scheme == "mqtt" else path or "/",
    )
