"""ONNX -> Relax, and what a model has in it before it is compiled."""
