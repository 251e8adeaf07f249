"""The base of screens from which a host can be changed: who may, the question before an act, and what came of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tuner.core import runs
from tuner.core.run_words import going_on, left_words, outcome, way_words
from tuner.domain.acts import AnyAct, CancelRun, ReleaseLease, TakeLease
from tuner.domain.runs import RunRecord
from tuner.domain.state import HostState
from tuner.domain.tuning import Tuning, Wish
from tuner.errors import sentences
from tuner.messages import ActDone, ActRequested, ScreenRequested, TuneArrived, TuneRequested
from tuner.screens.base import TunerScreen
from tuner.screens.confirm import Agreed, ConfirmDialog, Moot, Propose
from tuner.screens.explain_requests import engines
from tuner.widgets.confirm_text import DRAIN_S, Proposal, for_cancel, for_change, for_lease, for_option
from tuner.widgets.spans import clean

_GOES_ON = "The change goes on, or has ended"


class Acting(TunerScreen):
    """A screen from which the host can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: TuneRequested | None = None
        """The request whose answer is to be confirmed; None: none is awaited."""

    # Who may ------------------------------------------------------------------------------------------------------

    def may_act(self) -> bool:
        """Return whether the host on screen may be changed from here, or tell the operator why not."""
        why = self.shell.hindrance()
        if why:
            hint = "" if self.shell.bound() else ". L on the Tune screen takes over"
            self.notify(f"{why}{hint}", severity="warning", timeout=6, markup=False)
        return not why

    def may_switch(self) -> bool:
        """Return whether a change may begin, or tell why not: only one goes on at a time."""
        state = self.shell.snapshot
        if not self.may_act():
            return False
        if state is not None and runs.active_run(state) is not None:
            self.notify("A change is going on: K cancels it", severity="warning", timeout=6)
            return False
        return True

    # Asking -------------------------------------------------------------------------------------------------------

    def propose(self, wish: Wish) -> None:
        """Have a wish put together and checked by the host, then ask the operator whether it is meant."""
        state = self.shell.snapshot
        if state is None or not self.may_switch():
            return
        self._asked = TuneRequested(self, state.name, wish, check=True, purpose="confirm")
        self.post_message(self._asked)
        self.waiting(True)

    def waiting(self, on: bool) -> None:
        """Show that the host is being asked before anything is done, or that it is not any more."""
        if on:
            self.notify("Asking the host before anything is done", timeout=3)

    def on_tune_arrived(self, message: TuneArrived) -> None:
        """Ask for confirmation once the checks are there."""
        message.stop()
        if message.asked is not self._asked or message.checking:
            return
        self._asked = None
        self.waiting(False)
        # Nothing is done on guesses: without the host's facts there is nothing to confirm.
        if message.tuning is None or message.tuning.order is None or not message.checked:
            self.refused(message)
            return
        self._confirm(message.tuning)

    def refused(self, message: TuneArrived) -> None:
        """Tell why a wish cannot be carried out."""
        reasons = message.tuning.refused if message.tuning is not None else ()
        words = message.error or (reasons[0] if reasons else "it cannot be put together")
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        self.notify(clean(f"{words}{more}"), title="Not possible", severity="error", timeout=10, markup=False)

    def _confirm(self, tuning: Tuning) -> None:
        state = self.shell.snapshot
        if state is None or tuning.order is None:
            return
        order, wish, host = tuning.order, tuning.wish, state.name
        server = state.server(wish.server)
        engine = engines().get(server.identity.engine) if server is not None else None
        term_drains = engine is not None and engine.behaviour().stopping.term_drains

        def words(agreed: Agreed) -> Proposal:
            now = self._now(state)
            running = now.server(wish.server) or server
            return for_change(
                now, running, tuning, order, drain=agreed.drain, back=agreed.back, term_drains=term_drains
            )

        def moot() -> str:
            now = self._now(state)
            if runs.active_run(now) is not None:
                return "Another change has begun"
            running = now.server(wish.server)
            gone = server is not None and not server.gone and (running is None or running.gone)
            return "The server has ended meanwhile" if gone else ""

        def answered(agreed: Agreed | None) -> None:
            if agreed is None:
                self.notify("Nothing was changed", timeout=3)
                return
            meant = replace(wish, drain_s=DRAIN_S if agreed.drain else 0.0, auto_back=agreed.back)
            self.post_message(ActRequested(self, host, meant, words(agreed).title.rstrip("?")))

        self.app.push_screen(ConfirmDialog(words, Agreed(wish.drain_s > 0, wish.auto_back), moot), answered)

    def _now(self, state: HostState) -> HostState:
        """Return the newest state of a host, or the given one where another host is on screen."""
        newest = self.shell.snapshot
        return newest if newest is not None and newest.name == state.name else state

    def ask(self, propose: Propose, act: Any, chosen: Agreed | None = None, moot: Moot = str) -> None:
        """Ask whether an act is meant, and have it carried out.

        Args:
            propose: Returns the question for a choice of options.
            act: Returns the act for the operator's answer.
            chosen: The options at first.
            moot: Returns why there is nothing to ask any more.
        """
        state = self.shell.snapshot
        if state is None:
            return
        host = state.name

        def answered(agreed: Agreed | None) -> None:
            if agreed is not None:
                self.act(host, act(agreed), propose(agreed).title.rstrip("?"))

        self.app.push_screen(ConfirmDialog(propose, chosen, moot), answered)

    def act(self, host: str, act: AnyAct, words: str) -> None:
        """Have an act carried out that the operator has confirmed."""
        self.post_message(ActRequested(self, host, act, words))

    def on_act_done(self, message: ActDone) -> None:
        """Tell what came of an act; a change that has begun is followed on the Tune screen."""
        message.stop()
        if message.error:
            words = sentences(message.error, message.hint)
            self.notify(clean(words), title=clean(message.asked.words), severity="error", timeout=12, markup=False)
            return
        if message.run and self.ENTRY != "tune" and self.is_current:
            self.post_message(ScreenRequested("tune"))
        if not message.run:
            self.notify(clean(f"{message.asked.words}: {message.hint or 'done'}"), timeout=6, markup=False)

    # Acts ---------------------------------------------------------------------------------------------------------

    def go_back(self) -> None:
        """Propose to go back to what was good last."""
        state, server = self.shell.snapshot, self.shell.server()
        if state is None:
            return
        before = runs.earlier(state, server)
        if before is None:
            self.notify("Nothing is known that was good before", severity="warning", timeout=5)
            return
        self.propose(Wish(server=server.identity.key if server is not None else "", again=before.again))

    def cancel_run(self, run: RunRecord) -> None:
        """Propose to cancel a run."""
        state = self.shell.snapshot
        if state is None or not self.may_act():
            return

        def present() -> RunRecord:
            return next((each for each in self._now(state).runs if each.id == run.id), run)

        self.ask(
            lambda agreed: for_cancel(self._now(state), present(), back=agreed.back),
            lambda agreed: CancelRun(run=run.id, back=agreed.back and bool(run.back)),
            Agreed(back=bool(run.back)),
            lambda: "" if going_on(present()) else f"The change has ended: {clean(outcome(present()))}",
        )

    def take_option(self, option: str) -> None:
        """Propose to finish an interrupted run, to undo it, or to clean up after it."""
        state = self.shell.snapshot
        found = runs.interrupted(state) if state is not None else ()
        if state is None or not found or not self.may_act():
            return
        left = found[0]
        way = next((each for each in left.options if each.id == option), None)
        why, way_out = way_words(state, left.run) if option != "clean" else ("", "")
        if why:
            self.notify(clean(sentences(why, way_out)), severity="warning", timeout=10, markup=False)
        elif way is not None:
            run = left.run.id
            self.ask(
                lambda _: for_option(state, left_words(state, left.run), way.title),
                lambda _: way.act,
                moot=lambda: "" if run in {each.run.id for each in runs.interrupted(self._now(state))} else _GOES_ON,
            )

    def take_lease(self) -> None:
        """Take the right to change the host, give it back, or propose to take it from another operator."""
        state = self.shell.snapshot
        if state is None:
            return
        if why := self.shell.bound():
            self.notify(why, severity="warning", timeout=6, markup=False)
        elif state.lease.mine:
            self.act(state.name, ReleaseLease(), "Give the lease back")
        elif state.lease.holder is None:
            self.act(state.name, TakeLease(), "Take the lease")
        else:
            holder = state.lease.holder
            self.ask(
                lambda _: for_lease(state),
                lambda _: TakeLease(seize=True),
                moot=lambda: "" if self._now(state).lease.holder == holder else "The lease has another holder, or none",
            )
