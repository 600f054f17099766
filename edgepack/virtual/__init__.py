"""Virtual boards: ARM systems with a real sshd on this machine's loopback.

The light board runs an ARM userland under qemu-user in namespaces of its own and is up
within a second; the full-system board boots an ARM kernel in qemu-system, for machines
that forbid the light one, for measuring memory, and for power cuts.

    board = up(get_board("rasp3b"))
    subprocess.run([*ssh_command(board), "uname -m"])
    down(board.name)
"""

from edgepack.virtual.errors import (
    BoardConflictError,
    BoardStartError,
    LightBoardError,
    NoVirtualBoardError,
    RootfsError,
)
from edgepack.virtual.registry import (
    cut_power,
    down,
    known_hosts,
    list_running,
    scp_command,
    ssh_command,
    ssh_config,
    up,
)
from edgepack.virtual.state import VirtualBoard

__all__ = [
    "BoardConflictError",
    "BoardStartError",
    "LightBoardError",
    "NoVirtualBoardError",
    "RootfsError",
    "VirtualBoard",
    "cut_power",
    "down",
    "known_hosts",
    "list_running",
    "scp_command",
    "ssh_command",
    "ssh_config",
    "up",
]
