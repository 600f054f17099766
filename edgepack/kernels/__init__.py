"""The kernel library: what a layer is, and the code that computes it on a CPU.

It knows no network, no model format and no board: given are a layer, the layouts of its tensors and
a model of a CPU; a rule makes a kernel, its constants, what it costs, and the other ways to make
it. Which layers there are, and who makes which, decides `edgepack.compiler`.
"""
