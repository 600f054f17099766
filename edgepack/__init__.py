"""edgepack: take a trained ONNX model to an ARM field board, and know that it works there."""

__version__ = "0.1.0"
