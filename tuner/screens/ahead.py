"""What is done while nobody waits for it, so that no key has to: screens are built and old cycles collected."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from tuner.screens.overview import CHART_FROM
from tuner.screens.shell import Shell
from tuner.widgets import chart

PAUSE_S = 0.3
"""Between one screen and the next."""
_NEVER = 1 << 30
_DUE = 30
"""Collections of the middle generation after which the oldest is collected too; by itself it would be every tenth."""


class Ahead:
    """Builds screens that were not shown so far, one after the other.

    A screen that is shown for the first time takes a fifth of a second: its widgets are made, and the library reads all
    styles anew, once for the screen that is left and once for the new one.

    Args:
        app: Whose screens they are.
        names: Of the modes.
    """

    def __init__(self, app: Shell, names: Sequence[str]) -> None:
        self._app = app
        self._left = list(names)
        self.put_off = 0
        """Times that a screen was due and a question stood on the one that is shown: under it nothing is moved."""
        self.done = asyncio.Event()

    async def begin(self) -> None:
        """Load what draws, then build."""
        if self._app.size.width >= CHART_FROM:
            await asyncio.to_thread(chart.load)
        self._next()

    def _next(self) -> None:
        # Through the app's queue: keys that are pressed meanwhile wait, and find the screen for which they were meant.
        self._app.call_later(self._build)

    async def _build(self) -> None:
        app, here = self._app, self._app.current_mode
        if len(app.screen_stack) > 1:
            self.put_off += 1
        else:
            name = self._left.pop(0)
            if name != here:
                with app.batch_update():
                    await app.switch_mode(name)
                    # It is mounted only now, and the library would do this when it is shown again.
                    app.refresh_css()
                    await app.switch_mode(here)
        if self._left:
            app.set_timer(PAUSE_S, self._next)
            return
        if _by_hand():
            gc.collect()
            gc.freeze()
        self.done.set()


def collect_by_hand() -> None:
    """Let the interpreter collect old objects only when `collect` is called; for a process that is one app.

    By itself it does so when much was made, which is in the middle of drawing another screen, and takes as long as the
    drawing. What is loaded by now lives as long as the process and is left out.
    """
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


def collect() -> None:
    """Collect old objects if that is due and left to us. At any time but that of a key."""
    if _by_hand() and gc.get_count()[2] >= _DUE:
        gc.collect()


def _by_hand() -> bool:
    return gc.get_threshold()[2] == _NEVER
