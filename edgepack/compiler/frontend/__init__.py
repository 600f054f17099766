"""ONNX -> Relax."""
