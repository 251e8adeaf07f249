"""The line at the bottom of the Tune screen: filter, name and value of a knob, names under which things are saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.widgets import Input

from tuner.domain.planning import PlanKnob
from tuner.domain.recipe import Recipe
from tuner.screens.acting import Acting
from tuner.widgets.field import Field
from tuner.widgets.plan_fields import label_of, typed_value
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, clean, clip, text_width, wrap_words
from tuner.widgets.tune_knobs import completion_lines, completions, said_of_text, taken_apart
from tuner.widgets.tune_list import recipe_lines

_HINTS = {
    "filter": "presets with (enter: done, escape: all)",
    "knob": "name of a knob (up and down choose, enter takes it, escape leaves)",
    "preset": "name of the new preset, then why one would want it (enter saves, escape leaves)",
    "start": "which recipe starts it (up and down choose, enter takes it, escape leaves)",
    "recipe": "name of the recipe (enter saves, escape leaves)",
}
_NAMES = {"filter": "find", "knob": "knob", "preset": "save as", "start": "recipe", "recipe": "save as"}
"""What stands in front of the line while it is typed, by purpose."""


class TuneEntry(Acting):
    """The part of the Tune screen that takes text."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = ""
        """What is typed at present: a key of `_HINTS`, or `value`; empty: nothing."""
        self._knob: PlanKnob | None = None
        """The knob whose value is typed."""
        self._pick = 0
        """Index of the chosen completion."""

    # What the screen does with it --------------------------------------------------------------------------------

    def knobs(self) -> dict[str, PlanKnob]:
        """Return all knobs of the version by canonical name."""
        return {}

    def kept(self) -> tuple[Recipe, ...]:
        """Return the recipes that are kept for this host."""
        return ()

    def take_recipe(self, name: str) -> None:
        """Start with a recipe."""

    def present(self, name: str) -> Any:
        """Return the value that a knob would have now."""
        return None

    def take_filter(self, text: str) -> None:
        """Show only presets with this text."""

    def take_value(self, name: str, value: Any) -> None:
        """Change a knob by hand."""

    def take_name(self, purpose: str, name: str, rest: str) -> None:
        """Save a preset or a recipe under a name."""

    # The line ----------------------------------------------------------------------------------------------------

    def open_entry(self, purpose: str, text: str = "", knob: PlanKnob | None = None) -> None:
        """Open the line for a purpose."""
        field = self.query_one("#entry", Field)
        self.entry, self._knob, self._pick = "", knob, 0
        field.value = text
        field.placeholder = _HINTS.get(
            purpose, f"value of {label_of(knob)} (enter: done, escape: leave)" if knob else ""
        )
        # What is typed covers the placeholder: its name stays in front.
        name = clean(label_of(knob)) if purpose == "value" and knob is not None else _NAMES.get(purpose, "")
        self._show_name(name)
        self.entry = purpose
        field.display = True
        # The focus moves at once, because the next letter may already be on its way.
        self.set_focus(field)
        field.cursor_position = len(text)
        self.show_hints()
        self.refresh_bindings()

    def close_entry(self) -> None:
        """Close the line."""
        self.entry, self._knob = "", None
        self.query_one("#entry").display = False
        self._show_name("")
        self.query_one("#hints", Rows).show([])
        self.set_focus(None)
        self.refresh_bindings()

    def _show_name(self, name: str) -> None:
        """Show what is typed in front of the line; empty: nothing is."""
        name = clip(name, self.size.width // 2, self.glyphs.ellipsis)
        shown = self.query_one("#entry-name", Rows)
        shown.styles.width = text_width(name) + 2
        shown.display = bool(name)
        shown.show([((f" {name} ", "head"),)] if name else [])

    def show_hints(self) -> None:
        """Show the completions of a name, or what is said of a value."""
        text, width = self.query_one("#entry", Input).value, self.size.width
        lines: list[Line] = []
        if self.entry == "knob":
            lines = completion_lines(self.knobs(), text, self._pick, width, self.glyphs)
        elif self.entry == "start":
            lines = recipe_lines(self._recipes(text), self._pick, width, self.glyphs)
        elif self.entry == "value" and self._knob is not None:
            said = said_of_text(self._knob, text)
            sign = self.glyphs.bad if not said.good else self.glyphs.warn if said.style != "dim" else " "
            lines = [
                ((f" {sign} " if at == 0 else "   ", said.style), (chunk, said.style))
                for at, chunk in enumerate(wrap_words(said.text, width - 5)[:3])
            ]
        self.query_one("#hints", Rows).show(lines)

    def move_pick(self, step: int) -> None:
        """Choose another completion."""
        text = self.query_one("#entry", Input).value
        found: Sequence[object] = self._recipes(text)
        if self.entry != "start":
            found = completions(self.knobs(), taken_apart(self.knobs(), text)[0])
        if found:
            self._pick = min(max(0, self._pick + step), len(found) - 1)
            self.show_hints()

    def _recipes(self, text: str) -> list[Recipe]:
        """Return the recipes whose name contains a text."""
        return [each for each in self.kept() if text.strip().lower() in each.name.lower()]

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter, complete or check while the text is typed."""
        event.stop()
        if self.entry == "filter":
            self.take_filter(event.value)
        else:
            self._pick = 0
            self.show_hints()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        event.stop()
        text, purpose, knob = event.value.strip(), self.entry, self._knob
        if purpose == "knob":
            self._take_knob(event.value)
        elif purpose == "start":
            found = self._recipes(text)
            if found:
                self.close_entry()
                self.take_recipe(found[min(self._pick, len(found) - 1)].name)
        elif purpose == "value" and knob is not None and text:
            try:
                value = typed_value(knob, text)
            except ValueError as error:
                self.notify(f"{label_of(knob)}: {error}", severity="error", markup=False)
                return
            self.close_entry()
            self.take_value(knob.knob.name, value)
        elif purpose in ("preset", "recipe") and text:
            name, _, rest = text.partition(" ")
            self.close_entry()
            self.take_name(purpose, name.rstrip(":"), rest.strip())
        else:
            self.close_entry()

    def _take_knob(self, typed: str) -> None:
        """Go on with the value of the chosen knob; `name=value` and `name value` take both at once."""
        name, value = taken_apart(self.knobs(), typed)
        found = completions(self.knobs(), name)
        if not name or not found:
            return
        each = found[min(self._pick, len(found) - 1)]
        if not value:
            self.open_entry("value", knob=each)
            return
        try:
            taken = typed_value(each, value)
        except ValueError as error:
            self.notify(f"{clean(label_of(each))}: {error}", severity="error", markup=False)
            return
        self.close_entry()
        self.take_value(each.knob.name, taken)
