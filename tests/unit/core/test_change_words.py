"""Words for changes, the same in the dashboard and on the command line."""

from __future__ import annotations

import pytest

from tests.unit.core.test_drift import ENGINES, REPLACE, launch_of, sglang
from tuner.cli.change_lines import change_words
from tuner.core.change_words import source_words, then_words
from tuner.core.drift import ARGV, DEFAULT, ENVIRONMENT, FILE, LOG, SETTINGS, changes
from tuner.domain.knobs import KnobKind
from tuner.domain.tuning import Change
from tuner.widgets.glyphs import UNICODE
from tuner.widgets.spans import text_of
from tuner.widgets.tune_text import change_lines

CHANGE = Change(name="schedule_policy", kind=KnobKind.FLAG, text="--schedule-policy", now="lpm", source=ARGV)


@pytest.mark.parametrize("source", [ARGV, ENVIRONMENT, SETTINGS, DEFAULT, FILE, LOG])
def test_the_source_of_a_value_is_told_with_the_same_words_everywhere(source: str) -> None:
    change = REPLACE(CHANGE, source=source)
    words = source_words(change)
    assert words.startswith("now ")
    assert words != f"now {source}"
    (line,) = change_lines([change], {}, 100, UNICODE, running=True)
    assert text_of(line).endswith(words)
    assert f"(--schedule-policy, {words})" in change_words(change)


def test_what_is_left_to_the_engine_is_told_by_its_default_where_that_is_known() -> None:
    one = sglang("--schedule-policy lpm --chunked-prefill-size 2048")
    launch = launch_of(one)
    bare = [word for word in launch.argv if word not in ("--schedule-policy", "lpm", "--chunked-prefill-size", "2048")]
    found = {each.name: each for each in changes(REPLACE(launch, argv=tuple(bare)), one, ENGINES["sglang"])}
    assert (found["schedule_policy"].then, found["schedule_policy"].default) == (None, "fcfs")
    assert then_words(found["schedule_policy"]) == "fcfs (default)"
    assert "schedule_policy lpm → fcfs (default)" in change_words(found["schedule_policy"])
    (line,) = change_lines([found["schedule_policy"]], {}, 100, UNICODE, running=True)
    assert "lpm › fcfs (default)" in text_of(line)
    assert then_words(found["chunked_prefill_size"]) == "not set", "the engine chooses it by the GPU"


def test_a_default_of_a_version_that_is_not_known_is_not_told() -> None:
    one = sglang("--schedule-policy lpm", version="99.0")
    launch = launch_of(one)
    bare = [word for word in launch.argv if word not in ("--schedule-policy", "lpm")]
    (change,) = changes(REPLACE(launch, argv=tuple(bare)), one, ENGINES["sglang"])
    assert then_words(change) == "not set"


def test_a_server_that_ended_is_started_again_as_it_ran() -> None:
    for ended, words in ((True, "as it ran"), (False, "as it runs")):
        (line,) = change_lines([], {}, 100, UNICODE, running=True, ended=ended)
        assert text_of(line).endswith(words)
