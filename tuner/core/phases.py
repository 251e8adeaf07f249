"""The phase in which a server failed, by the functions on the stack of its exception.

The stack is better evidence than the log: a rank prints that it begins a phase, but rarely that it is between two.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.domain.behaviour import Behaviour


def by_frames(frames: Sequence[str], behaviour: Behaviour) -> str | None:
    """Return the phase that a stack names; None if it names none.

    Modules that are being imported are left out: any phase imports, and mostly that of the arguments.
    """
    frames = [frame for frame in frames if not frame.endswith(":<module>")]
    return next((entry.phase for entry in behaviour.stack if _shows(frames, entry.frames)), None)


def serving_frames(frames: Sequence[str], behaviour: Behaviour) -> bool:
    """Return whether a stack is that of a forward pass, of a request or of the warm-up."""
    return _shows(frames, behaviour.frames.serving)


def _shows(frames: Sequence[str], parts: Sequence[str]) -> bool:
    return any(part in frame for frame in frames for part in parts)
