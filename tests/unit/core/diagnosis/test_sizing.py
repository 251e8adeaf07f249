"""The pool, its fraction and its tenants, in the words of every version and with other numbers than the corpus has."""

from __future__ import annotations

import pytest

from tests.support.small_logs import verdict, vllm
from tests.support.startlogs import ENGINES, POOL_FRAMES, SGLang, findings, read
from tuner.domain.findings import Confidence, Meaning, Move

OLD = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
NEW = (
    "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={f}. Raise"
    " --mem-fraction-static above {above:.3f} (minimum viable = 1 - available/pre = {least:.4f}). If using"
    " speculative decoding, draft weights are now counted."
)
TOLD = {
    "0.4.6": OLD,
    "0.5.2": OLD,
    "0.5.5": OLD + " Current value: self.server_args.mem_fraction_static={f}",
    "0.5.9": OLD + " Current value: self.server_args.mem_fraction_static={f}",
    "0.5.12": OLD + " Current value: mem_fraction_static={f}",
    "0.5.16": NEW,
    "0.5.23": NEW,
}


def failed(version: str, fraction: float, before: float, weights: float, tp: int = 2, **more: object) -> SGLang:
    least = weights / before
    message = TOLD[version].format(f=fraction, least=least, above=least + 0.001)
    log = SGLang(version, tp=tp, before=before, weights=weights, fraction=fraction, **more)  # type: ignore[arg-type]
    return log.communicators().load().fail(message, POOL_FRAMES)


@pytest.mark.parametrize("version", TOLD)
@pytest.mark.parametrize(
    ("fraction", "before", "weights"), [(0.45, 138.81, 64.26), (0.6, 78.5, 60.0), (0.3, 22.0, 15.4), (0.8, 46.7, 40.0)]
)
def test_a_fraction_too_low_is_told_with_its_arithmetic(
    version: str, fraction: float, before: float, weights: float
) -> None:
    finding = findings(failed(version, fraction, before, weights).lines)[0]
    least = weights / before
    assert (finding.cause, finding.phase) == ("mem-fraction-too-low", "kv-alloc")
    assert finding.ranks == (0, 1)
    assert finding.confidence is Confidence.HIGH
    values = {each.what: each.value for each in finding.evidence}
    assert values["mem_fraction_static"] == fraction
    assert values["pre-load avail"] == pytest.approx(before)
    assert values["avail after weights"] == pytest.approx(before - weights)
    assert values["minimum fraction"] == pytest.approx(least, abs=1e-4)
    assert values["KV budget"] == pytest.approx(before * fraction - weights, abs=0.02)
    raised = finding.remedies[0]
    assert (raised.flag, raised.move) == ("--mem-fraction-static", Move.RAISE)
    assert isinstance(raised.value, float) and isinstance(raised.min, float) and isinstance(raised.max, float)
    assert least < raised.min <= raised.value <= raised.max < 1
    assert all(remedy.move is not Move.LOWER for remedy in finding.remedies)


def test_weights_that_nearly_fill_the_card_leave_no_fraction_that_works() -> None:
    finding = findings(failed("0.5.9", 0.88, 94.0, 91.5).lines)[0]
    assert finding.cause == "weights-do-not-fit"
    assert "No fraction works" in finding.explanation
    assert not any(remedy.knob == "mem_fraction_static" for remedy in finding.remedies)


def test_a_head_does_not_ask_for_a_fraction_where_none_works() -> None:
    finding = findings(failed("0.5.9", 0.88, 22.0, 20.6).lines)[0]
    assert (finding.cause, finding.title[:11]) == ("mem-fraction-too-low", "No fraction")
    assert "No fraction works" in finding.explanation


@pytest.mark.parametrize(("desired", "words"), [("46.01", "asks for 46.01 GiB"), ("46.0.", "asks for more,")])
def test_the_check_of_the_utilisation_says_what_it_knows(desired: str, words: str) -> None:
    """A line that was torn has no number there."""
    finding = verdict(
        vllm("args")
        + "(Worker_TP0 pid=3) ERROR 06-30 13:53:05 [multiproc_executor.py:492] ValueError: Free memory on device"
        f" (45.94/47.38 GiB) on startup is less than desired GPU memory utilization (0.97, {desired} GiB).\n"
    )
    assert words in finding.explanation


def test_a_poor_rank_is_somebody_elses_doing_and_not_the_fractions() -> None:
    log = SGLang("0.5.9", tp=4, before=[94.0, 94.0, 70.0, 94.0], weights=72.0, fraction=0.88)
    log.before = [94.0, 94.0, 74.0, 94.0]
    log.communicators().load().fail(TOLD["0.5.9"].format(f=0.88), POOL_FRAMES)
    finding = findings(log.lines)[0]
    assert finding.cause == "foreign-process-on-gpu"
    assert finding.ranks == (2,)
    assert not any(remedy.knob == "mem_fraction_static" for remedy in finding.remedies)


def test_lora_buffers_are_named_where_the_sums_leave_a_pool() -> None:
    log = SGLang("0.5.9", before=78.5, weights=60.0, fraction=0.85, extra="enable_lora=True, max_loras_per_batch=8")
    log.communicators().load().fail(TOLD["0.5.9"].format(f=0.85), POOL_FRAMES)
    assert findings(log.lines)[0].cause == "lora-memory-unbudgeted"


def test_without_numbers_the_direction_is_known_and_the_bound_is_not() -> None:
    log = SGLang("0.5.9", fraction=0.55).fail(TOLD["0.5.9"].format(f=0.55), POOL_FRAMES)
    finding = findings(log.lines)[0]
    assert finding.cause == "mem-fraction-too-low"
    assert finding.confidence is not Confidence.HIGH
    assert [remedy.move for remedy in finding.remedies] == [Move.RAISE]
    assert finding.remedies[0].value is None


def test_a_multimodal_factor_is_in_the_sums() -> None:
    log = SGLang("0.4.6", before=22.46, weights=18.82, fraction=0.88)
    log.rank(0, "Automatically reduce --mem-fraction-static to 0.792 because this is a multimodal model.")
    log.communicators().load().fail(OLD, POOL_FRAMES)
    finding = findings(log.lines)[0]
    values = {each.what: each.value for each in finding.evidence}
    assert values["effective mem_fraction_static"] == 0.792
    assert values["minimum fraction"] == pytest.approx(18.82 / 22.46 / 0.9, abs=1e-3)


@pytest.mark.parametrize("backend", ["aiter", "triton"])
def test_a_multiplier_of_a_backend_goes_with_it(backend: str) -> None:
    log = SGLang("0.5.2", weights=72.0, fraction=0.88, extra=f"attention_backend='{backend}'").communicators().load()
    start = read(log.fail(OLD, POOL_FRAMES).lines)
    told = ENGINES["sglang"].effective_fraction(start)
    multiplied = backend == "aiter"
    assert told is not None and told.multiplied_by == ("attention_backend" if multiplied else "")
    finding = findings(log.lines)[0]
    assert any(remedy.knob == "attention_backend" for remedy in finding.remedies) == multiplied
    assert any(each.meaning is Meaning.MULTIPLIED_FRACTION for each in finding.evidence) == multiplied


def test_the_check_for_equal_memory_blames_the_rank_that_does_not_raise() -> None:
    message = (
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes."
        " min_per_gpu_memory=70.5, local_gpu_memory=93.25, local_gpu_memory * 0.9=83.925"
    )
    log = SGLang("0.5.5", tp=4, before=93.25).each("Init torch distributed begin.")
    log.fail(message, ("model_executor/model_runner.py:init_torch_distributed",), ranks=[0, 1, 3])
    finding = findings(log.lines)[0]
    assert finding.cause == "foreign-process-on-gpu"
    assert finding.ranks == (2,)


@pytest.mark.parametrize("text", ["Not enough memory to open the file", "There is Not enough memory. Sorry"])
def test_other_words_about_memory_are_nothing(text: str) -> None:
    log = SGLang("0.5.9").communicators().load().pool(100_000, 10.0, 8.0).capture(7.0).ready(100_000).main(text)
    assert findings(log.lines) == ()


def test_a_draft_beside_the_weights_can_go() -> None:
    log = SGLang("0.5.16", weights=60.0, fraction=0.62, extra="speculative_algorithm='EAGLE'").communicators()
    finding = findings(log.load(draft=8.0).fail(OLD, POOL_FRAMES).lines)[0]
    assert (finding.cause, finding.phase) == ("mem-fraction-too-low", "kv-alloc")
    assert {(remedy.knob, remedy.move) for remedy in finding.remedies} == {
        ("mem_fraction_static", Move.RAISE),
        ("speculative_draft_model_path", Move.UNSET),
    }
    without = SGLang("0.5.16", weights=68.0, fraction=0.62).communicators().load().fail(OLD, POOL_FRAMES)
    assert [remedy.knob for remedy in findings(without.lines)[0].remedies] == ["mem_fraction_static"]


@pytest.mark.parametrize(("tokens", "page", "short"), [(32, 64, True), (63, 64, True), (64, 64, False), (5, 1, False)])
def test_a_pool_of_less_than_a_page_is_not_the_fractions_fault(tokens: int, page: int, short: bool) -> None:
    extra = f"max_total_tokens={tokens}, page_size={page}"
    log = SGLang("0.5.16", weights=20.0, fraction=0.8, extra=extra).communicators().load()
    finding = findings(log.fail(OLD, POOL_FRAMES).lines)[0]
    assert (finding.cause == "bad-argument") is short
    assert not any(remedy.knob == "mem_fraction_static" for remedy in finding.remedies)
    if short:
        assert [(r.knob, r.move, r.min) for r in finding.remedies if r.knob == "max_total_tokens"] == [
            ("max_total_tokens", Move.RAISE, page)
        ]


@pytest.mark.parametrize(("weights", "raised"), [(68.4, True), (70.4, False)])
def test_a_hidden_multiplier_is_no_lack_of_room_for_the_weights(weights: float, raised: bool) -> None:
    """Up to 0.5.x a multimodal model's fraction counts 0.9 times: 0.98 that is given is 0.88 in effect."""
    log = SGLang("0.4.6", before=78.4, weights=weights, fraction=0.9).communicators().load()
    log.rank(0, "Automatically reduce --mem-fraction-static to 0.810 because this is a multimodal model.")
    finding = findings(log.fail(OLD, POOL_FRAMES).lines)[0]
    assert finding.cause == "mem-fraction-too-low"
    assert "what is given counts 0.90 times" in finding.explanation
    assert ("No fraction works" not in finding.explanation) is raised
    assert (finding.remedies[0].knob == "mem_fraction_static") is raised
    if raised:
        value = finding.remedies[0].value
        assert isinstance(value, float) and weights / 78.4 < value * 0.9 < 0.95
        assert "no longer fit" not in finding.remedies[0].why, "0.99 is 0.89 in effect, where there is room"
