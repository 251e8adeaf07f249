"""What the core asks of an engine. Implementations live in `tuner.engines`; the core imports none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from tuner.core.knobs import KnobTable
from tuner.domain.behaviour import Behaviour
from tuner.domain.events import HttpAnswer
from tuner.domain.forecast import Effective, Forecast
from tuner.domain.gates import GateRules
from tuner.domain.knobs import Spelling
from tuner.domain.logs import Level, LogFact
from tuner.domain.plan import EnginePlan
from tuner.domain.readings import Reading
from tuner.domain.server import ServerIdentity
from tuner.domain.starts import Sign, Start


class LinePrefix(Struct, frozen=True, gc=False):
    """What the prefix of a log line says."""

    rank: str | None
    at: float | None
    message_start: int
    """Index in the text at which the message begins."""
    level: Level | None = None
    prefixed: bool = True
    """False: a line without prefix, which belongs to the line before unless it is a known raw line."""
    actor: str = ""
    """The process that printed it, where the engine names it: `EngineCore_DP0`, `APIServer`."""
    source: str = ""
    """Where in the engine's code it was written, where all lines of one record repeat that: `core.py:515`."""


class RankPlace(Struct, frozen=True, kw_only=True):
    """A rank, the process that is it, and the GPU it was given."""

    tag: str
    pid: int | None = None
    visible_index: int | None = None
    """Index into the process's visible devices by the engine's placement formula; the driver's process list wins."""


class Engine(Protocol):
    """One inference engine, all versions. Lines and answers of unknown versions give less, never an error."""

    def __hash__(self) -> int:
        """By identity: what was read with one can be remembered."""

    name: str
    """`sglang`, `vllm`."""
    title: str
    """`SGLang`, `vLLM`."""

    def plan(self) -> EnginePlan:
        """What the probe looks for and asks."""

    def prefix(self, text: str) -> LinePrefix:
        """Split a line (control sequences already stripped) into prefix and message."""

    def message(self, text: str, prefix: LinePrefix) -> str:
        """What a line says without its prefix; out of its JSON object where it is one."""

    def level(self, message: str) -> Level:
        """Severity of a message whose prefix tells none."""

    def interesting(self, text: str) -> bool:
        """Cheap test whether `facts` could say anything; most lines of a busy log are not."""

    def routine(self) -> bytes:
        """Regular expression of the lines a busy log is full of and a diagnosis needs few of, for `core.sift`.

        It describes whole lines, with their prefix and without an end, so strictly that no line matches into which
        something else was written, and does not depend on digits.
        """

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> Sequence[LogFact]:
        """Recognise a line. Usually none or one fact, `core.facts` lists the kinds."""

    def signs(self, message: str, *, prefixed: bool) -> Sequence[Sign]:
        """What a message says that a diagnosis needs, in the order of the data files; usually nothing.

        Args:
            message: A line without its prefix, or all lines of one record or exception, joined by line ends.
            prefixed: Whether it had a prefix.

        Returns:
            Signs whose place, rank and time are not filled in: a message does not know them.
        """

    def ranks(self, identity: ServerIdentity, settings: dict[str, Any]) -> Sequence[RankPlace]:
        """The ranks among a server's processes, in rank order, by title and arguments, never by guess."""

    def read(self, answer: HttpAnswer) -> Reading:
        """What an HTTP answer means. `answer.series` holds all series known so far, not only changed ones."""

    def model(self, identity: ServerIdentity) -> str | None:
        """The LLM as named on the command line."""

    def settings_from_argv(self, identity: ServerIdentity) -> dict[str, Any]:
        """Server args that the command line gives, by canonical (underscored) name, before anything resolved them."""

    def knobs(self) -> KnobTable:
        """Everything that can be turned, by canonical name."""

    def knob(self, name: str, version: str | None) -> Spelling | None:
        """How a version spells a knob; None when it does not have it. An unknown version takes the newest spelling."""

    def gates(self) -> GateRules:
        """Its ways to add up a tensor in the order in which it tries them, and the gates before each."""

    def behaviour(self) -> Behaviour:
        """How it behaves where no line of its log tells."""

    def effective_fraction(self, start: Start) -> Effective | None:
        """The fraction of memory that a start really ran or failed with, where arguments, pool or error tell it."""

    def cap(self, start: Start) -> str | None:
        """The knob that bounds a start's KV pool in place of the fraction of memory; None where the fraction does."""

    def forecast(self, base: Start, changes: Mapping[str, Any], past: Sequence[Start] = ()) -> Forecast:
        """The memory of a start that has not happened.

        Args:
            base: A start it is made from; best one that became ready.
            changes: Knobs that differ: canonical name to value; None lets the engine choose.
            past: Other starts of the same LLM on the same host, which make estimates better.
        """

    def layout(self, settings: dict[str, Any]) -> tuple[int, int, int, bool]:
        """Sizes of tensor, pipeline and data parallelism, and whether replicas share the TP ranks (attention DP)."""

    def infer_version(self, start: Start) -> tuple[str | None, bool]:
        """The version of a start, and whether it follows from the wording of its log and from no statement."""
