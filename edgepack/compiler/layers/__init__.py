"""A Relax function as layers, each with the element-wise arithmetic fused into it."""
