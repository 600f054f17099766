"""Half precision and 8-bit integers: instructions of the whole app on ARM, CPU time here.

The float models are quantised by onnxruntime, for OpenVINO by NNCF. They are calibrated on noise:
what integers cost does not depend on their values; what they lose is in accuracy.py.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from bench import accuracy, arm, host
from bench.fetch import bench_dir
from bench.models import MODELS, BenchModel, get_model
from bench.ours import NAME
from bench.peers import ARM_WHEELS, TITLES, emulator
from bench.results import Figure, load, ordered, store, table
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import locked, write_atomic
from edgepack.base.progress import Progress
from edgepack.boards import Board, get_board
from edgepack.quantization.network import Array, FloatNetwork

log = logging.getLogger(__name__)

# One for each kind of core; "local" is this machine.
BOARDS = ("rasp5b", "rasp4b-64", "rasp3b-64", "pynq", "local")
# Counted on ARM.
COUNTED = ("mobilenetv2", "resnet18")
KINDS = ("float32", "float16", "int8")
# Peers that are counted on ARM, and what they compute. ncnn reads no QDQ files.
PEERS = {"onnxruntime": "int8", "ncnn-half": "float16"}
# They read QDQ files. OpenVINO as it comes uses AMX where a CPU has it.
VNNI = ("onnxruntime", "openvino-vnni")
AMX = ("openvino",)
# Noises are not photos.
_CALIBRATED = 4
# Of the largest value: engines round between different operators, so networks with random weights
# are far apart.
_TOLERANCE = 0.5


def quantized(model: BenchModel) -> BenchModel:
    """The model in QDQ form by onnxruntime: uint8, and int8 weights with a scale per channel."""
    path = _file(model, "int8", accuracy.by_onnxruntime)
    return replace(model, name=f"{model.name}-int8", path=path)


def _file(
    model: BenchModel, kind: str, make: Callable[[FloatNetwork, Sequence[Array]], onnx.ModelProto]
) -> Path:
    key = hashlib.sha256(model.path.read_bytes()).hexdigest()[:12]
    path = bench_dir() / kind / f"{model.name}-{key}.onnx"
    with locked(path):
        if not path.exists():
            network = FloatNetwork(model.path, onnx.load(model.path))
            random = np.random.RandomState(1)
            noise = [
                random.standard_normal(model.shape).astype("float32") for _ in range(_CALIBRATED)
            ]
            made = make(network, noise)
            write_atomic(path, made.SerializeToString(deterministic=True))
    return path


def measure(
    boards: Sequence[str],
    models: Sequence[str],
    engines: Sequence[str],
    progress: Progress,
    *,
    rounds: int,
) -> None:
    """Measures and stores figures; a failure is a figure too."""
    for board in boards:
        if board == "local":
            _time(models, engines, progress, rounds)
        else:
            _count(get_board(board), models, engines, progress)


def _time(models: Sequence[str], engines: Sequence[str], progress: Progress, rounds: int) -> None:
    taken = [engine for engine in engines if engine in (NAME, *VNNI, *AMX)]
    for model in map(get_model, models):
        progress.step(f"{model.name}, int8: 1 thread")
        # What OpenVINO's own quantiser writes is twice as fast there as onnxruntime's file.
        files = {}
        if "openvino-vnni" in taken or "openvino" in taken:
            file = _file(model, "nncf", accuracy.by_nncf("performance", "fast"))
            files = {"openvino-vnni": file, "openvino": file}
        cpu, _ = host.timed(
            quantized(model),
            taken,
            1,
            progress,
            rounds=rounds,
            tolerance=_TOLERANCE,
            files=files,
        )
        store("bits", {"local": {model.name: cpu}})


def _count(board: Board, models: Sequence[str], engines: Sequence[str], progress: Progress) -> None:
    emulated = emulator(board, progress)
    for model in (get_model(name) for name in models if name in COUNTED):
        for kind in KINDS:
            given = quantized(model) if kind == "int8" else model
            for engine in (NAME, *peers_of(board)):
                is_peer = engine != NAME
                if engine not in engines or (is_peer and kind != PEERS[engine]):
                    continue
                progress.step(f"{board.name}: {model.name}, {kind}: {engine}")
                try:
                    if is_peer:
                        figure = arm.count_peer(emulated, engine, given, tolerance=_TOLERANCE)
                    else:
                        precision = "float16" if kind == "float16" else "float32"
                        figure = arm.count_ours(emulated, given, progress, precision=precision)
                except EdgepackError as error:
                    log.warning("%s", error)
                    figure = Figure(failed=arm.reason(str(error)))
                store("bits", {board.name: {f"{model.name}, {kind}": {engine: figure}}})


def peers_of(board: Board) -> list[str]:
    """Those that run on a board; in half precision where its CPU computes in it."""
    wheels = ARM_WHEELS[board.debian_arch]
    halves = "fullfp16" in board.has
    return [
        engine
        for engine, kind in PEERS.items()
        if engine.removesuffix("-half") in wheels and (halves or kind != "float16")
    ]


def report() -> str:
    """Markdown of all figures so far."""
    tables = load("bits")
    parts = []
    kinds = [f"{model}, {kind}" for model in MODELS for kind in KINDS]
    for name in BOARDS[:-1]:
        if name in tables:
            board = get_board(name)
            found = table(
                ordered(tables[name], kinds), peers_of(board), TITLES, scale=1e6, digits=1
            )
            parts.append(
                f"**{board.triple}, {board.cpu}** (board {name}), M instructions\n\n{found}"
            )
    local = ordered(tables.get("local", {}), MODELS)
    for peers, what in ((VNNI, ""), (AMX, ", beside AMX")):
        rows = {
            name: {key: figures[key] for key in (NAME, *peers) if key in figures}
            for name, figures in local.items()
            if any(key in figures for key in peers)
        }
        if rows:
            found = table(rows, peers, TITLES, scale=1, digits=2)
            parts.append(f"**this machine, 1 thread, int8, median CPU time, ms{what}**\n\n{found}")
    return "\n\n".join(parts)
