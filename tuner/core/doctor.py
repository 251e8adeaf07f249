"""What works on a host, what is missing, and what each missing thing costs: the lines of `gputuner doctor`.

The probe brings facts; the judgement and the words are here, in one table. `missing` is what gputuner needs to do its
work there, `warn` is what makes it see less.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tuner.domain.events import ProblemSeen
from tuner.domain.server import Phase
from tuner.domain.state import HostState, ServerState
from tuner.units import format_bytes, format_gib

SHM_WANTED_BYTES = 1 << 30
SKEW_WARN_S = 2.0
SLOW_LINK_S = 0.5


class Verdict(enum.StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


class Check(Struct, frozen=True, kw_only=True):
    """One line of `doctor`."""

    verdict: Verdict
    what: str
    value: str
    cost: str = ""
    """What the operator loses and can do; empty if nothing is wrong."""


class Skew(Struct, frozen=True, kw_only=True):
    """How many seconds the host's clock is ahead of ours, right to within half the round trip of the question."""

    ahead_s: float
    within_s: float

    @classmethod
    def measured(cls, asked_at: float, host_at: float, answered_at: float) -> Skew:
        """Compute the skew from our clock before the question and after the answer, and the host's between them."""
        return cls(ahead_s=host_at - (asked_at + answered_at) / 2, within_s=(answered_at - asked_at) / 2)

    @classmethod
    def told(cls, facts: Mapping[str, Any], asked_at: float, answered_at: float) -> Skew | None:
        """Compute the skew from the host's time among the facts; None if it is not there.

        The other two are times of our clock: when the facts were asked for, and when they came.
        """
        told = facts.get("time", {}).get("value")
        return cls.measured(asked_at, told, answered_at) if isinstance(told, int | float) else None

    @property
    def certain_s(self) -> float:
        """Least difference of the clocks, in seconds, that is certain."""
        return max(0.0, abs(self.ahead_s) - self.within_s)


def examine(facts: Mapping[str, Any], state: HostState, skew: Skew | None) -> tuple[Check, ...]:
    """Judge what the probe found.

    Args:
        facts: By check id, each with `ok`, `value` and `detail` (docs/protocol.md). An absent id gives no
            line; an unknown one is shown as it is.
        state: The host as known now.
        skew: Skew of the host's clock; None if the host did not tell its time.
    """
    lines = list(_link(state))
    for ident, judge in _JUDGES.items():
        fact = facts.get(ident)
        if isinstance(fact, Mapping):
            lines += judge(_Fact(fact), state)
    if skew is not None:
        lines.append(_clock(skew))
    for ident, fact in facts.items():
        if ident not in _JUDGES and ident not in _SILENT and isinstance(fact, Mapping):
            verdict = Verdict.WARN if fact.get("ok") is False else Verdict.OK
            lines.append(
                Check(verdict=verdict, what=ident, value=str(fact.get("value")), cost=fact.get("detail") or "")
            )
    lines += _servers(state)
    lines += (
        Check(verdict=Verdict.WARN, what=problem.code, value=problem.subject or "here", cost=problem.detail)
        for problem in state.problems
        if not problem.cleared
        and problem.code not in _TOLD
        and not any(_of_port(problem, server) for server in state.servers)
    )
    return tuple(lines)


class _Fact:
    """One fact of the probe."""

    def __init__(self, fact: Mapping[str, Any]) -> None:
        self.ok: bool | None = fact.get("ok")
        self.value: Any = fact.get("value")
        self.detail: str = str(fact.get("detail") or "")


def _link(state: HostState) -> Iterator[Check]:
    rtt = state.link.rtt_s
    if rtt is not None:
        slow = rtt > SLOW_LINK_S
        yield Check(
            verdict=Verdict.WARN if slow else Verdict.OK,
            what="link",
            value=f"round trip {rtt * 1000:.1f} ms",
            cost="what is shown is that old; searching a log feels slow" if slow else "",
        )
    for note in state.link.notes:
        option, _, cost = note.rpartition(": ")
        yield Check(verdict=Verdict.WARN, what="ssh config", value=option, cost=cost)


def _python(fact: _Fact, state: HostState) -> Iterator[Check]:
    yield Check(verdict=Verdict.OK, what="python", value=f"{fact.value} ({fact.detail})")


def _user(fact: _Fact, state: HostState) -> Iterator[Check]:
    cost = (
        "" if fact.ok else "of other users' servers neither log nor environment can be read; connect as root or as them"
    )
    yield Check(verdict=Verdict.OK if fact.ok else Verdict.WARN, what="user", value=str(fact.value), cost=cost)


def _proc(fact: _Fact, state: HostState) -> Iterator[Check]:
    verdict = Verdict.OK if fact.ok else Verdict.MISSING
    yield Check(verdict=verdict, what="/proc", value=str(fact.value), cost="" if fact.ok else fact.detail)


def _gpus(fact: _Fact, state: HostState) -> Iterator[Check]:
    count = len(state.gpu_table.gpus) if state.gpu_table else 0
    source = str(fact.value or "")
    if not source:
        cost = fact.detail or "no NVML and no nvidia-smi answers"
        yield Check(
            verdict=Verdict.MISSING, what="gpus", value="none", cost=f"{cost}; servers are shown without memory per GPU"
        )
    elif source == "nvidia-smi":
        yield Check(
            verdict=Verdict.WARN,
            what="gpus",
            value=f"{count} through nvidia-smi",
            cost="no PCIe and NVLink traffic, and slower readings: NVML could not be used",
        )
    else:
        yield Check(verdict=Verdict.OK, what="gpus", value=f"{count} through NVML ({source})")


def _driver(fact: _Fact, state: HostState) -> Iterator[Check]:
    if fact.value:
        cuda = f", CUDA {fact.detail}" if fact.detail else ""
        yield Check(verdict=Verdict.OK, what="driver", value=f"{fact.value}{cuda}")


def _topology(fact: _Fact, state: HostState) -> Iterator[Check]:
    gpus = state.gpu_table.gpus if state.gpu_table else ()
    if len(gpus) < 2:
        return
    if not fact.value:
        yield Check(
            verdict=Verdict.WARN, what="topology", value="not readable", cost="how GPUs are connected is not shown"
        )
        return
    kinds = sorted({str(kind) for row in fact.value for kind in row} - {"X"})
    nodes = sorted({str(gpu.numa_node) for gpu in gpus if gpu.numa_node is not None})
    numa = f", NUMA nodes {' '.join(nodes)}" if nodes else ""
    yield Check(verdict=Verdict.OK, what="topology", value=f"{' '.join(kinds)} between GPUs{numa}")


def _persistence(fact: _Fact, state: HostState) -> Iterator[Check]:
    if fact.ok is not None:
        cost = (
            "" if fact.ok else "the driver unloads when no process uses it: first readings and starts take seconds more"
        )
        yield Check(
            verdict=Verdict.OK if fact.ok else Verdict.WARN,
            what="persistence",
            value="on" if fact.ok else "off",
            cost=cost,
        )


def _psutil(fact: _Fact, state: HostState) -> Iterator[Check]:
    yield Check(verdict=Verdict.OK, what="psutil", value=f"{fact.value or 'none'} (not needed: /proc is read directly)")


def _engines(fact: _Fact, state: HostState) -> Iterator[Check]:
    found = fact.value or []
    if not found:
        yield Check(
            verdict=Verdict.WARN,
            what="engines",
            value="none found",
            cost="none runs and none is in a usual place; a server that is started is found all the same",
        )
    for engine in found:
        running = "running" if engine.get("running") else "installed"
        yield Check(
            verdict=Verdict.OK,
            what="engine",
            value=f"{engine.get('engine')} {engine.get('version') or 'of unknown version'}, {running}"
            f" ({engine.get('prefix') or 'interpreter not readable'})",
        )


def _logs(fact: _Fact, state: HostState) -> Iterator[Check]:
    for key, log in (fact.value or {}).items():
        pid = str(key).partition(":")[0]
        if log.get("kind") == "none":
            yield Check(
                verdict=Verdict.WARN,
                what="log",
                value=f"pid {pid}: none",
                cost=f"{log.get('note') or 'its output goes nowhere'}; no start-up phases, no errors, no batch lines",
            )
        else:
            where = log.get("path") or log.get("note") or ""
            yield Check(verdict=Verdict.OK, what="log", value=f"pid {pid}: {log.get('kind')} {where}".rstrip())


def _kernel_log(fact: _Fact, state: HostState) -> Iterator[Check]:
    cost = "" if fact.ok else "XID errors of the driver are not seen; connect as root"
    value = "readable" if fact.ok else "not readable"
    yield Check(verdict=Verdict.OK if fact.ok else Verdict.WARN, what="kernel log", value=value, cost=cost)


def _shm(fact: _Fact, state: HostState) -> Iterator[Check]:
    total, free = fact.value or (None, None)
    if total is None:
        yield Check(verdict=Verdict.WARN, what="shm", value="not there", cost="ranks of one server need it to talk")
        return
    cost = "" if total >= SHM_WANTED_BYTES else "ranks exchange data there; starts with several ranks may fail"
    value = f"{format_gib(free)} of {format_gib(total)} GiB free"
    yield Check(verdict=Verdict.WARN if cost else Verdict.OK, what="shm", value=value, cost=cost)


def _disk(fact: _Fact, state: HostState) -> Iterator[Check]:
    for path, (total, free) in (fact.value or {}).items():
        cost = "" if free > 1 << 30 else "logs and caches will soon fail to be written"
        yield Check(
            verdict=Verdict.WARN if cost else Verdict.OK,
            what="disk",
            value=f"{path}: {format_gib(free)} of {format_gib(total)} GiB free",
            cost=cost,
        )


def _memory(fact: _Fact, state: HostState) -> Iterator[Check]:
    total, available = fact.value or (None, None)
    if total is not None:
        value = f"{format_gib(available)} of {format_gib(total)} GiB available"
        yield Check(verdict=Verdict.OK, what="memory", value=value)


def _limits(fact: _Fact, state: HostState) -> Iterator[Check]:
    limits: Mapping[str, Sequence[int]] = fact.value or {}
    if "NOFILE" in limits:
        hard = limits["NOFILE"][1]
        cost = "" if fact.ok else "a server started by this user may run out of descriptors under load"
        value = f"{'unlimited' if hard < 0 else hard} open files"
        yield Check(verdict=Verdict.OK if fact.ok else Verdict.WARN, what="limits", value=value, cost=cost)


def _probe(fact: _Fact, state: HostState) -> Iterator[Check]:
    used: Mapping[str, Any] = fact.value or {}
    value = f"{format_bytes(used.get('peak_bytes'))} of memory, {used.get('cpu_s', 0):.2f} s of CPU so far"
    yield Check(verdict=Verdict.OK, what="probe", value=value)


def _folder(fact: _Fact, state: HostState) -> Iterator[Check]:
    found: Mapping[str, Any] = fact.value or {}
    value = "not there: nothing was started from here"
    if found:
        runs = found.get("runs", 0)
        value = f"{runs} {'run' if runs == 1 else 'runs'}, {format_bytes(found.get('bytes'))} in {found.get('path')}"
        if found.get("lease"):
            value += f"; {found['lease']} may change this host"
    yield Check(verdict=Verdict.OK, what="~/.gputuner", value=value)


def _clock(skew: Skew) -> Check:
    known = f"{skew.ahead_s:+.3f} s, within {skew.within_s:.3f} s"
    if skew.certain_s < SKEW_WARN_S:
        return Check(verdict=Verdict.OK, what="clock", value=known)
    return Check(
        verdict=Verdict.WARN,
        what="clock",
        value=known,
        cost="times of day of this host and of others do not compare; durations are right",
    )


def _servers(state: HostState) -> Iterator[Check]:
    for server in state.servers:
        identity = server.identity
        if server.gone:
            continue
        port = "" if identity.port is None else f", port {identity.port}"
        told = next((p.detail for p in state.problems if _of_port(p, server) and not p.cleared), "")
        trouble = server.http_problem or told or _no_numbers(server)
        yield Check(
            verdict=Verdict.WARN if trouble else Verdict.OK,
            what=identity.engine,
            value=f"pid {identity.pid}{port}, {server.phase}",
            cost=trouble,
        )


def _of_port(problem: ProblemSeen, server: ServerState) -> bool:
    """Return whether a problem is about a server's port, so that the server's line tells it."""
    return problem.code.startswith("http-") and problem.subject == server.identity.key and not server.gone


def _no_numbers(server: ServerState) -> str:
    """Return what is missing because a ready server gives no metrics; empty if it does, or is not ready."""
    port = server.identity.port
    if server.phase is not Phase.READY or port is None or server.metrics.source not in (None, "log"):
        return ""
    answers = "does not answer with metrics" if port in server.identity.ports else "is closed"
    return f"its port {answers}; only what its log says is shown"


_Judge = Callable[[_Fact, HostState], Iterator[Check]]
_JUDGES: dict[str, _Judge] = {
    "python": _python,
    "user": _user,
    "proc": _proc,
    "nvml": _gpus,
    "driver": _driver,
    "topology": _topology,
    "persistence": _persistence,
    "psutil": _psutil,
    "engines": _engines,
    "logs": _logs,
    "kernel_log": _kernel_log,
    "memory": _memory,
    "shm": _shm,
    "disk": _disk,
    "limits": _limits,
    "probe": _probe,
    "folder": _folder,
}
"""The function that makes the lines of each check, by id, in the order of the lines."""

_SILENT = frozenset({"time", "pythons", "kernel", "journal"})
"""Ids of facts that have no line of their own."""
_TOLD = frozenset({"no-gpu"})
"""Codes of problems that a check tells already."""
