"""Finds the root failure of a log: of all that went wrong the first, of which everything else is a consequence.

The first exception in the log is not always it: survivors of a dead rank raise too, an engine's main process repeats
what its workers raised, and a stop looks like a crash to the processes that see their children go.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from itertools import accumulate

from msgspec import Struct

from tuner.core import facts as f
from tuner.domain.logs import LogFact
from tuner.domain.starts import Failure, Sign, Start

STOP_SIGNALS = frozenset({-15, -2, 15, 2, 143, 130})
"""Exit codes of processes that were asked to end."""
_WRAPPERS = frozenset({"graph-capture-failed", "prefill-capture-failed", "scheduler-exception"})
"""Ids of signs that only announce another message."""
_ENDS = re.compile(
    r"hit an exception|fatal|failed to start|\AProcess |background task|output_handler|died|[Ii]nitialization"
)
"""Headers of exceptions that end the process which prints them."""
_PASSES = re.compile(
    r"Exception in ASGI application|Task exception was never retrieved|Exception ignored in|--- Logging error ---"
    r"|Error in preprocessing prompt inputs|Error in request"
)
"""Headers of exceptions that end a request, a task or nothing at all, and no process."""
_HANDLERS = re.compile(
    r"/(?:starlette|fastapi)/|/uvicorn/protocols/|/entrypoints/openai/|/serving_\w+\.py|/api_router\.py"
)
"""Files of code that answers HTTP clients."""
_CLIENT_LEFT = frozenset({"ConnectionResetError", "BrokenPipeError", "ClientDisconnect", "ConnectionAbortedError"})
"""Exceptions that a client causes by leaving."""
_MAINS = re.compile(
    r":<module>\Z|:(?:run_engine_core|worker_main|run_scheduler_process|run_detokenizer_process|run_server|output_handler)\Z"
)
"""Main functions of processes: an exception that passes through one ends the process."""
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python[\d.]+/|/bin/")
"""End of an environment's path, which may contain the name of an engine; packages follow."""
_CHILD = re.compile(r"\A<string>\Z|/multiprocessing/spawn\.py\Z")
"""Files in which a spawned child begins, as an engine's ranks do before any of its own code runs."""
_STEPS = frozenset({f.PHASE_BEGIN, f.PHASE_END, f.PROGRESS, f.WEIGHTS, f.KV_POOL, f.POOL_END, f.GRAPHS, f.LIMITS,
                    f.HTTP_UP, f.READY})  # fmt: skip
"""Kinds of facts that only a server prints which goes on with its start."""
_LIFE = 2
"""Fewest batch lines after an exception that show that the server goes on."""
_FORERUNNER = 400
"""Lines between a message and an exception up to which the message is its forerunner."""
_TELLING = 90
"""First characters of a message by which failures of ranks are compared."""
_TOGETHER_S = 60.0
"""Seconds: equal failures further apart are separate failures."""


class Root(Struct, frozen=True, kw_only=True):
    """The root failure and the ranks that show it themselves."""

    at: int
    failure: Failure | None = None
    sign: Sign | None = None
    """The line that shows it, if no exception does."""
    died: LogFact | None = None
    """The death of a process, if the log has nothing else."""
    alike: tuple[Failure, ...] = ()
    """Failures of other ranks that say the same, in the order of the log."""
    alike_signs: tuple[Sign, ...] = ()

    @property
    def tags(self) -> tuple[str | None, ...]:
        """Tags of all ranks that show it."""
        shown = [self.failure, *self.alike] if self.failure else [self.sign, *self.alike_signs]
        return tuple(dict.fromkeys(each.rank for each in shown if each is not None))


def stop_asked(start: Start) -> int | None:
    """Return the place where the operator first asks the server to end; None: never."""
    return next((fact.offset for fact in start.facts if fact.kind in (f.STOP_ASKED, f.STOPPING)), None)


def is_consequence(start: Start, failure: Failure) -> bool:
    """Return whether an exception only tells of another process's end, or is harmless."""
    kinds = _kinds(start, failure)
    return "harmless" in kinds or ("secondary" in kinds and "failure" not in kinds)


def _kinds(start: Start, failure: Failure) -> set[str]:
    """Return the kinds of the signs in an exception's own messages; other processes may print between its lines."""
    own = (failure.message_at, failure.final_at)
    return {sign.kind for at in own for sign in signs_at(start, at) if sign.id not in _WRAPPERS}


def signs_at(start: Start, at: int) -> Sequence[Sign]:
    """Return the signs at a place by binary search: a log may have thousands of exceptions."""
    first = bisect.bisect_left(start.signs, at, key=_place)
    return start.signs[first : bisect.bisect_right(start.signs, at, lo=first, key=_place)]


def _place(sign: Sign) -> int:
    return sign.at


def parent_gone(start: Start) -> Failure | None:
    """Return the failure of a child that lost its parent: the main process ended first, while loading."""
    return next(
        (
            failure
            for failure in start.failures
            if failure.exception in ("BrokenPipeError", "EOFError", "ConnectionResetError")
            and any("pipe_writer" in frame or "connection.py" in frame for frame in failure.frames)
        ),
        None,
    )


def root_of(start: Start) -> Root | None:
    """Return the root failure of a start; None if nothing failed, or its operator ended it."""
    failures = [x for x in start.failures if not outlived(start, x)]
    own = [x for x in failures if not _of_a_script(start, x)]
    root = _root_among(start, own)
    # An exception that may be another program's is the root only if there is no other.
    return root if root is not None or len(own) == len(failures) else _root_among(start, failures)


def _root_among(start: Start, failures: Sequence[Failure]) -> Root | None:
    """Return the root failure among these exceptions, the failure lines and the deaths of processes."""
    end = stop_asked(start)
    gone = parent_gone(start)
    failures = [x for x in failures if (end is None or x.at < end) and x is not gone]
    raised = [x for x in failures if not is_consequence(start, x)]
    inside = _within(start.failures)
    said = [
        sign
        for sign in start.signs
        if sign.kind == "failure"
        and not survived(start, sign)
        and (end is None or sign.at < end)
        and not inside(sign.at)
    ]
    first = min(raised, key=_rank_of_witness, default=None)
    line = said[0] if said else None
    if first is not None and (line is None or line.at >= first.at or line.rank not in (None, first.rank)):
        return _of_failure(start, raised, first)
    if line is not None:
        if first is not None and _lines_between(start, line.at, first.at) < _FORERUNNER and not _stands_alone(line):
            return _of_failure(start, raised, first)
        return Root(at=line.at, sign=line, alike_signs=tuple(s for s in said[1:] if s.id == line.id))
    died = next((fact for fact in start.facts if fact.kind == f.DIED and _counts(start, fact, end)), None)
    if died is not None:
        return Root(at=died.offset, died=died)
    if failures and is_consequence(start, failures[0]):
        return _of_failure(start, failures, failures[0])
    left = [sign for sign in start.signs if sign.kind == "secondary" and (end is None or sign.at < end)]
    # An engine core that is asked to end although the server is not has lost its API server.
    left = [sign for sign in left if end is None or sign.id != "engine-core-signalled"]
    left = [sign for sign in left if not _goes_on(start, sign.at) and not inside(sign.at)]
    if left and gone is None:
        return Root(at=left[0].at, sign=left[0], alike_signs=tuple(s for s in left[1:] if s.id == left[0].id))
    return None


def _within(failures: Sequence[Failure]) -> Callable[[int], bool]:
    """Return a test whether a place lies within an exception; `failures` are in the order of the log."""
    begins = [failure.at for failure in failures]
    ends = list(accumulate((failure.end for failure in failures), max))

    def within(at: int) -> bool:
        before = bisect.bisect_right(begins, at)
        return before > 0 and at <= ends[before - 1]

    return within


def ends(failure: Failure) -> bool:
    """Return whether an exception's header says that its process ends with it."""
    return _ENDS.search(failure.header) is not None


def outlived(start: Start, failure: Failure) -> bool:
    """Return whether the server outlived an exception: of a request, a client that left, an optional package."""
    if ends(failure):
        return False
    if _foreign(start, failure):
        return True
    if _PASSES.search(failure.header):
        return _served(start)
    return _goes_on(start, failure.end) or (_served(start) and _of_a_request(start, failure))


def _foreign(start: Start, failure: Failure) -> bool:
    """Return whether a traceback is another program's, a client's or a sidecar's, which the server outlived."""
    if not failure.whole or not _of_a_script(start, failure):
        return False
    step = next((fact.offset for fact in reversed(start.facts) if fact.kind in _STEPS), failure.at)
    ready = start.ready_at is not None and start.ready_at < failure.at
    return ready or step > failure.end


def _of_a_script(start: Start, failure: Failure) -> bool:
    """Return whether a traceback is of a script: no frame is the engine's or of a child that it spawned."""
    # Only a header that ends a process counts: any other may be a line that another process printed before.
    if ends(failure) or failure.rank is not None:
        return False
    script = any(frame.endswith(":<module>") for frame in failure.frames)
    return script and not any(_of_engine(start.engine, frame) for frame in failure.frames)


def _of_engine(engine: str, frame: str) -> bool:
    path = frame.rpartition(":")[0]
    return _CHILD.search(path) is not None or engine in _INSTALLED.split(path)[-1].split("/")


def _served(start: Start) -> bool:
    """Return whether clients were answered, as far as the log shows: its beginning may be cut off."""
    return start.ready_at is not None or (start.settings_at is None and not start.ranks)


def _of_a_request(start: Start, failure: Failure) -> bool:
    """Return whether an exception was raised where a client is answered: the server lives, even if the log ends there.

    An exception that ends a process says so in its header, or passes through the process's main loop.
    """
    if any(_MAINS.search(frame) for frame in failure.frames):
        return False
    kinds = _kinds(start, failure)
    if "secondary" in kinds and failure.exception not in _CLIENT_LEFT:
        return False
    if any(_HANDLERS.search(frame) for frame in failure.frames):
        return True
    told = bool(failure.header) and failure.rank is None and "failure" not in kinds
    return told and bool(failure.frames) and not failure.serving


def _goes_on(start: Start, at: int) -> bool:
    """Return whether the server became ready, or served, after a place."""
    ready = start.ready_at is not None and start.ready_at > at
    return ready or len(start.batches) - bisect.bisect_right(start.batches, at, key=lambda batch: batch.at) >= _LIFE


def survived(start: Start, sign: Sign) -> bool:
    """Return whether a line that usually ends a server did not end this one.

    The soft watchdog only dumps stacks, and newer versions warn of lost slots and go on.
    """
    if sign.id == "killed":
        return stop_asked(start) is not None or _goes_on(start, sign.at)
    if sign.id == "watchdog-timeout":
        return sign.fields.get("soft") in (True, "True")
    return sign.id == "kv-leak" and bool(start.batches) and start.batches[-1].at > sign.at


def _lines_between(start: Start, first: int, last: int) -> int:
    """Return the number of lines between two places, which are lines of a file or bytes of a live log."""
    return bisect.bisect_left(start.places, last) - bisect.bisect_left(start.places, first)


def _stands_alone(sign: Sign) -> bool:
    """Return whether a line is a failure of its own, not the forerunner of the exception after it."""
    return sign.id in ("watchdog-timeout", "port-in-use", "argument-error", "killed", "native-crash", "host-oom")


def _rank_of_witness(failure: Failure) -> tuple[bool, int, int]:
    """Sort key: workers before engine core before API server; no exception text last.

    Workers know the cause, the engine core repeats it, and the API server repeats that, without a header.
    """
    header, mute = failure.header, not failure.exception
    repeats = 0 if failure.rank is not None or "Worker" in header or "Scheduler" in header else 1
    if "EngineCore" in header or not header:
        return mute, 2 if not header else repeats, failure.at
    return mute, 0, failure.at


def _of_failure(start: Start, raised: list[Failure], first: Failure) -> Root:
    alike = tuple(
        x
        for x in raised
        if x is not first
        and x.exception == first.exception
        and _words(x.message) == _words(first.message)
        and (x.time is None or first.time is None or abs(x.time - first.time) <= _TOGETHER_S)
    )
    return Root(at=first.at, failure=first, alike=alike)


def _words(message: str) -> str:
    """Return the beginning of a message without digits: ranks differ in numbers, and in what they had allocated."""
    return "".join(c for c in message.partition("\n")[0][:_TELLING] if not c.isdigit())


def _counts(start: Start, fact: LogFact, end: int | None) -> bool:
    """Return whether the death of a process counts: it was not asked to end."""
    if end is not None and fact.offset > end:
        return False
    if fact.fields.get("what") == "server" and (end is not None or _goes_on(start, fact.offset)):
        return False  # a shell tells of whatever it started: a client, an earlier server
    return fact.fields.get("exit_code") not in STOP_SIGNALS
