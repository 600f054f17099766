"""What can be wrong with a model file."""

from __future__ import annotations

from edgepack.base.errors import ModelError


class NotOnnxError(ModelError):
    """The file is something else than an ONNX model."""


class TruncatedModelError(ModelError):
    """The file, or a file of its external data, ends too early."""


class MissingExternalDataError(ModelError):
    """Weights that the model keeps in other files are not there."""


class ExternalDataError(ModelError):
    """Weights are said to be where they must not be read, or where nothing can be."""


class InvalidModelError(ModelError):
    """The file holds a graph that is none: names twice or nowhere, values too few."""


class DynamicShapeError(ModelError):
    """A dimension has no value, in an input or further inside."""


class ShapeOverrideError(ModelError):
    """A shape was given for an input that is not there, or that cannot have it."""


class InputValueError(ModelError):
    """A value was given for an input that is not there, or that cannot have it."""


class SourceError(ModelError):
    """A model cannot be fetched from where it is said to be, or is not what it should be."""


class StateError(ModelError):
    """An input is to keep an output that is not there, or that it cannot be."""
