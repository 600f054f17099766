"""Open files of this process: enough for the devices that are worked on at once."""

from __future__ import annotations

import resource

from edgepack.base.errors import UsageError

# Of one device: a socket for it and one for a jump host, the blob that is read, and some
# that are opened for a moment (known_hosts, keys); measured: 4, on a virtual board.
FILES_PER_DEVICE = 8
FILES_OF_OURS = 64


def allow_parallel(parallel: int) -> None:
    """Raise this process's limit of open files if `parallel` devices need more.

    Raises UsageError if the system does not allow so many.
    """
    needed = FILES_OF_OURS + parallel * FILES_PER_DEVICE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        most = max((hard - FILES_OF_OURS) // FILES_PER_DEVICE, 1)
        raise UsageError(
            f"--parallel {parallel} needs {needed} open files, {hard} are allowed here",
            hint=f"--parallel {most}, or raise the limit: ulimit -Hn",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
