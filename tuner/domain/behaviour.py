"""How an engine behaves where no line of its log tells it.

The values are data (`engines/NAME/behaviour.toml`). The defaults are what a diagnosis assumes of an engine of which
nothing else is known.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from tuner.domain.runs import Ask, DrainAsk, StopStep


class PortBound(enum.StrEnum):
    """When an engine binds the port at which it serves clients."""

    FIRST = "first"
    """Bound before the ranks are started: a taken port ends the start at once."""
    LAST = "last"
    """Bound after the ranks are ready: a taken port ends the start after everything was loaded."""


class StackPhase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Functions that only run in one phase."""

    phase: str
    """One of `core.causes.PHASES`."""
    frames: tuple[str, ...]
    """Parts of `path:function`."""


class Frames(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is on the stack while something is done, as parts of `path:function`."""

    serving: tuple[str, ...] = ()
    """A forward pass for requests, or for the warm-up."""
    arguments: tuple[str, ...] = ()
    """The check of its arguments."""
    core: tuple[str, ...] = ()
    """Anything in the process that runs the engine proper, behind the arguments."""
    child: tuple[str, ...] = ()
    """Anything in a process that its main one starts."""
    profile: tuple[str, ...] = ()
    """The forward pass that is measured before the KV pool is sized."""
    sampler_warmup: tuple[str, ...] = ()
    """The first run of the sampler, with logits of as many requests as are allowed."""
    prefill_capture: tuple[str, ...] = ()
    """The capture of graphs of prefill steps."""
    host_pool: tuple[str, ...] = ()
    """The allocation of a pool in host memory, behind the one on the GPU."""


class Stopping(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine is stopped, and what it does meanwhile."""

    serving: tuple[StopStep, ...] = (
        StopStep(signal="TERM", wait_s=20.0),
        StopStep(signal="TERM", wait_s=10.0),
        StopStep(signal="TERM", to="orphans", wait_s=5.0),
        StopStep(signal="KILL", to="tree", wait_s=10.0),
    )
    """The ladder for a server that is ready."""
    loading: tuple[StopStep, ...] = (
        StopStep(signal="TERM", wait_s=10.0),
        StopStep(signal="TERM", wait_s=10.0),
        StopStep(signal="TERM", to="orphans", wait_s=5.0),
        StopStep(signal="KILL", to="tree", wait_s=10.0),
    )
    """The ladder for one that still starts."""
    term_drains: bool = False
    """True: after the first TERM it finishes the requests in flight by itself, without a limit."""
    drain: tuple[DrainAsk, ...] = ()
    """Where the number of requests in flight can be read; the first that answers."""
    lingers: str = ""
    """Why its end may take long, in words."""


class Starting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one learns that an engine serves."""

    health: Ask | None = None
    first_token: Ask | None = None
    rank_titles: tuple[str, ...] = ()
    """Regular expressions on the titles of the processes that are its ranks; empty: those of all its processes."""
    help: tuple[str, ...] = ("--help",)
    """Arguments with which its command prints all its flags."""
    no_tokens: dict[str, tuple[str, ...]] = {}
    """Server args with which a server generates no tokens, by canonical name, with the values that mean so; no values:
    any value other than false."""


class FlagRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the parser of an engine differs from argparse."""

    underscores: bool = False
    """True: `--max_model_len` is `--max-model-len`."""
    dotted: bool = False
    """True: `--flag.key value` sets one key of a JSON value."""
    further: tuple[str, ...] = ()
    """Flags that it takes and its help does not list."""


class Behaviour(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one engine behaves, all versions alike."""

    port_bound: PortBound = PortBound.LAST
    one_rank_speaks: bool = False
    """True: one rank logs what all of them do, so the silence of the others means nothing."""
    stop_unlogged_while_loading: bool = False
    """True: a SIGTERM that arrives before the server is ready leaves no line."""
    overwrites_settings: bool = False
    """True: it changes settings before it prints them; what the operator asked for stands on the command line only."""
    driver_overhead_gib: float = 0.0
    """GiB by which the GPU memory it reckons with is below what the driver reports."""
    profiles_before_pool: bool = False
    """True: it measures a forward pass before it sizes the KV pool."""
    beside_pool: str = "graphs and passes"
    """What is allocated right after the pool, in words."""
    requests_take: str = "less is kept for each of them"
    """Why fewer concurrent requests leave more memory beside the pool, in words."""
    process_number: str = ""
    """Regular expression whose only group is the number in the name of a rank's process; empty: names carry none."""
    numbers_each_replica: bool = False
    """True: with data parallelism that number counts within a replica, or another process, and names no rank."""
    compile_cache: str = ""
    """Folder of its compiled graphs, and the variable that moves it, in words; empty: it keeps none."""
    compile_cache_part: str = ""
    """Part of every path into that cache."""
    variables: tuple[str, ...] = ()
    """Prefixes of its own environment variables."""
    stack: tuple[StackPhase, ...] = ()
    """Phases by functions on a stack: the first entry that any frame contains decides."""
    frames: Frames = Frames()
    stopping: Stopping = Stopping()
    starting: Starting = Starting()
    flags: FlagRules = FlagRules()
    process_title: str = ""
    """Prefix of the titles of its processes."""
    llm_flag: str = "--model"
    """The argument that names the LLM. It is no knob: a forecast for another LLM is another forecast."""
    adapters_flag: str = "--lora-paths"
    """The argument that names LoRA adapters."""
    draft: tuple[str, ...] = ()
    """Server args that name the draft for speculative decoding, by canonical name; the first that is set counts. `a.b`
    is also the key `b` of the JSON value of `a`."""
