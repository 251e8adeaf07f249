"""Which all-reduce a server really runs: the paths its engine has, and the gates before each of them.

Rules are data (`engines/NAME/gates.toml`); `core.gates` evaluates them for one start.
"""

from __future__ import annotations

import enum
from typing import Any

from msgspec import Struct


class GateState(enum.StrEnum):
    """What is known of one gate."""

    PASSED = "passed"
    CLOSED = "closed"
    UNKNOWN = "unknown"


class Look(enum.StrEnum):
    """What a gate looks at."""

    SETTING = "setting"
    """A server arg, by any of its names."""
    ENV = "env"
    """A variable of the server's environment."""
    WORLD = "world"
    """Ranks of the tensor parallel group."""
    NODES = "nodes"
    """Hosts that the group spans."""
    NVLINK = "nvlink"
    """Every two GPUs of the group are connected by NVLink."""
    CAPABILITY = "capability"
    """Compute capability of the GPUs: `9` for its major number, `10.3` for the very one."""
    NCCL = "nccl"
    """NCCL's version is at least this."""
    PATH = "path"
    """No other path takes the tensor first."""
    LINE = "line"
    """Only a line of the log tells."""


class Closing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that decides a gate."""

    sign: str
    """Id of a sign of the engine."""
    text: str = ""
    """Regular expression that its message must contain; empty: any message."""
    versions: str = ""
    """Engine versions in which the line means this; empty: all."""


class GateRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One gate as its data file has it."""

    what: str
    """What the gate asks for, in a few words: `one node`."""
    test: Look
    name: str = ""
    """Server arg, variable or other path that is looked at."""
    also: tuple[str, ...] = ()
    """Other names of the same."""
    opens: tuple[Any, ...] = ()
    """Values that let it pass; `any` means every value that is set."""
    default: Any = None
    """The value if it is not set."""
    above: int = 0
    """The gate is only there for groups of more ranks."""
    versions: str = ""
    """Engine versions that have this gate, as `core.versions.in_range` reads them; empty: all."""
    closed_by: tuple[Closing, ...] = ()
    passed_by: tuple[Closing, ...] = ()
    unsure_by: tuple[Closing, ...] = ()
    """Lines of a patched engine, after which the state of the gate is not known."""


class PathExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A start for which the state of the path is known: an example that tests check."""

    version: str
    ranks: int = 2
    state: str
    """One of `PathState`."""
    settings: dict[str, Any] = {}
    env: dict[str, str] = {}
    nvlink: bool | None = None
    capability: str = ""
    closed: str = ""
    """`GateRule.what` of the gate that closes it."""


class PathRule(Struct, frozen=True, kw_only=True):
    """One all-reduce path; an engine tries its paths in the order of the data file."""

    id: str
    title: str
    versions: str = ""
    takes: str = ""
    """Which tensors it takes: `up to 8 MiB`."""
    listed: str = ""
    """Its name in vLLM's list of backends."""
    platform: str = "cuda"
    """Platform that has it (`cuda`, `rocm`), empty: any. Paths of other platforms are not shown."""
    gates: tuple[GateRule, ...] = ()
    proven_by: tuple[Closing, ...] = ()
    """Lines that say it is set up."""


class VariableRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variable that people set and that does nothing in some versions."""

    name: str
    why: str
    """Why it does nothing, in words; `{version}` is the engine's."""
    reads: str = ""
    """Versions that read it; `none`: no release."""
    acts_on: tuple[str, ...] = ()
    """Ids of the paths that it changes: if all of them are closed, it does nothing."""
    unset: tuple[str, ...] = ()
    """Values that mean the same as not to set it."""
    example: tuple[dict[str, Any], ...] = ()


class OverwriteRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variable that some versions of an engine set themselves, whatever the operator had set."""

    name: str
    versions: str
    value: str
    """What it becomes: `0`, or the name of a server arg in braces that makes it 0 or 1."""
    unless: str = ""
    """A server arg that, when on, keeps the engine from it."""
    example: tuple[dict[str, Any], ...] = ()


class CardRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capability and platform of GPUs, by their name."""

    name: str
    """Regular expression on the GPU's name."""
    capability: str = ""
    platform: str = "cuda"
    example: tuple[dict[str, str], ...] = ()


class GateRules(Struct, frozen=True):
    """All rules of one engine."""

    paths: tuple[PathRule, ...] = ()
    variables: tuple[VariableRule, ...] = ()
    overwrites: tuple[OverwriteRule, ...] = ()
    cards: tuple[CardRule, ...] = ()


class Hardware(Struct, frozen=True, kw_only=True):
    """What is known of the GPUs of one server; None and empty: not known."""

    full_nvlink: bool | None = None
    capability: str = ""
    """Compute capability, `9.0`; the lowest if GPUs differ."""
    told: str = ""
    """How they are connected, in the words of the topology: `NV18`, `PHB SYS`."""
    platform: str = "cuda"
    iommu: bool | None = None
    """Whether IOMMU or ACS redirects traffic between GPUs."""
    smallest_bytes: int | None = None
    """Memory of the smallest GPU of the host, whether the server uses it or not: engines derive defaults from it."""


class Gate(Struct, frozen=True, kw_only=True):
    """One gate of one start."""

    what: str
    state: GateState
    told: str = ""
    """The evidence: an argument, a variable, a hardware fact, the words of a line."""
    at: int | None = None
    """Where the log says it, as `Evidence.at` counts."""
    assumed: bool = False
    """True: nothing tells, so the default is assumed."""


class PathState(enum.StrEnum):
    """State of one all-reduce path."""

    PROVEN = "proven"
    """The log says that it is set up."""
    OPEN = "open"
    """No gate is closed."""
    CLOSED = "closed"
    UNKNOWN = "unknown"
    """No gate is closed, and the state of one is not known."""
    FAILED = "failed"
    """The start failed because of it."""


class Path(Struct, frozen=True, kw_only=True):
    """One all-reduce path in one start."""

    id: str
    title: str
    state: PathState
    takes: str = ""
    gates: tuple[Gate, ...] = ()
    told: str = ""
    """The line that proves it, or how it failed."""
    at: int | None = None

    @property
    def closed(self) -> Gate | None:
        """The first gate that is closed; None if none is."""
        return next((gate for gate in self.gates if gate.state is GateState.CLOSED), None)

    @property
    def unsure(self) -> Gate | None:
        """The first gate whose state is not known; None if there is none."""
        return next((gate for gate in self.gates if gate.state is GateState.UNKNOWN), None)


class Note(Struct, frozen=True, kw_only=True):
    """Something else that decides how fast ranks communicate: what NCCL did, which CUDA graphs are off."""

    what: str
    value: str
    at: int | None = None
    good: bool | None = None
    """False: it is slower than it could be."""


class AllReduce(Struct, frozen=True, kw_only=True):
    """The all-reduce paths of one start."""

    world: int
    """Number of ranks that reduce together."""
    paths: tuple[Path, ...]
    """In the order in which they are tried; the last takes everything."""
    notes: tuple[Note, ...] = ()

    @property
    def used(self) -> tuple[Path, ...]:
        """The paths that may run: they are neither closed nor have they failed."""
        return tuple(path for path in self.paths if path.state not in (PathState.CLOSED, PathState.FAILED))
