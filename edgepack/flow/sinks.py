"""What sinks need of the network: the source of their library, and their addresses."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.errors import ConfigError
from edgepack.bundle.service import Service
from edgepack.bundle.sinks import SinkTables, check_sinks, with_sinks
from edgepack.native import sinks
from edgepack.virtual import apt


def fetch_mosquitto(target: Path) -> None:
    """Bring libmosquitto's source from a mirror of Debian's. Raises RootfsError and
    ToolMissingError."""
    apt.download(sinks.SOURCE, target, suite=sinks.SUITE, sha256=sinks.SHA256)


def prove_sinks(
    tables: SinkTables, service: Service | None, labels: Sequence[str] | None, *, boxes: bool
) -> None:
    """Raise ConfigError for sinks and actions that could not work on any device: a class that there
    is none of, a service that has no lines for them, a host that does not resolve. `boxes` is
    whether the model gives boxes."""
    check_sinks(tables, service, labels, boxes=boxes)
    with_sinks(service, tables)
    for index, sink in enumerate(tables.sinks):
        if sink.is_address or not sink.resolve:
            continue
        try:
            socket.getaddrinfo(sink.host, sink.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"sink[{index}].url: the host '{sink.host}' of '{sink.name}' does not resolve: "
                f"{getattr(error, 'strerror', None) or error}",
                hint="if only the device's network knows that name, say resolve = false",
            ) from None
