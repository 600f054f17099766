"""How a model is compiled, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgepack.frontend.precision import FULL, Precision
from edgepack.kernels.choices import UNLIMITED, Choices

if TYPE_CHECKING:
    from edgepack.kernels.rules.rule import Rule


@dataclass(frozen=True, kw_only=True)
class CompileSettings:
    """`rules` are tried in order for each layer, None for those of `kernels.rules.table`, and
    `choices` say for some how they are made. Of weights at most `growth` times the model's are
    stored. `precision` says what is stored in half precision, and computed so, and what of a
    quantised model is done on integers. `lean`: the board has no more memory than it needs.
    """

    rules: Sequence[Rule] | None = None
    growth: float = UNLIMITED
    precision: Precision = FULL
    choices: Choices = field(default_factory=dict)
    lean: bool = False

    def __post_init__(self) -> None:
        # A proxy of a mapping would not travel to another process.
        object.__setattr__(self, "choices", dict(self.choices))

    @property
    def tried(self) -> list[Rule]:
        """Those of the rules that may store as many weights as they do."""
        from edgepack.kernels.rules import table

        rules = table.RULES if self.rules is None else self.rules
        return [rule for rule in rules if self.growth > 1 or not rule.more_weights]


DEFAULTS = CompileSettings()
