"""What is wrong with a model or photos that are to be quantised."""

from __future__ import annotations

from edgepack.base.errors import ConfigError, ModelError


class AlreadyQuantizedError(ModelError):
    """The model has QuantizeLinear nodes."""


class NothingToQuantizeError(ModelError):
    """The model has no operator that could be done on 8-bit integers."""


class CalibrationError(ConfigError):
    """There are too few photos, or none."""
