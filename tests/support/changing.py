"""A host that is changed, as literal values: presets, facts of the checks, and runs in each state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import explained, states
from tuner.domain.link import LinkPhase
from tuner.domain.presets import Preset, Requires
from tuner.domain.recipe import Recipe
from tuner.domain.runs import (
    Lease,
    Leftover,
    MemoryBack,
    Operator,
    ProcessId,
    RunOutcome,
    RunRecord,
    RunStep,
    StepRecord,
)
from tuner.domain.state import HostState
from tuner.errors import CatalogError, UsageProblem
from tuner.units import from_gib

REPLACE = states.REPLACE
WALL = states.WALL
MIA = Operator(session="5e55", name="mia", machine="laptop")
ALICE = Operator(session="a11c", name="alice", machine="ws-4", since=WALL - 720)
MINE = Lease(holder=MIA, mine=True, beat_at=WALL - 2)
OLD = ProcessId(pid=48211, start_ticks=8190000, uid=0, title="python -m sglang.launch_server")
NEW = ProcessId(pid=60311, start_ticks=9100000, uid=0, title="python -m sglang.launch_server")
HELP = """
  --model-path PATH
  --tp-size N
  --mem-fraction-static F
  --host HOST
  --port PORT
  --enable-metrics
  --api-key KEY
  --cuda-graph-max-bs N
  --kv-cache-dtype {auto,fp8_e5m2}
"""
FACTS: dict[str, Any] = {
    "start": {"refused": None},
    "interpreter": {"path": "/opt/venv/bin/python", "exists": True, "executable": True, "version": "3.10.12"},
    "version": {"package": "sglang", "version": "0.5.9"},
    "help": {"text": HELP},
    "cwd": {"path": "/data", "exists": True},
    "llm": {
        "name": "/models/kimi-k2.5-int4",
        "kind": "path",
        "exists": True,
        "config": True,
        "bytes": 580 << 30,
        "missing": [],
    },
    "port": {
        "port": 30000,
        "owners": [{"pid": 48211, "user": "root", "title": "python -m sglang.launch_server", "ours": True}],
    },
    "log": {
        "path": "/data/logs",
        "exists": True,
        "at": "/data/logs",
        "writable": True,
        "free_bytes": 3100 << 30,
    },
    "disks": {"folders": {"/": [900 << 30, 300 << 30]}},
    "shm": {"total_bytes": 503 << 30, "free_bytes": 471 << 30},
    "limits": {"nofile": [1024, 1048576], "nproc": [-1, -1], "memlock": [-1, -1]},
    "rights": {
        "user": "root",
        "server_user": "root",
        "may": True,
        "folder": "/root/.gputuner",
        "folder_writable": True,
    },
    "holders": {"processes": []},
    "env_files": {"settings": []},
    "manager": {"loops": [], "watchers": [], "starters": []},
}
"""What the host tells before a switch: nothing speaks against it."""
PRESETS: dict[str, Preset] = {
    each.id: each
    for each in (
        Preset(
            id="base-88",
            title="the fraction that is known to work here",
            why="Where everything else starts from: 10.4 GiB of KV pool, 159,277 tokens.",
            args={"mem_fraction_static": 0.88},
        ),
        Preset(
            id="nccl-2ch-128k",
            title="fewer NCCL channels, small buffers",
            why="Lower latency for 42 KB all-reduces on PCIe; less memory for NCCL's buffers on each rank.",
            env={"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": "131072"},
        ),
        Preset(
            id="nvlink-sharp",
            title="all-reduce through NVLink SHARP",
            why="Half the latency of large all-reduces where the switch reduces.",
            requires=Requires(interconnect="nvlink"),
            env={"NCCL_NVLS_ENABLE": "1"},
        ),
        Preset(
            id="graph-bs-512",
            title="CUDA graphs up to 512 requests",
            why="Decode batches above 128 run from a graph too.",
            engine="sglang",
            args={"cuda_graph_max_bs": 512},
        ),
        Preset(
            id="fp8-kv",
            title="KV pool in 8 bits",
            why="Twice the tokens in the same memory.",
            engine="sglang",
            args={"kv_cache_dtype": "fp8_e5m2"},
        ),
        Preset(id="vllm-eager", title="vLLM without graphs", why="To compare.", engine="vllm", args={}),
    )
}


RECIPE = Recipe(
    name="kimi",
    host="root@gpu-box-1",
    engine="sglang",
    version="0.5.9",
    command=("/opt/venv/bin/python", "-m", "sglang.launch_server"),
    args=(
        "--model-path",
        "/models/kimi-k2.5-int4",
        "--tp-size",
        "8",
        "--mem-fraction-static",
        "0.88",
        "--port",
        "30000",
    ),
    cwd="/data",
    log_dir="/data/logs",
    model="/models/kimi-k2.5-int4",
    port=30000,
)


class FakeLibrary:
    """Presets in memory; remembers what was saved."""

    def __init__(
        self, *, problems: Sequence[CatalogError] = (), recipes: Sequence[Recipe] = (), broken: str = ""
    ) -> None:
        self.problems = tuple(problems)
        self.kept_recipes = list(recipes)
        self.broken = broken
        self.ids: list[str] = []
        self.saved: list[Preset] = []
        self.known = dict(PRESETS)

    def presets(self) -> tuple[Mapping[str, Preset], tuple[CatalogError, ...]]:
        return self.known, self.problems

    def order(self, host: str) -> Sequence[str]:
        return self.ids

    def keep_order(self, host: str, ids: Sequence[str]) -> None:
        self.ids = list(ids)

    def recipes(self, host: str) -> Sequence[Recipe]:
        return self.kept_recipes

    def save_preset(self, preset: Preset) -> str:
        if self.broken:
            raise UsageProblem(self.broken, preset.id)
        self.saved.append(preset)
        self.known[preset.id] = preset
        return f"/home/mia/.config/gputuner/presets/{preset.id}.toml"

    def save_recipe(self, recipe: Recipe) -> str:
        self.kept_recipes.append(recipe)
        return f"/home/mia/.config/gputuner/recipes/{recipe.name}.toml"


def tunable() -> HostState:
    """Return a serving host whose log tells how its server started."""
    base = states.serving()
    return REPLACE(base, servers=(REPLACE(base.servers[0], start=explained.good_start()),))


def steps(*told: tuple[RunStep, float, float | None, str]) -> tuple[StepRecord, ...]:
    """Return steps of a run: step, seconds after its begin, its end, and detail."""
    return tuple(
        StepRecord(step=step, at=WALL - 95 + at, ended=None if end is None else WALL - 95 + end, detail=detail)
        for step, at, end, detail in told
    )


def run(**fields: Any) -> RunRecord:
    """Return a run that switches to a preset, as far as the fields say."""
    whole: dict[str, Any] = {
        "id": "20261130-101523-a1b2c3d4",
        "operator": MIA,
        "preset": "graph-bs-512",
        "title": "graph-bs-512",
        "began_at": WALL - 95,
        "updated_at": WALL - 1,
        "boot_id": "b",
        "supervisor": ProcessId(pid=60300, start_ticks=9099000, uid=0),
        "supervised": True,
        "old": OLD,
        "back": "base-88",
        "port": 30000,
    }
    return RunRecord(**{**whole, **fields})


def memory(after: Sequence[float | None]) -> tuple[MemoryBack, ...]:
    """Return the memory of GPUs after a stop, GiB."""
    return tuple(
        MemoryBack(
            gpu=gpu,
            before_bytes=from_gib(86.8) or 0,
            held_bytes=from_gib(86.2) or 0,
            after_bytes=None if gib is None else from_gib(gib),
        )
        for gpu, gib in enumerate(after)
    )


STOPPING = run(
    step=RunStep.STOP,
    until=WALL + 12,
    detail="TERM sent",
    steps=steps(
        (RunStep.CHECK, 0, 1, "pid 48211 is the one, port 30000 is its own"),
        (RunStep.STOP, 1, None, "TERM sent"),
    ),
)
LOADING = run(
    step=RunStep.LOADING,
    until=WALL + 2400,
    detail="pid 60311",
    new=NEW,
    alive=True,
    argv=("/opt/venv/bin/python", "-m", "sglang.launch_server", "--cuda-graph-max-bs", "512"),
    steps=steps(
        (RunStep.CHECK, 0, 1, "pid 48211 is the one, port 30000 is its own"),
        (RunStep.STOP, 1, 15, "TERM; all 9 processes have ended"),
        (RunStep.MEMORY, 15, 18, "back on all 8 GPUs"),
        (RunStep.LAUNCH, 18, 18.2, "pid 60311"),
        (RunStep.LOADING, 18.2, None, ""),
    ),
    memory=memory([0.6] * 8),
)
ENDED = (
    (RunStep.CHECK, 0.0, 1.0, "pid 48211 is the one, port 30000 is its own"),
    (RunStep.STOP, 1.0, 15.0, "TERM; all 9 processes have ended"),
    (RunStep.MEMORY, 15.0, 18.0, "back on all 8 GPUs"),
    (RunStep.LAUNCH, 18.0, 18.2, "pid 60311"),
)
READY = run(
    step=RunStep.END,
    outcome=RunOutcome.READY,
    supervised=True,
    new=OLD,
    alive=True,
    steps=steps(*ENDED, (RunStep.LOADING, 18.2, 80, ""), (RunStep.STEADY, 80, 94, "8 ranks live")),
    memory=memory([0.6] * 8),
)
FAILED = run(
    step=RunStep.END,
    outcome=RunOutcome.FAILED,
    supervised=False,
    new=NEW,
    failure="exit code 1 in 62 s: torch.OutOfMemoryError: CUDA out of memory",
    exit_code=1,
    steps=steps(*ENDED, (RunStep.LOADING, 18.2, 80, "ended by itself")),
    memory=memory([0.6] * 7 + [12.4]),
    leftovers=(
        Leftover(pid=48390, start_ticks=8190112, uid=0, user="root", title="sglang::detokenizer", ours=True),
        Leftover(pid=9120, start_ticks=811, uid=1004, user="alice", title="python train.py", gpu_bytes=from_gib(2.4)),
    ),
)
INTERRUPTED = REPLACE(LOADING, supervised=False, until=None)


def changing() -> HostState:
    """Return a host on which a server is being stopped for another preset."""
    return REPLACE(tunable(), runs=(STOPPING,), lease=MINE)


def loading() -> HostState:
    """Return a host on which the new server of a change loads."""
    base = states.starting()
    held = base.servers[0]
    identity = REPLACE(held.identity, key="60311:9100000", pid=NEW.pid, start_ticks=NEW.start_ticks)
    return REPLACE(
        base, servers=(REPLACE(held, identity=identity),), runs=(LOADING,), lease=Lease(holder=MIA, mine=True)
    )


def changed() -> HostState:
    """Return a host whose server was started with a preset a moment ago."""
    return REPLACE(tunable(), runs=(READY,), lease=MINE)


def broken() -> HostState:
    """Return a host on which the start of a change failed."""
    base = states.explained()
    held = base.servers[0]
    argv = tuple("0.55" if word == "0.88" else word for word in held.identity.argv)
    identity = REPLACE(held.identity, key="60311:9100000", pid=NEW.pid, start_ticks=NEW.start_ticks, argv=argv)
    server = REPLACE(held, identity=identity, settings={**held.settings, "mem_fraction_static": 0.55})
    return REPLACE(base, servers=(server,), runs=(FAILED,), lease=MINE)


def went_back() -> HostState:
    """Return a host on which the start of a change failed, and what ran before serves again."""
    failed = broken().servers[0]
    run_back = REPLACE(
        FAILED, outcome=RunOutcome.BACK, new=OLD, failed=NEW, going_back=True, leftovers=(), exit_code=None
    )
    return REPLACE(tunable(), servers=(*tunable().servers, failed), runs=(run_back,), lease=MINE)


def interrupted() -> HostState:
    """Return a host on which the supervisor of a change died while the new server loaded."""
    return REPLACE(loading(), runs=(INTERRUPTED,), lease=Lease())


def leased() -> HostState:
    """Return a host that another operator changes."""
    return REPLACE(tunable(), lease=Lease(holder=ALICE, beat_at=WALL - 2))


def stale() -> HostState:
    """Return a host whose link was lost while a change went on."""
    return REPLACE(changing(), link=REPLACE(states.stale().link, phase=LinkPhase.RECONNECTING))


ALL = {
    "tunable": tunable,
    "changing": changing,
    "loading": loading,
    "changed": changed,
    "broken": broken,
    "went_back": went_back,
    "interrupted": interrupted,
    "leased": leased,
    "change_stale": stale,
}
"""Every state, by name."""
