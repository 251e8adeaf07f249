"""Words for the all-reduce paths of a start, shared by the command line and the screens."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from tuner.core.gates import ASKED
from tuner.domain.gates import AllReduce, Gate, GateState, Path, PathState

_ENOUGH = 40
"""Characters from which a quoted line is reason enough, without what the gate asks for."""


class Row(Struct, frozen=True, kw_only=True):
    """One line of the section on all-reduce."""

    name: str
    words: str
    at: int | None = None
    good: bool | None = None
    """True: it runs. False: it does not. None: neither, or not known."""
    below: bool = False
    """True: it is a detail of the row before."""


def headline(told: AllReduce) -> str:
    """Return which paths reduce which tensors, in one sentence."""
    *ways, last = told.used
    sure = [way for way in ways if way.state is not PathState.UNKNOWN]
    perhaps = [way for way in ways if way.state is PathState.UNKNOWN]
    words = ", ".join(_sized(way) for way in sure)
    text = f"{words}, and {last.title} for the rest" if words else f"{last.title} for every tensor"
    failed = [path.title for path in told.paths if path.state is PathState.FAILED]
    if failed:
        text = f"{' and '.join(failed)} failed; without, {text}"
    for way in perhaps:
        gate = way.unsure
        text += f"; perhaps {way.title} first: {gate.told if gate is not None else 'nothing tells'}"
    return text


def rows(told: AllReduce, *, gates: bool = False, unasked: bool = False) -> Iterator[Row]:
    """Yield the paths in the order in which they are tried, then the notes on NCCL.

    Args:
        told: All-reduce paths of one start.
        gates: Also yield every gate below its path.
        unasked: Yield opt-in paths that nobody asked for one by one; else they are named together.
    """
    left_out: list[str] = []
    for path in told.paths:
        closed = path.closed
        if not unasked and closed is not None and closed.what.startswith(ASKED):
            left_out.append(path.title)
            continue
        yield row(path, last=path is told.paths[-1])
        if gates:
            for gate in path.gates:
                yield _gate(gate)
    if left_out:
        yield Row(name="not asked for", words=", ".join(left_out))
    for note in told.notes:
        yield Row(name=note.what, words=note.value, at=note.at, good=note.good)


def row(path: Path, *, last: bool = False) -> Row:
    """Return the row of one path."""
    closed, unsure = path.closed, path.unsure
    if path.state is PathState.FAILED:
        return Row(name=path.title, words=f"failed: {path.told}", at=path.at, good=False)
    if path.state is PathState.PROVEN:
        return Row(name=path.title, words=f"runs, {path.takes}: {path.told}", at=path.at, good=True)
    if path.state is PathState.CLOSED and closed is not None:
        known = "off as far as is known" if closed.assumed else "off"
        return Row(name=path.title, words=f"{known}: {_why(closed)}", at=closed.at, good=False)
    if path.state is PathState.UNKNOWN and unsure is not None:
        return Row(name=path.title, words=f"cannot be told: {unsure.told}")
    if last:
        return Row(name=path.title, words=f"takes {path.takes}", good=True)
    return Row(name=path.title, words=f"may run, {path.takes}: no gate is closed")


def _why(gate: Gate) -> str:
    """Return why a gate is closed: its evidence, and what it asks for unless the evidence says enough."""
    if "=" in gate.told or len(gate.told) > _ENOUGH or gate.told.endswith("comes first"):
        return gate.told
    return f"{gate.told}, not {gate.what}" if gate.told else f"not {gate.what}"


def _gate(gate: Gate) -> Row:
    told = f" ({gate.told})" if gate.told else ""
    good = {GateState.PASSED: True, GateState.CLOSED: False, GateState.UNKNOWN: None}[gate.state]
    return Row(name="", words=f"{gate.what}{told}", at=gate.at, good=good, below=True)


def _sized(path: Path) -> str:
    return f"{path.title} ({path.takes})" if path.takes else path.title
