"""Kernels written for the CPU at hand: rules, a cost model, and the blocked layout.

    Relax -graph-> layers -fuse-> layers with expressions -rewrite-> Relax with kernel calls

`rules.table.RULES` lists the rules in the order they are tried, one module per operator family.
`cpu` holds what is known of each micro-architecture, `tile` the cost model that turns it into
register tiles, `layout` the layout of the tensors, `arm` the micro-kernels in assembly.
"""

from edgepack.compiler.place.rewrite import Rewritten, rewrite

__all__ = ["Rewritten", "rewrite"]
