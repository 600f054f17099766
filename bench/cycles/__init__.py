"""Our programs' cycles and the peers', side by side: `./dev bench --cycles`, docs/performance.md.

`edgepack.cycles` traces and estimates; `reorder` has cores that do not issue in order, by llvm-mca.
"""
