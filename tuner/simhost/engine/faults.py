"""Faults that the environment of a launched server asks for: `SIMHOST_FAULT=hang-loading,slow-memory=8`."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "SIMHOST_FAULT"
FAULTS: dict[str, tuple[float, str]] = {
    "ignore-term": (0.0, "SIGTERM and SIGINT do nothing"),
    "orphans": (0.0, "ranks and detokenizer outlive a main process that dies, and hold their GPU memory, as with vLLM"),
    "slow-memory": (8.0, "the driver frees memory that many seconds after a process died"),
    "instant-stop": (0.0, "SIGTERM ends everything at once, and memory is free at once"),
    "hang-loading": (0.0, "loading stops at a third of the weights, without a word"),
    "never-listens": (0.0, "the start is complete, but no port is opened"),
    "port-taken": (0.0, "someone else listens on its port when it wants to"),
    "rank-dies": (0.0, "TP3 is killed that many seconds after the server is ready"),
    "hang-capture": (11.0, "graph capture stops after that many sizes"),
    "fail-loading": (0.0, "a rank fails with a file that cannot be read"),
    "slow-start": (3.0, "the start takes that many times as long"),
}
"""Fault by name: its parameter where none is given, and what happens. Seconds are divided by the host's speed."""


def parse(env: Mapping[str, str]) -> dict[str, float]:
    """Return the faults in an environment, with underscores and their parameters. Unknown ones are ignored."""
    found = {}
    for word in env.get(VARIABLE, "").replace(";", ",").split(","):
        name, equals, value = word.strip().partition("=")
        if name in FAULTS:
            found[name.replace("-", "_")] = float(value) if equals else FAULTS[name][0]
    return found
