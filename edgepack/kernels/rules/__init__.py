"""What makes kernels: one module per family of layers."""
