"""The supported inference engines, one sub-package each, discovered at run time.

A sub-package is an engine if it defines `ENGINE`, an object with the methods of `core.engine.Engine`.
"""

from __future__ import annotations

import importlib
import pkgutil

from tuner.core.engine import Engine


def load_engines() -> dict[str, Engine]:
    """Import all engines and return them by name.

    Raises:
        CatalogError: An engine's data files are invalid.
    """
    engines: dict[str, Engine] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            engine: Engine = importlib.import_module(f"{__name__}.{module.name}").ENGINE
            engines[engine.name] = engine
    return engines
