"""Train a Keras network on handwritten digits and export it: keras_digits.py OUT.onnx."""

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["tensorflow-cpu==2.21.0", "tf2onnx==1.17.0", "scikit-learn==1.9.1"]
# ///

import sys

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

EXAMPLES = 1500  # of 1797; the rest tells how well it reads


def main(out: str) -> None:
    keras.utils.set_random_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 8, 8, 1).astype(np.float32)
    model = network()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images[:EXAMPLES], digits[:EXAMPLES], epochs=15, verbose=0)
    _loss, accuracy = model.evaluate(images[EXAMPLES:], digits[EXAMPLES:], verbose=0)
    print(f"{accuracy:.1%} of {len(images) - EXAMPLES} digits are read")
    model.export(out, format="onnx", verbose=False)


def network() -> keras.Model:
    """Separable convolutions with a shortcut, as in most Keras networks; NHWC, as Keras has it."""
    image = keras.Input((8, 8, 1), name="image")
    x = layers.Rescaling(1 / 16)(image)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU(max_value=6)(x)
    y = layers.SeparableConv2D(16, 3, padding="same", activation="swish")(x)
    x = layers.Add()([x, y])
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.1)(x)
    return keras.Model(image, layers.Dense(10, activation="softmax", name="digit")(x))


if __name__ == "__main__":
    main(*sys.argv[1:])
