"""Checks and warnings about the log files that are named on the command line."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tuner.cli.tables import plain
from tuner.errors import UsageProblem
from tuner.store.logfiles import LogText


def once(files: Sequence[str]) -> None:
    """Check that at most one argument is the standard input.

    Raises:
        UsageProblem: It is named twice; the second reader would find nothing.
    """
    if files.count("-") > 1:
        raise UsageProblem("the standard input can be read once", "-", "Give the other log as a file")


def say_broken(log: LogText) -> None:
    """Report on stderr each file whose compressed data ends early."""
    for name in log.broken:
        click.echo(f"{plain(name)} breaks off: it is read as far as it unpacks", err=True)
