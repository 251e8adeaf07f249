"""The order of a run, as the laptop wrote it and the probe completed it: see `tuner.domain.runs.SwitchOrder`."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ..agent.base import Json


class ProcessId:
    """One process for all time: a PID and the ticks of its start. `uid` and `title` are None and empty if unknown."""

    __slots__ = ("pid", "ticks", "title", "uid")

    def __init__(self, pid: int, ticks: int, uid: Optional[int] = None, title: str = "") -> None:
        self.pid = pid
        self.ticks = ticks
        self.uid = uid
        self.title = title

    @classmethod
    def of(cls, data: Json) -> ProcessId:
        """Return it from JSON. Raises KeyError, ValueError or TypeError."""
        uid = data.get("uid")
        return cls(int(data["pid"]), int(data["start_ticks"]), uid if uid is None else int(uid), data.get("title", ""))

    @property
    def json(self) -> Json:
        """Return it as JSON."""
        return {"pid": self.pid, "start_ticks": self.ticks, "uid": self.uid, "title": self.title}


class Step:
    """One rung of the ladder by which a server is stopped."""

    def __init__(self, data: Json) -> None:
        self.signal: str = data["signal"]
        self.to: str = data.get("to", "leader")
        self.wait_s = float(data.get("wait_s", 10.0))


DEFAULT_LADDER = (
    {"signal": "TERM", "to": "leader", "wait_s": 20.0},
    {"signal": "TERM", "to": "orphans", "wait_s": 5.0},
    {"signal": "KILL", "to": "tree", "wait_s": 10.0},
)
"""The ladder that ends a server whose order names none."""


class Stop:
    """What is to be stopped, and how: `tuner.domain.runs.StopOrder`."""

    def __init__(self, data: Json) -> None:
        self.boot_id: str = data["boot_id"]
        self.leader = ProcessId.of(data["leader"])
        self.members = [ProcessId.of(each) for each in data.get("members") or ()]
        self.steps = [Step(each) for each in data.get("steps") or DEFAULT_LADDER]
        self.drain_s = float(data.get("drain_s") or 0.0)
        self.drain: List[Json] = list(data.get("drain") or ())
        self.manager: List[str] = list(data.get("manager") or ())
        self.manager_wait_s = float(data.get("manager_wait_s", 90.0))
        self.port: Optional[int] = data.get("port")
        self.gpus: List[str] = list(data.get("gpus") or ())
        self.claimed: Dict[str, int] = dict(data.get("claimed") or {})
        self.memory_s = float(data.get("memory_s", 60.0))
        self.lingers: str = data.get("lingers") or ""


class Launch:
    """A server that is to be started: `tuner.domain.runs.LaunchOrder`, and the environment below its own variables."""

    def __init__(self, data: Json) -> None:
        self.argv: List[str] = list(data.get("argv") or ())
        self.env: Dict[str, str] = dict(data.get("env") or {})
        self.base: Optional[Dict[str, str]] = data.get("base")
        """Environment below `env`, which the probe adds; None: that of the supervisor."""
        self.unset: List[str] = list(data.get("unset") or ())
        self.cwd: Optional[str] = data.get("cwd")
        self.secret_flags: List[str] = list(data.get("secret_flags") or ())
        self.secret_env: List[str] = list(data.get("secret_env") or ())
        self.manager: List[str] = list(data.get("manager") or ())
        self.log_dir: Optional[str] = data.get("log_dir")
        self.log_name: str = data.get("log_name") or ""
        self.port: Optional[int] = data.get("port")
        self.titles: List[str] = list(data.get("titles") or ())
        self.ranks: Optional[int] = data.get("ranks")
        self.parts: List[str] = list(data.get("parts") or ())
        self.health: Optional[Json] = data.get("health")
        self.first_token: Optional[Json] = data.get("first_token")
        self.api_key_flags: List[str] = list(data.get("api_key_flags") or ())
        self.api_key_env: List[str] = list(data.get("api_key_env") or ())
        self.tls_flags: List[str] = list(data.get("tls_flags") or ())
        self.steady_s = float(data.get("steady_s", 3.0))
        self.deadline_s = float(data.get("deadline_s", 3_600.0))
        self.preset: str = data.get("preset") or ""
        self.title: str = data.get("title") or ""
        self.recipe: Optional[Json] = data.get("recipe")
        self.stop = [Step(each) for each in data.get("stop") or DEFAULT_LADDER]


class Order:
    """A whole run: `tuner.domain.runs.SwitchOrder`. Raises KeyError, ValueError or TypeError if it is none."""

    def __init__(self, data: Json) -> None:
        self.run: str = data["run"]
        self.operator: Json = data["operator"]
        stop, start, back = data.get("stop"), data.get("start"), data.get("back")
        self.stop = Stop(stop) if stop else None
        self.start = Launch(start) if start else None
        self.back = Launch(back) if back else None
        self.auto_back = bool(data.get("auto_back"))

    @property
    def aim(self) -> Any:
        """Return the launch whose preset and title the run is called by; None when it only stops."""
        return self.start or self.back
