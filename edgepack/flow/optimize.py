"""How much room weights may take to be faster, in a user's words."""

from __future__ import annotations

import math
from collections.abc import Mapping

# How many times the model's weights may be stored, where that is faster.
GROWTH: Mapping[str, float] = {"balance": 1.5, "speed": math.inf, "size": 1.0}
OPTIMIZE = tuple(GROWTH)
DEFAULT_OPTIMIZE = "balance"
