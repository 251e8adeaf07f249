"""The case: the input of every judge, with helpers to cite evidence and to build remedies and findings."""

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
from tuner.core.roots import Root, signs_at
from tuner.core.share import Share, share_of
from tuner.core.sign_index import SignIndex
from tuner.core.story import layout_of
from tuner.domain.findings import MOST_EVIDENCE, Confidence, Evidence, Finding, Meaning, Move, Number, Remedy, Severity
from tuner.domain.gates import AllReduce
from tuner.domain.starts import Figure, RankStory, Sign, Start

_UNIT_OF_ENGINE = "GB"
"""Unit that engines print behind free memory; the values are GiB (both engines divide by 2^30)."""


class Case:
    """One start with everything that a judge looks at.

    Args:
        start: The start, as read from its log.
        root: Its root failure; None if nothing failed.
        engine: The engine that was started.
        past: Starts of the same LLM on the same host that became ready, newest first.
    """

    def __init__(self, start: Start, root: Root | None, engine: Engine, past: Sequence[Start] = ()) -> None:
        self.start = start
        self.root = root
        self.engine = engine
        self.past = past
        self.layout = layout_of(engine, start.settings, [rank.tag for rank in start.ranks])
        self.share: Share | None = share_of(start)

    @functools.cached_property
    def index(self) -> SignIndex:
        """All signs of the start by id."""
        return SignIndex(self.start.signs)

    @functools.cached_property
    def held(self) -> Held:
        """Facts that the rules about all-reduce are checked against: environment, hardware, log lines."""
        return Held(self.start, self.engine, signs=self.index)

    @functools.cached_property
    def all_reduce(self) -> AllReduce | None:
        """The all-reduce implementations and their gates for this start; None with a single rank or no GPU."""
        return ways(self.held)

    # --- What the log says ------------------------------------------------------------------------------------------

    @functools.cached_property
    def message(self) -> str:
        """Full text of the root failure: the original exception and the final one that the engine raised; may be ''."""
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
        """Stack frames of the root failure as `path:function`, innermost last; empty without a traceback."""
        return self.root.failure.frames if self.root is not None and self.root.failure is not None else ()

    def on_stack(self, *parts: str) -> bool:
        """Return whether any frame of the root failure's stack contains one of these substrings."""
        return any(part in frame for frame in self.frames for part in parts)

    def root_sign(self, *ids: str) -> Sign | None:
        """Return the first sign with one of these ids that stands on the root failure's own lines."""
        root = self.root
        if root is None:
            return None
        if root.failure is not None:
            # Other processes may print between these two lines; their signs are not part of this failure.
            own = {root.failure.message_at, root.failure.final_at}
        else:
            own = {root.sign.at} if root.sign is not None else set()
        return self._sign_at(own, ids)

    def sign(self, *ids: str) -> Sign | None:
        """Return a sign with one of these ids: one of the root failure, else the first of the whole start."""
        return self.root_sign(*ids) or self.index.first(*ids)

    def signs(self, *ids: str) -> list[Sign]:
        """Return all signs of the start with one of these ids, in log order."""
        return self.index.all(*ids)

    def sign_before(self, at: int, *ids: str) -> Sign | None:
        """Return the last sign with one of these ids before log position `at`."""
        return self.index.last_before(at, *ids)

    def just_before(self, sign: Sign, *ids: str) -> Sign | None:
        """Return a sign with one of these ids on the three lines before `sign`.

        A message so near before a crash is taken for its reason.
        """
        places = self.start.places
        index = bisect.bisect_left(places, sign.at)
        return self._sign_at(set(places[max(0, index - 3) : index]), ids)

    def _sign_at(self, places: Iterable[int], ids: Sequence[str]) -> Sign | None:
        """Return the first sign with one of these ids that stands on one of some lines."""
        return next((s for at in sorted(places) for s in signs_at(self.start, at) if s.id in ids), None)

    def setting(self, *names: str) -> Any:
        """Return the first of these server args that is set; None if none is."""
        return self.start.setting(*names)

    # --- Where and who ----------------------------------------------------------------------------------------------

    @functools.cached_property
    def phase(self) -> str:
        """Phase of the root failure, one of `core.causes.PHASES`; `none` if there is no failure or it is unknown."""
        root = self.root
        if root is None:
            return "none"
        if root.failure is not None:
            return _known(str(root.failure.phase))
        if self.start.ready_at is not None and root.at > self.start.ready_at:
            return serving_phase(self.start, root.at)
        tag = root.sign.rank if root.sign is not None else None
        one_speaks = self.engine.behaviour().one_rank_speaks
        return _known(str(start_phase(self.start, tag, root.at, one_speaks=one_speaks)))

    @functools.cached_property
    def ranks(self) -> tuple[int, ...] | None:
        """Global numbers of the ranks that printed the root failure; None if no rank did."""
        if self.root is None:
            return None
        tags = [tag for tag in self.root.tags if tag is not None]
        if tags:
            return tuple(sorted({self.layout.number(tag) for tag in tags}))
        raised = self.root.failure is not None and (self.root.failure.header or self.start.ranks)
        return (0,) if raised and self.layout.world == 1 else None

    def tag(self, number: int) -> str:
        """Return the log's tag of a global rank; `rank 3` if the log does not show that rank."""
        return next((rank.tag for rank in self.start.ranks if rank.number == number), f"rank {number}")

    @property
    def all_ranks(self) -> tuple[int, ...] | None:
        """Global numbers of all ranks in the log; None if it shows none."""
        numbers = sorted({rank.number for rank in self.start.ranks})
        return tuple(numbers) or None

    @property
    def story(self) -> RankStory | None:
        """Story of the first rank that failed, else of the first rank; None if the log shows no ranks."""
        numbers = self.ranks
        ranks = self.start.ranks
        if numbers:
            return next((r for r in ranks if r.number == numbers[0]), ranks[0] if ranks else None)
        return ranks[0] if ranks else None

    # --- Evidence ---------------------------------------------------------------------------------------------------

    def quote(
        self, what: str, sign: Sign, field: str, unit: str = "", meaning: Meaning | None = None
    ) -> Evidence | None:
        """Cite a field of a sign as printed; None if the sign lacks it. A unit in the field overrides `unit`."""
        value = sign.fields.get(field)
        if value is None:
            return None
        amount = quantity(value) if isinstance(value, str) else None
        if amount is not None and amount.unit:
            return Evidence(what=what, value=_plain(amount.value), unit=amount.unit, at=sign.at, meaning=meaning)
        return Evidence(what=what, value=value, unit=unit, at=sign.at, meaning=meaning)

    def figure(self, what: str, figure: Figure | None, unit: str = _UNIT_OF_ENGINE) -> Evidence | None:
        """Cite a number of a rank's story or of the start's limits; None if it is unknown."""
        return None if figure is None else Evidence(what=what, value=_plain(figure.value), unit=unit, at=figure.at)

    def arg(self, *names: str) -> Evidence | None:
        """Cite the first of these server args that is set; None if none is, or if the log lacks the line of args."""
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
        """Make evidence of a computed value, which no log line shows."""
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
        serves: Number | None = None,
        later: bool = False,
    ) -> Remedy | None:
        """Propose a change of a knob, spelled as in this start's version.

        Args:
            knob: Canonical name of the knob.
            move: Direction of the change.
            why: What the change does for this failure.
            value: Proposed value; None leaves it open.
            least: Lower end of the safe interval.
            most: Upper end of the safe interval.
            serves: Least value at which a request of full length fits; told if it is above `least`.
            later: Propose the knob even if only another version has it; `why` then says so.

        Returns:
            None if the version does not have the knob.
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
            serves=serves if serves is not None and least is not None and serves > least else None,
            why=why,
        )

    def named(self, knob: str) -> str:
        """Return the engine's own name of a knob: `max_running_requests` of the catalogue is vLLM's `max_num_seqs`."""
        spelling = self.engine.knob(knob, self.start.version) or self.engine.knob(knob, None)
        flag = spelling.flag if spelling is not None else None
        return flag.lstrip("-").replace("-", "_") if flag is not None else knob

    @staticmethod
    def advice(subject: str, why: str, value: str | None = None, flag: str | None = None) -> Remedy:
        """Propose an action that turns no knob: check, free, update.

        For some subjects `value` is a shell command; `core.remedies` lists them.
        """
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
        """Build a finding; `phase`, `ranks` and `at` default to those of the root failure.

        Missing (None) and repeated evidence and missing remedies are left out. At most `MOST_EVIDENCE` pieces of
        evidence are kept.
        """
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
    """Return a sign's field in GiB; None if the sign or the field is missing."""
    return None if sign is None else to_gib(sign.fields.get(field))


def _plain(value: float) -> Number:
    """Convert 57.0 to 57, so that a number is quoted as the log prints it."""
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
