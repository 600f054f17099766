"""Wheels (PEP 427), the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping

PROGRAM, TEXT = 0o100755, 0o100644
"""Modes of files."""
_TIME = (1980, 1, 1, 0, 0, 0)


def wheel_bytes(files: Mapping[str, tuple[bytes, int]], info: str) -> bytes:
    """A wheel of `files` (content and mode by name), with their hashes in `info`/RECORD (PEP 376).

    `info` is the name of its .dist-info folder.
    """
    lines = []
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in sorted(files.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
            _add(archive, name, data, mode)
        record = f"{info}/RECORD"
        _add(archive, record, "".join([*lines, f"{record},,\n"]).encode(), TEXT)
    return out.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.external_attr = mode << 16
    entry.create_system = 3  # Unix: its modes hold
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)
