"""There are two maskers: the probe's, which travels alone and knows names only, and the laptop's. They agree."""

from __future__ import annotations

import pytest

from tests.support.secrets import ARGV, ENV, hidden
from tuner.core import redact
from tuner.probe.agent import arguments


@pytest.mark.parametrize("argv", ARGV, ids=" ".join)
def test_secret_arguments(argv: tuple[str, ...]) -> None:
    assert redact.mask_argv(argv) == tuple(hidden(word, redact.MASK) for word in argv)
    assert redact.mask(" ".join(argv)) == " ".join(hidden(word, redact.MASK) for word in argv)


@pytest.mark.parametrize("argv", ARGV, ids=" ".join)
def test_secret_arguments_on_the_host(argv: tuple[str, ...]) -> None:
    assert arguments.masked_argv(argv) == [hidden(word, arguments.MASK) for word in argv]


@pytest.mark.parametrize("env", ENV, ids=" ".join)
def test_secret_variables(env: dict[str, str]) -> None:
    assert redact.mask_env(env) == {name: hidden(value, redact.MASK) for name, value in env.items()}
    lines = "\n".join(f"{name}={value}" for name, value in env.items())
    assert redact.mask(lines) == hidden(lines, redact.MASK)


@pytest.mark.parametrize(
    "env",
    ENV,
    ids=" ".join,
)
def test_secret_variables_on_the_host(env: dict[str, str]) -> None:
    assert arguments.masked_env(env) == {name: hidden(value, arguments.MASK) for name, value in env.items()}


def test_what_the_probe_has_hidden_stays_as_it_is() -> None:
    assert arguments.MASK == redact.MASK
    for argv in ARGV:
        masked = arguments.masked_argv(argv)
        assert redact.mask_argv(masked) == tuple(masked)
