"""What a device's clock and temperature are: without them a time says little.

One read-only command, which no device fails: what a kernel does not tell is missing from the
answer. Linux's cpufreq and thermal files (Documentation/admin-guide/pm/cpufreq.rst,
Documentation/driver-api/thermal/sysfs-api.rst), and `vcgencmd get_throttled` of a Raspberry Pi.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgepack.device.base import Device

COMMAND = """\
for c in /sys/devices/system/cpu/cpu[0-9]*/cpufreq; do
for f in scaling_governor scaling_cur_freq cpuinfo_max_freq; do
[ -r "$c/$f" ] && echo "$f $(cat "$c/$f" 2>/dev/null)"; done; done
for z in /sys/class/thermal/thermal_zone[0-9]*/temp; do
[ -r "$z" ] && echo "temp $(cat "$z" 2>/dev/null)"; done
command -v vcgencmd >/dev/null 2>&1 && vcgencmd get_throttled 2>/dev/null
:"""
"""What `parse_conditions` reads the output of."""

# Raspberry Pi documentation, "vcgencmd get_throttled": bits of what is so now. Bits 16 on say that
# it once was.
_NOW = {0: "under-voltage", 1: "clock capped", 2: "throttled", 3: "soft temperature limit"}
_HOTTEST = 200_000  # thousandths of a degree: beyond, a sensor is broken
_FASTEST = 20_000_000  # kHz


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """A device's at one moment; None and empty for what it does not tell.

    `governors` are those of the cores' clocks, each once. `mhz` is the fastest core's clock, and
    `max_mhz` what it may be. `celsius` is that of the hottest zone. `throttled` names what
    holds a Raspberry Pi back.
    """

    governors: tuple[str, ...] = ()
    mhz: float | None = None
    max_mhz: float | None = None
    celsius: float | None = None
    throttled: tuple[str, ...] | None = None

    def __str__(self) -> str:
        parts = []
        if self.mhz is not None:
            most = f" of {self.max_mhz:.0f}" if self.max_mhz is not None else ""
            parts.append(f"{self.mhz:.0f}{most} MHz")
        if self.governors:
            parts.append(f"governor {', '.join(self.governors)}")
        if self.celsius is not None:
            parts.append(f"{self.celsius:.1f} °C")
        if self.throttled is not None:
            parts.append(", ".join(self.throttled) or "not throttled")
        return ", ".join(parts) or "not known"


def read_conditions(device: Device) -> Conditions:
    """Of a device, now."""
    return parse_conditions(device.run(COMMAND, check=False).stdout)


def parse_conditions(text: str) -> Conditions:
    """Of the command's output; lines that make no sense are left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines()[:4096]:
        name, separator, value = line.partition("=" if line.startswith("throttled=") else " ")
        if separator and re.fullmatch(r"[A-Za-z0-9_-]{1,32}", value):
            found.setdefault(name, []).append(value)

    def numbers(name: str, most: int) -> list[int]:
        values = [int(v) for v in found.get(name, []) if re.fullmatch(r"[0-9]{1,9}", v)]
        return [value for value in values if 0 < value <= most]

    clocks, limits = numbers("scaling_cur_freq", _FASTEST), numbers("cpuinfo_max_freq", _FASTEST)
    zones = numbers("temp", _HOTTEST)
    bits = [int(v, 16) for v in found.get("throttled", []) if re.fullmatch(r"0x[0-9a-f]{1,8}", v)]
    return Conditions(
        governors=tuple(sorted(set(found.get("scaling_governor", [])))),
        mhz=max(clocks) / 1e3 if clocks else None,
        max_mhz=max(limits) / 1e3 if limits else None,
        celsius=max(zones) / 1e3 if zones else None,
        throttled=tuple(name for bit, name in _NOW.items() if bits[0] >> bit & 1) if bits else None,
    )
