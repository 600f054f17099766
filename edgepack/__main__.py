"""`python -m edgepack` is the `edgepack` command."""

from edgepack.cli import entry_point

entry_point()
