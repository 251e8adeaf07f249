"""Mask every text of a value type, so that a field which is added to it cannot be forgotten."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tuner.core.redact import mask, mask_argv, mask_env, mask_json

Value = TypeVar("Value")

PATHS = frozenset(("cwd", "log", "failed_log", "log_dir"))
"""Names of the texts that are left as they are: paths in which a later start works, which may be named like a token."""


def masked(value: Value) -> Value:
    """Return a value with the secrets in all its texts replaced; the same object where there are none.

    A text is masked as `mask` does, words of a tuple as those of a command line, texts by name as an environment, and
    the values in it likewise. The fields of a `Struct` that are named in `PATHS` are left as they are.

    Args:
        value: A text, a tuple, a dictionary, a `Struct` or anything else, which is left as it is.
    """
    clean: Any = _masked(value)
    return value if clean == value else clean


def _masked(value: Any) -> Any:
    match value:
        case enum.Enum():
            return value
        case str():
            return mask(value)
        case tuple() if all(isinstance(each, str) for each in value):
            return mask_argv(value)
        case tuple():
            return tuple(_masked(each) for each in value)
        case dict() if all(isinstance(each, str) for each in value.values()):
            return mask_env(value)
        case dict():
            return mask_json(value)
        case Struct():
            names = (field.name for field in msgspec.structs.fields(value) if field.name not in PATHS)
            fields = ((name, getattr(value, name)) for name in names)
            changed = {name: clean for name, old in fields if (clean := _masked(old)) != old}
            return msgspec.structs.replace(value, **changed) if changed else value
        case _:
            return value
