"""The one door through which the host is changed.

Each act goes through `Door`: who may act is checked first, what is meant is proven next, and what is done is written
into the audit before and after. One act is carried out at a time, in a thread of its own. The acts themselves are in
`launch_order`, `launcher` and `leftovers`; the run that an act begins goes on without the probe.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import queue
import time
import zlib
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from .arguments import masked_argv
from .base import ME, Json, Refused, user_name
from .folder import AUDIT, Lock, audit, disk_of, make_folder, our_folder, read_json, run_folder, write_bytes, write_json
from .identity import boot_id, why_not
from .launch_order import Source, completed
from .launcher import start_supervisor
from .lease import LeaseKeeper, described, hostname, lease_of
from .leftovers import clean, end_leftovers
from .processes import argv_of, environ_of, owner_of, same_mounts
from .runs_watch import RunsWatch

if TYPE_CHECKING:
    from .probe import Probe

CODE_LIMIT = 4 << 20
"""Most bytes of a supervisor's program."""
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Errors of a file system, or of a user's share of it, that has no room left."""
_DISK = _FULL | {errno.EIO, errno.EROFS}
"""Errors of a file system, whatever the file."""


class Door:
    """Carries out acts, one at a time, and answers each."""

    def __init__(self, probe: Probe, lease: LeaseKeeper, runs: RunsWatch) -> None:
        self.probe = probe
        self.lease = lease
        self.runs = runs
        self._waiting: queue.Queue[Json] = queue.Queue()
        self._open = False
        self.handlers: Dict[str, Callable[[Json, Json, Json], Json]] = {
            "take-lease": self._take_lease,
            "release-lease": self._release_lease,
            "switch": self._switch,
            "cancel-run": self._cancel_run,
            "resume-run": self._resume_run,
            "end-leftovers": self._end_leftovers,
            "clean": self._clean,
        }
        """Functions that carry out an act, by its tag: of act, operator and order. They return parts of the answer."""

    def submit(self, order: Json) -> None:
        """Queue an order. Called by the thread that reads orders only."""
        self._waiting.put(order)
        if not self._open:
            self._open = True
            self.probe.thread(self._work, "acts")

    def _work(self) -> None:
        while True:
            order = self._waiting.get()
            answer = self._answer(order)
            try:
                self.runs.tick(all_runs=True)  # what the act changed is told before its answer
            except Exception as e:  # this thread carries out the next act too
                self.probe.fault("folder", e)
            self.probe.out.put({"t": "acted", "id": order.get("id", 0), "error": None, **answer})

    def _answer(self, order: Json) -> Json:
        try:
            return self._act(order)
        except Refused as e:
            return {"error": str(e), "hint": e.hint}
        except OSError as e:
            return _failed(e)
        except Exception as e:
            self.probe.fault("act", e)
            return {"error": "the probe failed: %s: %s" % (type(e).__name__, e)}

    def _act(self, order: Json) -> Json:
        """Check, audit and carry out one act. Raises Refused, OSError."""
        operator = _operator(order)
        act = order.get("act")
        tag = act.get("act") if isinstance(act, dict) else None
        handler = self.handlers.get(str(tag))
        if handler is None or not isinstance(act, dict):
            raise Refused("the probe knows no act %r" % tag, "update gputuner")
        note: Json = {"act": tag, "run": _run_of(act), "argv": _argv_of(act.get("order"))}
        if tag == "take-lease":
            make_folder(our_folder())
        elif tag != "release-lease" or self.lease.held:
            try:
                self.lease.require(operator)
            except Refused as e:
                self._conclude(operator, outcome="refused", detail=str(e), **note)
                raise
        else:
            return {}
        audit("probe", operator, outcome="begins", **note)
        try:
            answer = handler(act, operator, order)
        except Exception as e:
            outcome = "refused" if isinstance(e, Refused) else "failed"
            self._conclude(operator, outcome=outcome, detail=str(e), **note)
            raise
        note["argv"] = answer.pop("argv", None)
        self._conclude(operator, outcome="done", detail=answer.get("hint") or None, **note)
        return answer

    def _conclude(self, operator: Json, **what: Any) -> None:
        """Write into the audit what came of an act, if gputuner's folder exists.

        A disk that is full by now is a problem of its own: what was done is done, and must not be answered as an error.
        """
        path = os.path.join(our_folder(), AUDIT)
        if os.path.isdir(our_folder()):
            try:
                audit("probe", operator, **what)
            except OSError as e:
                self.probe.problems.note("folder", path, e.strerror or str(e))
            else:
                self.probe.problems.clear("folder", path)

    # -- the acts ---------------------------------------------------------------------------------------------------

    def _take_lease(self, act: Json, operator: Json, order: Json) -> Json:
        self.lease.take(operator, bool(act.get("seize")))
        return {}

    def _release_lease(self, act: Json, operator: Json, order: Json) -> Json:
        self.lease.release()
        return {}

    def _switch(self, act: Json, operator: Json, order: Json) -> Json:
        """Begin a run: prove what is to be stopped, complete what is to be started, start the supervisor."""
        switch = dict(act["order"])
        run = str(switch.get("run"))
        place = _folder_of(run)
        code = _code(order)
        if os.path.exists(place):
            raise Refused("there is a run %s already" % run, "begin another one")
        self._no_run_goes_on()
        stop = switch.get("stop")
        if stop:
            self._prove(stop, operator)
        for part in ("start", "back"):
            if switch.get(part):
                switch[part] = completed(switch[part], self.source)
        switch.update(operator=operator, hostname=hostname(), boot_id=boot_id())
        make_folder(place)
        write_json(os.path.join(place, "order.json"), switch, sync=True)
        write_bytes(os.path.join(place, "supervisor.py"), code, sync=True)
        self._start(run, place, operator)
        return {"run": run, "argv": _argv_of(switch)}

    def _cancel_run(self, act: Json, operator: Json, order: Json) -> Json:
        record = self._record(act)
        if record["outcome"] != "running":
            raise Refused("the run has ended already: %s" % record["outcome"])
        if not record["supervised"]:
            raise Refused("the run's supervisor has ended, so nobody would see the order", "resume it, or go back")
        order_to = {"operator": operator, "back": bool(act.get("back", True))}
        write_json(os.path.join(_folder_of(act["run"]), "cancel"), order_to)
        return {"run": act["run"]}

    def _resume_run(self, act: Json, operator: Json, order: Json) -> Json:
        run = str(act.get("run"))
        place = _folder_of(run)
        record = self._record(act)
        code = _code(order)
        if record["outcome"] != "running":
            raise Refused("the run has ended already: %s" % record["outcome"])
        if record["supervised"]:
            raise Refused("the run goes on: its supervisor lives", "cancel it instead")
        self._no_run_goes_on()
        if read_json(os.path.join(place, "order.json")) is None:
            raise Refused("the run's order.json is gone or torn", "start the server anew")
        write_json(os.path.join(place, "resume"), {"operator": operator, "back": bool(act.get("back"))})
        write_bytes(os.path.join(place, "supervisor.py"), code, sync=True)
        # What the first supervisor started may still live in its unit, so that its name is taken.
        self._start("%s-again-%d" % (run, time.time()), place, operator)
        return {"run": run}

    def _start(self, name: str, place: str, operator: Json) -> None:
        """Start the supervisor of a run. Raises Refused, OSError."""
        try:
            start_supervisor(self.probe, name, place)
        except TimeoutError as e:
            # On a host that crawls it may begin later, when nobody expects it.
            write_json(os.path.join(place, "cancel"), {"operator": operator, "back": True})
            raise Refused("%s, and was told to end" % e, "look into %s" % place) from None

    def _end_leftovers(self, act: Json, operator: Json, order: Json) -> Json:
        return {"hint": end_leftovers(self.probe, act, operator, self._record(act)), "run": act["run"]}

    def _clean(self, act: Json, operator: Json, order: Json) -> Json:
        self._no_run_goes_on()
        said = clean(self.probe, self.runs)
        self.lease.release()
        return {"hint": said}

    # -- proofs -----------------------------------------------------------------------------------------------------

    def _record(self, act: Json) -> Json:
        """Return the record of the run that an act names. Raises Refused."""
        _folder_of(act.get("run"))
        record = self.runs.record(str(act["run"]))
        if record is None:
            raise Refused("there is no run %s here, or its record is damaged" % act["run"])
        return record

    def _no_run_goes_on(self) -> None:
        holder = Lock(os.path.join(our_folder(), "lock")).holder()
        if holder is not None:
            raise Refused(
                "the run %s is going on" % (holder or "of another operator"), "wait for its end, or cancel it"
            )

    def _prove(self, stop: Json, operator: Json) -> None:
        """Prove that what is to be stopped is what is meant, and ours to stop. Raises Refused."""
        leader = stop["leader"]
        if stop.get("boot_id") != boot_id():
            raise Refused("the host has been started again since the server was seen", "look again")
        reason = why_not(int(leader["pid"]), int(leader["start_ticks"]), leader.get("uid"))
        if reason:
            raise Refused("the server to stop (pid %d): %s" % (leader["pid"], reason), "look again")
        owner = owner_of(int(leader["pid"]))
        if ME not in (0, owner):
            raise Refused(
                "the server belongs to %s, and this probe runs as %s" % (user_name(owner), user_name(ME)),
                "connect as %s or as root" % user_name(owner),
            )
        theirs = lease_of(owner) if owner not in (None, ME) else None
        if theirs is not None and theirs.get("session") != operator["session"]:
            raise Refused(
                "%s has the right to change %s's servers" % (described(theirs), user_name(owner)),
                "ask them to give it back",
            )

    def source(self, like: str) -> Source:
        """Return what an order is completed from. Raises Refused."""
        kind, _, ident = like.partition(":")
        if kind == "server":
            return self._source_server(ident)
        if kind not in ("run", "back"):
            raise Refused("the probe knows no %r to start a server like" % like, "update gputuner")
        order = read_json(os.path.join(_folder_of(ident), "order.json"))
        launch = (order or {}).get("start" if kind == "run" else "back")
        if isinstance(launch, dict) and launch.get("manager"):
            was = launch.get("was") or {}
            return Source("run %s" % ident, was.get("argv"), was.get("env"), was.get("cwd"), launch["manager"])
        if not isinstance(launch, dict) or not launch.get("argv"):
            raise Refused("run %s does not say how its server was started" % ident, "give the whole command line")
        env = {**(launch.get("base") or {}), **(launch.get("env") or {})}
        for name in launch.get("unset") or ():
            if name not in (launch.get("env") or {}):
                env.pop(name, None)
        return Source("run %s" % ident, launch["argv"], env, launch.get("cwd"))

    def _source_server(self, key: str) -> Source:
        server = self.probe.server_of(key)
        if server is None:
            raise Refused("there is no server %s to start one like" % key, "look again")
        pid = server.leader.pid
        who = "the server with pid %d" % pid
        if server.orphaned:
            raise Refused("%s is what a dead server left: it has no command line" % who, "start a kept recipe")
        living = not why_not(pid, server.leader.ticks)
        if server.uid != ME:
            raise Refused(
                "%s belongs to %s: started from here, it would run as %s" % (who, user_name(server.uid), user_name(ME)),
                "connect as %s" % user_name(server.uid),
            )
        if living and not same_mounts(pid):
            raise Refused(
                "%s runs in a container, whose files are not those of the host" % who,
                "start it there, by what made the container",
            )
        # As at first sight: later, an engine may have overwritten its command line and environment with a title.
        argv, env = server.argv, server.env if server.env_readable else {}
        if living:
            # What is no UTF-8 is read again, so that it is passed on as it is.
            if argv_of(pid) == argv:
                argv = argv_of(pid, "surrogateescape")
            if not env or environ_of(pid) == env:
                env = environ_of(pid, "surrogateescape") or {}
        return Source(who, argv, env or None, server.cwd)


def _failed(error: OSError) -> Json:
    """Return the answer to an act that the kernel refused, with the way out where the disk is full.

    A write that fails does not name its file. All that an act writes is below gputuner's folder.
    """
    reason = error.strerror or str(error)
    if error.errno not in _DISK:
        return {"error": "%s: %s" % (error.filename, reason) if error.filename else reason}
    place, free = disk_of(our_folder())
    out: Json = {"error": "%s: %s" % (our_folder(), reason)}
    if error.errno in _FULL:
        out["hint"] = "free space on %s, which has %s left" % (place, _size(free))
    return out


def _size(free: Optional[int]) -> str:
    if free is None:
        return "an unknown amount"
    return "%d MB" % (free // 1_000_000) if free >= 1_000_000 else "%d bytes" % free


def _operator(order: Json) -> Json:
    """Return who acts. Raises Refused."""
    given: Any = order.get("operator")
    if not isinstance(given, dict) or not given.get("session") or not given.get("name"):
        raise Refused("the order does not say who acts", "update gputuner")
    return {name: str(given.get(name) or "")[:200] for name in ("session", "name", "machine")}


def _folder_of(run: Any) -> str:
    """Return the folder of a run. Raises Refused."""
    try:
        return run_folder(str(run))
    except ValueError as e:
        raise Refused(str(e)) from None


def _code(order: Json) -> bytes:
    """Return the supervisor's program that came with an order. Raises Refused."""
    try:
        inflater = zlib.decompressobj()
        code = inflater.decompress(base64.b64decode(order["code"], validate=True), CODE_LIMIT)
        if not inflater.eof or not code:
            raise ValueError("torn, empty or too large")
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as e:
        raise Refused("the order has no usable program for the supervisor: %s" % e, "update gputuner") from None
    return code


def _run_of(act: Json) -> Optional[str]:
    order = act.get("order")
    run = order.get("run") if isinstance(order, dict) else act.get("run")
    return None if run is None else str(run)[:100]


def _argv_of(order: Any) -> Any:
    """Return the command line that a switch starts, secrets masked; None where there is none."""
    start = order.get("start") if isinstance(order, dict) else None
    if not isinstance(start, dict):
        return None
    words = [str(word) for word in start.get("manager") or start.get("argv") or ("like", start.get("like"))]
    return masked_argv(words, [str(flag) for flag in start.get("secret_flags") or ()])
