"""Read the Prometheus series that engines export: split off labels, and reduce the series of all ranks."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


class Sample(Struct, frozen=True):
    """One Prometheus series with its value."""

    name: str
    labels: Mapping[str, str]
    value: float


@functools.lru_cache(maxsize=4096)
def parse_name(series: str) -> tuple[str, Mapping[str, str]]:
    """Split `name{a="b"}` into name and labels; escapes in label values are resolved."""
    name, brace, rest = series.partition("{")
    if not brace:
        return name, {}
    return name, {key: _unescape(value) for key, value in _LABEL.findall(rest)}


def read_series(series: Mapping[str, float]) -> dict[str, list[Sample]]:
    """Return samples by name; values that are not finite (an idle gauge is NaN) are left out."""
    samples: dict[str, list[Sample]] = {}
    for text, value in series.items():
        if isinstance(value, (int, float)) and math.isfinite(value):
            name, labels = parse_name(text)
            samples.setdefault(name, []).append(Sample(name, labels, float(value)))
    return samples


def per_replica(samples: Iterable[Sample], replica: str, ranks: tuple[str, ...]) -> list[float]:
    """Return one value for each replica, sorted by replica label.

    Ranks of one replica work on the same requests and report the same numbers, so only the lowest of them counts.
    Series of that rank that differ in other labels (streaming or not) are parts of one number and are added.

    Args:
        samples: Series of one name.
        replica: Label that tells replicas apart.
        ranks: Labels that tell the ranks of one replica apart, most significant first.
    """
    groups: dict[str, dict[tuple[int, ...], float]] = {}
    for sample in samples:
        rank = tuple(_number(sample.labels.get(label)) for label in ranks)
        values = groups.setdefault(sample.labels.get(replica, ""), {})
        values[rank] = values.get(rank, 0.0) + sample.value
    return [values[min(values)] for _, values in sorted(groups.items())]


def mean(values: list[float]) -> float | None:
    """Return the arithmetic mean; None for an empty list."""
    return sum(values) / len(values) if values else None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _unescape(text: str) -> str:
    return text if "\\" not in text else text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
