"""Metrics of an endpoint: those that are wanted and have changed."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple


class SeriesFilter:
    """Picks the wanted series out of Prometheus text, and of those the ones that changed.

    An answer has a thousand lines of which forty are wanted, and from one answer to the next lines stay where they are.
    So their places are remembered, and all names are searched again only when lines have moved.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._wanted = {name.encode() for name in names}
        self._count = -1
        self._places: List[Tuple[int, bytes]] = []
        self._values: Dict[bytes, bytes] = {}

    def changed(self, body: bytes) -> Optional[Dict[str, Optional[float]]]:
        """Return the series that differ from the last answer, as printed; None where the body is no Prometheus text.

        A series that was sent before and has no value any more, or is gone, is None, so that the laptop drops it.
        """
        lines = body.split(b"\n")
        known = self._places and len(lines) == self._count
        moved = not known or not all(lines[at].startswith(head) for at, head in self._places)
        if moved and not self._look(lines) and body.strip():
            return None
        out: Dict[str, Optional[float]] = {}
        for at, head in self._places:
            value = lines[at][len(head) :].split(b" ", 1)[0].rstrip()  # a time stamp may follow
            if self._values.get(head) == value:
                continue
            try:
                number: Optional[float] = finite(value.decode("ascii", "replace"))  # JSON has no NaN and no infinity
            except ValueError:
                number = None
            if number is not None:
                self._values[head] = value
            elif self._values.pop(head, None) is None:
                continue  # it was never sent
            out[head[:-1].decode("utf-8", "replace")] = number
        if moved:
            for head in self._values.keys() - {head for _, head in self._places}:
                del self._values[head]
                out[head[:-1].decode("utf-8", "replace")] = None
        return out

    def _look(self, lines: Sequence[bytes]) -> bool:
        self._count = len(lines)
        self._places = []
        plausible = False
        for at, line in enumerate(lines):
            if line[:1] == b"#":
                plausible = True
                continue
            brace = line.find(b"{")
            name = line[:brace] if brace > 0 else line.split(b" ", 1)[0]
            if name in self._wanted:
                end = line.rfind(b"} ") + 2 if brace > 0 else len(name) + 1
                if end > 1:
                    self._places.append((at, line[:end]))
        return plausible or bool(self._places)


def finite(text: str) -> Optional[float]:
    """Return a number of a JSON text; None for one too large for a float, which JSON could not represent."""
    number = float(text)
    return number if number - number == 0.0 else None
