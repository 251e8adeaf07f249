"""Signs by id are those that a search through all of them finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.small_logs import ENGINES, raised, sglang, start_of
from tuner.core.diagnosis.case import Case
from tuner.core.roots import root_of
from tuner.core.sign_index import SignIndex
from tuner.domain.starts import Sign

IDS = ("a", "b", "c", "d")
SIGNS = st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 9)), max_size=30).map(
    lambda found: [Sign(id=name, at=at) for name, at in sorted(found, key=lambda each: each[1])]
)


@given(SIGNS, st.lists(st.sampled_from((*IDS, "unseen")), max_size=4), st.integers(0, 10))
def test_the_index_finds_what_a_search_finds_in_the_same_order(signs: list[Sign], ids: list[str], at: int) -> None:
    index = SignIndex(signs)
    found = [sign for sign in signs if sign.id in ids]
    assert [id(sign) for sign in index.all(*ids)] == [id(sign) for sign in found]
    assert index.first(*ids) is next(iter(found), None)
    assert index.last_before(at, *ids) is next((sign for sign in reversed(found) if sign.at < at), None)


def test_a_sign_of_the_root_failure_comes_before_an_earlier_one_and_what_is_near_is_three_lines_away() -> None:
    other = "[2026-03-01 10:02:00 TP0] Custom allreduce is disabled because your platform lacks GPU P2P capability"
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    text = sglang("graph-capture") + other + "\n" + raised("TP0", ("srt/x.py", "run"), error=oom)
    start = start_of(text)
    case = Case(start, root_of(start), ENGINES["sglang"])
    aside, own = start.signs[0], case.root_sign("cuda-oom")
    assert own is not None and aside.at < own.at
    assert case.sign(aside.id, own.id) is own
    assert case.sign(aside.id) is aside
    assert case.root_sign(aside.id) is None
    assert case.just_before(own, aside.id) is None, "four lines above"
    near = Sign(id="near", at=aside.at + 3)
    assert case.just_before(near, aside.id) is aside
    assert case.held.signs is case.index
