"""Train a scikit-learn forest on handwritten digits and export it: sklearn_digits.py OUT.onnx."""

# /// script
# requires-python = ">=3.11"
# dependencies = ["scikit-learn==1.9.1", "skl2onnx==1.20.0"]
# ///

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

EXAMPLES = 1500  # of 1797; the rest tells how well it reads


def main(out: str) -> None:
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels.astype(np.float32)
    forest = RandomForestClassifier(20, random_state=0)
    forest.fit(pixels[:EXAMPLES], digits[:EXAMPLES])
    accuracy = forest.score(pixels[EXAMPLES:], digits[EXAMPLES:])
    print(f"{accuracy:.1%} of {len(digits) - EXAMPLES} digits are read")
    model = to_onnx(
        forest,
        pixels[:1],
        options={"zipmap": False},  # probabilities as a tensor, not as a list of dictionaries
        target_opset={"": 17, "ai.onnx.ml": 3},
    )
    Path(out).write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main(*sys.argv[1:])
