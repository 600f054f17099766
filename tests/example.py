"""The MobileNetV2 example's own modules, loaded from the folder they lie in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "examples" / "mobilenetv2"


def load_build() -> ModuleType:
    """examples/mobilenetv2/build.py; its `checkpoint` is in sys.modules afterwards."""
    name = "mobilenetv2_build"
    if name not in sys.modules:
        location = importlib.util.spec_from_file_location(name, FOLDER / "build.py")
        assert location is not None
        assert location.loader is not None
        module = importlib.util.module_from_spec(location)
        sys.modules[name] = module
        location.loader.exec_module(module)
    return sys.modules[name]
