"""The command line: reads arguments, builds the object graph, turns errors into one line and an exit code.

Every import of something heavy is inside a command, so that `--help` and completion answer at once.
"""

from __future__ import annotations

import errno
import os
import sys

import click

from tuner.errors import TunerError

FINE, PROBLEM, USAGE, UNREACHED = 0, 1, 2, 3

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Why a file cannot be written to."""
COMPLETION = "_GPUTUNER_COMPLETE"
"""Variable by which a shell asks for completions, as click names it."""
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
        return _run(arguments)
    except KeyboardInterrupt:
        click.echo("gputuner: interrupted", err=True)
        return 130


def _run(arguments: list[str] | None) -> int:
    cli = command_line()
    if (asked := os.environ.get(COMPLETION)) is not None:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "gputuner", COMPLETION, asked)
    try:
        # Not through click's own main, which ends the process itself and calls a closed pipe a problem.
        with cli.make_context("gputuner", sys.argv[1:] if arguments is None else list(arguments)) as context:
            code = cli.invoke(context)
        if sys.stdout is None:  # closed by who started us: what was to be said has gone nowhere
            return PROBLEM
        sys.stdout.flush()
    except TunerError as error:
        click.echo(f"gputuner: {error}", err=True)
        return error.exit_code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:  # click's name for an interrupt at one of its own questions
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in _DISK or error.filename is not None:
            raise
        _drop_output()
        click.echo(f"gputuner: The output cannot be written: {error.strerror}", err=True)
        return PROBLEM
    return code if isinstance(code, int) else FINE


def _drop_output() -> None:
    """What could not be written must not be complained about again when it is flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["EXIT_CODES", "FINE", "PROBLEM", "UNREACHED", "USAGE", "command_line", "main", "run"]
