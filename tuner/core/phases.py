"""Where in its life a server was when it failed: by the functions on the stack, else by what its log said last.

A function on the stack is the better witness: a rank says that it begins a phase, but rarely that it is between two.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.domain.behaviour import Behaviour


def by_frames(frames: Sequence[str], behaviour: Behaviour) -> str | None:
    """The phase that a stack names; None when it names none.

    A module that is being imported tells nothing: any phase imports, and mostly that of the arguments.
    """
    frames = [frame for frame in frames if not frame.endswith(":<module>")]
    return next((entry.phase for entry in behaviour.stack if _shows(frames, entry.frames)), None)


def serving_frames(frames: Sequence[str], behaviour: Behaviour) -> bool:
    """The stack is that of a forward pass of a request, or of the warm-up's."""
    return _shows(frames, behaviour.serving_frames)


def _shows(frames: Sequence[str], parts: Sequence[str]) -> bool:
    return any(part in frame for frame in frames for part in parts)
