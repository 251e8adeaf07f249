"""What the probe is told to look for, made of what the engines know."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.core.engine import Engine
from tuner.domain.plan import ProbePlan


def plan_for(engines: Mapping[str, Engine] | None = None) -> ProbePlan:
    """Make the plan for the probe from the engines' plans.

    Args:
        engines: Engines by name; None: all engines.
    """
    if engines is None:
        from tuner.engines import load_engines

        engines = load_engines()
    return ProbePlan(engines=tuple(engine.plan() for engine in engines.values()))
