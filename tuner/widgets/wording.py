"""Text for each problem code of the probe: what is wrong, and what the operator can do about it."""

from __future__ import annotations

from msgspec import Struct

from tuner.widgets.spans import clean


class Wording(Struct, frozen=True):
    """The text for one problem code."""

    what: str
    """Description of the problem; empty where the problem's own detail is a full sentence."""
    todo: str
    serious: bool = False
    """True where something that the operator relies on is broken, False where only a number is missing."""


WORDING: dict[str, Wording] = {
    "nvml-missing": Wording(
        "No NVML binding on the host: GPU numbers come from nvidia-smi", "pip install nvidia-ml-py there for finer ones"
    ),
    "nvml-error": Wording(
        "The driver answers with an error", "run nvidia-smi on the host; a driver update needs a reboot", True
    ),
    "nvml-hang": Wording("The driver does not answer", "look at dmesg on the host: a GPU may be hanging", True),
    "gpu-lost": Wording(
        "GPU lost: the driver cannot reach it", "look at dmesg for XID errors; it needs a reset or a reboot", True
    ),
    "no-gpu": Wording("No NVIDIA GPU is visible on this host", "check the driver; a container needs --gpus"),
    "proc-denied": Wording(
        "Other users' processes cannot be read in full",
        "connect as their user or as root to see argv, environment and log",
    ),
    "log-denied": Wording("The log may not be read", "connect as the user that owns it, or as root"),
    "log-vanished": Wording(
        "The log file was deleted; the server writes to it still", "its lines are lost once the server ends"
    ),
    "log-terminal": Wording(
        "The server writes to a terminal, not to a file", "restart it with its output in a file to see its log here"
    ),
    "log-pipe": Wording("The server writes into a pipe", "restart it with its output in a file to see its log here"),
    "log-none": Wording("No log was found for the server", "restart it with its output in a file to see its log here"),
    "http-refused": Wording(
        "The HTTP port does not accept connections", "normal while it loads; else check host and port"
    ),
    "http-nonsense": Wording(
        "The HTTP port answers something that is no such server", "another program may hold the port"
    ),
    "http-auth": Wording(
        "The server wants its API key", "not readable in its arguments: numbers come from log and metrics"
    ),
    "http-timeout": Wording("The server does not answer in time", "it may be hanging or overloaded: see the log", True),
    "disk-full": Wording("The disk is full", "logs stop growing: make room", True),
    "python-old": Wording(
        "The host's Python is too old for the probe", "it needs Python 3.8 or later on the PATH", True
    ),
    "folder": Wording(
        "gputuner's folder on the host cannot be used", "free space or rights of ~/.gputuner may be missing"
    ),
    "run-damaged": Wording("The record of a run is damaged", "its folder is below ~/.gputuner/runs on the host"),
    "tail-flood": Wording(
        "The log grows faster than is shown", "skipped parts are marked; search still reads all of it"
    ),
    "clock-skew": Wording("The host's clock differs from this machine's", "times are the host's; check its NTP"),
    "journal": Wording("", "the session goes on and is not recorded any more"),
    "history": Wording("", "what starts usually take may be missing"),
    "probe-error": Wording("Part of the probe failed and goes on without it", "please report it with the journal"),
}


_SOURCES = {
    "http": "the server",
    "server_info": "the server",
    "metrics": "its metrics",
    "loads": "its HTTP interface",
    "log": "its log",
    "nvml": "the driver",
}


def source_words(source: str) -> str:
    """Return the sources of numbers in words: `http+log+nvml` is the server, its log, the driver."""
    return ", ".join(_SOURCES.get(part, part) for part in source.split("+") if part)


def problem_text(code: str, subject: str, detail: str) -> tuple[str, bool]:
    """Return a problem as one line, and whether it is serious.

    Args:
        code: A code of the closed list; an unknown one is shown as it is.
        subject: What has the problem; empty where the line's place on screen says it.
        detail: The probe's evidence.
    """
    words = WORDING.get(code, Wording(code, "this version of gputuner has no advice for it"))
    about, evidence = clean(subject), clean(detail)
    if about and about in evidence:
        about = ""
    evidence = ": ".join(part for part in (about, evidence) if part)
    if not words.what:
        return f"{evidence.rstrip('.')}. {words.todo[0].upper()}{words.todo[1:]}", words.serious
    return f"{words.what}{f' ({evidence})' if evidence else ''}. {words.todo[0].upper()}{words.todo[1:]}", words.serious
