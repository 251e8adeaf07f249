"""End what a stopped server left behind, and empty gputuner's folder on the host."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from .base import Json, Refused, names_in
from .folder import AUDIT, audit, our_folder, read_json, remove_file, run_folder, run_ids, size_of
from .identity import NO_PROCESS, alive, boot_id, send
from .lease import hostname

if TYPE_CHECKING:
    from .probe import Probe
    from .runs_watch import RunsWatch

TERM_S = 10.0
"""Seconds that a process has for its end after TERM."""
KILL_S = 5.0
"""Seconds in which a process must be gone after KILL. One in a driver call that hangs is not."""


def end_leftovers(probe: Probe, act: Json, operator: Json, record: Json) -> str:
    """End processes that the record of a run calls members of the stopped server; return what was done, in words.

    Args:
        probe: The probe.
        act: The act, with its `processes`.
        operator: Who acts.
        record: The record of the run, as its supervisor wrote it.

    Raises:
        Refused: One is no such process, or one does not end.
    """
    if record.get("boot_id") != boot_id():
        raise Refused("the host has been started again since", "nothing of that server is left")
    ours: Dict[Tuple[Any, Any], Json] = {
        (one.get("pid"), one.get("start_ticks")): one
        for one in record.get("leftovers") or ()
        if one.get("ours") and one.get("start_ticks")
    }
    meant = [(int(one["pid"]), int(one["start_ticks"])) for one in act.get("processes") or ()]
    for pid, ticks in meant:
        # One that has ended since is no longer among them, and needs nothing.
        if (pid, ticks) not in ours and alive(pid, ticks):
            raise Refused("process %d is not one that this run left behind" % pid, "it is never signalled")
    wanted = [each for each in meant if each in ours]
    for name, wait_s in (("TERM", TERM_S), ("KILL", KILL_S)):
        for pid, ticks in wanted:
            uid = ours[pid, ticks].get("uid")
            why = send(pid, ticks, uid, getattr(signal, "SIG" + name))
            if why != NO_PROCESS:
                outcome, detail = ("not sent", why) if why else ("sent", None)
                audit(
                    "probe", operator, signal=name, run=act["run"], pid=pid, ticks=ticks, outcome=outcome, detail=detail
                )
        wanted = _wait(probe, wanted, wait_s)
        if not wanted:
            return "%d ended" % len(meant)
    pids = ", ".join(str(pid) for pid, _ in wanted)
    raise Refused("not ended by TERM and KILL: %s" % pids, "look at what they wait for: cat /proc/PID/stack as root")


def _wait(probe: Probe, processes: List[Tuple[int, int]], wait_s: float) -> List[Tuple[int, int]]:
    """Wait until processes have ended; return those that have not after `wait_s` seconds."""
    until = time.monotonic() + wait_s
    while True:
        left = [each for each in processes if alive(*each)]
        if not left or time.monotonic() > until or probe.pause(0.05):
            return left


def host_of_server(ident: str) -> Optional[str]:
    """Return the other host with this home folder on which the server of a run may live; None: on none."""
    place = run_folder(ident)
    host = (read_json(os.path.join(place, "order.json")) or {}).get("hostname")
    if not isinstance(host, str) or host == hostname() or os.path.exists(os.path.join(place, "exit.json")):
        return None
    outcome = (read_json(os.path.join(place, "state.json")) or {}).get("outcome")
    return host if outcome in ("running", "ready", "back", "stuck") else None


def clean(probe: Probe, runs: RunsWatch) -> str:
    """Remove all that is in gputuner's folder except the audit; return what was removed, in words.

    Raises:
        Refused: A run or a server still needs it.
        OSError: It cannot be removed.
    """
    place = our_folder()
    if stat.S_ISLNK(os.lstat(place).st_mode):
        raise Refused("%s is a link to another folder" % place, "remove it by hand")
    ids = run_ids()
    for ident in ids:
        record = runs.record(ident)
        if record is not None and (record["supervised"] or record["alive"]):
            what = (
                "a server that was started by run %s" % ident if record["alive"] else "the supervisor of run %s" % ident
            )
            raise Refused("%s still lives, and needs the folder" % what, "stop the server first")
        elsewhere = host_of_server(ident)
        if elsewhere is not None:
            raise Refused(
                "run %s was begun on %s, which has the same home folder, and may still need it" % (ident, elsewhere),
                "clean it there, or remove the folder by hand",
            )
    real = os.path.realpath(place) + "/"
    for server in probe.live_servers():
        path = server.target.path
        if path and os.path.realpath(path).startswith(real):
            raise Refused("the server with pid %d logs into the folder" % server.leader.pid, "stop the server first")
    size = size_of(place)
    for name in names_in(place):
        path = os.path.join(place, name)
        if name != AUDIT and stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        elif name != AUDIT:
            remove_file(path)
    size -= size_of(place)
    count = "1 run" if len(ids) == 1 else "%d runs" % len(ids)
    return "removed from %s: %s, %.1f MB; the audit stays: %s" % (place, count, size / 1e6, os.path.join(place, AUDIT))
