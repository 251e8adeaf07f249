"""The operator's presets, recipes and number keys on this machine, for the dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner import paths
from tuner.catalog import load_presets
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.errors import CatalogError, UsageProblem
from tuner.store import presets as preset_files
from tuner.store import recipes as recipe_files
from tuner.store import settings


class FileLibrary:
    """A library in files: `presets/` of the wheel, the user and the project, and the user's recipes."""

    def presets(self) -> tuple[Mapping[str, Preset], tuple[CatalogError, ...]]:
        """Return all presets by id, those that come with gputuner first, and what is wrong with other files."""
        read = load_presets()
        bundled = {path.stem for path in paths.presets_dir().glob("*.toml")}
        # A preset that is added moves none of the bundled ones to another number key.
        return {
            name: read.found[name] for name in sorted(read.found, key=lambda name: name not in bundled)
        }, read.problems

    def order(self, host: str) -> Sequence[str]:
        """Return the ids of presets in the order of the number keys of a host; empty: there is none."""
        return settings.preset_order(host)

    def keep_order(self, host: str, ids: Sequence[str]) -> None:
        """Keep the order of the number keys of a host."""
        settings.keep_preset_order(host, ids)

    def recipes(self, host: str) -> Sequence[Recipe]:
        """Return the recipes for a host."""
        return [each for each in recipe_files.load_recipes().found.values() if each.host == host]

    def save_preset(self, preset: Preset) -> str:
        """Save a new preset in the user's folder; return where. One that is known or there already is not replaced."""
        folder = paths.config_dir() / "presets"
        if folder / f"{preset.id}.toml" in folder.glob("*.toml") or preset.id in load_presets().found:
            raise UsageProblem(f"There is a preset {preset.id} already", str(folder), "Take another name")
        return str(preset_files.save_preset(preset, folder))

    def save_recipe(self, recipe: Recipe) -> str:
        """Save a new recipe; return where."""
        return str(recipe_files.save_recipe(recipe))
