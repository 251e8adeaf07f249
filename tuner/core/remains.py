"""What a server of a run left behind when its leader ended."""

from __future__ import annotations

import msgspec

from tuner.core.runs import run_of
from tuner.domain.state import HostState, ServerState


def remains(state: HostState) -> ServerState | None:
    """Return what a server of a run left behind when its leader ended, as a server to be stopped; None: nothing lives.

    The workers of vLLM outlive a leader that is killed, and keep their memory: a start beside them would be a second
    server.
    """
    for server in state.servers:
        if run_of(state, server) is None:
            continue
        if server.identity.orphaned and not server.gone:
            return server
        left = tuple(each for each in server.identity.members if each.pid in server.left_pids and each.state != "Z")
        if server.gone and left:
            identity = msgspec.structs.replace(
                server.identity,
                key=server.left_key or server.identity.key,
                pid=left[0].pid,
                start_ticks=left[0].start_ticks,
                members=left,
                orphaned=True,
            )
            return msgspec.structs.replace(server, identity=identity, gone=False)
    return None
