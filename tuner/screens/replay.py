"""The controls of a recording: what the screens need of its player, its keys, and the line with its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from textual.binding import Binding, BindingType

from tuner.widgets.spans import Line, Span

KEYS: list[BindingType] = [
    Binding("R", "replay_again", "Play again", id="replay.again", tooltip="Play an ended replay from its beginning"),
    Binding("space", "replay_pause", "Pause", show=False, id="replay.pause", tooltip="Pause a replay, or go on"),
    Binding("less_than_sign", "replay_seek(-10)", "Back", show=False, id="replay.back", tooltip="10 s back"),
    Binding("greater_than_sign", "replay_seek(10)", "Skip", show=False, id="replay.skip", tooltip="10 s on"),
    Binding("plus", "replay_speed(2.0)", "Faster", show=False, id="replay.faster", tooltip="Replay twice as fast"),
    Binding("minus", "replay_speed(0.5)", "Slower", show=False, id="replay.slower", tooltip="Replay half as fast"),
]
"""Keys that work only in a replay."""


class Player(Protocol):
    """The controls of a recording that is played."""

    position: float
    """Seconds of the recording that were played."""
    duration: float
    paused: bool
    speed: float
    """Factor of the recorded speed; 0 plays as fast as possible."""

    def seek(self, position: float) -> None:
        """Go to a second of the recording."""

    def pause(self) -> None:
        """Stop playing."""

    def resume(self) -> None:
        """Continue playing."""


def replay_lines(player: Player | None, *, ended: bool) -> Sequence[Line]:
    """Return the position of a recording and the keys that move it; nothing for a host."""
    if player is None:
        return ()
    if ended:
        text = f"end of the recording, {_clock(player.duration)}   "
        return [((" replay ", "head"), (text, "warn"), ("R play again   < back 10 s", "dim"))]
    word: Span = ("paused", "warn") if player.paused else ("playing", "ok")
    speed = f"at {player.speed:g}x" if player.speed else "full speed"
    text = f"  {_clock(player.position)} of {_clock(player.duration)}  {speed}  "
    keys = f"space {'goes on' if player.paused else 'pause'}  < > 10 s  - + speed"
    return [((" replay ", "head"), word, (text, "text"), (keys, "dim"))]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
