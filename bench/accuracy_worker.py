"""A float model quantised by NNCF, in a process and an environment of its own.

accuracy_worker.py MODEL.onnx PHOTOS.npz OUT.onnx PRESET CORRECTION

PHOTOS.npz has the model's inputs, one array each; PRESET is "performance" or "mixed", CORRECTION
"fast" or "accurate". Stands alone, with only numpy, onnx and NNCF.
"""

from __future__ import annotations

import os
import sys

# Before it is imported: it would ask a server.
os.environ["NNCF_TELEMETRY"] = "0"
os.environ["CI"] = "true"

import nncf  # type: ignore[import-not-found]
import numpy as np
import onnx


def main(model: str, photos: str, out: str, preset: str, correction: str) -> None:
    """Writes the quantised model."""
    proto = onnx.load(model)
    name = proto.graph.input[0].name
    inputs = [{name: array} for array in np.load(photos).values()]
    made = nncf.quantize(
        proto,
        nncf.Dataset(inputs),
        preset=nncf.QuantizationPreset(preset),
        fast_bias_correction=correction == "fast",
        subset_size=len(inputs),
    )
    onnx.save(made, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
