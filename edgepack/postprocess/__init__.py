"""From a model's outputs to classes and boxes, the reference for the C++ code."""
