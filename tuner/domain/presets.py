"""A preset: a named change of a server's arguments and environment, with the reason why one would want it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

ANY_ENGINE = "any"
"""`Preset.engine` of a preset whose knobs every engine has, or reads through a shared library such as NCCL."""


class Requires(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a preset needs of host and engine; an empty value asks for nothing."""

    gpus: int | None = None
    """Least number of GPUs that the server spans."""
    interconnect: str = ""
    """`nvlink` (every pair of GPUs), `pcie` (at least one pair without NVLink), or empty."""
    compute: tuple[str, ...] = ()
    """Compute capabilities as `9.0`, `12.0`: one of them is needed."""
    memory_gib: float | None = None
    """Least memory of a card, GiB."""
    iommu: str = ""
    """`off`: neither IOMMU nor ACS may redirect traffic between GPUs; empty: it does not matter."""
    versions: dict[str, str] = {}
    """Engine name to a range of its versions: `{"sglang": "0.5.23 -"}`."""
    words: str = ""
    """What no field tells, in words; shown, not checked."""


class Expectation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a preset is expected to change, and where that is known from."""

    what: str
    source: str


class Preset(Struct, frozen=True, kw_only=True):
    """One preset as its file states it, `extends` not yet resolved."""

    id: str
    """The name of its file without the extension."""
    title: str
    engine: str = ANY_ENGINE
    """`sglang`, `vllm`, or `any`."""
    why: str
    requires: Requires = Requires()
    expect: tuple[Expectation, ...] = ()
    extends: tuple[str, ...] = ()
    """Presets whose values come first, in this order; own values win."""
    args: dict[str, Any] = {}
    """Canonical knob name to value, for knobs that are flags."""
    env: dict[str, str] = {}
    """Environment variable (or the canonical name of its knob) to value."""
    flags: dict[str, str | bool] = {}
    """Flags that the catalogue of knobs does not hold, as the engine spells them: `--flag` to its value, or true for a
    switch. They are checked against the installed engine only."""
    unset: tuple[str, ...] = ()
    """Knobs, flags and variables that are taken away from the base, so that the engine's default holds."""
    path: str = ""
    """The file it was read from."""
    lines: dict[str, int] = {}
    """Line of each key in its file: `args.mem_fraction_static` to 12; of a name in `unset`, `unset.NAME`."""
    paths: dict[str, str] = {}
    """File of each key that came from a preset that it extends; for all other keys it is `path`."""
    local: tuple[str, ...] = ()
    """Paths of the files in the working folder that it is made of; others may have written them."""
    titles: dict[str, str] = {}
    """Engine name to the name that people write, of the known engines; empty: the preset was not read from a file."""


class Doubt(Struct, frozen=True, kw_only=True):
    """Harm that a value can do, and that does not refuse it: the operator decides."""

    title: str
    """What it is about, in a word or two."""
    words: str
    """What can happen and why, one line without full stop."""
    way_out: str = ""
    """What to do instead; empty: leave it out."""
    sure: bool = True
    """False: it depends on what the host does not tell, or does no more than nothing."""


class Overlay(Struct, frozen=True, kw_only=True):
    """A preset, composed and spelled for one engine version: what it adds to a base, and what it takes away."""

    argv: tuple[str, ...] = ()
    """Flag and value as two elements; a switch is one."""
    env: dict[str, str] = {}
    unset_flags: tuple[str, ...] = ()
    """Flags (every spelling of them) that the base must not have: those set anew, and those taken away."""
    unset_env: tuple[str, ...] = ()
    values: dict[str, Any] = {}
    """Canonical knob name to the value that it gets; None: left to the engine."""
    notes: tuple[str, ...] = ()
    """What an operator should know, in words: a spelling that changed, a value that is the default, a hazard."""
    doubts: tuple[Doubt, ...] = ()
    """Harm that a value can do without being refused; `notes` tell it too."""
    problems: tuple[str, ...] = ()
    """Why it must not be applied, each in one line with place and way out; empty: nothing speaks against it."""
