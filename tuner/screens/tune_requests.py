"""Answers to the Tune screen: which presets there are, what a wish would change, and acts on the host."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from tuner.core.choices import KEYS, choices
from tuner.core.engine import Engine
from tuner.core.gates import smallest_gpu_bytes
from tuner.core.knobs import left_out_words, read_value
from tuner.core.tuning import tune
from tuner.core.versions import in_range, parse_version
from tuner.domain.acts import AnyAct, Switch
from tuner.domain.events import Acted, PreflightResult
from tuner.domain.knobs import Knob, KnobKind
from tuner.domain.planning import PlanKnob
from tuner.domain.preflight import PreflightAsk
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.domain.runs import Operator, run_id
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Tuning, Wish
from tuner.errors import CatalogError, TunerError
from tuner.messages import (
    ActDone,
    ActRequested,
    KeepRequested,
    Kept,
    PresetsArrived,
    PresetsRequested,
    TuneArrived,
    TuneRequested,
)
from tuner.screens.explain_requests import engines

FACTS_S = 30.0
"""Seconds for which facts of the host are good enough to act on: the time that one reads the question before an act."""
PRESETS_S = 5.0
"""Seconds after which the files of presets are read again."""


class Library(Protocol):
    """The operator's presets, recipes and number keys on this machine. All methods may raise TunerError."""

    def presets(self) -> tuple[Mapping[str, Preset], tuple[CatalogError, ...]]:
        """Return all presets by id, and what is wrong with other files."""

    def order(self, host: str) -> Sequence[str]:
        """Return the ids of presets in the order of the number keys of a host; empty: there is none."""

    def keep_order(self, host: str, ids: Sequence[str]) -> None:
        """Keep the order of the number keys of a host."""

    def recipes(self, host: str) -> Sequence[Recipe]:
        """Return the recipes for a host."""

    def save_preset(self, preset: Preset) -> str:
        """Save a preset; return where."""

    def save_recipe(self, recipe: Recipe) -> str:
        """Save a recipe; return where."""


class ActingSession(Protocol):
    """The part of a session that changes hosts."""

    state: HostState

    @property
    def operator(self) -> Operator:
        """Return who acts."""

    async def act(self, act: AnyAct, *, confirmed: bool) -> Acted:
        """Have the host do something; nothing is raised."""

    async def preflight(self, ask: PreflightAsk) -> PreflightResult:
        """Ask the host for the facts of the checks; raises TunerError."""


class Bench:
    """What the Tune screen works with: the operator's library, and facts that hosts have told of late.

    Args:
        library: Presets and recipes on this machine; None: there are none, and nothing is kept.
    """

    def __init__(self, library: Library | None = None) -> None:
        self.library = library
        self._facts: dict[tuple[str, bytes], tuple[float, dict[str, Any]]] = {}
        self._presets: tuple[float, Mapping[str, Preset], tuple[CatalogError, ...]] | None = None
        self.numbered: dict[tuple[str, str], tuple[str, ...]] = {}
        """Host and engine (empty: none is known) to the presets that the number keys choose there, as shown last."""

    async def presets(self, *, anew: bool = False) -> tuple[Mapping[str, Preset], tuple[CatalogError, ...]]:
        """Return all presets and what is wrong with other files; read again after a while, or if asked.

        Raises:
            TunerError: They cannot be read.
        """
        if self.library is None:
            return {}, ()
        if anew or self._presets is None or time.monotonic() - self._presets[0] > PRESETS_S:
            found, problems = await asyncio.to_thread(self.library.presets)
            self._presets = time.monotonic(), found, problems
        return self._presets[1:]

    def facts(self, host: str, ask: PreflightAsk | None) -> dict[str, Any] | None:
        """Return what a host has told of late about a question; None if nothing."""
        if ask is None:
            return None
        told = self._facts.get(_key(host, ask))
        return told[1] if told is not None and time.monotonic() - told[0] <= FACTS_S else None

    def keep(self, host: str, ask: PreflightAsk, facts: dict[str, Any]) -> None:
        """Remember what a host has told; older answers are dropped."""
        now = time.monotonic()
        self._facts = {key: each for key, each in self._facts.items() if now - each[0] <= FACTS_S}
        self._facts[_key(host, ask)] = now, facts

    def forget(self, host: str) -> None:
        """Drop what a host has told, since it was changed."""
        self._facts = {key: each for key, each in self._facts.items() if key[0] != host}


def _key(host: str, ask: PreflightAsk) -> tuple[str, bytes]:
    # The help is asked once for a version: whether it is known makes no other question.
    return host, msgspec.json.encode(replace(ask, help_argv=()))


async def answer(session: ActingSession, ask: object, bench: Bench) -> None:
    """Answer a request of the Tune screen, or of one that offers remedies."""
    match ask:
        case PresetsRequested():
            await _presets(session.state, ask, bench)
        case TuneRequested():
            await _tune(session, ask, bench)
        case ActRequested():
            await _act(session, ask, bench)
        case KeepRequested():
            await _keep(ask, bench)


# Presets and knobs ---------------------------------------------------------------------------------------------------


async def _presets(state: HostState, ask: PresetsRequested, bench: Bench) -> None:
    library = bench.library
    server = state.server(ask.key)
    found: Mapping[str, Preset] = {}
    problems: list[str] = []
    order: Sequence[str] = ()
    recipes: Sequence[Recipe] = ()
    if library is not None:
        try:
            found, told = await bench.presets(anew=True)
            problems += map(str, told)
            order = await asyncio.to_thread(library.order, ask.host)
            recipes = await asyncio.to_thread(library.recipes, ask.host)
        except TunerError as error:
            problems.append(str(error))
    name = server.identity.engine if server is not None else recipes[0].engine if recipes else ""
    engine = engines().get(name)
    version = server.version if server is not None else recipes[0].version if recipes else None
    # A key that was shown chooses the same preset until the operator changes the order.
    order = tuple(dict.fromkeys((*order, *bench.numbered.get((ask.host, name), ()))))
    listed = await asyncio.to_thread(choices, found, order, state, engine, version)
    if engine is not None:
        bench.numbered[ask.host, name] = bench.numbered[ask.host, ""] = tuple(each.id for each in listed[:KEYS])
    knobs = all_knobs(engine, server, version, smallest_gpu_bytes(state)) if engine is not None else {}
    ask.reply_to.post_message(PresetsArrived(ask, listed, knobs, tuple(recipes), tuple(problems)))


def all_knobs(
    engine: Engine, server: ServerState | None, version: str | None, smallest_bytes: int | None = None
) -> dict[str, PlanKnob]:
    """Return every knob of an engine's version by canonical name, with the value that a server has.

    Args:
        engine: The engine.
        server: The server; None: none runs.
        version: Its version; None: not known.
        smallest_bytes: Memory of the smallest GPU of the host; None: not known.
    """
    table, at = engine.knobs(), parse_version(version)
    settings = server.settings if server is not None else {}
    env = (server.identity.env or {}) if server is not None else {}
    found: dict[str, PlanKnob] = {}
    for name, knob in table.items():
        spelling = table.spelling(name, version)
        if spelling is None:
            continue
        value = table.value(settings, name, version)
        if knob.kind is KnobKind.ENV:
            value = _read(knob, env.get(spelling.text))
        hazards = tuple(h for h in knob.hazards if at is None or not h.versions or in_range(at, h.versions))
        found[name] = PlanKnob(
            knob=replace(knob, hazards=hazards),
            flag=spelling.flag,
            env=spelling.env,
            value=spelling.default if value is None else value,
            assumed=value is None,
            choices=spelling.choices,
            left_out=left_out_words(knob, spelling, smallest_bytes),
        )
    return found


def _read(knob: Knob, text: str | None) -> Any:
    try:
        return None if text is None else read_value(knob, text)
    except ValueError:
        return text


# What a wish would change --------------------------------------------------------------------------------------------


async def _tune(session: ActingSession, ask: TuneRequested, bench: Bench) -> None:
    post = ask.reply_to.post_message
    first = await _put_together(session, ask.host, ask.wish, bench)
    known = bench.facts(ask.host, first.ask) is not None
    if known or not ask.check or first.ask is None:
        post(TuneArrived(ask, first, checked=known))
        return
    post(TuneArrived(ask, first, checking=True))
    try:
        made = await _checked(session, ask.host, ask.wish, first, bench)
    except TunerError as error:
        post(TuneArrived(ask, first, error=str(error)))
        return
    post(TuneArrived(ask, made, checked=True))


async def _checked(session: ActingSession, host: str, wish: Wish, first: Tuning, bench: Bench) -> Tuning:
    """Ask the host for the facts, and put the wish together with them.

    Raises:
        TunerError: The host did not answer.
    """
    ask = first.ask
    if ask is None:
        return first
    bench.keep(host, ask, dict((await session.preflight(ask)).facts))
    return await _put_together(session, host, wish, bench)


async def _put_together(session: ActingSession, host: str, wish: Wish, bench: Bench) -> Tuning:
    state = session.state
    presets, broken = await bench.presets()

    def made(facts: dict[str, Any] | None) -> Tuning:
        return tune(
            state,
            wish,
            engines(),
            presets,
            run=run_id(time.time(), secrets.randbits(32)),
            operator=session.operator,
            broken=broken,
            facts=facts,
            past=_past(state),
        )

    first = await asyncio.to_thread(made, None)
    facts = bench.facts(host, first.ask)
    return first if facts is None else await asyncio.to_thread(made, facts)


def _past(state: HostState) -> tuple[Start, ...]:
    """Return the starts that are known on a host, newest first."""
    return tuple(
        start
        for server in state.servers
        for start in (*((server.start,) if server.start is not None else ()), *server.past)
    )


# Acts and what is kept -----------------------------------------------------------------------------------------------


async def _act(session: ActingSession, ask: ActRequested, bench: Bench) -> None:
    post = ask.reply_to.post_message
    act = ask.what
    if isinstance(act, Wish):
        wish = act
        try:
            made = await _put_together(session, ask.host, wish, bench)
            if bench.facts(ask.host, made.ask) is None:
                made = await _checked(session, ask.host, wish, made, bench)
        except TunerError as error:
            post(ActDone(ask, str(error), error.hint))
            return
        if made.order is None:
            post(ActDone(ask, next(iter(made.refused), "it cannot be put together")))
            return
        act = Switch(order=made.order)
    done = await session.act(act, confirmed=True)
    bench.forget(ask.host)
    post(ActDone(ask, done.error or "", done.hint, done.run))


async def _keep(ask: KeepRequested, bench: Bench) -> None:
    library = bench.library
    if library is None:
        ask.reply_to.post_message(Kept(ask, "", "nothing is kept here"))
        return
    words = ""
    try:
        if ask.preset is not None:
            await asyncio.to_thread(_keep_numbers, library, ask.host, ask.order or ())
            words = f"Saved preset {ask.preset.id}: {await asyncio.to_thread(library.save_preset, ask.preset)}"
        elif ask.recipe is not None:
            words = f"Saved recipe {ask.recipe.name}: {await asyncio.to_thread(library.save_recipe, ask.recipe)}"
        elif ask.order is not None:
            await asyncio.to_thread(library.keep_order, ask.host, ask.order)
    except TunerError as error:
        ask.reply_to.post_message(Kept(ask, "", str(error)))
        return
    ask.reply_to.post_message(Kept(ask, words))


def _keep_numbers(library: Library, host: str, shown: Sequence[str]) -> None:
    """Keep what the number keys of a host choose, so that a new preset comes after it.

    Raises:
        TunerError: It cannot be written.
    """
    kept = list(library.order(host))
    whole = list(dict.fromkeys((*kept, *shown[:KEYS])))
    if whole != kept:
        library.keep_order(host, whole)
