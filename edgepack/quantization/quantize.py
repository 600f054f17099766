"""All of it: a float model and photos -> a QDQ model, and how good it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgepack.base.page import Tabular
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.quantization import mixed
from edgepack.quantization.biases import correct_biases
from edgepack.quantization.equalise import ROOMS, equalise_channels
from edgepack.quantization.errors import CalibrationError
from edgepack.quantization.network import Array, FloatNetwork, noise_share, outputs, values
from edgepack.quantization.qdq_model import make_qdq_model, tensors_of, whole_nodes
from edgepack.quantization.ranges import ByteSteps, TensorRange, sample_values, steps_for
from edgepack.quantization.rounding import Rounded, moments, round_weights

# What the file's metadata calls them; `flow.job` takes them into the manifest.
CALIBRATION, AGREEMENT = "edgepack.calibration", "edgepack.agreement"
# Photos that sensitivities are measured on.
_SENSITIVITY = 8
FEW = 20
# Of noise: no more than 300 dB are printed.
_LEAST_SHARE = 1e-30


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Quantised outputs beside float32's: the ratio of signal and noise, and what the task is
    judged by; None is what it is not.

    `top1`: for how many photos the first class is the same, `top5`: for how many float32's first is
    among the first five. `miou`: the overlap of the areas of each class, its mean over the classes.
    `map`: the average precision of boxes, as if float32's were the truth.
    """

    top1: float | None
    top5: float | None
    snr_db: float
    miou: float | None = None
    map: float | None = None


Judge = Callable[[Sequence[Array], Sequence[Array]], Agreement]
"""What compares float32's outputs with quantised ones, each a row for each photo."""


@dataclass(frozen=True, kw_only=True)
class LayerNoise:
    """A tensor in the network: how far its values are above their error."""

    tensor: str
    operator: str
    snr_db: float


@dataclass(frozen=True, kw_only=True)
class Result(Tabular):
    """A quantised model. `calibrated` and `judged` count photos. `whole` is the model before some
    tensors went back to float, `in_float`, which cost the share `cost` more; `all_int8` is how good
    that was. `ranges` are those of each tensor that was made integers, before some went back."""

    model: onnx.ModelProto
    whole: onnx.ModelProto
    calibrated: int
    judged: int
    calibration: str
    agreement: Agreement
    all_int8: Agreement
    in_float: tuple[mixed.InFloat, ...]
    cost: float
    layers: tuple[LayerNoise, ...]
    untouched: tuple[tuple[str, str], ...]
    ranges: tuple[TensorRange, ...] = field(default=(), repr=False)

    @property
    def warning(self) -> str:
        """What is to be said of too few photos; empty if there are enough."""
        if self.calibrated == 1:
            return (
                "one photo is too few to calibrate on: what is larger in others is cut off; give "
                "some dozens that show what the camera will see"
            )
        if self.calibrated < FEW or self.judged < FEW:
            return f"few photos: below {FEW}, ranges and shares are rough"
        return ""

    def rows(self) -> list[dict[str, Any]]:
        """The tensors: how far each is above its error."""
        return [asdict(one) for one in self.layers]


def quantize(
    path: Path,
    proto: onnx.ModelProto,
    calibration: Sequence[Array],
    judge: Sequence[Array],
    *,
    snr_db: float | None = None,
    budget: float = 0.1,
    agree: Judge | None = None,
    progress: Progress = NO_PROGRESS,
) -> Result:
    """Quantise a model of one input, calibrated on some photos and judged on others (all are its
    inputs).

    Layers go back to float until the outputs are `snr_db` above their error, as long as that costs
    no more than the share `budget`. `agree` judges by the task; None: by classes. Raises
    `ModelError` and `CalibrationError`.
    """
    if not calibration or not judge:
        raise CalibrationError(
            "no photos to calibrate on" if not calibration else "no photos to validate on"
        )
    agree = agree or agreement
    original = FloatNetwork(path, proto)
    exact = outputs(proto, judge)
    progress.step("making channels equally large")
    network = _equalised(original, calibration)
    progress.step("looking for ranges")
    numbers = sample_values(network, calibration, tensors_of(network))
    steps = {name: steps_for(found) for name, found in numbers.items()}
    progress.step(f"rounding the weights of {len(network.products)} layers")
    ranges = tuple(TensorRange.of(name, numbers[name], own) for name, own in steps.items())
    sums = moments(network, calibration, network.products)
    weights = {
        name: round_weights(product, sums[name]) for name, product in network.products.items()
    }
    biases = _biases(network, steps, weights, calibration)
    made = whole = make_qdq_model(network, steps, weights, biases)
    all_int8 = agree(exact, outputs(made, judge))
    left: list[mixed.InFloat] = []
    now = all_int8
    if snr_db is not None and now.snr_db < snr_db:
        progress.step("measuring what each tensor loses")
        few = calibration[:_SENSITIVITY]
        noise = mixed.noise_of(network, steps, few)
        for one in mixed.order(network, steps, noise):
            if sum(item.cost for item in left) + one.cost > budget:
                continue  # a cheaper one may fit
            left.append(one)
            del steps[one.tensor]
            made = make_qdq_model(network, steps, weights, biases)
            now = agree(exact, outputs(made, judge))
            if now.snr_db >= snr_db:
                break
    digest = hashlib.sha256()
    for photo in sorted(hashlib.sha256(photo.tobytes()).digest() for photo in calibration):
        digest.update(photo)
    written = {CALIBRATION: digest.hexdigest()}
    if now.top1 is not None:
        written[AGREEMENT] = repr(round(now.top1, 4))
    for key, value in written.items():
        entry = made.metadata_props.add()
        entry.key, entry.value = key, value
    inside = {id(node) for node in whole_nodes(network, steps)}
    tables = _looked_up(made)
    return Result(
        model=made,
        whole=whole,
        calibrated=len(calibration),
        judged=len(judge),
        calibration=digest.hexdigest(),
        agreement=now,
        all_int8=all_int8,
        in_float=tuple(left),
        cost=sum(item.cost for item in left),
        layers=tuple(_layers(network, made, judge[:_SENSITIVITY])),
        untouched=tuple(
            (node.name or node.output[0], node.op_type)
            for node in network.nodes
            if id(node) not in inside
            and node.op_type not in _FOLLOW
            and node.output[0] not in tables
        ),
        ranges=ranges,
    )


def _equalised(network: FloatNetwork, photos: Sequence[Array]) -> FloatNetwork:
    """Channels made equally large, as far as that helps on photos that none was scaled by."""
    some, others = photos[::2], photos[1::2][:_SENSITIVITY]
    if not others:
        return network
    exact = outputs(network.proto, others)

    def rounded_db(made: FloatNetwork) -> float:
        numbers = sample_values(made, some[:_SENSITIVITY], tensors_of(made))
        steps = {name: steps_for(found) for name, found in numbers.items()}
        return snr(exact, outputs(mixed.round_tensors(made, steps), others))

    found = {room: rounded_db(equalise_channels(network, some, room=room)) for room in ROOMS}
    best = max(found, key=found.__getitem__)
    if rounded_db(network) >= found[best]:
        return network
    return equalise_channels(network, photos, room=best)


def _biases(
    network: FloatNetwork,
    steps: Mapping[str, ByteSteps],
    weights: Mapping[str, Rounded],
    photos: Sequence[Array],
) -> dict[str, Array]:
    """Corrected biases if that helps on photos that they were not corrected by, else the network's
    own: what weights make up for each other is often all there is, and the rest is chance."""
    own = {name: product.bias for name, product in network.products.items()}
    some, others = photos[::2], photos[1::2]
    if not others:
        return own
    exact = outputs(network.proto, others)
    tried = correct_biases(network, steps, weights, some)
    with_own, with_tried = (
        snr(exact, outputs(make_qdq_model(network, steps, weights, biases), others))
        for biases in (own, tried)
    )
    return tried if with_tried > with_own else own


# What functions of single numbers are made of: between integers the compiler makes a table of the
# 256 results of each.
_ELEMENTWISE = {
    *("Abs", "Add", "Clip", "Div", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
    *("Max", "Min", "Mish", "Mul", "Neg", "Pow", "Relu", "Selu", "Sigmoid", "Softplus"),
    *("Softsign", "Sqrt", "Sub", "Tanh"),
}


def _looked_up(made: onnx.ModelProto) -> set[str]:
    """The outputs of functions of one tensor of integers, whose results are integers again."""
    single = {item.name for item in made.graph.initializer if int(np.prod(item.dims)) == 1}
    users: dict[str, list[onnx.NodeProto]] = {}
    source: dict[str, str] = {}
    for node in made.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
        if node.op_type == "DequantizeLinear":
            source[node.output[0]] = node.input[0]
        elif node.op_type in _ELEMENTWISE:
            given = [name for name in node.input if name and name not in single]
            sources = {source.get(name) for name in given}
            if len(sources) == 1 and (of := sources.pop()) is not None:
                source[node.output[0]] = of
    kept = {info.name for info in made.graph.output}
    found: set[str] = set()
    for node in reversed(made.graph.node):
        name = node.output[0]
        if node.op_type in _ELEMENTWISE and name in source and name not in kept:
            ends = users.get(name, [])
            if ends and all(
                user.op_type == "QuantizeLinear" or user.output[0] in found for user in ends
            ):
                found.add(name)
    return found


_FOLLOW = ("Relu", "Clip", "Flatten", "Reshape", "Squeeze")


def agreement(exact: Sequence[Array], made: Sequence[Array]) -> Agreement:
    """Of `outputs`; classes are those of the first one."""
    first = exact[0].argmax(axis=1)
    five = np.argsort(-made[0], axis=1)[:, :5]
    return Agreement(
        top1=float((made[0].argmax(axis=1) == first).mean()),
        top5=float((five == first[:, None]).any(axis=1).mean()),
        snr_db=snr(exact, made),
    )


def values_only(exact: Sequence[Array], made: Sequence[Array]) -> Agreement:
    """Of `outputs` that are no scores of classes."""
    return Agreement(top1=None, top5=None, snr_db=snr(exact, made))


def snr(exact: Sequence[Array], made: Sequence[Array]) -> float:
    """How far outputs are above their error, in dB."""
    return -10 * float(np.log10(max(noise_share(exact, made), _LEAST_SHARE)))


def _layers(
    network: FloatNetwork, made: onnx.ModelProto, photos: Sequence[Array]
) -> list[LayerNoise]:
    """Each tensor that layers store, beside float32's."""
    names = [network.stored(node) for node in network.nodes if network.is_whole(node)]
    names = [name for name in dict.fromkeys(names) if name not in network.outputs]
    power, error = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    pairs = zip(values(network.proto, photos, names), values(made, photos, names), strict=True)
    for exact, got in pairs:
        for name in names:
            wide = exact[name].astype("float64")
            power[name] += float((wide**2).sum())
            error[name] += float(((got[name] - wide) ** 2).sum())
    return [
        LayerNoise(
            tensor=name,
            operator=network.makers[name].op_type,
            snr_db=10 * float(np.log10(max(power[name], 1e-300) / max(error[name], 1e-300))),
        )
        for name in names
    ]
