"""Watch gputuner's folder on the host, and report its runs and its lease."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from .base import Json, Refused, stat_of, until_beat
from .folder import our_folder, read_json, run_folder, run_ids
from .identity import alive, boot_id
from .lease import LeaseKeeper, hostname

if TYPE_CHECKING:
    from .probe import Probe

_NUMBER = (int, float)
_NEEDED: Dict[str, Any] = {
    "id": str, "operator": dict, "began_at": _NUMBER, "updated_at": _NUMBER, "step": str, "outcome": str,
}  # fmt: skip
_KNOWN: Dict[str, Any] = {
    **_NEEDED, "preset": str, "title": str, "recipe": dict, "until": _NUMBER, "detail": str, "steps": list,
    "failure": str, "boot_id": str, "supervisor": dict, "old": dict, "new": dict, "going_back": bool, "back": str,
    "exit_code": int, "argv": list, "env": dict, "cwd": str, "log": str, "port": int, "leftovers": list,
    "memory": list, "cancelled_by": dict, "failed": dict, "failed_log": str, "back_preset": str, "back_recipe": dict,
}  # fmt: skip
"""Fields of a record that are sent, with their types. None is possible everywhere but in `_NEEDED`."""
_SETTLING_S = 5.0
"""Seconds after a record changed in which its processes are looked for at each tick: they may just have been made."""


class RunsWatch:
    """Sends a `run` line for each of the newest runs, and again when it or its processes changed."""

    NEWEST = 20
    TICK_S = 0.5
    SETTLED_EVERY = 4
    """Number of ticks between looks at the processes of a run that has an outcome."""

    def __init__(self, probe: Probe, lease: LeaseKeeper) -> None:
        self.probe = probe
        self.lease = lease
        self.looked = threading.Event()
        """Set after the first look."""
        self._runs: Dict[str, _Run] = {}
        self._looks = 0
        self._guard = threading.Lock()

    def run(self) -> None:
        """Watch until the probe ends. In a thread of its own: the home folder may be on a disk that does not answer."""
        while True:
            try:
                self.tick()
            except (OSError, Refused) as e:
                self.probe.problems.note("folder", our_folder(), str(e))
            except Exception as e:
                self.probe.fault("folder", e)
            else:
                self.probe.problems.clear("folder", our_folder())
            self.looked.set()
            if self.probe.pause(until_beat(self.TICK_S)):
                return

    def tick(self, *, all_runs: bool = False) -> None:
        """Look once. Raises OSError, and Refused where another probe holds the lease's lock.

        Args:
            all_runs: Look at the processes of all runs, of those with an outcome too.
        """
        self.lease.tick()
        with self._guard:
            self._look(all_runs)

    def record(self, ident: str) -> Optional[Json]:
        """Return the record of a run as it is now, with `supervised` and `alive`; None where there is no usable one.

        Raises:
            ValueError: `ident` is no id of a run.
        """
        run = _Run(ident, run_folder(ident))
        return run.line() if run.read() and run.why is None else None

    def _look(self, all_runs: bool) -> None:
        ids = run_ids()[: self.NEWEST] if os.path.isdir(our_folder()) else []
        self._looks += 1
        if not ids and any(run.told for run in self._runs.values()):
            # Another operator has cleaned the host: nothing can be gone back to.
            self.probe.out.put({"t": "cleaned"})
        for ident in self._runs.keys() - set(ids):
            self.probe.problems.forget(ident)
            del self._runs[ident]
        for ident in ids:
            run = self._runs.get(ident)
            if run is None:
                run = self._runs[ident] = _Run(ident, run_folder(ident))
            changed = run.read()
            if changed:
                if run.why:
                    self.probe.problems.note("run-damaged", ident, run.why)
                else:
                    self.probe.problems.clear("run-damaged", ident)
            if not (changed or all_runs) and run.settled and self._looks % self.SETTLED_EVERY:
                continue
            line = run.line()
            if line is not None and _content(line) != _content(run.told):
                run.told = line
                self.probe.out.put({"t": "run", "run": line})


class _Run:
    """One run as last seen."""

    def __init__(self, ident: str, place: str) -> None:
        self.ident = ident
        self.place = place
        self.told: Optional[Json] = None
        self.why: Optional[str] = None
        """What is wrong with the record; None: nothing, or there is no record yet."""
        self._mark: Optional[Tuple[int, int, int]] = None
        self._record: Optional[Json] = None
        self._elsewhere: Optional[bool] = None
        """Whether another host with the same home folder made it; None: not looked at."""
        self._changed_at = 0.0
        self._lives: Dict[str, bool] = {}

    def read(self) -> bool:
        """Read the record if it changed; return whether it did."""
        status = stat_of(os.path.join(self.place, "state.json"))
        mark = (status.st_mtime_ns, status.st_ino, status.st_size) if status else None
        if mark is None or mark == self._mark:
            return False
        if self._elsewhere is None:
            host = (read_json(os.path.join(self.place, "order.json")) or {}).get("hostname")
            self._elsewhere = host is not None and host != hostname()
        self._mark = mark
        if self._elsewhere:
            return False
        found = read_json(os.path.join(self.place, "state.json"))
        self.why = _why_alien(found, self.ident)
        if found is not None and self.why is None:
            self._record = {name: found[name] for name in _KNOWN if name in found}
            self._changed_at = time.monotonic()
        return True

    @property
    def settled(self) -> bool:
        """Return whether the run has an outcome, and its record has not changed for a while."""
        over = self._record is None or self._record["outcome"] != "running"
        return over and time.monotonic() - self._changed_at > _SETTLING_S

    def line(self) -> Optional[Json]:
        """Return the record as it is sent, None where there is none."""
        record = self._record
        if record is None:
            return None
        here = record.get("boot_id") == boot_id()
        left = [one for one in record.get("leftovers") or [] if here and self._is_left(one)]
        return {
            **record,
            "leftovers": left,
            "supervised": here and self._living(record.get("supervisor")),
            "alive": here and self._living(record.get("new")),
        }

    def _is_left(self, one: Any) -> bool:
        return isinstance(one, dict) and (not one.get("start_ticks") or self._living(one))

    def _living(self, process: Any) -> bool:
        """Return whether a process of the record lives. One that was dead stays so, and is not looked for again."""
        if not isinstance(process, dict):
            return False
        pid, ticks = process.get("pid"), process.get("start_ticks")
        if not isinstance(pid, int) or not isinstance(ticks, int):
            return False
        key = "%d:%d" % (pid, ticks)
        if self._lives.get(key, True) or time.monotonic() - self._changed_at < _SETTLING_S:
            self._lives[key] = alive(pid, ticks)
        return self._lives[key]


def _content(line: Optional[Json]) -> Optional[Json]:
    """Return a record without the time of its writing: a supervisor that waits writes each second that it lives."""
    return line and {name: value for name, value in line.items() if name != "updated_at"}


def _why_alien(record: Optional[Json], ident: str) -> Optional[str]:
    """Return why a record cannot be used; None if it can."""
    if record is None:
        return "its record is torn or is no JSON"
    wrong: List[str] = [name for name, kind in _NEEDED.items() if not isinstance(record.get(name), kind)]
    wrong += [
        name
        for name, kind in _KNOWN.items()
        if record.get(name) is not None and not isinstance(record[name], kind) and name not in wrong
    ]
    if wrong:
        return "its record has no valid %s" % ", ".join(wrong)
    return None if record["id"] == ident else "its record is that of another run"
