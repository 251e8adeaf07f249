"""What the core asks of an engine. Implementations live in `tuner.engines`; the core imports none of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from tuner.core.knobs import KnobTable
from tuner.domain.behaviour import Behaviour
from tuner.domain.events import HttpAnswer
from tuner.domain.forecast import Effective, Forecast
from tuner.domain.gates import GateRules
from tuner.domain.knobs import Spelling
from tuner.domain.layout import Layout
from tuner.domain.logs import Level, LogFact
from tuner.domain.plan import EnginePlan
from tuner.domain.readings import Reading
from tuner.domain.recipe import CommandLine
from tuner.domain.server import ServerIdentity
from tuner.domain.starts import Sign, Start


class LinePrefix(Struct, frozen=True, gc=False):
    """The prefix of a log line."""

    rank: str | None
    """Tag of the rank that printed the line; None if there is none."""
    at: float | None
    """Log time, seconds since an epoch of the log's zone; None if the line has none."""
    message_start: int
    """Index in the text at which the message begins."""
    level: Level | None = None
    prefixed: bool = True
    """False: the line has no prefix and belongs to the line before, unless it is a known raw line."""
    actor: str = ""
    """The process that printed it, where the engine names it: `EngineCore_DP0`, `APIServer`."""
    source: str = ""
    """Source position in the engine's code, `core.py:515`, if all lines of one record repeat it."""


class RankPlace(Struct, frozen=True, kw_only=True):
    """A rank, its process, and the GPU assigned to it."""

    tag: str
    pid: int | None = None
    visible_index: int | None = None
    """Index into the process's visible devices by the engine's placement formula; the driver's process list wins."""


class Engine(Protocol):
    """One inference engine, all versions. Lines and answers of unknown versions give less, never an error."""

    def __hash__(self) -> int:
        """Hash by identity, so that results can be cached by engine."""

    name: str
    """Id: `sglang`, `vllm`."""
    title: str
    """Name for people: `SGLang`, `vLLM`."""

    def plan(self) -> EnginePlan:
        """Return what the probe looks for and asks."""

    def prefix(self, text: str) -> LinePrefix:
        """Split a line (control sequences already stripped) into prefix and message."""

    def message(self, text: str, prefix: LinePrefix) -> str:
        """Return a line's text without its prefix; if the line is a JSON object, the message in it."""

    def level(self, message: str) -> Level:
        """Return the severity of a message whose prefix tells none."""

    def interesting(self, text: str) -> bool:
        """Return whether `facts` could recognise a line: a cheap test that most lines of a busy log fail."""

    def routine(self) -> bytes:
        """Return the regular expression of routine lines, for `core.sift`.

        It matches whole lines, with prefix and without line end, so strictly that a line with other text torn into it
        does not match. What it matches does not depend on digits.
        """

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> Sequence[LogFact]:
        """Return the facts that a line states, usually none or one; `core.facts` lists the kinds."""

    def signs(self, message: str, *, prefixed: bool) -> Sequence[Sign]:
        """Return the signs in a message, in the order of the data files; usually none.

        Args:
            message: A line without its prefix, or all lines of one record or exception, joined by line ends.
            prefixed: Whether it had a prefix.

        Returns:
            Signs whose place, rank and time are not filled in: a message does not know them.
        """

    def ranks(self, identity: ServerIdentity, settings: dict[str, Any]) -> Sequence[RankPlace]:
        """Return the ranks among a server's processes, in rank order, by title and arguments, never by guess."""

    def read(self, answer: HttpAnswer) -> Reading:
        """Interpret an HTTP answer. `answer.series` must hold all series known so far, not only changed ones."""

    def model(self, identity: ServerIdentity) -> str | None:
        """Return the LLM as the command line names it; None if it does not."""

    def settings_from_argv(self, identity: ServerIdentity) -> dict[str, Any]:
        """Return the server args on the command line by canonical (underscored) name, without defaults."""

    def command_line(self, argv: Sequence[str]) -> CommandLine:
        """Take a command line apart, so that no word is lost.

        Where it is not known how many values a flag takes, it has all words up to the next flag, as argparse has it for
        a command line that was accepted.
        """

    def knobs(self) -> KnobTable:
        """Return the knobs of the engine by canonical name."""

    def knob(self, name: str, version: str | None) -> Spelling | None:
        """Return how a version spells a knob; None if it has none. An unknown version gets the newest spelling."""

    def gates(self) -> GateRules:
        """Return the engine's all-reduce paths in the order in which it tries them, and their gates."""

    def behaviour(self) -> Behaviour:
        """Return how the engine behaves where no line of its log tells."""

    def effective_fraction(self, start: Start) -> Effective | None:
        """Return the memory fraction that was in effect, by arguments, pool or error text; None if nothing tells."""

    def cap(self, start: Start) -> str | None:
        """Return the knob that bounds a start's KV pool instead of the fraction; None if the fraction does."""

    def forecast(self, base: Start, changes: Mapping[str, Any], past: Sequence[Start] = ()) -> Forecast:
        """Forecast the memory of a start.

        Args:
            base: The start that is changed; best one that became ready.
            changes: Knobs that differ: canonical name to value; None lets the engine choose.
            past: Other starts of the same LLM on the same host, which make estimates better.
        """

    def layout(self, settings: dict[str, Any]) -> Layout:
        """Return the sizes of parallelism that server args ask for."""

    def infer_version(self, start: Start) -> tuple[str | None, bool]:
        """Return the version of a start, and True if it only follows from the wording of its log."""


def engine_by_program(argv: Sequence[str], engines: Mapping[str, Engine]) -> Engine | None:
    """Return the engine whose program a command line runs, as the probe recognises it; None if it is none of them.

    Engines share the names of many flags, so flags tell nothing.
    """
    line = " ".join(argv)
    matches = (each for each in engines.values() if any(re.search(leader, line) for leader in each.plan().leaders))
    return next(matches, None)
