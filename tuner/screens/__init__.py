"""The screens of the app and the registry that makes them modes, keys, help and palette entries."""

from __future__ import annotations

from msgspec import Struct

from tuner.screens.base import TunerScreen
from tuner.screens.details import DetailsScreen
from tuner.screens.findings import FindingsScreen
from tuner.screens.logs import LogsScreen
from tuner.screens.overview import OverviewScreen


class Entry(Struct, frozen=True):
    """One screen of the registry."""

    name: str
    screen: type[TunerScreen]
    key: str
    title: str
    help: str


SCREENS: tuple[Entry, ...] = (
    Entry("overview", OverviewScreen, "o", "Overview", "Ranks, memory, speed and the end of the log"),
    Entry("logs", LogsScreen, "l", "Logs", "The whole log: filter, search, errors"),
    Entry("findings", FindingsScreen, "x", "Findings", "Why: the start rank by rank, and all that was found"),
    Entry("details", DetailsScreen, "i", "Details", "Arguments, environment, settings, topology"),
)
"""In display order."""
