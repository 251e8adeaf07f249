"""The supervisor's program: `supervisor.py RUNFOLDER`."""

from __future__ import annotations

import os
import sys

from ..agent.base import ME
from ..agent.identity import boot_id
from .aftermath import stay
from .desk import Desk
from .files import Folder
from .members import HIDDEN, own_stat
from .orders import Order, ProcessId
from .pulse import Pulse
from .record import Record
from .run import Run

UNWRITTEN_S = 1.0
"""Seconds between two attempts to write the outcome."""
_AGAIN = "--again"
"""Argument of a supervisor that begins anew after a fault."""


def main() -> None:
    """Carry out the run whose folder is the only argument, or go on with it; then stay for the server's life."""
    folder = Folder(sys.argv[1])
    pulse = Pulse()
    data = folder.read("order.json")
    try:
        order = Order(data or {})
    except (KeyError, ValueError, TypeError) as e:
        sys.exit("gputuner: %s is no order: %r" % (folder.file("order.json"), e))
    for launch in (order.start, order.back):
        HIDDEN.extend(launch.secret_flags if launch is not None else ())
    other = folder.take_lock() if Record(folder, order, folder.read("state.json")).going_on else None
    # Only now: the lock was perhaps waited for, and its holder may have carried this run out meanwhile.
    before = folder.read("state.json")
    record = Record(folder, order, before)
    if other is not None:
        if before is None and other != folder.run:
            record.end("refused", "another run is going on: %s" % other)
            return
        sys.exit("gputuner: another run is going on: %s" % other)
    record.process("supervisor", _self(pulse))
    record.data["boot_id"] = record.data["boot_id"] or boot_id() or ""
    desk = Desk(folder, order, record, pulse)
    if before is not None:
        desk.resume()
        if record.going_on and record.data["boot_id"] != (boot_id() or ""):
            record.end("failed", "the host was started anew during the run")
    run = Run(desk)
    if not record.going_on:
        run.watch_again()
    else:
        try:
            run.carry_out()
        except Exception as e:
            _fault(desk, run, e)
    run.gpus.end()
    folder.free_reserve()
    # The outcome is told however long the disk stays full; until then the run goes on for everybody else.
    while not (folder.flush() & record.save()) and os.path.isdir(folder.path):
        pulse.wait(UNWRITTEN_S)
    folder.release_lock()
    stay(desk, run.start)


def _fault(desk: Desk, run: Run, error: Exception) -> None:
    """Begin anew from the record after a fault of ours; if that happens again, leave the run to a new supervisor.

    A server that was started stays our child, since the process is the same. Never returns.
    """
    import traceback

    words = "a fault of the supervisor: %s: %s" % (type(error).__name__, error)
    desk.record.journal(words, trace=traceback.format_exc())
    traceback.print_exc()
    run.gpus.end()
    if _AGAIN not in sys.argv:
        os.execv(sys.executable, [sys.executable, "-ISBXutf8", *sys.argv, _AGAIN])  # noqa: S606
    desk.record.say(words + "; the run can be resumed")
    sys.exit(1)


def _self(pulse: Pulse) -> ProcessId:
    pid = os.getpid()
    stat = own_stat(pid, pulse)
    return ProcessId(pid, stat.ticks if stat is not None else 0, ME, "gputuner supervisor")
