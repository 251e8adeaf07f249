"""The section of the Details screen about all-reduce: which implementation the ranks use, and why."""

from __future__ import annotations

from tuner.core.gates import all_reduce, hardware_of, with_failures
from tuner.core.reduction_words import headline, rows
from tuner.core.scene import with_host
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.screens.explain_requests import engines
from tuner.screens.sections import Section
from tuner.widgets.glyphs import Glyphs


def all_reduce_section(state: HostState, server: ServerState, glyphs: Glyphs) -> Section | None:
    """Return each way with its gates; None where there is no all-reduce."""
    engine = engines().get(server.identity.engine)
    if engine is None:
        return None
    start = with_host(server.start or Start(engine=engine.name), server)
    told = all_reduce(start, engine, hardware_of(state, server))
    if told is None:
        return None
    told = with_failures(told, server.findings)
    section = Section("all-reduce")
    section.line(f"{told.world} ranks: {headline(told)}")
    for row in rows(told, gates=True):
        section.sign(row.name, row.words, row.good, glyphs)
    return section
