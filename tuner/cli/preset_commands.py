"""The commands about presets; `tuner.cli.commands` has the others."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli.commands import cli
from tuner.cli.parameters import SETTINGS, example

_engine = click.option("--engine", metavar="NAME", help="sglang or vllm; default: the preset's own.")
_version = click.option("--engine-version", "version", metavar="VERSION", help="Default: the newest that is known.")


@example("gputuner presets list", "gputuner presets show nccl-two-channels", "gputuner presets check my-preset.toml")
@cli.group(context_settings=SETTINGS)
def presets() -> None:
    """Presets: named changes of a server's arguments and environment.

    A preset says why it exists, what it needs and what it sets, and is laid over the way a server is started. Bundled
    ones come first; those in your configuration folder's presets/, and in presets/ and .gputuner/presets/ of the
    working folder, replace them by name.
    """


@example(
    "gputuner presets list",
    "gputuner presets list root@gpu-box-1",
    "gputuner presets list --json | jq -r '.[].id'",
)
@presets.command("list")
@click.argument("host", metavar="[HOST]", default="")
@click.option("--server", "pid", metavar="PID", help="The server of the HOST that is meant, if several run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def presets_list(host: str, pid: str | None, as_json: bool) -> int:
    """List all presets with their number keys. Files that are wrong are named on stderr, and leave the others.

    With a HOST they are in the order of its Tune screen: yours, then those for its server.
    """
    from tuner.cli import presets as command

    if host:
        return command.list_on(host, pid, as_json=as_json)
    if pid is not None:
        raise click.UsageError("--server needs a HOST.", click.get_current_context())
    return command.list_all(as_json=as_json)


@example("gputuner presets check", "gputuner presets check my-preset.toml")
@presets.command("check")
@click.argument("files", metavar="[FILE...]", type=click.Path(path_type=Path), nargs=-1)
def presets_check(files: tuple[Path, ...]) -> int:
    """Say what is wrong with presets, each problem with its file, line and way out.

    Without a FILE all that are found are checked. The exit code is 1 if any has a problem, and 2 if a FILE cannot be
    read.
    """
    from tuner.cli import presets as command

    return command.check(files)


@example(
    "gputuner presets show graphs-16",
    "gputuner presets show graphs-16 --engine sglang --engine-version 0.5.9 --json | jq .argv",
)
@presets.command("show")
@click.argument("name", metavar="ID")
@_engine
@_version
@click.option("--json", "as_json", is_flag=True, help="One JSON object: argv, env and notes.")
def presets_show(name: str, engine: str | None, version: str | None, as_json: bool) -> int:
    """Show a preset, and how a version of an engine spells what it sets.

    A version that lacks one of its knobs, or with which a value is known to hang or corrupt, refuses it: exit code 1.
    """
    from tuner.cli import presets as command

    return command.show(name, engine, version, as_json=as_json)


@example(
    "gputuner presets diff custom-all-reduce-on custom-all-reduce-off",
    "gputuner presets diff nccl-two-channels root@gpu-box-1",
)
@presets.command("diff")
@click.argument("first", metavar="ID")
@click.argument("second", metavar="ID|HOST")
@_engine
@_version
@click.option("--server", "pid", metavar="KEY|PID", help="The server that is meant, if several run on HOST.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def presets_diff(
    first: str, second: str, engine: str | None, version: str | None, pid: str | None, as_json: bool
) -> int:
    """Say what two presets set differently, or what one would change on the server that runs on HOST.

    On HOST it is held against what the server really has: its command line, the environment of its processes, the
    settings that it resolved. Nothing is changed there. HOST is user@host[:port], a host alias of your ~/.ssh/config,
    local, or demo.
    """
    from tuner.cli import presets as command

    return command.diff(first, second, engine, version, pid, as_json=as_json)
