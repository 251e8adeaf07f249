"""The command line: reads arguments, builds the object graph, turns errors into one line and an exit code.

Every import of something heavy is inside a command, so that `--help` and completion answer at once.
"""

from __future__ import annotations

import os
import sys

import click

from tuner import __version__
from tuner.errors import TunerError

FINE, PROBLEM, USAGE, UNREACHED = 0, 1, 2, 3

EXIT_CODES = "Exit codes: 0 fine, 1 found a problem, 2 used wrongly or input not readable, 3 host not reached."


def command_line() -> click.Group:
    """The tree of commands."""
    from tuner.cli import commands

    return commands.cli


def main(arguments: list[str] | None = None) -> None:
    """Run the command and end the process with its exit code.

    Args:
        arguments: Instead of the process's own.
    """
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code. What the user did wrong is said in one line on stderr."""
    try:
        code = command_line().main(arguments, prog_name="gputuner", standalone_mode=False)
        sys.stdout.flush()
    except TunerError as error:
        click.echo(f"gputuner: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; flushing at exit must not complain about that again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code if isinstance(code, int) else FINE


__all__ = ["EXIT_CODES", "FINE", "PROBLEM", "UNREACHED", "USAGE", "__version__", "command_line", "main", "run"]
