"""Find the attention backend that was running at a failure, and propose another one."""

from __future__ import annotations

import re

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import option
from tuner.domain.findings import Evidence, Move, Remedy

_BACKEND_FILE = re.compile(r"/(?P<name>\w+)_backend\.py:")
_ATTENTION = ("attention", "fmha", "mla", "flashinfer/prefill.py", "flashinfer/decode.py", "batch_decode",
              "batch_prefill", "fa3")  # fmt: skip


def backend_of(case: Case) -> Evidence | None:
    """Return the backend that was running when the root failure was raised.

    The stack decides. A server arg is cited instead if it names the same backend, or if the stack is inside attention
    code but names no backend. None if neither tells.
    """
    found = [m["name"] for frame in case.frames if (m := _BACKEND_FILE.search(frame)) is not None]
    told = case.arg("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    if found and (told is None or told.value != found[-1]):
        return Evidence(what="backend", value=found[-1], at=case.root.at if case.root else None)
    stack = any(part in frame.lower() for frame in case.frames for part in _ATTENTION)
    if told is not None and (found or stack):
        return Evidence(what="backend", value=told.value, at=told.at)
    return None


def other_attention(case: Case, backend: Evidence | None) -> Remedy | None:
    """Propose another attention backend; None if the failure is not in attention code."""
    spoken = case.message.lower()
    attention = backend is not None or any(part in spoken for part in ("mha", "attention", "batch_decode", "mla"))
    if not attention:
        return None
    other = "flashinfer" if backend is not None and backend.value == "triton" else "triton"
    return option(case, "attention_backend", "--attention-backend", Move.SET,
                  "kernels that are compiled for the GPU at hand", other)  # fmt: skip
