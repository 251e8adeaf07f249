"""Look up the signs of one start by id: every judge asks, and a log may hold thousands of signs."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.domain.starts import Sign


class SignIndex:
    """The signs of a start by id, each id's in the order of the log.

    Args:
        signs: All signs of the start, in the order of the log.
    """

    def __init__(self, signs: Iterable[Sign]) -> None:
        self._by_id: dict[str, list[tuple[int, Sign]]] = {}
        for number, sign in enumerate(signs):
            self._by_id.setdefault(sign.id, []).append((number, sign))

    def first(self, *ids: str) -> Sign | None:
        """Return the first sign with one of these ids; None if there is none."""
        found = [self._by_id[each][0] for each in ids if each in self._by_id]
        return min(found, key=_number)[1] if found else None

    def all(self, *ids: str) -> list[Sign]:
        """Return all signs with one of these ids, in the order of the log."""
        found = [each for name in dict.fromkeys(ids) for each in self._by_id.get(name, ())]
        return [sign for _, sign in (sorted(found, key=_number) if len(ids) > 1 else found)]

    def last_before(self, at: int, *ids: str) -> Sign | None:
        """Return the last sign with one of these ids before log position `at`; None if there is none."""
        return next((sign for sign in reversed(self.all(*ids)) if sign.at < at), None)


def _number(entry: tuple[int, Sign]) -> int:
    return entry[0]
