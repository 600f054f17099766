"""All but the machine code: a model, imported once, as plans of one or several sets of choices."""

from __future__ import annotations

import edgepack.compiler.load_tvm  # noqa: F401

# isort: split
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from edgepack.base import apart
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.compiler import mixed
from edgepack.compiler.backend import bind, llvm, schedule
from edgepack.compiler.backend.bind import Lowered, LoweredBlock
from edgepack.compiler.backend.plan import Plan
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.place import lower
from edgepack.compiler.place.budget import constant_bytes
from edgepack.compiler.place.placement import place_layers
from edgepack.compiler.place.survey import survey
from edgepack.compiler.settings import DEFAULTS, CompileSettings
from edgepack.frontend import importer, memory, ranges
from edgepack.frontend.float16 import widen
from edgepack.frontend.integer_recognition import Recognition
from edgepack.frontend.load import CheckedModel
from edgepack.frontend.precision import FULL, Precision
from edgepack.kernels.choices import NO_CHOICES, UNLIMITED, Choices, Tunable
from edgepack.kernels.tiles.cpu import CpuModel, cpu_model
from edgepack.kernels.tiles.element import FLOAT16

# What is folded is no more than this many times the weights, unless those are stored as integers,
# or are in nodes.
_FOLDED = 1.1


class Planner:
    """A model, imported for a board; `target` is TVM's.

    `floats` are the nodes of a quantised model that are left in float, by name, and why.
    Parameters and errors are those of `compile_model`.
    """

    def __init__(
        self,
        model: CheckedModel,
        board: Board,
        settings: CompileSettings = DEFAULTS,
        *,
        progress: Progress = NO_PROGRESS,
    ) -> None:
        self._model, self._board = model, board
        # States are what the model made itself.
        precision = settings.precision
        precision = replace(precision, bounded=precision.bounded | model.states.keys())
        self._rules, self._lean = settings.rules, settings.growth < UNLIMITED
        self._growth = min(settings.growth, memory.most_growth(model.expanded, board))
        apart.at("looking at its size")
        memory.check_before(model.path, model.expanded, board)

        progress.step(f"importing {model.path.name}")
        self.target = llvm.tvm_target(board)
        cpu = cpu_model(self.target)
        if precision.is_half and precision.samples:
            apart.at("looking for what half precision has no room for")
            found = ranges.find(
                widen(model.expanded), precision.samples, computes=cpu.computes(FLOAT16)
            )
            precision = replace(
                precision,
                exact={**found.exact, **precision.exact},
                winograd={**found.winograd, **precision.winograd},
            )
        self.floats = dict(precision.floats or {})

        def leave(found: Recognition) -> Mapping[str, str]:
            if precision.floats is None:
                self.floats = self._left_in_float(found, cpu, precision)
            if precision.quantized != "float":
                # What floats take more is of what may be stored to be faster.
                self._growth /= mixed.growth_of(found, self.floats)
                self._growth = max(1.0, self._growth)
            return self.floats

        self._imported = importer.import_model(model, leave, cpu)
        self._precision = replace(precision, floats=self.floats)
        # `growth` is of the model's weights, not of what is folded into constants beside them.
        stored = constant_bytes(self._imported["main"])
        folded = stored / max(1, memory.weight_bytes(model.expanded))
        if 1 < folded < _FOLDED:
            self._growth = max(1.0, self._growth / folded)

    def plan(
        self, choices: Choices = NO_CHOICES
    ) -> tuple[Plan, dict[str, Any], tuple[LayerReport, ...]]:
        """The plan, its kernels by name, and a report of each call."""
        model = self._model
        bounds = importer.bounds_of(self._imported)
        lowered = self._lowered(self._imported, replace(self._settings, choices=choices))
        apart.at("laying out its memory")
        laid_out, kernels, reports = bind.extract_plan(lowered, model, bounds)
        memory.check_fits(model.path, laid_out.arena_bytes, len(laid_out.params), self._board)
        return laid_out, kernels, reports

    @property
    def _settings(self) -> CompileSettings:
        """Those that were given, as far as the model and the board allow."""
        return CompileSettings(
            rules=self._rules, growth=self._growth, precision=self._precision, lean=self._lean
        )

    def _lowered(self, imported: Any, settings: CompileSettings) -> Lowered:
        """A module and the bodies of its loops and branches.

        Those are in full precision: nobody has seen what numbers they compute.
        """
        module, fast = lower.lower(imported, self.target, self._model, settings)
        precision = settings.precision
        return Lowered(
            module=schedule.schedule(module, self.target),
            library=fast.kernels,
            reports=fast.reports,
            blocks={
                key: LoweredBlock(
                    name=block.name,
                    operator=block.operator,
                    states=block.states,
                    most=block.most,
                    bodies=tuple(
                        self._lowered(body, replace(settings, precision=_inside(body, precision)))
                        for body in block.bodies
                    ),
                )
                for key, block in importer.blocks_of(imported).items()
            },
        )

    def _left_in_float(
        self, found: Recognition, cpu: CpuModel, precision: Precision
    ) -> dict[str, str]:
        """What of a quantised model is not done on integers."""
        if precision.quantized == "float":
            return {taken.node_name: "that is asked for" for taken in found.taken.values()}
        if precision.quantized == "int8" or self._growth <= 1:
            return {}
        apart.at("looking for what is faster in float than on integers")
        settings = CompileSettings(rules=self._rules, growth=self._growth, precision=precision)
        return mixed.left_in_float(found, cpu, settings)

    def survey(self, figures: Mapping[str, float] = MappingProxyType({})) -> tuple[Tunable, ...]:
        """The kernels that can be made in several ways, in the order of their first calls, with
        other `figures` of the CPU's model where some are given."""
        cpu = replace(self.cpu, **figures)  # type: ignore[arg-type]
        return survey(place_layers(self._folded["main"], cpu, self._settings), self._settings)

    @property
    def cpu(self) -> CpuModel:
        """The model of the board's CPU."""
        return cpu_model(self.target)

    @cached_property
    def _folded(self) -> Any:
        return lower.fold(self._imported, self.target, self._model)


def _inside(body: Any, precision: Precision) -> Precision:
    """The precision of a loop's or branch's body: what it reads is the network's own."""
    names = frozenset(param.name for param in body["main"].params)
    return replace(FULL, bounded=names, direct=precision.direct)
