"""Versions as numbers: what is at least another, lies in a range, or may be the same."""

from __future__ import annotations

import pytest

from tuner.core.versions import at_least, in_range, may_be_same, parse_version


@pytest.mark.parametrize(
    ("version", "versions", "inside"),
    [
        ("0.5.9", "0.5.9", True),
        ("0.5.9.post1", "0.5.9", True),
        ("0.5.10", "0.5.9", False),
        ("0.10", "0.10.0 -", True),
        ("0.10.0", "0.10 -", True),
        ("0.10", "- 0.10.0", True),
        ("0.10.1", "- 0.10", True),
        ("0.9", "0.10.0 -", False),
        ("0.5.8.post1", "0.5.3 - 0.5.8", True),
        ("0.5.14", "0.4.6 - 0.5.13, 0.5.14 - 0.5.15", True),
        ("1.0", "", True),
    ],
)
def test_ranges(version: str, versions: str, inside: bool) -> None:
    at = parse_version(version)
    assert at is not None
    assert in_range(at, versions) == inside
    first, dash, last = versions.partition("-")
    if dash and not last.strip():
        assert at_least(version, first) == inside, "one question, one answer"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.5.9", "0.5.9", True),
        ("0.10", "0.10.0", True),
        ("v0.10.0", "0.10.0", True),
        ("0.10", "0.10.1", False),
        ("0.32.0", "0.32.0rc1.dev200+gabcdef", False),
        ("0.32.0rc1", "0.32.0rc2", False),
        ("0.32.0", "0.32.0+cpu", True),
        ("0.5.9.post1", "0.5.9.post1", True),
        ("0.5.8", "0.5.8.post1", False),
        ("0.5.3 - 0.5.8", "0.5.8.post1", True),
        ("0.5.3 - 0.5.8", "0.5.9", False),
        ("0.5.3 - 0.5.8", "0.5.3", True),
        (">=0.5.10", "0.5.9.post2", False),
        (">=0.5.10", "0.5.3 - 0.5.10", True),
        ("<=0.4.3", "0.4.3.post4", True),
        ("<=0.4.3", ">=0.4.4", False),
        ("<=0.4.3", "<=0.3", True),
    ],
)
def test_versions_that_may_be_the_same(one: str, other: str, same: bool) -> None:
    assert may_be_same(one, other) is same
    assert may_be_same(other, one) is same
