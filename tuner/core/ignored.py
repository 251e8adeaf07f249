"""Finds settings that did nothing: those a version does not read, and those the engine or NCCL overwrote or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from tuner.core.gates import ASKED, Held, as_word
from tuner.core.talk import effective_channels
from tuner.core.versions import in_range, parse_version
from tuner.domain.gates import AllReduce, OverwriteRule, PathState, VariableRule

_CHANNELS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))
_SAME = (("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"),)
"""Old and new name of one limit; the smaller value holds."""
_NUMBER = re.compile(r"[0-9]{1,6}")
_ALWAYS_TOLD = ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE")
"""Variables that NCCL reads for every communicator, and logs when it does."""


class Ignored(Struct, frozen=True, kw_only=True):
    """One setting that did nothing."""

    name: str
    value: str
    why: str
    at: int | None = None
    """Place of the line that shows it."""
    became: str = ""
    """The value that was in effect instead."""
    sure: bool = True
    """True: the log says so itself, or the version is known."""
    remedy: str = ""
    """A value to set instead; empty: leave it out."""


def ignored(held: Held, told: AllReduce | None) -> list[Ignored]:
    """Return the settings of a start that did nothing, each once.

    Args:
        held: The start with its environment and lines.
        told: Its all-reduce paths; None if it has none.
    """
    found: dict[str, Ignored] = {}
    for each in (*_refused(held), *_overwritten(held), *_in_vain(told), *_unread(held, told), *_channels(held)):
        found.setdefault(each.name, each)
    return list(found.values())


def _refused(held: Held) -> Iterator[Ignored]:
    """Yield variables whose value NCCL refused as no number."""
    for sign in held.signs.all("nccl-env-invalid"):
        default = str(sign.fields["default"])
        yield Ignored(
            name=str(sign.fields["name"]),
            value=str(sign.fields["value"]),
            why="NCCL takes whole numbers without a unit, and used its default"
            + (f" {default}" if not default.startswith("-") else ""),
            at=sign.at,
            remedy="a plain number",
        )


def _in_vain(told: AllReduce | None) -> Iterator[Ignored]:
    """Yield all-reduce paths that the operator asked for and that another gate keeps closed."""
    for path in told.paths if told is not None else ():
        asked = next((gate for gate in path.gates if gate.what == ASKED), None)
        closed = path.closed
        if asked is None or closed is None or closed is asked or asked.assumed or closed.assumed:
            continue
        name, found, value = asked.told.partition("=")
        if found:
            why = f"{path.title} is off all the same: {closed.told}, and it takes {closed.what}"
            yield Ignored(name=name, value=value, why=why, at=closed.at if closed.at is not None else asked.at)


def _unread(held: Held, told: AllReduce | None) -> Iterator[Ignored]:
    for rule in held.rules.variables:
        value = held.env.get(rule.name)
        if value is None or as_word(value) in {as_word(each) for each in rule.unset}:
            continue
        at = held.shown(rule.name)
        version = parse_version(held.start.version)
        if rule.reads == "none" or (version is not None and not in_range(version, rule.reads)):
            why = rule.why.format(version=f"{held.engine.title} {held.start.version}")
            yield Ignored(
                name=rule.name,
                value=value,
                why=why,
                at=at,
                sure=rule.reads == "none" or not held.start.version_inferred,
            )
        elif (reason := _off(rule, told)) is not None:
            yield Ignored(name=rule.name, value=value, why=reason, at=at, sure=False)


def _off(rule: VariableRule, told: AllReduce | None) -> str | None:
    """Return why everything that a variable changes is off; None if something of it may run."""
    paths = [path for path in told.paths if path.id in rule.acts_on] if told is not None else []
    if not paths or any(path.state is not PathState.CLOSED for path in paths):
        return None
    closed = paths[0].closed
    return f"it changes the {paths[0].title} only, which is off: {closed.told if closed is not None else ''}"


def _overwritten(held: Held) -> Iterator[Ignored]:
    for rule in held.rules.overwrites:
        asked = held.start.env.get(rule.name)
        if asked is None or parse_version(held.start.version) is None:
            continue
        becomes = overwritten(rule, asked, held)
        if becomes == asked:
            continue
        sign = next((each for each in held.signs.all("nccl-env") if each.fields["name"] == rule.name), None)
        if sign is not None and sign.fields["value"] == asked:
            continue
        yield Ignored(
            name=rule.name,
            value=asked,
            why=f"{held.engine.title} {held.start.version} sets it itself",
            at=None if sign is None else sign.at,
            became=becomes,
            sure=sign is not None or not held.start.version_inferred,
        )


def overwritten(rule: OverwriteRule, asked: str, held: Held) -> str:
    """Return the value in effect of a variable that an operator set and the engine may overwrite."""
    if not in_range(held.version, rule.versions) or (rule.unless and held.start.setting(rule.unless) is True):
        return asked
    if rule.value.startswith("{"):
        return str(int(held.start.setting(rule.value.strip("{}")) is True))
    return rule.value


def _channels(held: Held) -> Iterator[Ignored]:
    """Yield limits of NCCL's channels that contradict each other or the channels that were set up."""
    limits = {
        name: int(value) for name, value in held.env.items() if name.startswith("NCCL_M") and _NUMBER.fullmatch(value)
    }
    for least, most in _CHANNELS:
        if least in limits and most in limits and limits[least] > limits[most]:
            yield _limit(
                held, most, limits, f"{least}={limits[least]} is applied after it and wins", str(limits[least])
            )
    for old, new in _SAME:
        if old in limits and new in limits and limits[old] != limits[new]:
            name, other = (old, new) if limits[old] > limits[new] else (new, old)
            yield _limit(held, name, limits, f"{other}={limits[other]} is smaller, and the smaller one holds", "")
    took = effective_channels(held.start)
    if took is not None:
        for least, most in _CHANNELS:
            if most in limits and took > limits[most] and least not in limits:
                yield _limit(held, most, limits, f"NCCL set up {took} channels", str(took), _channels_at(held))
            if least in limits and took < limits[least] and not any(name in limits for _, name in _CHANNELS):
                yield _limit(held, least, limits, f"NCCL set up {took} channels", str(took), _channels_at(held))
    yield from _untold(held, took is not None)


def _untold(held: Held, set_up: bool) -> Iterator[Ignored]:
    """Yield variables that NCCL did not log as read, although it does: they were not in its process's environment."""
    signs = held.signs.all("nccl-env", "nccl-env-invalid")
    told = {sign.fields["name"] for sign in signs}
    if set_up and told:
        for name in _ALWAYS_TOLD:
            if name in held.start.env and name not in told:
                yield Ignored(
                    name=name,
                    value=held.start.env[name],
                    why="NCCL tells each variable that it reads, and did not tell this one",
                    sure=False,
                )


def _limit(held: Held, name: str, limits: Mapping[str, int], why: str, became: str, at: int | None = None) -> Ignored:
    return Ignored(
        name=name,
        value=str(limits[name]),
        why=why,
        at=held.shown(name) if at is None else at,
        became=became,
    )


def _channels_at(held: Held) -> int | None:
    sign = held.first("nccl-channels")
    return sign.at if sign is not None else None
