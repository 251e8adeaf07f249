"""How the ranks of a server add up their tensors: a section of the Details screen."""

from __future__ import annotations

from tuner.core.gates import all_reduce, hardware_of, start_of
from tuner.core.reduction_words import headline, rows
from tuner.domain.state import HostState, ServerState
from tuner.screens.explain_requests import engines
from tuner.screens.sections import Section
from tuner.widgets.glyphs import Glyphs


def all_reduce_section(state: HostState, server: ServerState, glyphs: Glyphs) -> Section | None:
    """Each way to add up a tensor with its gates; None where there is nothing to add up."""
    engine = engines().get(server.identity.engine)
    if engine is None:
        return None
    told = all_reduce(start_of(server), engine, hardware_of(state, server))
    if told is None:
        return None
    section = Section("all-reduce")
    section.line(f"{told.world} ranks: {headline(told)}")
    for row in rows(told, gates=True):
        section.sign(row.name, row.words, row.good, glyphs)
    return section
