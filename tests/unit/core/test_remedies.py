"""What of a remedy can be typed, and how it is said."""

from __future__ import annotations

import pytest

from tuner.core.diagnosis.proposals import container
from tuner.core.remedies import order, safe, typed
from tuner.domain.findings import Move, Remedy


@pytest.mark.parametrize(
    ("remedy", "command", "words"),
    [
        (Remedy(knob="a", flag="--a", move=Move.RAISE, value=0.88), "--a 0.88", "raise --a to 0.88"),
        (Remedy(knob="a", flag="--a", move=Move.LOWER, value=4096), "--a 4096", "lower --a to 4096"),
        (Remedy(knob="a", flag="--a", move=Move.LOWER), "", "lower --a"),
        (Remedy(knob="a", flag="--a", move=Move.SET, value=True), "--a", "set --a"),
        (Remedy(knob="a", flag="--a", move=Move.SET), "--a", "set --a"),
        (Remedy(knob="a", flag="--a", move=Move.SET, value="fp8"), "--a fp8", "set --a fp8"),
        (Remedy(knob="a", flag="--a", move=Move.SET, value="$(reboot)"), "--a '$(reboot)'", "set --a $(reboot)"),
        (Remedy(knob="a", flag="--a", move=Move.UNSET), "", "leave out --a"),
        (Remedy(knob="a", env="A", move=Move.SET, value=2), "A=2", "set A=2"),
        (Remedy(knob="a", env="A", move=Move.UNSET), "unset A", "unset A"),
        (Remedy(knob="dmesg", value="dmesg -T", why="the kernel's line"), "dmesg -T", "dmesg -T"),
        (Remedy(knob="version", value=">=0.5.9"), "", "version >=0.5.9"),
        (Remedy(knob="process", value="kill -CONT 13"), "kill -CONT 13", "kill -CONT 13"),
        (Remedy(knob="driver", value=">=550"), "", "driver >=550"),
        (container("--memory", None, "more of it", Move.RAISE), "", "raise --memory"),
        (Remedy(knob="gpu-processes", why="End pid 9120 on GPU 2"), "", "gpu processes"),
    ],
)
def test_a_remedy_as_it_is_typed_and_in_words(remedy: Remedy, command: str, words: str) -> None:
    assert (typed(remedy), order(remedy)) == (command, words)


@pytest.mark.parametrize(
    ("remedy", "said"),
    [
        (Remedy(knob="a", value=0.88, min=0.77, max=0.945), "0.77 to 0.945 is safe"),
        (Remedy(knob="a", value=0.945, min=0.77, max=0.945), "0.77 to 0.945 is safe"),
        (Remedy(knob="a", min=0.77), "at least 0.77"),
        (Remedy(knob="a", value=4096, max=4096), ""),
        (Remedy(knob="a"), ""),
    ],
)
def test_where_its_value_is_safe(remedy: Remedy, said: str) -> None:
    assert safe(remedy) == said


def test_ends_between_which_something_slow_is_mended_are_not_called_safe() -> None:
    assert safe(Remedy(knob="a", value=0.958, min=0.502, max=0.958), mends=True) == "0.502 to 0.958 mends it"
