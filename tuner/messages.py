"""Every message between widgets, screens and the app. Facts are in the past tense, intents end in Requested."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from textual.message import Message
from textual.message_pump import MessagePump

from tuner.core.doctor import Check
from tuner.domain.acts import AnyAct
from tuner.domain.comparison import Comparison
from tuner.domain.link import Question
from tuner.domain.logs import LogHit, LogLine
from tuner.domain.planning import PlanKnob, Planned, StartChoice
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.domain.state import HostState
from tuner.domain.tuning import PresetChoice, Tuning, Wish


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


class PresetsRequested(Asked):
    """Ask for the presets and knobs for a server; answered by `PresetsArrived`."""

    def __init__(self, reply_to: MessagePump, host: str, key: str) -> None:
        super().__init__(reply_to, host)
        self.key = key
        """Key of the server; empty: the host has none."""


class PresetsArrived(Message):
    """The presets for a server in the operator's order, and all knobs of its version."""

    def __init__(
        self,
        asked: PresetsRequested,
        presets: tuple[PresetChoice, ...],
        knobs: Mapping[str, PlanKnob],
        recipes: tuple[Recipe, ...] = (),
        problems: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.asked = asked
        self.presets = presets
        self.knobs = knobs
        """By canonical name, with the values that the server has."""
        self.recipes = recipes
        """Recipes that are kept for this host."""
        self.problems = problems
        """What is wrong in files of presets, one line each."""


class TuneRequested(Asked):
    """Ask what a wish would change, and whether it can be done; answered by `TuneArrived`, with `check` twice."""

    def __init__(self, reply_to: MessagePump, host: str, wish: Wish, *, check: bool = False, purpose: str = "") -> None:
        super().__init__(reply_to, host)
        self.wish = wish
        self.check = check
        """True: also ask the host for the facts of the checks."""
        self.purpose = purpose
        """The caller's name for the request; it comes back with the answer."""

    @property
    def topic(self) -> str:
        """Name of the topic, one per purpose: what is shown may change while an answer is to be confirmed."""
        return f"{type(self).__name__} {self.purpose}"


class TuneArrived(Message):
    """A wish put together. `tuning` is None if that is not possible; `error` says why."""

    def __init__(
        self,
        asked: TuneRequested,
        tuning: Tuning | None,
        *,
        checked: bool = False,
        checking: bool = False,
        error: str = "",
    ) -> None:
        super().__init__()
        self.asked = asked
        self.tuning = tuning
        self.checked = checked
        """The checks rest on facts of the host."""
        self.checking = checking
        """The host is being asked; another answer follows."""
        self.error = error


class ActRequested(Asked):
    """Carry out what the operator has confirmed: an act, or a wish that becomes one; answered by `ActDone`."""

    _count = 0

    def __init__(self, reply_to: MessagePump, host: str, what: AnyAct | Wish, words: str) -> None:
        super().__init__(reply_to, host)
        self.what = what
        self.words = words
        """What was ordered, in words."""
        ActRequested._count += 1
        self._number = ActRequested._count

    @property
    def topic(self) -> str:
        """Name of the topic: one of its own, since an act is never replaced by a newer one."""
        return f"{type(self).__name__} {self._number}"


class ActDone(Message):
    """An act was carried out, or a run has begun; `error` says why not."""

    def __init__(self, asked: ActRequested, error: str = "", hint: str = "", run: str = "") -> None:
        super().__init__()
        self.asked = asked
        self.error = error
        self.hint = hint
        """The way out after an error, in one line."""
        self.run = run
        """Id of the run that began; empty: none."""


class KeepRequested(Asked):
    """Store something of the operator's on this machine; answered by `Kept`.

    What is None is left as it is.
    """

    def __init__(
        self,
        reply_to: MessagePump,
        host: str,
        *,
        preset: Preset | None = None,
        recipe: Recipe | None = None,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(reply_to, host)
        self.preset = preset
        self.recipe = recipe
        self.order = order
        """Ids of presets in the order of the number keys; with a preset, those that are shown before it is saved."""

    @property
    def topic(self) -> str:
        """Name of the topic, one for each kind of thing that is stored."""
        kind = "preset" if self.preset is not None else "recipe" if self.recipe is not None else "order"
        return f"{type(self).__name__} {kind}"


class Kept(Message):
    """Something of the operator's was stored; `error` says why not."""

    def __init__(self, asked: KeepRequested, words: str, error: str = "") -> None:
        super().__init__()
        self.asked = asked
        self.words = words
        """What was stored and where, in words; empty where that is no news."""
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
