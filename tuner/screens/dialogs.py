"""Dialogs over a screen: questions and texts. Each returns an answer, and depends on no screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from tuner.domain.link import HostKeyQuestion, SecretQuestion
from tuner.domain.logs import Level, LogLine
from tuner.errors import TunerError
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.spans import clean, wrap_words

Answer = TypeVar("Answer")
WIDEST, FRAME = 110, 8
"""Width of a wide dialog, and what border, padding and scroll bar take of it, in cells."""
_TEXT, _AROUND = 20, 6
"""Most lines of a text that are seen at once; those of border, padding, and the title with its margin."""


def verbatim(text: str) -> Content:
    """Return a text that is never parsed as markup."""
    return Content(text)


class Modal(ModalScreen[Answer]):
    """A screen over another that closes only once, however many keys of a burst would close it."""

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        """Close with an answer; do nothing when closed already, or below another screen."""
        return super().dismiss(result) if self.app.screen_stack[-1:] == [self] else AwaitComplete()


class Dialog(Modal[str | None]):
    """A box in the middle of the screen; escape closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_up", "Close", id="dialog.close", tooltip="Close without an answer"),
    ]
    DEFAULT_CSS = """
    Dialog { align: center middle; }
    """
    withdrawn = False
    """True once the answer is no longer needed."""

    def withdraw(self) -> None:
        """Close without an answer, as soon as no other screen is on top."""
        self.withdrawn = True
        self.dismiss(None)

    def on_screen_resume(self) -> None:
        """Close if the dialog was withdrawn while another screen was on top."""
        if self.withdrawn:
            self.dismiss(None)

    def action_give_up(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the button's id."""
        self.dismiss(event.button.id)


class HostKeyDialog(Dialog):
    """Asks about an unknown host key: accept it once, save it, or refuse. Refuse is preselected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "o", "answer('once')", "Once", show=False, id="host-key.once", tooltip="Trust the key for this connection"
        ),
        Binding(
            "s",
            "answer('save')",
            "Save",
            show=False,
            id="host-key.save",
            tooltip="Trust it and write it to known_hosts",
        ),
        Binding("r", "answer('refuse')", "Refuse", show=False, id="host-key.refuse", tooltip="Do not connect"),
    ]

    def __init__(self, question: HostKeyQuestion) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """Make the text with the key and how to verify it, and the buttons."""
        question = self.question
        with Vertical(classes="dialog"):
            yield Static(verbatim(clean(question.title)), classes="dialog-title")
            yield Static(verbatim(f"Its {clean(question.key_type)} host key has not been seen before:"))
            yield Static(verbatim(f"\n  {clean(question.fingerprint)}\n"))
            yield Static(
                verbatim(
                    "Compare it with what the host itself says:\n  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
                )
            )
            with Horizontal(classes="dialog-buttons"):
                yield Button("Once (o)", id="once")
                yield Button("Save (s)", id="save")
                yield Button("Refuse (r)", id="refuse", variant="primary")

    def on_mount(self) -> None:
        """Focus the refusal, so that enter by mistake trusts no key."""
        self.query_one("#refuse").focus()

    def action_answer(self, answer: str) -> None:
        """Answer by a key."""
        self.dismiss(answer)

    def action_give_up(self) -> None:
        """Refuse: no answer counts as a refusal."""
        self.dismiss("refuse")


class SecretDialog(Dialog):
    """Asks for a password or passphrase, which is passed on and not stored."""

    def __init__(self, question: SecretQuestion) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """Make the host's own prompt and an input."""
        question = self.question
        with Vertical(classes="dialog"):
            yield Static(verbatim(clean(question.title)), classes="dialog-title")
            if question.attempt > 1:
                yield Static(verbatim(f"That was wrong. Attempt {question.attempt}:"))
            yield Static(verbatim(clean(question.prompt)))
            yield Input(password=not question.echo, id="secret")
            what = (
                "It unlocks the key on this machine, and is neither sent nor kept. Enter goes on, escape gives up."
                if question.kind == "passphrase"
                else "It is sent to the host and not kept. Enter sends, escape gives up."
            )
            yield Static(verbatim(what))

    def on_mount(self) -> None:
        """Focus the input."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Pass the typed text on."""
        self.dismiss(event.value)
        event.input.clear()


class TextDialog(Dialog):
    """Shows a text in full; y copies it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy", "Copy", id="dialog.copy", tooltip="Copy the text"),
        Binding("enter", "give_up", "Close", show=False, id="dialog.enter", tooltip="Close"),
    ]

    def __init__(self, title: str, text: str, hint: str = "", wrapped: Callable[[int], str] | None = None) -> None:
        """Make the dialog.

        Args:
            title: Its heading.
            text: What is shown and copied.
            hint: What to do about it.
            wrapped: Returns the text for a width in cells, with lines no wider; None: it is broken between words.
        """
        super().__init__()
        self.heading = title
        self.text = text
        self.hint = hint
        self._wrapped = wrapped

    def compose(self) -> ComposeResult:
        """Make the title, the text and the hint."""
        with Vertical(classes="dialog wide"):
            yield Static(verbatim(self.heading), classes="dialog-title")
            with VerticalScroll(classes="dialog-text"):
                yield Static(verbatim(self.text), id="text")
            if self.hint:
                yield Static(verbatim(f"\n{self.hint}"))
            yield Static(verbatim("\ny copies, escape closes"), classes="dialog-foot")

    def on_mount(self) -> None:
        """Focus the text, so that keys scroll it."""
        self.query_one(VerticalScroll).focus()

    def on_resize(self, event: events.Resize) -> None:
        """Break the lines anew for the new width, and leave room for what stands below the text."""
        width = max(24, min(WIDEST, int(event.size.width * 0.96)) - FRAME)
        if self._wrapped is not None:
            self.query_one("#text", Static).update(verbatim(self._wrapped(width)))
        below = 2 + (1 + len(wrap_words(self.hint, width)) if self.hint else 0)
        most = int(event.size.height * 0.9) - _AROUND - below
        self.query_one(VerticalScroll).styles.max_height = max(3, min(_TEXT, most))

    def action_copy(self) -> None:
        """Copy the text through the terminal."""
        self.app.copy_to_clipboard(self.text)
        self.notify("Copied", timeout=2)


class LineDialog(TextDialog):
    """Shows one log line in full, with its offset, level and ranks."""

    def __init__(self, line: LogLine, ranks: tuple[str, ...], glyphs: Glyphs) -> None:
        about = [
            f"byte {line.offset:,}",
            Level(line.level).name.lower() if line.level in Level.__members__.values() else "",
        ]
        if ranks:
            about.append(f"{glyphs.times}{len(ranks)}: {' '.join(ranks)}" if len(ranks) > 1 else ranks[0])
        super().__init__(f" {glyphs.separator} ".join(part for part in about if part), line.text)


class ErrorDialog(TextDialog):
    """Shows an error of ours: what happened, on what evidence, what to do."""

    def __init__(self, error: BaseException) -> None:
        if isinstance(error, TunerError):
            super().__init__(error.title, clean(error.detail) or "No more is known.", error.hint)
        else:
            text = f"{type(error).__name__}: {error}"
            super().__init__(
                "Something went wrong inside gputuner", text, "Please report this with the session's journal."
            )
