"""Processes that have nothing to do with the operator's server, and must survive whatever happens to it."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.simhost.scenarios import GIB, Launch

GPU = 5
"""The GPU on which bob's server runs, beside a rank of the operator's."""
PORT = 30_100
BOB = 1003
BOB_BYTES = int(3.3 * GIB)
"""Roughly the bytes of bob's server, for the memory that others found when they started before it was counted."""


@dataclass(frozen=True)
class LookAlike:
    """A process that only mentions the server in its command line."""

    name: str
    cmdline: tuple[str, ...]
    comm: str

    def raw(self) -> bytes:
        """Return the command line as /proc has it."""
        return "\0".join(self.cmdline).encode() + b"\0"


LOOK_ALIKES = (
    LookAlike("tail", ("tail", "-F", "/root/python -m sglang.launch_server --port 30000.log"), "tail"),
    LookAlike("editor", ("vim", "+12", "python -m sglang.launch_server --tp 8 --port 30000"), "vim"),
)


def bobs_server(version: str) -> Launch:
    """Return the launch of bob's server: a small LLM on one GPU, on a port of its own."""
    graphs = "--cuda-graph-max-bs" if version == "0.5.9" else "--cuda-graph-max-bs-decode"
    return Launch(
        "bob", 0.03, {"USER": "bob", "HOME": "/home/bob", "LOGNAME": "bob"}, up_s=5 * 3_600.0, traffic="none",
        words=(
            "-m", "sglang.launch_server", "--model-path", "/models/qwen3-0.6b", "--base-gpu-id", str(GPU),
            "--mem-fraction-static", "0.03", graphs, "8", "--context-length", "8192", "--max-running-requests", "16",
            "--port", str(PORT), "--enable-metrics",
        ),
    )  # fmt: skip
