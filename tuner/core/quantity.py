"""Reads amounts as logs print them: `448.00 MiB`, `40.00 GB`, `0 bytes`."""

from __future__ import annotations

import re

from msgspec import Struct

from tuner.units import GIB, real

_AMOUNT = re.compile(r"\s*(?P<value>[-+]?\d[\d,]*(?:\.\d+)?)\s*(?P<unit>[A-Za-z]+)?\s*")
_BYTES = {
    "b": 1, "byte": 1, "bytes": 1,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip


class Quantity(Struct, frozen=True):
    """A number and the unit it was printed with."""

    value: float
    unit: str = ""

    @property
    def bytes(self) -> float | None:
        """Bytes by the letter of the unit: `GB` is decimal, `GiB` binary. None where it counts no bytes.

        Engines print GiB and call it GB: where a line is known to do so, use `gib_as_printed`.
        """
        factor = _BYTES.get(self.unit.lower())
        return None if factor is None else self.value * factor

    @property
    def gib(self) -> float | None:
        """GiB by the letter of the unit."""
        size = self.bytes
        return None if size is None else size / GIB

    @property
    def gib_as_printed(self) -> float | None:
        """GiB where `kB`, `MB`, `GB` and `TB` mean the binary units, as in what engines say of GPU memory."""
        unit = self.unit.lower()
        binary = unit[0] + "ib" if len(unit) == 2 and unit[1] == "b" else unit
        return Quantity(self.value, binary).gib


def quantity(text: object) -> Quantity | None:
    """Split an amount into value and unit; None if it is none. A number alone has no unit."""
    number = real(text)
    if number is not None:
        return Quantity(number)
    found = _AMOUNT.fullmatch(text) if isinstance(text, str) and len(text) < 64 else None
    if found is None:
        return None
    return Quantity(float(found["value"].replace(",", "")), found["unit"] or "")


def to_gib(text: object) -> float | None:
    """Return a printed amount in GiB, by the letter of its unit; None if it is none."""
    amount = quantity(text)
    return None if amount is None else amount.gib
