"""Work done while the operator is not waiting: screens are built, and garbage is collected."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from tuner.screens.overview import CHART_FROM
from tuner.screens.shell import Shell
from tuner.widgets import chart

PAUSE_S = 0.3
"""Seconds between building one screen and the next."""
_NEVER = 1 << 30
_DUE = 30
"""Collections of the middle generation after which the oldest one is collected too; the interpreter's default is 10."""


class Ahead:
    """Builds the screens that were not shown yet, one after the other.

    Showing a screen for the first time takes a fifth of a second: its widgets are made, and the library reads all
    styles anew, once for the screen that is left and once for the new one.

    Args:
        app: The app that has the screens.
        names: Names of the modes to build.
    """

    def __init__(self, app: Shell, names: Sequence[str]) -> None:
        self._app = app
        self._left = list(names)
        self.put_off = 0
        """Number of times that a screen was due while a dialog was open: no screen is switched below a dialog."""
        self.done = asyncio.Event()

    async def begin(self) -> None:
        """Import the chart library, then begin to build screens."""
        if self._app.size.width >= CHART_FROM:
            await asyncio.to_thread(chart.load)
        self._next()

    def _next(self) -> None:
        # Through the app's message queue: keys pressed meanwhile wait, and reach the screen they were meant for.
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
                    # The screen is mounted only now; otherwise the library would do this when it is shown again.
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
    """Leave the oldest generation of garbage to `collect`; for a process that is one app.

    By itself the interpreter collects when many objects were made, which is while another screen is drawn, and takes as
    long as the drawing. Objects that exist by now live as long as the process and are left out of collections.
    """
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


def collect() -> None:
    """Collect the oldest generation if it is due and automatic collection is off.

    Not to be called while a key is handled.
    """
    if _by_hand() and gc.get_count()[2] >= _DUE:
        gc.collect()


def _by_hand() -> bool:
    return gc.get_threshold()[2] == _NEVER
