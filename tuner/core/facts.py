"""The closed list of fact kinds that log formats produce, and the fields of each.

Sizes in fields are GiB as printed (`*_gib`, engines print "GB" and mean GiB), times are seconds (`*_s`), counts
are int. A format may leave out any field.
"""

from __future__ import annotations

ARGS = "args"
"""Resolved or given server args. fields: settings (dict), resolved (bool), begins_start (bool: a start prints it once,
before all else)."""
VERSION = "version"
"""The engine states its version or its LLM. fields: version, model."""
PHASE_BEGIN = "phase-begin"
"""A phase begins. fields: phase, available_gib, detail."""
PHASE_END = "phase-end"
"""A phase has ended. fields: phase, elapsed_s, used_gib, available_gib."""
PROGRESS = "progress"
"""A progress bar of a phase. fields: phase, done, total, elapsed_s, detail, available_gib."""
WEIGHTS = "weights"
"""Weights are loaded. fields: used_gib, available_gib, elapsed_s, model_class, draft (bool)."""
KV_POOL = "kv-pool"
"""The KV pool is allocated. fields: tokens, kv_gib (K and V together), dtype, label."""
POOL_END = "pool-end"
"""The allocation of memory pools has ended. fields: available_gib."""
GRAPHS = "graphs"
"""Graphs are captured. fields: used_gib, available_gib, elapsed_s, what (decode, prefill, draft, ...)."""
LIMITS = "limits"
"""Capacity line at the end of a start. fields: kv_tokens, chunked_prefill_size, max_prefill_tokens,
max_running_requests, context_length, available_gib."""
MEMORY = "memory"
"""A per-rank breakdown in one line (vLLM). fields: weights_gib, activation_gib, non_torch_gib, graphs_gib, kv_gib,
free_gib, total_gib."""
HTTP_UP = "http-up"
"""The HTTP server listens; requests may still be refused. fields: url, pid."""
READY = "ready"
"""The engine says that it serves requests."""
DECODE = "decode"
"""A decode batch (SGLang). fields: running, queued, used_tokens, token_usage, tok_s, accept_length, cuda_graph."""
PREFILL = "prefill"
"""A prefill batch (SGLang). fields: new_sequences, new_tokens, cached_tokens, running, queued, token_usage,
prompt_tok_s, cuda_graph."""
STATS = "stats"
"""Interval statistics (vLLM). fields: prompt_tok_s, tok_s, running, queued, token_usage, cache_hit, accept_length."""
RETRACT = "retract"
"""Requests were pushed back for want of KV. fields: retracted."""
STOP_ASKED = "stop-asked"
"""The server was asked to stop. fields: signal."""
STOPPING = "stopping"
"""The server is stopping. fields: remaining (requests)."""
STOPPED = "stopped"
"""The server has ended in an orderly way."""
ERROR = "error"
"""First line of an error. fields: summary, exception, secondary (bool: a consequence of another rank's error)."""
DIED = "died"
"""A process of the server died. fields: what, pid, exit_code."""
NOTICE = "notice"
"""A line worth showing that changes no state. fields: summary."""

KINDS = frozenset(
    {
        ARGS, VERSION, PHASE_BEGIN, PHASE_END, PROGRESS, WEIGHTS, KV_POOL, POOL_END, GRAPHS, LIMITS, MEMORY,
        HTTP_UP, READY, DECODE, PREFILL, STATS, RETRACT, STOP_ASKED, STOPPING, STOPPED, ERROR, DIED, NOTICE,
    }
)  # fmt: skip
