"""The registry of screens, from which modes, keys, help and palette entries are made."""

from __future__ import annotations

from msgspec import Struct

from tuner.screens.base import TunerScreen
from tuner.screens.compare import CompareScreen
from tuner.screens.details import DetailsScreen
from tuner.screens.findings import FindingsScreen
from tuner.screens.logs import LogsScreen
from tuner.screens.overview import OverviewScreen
from tuner.screens.plan import PlanScreen
from tuner.screens.tune import TuneScreen


class Entry(Struct, frozen=True):
    """A screen in the registry."""

    name: str
    screen: type[TunerScreen]
    key: str
    title: str
    help: str


SCREENS: tuple[Entry, ...] = (
    Entry("overview", OverviewScreen, "o", "Overview", "Ranks, memory, speed and the end of the log"),
    Entry("logs", LogsScreen, "l", "Logs", "The whole log: filter, search, errors"),
    Entry("findings", FindingsScreen, "x", "Findings", "Why: the start rank by rank, and all that was found"),
    Entry("tune", TuneScreen, "t", "Tune", "Presets: what one changes, whether it fits; apply it, go back"),
    Entry("details", DetailsScreen, "i", "Details", "Arguments, environment, settings, topology"),
    Entry("compare", CompareScreen, "d", "Compare", "Two starts side by side, ranked by what explains the outcome"),
    Entry("plan", PlanScreen, "m", "Plan", "The memory of a coming start: turn knobs, see what fits"),
)
"""All screens, in display order."""
