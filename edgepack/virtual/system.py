"""Start a full-system board."""

from __future__ import annotations

from edgepack.virtual.errors import BoardStartError
from edgepack.virtual.state import Plan, Started


def start(plan: Plan) -> Started:
    """Boot the plan's root file system in qemu-system."""
    raise BoardStartError(f"{plan.hostname}: this version has no full-system boards")
