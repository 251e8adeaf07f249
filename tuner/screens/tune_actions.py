"""What the keys of the Tune screen do: change values by hand, apply, cancel, go back, stop, save."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from tuner.core import runs
from tuner.core.recipes import read_recipe
from tuner.core.remedies import as_typed
from tuner.core.run_words import going_on
from tuner.domain.acts import EndLeftovers
from tuner.domain.knobs import KnobKind
from tuner.domain.planning import PlanKnob
from tuner.domain.preflight import Verdict
from tuner.domain.presets import ANY_ENGINE, Preset
from tuner.domain.recipe import Recipe
from tuner.domain.runs import ProcessId, RunOutcome, RunRecord
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Wish
from tuner.errors import TunerError
from tuner.messages import ActDone, KeepRequested, Kept, ScreenRequested, ServerRequested
from tuner.screens.dialogs import TextDialog
from tuner.screens.explain_requests import engines
from tuner.screens.tune_entry import TuneEntry
from tuner.widgets.confirm_text import for_option
from tuner.widgets.plan_fields import next_value
from tuner.widgets.spans import clean
from tuner.widgets.tune_list import BARE
from tuner.widgets.tune_page import View, dry_text, shown_run
from tuner.widgets.tune_text import command_text

_TRIED = frozenset({RunOutcome.READY, RunOutcome.FAILED, RunOutcome.BACK, RunOutcome.STOPPED})
"""Outcomes of runs that did what was ordered, or tried to; after the others the order may be given again."""
_COPIED = 100
"""Width of the steps of a dry run where they are copied, in cells."""


_FIRST = ("apply", "cancel", "finish", "back", "clean", "why")
_OTHERS = ("overrule", "add", "save", "stop", "dry-run", "recipe", "lease")
"""Keys that the key bar shows before those of other screens, the most important first; after a failed start log and
overview, which show what is left of it, stand between them."""


class TuneActions(TuneEntry):
    """The part of the Tune screen that acts."""

    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        """What the operator looks at."""
        self.of: tuple[str, str] | None = None
        """Host, and key of the server on screen (empty: none); None: nothing was drawn yet."""
        self.recipes: tuple[Recipe, ...] = ()
        self.recipe_at: int | None = None
        """Index of the recipe that the operator chose; None: the first where no server is known, else none."""
        self.section = "changes"
        self.on_knobs = False
        """The arrow keys act on the knobs changed by hand, and not on the presets."""
        self._ordered: tuple[str, Wish] | None = None
        """Id and wish of the run that was ordered here last, until it has ended; None: none is awaited."""

    def ask_tune(self) -> None:
        """Ask what the present choice would change."""

    # Which keys work --------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys that would do nothing now; grey those that somebody else's lease or `--read-only` forbids."""
        if not self.is_mounted:
            return super().check_action(action, parameters)
        state, server, view = self.shell.snapshot, self.shell.server(), self.view
        run = shown_run(state) if state is not None else None
        active = run is not None and going_on(run)
        left = runs.interrupted(state) if state is not None else ()
        options = [each.id for each in left[0].options] if left else []
        if action == "option":
            wanted = parameters[0] in options
            if parameters[0] == "clean" and state is not None:
                wanted = wanted or self.can_clean(state)
            return (True if view.can_act else None) if wanted else False
        if action == "cancel":
            return (True if view.can_act else None) if active else False
        if action in ("apply", "stop", "back"):
            wanted = view.tuning is not None if action == "apply" else state is not None and not active
            if action == "stop":
                wanted = wanted and server is not None and not server.gone
            if action == "back":
                wanted = wanted and (
                    "back" in options or (state is not None and runs.earlier(state, server) is not None)
                )
            return (True if view.can_act else None) if wanted and not active else False
        if action in ("turn", "edit", "remove"):
            return bool(view.overrides)
        if action == "why":
            return self.failed() is not None
        if action == "overrule":
            return self.overrulable()
        if action == "dry_run":
            return view.tuning is not None
        if action == "reorder":
            return view.chosen not in ("", BARE)
        if action == "add":
            return bool(view.knobs)
        if action == "filter":
            return bool(view.presets) and not self.entry
        return super().check_action(action, parameters)

    def idle_reason(self, action: str) -> str:
        """Return why a key is grey."""
        return self.shell.hindrance() if action in ("apply", "stop", "back", "cancel", "option") else ""

    def key_words(self) -> dict[str, str]:
        """Return what some keys do at present."""
        state = self.shell.snapshot
        mine = state is not None and state.lease.mine
        overruled = self.view.ignore_forecast
        return {
            "tune.lease": "Give lease back" if mine else "Lease",
            "tune.overrule": "Heed forecast" if overruled else "Overrule forecast",
        }

    def first_keys(self) -> tuple[str, ...]:
        """Return the ids of the keys that the key bar shows first, the most important first."""
        seen = ("screen.overview", "screen.logs") if self.failed() is not None else ()
        return (*(f"tune.{key}" for key in _FIRST), *seen, *(f"tune.{key}" for key in _OTHERS))

    # The choice --------------------------------------------------------------------------------------------------

    def wish(self) -> Wish:
        """Return what the operator has chosen: over the running server, or a start where none runs."""
        view, recipe = self.view, None
        if self.recipes and (not self.server_key or self.recipe_at is not None):
            recipe = self.recipes[min(self.recipe_at or 0, len(self.recipes) - 1)]
        return Wish(
            server=self.server_key,
            recipe=recipe,
            preset="" if view.chosen == BARE else view.chosen,
            bare=view.chosen == BARE,
            overrides=dict(view.overrides),
            ignore_forecast=view.ignore_forecast,
        )

    @property
    def server_key(self) -> str:
        """Return the key of the server on screen; empty without one."""
        return self.of[1] if self.of is not None else ""

    def knobs(self) -> dict[str, PlanKnob]:
        """Return all knobs of the version by canonical name."""
        return dict(self.view.knobs)

    def take_value(self, name: str, value: Any) -> None:
        """Change a knob by hand."""
        overrides = {**self.view.overrides, name: value}
        self.view = replace(self.view, overrides=overrides, at=list(overrides).index(name))
        self.on_knobs = True
        if self.section != "forecast":
            self.section = "knobs"
        self.ask_tune()
        self.refresh_bindings()
        self.catch_up()

    @property
    def _override(self) -> str:
        names = list(self.view.overrides)
        return names[min(self.view.at, len(names) - 1)] if names else ""

    def action_turn(self, step: int) -> None:
        """Give the chosen knob its next value."""
        knob = self.view.knobs.get(self._override)
        if knob is not None:
            value = next_value(knob, self.view.overrides[self._override], step)
            if value != self.view.overrides[self._override]:
                self.take_value(self._override, value)

    def action_add(self) -> None:
        """Open the line for the name of a knob."""
        self.open_entry("knob")

    def action_edit(self) -> None:
        """Open the line for a value of the chosen knob."""
        if (knob := self.view.knobs.get(self._override)) is not None:
            value = self.view.overrides[self._override]
            self.open_entry("value", "" if value is None else as_typed(value), knob)

    def action_remove(self) -> None:
        """Leave the chosen knob as the preset and the recipe have it."""
        overrides = {name: value for name, value in self.view.overrides.items() if name != self._override}
        self.view = replace(self.view, overrides=overrides, at=max(0, min(self.view.at, len(overrides) - 1)))
        self.on_knobs = self.on_knobs and bool(overrides)
        self.ask_tune()
        self.refresh_bindings()
        self.catch_up()

    def action_overrule(self) -> None:
        """Take a forecast that does not fit as a warning, or as a refusal again."""
        self.view = replace(self.view, ignore_forecast=not self.view.ignore_forecast)
        self.ask_tune()
        self.catch_up()

    def on_act_done(self, message: ActDone) -> None:
        """Remember what was ordered, so that it is not meant again once it has ended."""
        if message.run and not message.error and isinstance(message.asked.what, Wish):
            self._ordered = message.run, message.asked.what

    def _forget_ordered(self, state: HostState) -> None:
        """Take back the overruled forecast and the knobs by hand of a run that has ended: they were meant for it."""
        if self._ordered is None:
            return
        name, wish = self._ordered
        run = next((each for each in state.runs if each.id == name), None)
        if run is None or run.outcome is RunOutcome.RUNNING:
            return
        self._ordered = None
        if run.outcome not in _TRIED:
            return
        kept = {knob: value for knob, value in self.view.overrides.items() if wish.overrides.get(knob, ...) != value}
        if kept == self.view.overrides and not self.view.ignore_forecast:
            return
        self.view = replace(self.view, overrides=kept, at=0, ignore_forecast=False)
        self.on_knobs = self.on_knobs and bool(kept)
        self.ask_tune()
        self.refresh_bindings()

    def overrulable(self) -> bool:
        """Return whether the forecast refuses the choice, or was overruled."""
        tuning = self.view.tuning
        checks = tuning.checks if tuning is not None else ()
        return self.view.ignore_forecast or any(e.id == "memory" and e.verdict is Verdict.FAIL for e in checks)

    # Acts --------------------------------------------------------------------------------------------------------

    def action_apply(self) -> None:
        """Have the choice checked by the host, and ask whether it is meant."""
        self.propose(self.wish())

    def action_stop(self) -> None:
        """Propose to stop the server and to start nothing."""
        server = self.shell.server()
        if server is not None and not server.gone:
            self.propose(Wish(server=server.identity.key, start=False))

    def action_back(self) -> None:
        """Propose to start again what was good last, or what an interrupted change would go back to."""
        state = self.shell.snapshot
        left = runs.interrupted(state) if state is not None else ()
        if any(each.id == "back" for one in left[:1] for each in one.options):
            self.take_option("back")
        else:
            self.go_back()

    def action_cancel(self) -> None:
        """Propose to cancel the change that goes on."""
        state = self.shell.snapshot
        run = runs.active_run(state) if state is not None else None
        if state is not None and run is not None:
            self.cancel_run(run)

    def action_option(self, option: str) -> None:
        """Propose to finish an interrupted change, or to clean up after a stop."""
        state = self.shell.snapshot
        if state is None:
            return
        left = runs.interrupted(state)
        if left and any(each.id == option for each in left[0].options):
            self.take_option(option)
        elif option == "clean" and (run := shown_run(state)) is not None and self.may_act():
            self._clean_up(state, run)

    def _clean_up(self, state: HostState, run: RunRecord) -> None:
        ours = tuple(
            ProcessId(pid=each.pid, start_ticks=each.start_ticks, uid=each.uid, title=each.title)
            for each in run.leftovers
            if each.ours
        )
        if ours:
            words = f"end {', '.join(f'pid {each.pid}' for each in ours)}: TERM, then KILL, each checked first"
            found = f"{len(ours)} left over of the stopped server"
            self.ask(lambda _: for_option(state, found, words), lambda _: EndLeftovers(run=run.id, processes=ours))

    def can_clean(self, state: HostState) -> bool:
        """Return whether processes of a stopped server are left that may be ended."""
        run = shown_run(state)
        return run is not None and not going_on(run) and any(each.ours for each in run.leftovers)

    def failed(self) -> ServerState | None:
        """Return the server whose start failed in the change that is shown; None without one."""
        state = self.shell.snapshot
        run = shown_run(state) if state is not None else None
        return runs.failed_server(state, run) if state is not None and run is not None else None

    def action_why(self) -> None:
        """Show why the start of the last change failed."""
        if (server := self.failed()) is not None:
            self.post_message(ServerRequested(server.identity.key))
            self.post_message(ScreenRequested("findings"))

    def action_lease(self) -> None:
        """Take the right to change the host, give it back, or propose to take it over."""
        self.take_lease()

    def action_dry_run(self) -> None:
        """Show the steps and the command of the choice, and do nothing."""
        tuning = self.view.tuning
        if tuning is None:
            return
        command = command_text(tuning.launch) if tuning.launch is not None else ""
        title = "What would be done" if tuning.order is not None else "Why it is refused"

        def text(width: int) -> str:
            return dry_text(tuning, command, width, self.glyphs)

        self.app.push_screen(TextDialog(title, text(_COPIED), "Nothing was sent to the host.", text))

    # What is kept ------------------------------------------------------------------------------------------------

    def action_save(self) -> None:
        """Open the line for the name of a new preset, unless it would be empty."""
        if self.view.overrides or self.view.chosen not in ("", BARE):
            self.open_entry("preset")
        else:
            words = "Nothing to save: change a knob (n) or choose a preset first"
            self.notify(words, severity="warning", timeout=5, markup=False)

    def action_recipe(self) -> None:
        """Keep how the server on screen is started; where that is not known or none runs, choose a recipe."""
        server, tuning = self.shell.server(), self.view.tuning
        unknown = tuning is not None and tuning.launch is None
        if server is not None and not (self.recipes and (server.gone or unknown)):
            self.open_entry("recipe")
        elif self.recipes:
            self.open_entry("start")
        else:
            self.notify("No recipe is kept for this host: gputuner recipe writes one", severity="warning", timeout=5)

    def kept(self) -> tuple[Recipe, ...]:
        """Return the recipes that are kept for this host."""
        return self.recipes

    def take_recipe(self, name: str) -> None:
        """Start with a recipe."""
        self.recipe_at = next(at for at, each in enumerate(self.recipes) if each.name == name)
        self.ask_tune()
        self.catch_up()

    def take_name(self, purpose: str, name: str, rest: str) -> None:
        """Save the choice as a preset, or how the server is started as a recipe."""
        state, server = self.shell.snapshot, self.shell.server()
        if state is None:
            return
        if purpose == "preset":
            preset, shown = self._new_preset(name, rest, server), [each.id for each in self.view.presets]
            self.post_message(KeepRequested(self, state.name, preset=preset, order=shown))
        elif server is not None and (engine := engines().get(server.identity.engine)) is not None:
            try:
                recipe = read_recipe(state, server, engine, name)
            except TunerError as error:
                self.notify(clean(str(error)), severity="error", timeout=8, markup=False)
                return
            self.post_message(KeepRequested(self, state.name, recipe=recipe))

    def _new_preset(self, name: str, why: str, server: ServerState | None) -> Preset:
        view = self.view
        args: dict[str, Any] = {}
        env: dict[str, str] = {}
        unset: list[str] = []
        for knob, value in view.overrides.items():
            each = view.knobs.get(knob)
            if value is None:
                unset.append(knob)
            elif each is not None and each.knob.kind is KnobKind.ENV:
                env[knob] = ("1" if value else "0") if isinstance(value, bool) else as_typed(value)
            else:
                args[knob] = value
        where = self.shell.snapshot.name if self.shell.snapshot is not None else ""
        return Preset(
            id=name,
            title=why or name,
            engine=server.identity.engine if server is not None else ANY_ENGINE,
            why=why or f"Saved on {clean(where)}, {time.strftime('%Y-%m-%d')}",
            extends=(view.chosen,) if view.chosen not in ("", BARE) else (),
            args=args,
            env=env,
            unset=tuple(unset),
        )

    def on_kept(self, message: Kept) -> None:
        """Tell what was saved, and list a new preset."""
        message.stop()
        if message.error:
            self.notify(clean(message.error), severity="error", timeout=10, markup=False)
        elif message.words:
            self.notify(clean(message.words), timeout=6, markup=False)
        if message.asked.preset is not None and not message.error:
            self.read_presets()

    def read_presets(self) -> None:
        """Have the presets read again."""

    def copy_text(self) -> str:
        """Return the exact command."""
        tuning = self.view.tuning
        return command_text(tuning.launch) if tuning is not None and tuning.launch is not None else ""
