"""What the driver says holds a GPU's clocks down: NVML's clocks-event reasons as short names."""

from __future__ import annotations

IDLE = 0x1
"""The GPU has nothing to do; the only reason that is no limit."""

_NAMES: tuple[tuple[int, str], ...] = (
    (IDLE, "idle"),
    (0x2, "app clocks"),
    (0x4, "power cap"),
    (0x8, "hw slowdown"),
    (0x10, "sync boost"),
    (0x20, "sw thermal"),
    (0x40, "hw thermal"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
)
_GENERIC_HARDWARE = 0x8
_HARDWARE_CAUSES = 0x40 | 0x80
_KNOWN = sum(bit for bit, _ in _NAMES)


def reasons(mask: int | None) -> tuple[str, ...]:
    """Return the names of all reasons in an NVML mask, `idle` among them.

    A bit that NVML added later is shown by number, so that it is not taken for "no limit".
    """
    if not mask:
        return ()
    names = [name for bit, name in _NAMES if mask & bit]
    return (*names, f"reason 0x{mask & ~_KNOWN:x}") if mask & ~_KNOWN else tuple(names)


def limits(mask: int | None) -> tuple[str, ...]:
    """Return the names of the reasons that slow a GPU down, without `idle` and `hw slowdown` beside its cause."""
    if not mask:
        return ()
    mask &= ~IDLE
    if mask & _HARDWARE_CAUSES:
        mask &= ~_GENERIC_HARDWARE
    return reasons(mask)
