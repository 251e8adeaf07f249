"""Routine lines of SGLang: batch lines, and access lines of successful requests.

The expression matches complete lines by naming all their parts, so a line into which another process wrote does not
match. It does not depend on digits.
"""

from __future__ import annotations

from tuner.engines import access

_PREFIX = (
    r"(?:\([A-Za-z][\w.-]* pid=\d+(?:, ip=[\d.:a-f]+)?\) )?"
    r"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: [A-Z][A-Z_]*\d+)*\] (?:INFO:? +(?:[\w.-]+\.py:\d+: )?)?"
)
_NAME = (
    r"(?:#[a-z+-]+(?: token)?|(?:full |swa |gpu |cpu |mamba )?(?:token )?usage|pre-allocated usage|(?:mamba|swa) num"
    r"|(?:block )?(?:accept|cap) (?:len|rate)|(?:cuda|cpu|npu|xpu|hip|musa) graph|(?:gen|input) throughput \(token/s\)"
    r"|cache hit rate|fwd(?:\+idle)? occupancy|est\. [a-z]+ [A-Za-z]+(?:/s)? \([A-Za-z/ ]+\))"
)
_VALUE = r"(?:-?\d[\d.]*(?:e[+-]?\d+)?%?|True|False|nan|inf)"
_BATCH = rf"(?:Decode|Prefill) batch(?: \[\d+\])?[.,]?(?:,? {_NAME}: {_VALUE})+,? ?"
_CHANGING = (
    r"(?:abort|add_|clear_|close_|collective_rpc|configure|continue_|destroy_|dumper|flush_|freeze_|hicache|init_|load_"
    r"|open_|pause_|release_|remove_|resume_|send_|set_|shutdown|sleep|slow_down|start_|stop_|unload_|update_|wake_)"
)

ROUTINE = rf"(?:{_PREFIX}{_BATCH}|(?:{_PREFIX})?{access.routine(_CHANGING)})".encode()
