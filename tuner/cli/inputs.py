"""Logs as they are named on the command line: what is to be said of them before and after they are read."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tuner.cli.tables import plain
from tuner.errors import UsageProblem
from tuner.store.logfiles import LogText


def once(files: Sequence[str]) -> None:
    """See that the standard input is read by one only.

    Raises:
        UsageProblem: It is named twice: the second one would find nothing.
    """
    if files.count("-") > 1:
        raise UsageProblem("the standard input can be read once", "-", "Give the other log as a file")


def say_broken(log: LogText) -> None:
    """Say on stderr which of them break off."""
    for name in log.broken:
        click.echo(f"{plain(name)} breaks off: it is read as far as it unpacks", err=True)
