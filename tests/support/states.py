"""Host states as literal values, for tests and pictures of the screens; without session, clock and randomness."""

from __future__ import annotations

import math
from typing import Any

import msgspec.structs

from tests.support import explained as explaining
from tuner.domain.events import GpuTable, GpuXid, HostSample, ProbeHello, ProblemSeen
from tuner.domain.gpu import GpuInfo, GpuProcess, GpuSample, ProcessInfo
from tuner.domain.history import UsualTimes
from tuner.domain.link import LinkPhase
from tuner.domain.logs import Level, LogBlock, LogLine
from tuner.domain.server import LogSource, Manager, Member, Phase, SeriesPoint, ServerIdentity
from tuner.domain.state import (
    ErrorLine,
    ForeignProcess,
    HostState,
    LinkState,
    LogState,
    PhaseRecord,
    RankMemory,
    RankState,
    ServerMetrics,
    ServerState,
)
from tuner.units import from_gib

WALL = 1_790_000_000.0
MONO = 90_000.0
KEY = "48211:8190000"
TOTAL = from_gib(95.59)
REPLACE = msgspec.structs.replace


def infos(
    count: int = 8, *, name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition", nvlinks: int = 0
) -> tuple[GpuInfo, ...]:
    return tuple(
        GpuInfo(
            index=index,
            uuid=f"GPU-{index:08x}-1111-2222-3333-444444444444",
            name=name,
            memory_total_bytes=TOTAL,
            bus_id=f"00000000:{0x10 + index * 0x10:02X}:00.0",
            power_limit_w=600.0,
            pcie_gen_max=5,
            pcie_width_max=16,
            nvlink_count=nvlinks,
            numa_node=index // 4,
            compute_capability="12.0",
        )
        for index in range(count)
    )


def samples(
    used_gib: list[float], *, busy: bool = True, capped: tuple[int, ...] = (2,), nvlink: bool = False
) -> tuple[GpuSample, ...]:
    return tuple(
        GpuSample(
            index=index,
            memory_used_bytes=from_gib(used),
            utilization_ratio=(0.97 if index % 2 == 0 else 0.96) if busy else 0.0,
            power_w=(405.0 + (index * 7) % 11) if busy else 71.0 + index,
            temperature_c=60 + index % 4 if busy else 34,
            sm_mhz=(2395 if index in capped else 2410) if busy else 180,
            memory_mhz=12481,
            throttle_mask=(0x4 if index in capped else 0) if busy else 0x1,
            pcie_rx_bytes_s=3_050_000_000 + index * 7_000_000 if busy else 0,
            pcie_tx_bytes_s=2_930_000_000 + index * 9_000_000 if busy else 0,
            nvlink_rx_bytes_s=41_200_000_000 if nvlink else None,
            nvlink_tx_bytes_s=40_900_000_000 if nvlink else None,
            pcie_gen=5,
            pcie_width=16,
            ecc_uncorrected=0,
        )
        for index, used in enumerate(used_gib)
    )


def memory(total_gib: float = 86.8) -> RankMemory:
    return RankMemory(
        weights_bytes=from_gib(72.3),
        kv_bytes=from_gib(10.42),
        graphs_bytes=from_gib(2.6),
        context_bytes=from_gib(total_gib - 72.3 - 10.42 - 2.6 - 0.03),
        other_bytes=from_gib(0.03),
        total_bytes=from_gib(total_gib),
        source="log",
    )


def line(text: str, offset: int, rank: str | None = None, level: Level = Level.INFO, **more: Any) -> LogLine:
    fold = more.pop("fold", None)
    return LogLine(
        offset=offset, text=text, rank=rank, level=level, fold=hash(text[24:]) if fold is None else fold, **more
    )


def log_of(
    lines: list[LogLine], *, per_block: int = 16, path: str = "/data/logs/base-88.log", start: int = 0
) -> LogState:
    blocks = []
    for at in range(0, len(lines), per_block):
        part = tuple(lines[at : at + per_block])
        last = part[-1]
        blocks.append(LogBlock(start=part[0].offset, end=last.offset + len(last.text) + 1, lines=part))
    end = blocks[-1].end if blocks else start
    return LogState(
        source=LogSource(kind="file", path=path, device=64769, inode=4711),
        blocks=tuple(blocks),
        start=blocks[0].start if blocks else start,
        end=end,
        size=end,
        lines_total=len(lines),
    )


def serving_log(count: int = 60, *, ranks: int = 8) -> list[LogLine]:
    """Return the start-up lines of eight ranks, then decode batches as of a busy SGLang."""
    lines: list[LogLine] = []
    offset = 0

    def add(text: str, rank: str | None = None, level: Level = Level.INFO, **more: Any) -> None:
        nonlocal offset
        lines.append(line(text, offset, rank, level, **more))
        offset += len(text) + 1

    add(
        "[2026-11-29 11:37:00] server_args=ServerArgs(model_path='/models/kimi-k2.5-int4', tp_size=8, "
        "mem_fraction_static=0.88)"
    )
    for rank in range(ranks):
        add(f"[2026-11-29 11:37:02 TP{rank}] Init torch distributed begin.", f"TP{rank}", fold=11)
    for rank in range(ranks):
        if rank != 5:
            text = "Load weight end. type=KimiK25ForConditionalGeneration, avail mem=21.71 GB, mem usage=72.30 GB."
            add(f"[2026-11-29 11:45:38 TP{rank}] {text}", f"TP{rank}", fold=12)
    odd = "Load weight end. type=KimiK25ForConditionalGeneration, avail mem=21.70 GB, mem usage=72.31 GB."
    add(f"[2026-11-29 11:45:38 TP5] {odd}", "TP5", fold=13)
    for rank in range(ranks):
        text = "KV Cache is allocated. #tokens: 159277, KV size: 10.42 GB"
        add(f"[2026-11-29 11:45:39 TP{rank}] {text}", f"TP{rank}", fold=14)
    add("[2026-11-29 11:46:51] The server is fired up and ready to roll!")
    add("[2026-11-29 11:46:52 TP0] Disable prefill CUDA graph: less than 4 GB of memory left.", "TP0", Level.WARNING)
    for index in range(count):
        second = index % 60
        if index % 9 == 4:
            text = (
                f"Prefill batch, #new-seq: 1, #new-token: {812 + index}, #cached-token: 0, token usage: 0.37, "
                "#running-req: 3, #queue-req: 0"
            )
        else:
            speed = 89.2 + (index * 7 % 10) / 10
            text = (
                f"Decode batch, #running-req: 4, #token: {58211 + index * 40}, token usage: 0.37, "
                f"gen throughput (token/s): {speed:.2f}, #queue-req: 0"
            )
        add(f"[2026-11-29 14:{1 + index // 60:02d}:{second:02d} TP0] {text}", "TP0", fold=0)
    return lines


def wave(seconds: int = 600, *, base: float = 89.5, swing: float = 3.0, step: int = 1) -> tuple[SeriesPoint, ...]:
    return tuple(
        SeriesPoint(MONO - seconds + at, base + swing * math.sin(at / 47) + swing / 3 * math.sin(at / 11))
        for at in range(0, seconds + 1, step)
    )


ARGV = (
    "/opt/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/kimi-k2.5-int4", "--tp-size", "8",
    "--mem-fraction-static", "0.88", "--host", "0.0.0.0", "--port", "30000", "--enable-metrics", "--api-key", "***",
)  # fmt: skip


def identity(
    *, key: str = KEY, pid: int = 48211, engine: str = "sglang", ranks: int = 8, port: int = 30000
) -> ServerIdentity:
    members = tuple(
        Member(
            pid=pid + 166 + rank, ppid=pid, start_ticks=8190100 + rank, title=f"sglang::scheduler_TP{rank}", state="S"
        )
        for rank in range(ranks)
    )
    return ServerIdentity(
        key=key,
        engine=engine,
        pid=pid,
        start_ticks=8190000,
        started_at=WALL - 8040,
        uid=0,
        user="root",
        argv=ARGV,
        env={
            "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
            "HF_TOKEN": "***",
            "NCCL_DEBUG": "WARN",
            "NCCL_MAX_NCHANNELS": "16",
            "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
            "VIRTUAL_ENV": "/opt/venv",
        },
        cwd="/data",
        interpreter="/opt/venv/bin/python",
        version="0.5.9",
        manager=Manager(kind="systemd", name="sglang.service"),
        port=port,
        ports=(port,),
        members=(Member(pid=pid, ppid=1, start_ticks=8190000, title=" ".join(ARGV), state="S"), *members),
        log=LogSource(kind="file", path="/data/logs/base-88.log"),
    )


BEGAN = WALL - 8040
PHASES = tuple(
    PhaseRecord(phase=phase, started=BEGAN + start, ended=BEGAN + end, done=done, total=done)
    for phase, start, end, done in (
        (Phase.ARGS, 0, 2, None),
        (Phase.DIST_INIT, 2, 4, None),
        (Phase.WEIGHT_LOAD, 4, 518, 62),
        (Phase.KV_ALLOC, 518, 519, None),
        (Phase.GRAPH_CAPTURE, 519, 590, 36),
        (Phase.WARMUP, 590, 598, None),
    )
)
USUAL = UsualTimes(
    starts=4,
    total_s=(590.0, 610.0),
    phases_s={
        Phase.ARGS: (2.0, 3.0),
        Phase.DIST_INIT: (2.0, 3.0),
        Phase.WEIGHT_LOAD: (505.0, 524.0),
        Phase.KV_ALLOC: (1.0, 1.0),
        Phase.GRAPH_CAPTURE: (69.0, 74.0),
        Phase.WARMUP: (7.0, 9.0),
    },
)
SETTINGS: dict[str, Any] = {
    "attention_backend": "flashinfer",
    "chunked_prefill_size": 8192,
    "context_length": 262144,
    "cuda_graph_max_bs": 128,
    "disable_custom_all_reduce": False,
    "kv_cache_dtype": "auto",
    "max_prefill_tokens": 16384,
    "max_running_requests": 48,
    "mem_fraction_static": 0.88,
    "model_path": "/models/kimi-k2.5-int4",
    "schedule_conservativeness": 1.0,
    "speculative_algorithm": None,
    "tp_size": 8,
}


def server(*, ranks: int = 8, lines: int = 60) -> ServerState:
    return ServerState(
        identity=identity(ranks=ranks),
        engine_title="SGLang",
        version="0.5.9",
        model="/models/kimi-k2.5-int4",
        phase=Phase.READY,
        phase_evidence="The server is fired up and ready to roll!",
        phases=PHASES,
        started_in_s=598.0,
        usual=USUAL,
        settings=SETTINGS,
        ranks=tuple(
            RankState(
                tag=f"TP{rank}", gpu=rank, pid=48377 + rank, memory=memory(), phase=Phase.READY, available_gib=8.8
            )
            for rank in range(ranks)
        ),
        kv_tokens=159277,
        metrics=ServerMetrics(
            source="metrics",
            at=MONO,
            tok_s=89.5,
            prompt_tok_s=812.0,
            running=4,
            queued=0,
            token_usage_ratio=0.37,
            used_tokens=58931,
            cache_hit_ratio=0.41,
            ttft_s=0.212,
            itl_s=0.0112,
            cuda_graph=True,
        ),
        series={
            "tok_s": wave(),
            "running": wave(base=4, swing=1),
            "queued": wave(base=0, swing=0),
            "token_usage": wave(base=0.37, swing=0.04),
        },
        log=log_of(serving_log(lines, ranks=ranks)),
    )


TOPOLOGY = tuple(
    tuple("X" if a == b else "PIX" if a // 2 == b // 2 else "NODE" if a // 4 == b // 4 else "SYS" for b in range(8))
    for a in range(8)
)


def serving() -> HostState:
    """Return the design's example: eight cards, one SGLang, a foreign tenant on GPU 2."""
    used = [86.8] * 8
    used[2] = 89.2
    stranger = ForeignProcess(
        pid=9120, gpu=2, memory_bytes=from_gib(2.4), user="alice", command="python train.py --epochs 3"
    )
    return HostState(
        name="root@gpu-box-1",
        link=LinkState(phase=LinkPhase.UP, rtt_s=0.012, received_bytes_s=1400.0, sent_bytes_s=35.0),
        hello=ProbeHello(
            protocol=1, python="3.10.12", pid=60001, uid=0, user="root", hostname="gpu-box-1", boot_id="b",
            kernel="6.8.0-60-generic", at=WALL - 100, mono=MONO - 100, cpu_count=128,
        ),
        mono=MONO,
        now=WALL,
        host=HostSample(
            cpu_ratio=0.11, load_1m=9.2, memory_total_bytes=from_gib(1007), memory_available_bytes=from_gib(733),
            shm_total_bytes=from_gib(503), shm_free_bytes=from_gib(471),
            disks={"/data": (from_gib(14_000), from_gib(3_100))},
        ),
        gpu_table=GpuTable(source="pynvml /opt/venv", driver="580.95.05", cuda="13.0", gpus=infos(), topology=TOPOLOGY),
        samples=samples(used),
        samples_at=MONO,
        processes=(
            *(GpuProcess(gpu, 48377 + gpu, from_gib(86.8)) for gpu in range(8)),
            GpuProcess(2, 9120, from_gib(2.4)),
        ),
        infos={9120: ProcessInfo(pid=9120, user="alice", command="python train.py --epochs 3", started_at=WALL - 500)},
        foreign=(stranger,),
        servers=(server(),),
        scanned=True,
    )  # fmt: skip


def starting() -> HostState:
    """Return a server that loads its weights, 21 of 62 shards, with earlier starts known."""
    base = serving()
    held = server()
    lines = [each for each in serving_log(0) if "Init torch" in each.text or "server_args" in each.text]
    loading = REPLACE(
        held,
        phase=Phase.WEIGHT_LOAD,
        phases=(
            PhaseRecord(phase=Phase.ARGS, started=WALL - 181, ended=WALL - 179),
            PhaseRecord(phase=Phase.DIST_INIT, started=WALL - 179, ended=WALL - 177),
            PhaseRecord(phase=Phase.WEIGHT_LOAD, started=WALL - 177, done=21, total=62),
        ),
        started_in_s=None,
        ranks=tuple(
            REPLACE(rank, phase=Phase.WEIGHT_LOAD, memory=RankMemory(total_bytes=from_gib(26.1), source="nvml"))
            for rank in held.ranks
        ),
        kv_tokens=None,
        metrics=ServerMetrics(),
        series={},
        log=log_of(lines),
        identity=REPLACE(held.identity, started_at=WALL - 181),
    )
    return REPLACE(
        base,
        servers=(loading,),
        samples=samples([26.1] * 8, busy=False, capped=()),
        foreign=(),
    )


FAILURE = (
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
    "Current value: self.server_args.mem_fraction_static=0.55"
)
SCHEDULER = "/opt/venv/lib/python3.10/site-packages/sglang/srt/managers/scheduler.py"


def failed() -> HostState:
    """Return a start whose KV pool did not fit: all eight ranks raised, TP5 first, and one process is left."""
    base = serving()
    held = server()
    lines = [
        each for each in serving_log(0) if "11:45:38" <= each.text[12:20] <= "11:45:38" or "server_args" in each.text
    ]
    offset = lines[-1].offset + 200
    for rank in (5, 0, 1, 2, 3, 4, 6, 7):
        text = f"[2026-11-29 11:45:39 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):"
        lines.append(line(text, offset, f"TP{rank}", Level.ERROR, fold=31))
        offset += len(text) + 1
        for body, fold in (
            (
                f'  File "{SCHEDULER}", line 2995, in run_scheduler_process',
                32,
            ),
            ("    scheduler = Scheduler(", 33),
            (FAILURE, 34),
        ):
            level = Level.ERROR if fold == 34 else Level.INFO
            lines.append(line(body, offset, f"TP{rank}", level, fold=fold, continued=True))
            offset += len(body) + 1
    dead = REPLACE(
        held,
        phase=Phase.FAILED,
        phase_evidence=FAILURE,
        phases=(*PHASES[:3], PhaseRecord(phase=Phase.KV_ALLOC, started=BEGAN + 518, ended=BEGAN + 519)),
        started_in_s=None,
        ranks=tuple(REPLACE(rank, alive=False, phase=Phase.FAILED) for rank in held.ranks),
        kv_tokens=None,
        metrics=ServerMetrics(),
        series={},
        gone=True,
        left_pids=(48390,),
        log=log_of(lines),
        errors=(
            ErrorLine(
                text=FAILURE,
                ranks=("TP5", "TP0", "TP1", "TP2", "TP3", "TP4", "TP6", "TP7"),
                count=8,
                phase=Phase.KV_ALLOC,
            ),
        ),
    )
    return REPLACE(base, servers=(dead,), samples=samples([0.6] * 8, busy=False, capped=()), foreign=())


def explained() -> HostState:
    """Return the same failure with its finding, which is at the line of TP5."""
    base = failed()
    held = base.servers[0]
    lines = [each for block in held.log.blocks for each in block.lines]
    at = next(each.offset for each in lines if each.text == FAILURE)
    weights = next(each.offset for each in lines if "avail mem=21.70" in each.text)
    root = explaining.too_low(at=at, before=weights, args=lines[0].offset)
    findings = (root, explaining.variable_ignored(at=lines[0].offset))
    return REPLACE(base, servers=(REPLACE(held, findings=findings, start=explaining.failed_start()),))


def compared() -> HostState:
    """Return the failure, and the start before it, which worked and was stopped."""
    base = explained()
    before = REPLACE(
        server(),
        identity=REPLACE(identity(key="40100:7190000", pid=40100), started_at=WALL - 90_000, members=()),
        phase=Phase.STOPPED,
        phase_evidence="SIGTERM",
        gone=True,
        metrics=ServerMetrics(),
        series={},
        ranks=tuple(REPLACE(rank, alive=False, pid=40200 + index) for index, rank in enumerate(server().ranks)),
        start=explaining.good_start(),
    )
    return REPLACE(base, servers=(*base.servers, before))


def slowed() -> HostState:
    """Return a serving server with a slowdown in its log."""
    base = serving()
    held = base.servers[0]
    lines = [each for block in held.log.blocks for each in block.lines]
    at = next(each.offset for each in lines if "Disable prefill" in each.text)
    findings = (explaining.graphs_off(at=at), explaining.variable_ignored(at=lines[0].offset))
    return REPLACE(base, servers=(REPLACE(held, findings=findings, start=explaining.good_start()),))


def empty() -> HostState:
    """Return a host with GPUs, without a server, and with a foreign process."""
    base = serving()
    used = [0.6, 0.6, 41.3, 0.6, 0.6, 0.6, 0.6, 0.6]
    stranger = ForeignProcess(
        pid=9120, gpu=2, memory_bytes=from_gib(40.7), user="alice", command="python train.py --epochs 3"
    )
    return REPLACE(base, servers=(), samples=samples(used, busy=False, capped=()), foreign=(stranger,))


def connecting() -> HostState:
    """Return a host of which nothing is known yet."""
    return HostState(name="root@gpu-box-1")


def down() -> HostState:
    """Return a host that was never reached."""
    return HostState(
        name="root@gpu-box-9",
        link=LinkState(
            phase=LinkPhase.DOWN,
            reason="Could not connect to gpu-box-9:22: no route to host. Check the name, the VPN and that sshd runs",
            attempt=1,
            final=True,
        ),
    )


def stale() -> HostState:
    """Return a host whose link is being restored, so that all numbers are stale."""
    return REPLACE(
        serving(),
        link=LinkState(
            phase=LinkPhase.RECONNECTING,
            reason="the connection was lost: no answer for 20 s",
            attempt=3,
            retry_in_s=4.0,
            rtt_s=0.012,
        ),
    )


def no_gpu() -> HostState:
    """Return a host without a GPU."""
    base = serving()
    return REPLACE(
        base,
        servers=(),
        samples=(),
        foreign=(),
        gpu_table=GpuTable(source=None, reason="no NVIDIA driver: /dev/nvidiactl is missing"),
        problems=(ProblemSeen(code="no-gpu", detail="/dev/nvidiactl is missing"),),
    )


def two_servers() -> HostState:
    """Return an SGLang on GPUs 0 to 3 and a vLLM on 4 to 7."""
    base = serving()
    first = REPLACE(server(), ranks=server().ranks[:4])
    vllm = identity(key="51000:9190000", pid=51000, engine="vllm", ranks=4, port=8000)
    second = REPLACE(
        server(),
        identity=REPLACE(
            vllm,
            argv=("vllm", "serve", "Qwen/Qwen3-32B", "--tensor-parallel-size", "4"),
            user="bob",
            started_at=WALL - 90_000,
        ),
        engine_title="vLLM",
        version="0.32.0",
        model="Qwen/Qwen3-32B",
        ranks=tuple(
            RankState(
                tag=f"TP{rank}",
                gpu=rank + 4,
                pid=51100 + rank,
                memory=RankMemory(
                    weights_bytes=from_gib(15.4),
                    kv_bytes=from_gib(66.2),
                    graphs_bytes=from_gib(1.1),
                    total_bytes=from_gib(86.8),
                    source="log",
                ),
            )
            for rank in range(4)
        ),
    )
    processes = tuple(
        GpuProcess(rank.gpu or 0, rank.pid or 0, rank.memory.total_bytes) for rank in (*first.ranks, *second.ranks)
    )
    return REPLACE(base, servers=(first, second), processes=processes, foreign=())


def shared() -> HostState:
    """Return two servers with half of each GPU; the second one loads, and a foreign process is on GPU 2."""
    base = two_servers()
    first, second = base.servers
    half = RankMemory(
        weights_bytes=from_gib(30.1),
        kv_bytes=from_gib(10.4),
        graphs_bytes=from_gib(1.3),
        context_bytes=from_gib(1.5),
        total_bytes=from_gib(43.3),
        source="http+log+nvml",
    )
    small = RankMemory(weights_bytes=from_gib(15.4), total_bytes=from_gib(21.6), source="log+nvml")
    first = REPLACE(first, ranks=tuple(REPLACE(rank, memory=half) for rank in first.ranks))
    second = REPLACE(
        second,
        phase=Phase.KV_ALLOC,
        ranks=tuple(
            REPLACE(rank, gpu=index, memory=small, phase=Phase.KV_ALLOC) for index, rank in enumerate(second.ranks)
        ),
    )
    used = [64.9, 64.9, 67.3, 64.9, 0.6, 0.6, 0.6, 0.6]
    processes = tuple(
        GpuProcess(rank.gpu or 0, rank.pid or 0, rank.memory.total_bytes) for rank in (*first.ranks, *second.ranks)
    )
    foreign = ForeignProcess(pid=9120, gpu=2, memory_bytes=from_gib(2.4), user="alice", command="python train.py")
    return REPLACE(base, servers=(first, second), samples=samples(used), processes=processes, foreign=(foreign,))


def silent() -> HostState:
    """Return a host on which server and driver hang: only the host itself still answers."""
    base = serving()
    problems = (
        ProblemSeen(code="http-timeout", subject=KEY, detail="GET /metrics: no answer in 5 s"),
        ProblemSeen(code="nvml-hang", detail="no answer for 9 s"),
    )
    return REPLACE(base, mono=MONO + 9, now=WALL + 9, problems=problems)


def killed() -> HostState:
    """Return a server of which one rank was killed from outside while it served."""
    base = serving()
    held = server()
    gone = "TP3 (pid 48380) died without an error of its own: killed from outside, or crashed in native code"
    others = tuple(f"TP{rank}" for rank in range(8) if rank != 3)
    dead = REPLACE(
        held,
        phase=Phase.FAILED,
        phase_evidence=gone,
        ranks=tuple(REPLACE(rank, alive=False) for rank in held.ranks),
        gone=True,
        errors=(
            ErrorLine(text=gone, ranks=("TP3",), phase=Phase.READY, silent=True),
            ErrorLine(
                text="RuntimeError: Connection closed by peer [10.0.0.5]:41234",
                ranks=others,
                phase=Phase.READY,
                count=7,
            ),
        ),
    )
    return REPLACE(base, servers=(dead,), samples=samples([0.6] * 8, busy=False, capped=()), foreign=())


def unreadable() -> HostState:
    """Return a host whose driver refuses every GPU, among other problems."""
    base = troubled()
    refused = tuple(
        ProblemSeen(code="nvml-error", subject=f"GPU {gpu}", detail=f"GPU {gpu}: Unknown Error") for gpu in range(8)
    )
    return REPLACE(base, problems=(*refused, *base.problems), xids=())


def unknown_numbers() -> HostState:
    """Return a container in which the driver tells little: no power, no traffic, a rank without a GPU, a lost GPU."""
    base = serving()
    blind = tuple(
        GpuSample(index, error="GPU is lost: fell off the bus")
        if index == 6
        else GpuSample(index, memory_used_bytes=from_gib(86.8))
        for index in range(8)
    )
    held = server()
    ranks = tuple(
        REPLACE(rank, gpu=None if index == 7 else rank.gpu, pid=None if index == 7 else rank.pid, memory=RankMemory())
        for index, rank in enumerate(held.ranks)
    )
    return REPLACE(
        base,
        servers=(
            REPLACE(
                held,
                ranks=ranks,
                kv_tokens=None,
                metrics=ServerMetrics(),
                series={},
                usual=UsualTimes(),
                http_problem=None,
            ),
        ),
        samples=blind,
        foreign=(ForeignProcess(pid=9120, gpu=2),),
        link=LinkState(phase=LinkPhase.UP),
    )


def troubled() -> HostState:
    """Return a host with many problems at once."""
    base = serving()
    problems = (
        ProblemSeen(code="http-auth", subject=KEY, detail="GET /server_info: 401"),
        ProblemSeen(code="log-denied", subject=KEY, detail="/data/logs/base-88.log: permission denied"),
        ProblemSeen(code="gpu-lost", subject="6", detail="GPU is lost"),
        ProblemSeen(code="disk-full", subject="/data", detail="0 bytes free of 14 TB"),
        ProblemSeen(code="proc-denied", subject="48211", detail="environment of pid 48211"),
    )
    return REPLACE(
        base,
        problems=problems,
        xids=(GpuXid(bus_id="00000000:70:00.0", xid=79, text="GPU has fallen off the bus", at=WALL - 40),),
        samples=(*base.samples[:6], GpuSample(6, error="GPU is lost"), base.samples[7]),
        lost_lines=3,
    )


ALL = {
    "serving": serving,
    "starting": starting,
    "failed": failed,
    "explained": explained,
    "compared": compared,
    "slowed": slowed,
    "empty": empty,
    "connecting": connecting,
    "down": down,
    "stale": stale,
    "no_gpu": no_gpu,
    "two_servers": two_servers,
    "shared": shared,
    "silent": silent,
    "killed": killed,
    "unreadable": unreadable,
    "unknown_numbers": unknown_numbers,
    "troubled": troubled,
}
"""Every state, by name."""
