"""What the commands' parameters have in common: hosts, durations, examples below the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tuner.cli import EXIT_CODES
from tuner.cli.targets import complete_hosts, drain_seconds, parse, seconds
from tuner.errors import TunerError

Clicked = TypeVar("Clicked", bound=click.Command)

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def example(*commands: str) -> Callable[[Clicked], Clicked]:
    """Put examples at the end of a command's help."""

    def add(command: Clicked) -> Clicked:
        command.epilog = "\n\n".join(["\b\nExample:\n" + "\n".join(f"  {line}" for line in commands), EXIT_CODES])
        return command

    return add


class Argument(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A parameter type that calls one of our own functions; the `TunerError`s it raises become usage errors."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the argument. A value that is not a string is a default and is returned as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except TunerError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Complete host names, where the parameter is a host."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(host) for host in complete_hosts(incomplete)] if self._read is parse else []


HOST = Argument("host", parse)
DURATION = Argument("duration", seconds)
DRAIN = Argument("duration", drain_seconds)
