"""Runs: one stop, start or switch of a server, carried out on the host by a process that outlives the link.

`SwitchOrder` is what the supervisor on the host is told, `RunRecord` what it tells. Both are plain JSON files in the
folder of the run, `~/.gputuner/runs/ID/`: `order.json` and `state.json`.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from tuner.domain.recipe import Recipe


def run_id(at: float, mark: int) -> str:
    """Return the id of a run: a moment in UTC (seconds since the epoch), and 32 random bits against equal moments."""
    return f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{mark:08x}"


MOST_DRAIN_S = 3_600.0
"""Most seconds that a stop may wait for the requests in flight: as many as the least limit of a start."""


class Operator(Struct, frozen=True, kw_only=True):
    """Who acts."""

    session: str
    """Random id of the gputuner process."""
    name: str
    """The user on the laptop."""
    machine: str = ""
    """The laptop's name."""
    since: float | None = None
    """Host wall clock at which the lease was taken, seconds since the epoch."""


class Lease(Struct, frozen=True, kw_only=True):
    """The right to change a host, which one operator has at a time."""

    holder: Operator | None = None
    """None: nobody has it."""
    mine: bool = False
    """Whether this probe's operator holds it."""
    beat_at: float | None = None
    """Host wall clock of the holder's last sign of life."""
    lost_to: Operator | None = None
    """Who took it over from this operator; None: nobody did."""


class ProcessId(Struct, frozen=True, kw_only=True):
    """One process for all time: PID and start tell it from a later one with its PID, the boot id from one before."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    uid: int | None = None
    title: str = ""


class StopStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rung of the ladder by which a server is stopped."""

    signal: str
    """`TERM`, `INT`, `QUIT`, `KILL`."""
    to: str = "leader"
    """`leader`; `tree`: every member that lives; `orphans`: those that outlived the leader."""
    wait_s: float = 10.0
    """Seconds to wait for all members to end before the next rung."""


class Ask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An HTTP request to the server itself."""

    paths: tuple[str, ...]
    """Tried in order; one that answers 404 is passed over."""
    body: dict[str, Any] | None = None
    """JSON to post; None: GET. The text `{model}` in a value is replaced by the first id of `/v1/models`."""
    timeout_s: float = 10.0


class DrainAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the number of requests in flight is read."""

    path: str
    series: tuple[str, ...] = ()
    """Prometheus series whose sum is the number of requests; for JSON, the names of the numbers at any depth."""


class StopOrder(Struct, frozen=True, kw_only=True):
    """What is to be stopped, and how."""

    boot_id: str
    leader: ProcessId
    members: tuple[ProcessId, ...] = ()
    """The members known to the laptop, without the leader; the supervisor finds those that came since."""
    steps: tuple[StopStep, ...]
    drain_s: float = 0.0
    """Longest wait for the requests in flight before the first signal, at most `MOST_DRAIN_S`; 0: none."""
    drain: tuple[DrainAsk, ...] = ()
    manager: tuple[str, ...] = ()
    """Command that stops the server through its service manager, instead of the first rung."""
    manager_wait_s: float = 90.0
    port: int | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs whose memory must come back; empty: none is watched."""
    claimed: dict[str, int] = {}
    """Bytes that its ranks say they allocated, by UUID of the GPU, where all of them there say it: so much must come
    back where the driver does not tell who holds what."""
    memory_s: float = 60.0
    """Longest wait for that after the last process has ended."""
    lingers: str = ""
    """Habit of the engine that explains a long end, in words: `after a rank's death SGLang waits 60 s for dumps`."""


class LaunchOrder(Struct, frozen=True, kw_only=True):
    """A server that is to be started."""

    argv: tuple[str, ...] = ()
    """Empty: exactly the command line of the server or run that it is `like`."""
    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    cwd: str | None = None
    like: str = ""
    """`server:KEY` or `run:ID`: where secrets, environment and working folder come from; the probe reads them there
    before anything is stopped. Empty: the login's environment."""
    secret_flags: tuple[str, ...] = ()
    """Flags whose values are secrets, so that the record masks them."""
    secret_env: tuple[str, ...] = ()
    manager: tuple[str, ...] = ()
    """Command that starts it through its service manager, instead of `argv`."""
    log_dir: str | None = None
    """Folder of its log; None: the folder of the run."""
    log_name: str = ""
    """Name of the log without extension; empty: the run's id."""
    port: int | None = None
    titles: tuple[str, ...] = ()
    """Regular expressions that match the titles of its ranks."""
    ranks: int | None = None
    """Number of ranks that must be alive when it is ready; None: not known."""
    parts: tuple[str, ...] = ()
    """Regular expressions that match the titles of all its processes beside the leader, ranks or not. A start fails
    when one of them ends."""
    health: Ask | None = None
    first_token: Ask | None = None
    api_key_flags: tuple[str, ...] = ()
    api_key_env: tuple[str, ...] = ()
    tls_flags: tuple[str, ...] = ()
    steady_s: float = 3.0
    """Seconds for which all of it must stay up after its first token."""
    deadline_s: float = 3_600.0
    """Seconds from launch after which a start that is not ready has failed."""
    usual_s: float | None = None
    """Seconds that starts usually take, for the countdown."""
    preset: str = ""
    title: str = ""
    recipe: Recipe | None = None
    """The recipe over which the preset was laid, so that the next one is laid over the same; None: it is not known."""
    stop: tuple[StopStep, ...] = ()
    """The ladder that ends it if it fails or is cancelled."""


class SwitchOrder(Struct, frozen=True, kw_only=True):
    """Stop one server, start another, and go back if that fails. Each part may be missing."""

    run: str
    """Id: `20261130-101523-a1b2c3d4`. The launched server has it in its environment as GPUTUNER_RUN."""
    operator: Operator
    stop: StopOrder | None = None
    start: LaunchOrder | None = None
    back: LaunchOrder | None = None
    """What is started again if `start` fails or is cancelled."""
    auto_back: bool = False
    """True: go back without being asked when the start fails. After a cancel the order to cancel says it."""


class RunStep(enum.StrEnum):
    """What a run is doing."""

    CHECK = "check"
    """Identity, lock, port and disk are checked; nothing has been touched."""
    DRAIN = "drain"
    STOP = "stop"
    """Signals were sent and processes are awaited."""
    MEMORY = "memory"
    """All processes have ended; the GPUs are to give their memory back."""
    LAUNCH = "launch"
    LOADING = "loading"
    """The new process lives and does not listen yet."""
    PORT = "port"
    """The new process itself listens on its port."""
    HEALTH = "health"
    """Its health endpoint is asked until it answers."""
    FIRST_TOKEN = "first-token"  # noqa: S105 - a step, no secret
    """It is asked for one token."""
    STEADY = "steady"
    """A token came; all ranks are watched for a moment."""
    END = "end"


class RunOutcome(enum.StrEnum):
    """How a run ended."""

    RUNNING = "running"
    READY = "ready"
    """The new server serves."""
    STOPPED = "stopped"
    """The old one is stopped, and nothing was to be started; or a cancelled start was not followed by the old one."""
    REFUSED = "refused"
    """A check failed; nothing was touched."""
    FAILED = "failed"
    """The new server did not become ready, and nothing else was started, or that failed too."""
    BACK = "back"
    """The new server failed or was cancelled, and the old one serves again."""
    CANCELLED = "cancelled"
    """Cancelled before anything was touched: the old server still runs."""
    STUCK = "stuck"
    """The old server, or its memory, did not go away; nothing was started."""


class StepRecord(Struct, frozen=True, kw_only=True):
    """One step of a run."""

    step: RunStep
    at: float
    """Host wall clock at which it began, seconds since the epoch."""
    ended: float | None = None
    detail: str = ""
    back: bool = False
    """True: it belongs to the way back."""
    failed: str = ""
    """Why the start failed in this step, in one line; empty: it did not."""
    unclean: bool = False
    """True: requests were still in flight when this drain ended, or in this stop the main process had to be ended by
    SIGKILL."""


class Leftover(Struct, frozen=True, kw_only=True):
    """A process, or memory, that a stop left behind."""

    pid: int
    start_ticks: int = 0
    uid: int | None = None
    user: str | None = None
    title: str = ""
    gpu_bytes: int | None = None
    ours: bool = False
    """Whether it is a member of the stopped server, and may be ended by `EndLeftovers`."""


class MemoryBack(Struct, frozen=True, kw_only=True):
    """The memory of one GPU around a stop, as the driver counts it."""

    gpu: int
    before_bytes: int
    """Before the first signal."""
    held_bytes: int
    """Part of `before_bytes` that the stopped server held."""
    after_bytes: int | None = None
    """After its end, at the last look."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """A run as its supervisor tells it."""

    id: str
    operator: Operator
    preset: str = ""
    title: str = ""
    recipe: Recipe | None = None
    """As `LaunchOrder.recipe` of what was to be started."""
    began_at: float
    """Host wall clock, as all times here."""
    updated_at: float
    step: RunStep = RunStep.CHECK
    until: float | None = None
    """When the present wait ends at the latest; None: no limit, or not known."""
    detail: str = ""
    """What happens now, or how it ended, in one line."""
    steps: tuple[StepRecord, ...] = ()
    outcome: RunOutcome = RunOutcome.RUNNING
    failure: str = ""
    """Why the start failed, in one line; the log has the cause."""
    boot_id: str = ""
    supervisor: ProcessId | None = None
    supervised: bool = False
    """Whether that process lives; the probe tells it, not the file."""
    old: ProcessId | None = None
    """Leader of the server that was to be stopped."""
    new: ProcessId | None = None
    """Leader of the server that was started last."""
    alive: bool = False
    """Whether `new` lives; the probe tells it, not the file."""
    going_back: bool = False
    """True: `new` is what was gone back to."""
    failed: ProcessId | None = None
    """Leader of the server that was started, failed, and was gone back from; None: nothing was gone back from."""
    failed_log: str | None = None
    """Path of its log."""
    back: str = ""
    """Title of what can be gone back to; empty: nothing."""
    back_preset: str = ""
    """Id of its preset; empty: it has none, or it is not known."""
    back_recipe: Recipe | None = None
    """As `LaunchOrder.recipe` of what can be gone back to."""
    exit_code: int | None = None
    """Exit code of the last server that ended; negative: the signal that ended it."""
    argv: tuple[str, ...] = ()
    """Command line of `new`, secrets masked."""
    env: dict[str, str] = {}
    """Variables that were set on top of the base, secrets masked."""
    cwd: str | None = None
    log: str | None = None
    """Path of the log of `new`."""
    port: int | None = None
    leftovers: tuple[Leftover, ...] = ()
    memory: tuple[MemoryBack, ...] = ()
    cancelled_by: Operator | None = None
