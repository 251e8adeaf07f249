"""How an engine behaves where no line of its log tells: what a diagnosis has to know of it.

The values are data (`engines/NAME/behaviour.toml`). The defaults are what a diagnosis assumes of an engine of which
nothing else is known.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class PortBound(enum.StrEnum):
    """When an engine binds the port at which it serves clients."""

    FIRST = "first"
    """Before it starts its ranks: a taken port ends the start at once."""
    LAST = "last"
    """After its ranks are ready: a taken port ends the start after everything was loaded."""


class StackPhase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Functions that only run in one phase."""

    phase: str
    """One of `core.causes.PHASES`."""
    frames: tuple[str, ...]
    """Parts of `path:function`."""


class Behaviour(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one engine behaves, all versions alike."""

    port_bound: PortBound = PortBound.LAST
    one_rank_speaks: bool = False
    """One rank logs what all of them do, so that silence of the others means nothing."""
    stop_unlogged_while_loading: bool = False
    """A SIGTERM that arrives before it is ready leaves no line."""
    overwrites_settings: bool = False
    """It switches settings itself before it prints them: what an operator asked for stands only on the command line."""
    driver_overhead_gib: float = 0.0
    """What its own sums lack of a card's memory as the driver counts it, GiB."""
    profiles_before_pool: bool = False
    """It measures a forward pass before it sizes the KV pool."""
    beside_pool: str = "graphs and passes"
    """What is allocated right behind the pool, in words."""
    requests_take: str = "less is kept for each of them"
    """Why fewer concurrent requests leave more memory beside the pool, in words."""
    process_number: str = ""
    """Regular expression whose only group is the number in the name of a rank's process; empty: names carry none."""
    numbers_each_replica: bool = False
    """With data parallelism that number counts within a replica, or counts another process: it names no rank."""
    compile_cache: str = ""
    """Where it keeps compiled graphs, and the variable that moves it, in words; empty: it keeps none."""
    compile_cache_part: str = ""
    """What every path into that cache contains."""
    variables: tuple[str, ...] = ()
    """How the names of its own environment variables begin."""
    stack: tuple[StackPhase, ...] = ()
    """What a stack tells of the phase: the first entry that any of its frames contains decides."""
    serving_frames: tuple[str, ...] = ()
    """Parts of `path:function` that are on the stack while a forward pass for requests, or for the warm-up, runs."""
    argument_frames: tuple[str, ...] = ()
    """Likewise: while it reads and checks its arguments."""
    core_frames: tuple[str, ...] = ()
    """Likewise: in the process that runs the engine proper, behind the arguments."""
    child_frames: tuple[str, ...] = ()
    """Likewise: in any process that its main one starts."""
    process_title: str = ""
    """How the titles of its processes begin."""
    llm_flag: str = "--model"
    """The argument that names the LLM. It is no knob: a forecast for another LLM is another forecast."""
    adapters_flag: str = "--lora-paths"
    """The argument that names LoRA adapters."""
