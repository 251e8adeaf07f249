"""The terminal application: holds the sessions, pumps their states to the screens, carries intents back.

The only writer of `snapshots`. No domain logic: what a key means is decided in screens, what happens in sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from textual import on
from textual.actions import parse
from textual.binding import Binding, BindingType
from textual.worker import Worker, WorkerState

from tuner import messages
from tuner.domain.link import HostKeyQuestion, LinkPhase, Question
from tuner.domain.state import HostState
from tuner.screens import SCREENS, replay, requests
from tuner.screens.ahead import Ahead, collect
from tuner.screens.base import fits
from tuner.screens.commands import HostCommands, KeyCommands, Palette, ScreenCommands, SearchCommands, ThemeCommands
from tuner.screens.dialogs import ErrorDialog, HostKeyDialog, SecretDialog
from tuner.screens.explain_requests import ReadStarts
from tuner.screens.help import IN_A_LOG, HelpScreen, all_keys
from tuner.screens.replay import Player
from tuner.screens.requests import SessionLike
from tuner.screens.shell import Shell, free_name
from tuner.screens.tune_requests import Bench, Library

Ask = Callable[[Question], Awaitable[str | None]]


def _named(state: HostState, name: str) -> HostState:
    return state if state.name == name else msgspec.structs.replace(state, name=name)


class TunerApp(Shell):
    """The Textual application.

    Args:
        sessions: One per host, or a function that is given `ask` and returns them.
        ascii: Draw without box and block characters.
        theme: Name of a theme; ours is the default.
        keymap: Keys by binding id, instead of the default ones.
        clock: Seconds, monotonic; tests give their own.
        read_starts: Reads the starts in a log file of this machine, by its path.
        library: The operator's presets and recipes on this machine; None: there are none.
        ahead_s: Seconds after the first state at which the other screens are built; None: each when first shown.
    """

    TITLE = "gputuner"
    CSS_PATH = Path(__file__).with_name("theme.tcss")
    MODES: ClassVar = {entry.name: entry.screen for entry in SCREENS}
    DEFAULT_MODE = SCREENS[0].name
    COMMANDS: ClassVar = {ScreenCommands, HostCommands, KeyCommands, SearchCommands, ThemeCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(entry.key, f"show('{entry.name}')", entry.title, id=f"screen.{entry.name}", tooltip=entry.help)
            for entry in SCREENS
        ),
        Binding("left_square_bracket", "host(-1)", "Last host", show=False, id="host.previous", tooltip="Host before"),
        Binding("right_square_bracket", "host(1)", "Next host", show=False, id="host.next", tooltip="The next host"),
        Binding("R", "reconnect", "Reconnect", id="link.reconnect", tooltip="Try the link to this host now"),
        *replay.KEYS,
        Binding("question_mark", "help", "Help", key_display="?", id="help", tooltip="All keys"),
        Binding("q", "quit", "Quit", id="quit", tooltip="Leave; nothing on the host changes"),
    ]  # fmt: skip

    def __init__(
        self,
        sessions: Sequence[SessionLike] | Callable[[Ask], Sequence[SessionLike]],
        *,
        ascii: bool = False,  # noqa: A002
        theme: str | None = None,
        keymap: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        read_starts: ReadStarts | None = None,
        library: Library | None = None,
        ahead_s: float | None = None,
    ) -> None:
        super().__init__(ascii=ascii, theme=theme, keymap=keymap, clock=clock)
        made = sessions(self.ask) if callable(sessions) else sessions
        self.sessions: dict[str, SessionLike] = {}
        for session in made:
            self.sessions[free_name(session.state.name, self.sessions)] = session
        self.snapshots = {name: _named(session.state, name) for name, session in self.sessions.items()}
        self.host = next(iter(self.sessions), "")
        self._asking = asyncio.Lock()
        self.read_starts = read_starts
        self.bench = Bench(library)
        self._ahead_s = ahead_s
        self.ahead = Ahead(self, [entry.name for entry in SCREENS])

    def player(self, host: str | None = None) -> Player | None:
        """Return the replay controls of a host (None: the host on screen); None if it is no recording."""
        session = self.sessions.get(self.host if host is None else host)
        return session.player if session is not None else None

    def read_only(self) -> bool:
        """Return whether the session of the host on screen may change nothing."""
        return self.host in self.sessions and self.sessions[self.host].read_only

    # Sessions ------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Start every session and its pump; one that fails does not stop the others."""
        self.snapshot = self.snapshots.get(self.host)
        for name, session in self.sessions.items():
            self.run_worker(session.run(), name=f"run {name}", group="session", exit_on_error=False)
            self.run_worker(self._pump(name, session), name=f"pump {name}", group="session", exit_on_error=False)
        self.set_interval(1.0, self._second, name="second")

    async def on_unmount(self) -> None:
        """Close every session."""
        await asyncio.gather(*(session.aclose() for session in self.sessions.values()), return_exceptions=True)

    async def _pump(self, name: str, session: SessionLike) -> None:
        async for state in session.snapshots():
            self.post_message(messages.SnapshotUpdated(name, _named(state, name)))

    def on_snapshot_updated(self, message: messages.SnapshotUpdated) -> None:
        """Store a host's newest state and show it; nothing else changes `snapshots`."""
        if self._ahead_s is not None and message.state.hello is not None:
            self.set_timer(self._ahead_s, self.ahead.begin, name="ahead")
            self._ahead_s = None
        self.keep(message.host, message.state)
        if message.host == self.host:
            self.server_key = self.chosen.get(self.host)
            self.snapshot = message.state
        else:
            self.tick += 1

    def _second(self) -> None:
        """Redraw ages and the replay position, which change although no event arrives; collect garbage."""
        collect()
        if self.age_s() is not None or self.player() is not None:
            self.tick += 1

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show the error of a failed worker."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            self.push_screen(ErrorDialog(event.worker.error))

    # Questions -----------------------------------------------------------------------------------------------

    async def ask(self, question: Question) -> str | None:
        """Ask the operator one question at a time and return the answer; None: given up."""
        async with self._asking:
            answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            self.post_message(messages.QuestionAsked(question, answer))
            return await answer

    def on_question_asked(self, message: messages.QuestionAsked) -> None:
        """Show the question; its answer goes back to whoever waits."""
        question, answer = message.question, message.answer
        if answer.done():
            return
        dialog = HostKeyDialog(question) if isinstance(question, HostKeyQuestion) else SecretDialog(question)
        answer.add_done_callback(lambda done: done.cancelled() and dialog.is_attached and dialog.withdraw())
        self.push_screen(dialog, lambda value: None if answer.done() else answer.set_result(value))

    # Intents of the screens ----------------------------------------------------------------------------------

    def on_host_requested(self, message: messages.HostRequested) -> None:
        """Show another host."""
        if message.host in self.sessions:
            self.host = message.host
            self.server_key = self.chosen.get(self.host)
            self.snapshot = self.snapshots[self.host]
            self.tick += 1
            self.refresh_bindings()

    def on_server_requested(self, message: messages.ServerRequested) -> None:
        """Show another server of this host."""
        self.chosen[self.host] = message.key
        self.server_key = message.key

    async def on_screen_requested(self, message: messages.ScreenRequested) -> None:
        """Show another screen."""
        await self.action_show(message.name)

    @on(messages.Asked)
    def _answer(self, message: messages.Asked) -> None:
        """Answer in the background; a newer question of a topic ends the one before."""
        # A function and not a coroutine: a question may be replaced before its answer has begun.
        session = self.sessions[message.host]
        work: Any = partial(requests.answer, session, message, self.read_starts, self.bench)
        self.run_worker(work, name=message.topic, group=message.topic, exclusive=True, exit_on_error=False)

    # Keys ----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether an action can be carried out now; the keys of others are hidden."""
        if action == "replay_again":
            return self.ended()
        if action.startswith("replay_"):
            return self.player() is not None
        if action == "host":
            return len(self.sessions) > 1
        if action == "reconnect":
            lost = self.snapshot is not None and self.snapshot.link.phase not in (LinkPhase.UP, LinkPhase.CONNECTING)
            return lost and self.player() is None
        return True

    async def action_show(self, name: str) -> None:
        """Show a screen."""
        await self.switch_mode(name)

    def action_host(self, step: int) -> None:
        """Show the host that is `step` places further, cyclically."""
        names = list(self.sessions)
        self.post_message(messages.HostRequested(names[(names.index(self.host) + step) % len(names)]))

    def action_reconnect(self) -> None:
        """Try the link to this host now."""
        self.sessions[self.host].reconnect()

    def action_replay_again(self) -> None:
        """Play a replay again that has ended."""
        self.action_reconnect()

    def action_help(self) -> None:
        """Show all keys that do something now, those of this screen first."""
        here = next(entry for entry in SCREENS if entry.name == self.current_mode)
        first = [here.screen.HELP_TITLE, *([IN_A_LOG] if here.name == "logs" else [])]
        ours = [each for each in self.BINDINGS if isinstance(each, Binding)]
        idle = [each.id or "" for each in ours if not self.check_action(*parse(each.action)[1:])]
        self.push_screen(HelpScreen(all_keys(self.BINDINGS, self.keymap, first=first, without=idle)))

    def action_command_palette(self) -> None:
        """Open the command palette of the screen; a help screen on top of it is closed first."""
        if isinstance(self.screen, HelpScreen):
            self.pop_screen()
        if fits(self.size) and not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def watch_snapshot(self, old: HostState | None, new: HostState | None) -> None:
        """Show or hide the keys that depend on the link when its phase changes."""
        if old is None or new is None or old.link.phase is not new.link.phase:
            self.refresh_bindings()
