"""Several plans of one model on one kernel library and one parameter file, for tuning.

Kernels and parameters that plans have in common are there once, so that a dozen plans are not much
larger than one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.paths import atomic_dir
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.text import format_count
from edgepack.boards import Board
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.settings import DEFAULTS, CompileSettings
from edgepack.kernels.choices import Choices, Tunable
from edgepack.model import ModelSpec
from edgepack.native.toolchain import Toolchain

if TYPE_CHECKING:
    from edgepack.compiler.backend.plan import Plan


_OBJECTS = "kernels.o"
# Figures of a CPU's model that no document gives for each board, or not as one thread meets them.
FIGURES = ("loads_per_cycle", "memory_bandwidth", "l2_bandwidth", "l3_bandwidth")


@dataclass(frozen=True, kw_only=True)
class Variants:
    """A folder with model.so, params.bin and a plan for each set of choices.

    `graphs` are the plans' files, `layers` a report of each call of each plan.
    """

    folder: Path
    graphs: tuple[Path, ...]
    layers: tuple[tuple[LayerReport, ...], ...]

    @property
    def library(self) -> Path:
        """The kernels of all plans."""
        return self.folder / "model.so"

    @property
    def params(self) -> Path:
        """The parameters of all plans."""
        return self.folder / "params.bin"

    @property
    def objects(self) -> Path:
        """The object file with the kernels."""
        return self.folder / _OBJECTS


def survey_kernels(
    spec: ModelSpec,
    board: Board,
    *,
    settings: CompileSettings = DEFAULTS,
    progress: Progress = NO_PROGRESS,
) -> tuple[Tunable, ...]:
    """The kernels that can be made in several ways, in the order of their first calls.

    To be called through `limited.within`, as all functions here. Raises what `compile_model`
    raises.
    """
    from edgepack.compiler.planning import Planner
    from edgepack.frontend.load import load_model

    return Planner(load_model(spec), board, settings, progress=progress).survey()


def survey_with_figures(
    spec: ModelSpec,
    board: Board,
    figures: Sequence[Mapping[str, float]],
    *,
    settings: CompileSettings = DEFAULTS,
    progress: Progress = NO_PROGRESS,
) -> tuple[dict[str, float], list[tuple[Tunable, ...]]]:
    """The CPU model's figures of `FIGURES`, and a survey with each of `figures` in their place."""
    from edgepack.compiler.planning import Planner
    from edgepack.frontend.load import load_model

    planner = Planner(load_model(spec), board, settings, progress=progress)
    in_use = {name: float(getattr(planner.cpu, name)) for name in FIGURES}
    return in_use, [planner.survey(one) for one in figures]


def compile_variants(
    spec: ModelSpec,
    board: Board,
    toolchain: Toolchain,
    out: Path,
    variants: Sequence[Choices],
    *,
    settings: CompileSettings = DEFAULTS,
    progress: Progress = NO_PROGRESS,
) -> Variants:
    """Compile a model once for each of `variants`, into the folder `out`, which is replaced."""
    from edgepack.base import apart
    from edgepack.compiler.backend import build, code
    from edgepack.compiler.planning import Planner
    from edgepack.frontend.load import load_model

    planner = Planner(load_model(spec), board, settings, progress=progress)
    joint = _Joint()
    for index, choices in enumerate(variants):
        apart.at(f"planning variant {index + 1}", index, len(variants))
        joint.add(*planner.plan(choices))
    progress.step(f"compiling {format_count(len(joint.kernels), 'kernel')} for {board.cpu}")
    apart.at(f"making machine code of {len(joint.kernels)} kernels")
    with atomic_dir(out) as work:
        build.build_library(
            joint.kernels,
            planner.target,
            toolchain,
            work / _OBJECTS,
            work / "model.so",
            code.kept_code(),
        )
        params = bytes(joint.params)
        (work / "params.bin").write_bytes(params)
        names = [f"graph{index}.json" for index in range(len(joint.plans))]
        for name, plan, layers in zip(names, joint.plans, joint.layers, strict=True):
            text = replace(plan, params=params).to_json(layers)
            (work / name).write_text(text, encoding="utf-8")
    return Variants(
        folder=out,
        graphs=tuple(out / name for name in names),
        layers=tuple(joint.layers),
    )


class _Joint:
    """Plans that are put together; `kernels` and `params` are those of all of them."""

    def __init__(self) -> None:
        self.kernels: dict[str, Any] = {}
        self.params = bytearray()
        self.plans: list[Plan] = []
        self.layers: list[tuple[LayerReport, ...]] = []
        self._places: dict[bytes, int] = {}

    def add(self, plan: Plan, kernels: dict[str, Any], layers: Sequence[LayerReport]) -> None:
        """One more plan."""
        names = {name: self._name(name, kernel) for name, kernel in kernels.items()}
        places = self._place(plan)
        self.plans.append(
            replace(
                plan,
                calls=tuple(replace(call, kernel=names[call.kernel]) for call in plan.calls),
                tensors=tuple(
                    replace(tensor, offset=places[tensor.offset])
                    if tensor.storage == "params"
                    else tensor
                    for tensor in plan.tensors
                ),
            )
        )
        self.layers.append(tuple(replace(layer, kernel=names[layer.kernel]) for layer in layers))

    def _name(self, name: str, kernel: Any) -> str:
        """What a kernel is called here: an equal one is there once."""
        candidate, count = name, 1
        while candidate in self.kernels:
            if self.kernels[candidate].facts.digest == kernel.facts.digest:
                self.kernels[candidate].called(kernel.numbers)
                return candidate
            count += 1
            candidate = f"{name}_t{count}"
        self.kernels[candidate] = kernel
        return candidate

    def _place(self, plan: Plan) -> dict[int, int]:
        """Where the parameters at each offset of a plan are here."""
        from edgepack.compiler.backend.arena import align

        stored = [tensor for tensor in plan.tensors if tensor.storage == "params"]
        ends: dict[int, int] = {}  # of stretches that no tensor reaches out of
        for tensor in sorted(stored, key=lambda tensor: (tensor.offset, -tensor.nbytes)):
            last = next(reversed(ends), None)
            if last is not None and tensor.offset < ends[last]:
                ends[last] = max(ends[last], tensor.offset + tensor.nbytes)
            else:
                ends[tensor.offset] = tensor.offset + tensor.nbytes
        places = {}
        for tensor in stored:
            start = max((start for start in ends if start <= tensor.offset), default=tensor.offset)
            data = bytes(plan.params[start : ends[start]])
            if data not in self._places:
                self.params.extend(bytes(align(len(self.params)) - len(self.params)))
                self._places[data] = len(self.params)
                self.params.extend(data)
            places[tensor.offset] = self._places[data] + tensor.offset - start
        return places
