"""The hours of the day in which a rollout may begin with a device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class DailyHours:
    """From `start` until `end`, each day, by the clock of this machine; over midnight if the end
    comes before the start."""

    start: time
    end: time

    @staticmethod
    def parse(text: str) -> DailyHours | None:
        """The window in "22:00-04:00"; None for anything else, and for one that is empty."""
        match = _WINDOW.fullmatch(text)
        if match is None:
            return None
        hours = [int(number) for number in match.groups()]
        start, end = time(hours[0], hours[1]), time(hours[2], hours[3])
        return None if start == end else DailyHours(start=start, end=end)

    def is_open(self, now: time) -> bool:
        """Whether it is, at that time of day."""
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"
