"""Kernels for a GPU: layers as text in CUDA C or OpenCL C, and what is launched how.

    Relax -layers-> rules -> text, launches
                 -> TVM's lowering of the rest -> text, launches; or a kernel for the CPU

The text is compiled for CUDA where the bundle is made, and by the driver for OpenCL.
"""
