"""One engine in a process of its own: loads a model, then runs it as often as it is told to.

    worker.py ENGINE MODEL INPUT.npy OUT_DIR THREADS

Stands alone, with only numpy and the engine, for it also runs in the peers' environment and
on ARM. For every line N on stdin it runs the model N times, and answers with a line of JSON, lists
of N milliseconds: {"cpu_ms": of the whole process, "wall_ms"}. The outputs of the very first run go
to OUT_DIR/<i>.npy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Runs the model once; what it returns is turned into the outputs, in the model's order, by `Read`.
Run = Callable[[], Any]
Read = Callable[[Any], Sequence[Any]]


def onnxruntime(model: str, x: Any, threads: int) -> tuple[Run, Read]:
    """onnxruntime's CPU provider with its default (full) graph optimisation."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x}

    return lambda: session.run(None, feed), list


def ncnn(model: str, x: Any, threads: int) -> tuple[Run, Read]:
    """ncnn in float32: its 16-bit storage and arithmetic would miss the tolerance."""
    return _ncnn(model, x, threads, half=False)


def ncnn_half(model: str, x: Any, threads: int) -> tuple[Run, Read]:
    """ncnn in half precision, stored and computed, as it comes."""
    return _ncnn(model, x, threads, half=True)


def _ncnn(model: str, x: Any, threads: int, *, half: bool) -> tuple[Run, Read]:
    import ncnn as library  # type: ignore[import-not-found]

    net = library.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = half
    net.opt.use_fp16_storage = half
    net.opt.use_fp16_arithmetic = half
    net.opt.use_bf16_storage = False
    if net.load_param(model + ".param") != 0 or net.load_model(model + ".bin") != 0:
        raise RuntimeError(f"ncnn cannot load {model}")
    names = sorted(net.output_names(), key=lambda name: int(name.removeprefix("out")))
    images = [library.Mat(image).clone() for image in x]

    def one(image: Any) -> list[Any]:
        extractor = net.create_extractor()
        extractor.input("in0", image)
        outputs = []
        for name in names:
            status, output = extractor.extract(name)
            if status != 0:
                raise RuntimeError(f"ncnn cannot compute {name}")
            outputs.append(output)
        return outputs

    # It has no batches: one after the other.
    return lambda: list(map(one, images)), lambda found: [
        np.stack(list(map(np.array, outputs))) for outputs in zip(*found, strict=True)
    ]


def openvino(model: str, x: Any, threads: int) -> tuple[Run, Read]:
    """OpenVINO's CPU plugin in float32, one stream."""
    import openvino as library  # type: ignore[import-not-found]

    compiled = library.Core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        },
    )
    request = compiled.create_infer_request()
    request.set_input_tensor(library.Tensor(x))

    return request.infer, lambda _: [tensor.data for tensor in request.output_tensors]


def openvino_vnni(model: str, x: Any, threads: int) -> tuple[Run, Read]:
    """OpenVINO without AMX, whose matrix units few CPUs have."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI"
    return openvino(model, x, threads)


def litert(model: str, x: Any, threads: int) -> tuple[Run, Read]:
    """LiteRT with its default XNNPACK delegate."""
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-not-found]

    return _interpreter(Interpreter(model_path=model, num_threads=threads), x)


def tflite(model: str, x: Any, threads: int) -> tuple[Run, Read]:
    """LiteRT under its former name, tflite-runtime."""
    from tflite_runtime.interpreter import Interpreter  # type: ignore[import-not-found]

    return _interpreter(Interpreter(model_path=model, num_threads=threads), x)


def _interpreter(interpreter: Any, x: Any) -> tuple[Run, Read]:
    """TFLite models of images are NHWC; inputs and outputs here are NCHW."""
    interpreter.allocate_tensors()
    interpreter.set_tensor(
        interpreter.get_input_details()[0]["index"],
        np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x,
    )
    indices = [output["index"] for output in interpreter.get_output_details()]

    def read(_: Any) -> list[Any]:
        values = (interpreter.get_tensor(index) for index in indices)
        return [np.moveaxis(value, -1, 1) if value.ndim == 4 else value for value in values]

    return interpreter.invoke, read


def pillow(photo: str, _x: Any, _threads: int) -> tuple[Run, Read]:
    """Pillow, from the file of a photo to the tensor of camera.py's SPEC."""
    from PIL import Image

    mean = np.array((0.485, 0.456, 0.406), np.float32)
    std = np.array((0.229, 0.224, 0.225), np.float32)

    def run() -> Any:
        with Image.open(photo) as image:
            image.draft("RGB", (256, 256))
            scale = 256 / min(image.size)
            width, height = (round(side * scale) for side in image.size)
            small = image.resize((width, height), 2)  # bilinear: its name differs by version
        left, top = (width - 224) // 2, (height - 224) // 2
        pixels = np.asarray(small.crop((left, top, left + 224, top + 224)), np.float32)
        return [((pixels / 255 - mean) / std).transpose(2, 0, 1)[np.newaxis]]

    return run, list


ENGINES: dict[str, Callable[[str, Any, int], tuple[Run, Read]]] = {
    "onnxruntime": onnxruntime,
    "ncnn": ncnn,
    "ncnn-half": ncnn_half,
    "openvino": openvino,
    "openvino-vnni": openvino_vnni,
    "litert": litert,
    "tflite": tflite,
    "pillow": pillow,
}


def main() -> None:
    """See the module's description."""
    engine, model, input_path, out, threads = sys.argv[1:]
    run, read = ENGINES[engine](model, np.load(input_path), int(threads))
    saved = False
    for line in sys.stdin:
        cpu_ms, wall_ms = [], []
        for _ in range(int(line)):
            os.getppid()  # a mark for edgepack/cycles/trace.c
            cpu, wall = time.process_time(), time.perf_counter()
            result = run()
            wall_ms.append((time.perf_counter() - wall) * 1e3)
            cpu_ms.append((time.process_time() - cpu) * 1e3)
            os.getppid()
            if not saved:
                for index, output in enumerate(read(result)):
                    np.save(Path(out) / f"{index}.npy", np.array(output))
                saved = True
        print(json.dumps({"cpu_ms": cpu_ms, "wall_ms": wall_ms}), flush=True)


if __name__ == "__main__":
    main()
