"""Change a server: choose a preset, see what it changes and whether it fits, apply it, and follow what happens."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.timer import Timer

from tuner.core import runs
from tuner.domain.state import HostState, ServerState
from tuner.messages import KeepRequested, PresetsArrived, PresetsRequested, TuneArrived, TuneRequested
from tuner.screens.tune_actions import TuneActions
from tuner.widgets.field import Field
from tuner.widgets.rows import Rows
from tuner.widgets.run_panel import news
from tuner.widgets.spans import Line, clean, clip_line
from tuner.widgets.tune_knobs import knob_lines
from tuner.widgets.tune_list import BARE, ids_of, list_lines, matching
from tuner.widgets.tune_page import Section, View, page, sections, shown_run, tab_line
from tuner.widgets.tune_text import title_lines

WIDE_FROM = 120
"""Columns from which on the presets stand beside the sections."""
_LEFT, _LEFT_MOST, _LEFT_SHARE = 40, 60, 0.34
"""Width of the presets beside the sections, in cells, and its share of the terminal."""
_REST_S = 0.5
"""Seconds for which a choice rests before the host is asked about it."""
_LONG = ("run", "forecast", "checks")
"""Sections that leave only three lines to the list of presets on a narrow terminal, so that they fit."""
_REACH = 5
"""Completions that a page key goes past."""
_LEAST = 8
"""Lines that the title of a choice leaves to the list of presets and to the section."""
_LIST = 7
"""Most lines of the list of presets on a narrow terminal, with its heading."""


class TuneScreen(TuneActions):
    """Presets on the left; what the chosen one changes, whether it fits, checks and command on the right."""

    DEFAULT_CSS = """
    TuneScreen {
        #tune-body { height: 1fr; layout: vertical; }
        #tune-left { height: auto; width: 1fr; }
        #tune-right { height: 1fr; width: 1fr; }
        #tune-body.-wide { layout: horizontal; }
        #tune-body.-wide #tune-left { height: 1fr; border-right: solid $foreground 20%; }
        #tune-box { height: 1fr; scrollbar-size-vertical: 1; }
        #tune-tabs { background: $surface; }
        #entry-line { height: auto; }
        #entry { height: 1; width: 1fr; border: none; }
        #entry, #entry-name, #hints { background: $panel; }
    }
    """
    AUTO_FOCUS = ""
    """No input is focused at first: keys choose presets."""
    ENTRY = "tune"
    HELP_TITLE = "Tune"
    COPIES = "the command"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", "Apply", key_display="enter", id="tune.apply", tooltip="Check, ask, then switch"),
        Binding("K", "cancel", "Cancel", id="tune.cancel", tooltip="Cancel the change that goes on"),
        Binding("f", "option('finish')", "Finish", id="tune.finish", tooltip="Finish or adopt an interrupted change"),
        Binding("B", "back", "Go back", id="tune.back", tooltip="Start again what was good last"),
        Binding("C", "option('clean')", "Clean up", id="tune.clean", tooltip="End what a stopped server left behind"),
        Binding("v", "why", "Why", id="tune.why", tooltip="Why the start of the last change failed"),
        Binding("F", "overrule", "Overrule", id="tune.overrule", tooltip="Try it though the forecast says no"),
        Binding("n", "add", "Knob", id="tune.add", tooltip="Change a knob by hand, beside the preset"),
        Binding("w", "save", "Save", id="tune.save", tooltip="Save preset and knobs changed by hand as a new preset"),
        Binding("S", "stop", "Stop", id="tune.stop", tooltip="Stop the server and start nothing"),
        Binding("D", "dry_run", "Dry run", id="tune.dry-run", tooltip="Show the steps and the command; do nothing"),
        Binding("r", "recipe", "Recipe", id="tune.recipe", tooltip="Keep how this server is started; or choose one"),
        Binding("L", "lease", "Lease", id="tune.lease", tooltip="Take the right to change the host, or give it back"),
        Binding("slash", "filter", "Find", key_display="/", id="tune.find", tooltip="Show only presets with this text"),
        Binding("tab", "section(1)", "Next part", show=False, id="tune.next", tooltip="The next part"),
        Binding("shift+tab", "section(-1)", "Part before", show=False, id="tune.previous", tooltip="The part before"),
        Binding("up,k", "move(-1)", "Up", show=False, id="tune.up", tooltip="The preset or knob above"),
        Binding("down,j", "move(1)", "Down", show=False, id="tune.down", tooltip="The preset or knob below"),
        Binding("right", "turn(1)", "More", show=False, id="tune.more", tooltip="Next greater value of the knob"),
        Binding("left", "turn(-1)", "Less", show=False, id="tune.less", tooltip="Next smaller value of the knob"),
        Binding("e", "edit", "Type", show=False, id="tune.edit", tooltip="Type a value for the knob"),
        Binding("delete,backspace", "remove", "Remove", show=False, id="tune.remove", tooltip="Leave the knob alone"),
        Binding("p", "reorder(-1)", "Higher", show=False, id="tune.higher", tooltip="Move the preset one number up"),
        Binding("P", "reorder(1)", "Lower", show=False, id="tune.lower", tooltip="Move the preset one number down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="tune.page-up", tooltip="A page of presets up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="tune.page-down", tooltip="A page of presets down"),
        Binding("home", "end(-1)", "First", show=False, id="tune.first", tooltip="The first preset: as it is"),
        Binding("end", "end(1)", "Last", show=False, id="tune.last", tooltip="The last preset"),
        Binding("ctrl+u", "scroll(-1)", "Scroll up", show=False, id="tune.scroll-up", tooltip="Scroll the parts up"),
        Binding("ctrl+d", "scroll(1)", "Scroll down", show=False, id="tune.scroll-down",
                tooltip="Scroll the parts down"),
        Binding("escape", "leave", "Leave", show=False, id="tune.leave", tooltip="Leave the line, or the filter"),
        Binding("0", "pick(0)", "No preset", show=False, id="tune.preset-0", tooltip="Choose no preset: as it is"),
        *(
            Binding(str(number), f"pick({number})", f"Preset {number}", show=False, id=f"tune.preset-{number}",
                    tooltip="Choose the preset with this number")
            for number in range(1, 10)
        ),
    ]  # fmt: skip

    def compose_content(self) -> ComposeResult:
        """Make the list of presets, the sections, and the line to type in."""
        yield Rows(id="status")
        yield Rows(id="tune-note")
        with Container(id="tune-body"):
            with Vertical(id="tune-left"):
                yield Rows(id="presets")
                yield Rows(id="by-hand")
            with Vertical(id="tune-right"):
                yield Rows(id="tune-title")
                yield Rows(id="tune-tabs")
                with VerticalScroll(id="tune-box", can_focus=False):
                    yield Rows(id="tune")
        yield Rows(id="hints")
        with Horizontal(id="entry-line"):
            yield Rows(id="entry-name")
            yield Field(id="entry", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        """Begin with what runs."""
        self._problems: tuple[str, ...] = ()
        self._filter = ""
        self._parts: list[Section] = []
        self._tops: dict[str, int] = {}
        self._rest: Timer | None = None
        self._run_seen = ""
        self.query_one("#entry").display = False

    # Drawing -----------------------------------------------------------------------------------------------------

    @property
    def wide(self) -> bool:
        """Return whether presets and sections stand side by side."""
        return self.size.width >= WIDE_FROM

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Ask what has to be known anew, and draw what has changed."""
        if state is None:
            return
        self.draw_status(state, server)
        self._ask_anew(state, server)
        stale, width, height = self.shell.stale(), self.size.width, self.size.height
        view = replace(self.view, can_act=not self.shell.hindrance())
        if view != self.view:
            self.view = view
            self.refresh_bindings()
        run = shown_run(state)
        moving = state.now if run is not None and news(state) is not None else None
        about: tuple[object, ...] = (server.phase, server.phases, server.identity) if server is not None else ()
        if run is not None and (failed := runs.failed_server(state, run)) is not None:
            about = (*about, failed.findings)
        mine = (self._filter, self.section, self.on_knobs, self._problems, self.recipe_at)
        if self.changed("tune", self.view, *mine, state.runs, state.lease, moving, *about, width, height, stale):
            self._show(state, server, width, height, dimmed=stale)

    def _show(self, state: HostState, server: ServerState | None, width: int, height: int, *, dimmed: bool) -> None:
        note = self._note(width)
        self.query_one("#tune-note", Rows).show(note)
        self.query_one("#tune-body").set_class(self.wide, "-wide")
        beside = min(_LEFT_MOST, max(_LEFT, round(width * _LEFT_SHARE)))
        self.query_one("#tune-left").styles.width = beside if self.wide else "1fr"
        fixed = 3 + len(note) + sum(len(self.query_one(name, Rows).lines) for name in ("#tabs", "#replay", "#hints"))
        room = height - fixed - (len(self.query_one("#status", Rows).lines) - 1)
        self._show_left(beside - 2 if self.wide else width, room, dimmed=dimmed)
        right = width - beside - 1 if self.wide else width - 1
        title: list[Line] = []
        if self.wide or self.section != "run":
            # Where one chooses, no word is left out of why one would want it, or not: it may name a danger.
            most = room - _LEAST if self.section == "changes" or self.wide else 1 if self.section in _LONG else 2
            title = title_lines(self.view.choice, len(self.view.overrides), right, self.glyphs, most=most)
            title += [()] if self.wide else []
        self.query_one("#tune-title", Rows).show(title, dimmed=dimmed)
        listed = 0 if self.wide else len(self.query_one("#presets", Rows).lines) + 1
        rows = max(4, room - len(title) - listed)
        self._parts = sections(state, server, self.view, right, rows, self.glyphs, alone=not self.wide)
        names = [part.name for part in self._parts]
        if self.section not in names:
            self.section = "changes"
        tabs, tune = self.query_one("#tune-tabs", Rows), self.query_one("#tune", Rows)
        if self.wide:
            tabs.show([])
            lines, self._tops = page(self._parts, right, self.glyphs)
            tune.show(lines, dimmed=dimmed)
        else:
            tabs.show([tab_line(self._parts, self.section, width, self.glyphs)])
            section = next(part.lines for part in self._parts if part.name == self.section)
            tune.show(section, dimmed=dimmed)
            blank = rows - len(section)
            if blank > 0 or (blank < 0 and len(title) > 2):
                self._show_left(width, room, blank, dimmed=dimmed)

    def _show_left(self, width: int, room: int, blank: int = 0, *, dimmed: bool) -> None:
        """Show presets and knobs changed by hand.

        Args:
            width: Width of a line, in cells.
            room: Lines of the screen without its frame.
            blank: Lines that the section on a narrow terminal leaves free; below 0, lines that it lacks.
            dimmed: The numbers are stale.
        """
        presets, by_hand = self.query_one("#presets", Rows), self.query_one("#by-hand", Rows)
        view = self.view
        mine: list[Line] = []
        if self.wide:
            most = max(4, room // 3)
            mine = knob_lines(view.knobs, view.overrides, view.at, width, most, self.glyphs, active=self.on_knobs)
            mine = [(), *mine]
        running = self.has_preset
        narrow = 3 if self.section in _LONG else min(_LIST, max(3, room // 3))
        most = room - len(mine) if self.wide else max(3, narrow + blank)
        rows = list_lines(
            view.presets, view.chosen, running, width, most, self.glyphs, filter=self._filter, active=not self.on_knobs
        )
        presets.show(rows, dimmed=dimmed)
        by_hand.show(mine, dimmed=dimmed)

    @property
    def has_preset(self) -> str | None:
        """Return the id of the preset of the running server; empty for none, None without a server."""
        state, server = self.shell.snapshot, self.shell.server()
        if state is None or server is None or server.gone:
            return None
        return runs.preset_of(state, server)[0]

    def _note(self, width: int) -> list[Line]:
        """Return why nothing can be changed from here, and what is wrong with files of presets."""
        lines: list[Line] = []
        if why := self.shell.hindrance():
            hint: Line = () if self.shell.bound() else (("  L ", "busy"), ("takes over", "text"))
            lines.append(((f" {self.glyphs.warn} ", "warn"), (clean(why), "warn"), *hint))
        if self._problems:
            more = f" (and {len(self._problems) - 1} more)" if len(self._problems) > 1 else ""
            lines.append(((f" {self.glyphs.warn} ", "warn"), (f"{clean(self._problems[0])}{more}", "text")))
        return [clip_line(line, width - 1, self.glyphs.ellipsis) for line in lines]

    # Asking ------------------------------------------------------------------------------------------------------

    def _ask_anew(self, state: HostState, server: ServerState | None) -> None:
        belongs = (state.name, server.identity.key if server is not None else "")
        if belongs != self.of:
            if self.of is None or self.of[0] != belongs[0]:
                running = runs.preset_of(state, server)[0] if server is not None else ""
                self.view, self._filter = View(chosen=running), ""
            self.of, self.recipe_at = belongs, None
        engine = (server.identity.engine, server.version, server.settings) if server is not None else ()
        if self.changed("presets", *belongs, state.gpu_table, *engine):
            self.read_presets()
        about = (server.start, server.phase, server.gone, server.past) if server is not None else ()
        active = runs.active_run(state)
        if self.changed("basis", *belongs, *engine, *about, active.id if active else "", state.lease.mine):
            self.ask_tune()
        self._forget_ordered(state)
        run = news(state)
        if run is not None and run.id != self._run_seen:
            self._run_seen, self.section = run.id, "run"

    def read_presets(self) -> None:
        """Have the presets read again."""
        if self.of is not None:
            self.post_message(PresetsRequested(self, *self.of))

    def ask_tune(self) -> None:
        """Ask what the present choice would change; once it rests, ask the host as well."""
        if self.of is None:
            return
        self.view = replace(self.view, old=self.view.tuning is not None, checked=False, checking=False)
        self.post_message(TuneRequested(self, self.of[0], self.wish()))
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(_REST_S, self._ask_host)

    def _ask_host(self) -> None:
        state = self.shell.snapshot
        busy = state is not None and runs.active_run(state) is not None
        if self.of is not None and self.is_current and not self.shell.stale() and not busy:
            self.post_message(TuneRequested(self, self.of[0], self.wish(), check=True))

    def on_presets_arrived(self, message: PresetsArrived) -> None:
        """Show the presets, unless they are for another server."""
        message.stop()
        if self.of != (message.asked.host, message.asked.key):
            return
        kept = len(message.recipes)
        self.view = replace(self.view, presets=message.presets, knobs=message.knobs, recipes=kept)
        self.refresh_bindings()
        first = not self.recipes
        self.recipes, self._problems = message.recipes, message.problems
        chosen = self.view.chosen
        if chosen not in ("", BARE) and chosen not in {each.id for each in message.presets}:
            # Its file is gone or broken, or it is of another machine: what cannot be listed is not chosen.
            self.view = replace(self.view, chosen="")
            words = f"There is no preset {clean(chosen)} here (any more)"
            self.notify(words, severity="warning", timeout=6, markup=False)
            self.ask_tune()
        if first and message.recipes and not self.server_key:
            self.ask_tune()
        self.catch_up()

    def on_tune_arrived(self, message: TuneArrived) -> None:
        """Show what the choice would change, unless it is another by now."""
        message.stop()
        asked = message.asked
        if asked.purpose or self.of is None or (asked.host, asked.wish) != (self.of[0], self.wish()):
            return
        self.view = replace(
            self.view,
            tuning=message.tuning,
            error=message.error,
            old=False,
            checked=message.checked,
            checking=message.checking,
        )
        self.refresh_bindings()
        self.catch_up()

    # Choosing ----------------------------------------------------------------------------------------------------

    def action_pick(self, number: int) -> None:
        """Choose a preset by its number."""
        presets = self.view.presets
        if number <= len(presets):
            self.choose("" if number == 0 else presets[number - 1].id)

    def choose(self, preset: str) -> None:
        """Choose a preset by its id; empty: none."""
        if preset != self.view.chosen:
            self.view = replace(self.view, chosen=preset, ignore_forecast=False)
            self.query_one("#tune-box").scroll_to(y=0, animate=False)
            self.ask_tune()
            self.refresh_bindings()
        self.on_knobs = False
        if self.section in ("knobs", "run"):
            self.section = "changes"
        self.catch_up()

    def action_move(self, step: int) -> None:
        """Go to the preset or knob above or below; in the line to type in, to another completion."""
        if self.entry:
            self.move_pick(step)
        elif self.on_knobs and self.view.overrides:
            at = (self.view.at + step) % len(self.view.overrides)
            self.view = replace(self.view, at=at)
            self.catch_up()
        else:
            self._go(step)

    def _go(self, step: int) -> None:
        """Choose the entry of the list that is so many further down; not past its ends."""
        ids = ids_of(matching(self.view.presets, self._filter), self.has_preset)
        at = ids.index(self.view.chosen) if self.view.chosen in ids else 0
        self.choose(ids[min(max(0, at + step), len(ids) - 1)])

    def action_section(self, step: int) -> None:
        """Go to the next part: presets or knobs on a wide terminal, else a section."""
        if self.entry:
            self.move_pick(step)
        elif self.wide:
            self.on_knobs = not self.on_knobs
        elif self._parts:
            names = [part.name for part in self._parts]
            self.section = names[(names.index(self.section) + step) % len(names)]
            self.on_knobs = self.section == "knobs"
            self.query_one("#tune-box").scroll_to(y=0, animate=False)
        self.catch_up()

    def action_page(self, step: int) -> None:
        """Go through the presets by a page; scroll the sections while the arrow keys act on a knob."""
        if self.entry:
            self.move_pick(step * _REACH)
        elif self.on_knobs:
            self.action_scroll(step)
        else:
            self._go(step * max(1, len(self.query_one("#presets", Rows).lines) - 2))

    def action_end(self, step: int) -> None:
        """Go to the first or the last preset; to an end of the sections while the arrow keys act on a knob."""
        if self.on_knobs:
            box = self.query_one("#tune-box")
            box.scroll_to(y=box.max_scroll_y if step > 0 else 0, animate=False)
        else:
            self._go(step * (len(self.view.presets) + 1))

    def action_scroll(self, step: int) -> None:
        """Scroll the sections by a page."""
        box = self.query_one("#tune-box")
        box.scroll_relative(y=step * max(1, box.size.height - 2), animate=False)

    def action_filter(self) -> None:
        """Open the line for a text that the shown presets contain."""
        self.open_entry("filter", self._filter)

    def take_filter(self, text: str) -> None:
        """Show only presets with this text."""
        self._filter = text
        self.catch_up()

    def action_leave(self) -> None:
        """Close the line; then remove the filter."""
        if self.entry and self.entry != "filter":
            self.close_entry()
        else:
            self._filter = ""
            self.close_entry()
        self.catch_up()

    def action_reorder(self, step: int) -> None:
        """Move the chosen preset one place up or down, and keep that for this host."""
        presets = list(self.view.presets)
        at = next((at for at, each in enumerate(presets) if each.id == self.view.chosen), None)
        if at is None or self.of is None or not 0 <= at + step < len(presets):
            return
        presets.insert(at + step, presets.pop(at))
        self.view = replace(self.view, presets=tuple(presets))
        self.post_message(KeepRequested(self, self.of[0], order=[each.id for each in presets]))
        self.catch_up()
