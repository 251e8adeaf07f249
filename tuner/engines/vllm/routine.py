"""Routine lines of vLLM: its statistics, and access lines of successful requests.

The expression matches complete lines by naming all their parts, so a line into which another process wrote does not
match. It does not depend on digits.
"""

from __future__ import annotations

from tuner.engines import access

_TAG = r"(?:\([A-Za-z][\w.-]*(?: rank=\d+)? pid=\d+(?:, ip=[\d.:a-f]+)?\) )?"
_PREFIX = _TAG + r"INFO \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./-]{1,200}:\d+\]|[\w./-]{1,200}:\d+\]) "
_NUMBER = r"-?\d[\d.]*(?:e[+-]?\d+)?"
_PART = (
    r"(?:Avg (?:prompt|generation) throughput|Running|Waiting|Deferred|Swapped|Pending|Preemptions|Corrupted"
    r"|(?:[A-Z]{2,4} )?KV cache usage|(?:External prefix|Prefix|MM) cache hit rate"
    r"|Mean acceptance length|(?:Accepted|Drafted) throughput|Accepted|Drafted|Per-position acceptance rate"
    r"|(?:Avg )?Draft acceptance rate|System efficiency|Number of (?:speculative|accepted|draft|emitted) tokens)"
)
_VALUE = rf"(?:{_NUMBER}|nan)(?:, {_NUMBER})*(?: ?(?:tokens/s|reqs|tokens|%))?"
_STATS = (
    rf"(?:Engine \d+: |\d+ Engines Aggregated: |SpecDecoding metrics: |Speculative metrics: )?"
    rf"{_PART}: {_VALUE}(?:, (?:{_PART}: {_VALUE}|KV fetch: \d+ [a-z]+(?:, \d+ [a-z]+)*))*\.?"
)
_ITERATION = (
    r"(?:Engine \d+: )?Iteration\(\d+\): \d+ context requests, \d+ context tokens, \d+ generation requests,"
    rf" \d+ generation tokens, iteration elapsed time: {_NUMBER} ms(?:, {_PART}: {_VALUE})*"
)
_REQUEST = r"Added request [\w.-]{1,200}\."
_CHANGING = (
    r"(?:abort|collective_rpc|destroy|finish_|init_|is_paused|pause|reset_|resume|scale_|shutdown|sleep|start_|stop_"
    r"|update_|v1/(?:un)?load_|wake_)"
)

ROUTINE = rf"(?:{_PREFIX}(?:{_STATS}|{_ITERATION}|{_REQUEST})|{_TAG}{access.routine(_CHANGING)})".encode()
