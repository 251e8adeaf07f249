"""Judges of processes that ended without an error of their own: killed, crashed, or only missed by their peers."""

from __future__ import annotations

import re

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import DMESG, container, no_memory_advice, quoted
from tuner.core.roots import is_consequence
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy, Severity
from tuner.domain.starts import RankStory, Sign

ENDED = ("child-died", "rank-dead", "worker-died", "engine-core-died", "killed", "sigkill")
"""Signs that report the end of a process without its reason."""
_KILLED = frozenset({9, -9, 137})
_CRASH_CODES = {-11: "a segmentation fault", -6: "an abort", -7: "a bus error", -4: "an illegal instruction",
                139: "a segmentation fault", 134: "an abort", 135: "a bus error"}  # fmt: skip
_QUOTED = 160
"""Number of characters quoted of a line."""
_LONG_S = 600.0
"""Seconds of serving from which a kill without a stop request is attributed to the kernel: people rarely do that."""
_LOOPBACK = ("127.", "::1", "localhost")


def host_memory_killed(case: Case) -> Finding | None:
    """Diagnose a process killed by signal 9 whose most likely sender is the kernel's out-of-memory killer."""
    sign = ended(case)
    if sign is None or not _was_killed(sign):
        return None
    served = served_s(case, sign)
    starting = case.start.ready_at is None or sign.at < case.start.ready_at
    if not starting and (served is None or served < _LONG_S):
        return None
    last = case.start.batches[-1] if case.start.batches else None
    usage = last.fields.get("token_usage") if last is not None else None
    when = "while the server was starting" if starting else f"after {_hours(served)} of serving"
    return case.finding(
        "host-oom-killed",
        f"A process of the server got signal 9 {when}, without an error of its own. The kernel kills so when the"
        " host's or the container's memory is used up, and leaves a line in the kernel's log; a person or an"
        " orchestrator can send the same signal, which only that line tells apart. It is not GPU memory.",
        evidence=[
            *of_the_end(case, sign),
            Evidence(what="token usage", value=usage, at=last.at) if last is not None and usage is not None else None,
            case.derived("served for", round(served), "s") if served is not None and not starting else None,
            *memory_users(case),
        ],
        remedies=memory_remedies(case),
        refuted_by="no out-of-memory line in the kernel's log at that time: then somebody killed it",
        ranks=numbers(case, sign),
        phase=_phase(case),
        confidence=Confidence.MEDIUM,
    )


def memory_users(case: Case) -> list[Evidence | None]:
    """Cite the server args that use host memory."""
    return [case.arg(name) for name in ("hicache_size", "cpu_offload_gb", "swap_space") if case.setting(name)]


def memory_remedies(case: Case) -> list[Remedy | None]:
    """Return remedies for a lack of host memory."""
    hicache = case.setting("enable_hierarchical_cache") is True
    offload = case.setting("cpu_offload_gb")
    return [
        case.advice("dmesg", "the kernel's own line about it, with the process and its size", DMESG),
        container("--memory", None, "the container's limit, and the host's memory", Move.RAISE),
        case.remedy("hicache_size", Move.LOWER, "per rank: all ranks of the host add up") if hicache else None,
        case.remedy("cpu_offload_gb", Move.LOWER, "weights kept in host memory") if offload else None,
    ]


def process_ended(case: Case) -> Finding | None:
    """Diagnose the end of a rank or helper process for which no line gives a reason."""
    sign = ended(case)
    if sign is None:
        return None
    code = sign.fields.get("exit_code")
    killed = _was_killed(sign)
    crash = _CRASH_CODES.get(code) if isinstance(code, int) else None
    who = _who(sign)
    if killed:
        words = f"{who} was killed with signal 9"
    elif crash is not None:
        words = f"{who} ended with {crash} in native code"
    else:
        words = f"{who} ended"
    lone = code is not None and not killed and crash is None
    # Without timestamps, how long it had served is unknown, and so is how likely a person sent the signal.
    untimed = killed and served_s(case, sign) is None
    return case.finding(
        "rank-died",
        f"{words}, and printed no error before. What the other processes print afterwards is a consequence. "
        + (
            "Somebody or something sent that signal: a person, an orchestrator, or the kernel for want of host memory;"
            " the kernel's log tells whether it was the last."
            if killed
            else "A crash in native code leaves its traces in the lines just before, or in a core file."
        ),
        evidence=of_the_end(case, sign),
        remedies=[
            container("--shm-size", "32g", "a bus error is mostly /dev/shm that is full: df -h /dev/shm", Move.RAISE)
            if code in (-7, 135) or case.sign("bus-error") is not None else None,
            case.advice("dmesg", "an out-of-memory line there means host memory; none means that somebody killed it",
                        DMESG),
            case.advice("faulthandler", "PYTHONFAULTHANDLER=1 prints where a process crashes") if not killed else None,
        ],
        refuted_by="an error of that process earlier, in this log or in another file",
        ranks=numbers(case, sign),
        confidence=Confidence.LOW if lone or untimed else Confidence.MEDIUM,
    )  # fmt: skip


def end_of(case: Case, crash: Sign) -> Sign | None:
    """Return the main process's line, after a crash in native code, that names the crashed process; None without."""
    return next((s for s in case.signs(*ENDED) if s.at > crash.at and s.fields.get("exit_code") in _CRASH_CODES), None)


def leader_gone(case: Case) -> Finding | None:
    """Diagnose a vLLM leader that vanished: its engine core got a signal though the API server announced no stop."""
    sign = case.root_sign("engine-core-signalled")
    if sign is None:
        return None
    return case.finding(
        "rank-died",
        "The engine core ends because of a signal, and the API server never said that it stops: the leader was gone"
        " already, killed or crashed, and its workers were left over until somebody ended them.",
        evidence=[case.quote("signal to the engine core", sign, "name")],
        remedies=[
            case.advice("dmesg", "whether the kernel killed the leader", DMESG),
            case.advice("gpu-processes", "ps and nvidia-smi: what the leader left over still holds memory"),
        ],
        severity=Severity.FATAL,
        phase="runtime" if case.start.ready_at is not None else None,
        ranks=None,
        confidence=Confidence.MEDIUM,
        refuted_by="a line of the API server about its own stop",
    )


def crashed(case: Case) -> Finding | None:
    """Diagnose a process that reported its own crash in native code."""
    sign = case.root_sign("native-crash")
    if sign is None:
        return None
    what = sign.fields.get("what") or sign.fields.get("error") or "a fault"
    end = end_of(case, sign)
    return case.finding(
        "rank-died",
        f"A process crashed in native code ({what}). The lines under it, if there are any, show the Python frames at"
        " that moment; the fault itself is in a library they called.",
        evidence=[Evidence(what="crash", value=str(what), at=sign.at), *of_the_end(case, end or sign)],
        remedies=[
            case.advice("dmesg", "the library and the address", "dmesg -T | grep -i -E 'segfault|xid'"),
            case.advice("version", "packages of one release; a crash in a library is mended there"),
        ],
        refuted_by="an error of another rank before this line",
        ranks=case.ranks or (None if end is None else numbers(case, end)),
        confidence=Confidence.MEDIUM,
    )


def peer_lost(case: Case) -> Finding | None:
    """Diagnose a log in which every failure only reports that a peer went away."""
    root = case.root
    if root is None or root.failure is None or not is_consequence(case.start, root.failure):
        return None
    sign = case.root_sign("peer-closed", "nccl-remote-exited", "nccl-aborted", "other-ranks-not-loaded")
    if sign is None:
        return None
    host = sign.fields.get("peer_host")
    nodes = case.setting("nnodes")
    if sign.id == "other-ranks-not-loaded" and not (isinstance(nodes, int) and nodes > 1):
        return _not_loaded(case, sign)
    here = (isinstance(nodes, int) and nodes <= 1) or (host is not None and str(host).startswith(_LOOPBACK))
    evidence = [
        Evidence(what="peer", value=str(host), at=sign.at) if host is not None else None,
        case.quote("port", sign, "peer_port"),
        case.quote("error", sign, "error") or case.quote("last error", sign, "last_error"),
    ]
    if here:
        return _missed(case, evidence)
    where = f"on {host}" if host is not None else "elsewhere"
    return case.finding(
        "peer-rank-died",
        f"This log holds consequences only: its ranks lost the connection to a process {where}, and nothing in it"
        " failed before. The first failure is in the log of the node that closed the connection.",
        evidence=[*evidence, case.arg("nnodes"), case.arg("node_rank")],
        remedies=[
            case.advice("log", f"the log of the node that closed the connection{f' ({host})' if host else ''}, at that"
                        " time and just before"),
            case.advice("dmesg", "on that node, if its log just ends", DMESG),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="an error of a rank in this log from before the connection was closed",
        ranks=None,
        confidence=Confidence.HIGH if host is not None and isinstance(nodes, int) else Confidence.MEDIUM,
    )  # fmt: skip


def _not_loaded(case: Case, sign: Sign) -> Finding:
    """Build the finding for ranks of this host that did not finish loading while the others waited (SGLang)."""
    came = {rank.number for rank in case.start.ranks if rank.after_weights is not None}
    came |= {case.layout.number(failure.rank) for failure in case.start.failures if failure.rank is not None}
    missing = [number for number in range(case.layout.world) if number not in came]
    names = ", ".join(case.tag(number) for number in missing) or "one of them"
    last = next((rank for rank in case.start.ranks if rank.number in missing), None)
    return case.finding(
        "rank-died",
        f"The ranks that complain loaded their weights and waited for {names}, in vain: it ended without a word, or it"
        " still reads from a slow disk or network. Those that complain are the healthy ones.",
        evidence=[
            case.quote("a rank that was ready", sign, "number"),
            _last_words(case, last),
            case.arg("tp_size", "tensor_parallel_size"),
        ],
        remedies=[
            case.advice("dmesg", "an out-of-memory line means host memory: each rank reads the checkpoint", DMESG),
            case.advice("storage", "how fast the checkpoint is read: a copy on a local disk if it lies on a network"),
        ],
        wrong_advice=["moving mem_fraction_static either way: nothing is reserved for the KV pool yet"],
        refuted_by="a line of that rank which says that its weights are loaded, or an error of its own",
        ranks=tuple(missing) or None,
        phase="weight-load",
        confidence=Confidence.MEDIUM,
    )  # fmt: skip


def _last_words(case: Case, story: RankStory | None) -> Evidence | None:
    """Cite the last line of a rank without its prefix; None if there is no such line."""
    line = next((each for each in case.start.lines if story is not None and each.offset == story.last_at), None)
    if story is None or line is None:
        return None
    said = case.engine.message(line.text, case.engine.prefix(line.text)).strip()
    return quoted(f"last line of {story.tag}", said, line.offset, _QUOTED)


def _missed(case: Case, evidence: list[Evidence | None]) -> Finding:
    """Build the finding for a rank of this host that ended silently: the one that reports no lost peer."""
    complain = {
        case.layout.number(failure.rank)
        for failure in case.start.failures
        if failure.rank is not None and is_consequence(case.start, failure)
    }
    world = set(range(case.layout.world))
    silent = sorted(world - complain) if len(world) > 1 else []
    alone = silent if len(silent) == 1 else []
    story = next((rank for rank in case.start.ranks if alone and rank.number == alone[0]), None)
    said = "More than one rank is silent, so that the log does not tell which of them went first."
    if alone:
        said = f"Of {len(world)} ranks only {case.tag(alone[0])} does not complain: it is the one that is missing."
    return case.finding(
        "rank-died",
        f"The ranks that still print lost a peer on this host, and it had printed no error: it was killed, or it"
        f" crashed in native code. {said}",
        evidence=[
            *evidence,
            _last_words(case, story),
            case.derived("ranks that complain", ", ".join(case.tag(number) for number in sorted(complain))),
            case.arg("tp_size", "tensor_parallel_size"),
        ],
        remedies=[
            case.advice("dmesg", "an out-of-memory line means host memory; a segfault line names the library; neither"
                        " means that somebody killed it", "dmesg -T | grep -i -E 'oom|killed process|segfault|xid'"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="an error of that rank in another file",
        ranks=tuple(alone) or None,
        confidence=Confidence.MEDIUM if alone else Confidence.LOW,
    )  # fmt: skip


def ended(case: Case) -> Sign | None:
    """Return the sign of a process's end if that is the root failure; None if it is not."""
    if case.root is None:
        return None
    sign = case.root_sign(*ENDED)
    if sign is not None:
        return sign
    if case.root.failure is not None and is_consequence(case.start, case.root.failure):
        at = case.root.at
        return next((s for s in case.signs(*ENDED) if s.at >= at and _was_killed(s)), None)
    died = case.root.died
    if died is None:
        return None
    return Sign(id="child-died", at=died.offset, text=died.text,
                fields={k: v for k, v in (("process", died.fields.get("what")), ("pid", died.fields.get("pid")),
                        ("exit_code", died.fields.get("exit_code"))) if v is not None})  # fmt: skip


def served_s(case: Case, sign: Sign) -> float | None:
    """Return the seconds of serving before a process ended; None without timestamps, or if it never became ready.

    uvicorn's line about readiness has no timestamp, so the last one before it counts.
    """
    ready = case.start.ready_at
    if ready is None:
        return None
    since = next((x.at for x in reversed(case.start.facts) if x.offset <= ready and x.at is not None), None)
    end = sign.time if sign.time is not None else case.start.ended
    return end - since if since is not None and end is not None else None


def _was_killed(sign: Sign) -> bool:
    return sign.id in ("killed", "sigkill") or sign.fields.get("exit_code") in _KILLED


def _who(sign: Sign) -> str:
    name = sign.fields.get("process") or sign.fields.get("worker") or sign.fields.get("command")
    pid = f" (pid {sign.fields['pid']})" if "pid" in sign.fields else ""
    return f"{name}{pid}" if name else f"A process of the server{pid}"


def of_the_end(case: Case, sign: Sign) -> list[Evidence | None]:
    """Cite exit code, PID and name of a process that ended, as far as the sign has them."""
    name = sign.fields.get("process") or sign.fields.get("worker")
    return [
        case.quote("exitcode", sign, "exit_code"),
        case.quote("pid", sign, "pid"),
        Evidence(what="process", value=str(name), at=sign.at) if name else None,
    ]


def numbers(case: Case, sign: Sign) -> tuple[int, ...] | None:
    """Return the global rank of the process that ended; None if its name does not identify one."""
    name = str(sign.fields.get("process") or sign.fields.get("worker") or "")
    behaviour = case.engine.behaviour()
    found = re.search(behaviour.process_number, name) if behaviour.process_number else None
    nodes = case.setting("nnodes")
    if isinstance(nodes, int) and nodes > 1:
        here = {rank.number for rank in case.start.ranks}
        return tuple(here) if len(here) == 1 and case.layout.dp == 1 else None
    replicas = case.setting("dp_size")
    if found is None or (behaviour.numbers_each_replica and isinstance(replicas, int) and replicas > 1):
        return None
    number = int(found[1])
    return (number,) if number < case.layout.world else None


def _phase(case: Case) -> str | None:
    """Return `runtime` for a process killed while serving, else None; what it was computing is irrelevant."""
    return "runtime" if case.phase in ("prefill", "decode", "idle-check") else None


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "some time"
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.0f} minutes"
