"""The user's OpenSSH configuration, with the Include lines that paramiko does not know."""

from __future__ import annotations

import glob
from pathlib import Path

import paramiko

from edgepack.base.errors import ConfigError

_MAX_DEPTH = 16  # as OpenSSH


def load(files: list[Path]) -> paramiko.SSHConfig:
    """The configuration in those of `files` that are there; the first value counts.

    Raises ConfigError if a file cannot be read or understood.
    """
    config = paramiko.SSHConfig()
    for file in files:
        if file.is_file():
            try:
                config.parse(_expanded(file, depth=0))
            except (paramiko.SSHException, OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{file}: {error}", hint="use another configuration with --ssh-config FILE"
                ) from None
    return config


def _expanded(file: Path, *, depth: int) -> list[str]:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{file}: Include lines nest too deeply")
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        words = line.replace("=", " ", 1).split()
        if words and words[0].lower() == "include":
            for pattern in words[1:]:
                # Relative names are looked up beside the file: ~/.ssh or /etc/ssh.
                path = Path(pattern.strip('"')).expanduser()
                for name in sorted(glob.glob(str(file.parent / path))):  # noqa: PTH207 - absolute or not
                    lines += _expanded(Path(name), depth=depth + 1)
        else:
            lines.append(line)
    return lines
