"""Kernels written for the CPU at hand, in place of Relax operators.

    Relax -graph-> layers -fuse-> layers with expressions -placement-> -emit-> calls of kernels

`placement` decides, by the rules of `rules.table`, in which layout each tensor lies and what makes
it; `emit` writes that as a Relax function, with the kernels that the rules make. `lower` has TVM
lower what is left.
"""

from edgepack.compiler.place.emit import Rewritten, rewrite

__all__ = ["Rewritten", "rewrite"]
