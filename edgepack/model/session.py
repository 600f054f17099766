"""Sessions of onnxruntime whose results do not depend on this machine's CPU."""

from __future__ import annotations

from typing import Any


def cpu_session(source: str | bytes, options: Any) -> Any:
    """An `onnxruntime.InferenceSession` of a file or a serialized model, on the CPU.

    Products of uint8 by int8 are exact. Raises onnxruntime's exceptions, which are private and
    derive from `Exception`.
    """
    import onnxruntime

    # Without VNNI they saturate, pair by pair, unless it is told not to:
    # onnxruntime_session_options_config_keys.h. It then takes no QLinearConv of int8 by int8, which
    # is exact anyway (onnxruntime 1.31).
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"])
    except Exception:
        options.add_session_config_entry("session.x64quantprecision", "0")
        return onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"])
