from __future__ import annotations

from typing import Any

import pytest

from edgepack.base.errors import ConfigError
from edgepack.base.tables import Table
from edgepack.bundle.manifest import parse_manifest
from edgepack.bundle.service import Service, take_service
from tests.bundles import small_bundle


def take(**service: Any) -> Service | None:
    return take_service(Table({"service": service}, file="edgepack.toml"))


def test_no_table_is_no_service() -> None:
    assert take_service(Table({}, file="edgepack.toml")) is None


def test_every_key() -> None:
    service = take(
        args=["--watch", "/in"],
        restart="on-failure",
        watchdog_s=30,
        memory_mb=64,
        user="pi",
        writable=["/in"],
    )
    assert service == Service(
        args=("--watch", "/in"),
        restart="on-failure",
        watchdog_s=30.0,
        memory_mb=64,
        user="pi",
        writable=("/in",),
    )
    assert take(args=["--golden"]) == Service(args=("--golden",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"args": ["--watch", "in"]}, "service.args: --watch: 'in' is not an absolute path"),
        ({"args": ["--results=/x.jsonl"]}, "service.args: --results: '/x.jsonl' is in /, which"),
        ({"args": ["--serve", "unix:/run/x"]}, "service.args: --serve: '/run/x' is in /run"),
        ({"args": ["--frames", "mjpeg"]}, "service.args: a service has no standard input"),
        ({"args": ["--images", "-"]}, "service.args: a service has no standard input"),
        ({"args": []}, "service.args: 0 words"),
        ({"args": ["--watch", "a\nb"]}, r"service.args: 'a\\nb' is empty, too long or not"),
        ({"args": "--watch"}, "service.args: '--watch' is not a list"),
        ({"restart": "often"}, "service.restart: unknown value 'often'"),
        ({"watchdog_s": 0}, "service.watchdog_s: 0.0 is not from 1"),
        ({"memory_mb": 0}, "service.memory_mb: 0 is not from 1"),
        ({"memory_mb": 1.5}, "service.memory_mb: 1.5 is not a whole number"),
        ({"user": "root"}, "service.user: a service must not run as root"),
        ({"user": "pi; reboot"}, "service.user: 'pi; reboot' is not the name"),
        ({"writable": ["/in", "photos"]}, "service.writable: 'photos' is not the absolute path"),
        ({"writable": ["/a/../etc"]}, "service.writable: '/a/../etc' is not the absolute path"),
        ({"watchdog": 3}, "service.watchdog: unknown key"),
    ],
)
def test_mistakes_name_the_field_and_the_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        take(**{"args": ["--golden"], **change})


def test_a_manifest_carries_it(tmp_path: Any) -> None:
    service = Service(args=("--watch", "/in"), watchdog_s=2.5)
    bundle = small_bundle(tmp_path, service=service)
    assert parse_manifest((bundle.path / "manifest.json").read_bytes()).service == service
