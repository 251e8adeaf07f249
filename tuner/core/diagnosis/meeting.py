"""Judges of rendezvous failures: nodes that never joined, missing interfaces, Ray clusters without free GPUs."""

from __future__ import annotations

from collections.abc import Callable

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import option, quoted, variable
from tuner.domain.findings import Confidence, Evidence, Finding, Move
from tuner.domain.starts import Sign

_STORE = ("store-timeout", "connect-timeout", "gloo-timeout", "store-refused", "address-unresolved")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def rendezvous(case: Case) -> Finding | None:
    """Diagnose a rendezvous that timed out because ranks of another node never joined."""
    sign = case.root_sign(*_STORE)
    if sign is None or case.phase not in ("dist-init", "cuda-init", "args", "none"):
        return None
    all_of_them = case.signs(*_STORE)
    interface = next((s for s in all_of_them if s.fields.get("interface")), None)
    if interface is not None:
        return _no_interface(case, interface)
    nodes = case.setting("nnodes")
    if nodes == 1 or (nodes is None and case.start.settings_at is not None and sign.fields.get("peer_host") is None):
        return None
    told = next((s for s in all_of_them if "timeout_ms" in s.fields or "timeout_s" in s.fields), sign)
    peer = next((s for s in all_of_them if s.fields.get("peer_host")), None)
    joined = next((s for s in all_of_them if "joined" in s.fields), None)
    host = f" {peer.fields['peer_host']}:{peer.fields.get('peer_port', '')}".rstrip(":") if peer is not None else ""
    loops = peer is not None and str(peer.fields["peer_host"]).startswith("127.")
    v6 = ":" in str(case.setting("host") or "") or "[" in str(case.setting("dist_init_addr") or "")
    return case.finding(
        "multinode-rendezvous-timeout",
        f"The ranks of this node waited for the meeting point{host}, and not all ranks came before the time ran out."
        " Either the other node was not started, with the same arguments and its own node rank, or it cannot be"
        " reached at that address and port. Weights were not loaded yet: memory plays no part.",
        evidence=[
            case.quote("timeout", told, "timeout_ms", "ms") or case.quote("timeout", told, "timeout_s", "s"),
            case.arg("nnodes"),
            case.arg("node_rank"),
            case.arg("dist_init_addr"),
            case.quote("waited for", peer, "peer_host") if peer is not None else None,
            case.quote("port", peer, "peer_port") if peer is not None else None,
            case.quote("joined", joined, "joined") if joined is not None else None,
            case.quote("expected", joined, "expected") if joined is not None else None,
        ],
        remedies=[
            option(case, "dist_init_addr", "--dist-init-addr", Move.SET,
                   f"{'an IPv4' if v6 else 'the'} address of node 0 that every node reaches, and a free port there"),
            variable(case, "GLOO_SOCKET_IFNAME", Move.SET, "the interface that leads to the other nodes"),
            variable(case, "NCCL_SOCKET_IFNAME", Move.SET, "the same for NCCL"),
            case.advice("/etc/hosts", "this host's own name must not lead to 127.0.1.1: others cannot reach that")
            if loops else None,
            case.advice("nodes", "every node started, with one --nnodes and its own --node-rank; the port open"),
        ],
        refuted_by="an error in another node's log from before this time-out",
        confidence=Confidence.HIGH if isinstance(nodes, int) else Confidence.MEDIUM,
    )  # fmt: skip


def _no_interface(case: Case, sign: Sign) -> Finding:
    """Build the finding for a configured network interface that does not exist or has no address."""
    name = sign.fields.get("interface")
    return case.finding(
        "interface-missing",
        f"The ranks were told to meet through the network interface {name}, and this host has none of that name with"
        " an address. Nothing was waited for, and the other nodes play no part.",
        evidence=[
            case.quote("interface", sign, "interface"),
            *(Evidence(what=variable, value=case.start.env[variable]) for variable in _INTERFACES
              if variable in case.start.env),
        ],
        remedies=[
            variable(case, "GLOO_SOCKET_IFNAME", Move.SET, "an interface that `ip -br addr` shows on this very node"),
            variable(case, "NCCL_SOCKET_IFNAME", Move.SET, "the same for NCCL; names differ between nodes"),
        ],
        refuted_by=f"ip -br addr showing {name} with an address inside the container",
    )  # fmt: skip


def ray_cluster(case: Case) -> Finding | None:
    """Diagnose a Ray cluster with too few free GPUs for vLLM's ranks, or with none on the engine's own node."""
    here = case.root_sign("ray-gpus-not-here")
    sign = here or case.root_sign("ray-gpus-short")
    if sign is None:
        return None
    waited = sign.fields.get("seconds")
    words = (
        "Ray has no free GPU on the node where the engine itself runs."
        if here is not None
        else f"Ray did not find as many free GPUs as there are ranks{f' within {waited} s' if waited else ''}: nodes"
        " that did not join its cluster, or GPUs that another placement group holds."
    )
    return case.finding(
        "ray-gpus-short",
        f"{words} Nothing was loaded yet: memory plays no part.",
        evidence=[
            case.quote("waited", sign, "seconds", "s"),
            case.arg("tensor_parallel_size"),
            case.arg("pipeline_parallel_size"),
            quoted("error", case.message.partition("\n")[2], sign.at),
        ],
        remedies=[
            case.advice("ray", "nodes that joined, and GPUs in use and free", "ray status"),
            case.advice(
                "nodes", "ray start --address=HEAD:6379 on each of the others, in the same image, with its GPUs"
            ),
            case.advice("leftovers", "an earlier engine may hold its placement group: ray list placement-groups"),
            case.remedy("tp_size", Move.LOWER, "as many ranks as Ray has GPUs, if the weights fit on them"),
        ],
        refuted_by="ray status showing as many free GPUs as ranks while it waits",
        phase="dist-init",
        ranks=None,
    )


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (ray_cluster, rendezvous)
