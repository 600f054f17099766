"""What kernels are made of: the CPU, layouts, loops, register tiles, assembly."""
