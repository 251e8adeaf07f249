"""Every message between widgets, screens and the app. Facts are in the past tense, intents end in Requested."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from textual.message import Message
from textual.message_pump import MessagePump

from tuner.core.doctor import Check
from tuner.domain.comparison import Comparison
from tuner.domain.link import Question
from tuner.domain.logs import LogHit, LogLine
from tuner.domain.planning import Planned, StartChoice
from tuner.domain.state import HostState


class SnapshotUpdated(Message):
    """A host has a newer state. Replaces an older message of the same host that was not handled yet."""

    def __init__(self, host: str, state: HostState) -> None:
        super().__init__()
        self.host = host
        self.state = state

    def can_replace(self, message: Message) -> bool:
        """Return whether `message` is an older one of the same host."""
        return isinstance(message, SnapshotUpdated) and message.host == self.host


class QuestionAsked(Message):
    """A session wants to know something from the operator; the answer goes into `answer`."""

    def __init__(self, question: Question, answer: asyncio.Future[str | None]) -> None:
        super().__init__()
        self.question = question
        self.answer = answer


class HostRequested(Message):
    """Show this host."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host


class ServerRequested(Message):
    """Show this server of the host on screen."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class ScreenRequested(Message):
    """Show this screen of the registry."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class Asked(Message):
    """Base of questions whose answer goes to `reply_to`. A newer question of a topic cancels the running one."""

    def __init__(self, reply_to: MessagePump, host: str) -> None:
        super().__init__()
        self.reply_to = reply_to
        self.host = host

    @property
    def topic(self) -> str:
        """Name of the topic: of two questions with the same one only the newer is answered."""
        return type(self).__name__


class SearchRequested(Asked):
    """Search the whole log on the host; answered by `SearchProgressed`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str, pattern: str, *, regex: bool = False) -> None:
        super().__init__(reply_to, host)
        self.key = key
        self.pattern = pattern
        self.regex = regex


class SearchProgressed(Message):
    """Hits of a search on the host, newest first; the last message of a search has `done`."""

    def __init__(
        self,
        asked: SearchRequested,
        hits: tuple[LogHit, ...],
        scanned_bytes: int,
        *,
        done: bool,
        error: str | None = None,
    ) -> None:
        super().__init__()
        self.asked = asked
        """The search that this answers: hits of an older one may still arrive."""
        self.hits = hits
        self.scanned_bytes = scanned_bytes
        self.done = done
        self.error = error


class LogPartRequested(Asked):
    """Fetch a part of the log from the host; answered by `LogPartArrived`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str, offset: int, length: int, purpose: str) -> None:
        super().__init__(reply_to, host)
        self.key = key
        self.offset = offset
        self.length = length
        self.purpose = purpose
        """The caller's name for the request; it comes back with the answer."""

    @property
    def topic(self) -> str:
        """Name of the topic, one per purpose: parts for several purposes can be fetched at once."""
        return f"{type(self).__name__} {self.purpose}"


class LogPartArrived(Message):
    """Lines of a part of the log, without the torn ones at its ends."""

    def __init__(
        self,
        purpose: str,
        lines: tuple[LogLine, ...],
        *,
        offset: int = 0,
        end: int = 0,
        size: int = 0,
        error: str | None = None,
    ) -> None:
        super().__init__()
        self.purpose = purpose
        self.lines = lines
        self.offset = offset
        self.end = end
        self.size = size
        self.error = error


class ChecksRequested(Asked):
    """Ask the host what `doctor` asks; answered by `ChecksArrived`."""


class ChecksArrived(Message):
    """What works on the host, and what does not."""

    def __init__(self, checks: tuple[Check, ...], error: str | None = None) -> None:
        super().__init__()
        self.checks = checks
        self.error = error


class StartsRequested(Asked):
    """Ask what a server's start can be compared with; answered by `StartsArrived`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str) -> None:
        super().__init__(reply_to, host)
        self.key = key


class StartsArrived(Message):
    """Starts to compare with, the most useful first."""

    def __init__(self, asked: StartsRequested, choices: tuple[StartChoice, ...]) -> None:
        super().__init__()
        self.asked = asked
        self.choices = choices


class ComparisonRequested(Asked):
    """Hold a server's start against another one; answered by `ComparisonArrived`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str, choice: str) -> None:
        super().__init__(reply_to, host)
        self.key = key
        self.choice = choice
        """Id of a `StartChoice`."""


class ComparisonArrived(Message):
    """How two starts differ. `comparison` is None if they cannot be compared; `error` says why."""

    def __init__(
        self,
        asked: ComparisonRequested,
        comparison: Comparison | None,
        error: str = "",
        *,
        own_is_good: bool = False,
    ) -> None:
        super().__init__()
        self.asked = asked
        self.comparison = comparison
        self.error = error
        self.own_is_good = own_is_good
        """True: the server on screen is the baseline, because it worked and the other start did not."""


class ForecastRequested(Asked):
    """Ask for the memory of a start like a server's with some knobs changed; answered by `ForecastArrived`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str, changes: Mapping[str, Any]) -> None:
        super().__init__(reply_to, host)
        self.key = key
        self.changes = dict(changes)
        """Canonical name of a knob to its value; None leaves it to the engine."""


class ForecastArrived(Message):
    """The forecast of a start. `planned` is None if none can be made; `error` says why."""

    def __init__(self, asked: ForecastRequested, planned: Planned | None, error: str = "") -> None:
        super().__init__()
        self.asked = asked
        self.planned = planned
        self.error = error


class LogMoved(Message):
    """The log view was scrolled, or began or stopped to follow the live end."""


class OlderLinesRequested(Message):
    """The log view has reached its oldest line."""


class NewerLinesRequested(Message):
    """The log view has reached the last line of a part that is shown apart from the live end."""


class LineOpened(Message):
    """The operator opened a log line, to read it in full."""

    def __init__(self, line: LogLine, ranks: tuple[str, ...]) -> None:
        super().__init__()
        self.line = line
        self.ranks = ranks
