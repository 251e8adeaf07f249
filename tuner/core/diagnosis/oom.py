"""The numbers of a failed torch allocation, and evidence and remedies that follow from them."""

from __future__ import annotations

from msgspec import Struct

from tuner.core.diagnosis.case import Case, gib_of
from tuner.core.diagnosis.fraction import asked_of
from tuner.core.diagnosis.proposals import variable
from tuner.domain.findings import Evidence, Meaning, Move, Remedy
from tuner.domain.starts import Sign


class Oom(Struct, frozen=True):
    """A failed allocation as torch's message prints it; sizes in GiB, None if the message lacks them."""

    sign: Sign
    tried: float
    """Size of the failed allocation."""
    free: float
    """Free memory of the GPU; 0.0 if the message lacks it."""
    capacity: float | None
    """Memory of the GPU."""
    in_use: float | None
    """Memory that this process holds."""
    allocated: float | None
    """Memory in use by torch's tensors."""
    reserved: float | None
    """Memory that torch reserved and does not use."""

    @property
    def lacking(self) -> float:
        """Missing memory in GiB; 0.0 if enough was free in pieces that are too small."""
        return max(0.0, self.tried - self.free)

    @property
    def outside_torch(self) -> float | None:
        """Memory of this process outside torch (context, NCCL, NVSHMEM), GiB; None if the message does not tell."""
        if self.in_use is None or self.allocated is None or self.in_use < self.allocated:
            return None
        return self.in_use - self.allocated - (self.reserved or 0.0)


def oom_of(case: Case) -> Oom | None:
    """Return the failed allocation of the root failure; None if it is no such failure."""
    sign = case.root_sign("cuda-oom", "cuda-oom-async")
    tried, free = gib_of(sign, "tried"), gib_of(sign, "free")
    if sign is None or tried is None:
        return None
    amounts = [gib_of(sign, name) for name in ("capacity", "in_use", "allocated", "reserved")]
    return Oom(sign, tried, free or 0.0, *amounts)


def evidence_of(case: Case, oom: Oom) -> list[Evidence | None]:
    """Cite the numbers of a failed allocation as torch prints them, and the requested fraction."""
    tried = case.quote("tried to allocate", oom.sign, "tried", meaning=Meaning.FAILED_ALLOCATION)
    quote = [("free", "free"), ("GPU capacity", "capacity"),
             ("allocated by PyTorch", "allocated"), ("private pools", "private_pools")]  # fmt: skip
    facts: list[Evidence | None] = [tried, *(case.quote(what, oom.sign, name) for what, name in quote)]
    told = asked_of(case)
    if told is not None and case.start.settings_at is not None and case.setting(told.knob) is not None:
        facts.insert(2, Evidence(what=told.knob, value=told.value, at=case.start.settings_at))
    return facts


def fragmented(oom: Oom) -> bool:
    """Return whether torch holds more unused memory than was asked for, so that only fragmentation stops it."""
    return oom.reserved is not None and oom.reserved > max(1.0, oom.tried)


def segments(case: Case) -> Remedy:
    """Propose torch's `expandable_segments` against fragmentation, with its effect on custom all-reduce."""
    alone = case.layout.world == 1 or case.setting("disable_custom_all_reduce") is True
    why = "pieces that are free can then be joined"
    if not alone:
        why += "; custom all-reduce cannot share such memory and has to be switched off with it"
    return variable(case, "PYTORCH_CUDA_ALLOC_CONF", Move.SET, why, "expandable_segments:True")


def fragmentation(oom: Oom) -> list[str]:
    """Return a warning against torch's advice (`expandable_segments`) if fragmentation is not the problem."""
    if oom.reserved is not None and oom.reserved < max(1.0, oom.tried):
        mib = round(oom.reserved * 1024)
        held = f"only {mib} MiB are" if oom.reserved < 1 else f"only {oom.reserved:.2f} GiB are"
        held = held if mib else "nothing is"
        return [f"expandable_segments, as torch suggests: {held} reserved and unused, so it is not fragmentation"]
    return []
