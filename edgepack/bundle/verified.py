"""What a bundle, and a device that holds it, record of the comparison before it was packed."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_TOLERANCE = 1e-4


def shown_case(name: str) -> str:
    """What a person calls the inputs that a model was compared on."""
    return "smoke-test input" if name == "golden" else name


@dataclass(frozen=True, kw_only=True)
class Verified:
    """On which inputs the compiled model was compared with the reference before it was bundled.

    `emulated` ran the board's own code under an emulator, `local` a build of the same graph for the
    maker's machine; none of both says that nothing was compared. `tolerance` bounds max |error| /
    max |reference|. `choices` are what differs from the reference by choice, with the input.
    """

    emulated: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    tolerance: float = DEFAULT_TOLERANCE
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For a person, such as "smoke-test input, random (emulated)"."""
        parts = [
            f"{', '.join(map(shown_case, inputs))} ({where})"
            for inputs, where in (
                (self.emulated, "emulated"),
                (self.local, "on the maker's machine"),
            )
            if inputs
        ]
        return "; ".join(parts) or "no: made with --no-verify"
