"""TensorFlow.js models as ONNX, against NumPy on the layers' own definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.flow.reference import run_reference
from tests import tfjs


def _layer(kind: str, name: str, *sources: str, **config: object) -> dict[str, Any]:
    nodes = [[[source, 0, 0, {}] for source in sources]] if sources else []
    return {"class_name": kind, "name": name, "config": config, "inbound_nodes": nodes}


def _conv(name: str, source: str, **config: object) -> dict[str, Any]:
    plain = {
        "strides": [1, 1],
        "dilation_rate": [1, 1],
        "groups": 1,
        "activation": "linear",
        "use_bias": True,
        "padding": "same",
        "kernel_size": [3, 3],
    }
    return _layer("Conv2D", name, source, **{**plain, **config})


def _file(folder: Path, layers: list[dict[str, Any]], weights: dict[str, np.ndarray]) -> Path:
    (folder / "weights.bin").write_bytes(
        b"".join(w.astype("<f4").tobytes() for w in weights.values())
    )
    manifest = [
        {"name": name, "shape": list(values.shape), "dtype": "float32"}
        for name, values in weights.items()
    ]
    config = {
        "name": "small",
        "layers": layers,
        "input_layers": [[layers[0]["name"], 0, 0]],
        "output_layers": [[layers[-1]["name"], 0, 0]],
    }
    path = folder / "model.json"
    path.write_text(
        json.dumps(
            {
                "modelTopology": {"model_config": {"config": config}},
                "weightsManifest": [{"paths": ["weights.bin"], "weights": manifest}],
            }
        )
    )
    return path


def test_a_layers_model_gives_what_its_layers_say(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    weights = {
        "a/kernel": random.standard_normal((3, 3, 3, 4)).astype(np.float32),  # HWIO
        "a/bias": random.standard_normal(4).astype(np.float32),
        "b/kernel": random.standard_normal((1, 1, 7, 3)).astype(np.float32),
        "b/bias": random.standard_normal(3).astype(np.float32),
    }
    layers = [
        _layer("InputLayer", "in"),
        _conv("a", "in"),
        _layer("Activation", "relu", "a", activation="relu"),
        _layer("Concatenate", "both", "in", "relu", axis=3),
        _conv("b", "both", kernel_size=[1, 1], padding="valid"),
        _layer("Add", "sum", "b", "in"),
        _layer("UpSampling2D", "up", "sum", size=[2, 3], interpolation="nearest"),
    ]
    image = random.standard_normal((1, 5, 6, 3)).astype(np.float32)

    (got,) = run_reference(tfjs.convert(_file(tmp_path, layers, weights)), {}, [image])

    padded = np.pad(image[0], ((1, 1), (1, 1), (0, 0)))
    a = weights["a/bias"] + sum(
        padded[y : y + 5, x : x + 6] @ weights["a/kernel"][y, x] for y in range(3) for x in range(3)
    )
    both = np.concatenate([image[0], np.maximum(a, 0)], axis=-1)
    total = both @ weights["b/kernel"][0, 0] + weights["b/bias"] + image[0]
    np.testing.assert_allclose(got[0], total.repeat(2, 0).repeat(3, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [_conv("a", "in", strides=[2, 2]), _layer("Activation", "a", "in", activation="elu")],
    ids=["stride", "elu"],
)
def test_another_layer_is_refused_by_name(tmp_path: Path, layer: dict[str, Any]) -> None:
    with pytest.raises(tfjs.LayerError, match=f"a: .*{layer['class_name']}"):
        tfjs.convert(_file(tmp_path, [_layer("InputLayer", "in"), layer], {}))
