"""The inference engines gputuner knows: one folder each, found by being there.

A sub-package that defines `ENGINE`, an object with the methods of `core.engine.Engine`, is an engine.
"""

from __future__ import annotations

import importlib
import pkgutil

from tuner.core.engine import Engine


def load_engines() -> dict[str, Engine]:
    """Every engine by name.

    Raises:
        CatalogError: An engine's data files are wrong.
    """
    engines: dict[str, Engine] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            engine: Engine = importlib.import_module(f"{__name__}.{module.name}").ENGINE
            engines[engine.name] = engine
    return engines
