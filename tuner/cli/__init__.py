"""The command line: reads arguments, builds the object graph, turns errors into one line and an exit code.

Heavy modules are imported inside the commands, so that `--help` and shell completion answer at once.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings

import click

from tuner.errors import TunerError

FINE, PROBLEM, USAGE, UNREACHED = 0, 1, 2, 3

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Error numbers of a write that failed because of the disk: full, over quota, file too large, or an I/O error."""
COMPLETION = "_GPUTUNER_COMPLETE"
"""Environment variable through which a shell asks click for completions."""
EXIT_CODES = (
    "Exit codes: 0 fine, 1 found a problem, 2 used wrongly or input not readable, 3 host not reached, 130 interrupted."
)


def command_line() -> click.Group:
    """Return the root command with all subcommands."""
    from tuner.cli import change_commands, commands, preset_commands  # noqa: F401 - importing them adds their commands

    return commands.cli


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit the process with its exit code.

    Args:
        arguments: Command-line arguments; None for those of this process.
    """
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. Errors of usage are reported in one line on stderr."""
    # Values of logs are read as Python literals, and the compiler warns of what strangers wrote.
    warnings.simplefilter("ignore", SyntaxWarning)
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
        # Not through click's own main: it exits the process itself and reports a closed pipe as a problem.
        with cli.make_context("gputuner", sys.argv[1:] if arguments is None else list(arguments)) as context:
            code = cli.invoke(context)
        if sys.stdout is None:  # closed by the parent process, so the output was lost
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
    except click.Abort:  # what click raises for an interrupt at one of its own prompts
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
    """Redirect stdout to /dev/null, so that the flush at exit does not fail again on output that nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["EXIT_CODES", "FINE", "PROBLEM", "UNREACHED", "USAGE", "command_line", "main", "run"]
