"""From kernels to machine code, the plan and the parameters."""
