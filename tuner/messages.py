"""Every message between widgets, screens and the app. Facts are in the past tense, intents end in Requested."""

from __future__ import annotations

import asyncio

from textual.message import Message
from textual.message_pump import MessagePump

from tuner.core.doctor import Check
from tuner.domain.link import Question
from tuner.domain.logs import LogHit, LogLine
from tuner.domain.state import HostState


class SnapshotUpdated(Message):
    """A host has a newer state. Replaces an older one of the same host that was not handled yet."""

    def __init__(self, host: str, state: HostState) -> None:
        super().__init__()
        self.host = host
        self.state = state

    def can_replace(self, message: Message) -> bool:
        """Newest wins, per host."""
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


class SearchRequested(Message):
    """Search the whole log on the host; `SearchProgressed` goes to `reply_to`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str, pattern: str, *, regex: bool = False) -> None:
        super().__init__()
        self.reply_to = reply_to
        self.host = host
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
        """What this answers: hits of an older search may still be on their way."""
        self.hits = hits
        self.scanned_bytes = scanned_bytes
        self.done = done
        self.error = error


class LogPartRequested(Message):
    """Fetch a part of the log from the host; `LogPartArrived` goes to `reply_to`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str, offset: int, length: int, purpose: str) -> None:
        super().__init__()
        self.reply_to = reply_to
        self.host = host
        self.key = key
        self.offset = offset
        self.length = length
        self.purpose = purpose
        """Comes back with the answer."""


class LogPartArrived(Message):
    """Lines of a part of the log; the torn ones at its ends are left out."""

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


class ChecksRequested(Message):
    """Ask the host what `doctor` asks; `ChecksArrived` goes to `reply_to`."""

    def __init__(self, reply_to: MessagePump, host: str) -> None:
        super().__init__()
        self.reply_to = reply_to
        self.host = host


class ChecksArrived(Message):
    """What works on the host, and what does not."""

    def __init__(self, checks: tuple[Check, ...], error: str | None = None) -> None:
        super().__init__()
        self.checks = checks
        self.error = error


class LogMoved(Message):
    """The log view shows another place, or follows or no longer follows."""


class OlderLinesRequested(Message):
    """The log view has reached its oldest line."""


class NewerLinesRequested(Message):
    """The log view has reached the last line of a part that is shown apart from the live end."""


class LineOpened(Message):
    """A log line is to be shown in full."""

    def __init__(self, line: LogLine, ranks: tuple[str, ...]) -> None:
        super().__init__()
        self.line = line
        self.ranks = ranks
