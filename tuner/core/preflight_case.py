"""What the checks before a switch look at: the probe's facts, the host, both servers, the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tuner.core.engine import Engine
from tuner.core.logtext import clean
from tuner.domain.forecast import Forecast
from tuner.domain.preflight import Check, Verdict
from tuner.domain.recipe import Launch
from tuner.domain.runs import Operator
from tuner.domain.server import ServerIdentity
from tuner.domain.state import HostState, ServerState


class Fact:
    """One fact of the probe. Its texts are the host's, so control sequences are made harmless."""

    def __init__(self, fact: object, asked: bool) -> None:
        self._fact: Mapping[str, Any] = fact if isinstance(fact, Mapping) else {}
        problem = self._fact.get("problem")
        self.missing = not self._fact or bool(problem)
        """True: nothing is known, so that the check is UNKNOWN."""
        self.why = one_line(problem) if problem else ""
        """Why nothing is known, in words; empty: the probe did not tell."""
        self._asked = asked

    def value(self, name: str) -> Any:
        """Return a field as it came; None where it is absent."""
        return self._fact.get(name)

    def text(self, name: str) -> str:
        """Return a field as one line of text; empty where it is absent."""
        return one_line(self._fact.get(name))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of texts."""
        value = self._fact.get(name)
        return tuple(one_line(each) for each in value) if isinstance(value, Sequence | tuple) else ()

    def maps(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Return a field that is a list of objects."""
        value = self._fact.get(name)
        if not isinstance(value, Sequence):
            return ()
        return tuple(
            {key: one_line(item) if isinstance(item, str) else item for key, item in each.items()}
            for each in value
            if isinstance(each, Mapping)
        )

    def unknown(self, ident: str, title: str) -> Check:
        """Return the check that says that nothing is known."""
        why = self.why or ("the probe did not tell" if self._asked else "the host was not asked yet")
        return check(ident, title, Verdict.UNKNOWN, why)


class Case(Struct, frozen=True, kw_only=True):
    """One switch, with all that its checks look at."""

    facts: Mapping[str, Any]
    asked: bool
    state: HostState
    server: ServerState | None
    launch: Launch | None
    engine: Engine | None
    flag_problems: tuple[str, ...] | None
    unmet: tuple[str, ...]
    forecast: Forecast | None
    version: str | None
    operator: Operator | None = None

    @property
    def user(self) -> str:
        """The user as whom the probe runs, and the new server would."""
        hello = self.state.hello
        return (hello.user if hello is not None else None) or "this user"

    @property
    def again(self) -> bool:
        """Whether the new start is exactly an earlier one, whose command line only the host knows."""
        return self.launch is not None and not self.launch.argv

    @property
    def same_engine(self) -> bool:
        """Whether the new server has the engine of the one that is stopped."""
        return self.server is not None and self.engine is not None and self.server.identity.engine == self.engine.name

    def fact(self, ident: str) -> Fact:
        """Return a fact of the probe by its id."""
        return Fact(self.facts.get(ident), self.asked)

    def settings(self) -> dict[str, Any]:
        """Return the server args on the command line of the new server; empty where only the host knows it."""
        if self.engine is None or self.launch is None:
            return {}
        return settings_of(self.launch, self.server, self.engine)

    def ranks(self) -> int | None:
        """Return the number of ranks of the new server; None: not known."""
        settings = self.settings()
        return self.engine.layout(settings).world if self.engine is not None and settings else None

    def gpus(self) -> frozenset[int] | None:
        """Return the GPUs on which the new server will run; None: any.

        They are those of the server that is stopped, if the new one has no more ranks.
        """
        if self.server is None:
            return None
        own = frozenset(rank.gpu for rank in self.server.ranks if rank.gpu is not None)
        ranks = self.ranks()
        return own if own and ranks is not None and ranks <= len(own) else None

    def takes_all(self) -> bool:
        """Return whether the new server surely runs on all GPUs of the host."""
        table, ranks = self.state.gpu_table, self.ranks()
        return table is not None and ranks is not None and ranks >= len(table.gpus)

    def capacity_bytes(self, gpu: int) -> int | None:
        """Return the memory of a GPU, as the driver counts it; None: not known."""
        table = self.state.gpu_table
        return next((each.memory_total_bytes for each in table.gpus if each.index == gpu), None) if table else None


def settings_of(launch: Launch, server: ServerState | None, engine: Engine) -> dict[str, Any]:
    """Return the server args on a new server's command line; empty where only the host knows it."""
    if not launch.argv:
        return {}
    base = server.identity if server is not None and server.identity.engine == engine.name else None
    base = base or ServerIdentity(key="", engine=engine.name, pid=0, start_ticks=0)
    return engine.settings_from_argv(replace(base, argv=launch.argv, env=dict(launch.env)))


def one_line(value: object) -> str:
    """Return a text of the host as one harmless line; empty for None."""
    return "" if value is None else " ".join(clean(str(value)).split())[:500]


def check(ident: str, title: str, verdict: Verdict, detail: str = "", way_out: str = "") -> Check:
    """Return a check."""
    return Check(id=ident, title=title, verdict=verdict, detail=detail, way_out=way_out)


def fail(ident: str, title: str, detail: str, way_out: str) -> Check:
    """Return a check that refuses the switch."""
    return Check(id=ident, title=title, verdict=Verdict.FAIL, detail=detail, way_out=way_out)
