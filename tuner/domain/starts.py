"""One start of a server as its log tells it: arguments, phases and memory of each rank, failures.

Everything that was read keeps `at`, the place it was read from: `LogLine.offset`, which is a line number where a file
is read whole and a byte offset where a log is followed live. Sizes are GiB as printed (`*_gib`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tuner.domain.findings import Outcome
from tuner.domain.logs import LogFact, LogLine
from tuner.domain.server import Phase

MODEL_ARGS = ("model_path", "model", "model_tag")
"""Server args that name the LLM in any engine; where a log has several, the first of these counts."""


def named_model(settings: Mapping[str, Any]) -> str | None:
    """Return the path or name of the LLM that server args name; None if they name none."""
    named = next((value for name in MODEL_ARGS if (value := settings.get(name)) is not None), None)
    return str(named) if named not in (None, "") else None


class Figure(Struct, frozen=True):
    """A number and where the log prints it."""

    value: float
    at: int


class PhaseSpan(Struct, frozen=True, kw_only=True):
    """One phase of one rank."""

    phase: Phase
    at: int
    """Place of its first line."""
    started: float | None = None
    """Log time, seconds: only differences mean something."""
    seconds: float | None = None
    """Seconds as printed, or between its lines; None while it has not ended."""
    ended: bool = False
    before_gib: float | None = None
    after_gib: float | None = None
    """Free GPU memory at its beginning and end."""
    used_gib: float | None = None


class GraphCapture(Struct, frozen=True, kw_only=True):
    """One set of CUDA graphs of one rank."""

    what: str
    """`decode`, `prefill`, `draft`, `draft-extend`, `piecewise`, ..."""
    at: int
    used_gib: float | None = None
    seconds: float | None = None
    sizes: tuple[int, ...] = ()
    """Batch sizes, or token counts for prefill graphs, where the log lists them."""


class RankStory(Struct, frozen=True, kw_only=True):
    """What the log tells of one rank."""

    tag: str
    """As the engine prints it: `TP0`, `DP1 TP3`."""
    number: int
    """Global rank: `dp * tp + tp_rank` with plain data parallelism."""
    phases: tuple[PhaseSpan, ...] = ()
    communicators_gib: Figure | None = None
    """What distributed initialisation took: communicators and all-reduce buffers."""
    before_weights: Figure | None = None
    """Free before the target's weights: T of SGLang's pool formula."""
    weights_gib: Figure | None = None
    draft_weights_gib: Figure | None = None
    after_weights: Figure | None = None
    """Free when the pool is sized: A of the formula. After the draft's weights where they come before the pool."""
    kv_gib: Figure | None = None
    """The target's pool, K and V together, full and sliding window together."""
    draft_kv_gib: Figure | None = None
    mamba_gib: Figure | None = None
    kv_tokens: Figure | None = None
    after_pool: Figure | None = None
    graphs: tuple[GraphCapture, ...] = ()
    activation_gib: Figure | None = None
    """What a forward pass takes: by vLLM's profile run, or by the growth while serving (`core.measured`)."""
    non_torch_gib: Figure | None = None
    total_gib: Figure | None = None
    """Memory of the GPU, if it is known."""
    available_at_ready: Figure | None = None
    last_available: Figure | None = None
    """The last free memory it printed."""
    last_at: int = 0
    """Place of its last line."""
    last_time: float | None = None

    @property
    def graphs_gib(self) -> float | None:
        """All captures together; None if none printed its size."""
        sizes = [each.used_gib for each in self.graphs if each.used_gib is not None]
        return sum(sizes) if sizes else None


class Failure(Struct, frozen=True, kw_only=True):
    """One exception as the log prints it, with the chain that led to it, or one line that says the same.

    Several ranks that fail alike are several failures.
    """

    at: int
    """First line, usually a header that names the process."""
    end: int
    rank: str | None = None
    time: float | None = None
    phase: str = Phase.UNKNOWN
    """Phase of that rank; while serving `prefill`, `decode`, `idle-check` or `runtime`."""
    header: str = ""
    """`Scheduler hit an exception`, `EngineCore failed to start`, or empty."""
    exception: str = ""
    """Type of the original exception of the chain, without its module: `OutOfMemoryError`."""
    message: str = ""
    """Its message, all lines."""
    message_at: int = 0
    final_exception: str = ""
    final_message: str = ""
    """Message of the last exception of the chain: what the engine made of it, with its advice."""
    final_at: int = 0
    frames: tuple[str, ...] = ()
    """`path:function` of the original exception, innermost last."""
    serving: bool = False
    """Whether they are those of a forward pass of a request, or of the warm-up's."""
    whole: bool = True
    """False: the beginning or the end of the traceback is missing."""


class Sign(Struct, frozen=True, kw_only=True):
    """A line whose meaning for a diagnosis is known: `engines/signs.toml` and `engines/NAME/signs.toml`."""

    id: str
    at: int
    rank: str | None = None
    time: float | None = None
    text: str = ""
    """The message, at most 2,000 characters."""
    fields: dict[str, Any] = {}
    kind: str = "failure"
    """`failure`, `secondary`, `harmless` or `info`: `engines/signs.py` says what each means."""


class BatchLine(Struct, frozen=True, array_like=True, gc=False):
    """One kept batch line of a serving engine."""

    at: int
    time: float | None
    rank: str | None
    kind: str
    """decode, prefill or stats."""
    fields: dict[str, Any]


class Start(Struct, frozen=True, kw_only=True):
    """One start, from its first line to its end or to the end of the log."""

    engine: str
    """`sglang`, `vllm`; empty when nothing in the text tells."""
    version: str | None = None
    version_inferred: bool = False
    """True: no line states the version; it follows from the wording, and is a range or a lower bound."""
    first: int = 0
    last: int = 0
    """Places of its first and last line."""
    began: float | None = None
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    phase: str = Phase.UNKNOWN
    """The furthest phase that was reached."""
    settings: dict[str, Any] = {}
    """Server args by canonical name, resolved where the engine prints them so."""
    settings_at: int | None = None
    given: dict[str, Any] = {}
    """What its operator asked for, where the log says that apart."""
    env: dict[str, str] = {}
    """Environment variables that the log proves, or that were read from the process."""
    env_read: bool = False
    """True: the environment of the process was read, so a variable that is not in `env` is not set."""
    versions: dict[str, str] = {}
    """Versions of parts: nccl, torch, cuda, flashinfer, commit, ..."""
    ranks: tuple[RankStory, ...] = ()
    ready_at: int | None = None
    limits: dict[str, Figure] = {}
    """Figures of the capacity line at the end of a start: max_total_num_tokens, max_running_requests, ..."""
    lines: tuple[LogLine, ...] = ()
    """The first lines that may matter: everything but batch, access and progress lines."""
    places: tuple[int, ...] = ()
    """Places of all lines that were read, also of those not in `lines`: distances are measured on them."""
    facts: tuple[LogFact, ...] = ()
    failures: tuple[Failure, ...] = ()
    signs: tuple[Sign, ...] = ()
    batches: tuple[BatchLine, ...] = ()
    """Batch lines that were kept: first, last and evenly chosen ones, and those near a line that may matter."""
    files: tuple[str, ...] = ()

    @property
    def worked(self) -> bool:
        """Whether it became ready, whatever came later."""
        return self.ready_at is not None or self.outcome is Outcome.READY

    @property
    def model(self) -> str | None:
        """Path or name of the LLM as the server args name it; None if they do not."""
        return named_model(self.settings)

    def setting(self, *names: str) -> Any:
        """Return the first of several server args that is known and not None; None if there is none."""
        return next((self.settings[n] for n in names if self.settings.get(n) is not None), None)
