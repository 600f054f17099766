"""`edgepack fleet metrics` and `rules`: a fleet that is reached by SSH, told to Prometheus."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.paths import write_atomic
from edgepack.base.text import format_count, message, one_line
from edgepack.cli.console import Console
from edgepack.cli.fleet_run import stop_on_signal
from edgepack.fleet import FleetDevice, Journal, Outcome, Settings, Stop, Wave, make_plan, roll_out
from edgepack.fleet.exporter import export
from edgepack.fleet.metrics import AskMetrics, Told
from edgepack.fleet.window import DailyHours
from edgepack.fleet.work import Connect

RULES = ("rules.yml", "prometheus.yml", "alertmanager.yml", "dashboard.json")
_WAIT_S = 0.2


class _Listener:
    """Says which device does not answer, once, and when it does again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._down: set[str] = set()
        self.answered = 0

    def wave_begins(self, wave: Wave) -> None:
        self.answered = 0

    def devices_end(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.answered += outcome.ok
            if outcome.ok and outcome.device in self._down:
                self._down.discard(outcome.device)
                self._console.note(f"    {outcome.device} answers again")
            elif not outcome.ok and outcome.device not in self._down:
                self._down.add(outcome.device)
                reason = message(outcome.error or "")
                self._console.note(f"    {outcome.device} {one_line(outcome.outcome)}: {reason}")

    def soaking(self, seconds: float) -> None:
        """There is none."""

    def waiting(self, devices: int, seconds: float) -> None:
        """All are asked again in the next round."""

    def window_closed(self, window: DailyHours) -> None:
        """It is not changed, so there is none."""

    def stopping(self) -> None:
        self._console.note("stopping: waiting for the devices under way; press again to leave them")


def tell(
    args: argparse.Namespace,
    settings: Settings,
    devices: Sequence[FleetDevice],
    *,
    connect: Connect,
    root: str,
    console: Console,
) -> int:
    """Ask the devices until Ctrl-C or SIGTERM, and serve what they said; or once, and print it."""
    told = Told()
    work = AskMetrics(connect=connect, root=root, told=told)
    listener = _Listener(console)
    plan = make_plan(devices, settings)
    with stop_on_signal() as stop:

        def ask() -> None:
            # As large as the fleet, and of no use afterwards.
            with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "once") as journal:
                roll_out(plan, settings, work, listener, journal=journal, stop=stop)

        if args.once:
            ask()
            console.lines(told.text(devices).splitlines())
            return 0
        with export(args.port, lambda: told.text(devices)) as where:
            console.step(f"{format_count(len(devices), 'device')} at {where}, every {args.every} s")
            while not stop.asked:
                begun = time.monotonic()
                ask()
                _wait(begun + args.every, stop)
    return 0


def _wait(until: float, stop: Stop) -> None:
    while not stop.asked and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _WAIT_S))


def write_rules(folder: Path, console: Console) -> int:
    """Write `RULES` into `folder`. Raises UsageError for one that is there and differs."""
    shipped = resources.files("edgepack.fleet") / "prometheus"
    contents = {name: (shipped / name).read_bytes() for name in RULES}
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"not a folder: {folder}")
    for name, content in contents.items():
        path = folder / name
        if path.exists() and path.read_bytes() != content:
            raise UsageError(f"{path} is there, and differs", hint="move it, or name another")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomic(folder / name, content)
    paths = [str(folder / name) for name in RULES]
    console.data({"files": paths}, "\n".join(paths))
    return 0
