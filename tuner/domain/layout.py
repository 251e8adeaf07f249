"""How the ranks of one server are laid out: the sizes of its parallelism, and the number of each rank."""

from __future__ import annotations

import re

from msgspec import Struct

_TAG = re.compile(r"(ATTN_CP|MOE_DP|DP|PP|TP|EP)(\d+)")


class Layout(Struct, frozen=True):
    """Sizes of a server's parallelism."""

    tp: int = 1
    """Tensor parallel size."""
    pp: int = 1
    """Pipeline parallel size."""
    dp: int = 1
    """Data parallel size, the number of replicas; with 1 a DP tag says nothing about the rank."""
    shared: bool = False
    """Attention data parallelism: replicas share the TP ranks."""

    @property
    def world(self) -> int:
        """Number of ranks of the whole server."""
        return self.tp * self.pp * (1 if self.shared else self.dp)

    def number(self, tag: str | None) -> int:
        """Return the global rank of a tag such as `DP1 TP3`; 0 where there is none."""
        parts = tag_parts(tag or "")
        replica = 0 if self.shared or self.dp == 1 else parts.get("DP", 0)
        return (replica * self.pp + parts.get("PP", 0)) * self.tp + parts.get("TP", 0)


def tag_parts(tag: str) -> dict[str, int]:
    """Return the numbers of a tag by the kind of parallelism: `DP1 TP3` is DP 1 and TP 3."""
    return {name: int(number) for name, number in _TAG.findall(tag)}
