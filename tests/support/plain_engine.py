"""The smallest possible engine, for tests of the core: `@TP0 word key=value ...` lines become facts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core.engine import LinePrefix, RankPlace
from tuner.core.knobs import KnobTable
from tuner.domain.behaviour import Behaviour
from tuner.domain.events import HttpAnswer
from tuner.domain.forecast import Effective, Fit, Forecast
from tuner.domain.gates import GateRules
from tuner.domain.knobs import Spelling
from tuner.domain.layout import Layout
from tuner.domain.logs import Level, LogFact
from tuner.domain.plan import EnginePlan
from tuner.domain.readings import MemoryTerms, Reading
from tuner.domain.recipe import Argument, CommandLine
from tuner.domain.server import ServerIdentity
from tuner.domain.starts import Sign, Start

_PREFIX = re.compile(r"@(?P<at>\d+)(?: (?P<rank>TP\d+))? ")


class PlainEngine:
    """The engine; see the module."""

    name = "plain"
    title = "Plain"

    def plan(self) -> EnginePlan:
        return EnginePlan(name="plain", leaders=("plain",), titles=(), package="plain")

    def prefix(self, text: str) -> LinePrefix:
        match = _PREFIX.match(text)
        if match is None:
            return LinePrefix(None, None, 0, None, prefixed=False)
        return LinePrefix(match["rank"], float(match["at"]), match.end())

    def level(self, message: str) -> Level:
        return Level.ERROR if message.startswith("error") else Level.INFO

    def interesting(self, text: str) -> bool:
        return "!" in text

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> Sequence[LogFact]:
        kind, *pairs = text[prefix.message_start :].removeprefix("!").split()
        fields: dict[str, Any] = {}
        for pair in pairs:
            name, _, value = pair.partition("=")
            fields[name] = float(value) if re.fullmatch(r"[\d.]+", value) else value
        if "tokens" in fields:
            fields["tokens"] = int(fields["tokens"])
        return [LogFact(kind=kind, rank=prefix.rank, at=prefix.at, offset=offset, text=text, fields=fields)]

    def ranks(self, identity: ServerIdentity, settings: dict[str, Any]) -> Sequence[RankPlace]:
        return [
            RankPlace(tag=m.title, pid=m.pid, visible_index=int(m.title[2:]))
            for m in identity.members
            if m.title.startswith("TP")
        ]

    def read(self, answer: HttpAnswer) -> Reading:
        if answer.endpoint == "info":
            body = answer.body
            memory = {"": MemoryTerms(weights_bytes=body["weights"])} if "weights" in body else None
            return Reading(ready=body.get("ready"), version=body.get("version"), memory=memory)
        if answer.status == 401:
            return Reading(problem="the server wants its API key")
        return Reading(metrics=dict(answer.series or answer.body or {}))

    def model(self, identity: ServerIdentity) -> str | None:
        return identity.argv[-1] if identity.argv else None

    def settings_from_argv(self, identity: ServerIdentity) -> dict[str, Any]:
        return {"argv": len(identity.argv)}

    def command_line(self, argv: Sequence[str]) -> CommandLine:
        return CommandLine(command=tuple(argv[:1]), arguments=tuple(Argument(words=(word,)) for word in argv[1:]))

    def message(self, text: str, prefix: LinePrefix) -> str:
        return text[prefix.message_start :]

    def routine(self) -> bytes:
        return rb"(?!)"

    def signs(self, message: str, *, prefixed: bool) -> Sequence[Sign]:
        return ()

    def knobs(self) -> KnobTable:
        return KnobTable(())

    def knob(self, name: str, version: str | None) -> Spelling | None:
        return None

    def gates(self) -> GateRules:
        return GateRules()

    def behaviour(self) -> Behaviour:
        return Behaviour()

    def effective_fraction(self, start: Start) -> Effective | None:
        return None

    def cap(self, start: Start) -> str | None:
        return None

    def forecast(self, base: Start, changes: Mapping[str, Any], past: Sequence[Start] = ()) -> Forecast:
        return Forecast(fit=Fit.UNKNOWN)

    def layout(self, settings: dict[str, Any]) -> Layout:
        return Layout()

    def infer_version(self, start: Start) -> tuple[str | None, bool]:
        return start.version, False
