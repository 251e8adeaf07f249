"""What a judge has before it: one start, its root failure, and the means to cite, to reckon and to propose."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from tuner.core.causes import CAUSES, PHASES
from tuner.core.engine import Engine
from tuner.core.gates import Held, ways
from tuner.core.quantity import quantity, to_gib
from tuner.core.reading import serving_phase, start_phase
from tuner.core.roots import Root
from tuner.core.share import Share, share_of
from tuner.core.story import Layout
from tuner.domain.findings import MOST_EVIDENCE, Confidence, Evidence, Finding, Move, Number, Remedy, Severity
from tuner.domain.gates import AllReduce
from tuner.domain.starts import Figure, RankStory, Sign, Start

_UNIT_OF_ENGINE = "GB"
"""As engines print free memory; it is GiB."""


class Case:
    """One start on trial.

    Args:
        start: What its log tells.
        root: Its root failure; None where nothing failed.
        engine: Its engine.
        past: Good starts of the same LLM and host, newest first.
    """

    def __init__(self, start: Start, root: Root | None, engine: Engine, past: Sequence[Start] = ()) -> None:
        self.start = start
        self.root = root
        self.engine = engine
        self.past = past
        self.layout = Layout.of(engine, start.settings, [rank.tag for rank in start.ranks])
        self.share: Share | None = share_of(start)

    @functools.cached_property
    def held(self) -> Held:
        """What the rules about all-reduce are held against: environment, hardware, lines."""
        return Held(self.start, self.engine)

    @functools.cached_property
    def all_reduce(self) -> AllReduce | None:
        """How its ranks add up their tensors; None where there is nothing to add up."""
        return ways(self.held)

    # --- What the log says ------------------------------------------------------------------------------------------

    @property
    def message(self) -> str:
        """All words of the root failure: its exception, and what the engine made of it."""
        root = self.root
        if root is None:
            return ""
        if root.failure is not None:
            failure = root.failure
            again = failure.final_message if failure.final_message != failure.message else ""
            return "\n".join(part for part in (failure.exception, failure.message, again) if part)
        return root.sign.text if root.sign is not None else (root.died.text if root.died is not None else "")

    @property
    def frames(self) -> tuple[str, ...]:
        """The stack of the root failure."""
        return self.root.failure.frames if self.root is not None and self.root.failure is not None else ()

    def on_stack(self, *parts: str) -> bool:
        """Whether a function or file is on the stack of the root failure."""
        return any(part in frame for frame in self.frames for part in parts)

    def root_sign(self, *ids: str) -> Sign | None:
        """A sign of the root failure itself."""
        root = self.root
        if root is None:
            return None
        if root.failure is not None:
            # What other processes printed in between is not its own.
            own = (root.failure.message_at, root.failure.final_at)
            return next((s for s in self.start.signs if s.id in ids and s.at in own), None)
        if root.sign is not None:
            return next((s for s in self.start.signs if s.id in ids and s.at == root.sign.at), None)
        return None

    def sign(self, *ids: str) -> Sign | None:
        """The first sign of these in the whole start; the root failure's own before others."""
        return self.root_sign(*ids) or next((s for s in self.start.signs if s.id in ids), None)

    def signs(self, *ids: str) -> list[Sign]:
        """All signs of these."""
        return [sign for sign in self.start.signs if sign.id in ids]

    def sign_before(self, at: int, *ids: str) -> Sign | None:
        """The last of these before a place."""
        return next((s for s in reversed(self.start.signs) if s.id in ids and s.at < at), None)

    def just_before(self, sign: Sign, *ids: str) -> Sign | None:
        """One of these on one of the three lines before another sign: what made the process end so."""
        places = self.start.places
        index = bisect.bisect_left(places, sign.at)
        near = places[max(0, index - 3) : index]
        return next((s for s in self.start.signs if s.id in ids and s.at in near), None)

    def setting(self, *names: str) -> Any:
        """A server arg's value."""
        return self.start.setting(*names)

    # --- Where and who ----------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """Of the root failure."""
        root = self.root
        if root is None:
            return "none"
        if root.failure is not None:
            return _known(str(root.failure.phase))
        if self.start.ready_at is not None and root.at > self.start.ready_at:
            return serving_phase(self.start, root.at)
        tag = root.sign.rank if root.sign is not None else None
        return _known(str(start_phase(self.start, tag, root.at)))

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """Global ranks that show the root failure; None where no rank printed it."""
        if self.root is None:
            return None
        tags = [tag for tag in self.root.tags if tag is not None]
        if tags:
            return tuple(sorted({self.layout.number(tag) for tag in tags}))
        raised = self.root.failure is not None and (self.root.failure.header or self.start.ranks)
        return (0,) if raised and self.layout.world == 1 else None

    @property
    def all_ranks(self) -> tuple[int, ...] | None:
        """Every rank of the log."""
        numbers = sorted({rank.number for rank in self.start.ranks})
        return tuple(numbers) or None

    @property
    def story(self) -> RankStory | None:
        """The rank that failed, or the first."""
        numbers = self.ranks
        ranks = self.start.ranks
        if numbers:
            return next((r for r in ranks if r.number == numbers[0]), ranks[0] if ranks else None)
        return ranks[0] if ranks else None

    # --- Evidence ---------------------------------------------------------------------------------------------------

    def quote(self, what: str, sign: Sign, field: str, unit: str = "") -> Evidence | None:
        """A field of a sign as printed, with its unit where it carries one."""
        value = sign.fields.get(field)
        if value is None:
            return None
        amount = quantity(value) if isinstance(value, str) else None
        if amount is not None and amount.unit:
            return Evidence(what=what, value=_plain(amount.value), unit=amount.unit, at=sign.at)
        return Evidence(what=what, value=value, unit=unit, at=sign.at)

    def figure(self, what: str, figure: Figure | None, unit: str = _UNIT_OF_ENGINE) -> Evidence | None:
        """A number of the story."""
        return None if figure is None else Evidence(what=what, value=_plain(figure.value), unit=unit, at=figure.at)

    def arg(self, *names: str) -> Evidence | None:
        """A server arg, as its line prints it."""
        value, name = next(
            ((self.start.settings[n], n) for n in names if self.start.settings.get(n) is not None), (None, "")
        )
        if value is None or self.start.settings_at is None:
            return None
        return Evidence(
            what=name, value=value if isinstance(value, int | float | str) else str(value), at=self.start.settings_at
        )

    @staticmethod
    def derived(what: str, value: Number | str, unit: str = "") -> Evidence:
        """Something that was computed."""
        return Evidence(what=what, value=value, unit=unit)

    # --- Proposals --------------------------------------------------------------------------------------------------

    def remedy(
        self,
        knob: str,
        move: Move,
        why: str,
        *,
        value: Number | str | bool | None = None,
        least: Number | None = None,
        most: Number | None = None,
        later: bool = False,
    ) -> Remedy | None:
        """A change of a knob as this version spells it.

        Args:
            knob: Its canonical name.
            move: Which way.
            why: What it does for this failure.
            value: To which value.
            least: The interval of safe values.
            most: Its other end.
            later: Propose it also where only another version has it, and say so.

        Returns:
            None where the version does not have it.
        """
        spelling = self.engine.knob(knob, self.start.version)
        if spelling is None and later and (spelling := self.engine.knob(knob, None)) is not None:
            why = f"{why} ({self.engine.knobs().absent(knob, self.start.version)})"
        if spelling is None:
            return None
        return Remedy(
            knob=knob,
            flag=spelling.flag,
            env=spelling.env,
            move=move,
            value=value,
            min=least,
            max=most,
            why=why,
        )

    def named(self, knob: str) -> str:
        """What this engine calls a knob: `max_running_requests` of the catalogue is `max_num_seqs` of vLLM."""
        spelling = self.engine.knob(knob, self.start.version) or self.engine.knob(knob, None)
        flag = spelling.flag if spelling is not None else None
        return flag.lstrip("-").replace("-", "_") if flag is not None else knob

    @staticmethod
    def advice(subject: str, why: str, value: str | None = None, flag: str | None = None) -> Remedy:
        """Something to do that turns no knob: check, free, update. `core.remedies` knows whose value is a command."""
        return Remedy(knob=subject, flag=flag, move=Move.OTHER, value=value, why=why)

    def finding(
        self,
        cause: str,
        explanation: str,
        *,
        evidence: Iterable[Evidence | None] = (),
        remedies: Iterable[Remedy | None] = (),
        severity: Severity = Severity.FATAL,
        confidence: Confidence = Confidence.HIGH,
        phase: str | None = None,
        ranks: tuple[int, ...] | UnsetType | None = UNSET,
        wrong_advice: Iterable[str] = (),
        refuted_by: str = "",
        title: str | None = None,
        at: int | None = None,
    ) -> Finding:
        """Put a finding together; phase, ranks and place are the root's where they are not given."""
        cited = [each for each in evidence if each is not None]
        place = at
        if place is None and self.root is not None:
            failure = self.root.failure
            place = self.root.at if failure is None else failure.final_at or failure.message_at or failure.at
        return Finding(
            cause=cause,
            severity=severity,
            phase=self.phase if phase is None else phase,
            ranks=self.ranks if ranks is UNSET else ranks,
            confidence=confidence,
            title=title or CAUSES[cause].title,
            explanation=explanation,
            evidence=tuple(_once(cited))[:MOST_EVIDENCE],
            remedies=tuple(each for each in remedies if each is not None),
            wrong_advice=tuple(wrong_advice),
            refuted_by=refuted_by,
            at=place,
        )


def gib_of(sign: Sign | None, field: str) -> float | None:
    """An amount of a sign in GiB; None where the sign does not have it."""
    return None if sign is None else to_gib(sign.fields.get(field))


def _plain(value: float) -> Number:
    """57.0 as 57: a number is quoted as it was printed."""
    return int(value) if float(value).is_integer() else value


def _known(phase: str) -> str:
    return phase if phase in PHASES else {"ready": "runtime"}.get(phase, "none")


def _once(evidence: Iterable[Evidence]) -> Iterable[Evidence]:
    seen: set[tuple[object, ...]] = set()
    for each in evidence:
        key = (each.what, each.value, each.at)
        if key not in seen:
            seen.add(key)
            yield each
