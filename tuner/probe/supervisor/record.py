"""What a run tells: its state, its journal, and the host's record of all acts."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

from ..agent.base import Json
from .files import Folder
from .orders import Order, ProcessId
from .pulse import now

BEAT_S = 1.0
"""Most seconds between two writes of the state while the run goes on."""

STARTING = ("launch", "loading", "port", "health", "first-token", "steady")
"""Steps of a start, in order."""


def plain(text: str) -> str:
    """Return a text without what stands for bytes that are no UTF-8, which no reader of a record could decode."""
    return text.encode("utf-8", "replace").decode()


class Record:
    """Writes `state.json` (`tuner.domain.runs.RunRecord`), `journal.ndjson` and the host's audit.

    Args:
        folder: The folder of the run.
        order: What is to be done.
        data: The state of a supervisor that died before, which is continued; None: a new run.
    """

    def __init__(self, folder: Folder, order: Order, data: Optional[Json] = None) -> None:
        self._folder = folder
        self._order = order
        self._written_at = -1e9
        aim = order.aim
        at = now()
        self.data: Json = data or {
            "id": folder.run,
            "operator": order.operator,
            "preset": aim.preset if order.start else "",
            "title": aim.title if order.start else "",
            "recipe": order.start.recipe if order.start else None,
            "began_at": at,
            "updated_at": at,
            "step": "check",
            "until": None,
            "detail": "",
            "steps": [],
            "outcome": "running",
            "failure": "",
            "boot_id": "",
            "supervisor": None,
            "old": order.stop.leader.json if order.stop else None,
            "new": None,
            "going_back": False,
            "failed": None,
            "failed_log": None,
            "back": (order.back.title or "the server before") if order.back else "",
            "back_preset": order.back.preset if order.back else "",
            "back_recipe": order.back.recipe if order.back else None,
            "exit_code": None,
            "argv": [],
            "env": {},
            "cwd": None,
            "log": None,
            "port": order.start.port if order.start else order.stop.port if order.stop else None,
            "leftovers": [],
            "memory": [],
            "cancelled_by": None,
        }
        self.progress: Json = self.data.setdefault("progress", {"phase": "check", "back": False})
        """What a supervisor needs to go on from here; not part of `RunRecord`."""

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def going_on(self) -> bool:
        """Return whether the run has no outcome yet."""
        return bool(self.data["outcome"] == "running")

    def step(self, name: str, detail: str = "", until: Optional[float] = None) -> None:
        """Begin a step. `until`: wall clock at which its wait ends at the latest."""
        at = now()
        steps: List[Json] = self.data["steps"]
        if steps and steps[-1].get("ended") is None:
            steps[-1]["ended"] = at
        if name != "end":
            steps.append({"step": name, "at": at, "ended": None, "detail": detail, "back": self.data["going_back"]})
        self.data.update(step=name, detail=detail, until=until)
        self.journal(detail)
        self.save()

    def say(self, detail: str, until: Optional[float] = None) -> None:
        """Tell what happens now, if that changed. `until`: wall clock at which the present wait ends at the latest."""
        if (detail, until) != (self.data["detail"], self.data["until"]):
            if self.data["steps"]:
                self.data["steps"][-1]["detail"] = detail
            if detail != self.data["detail"]:
                self.journal(detail)
            self.data.update(detail=detail, until=until)
            self.save()

    def unclean(self) -> None:
        """Mark the present step: it comes to its end, but cuts what the server still works on."""
        if self.data["steps"]:
            self.data["steps"][-1]["unclean"] = True

    def end(self, outcome: str, detail: str) -> None:
        """Give the run its outcome."""
        detail = plain(" ".join(detail.split()))
        self.audit("run", outcome=outcome, detail=detail)
        self.data["outcome"] = outcome
        self.step("end", detail)

    def save(self) -> bool:
        """Write the state; return whether it was written."""
        self.data["updated_at"] = now()
        self._written_at = time.monotonic()
        return self._folder.replace("state.json", self.data)

    def beat(self) -> None:
        """Write the state if it is older than a second, and lines that a full disk refused before."""
        if time.monotonic() - self._written_at >= BEAT_S:
            self._folder.flush()
            self.save()

    def intend(self, text: str, **fields: Any) -> None:
        """Record what is about to be done, before it is done. A full disk gets the reserve for that."""
        if not (self.journal(text, **fields) & self.save()):
            self._folder.free_reserve()
            self._folder.flush()
            self.save()

    # -- lines ----------------------------------------------------------------------------------------------------

    def journal(self, detail: str, **fields: Any) -> bool:
        """Append a line to the run's journal; return whether it was written."""
        return self._folder.append(
            "journal.ndjson", {"at": now(), "step": self.data["step"], "detail": detail, **fields}
        )

    def audit(self, act: str, **fields: Any) -> bool:
        """Append a line to the host's record of all acts; return whether it was written."""
        operator = self.data["cancelled_by"] or self._order.operator
        line: Dict[str, Any] = {"at": now(), "operator": operator, "run": self._folder.run, "act": act, **fields}
        return self._folder.audit(line)

    # -- parts of the state ---------------------------------------------------------------------------------------

    def process(self, name: str, identity: Optional[ProcessId]) -> None:
        """Set a field that holds a process."""
        self.data[name] = identity.json if identity is not None else None

    def failed(self, why: str) -> None:
        """Remember why the start failed, and in which step; the first reason stays."""
        why = plain(" ".join(why.split()))
        back = self.data["going_back"]
        started = [step for step in self.data["steps"] if step["step"] in STARTING and step["back"] == back]
        # What was done since to end the server are steps of their own.
        if started and not started[-1].get("failed"):
            started[-1]["failed"] = why
        if not self.data["failure"]:
            self.data["failure"] = why
            self.journal(why)
