"""Read and write recipes: TOML files that gputuner makes and people edit, one for each recipe.

```toml
host = "root@gpu-box-1"
engine = "sglang"
command = ["/venv/bin/python", "-m", "sglang.launch_server"]
args = [
    "--model-path", "/models/llama",
    "--port", "30000",
]

[env]
NCCL_BUFFSIZE = "4194304"
HF_TOKEN = "***"
```

A file is written at once or not at all, its comments stay, and it never holds a secret: `***` stands for one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from msgspec import Struct

from tuner.core.redact import mask, mask_argv, mask_env
from tuner.core.toml_lines import item_line, key_lines
from tuner.domain.recipe import MASK, Recipe
from tuner.domain.server import Manager
from tuner.errors import CatalogError, UsageProblem
from tuner.paths import recipes_dir
from tuner.store.toml_files import change_toml, converted, fill, read_toml

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HEAD = "How this server is started; gputuner lays presets over it. *** stands for a secret, which stays on the host."
_SCALARS = ("host", "engine", "version", "model", "port", "cwd", "log_dir", "ready_s", "origin")
"""Fields in the order in which they are written, before command, arguments and tables."""


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a recipe's file; a command line may be written as one text, as a shell takes it."""

    host: str
    engine: str
    command: str | tuple[str, ...]
    version: str | None = None
    args: str | tuple[str | int | float, ...] = ()
    env: dict[str, Any] = {}
    cwd: str | None = None
    log_dir: str | None = None
    model: str | None = None
    port: int | None = None
    manager: Manager | None = None
    ready_s: float | None = None
    origin: str = ""
    like: str = ""


FIELDS = tuple(field.name for field in msgspec.structs.fields(_File))


class Recipes(Struct, frozen=True, kw_only=True):
    """The user's recipes, and what is wrong with those that cannot be read."""

    found: dict[str, Recipe] = {}
    """By name."""
    problems: tuple[CatalogError, ...] = ()


def load_recipes(folder: Path | None = None) -> Recipes:
    """Read all recipes of a folder (None: the user's own); one that is wrong leaves the others."""
    found: dict[str, Recipe] = {}
    problems: list[CatalogError] = []
    for path in sorted((folder or recipes_dir()).glob("*.toml")):
        try:
            found[path.stem] = load_recipe(path)
        except CatalogError as error:
            problems.append(error)
    return Recipes(found=found, problems=tuple(problems))


def load_recipe(path: Path) -> Recipe:
    """Read one recipe.

    Raises:
        CatalogError: It cannot be read, is not TOML, has an unknown field or one of the wrong type, or holds a secret.
            The error names the line.
    """
    text, content = read_toml(path)
    lines = key_lines(text)
    for name in content:
        if name not in FIELDS:
            raise CatalogError(path, lines.get(name), f"there is no field {name}", f"Fields are {', '.join(FIELDS)}")
    for name in ("host", "engine", "command"):
        if not content.get(name):
            raise CatalogError(path, lines.get(name, 1), f"it has no {name}", f"Write {_EXAMPLES[name]}")
    recipe = _recipe(path, converted(_File, path, content, text), lines)
    _refuse_secrets(path, recipe, text, lines)
    return recipe


_EXAMPLES = {
    "host": 'host = "root@gpu-box-1"',
    "engine": 'engine = "sglang"',
    "command": 'command = ["/venv/bin/python", "-m", "sglang.launch_server"]',
}


def _recipe(path: Path, file: _File, lines: Mapping[str, int]) -> Recipe:
    for name, value in file.env.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise CatalogError(path, lines.get(f"env.{name}"), f"env.{name} is no text", f'Write {name} = "..."')
    words: dict[str, tuple[str, ...]] = {}
    for name, value in (("command", file.command), ("args", file.args)):
        try:
            words[name] = tuple(shlex.split(value) if isinstance(value, str) else map(str, value))
        except ValueError as error:
            raise CatalogError(path, lines.get(name), f"{name} cannot be taken apart ({error})") from error
    return Recipe(
        name=path.stem,
        host=file.host,
        engine=file.engine,
        version=file.version,
        command=words["command"],
        args=words["args"],
        env={name: str(value) for name, value in file.env.items()},
        cwd=file.cwd,
        log_dir=file.log_dir,
        model=file.model,
        port=_port(words["args"]) if file.port is None else file.port,
        manager=file.manager,
        ready_s=file.ready_s,
        origin=file.origin,
        like=file.like,
    )


def _port(args: Sequence[str]) -> int | None:
    """Return the port that arguments name; both engines call it so."""
    port = None
    for at, word in enumerate(args):
        flag, equals, value = word.partition("=")
        given = value if equals else "".join(args[at + 1 : at + 2])
        if flag == "--port" and given.isdecimal():
            port = int(given)
    return port


def _refuse_secrets(path: Path, recipe: Recipe, text: str, lines: Mapping[str, int]) -> None:
    """Refuse a file with a secret in it: it could not be used, since secrets stay on the host."""
    hint = f'Write "{MASK}": the host fills it in from the server that runs, or ran'
    for name, value in mask_env(recipe.env).items():
        if value != recipe.env[name]:
            raise CatalogError(path, lines.get(f"env.{name}"), f"{name} holds a secret", hint)
    for field, words in (("command", recipe.command), ("args", recipe.args)):
        for word, masked in zip(words, mask_argv(words), strict=True):
            if word != masked:
                raise CatalogError(path, item_line(text, word, lines.get(field, 1)), f"{field} hold a secret", hint)


# --- Writing ----------------------------------------------------------------------------------------------------------


def save_recipe(recipe: Recipe, folder: Path | None = None, *, replace: bool = False) -> Path:
    """Write a recipe to `folder/NAME.toml`, secrets masked, and return the path.

    Args:
        recipe: The recipe. Its `like` is left out: that server will not run for ever.
        folder: The folder; None: the user's own.
        replace: Whether a file of that name may be replaced; its comments stay.

    Raises:
        UsageProblem: The name is no file name, the file is there already, or it cannot be written.
    """
    if not _NAME.fullmatch(recipe.name):
        raise UsageProblem(
            "A recipe is called by letters, digits, dots, dashes and underscores",
            repr(recipe.name),
            "Take another name",
        )
    path = (folder or recipes_dir()) / f"{recipe.name}.toml"
    if path in path.parent.glob("*.toml") and not replace:  # exists() raises where a name is too long
        raise UsageProblem("There is such a recipe already", str(path), "Take another name, or say --replace")
    change_toml(path, "recipe", lambda document: _fill(document, recipe), new=_new)
    return path


def _new() -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    document.add(tomlkit.comment(_HEAD))
    return document


def _fill(document: tomlkit.TOMLDocument, recipe: Recipe) -> None:
    """Give a document the fields of a recipe; those that are empty are taken out."""
    fields: dict[str, Any] = {name: getattr(recipe, name) for name in _SCALARS}
    fields = {name: mask(value) if isinstance(value, str) else value for name, value in fields.items()}
    fields |= {"command": list(mask_argv(recipe.command)), "args": list(mask_argv(recipe.args))}
    fields |= {"env": mask_env(recipe.env), "manager": _set(msgspec.to_builtins(recipe.manager) or {})}
    document.pop("like", None)
    fill(document, fields, lambda name, value: _rows(value) if name == "args" else tomlkit.item(value))


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _rows(words: Sequence[str]) -> Any:
    """Return arguments as a TOML array with a flag and its values in each row."""
    rows: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not rows:
            rows.append([])
        rows[-1].append(word)
    text = "".join(f"    {', '.join(tomlkit.string(word).as_string() for word in row)},\n" for row in rows)
    return tomlkit.parse(f"args = [\n{text}]\n")["args"]
