"""All but the machine code: a model, imported once, as plans of one or several sets of choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edgepack.base import apart
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.compiler import memory
from edgepack.compiler.backend import llvm, plan, schedule
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.choices import NO_CHOICES, Choices, Tunable
from edgepack.compiler.frontend import importer, ranges
from edgepack.compiler.frontend.float16 import widened
from edgepack.compiler.frontend.load import CheckedModel
from edgepack.compiler.place import lower
from edgepack.compiler.place.emit import tried_rules
from edgepack.compiler.place.placement import place_layers
from edgepack.compiler.place.survey import survey
from edgepack.compiler.precision import FULL, Precision
from edgepack.compiler.rules import table
from edgepack.compiler.rules.rule import Rule
from edgepack.compiler.tiles.cpu import cpu_model


class Planner:
    """A model, imported for a board; `target` is TVM's.

    Parameters and errors are those of `compile_model`.
    """

    def __init__(
        self,
        model: CheckedModel,
        board: Board,
        *,
        rules: Sequence[Rule] | None = None,
        smallest: bool = False,
        precision: Precision = FULL,
        progress: Progress = NO_PROGRESS,
    ) -> None:
        self._model, self._board = model, board
        self._rules, self._smallest = rules or table.RULES, smallest
        apart.at("looking at its size")
        memory.check_before(model.path, model.expanded, board)

        progress.step(f"importing {model.path.name}")
        self.target = llvm.tvm_target(board)
        if precision.is_half and precision.samples:
            apart.at("looking for what half precision has no room for")
            exact = ranges.exact_nodes(widened(model.expanded), precision.samples)
            precision = replace(precision, exact={**exact, **precision.exact})
        self._precision = precision
        self._imported = importer.import_model(model)

    def plan(
        self, choices: Choices = NO_CHOICES
    ) -> tuple[plan.Plan, dict[str, Any], tuple[LayerReport, ...]]:
        """The plan, its kernels by name, and a report of each call."""
        model = self._model
        bounds = importer.bounds_of(self._imported)
        module, fast = lower.lower(
            self._imported,
            self.target,
            model,
            rules=self._rules,
            smallest=self._smallest,
            precision=self._precision,
            choices=choices,
        )
        scheduled = schedule.schedule(module, self.target)
        apart.at("laying out its memory")
        laid_out, kernels = plan.extract_plan(scheduled, model, fast.kernels, bounds)
        memory.check_fits(model.path, laid_out.arena_bytes, len(laid_out.params), self._board)
        return laid_out, kernels, plan.report_layers(laid_out, fast.reports)

    def survey(self) -> tuple[Tunable, ...]:
        """The kernels that can be made in several ways, in the order of their first calls."""
        folded = lower.fold(self._imported, self.target, self._model)
        tried = tried_rules(self._rules, smallest=self._smallest)
        cpu = cpu_model(self.target)
        return survey(place_layers(folded["main"], cpu, tried, self._precision), tried)
