"""The commands and their options.

What a command does is in a module beside this one, which is imported only when the command runs.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import click

from tuner import __version__
from tuner.cli import COMPLETION
from tuner.cli.parameters import DURATION as _DURATION
from tuner.cli.parameters import HOST as _HOST
from tuner.cli.parameters import SETTINGS as _SETTINGS
from tuner.cli.parameters import example as _example
from tuner.errors import UsageProblem
from tuner.simhost.scenarios import SCENARIOS

ENGINE_VERSIONS = ("0.5.9", "0.5.23")

P = ParamSpec("P")

_WITHOUT_SCREEN = "Use `gputuner snapshot HOST` for one reading, or `gputuner record HOST FILE` for a journal"
_LOG = click.Path(allow_dash=True)
"""Type of a log argument. The shell completes file names; the reader itself reports what is wrong with a file."""
_with_noise = click.option(
    "--all",
    "with_noise",
    is_flag=True,
    help="Also what differs between any two starts (ports, seeds, paths), and every gate of all-reduce.",
)
_speed = click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="How fast time runs."
)


def _on_screen(command: Callable[P, int]) -> Callable[P, int]:
    """Refuse to run a command that draws where there is no terminal, or only one that cannot move its cursor."""

    @functools.wraps(command)
    def checked(*args: P.args, **options: P.kwargs) -> int:
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
            raise UsageProblem(
                "The dashboard needs a terminal",
                "input or output is not one",
                _WITHOUT_SCREEN,
            )
        if os.environ.get("TERM") == "dumb":
            raise UsageProblem("This terminal cannot be drawn on", "TERM is dumb", _WITHOUT_SCREEN)
        return command(*args, **options)

    return checked


@click.group(invoke_without_command=True, no_args_is_help=True, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="gputuner", message="%(prog)s %(version)s")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help="Show a session from its journal instead of connecting.",
)
@_speed
@click.pass_context
def cli(context: click.Context, replay: Path | None, speed: float) -> int | None:
    """Watch LLM inference servers (SGLang, vLLM) on GPU hosts, live, in one terminal.

    Nothing is installed on a host. A server that runs there is only read until you change it: then it is stopped and
    started safely, with a way back.
    """
    if context.invoked_subcommand is not None:
        if replay is not None:
            raise click.UsageError("--replay stands alone: it shows a journal, and needs no command.", context)
        return None
    if replay is None:
        raise click.UsageError("--speed belongs to --replay or to a command.", context)
    return _replay(replay, speed)


@_on_screen
def _replay(file: Path, speed: float) -> int:
    from tuner.cli import dashboard

    return dashboard.replay(file, speed)


@_example(
    "gputuner connect root@gpu-box-1",
    "gputuner connect alice@10.0.0.7:2222 gpu-box-2",
    "gputuner connect local --read-only",
)
@cli.command()
@click.argument("hosts", metavar="HOST...", type=_HOST, nargs=-1, required=True)
@click.option("--read-only", is_flag=True, help="Refuse everything that would change a host.")
@_on_screen
def connect(hosts: tuple[Any, ...], read_only: bool) -> int:
    """Open the dashboard on one or more hosts, one tab each.

    HOST is user@host[:port], a host alias of your ~/.ssh/config, local, or demo. OpenSSH's configuration is honoured.
    demo joins the demo that runs in another terminal, and starts one where there is none.
    """
    from tuner.cli import dashboard

    return dashboard.connect(hosts, read_only=read_only)


@_example("gputuner demo", "gputuner demo --scenario low-fraction --version 0.5.9", "gputuner demo --list")
@cli.command()
@click.option(
    "--scenario", type=click.Choice(tuple(SCENARIOS)), default="healthy", show_default=True, help="What happens there."
)
@click.option(
    "--version", "version", type=click.Choice(ENGINE_VERSIONS), default="0.5.23", show_default=True, help="SGLang's."
)
@_speed
@click.option("--list", "list_scenarios", is_flag=True, help="Say what each scenario does, and end.")
def demo(scenario: str, version: str, speed: float, list_scenarios: bool) -> int:
    """Open the dashboard on a simulated host with 8 GPUs.

    The host is an SSH server on this machine's loopback and is connected to as any other. Needs no GPU and no network.
    A start takes some twenty seconds there instead of ten minutes; --speed makes it faster or slower still.
    """
    if list_scenarios:
        for name, what in SCENARIOS.items():
            click.echo(f"{name:16} {what}")
        return 0
    return _demo(scenario, version, speed)


@_on_screen
def _demo(scenario: str, version: str, speed: float) -> int:
    from tuner.cli import dashboard

    return dashboard.demo(scenario, version, speed)


@_example("gputuner snapshot root@gpu-box-1", "gputuner snapshot local --json | jq '.servers[].metrics.tok_s'")
@cli.command()
@click.argument("host", metavar="HOST", type=_HOST)
@click.option("--json", "as_json", is_flag=True, help="One JSON object. What is not known is null.")
def snapshot(host: Any, as_json: bool) -> int:
    """Print one reading of a host, and end.

    HOST is user@host[:port], a host alias of your ~/.ssh/config, local, or demo: the demo that runs in another
    terminal, or one of its own.
    """
    from tuner.cli import headless

    return headless.snapshot(host, as_json=as_json)


@_example("gputuner record root@gpu-box-1 start.ndjson --for 10m", "gputuner --replay start.ndjson --speed 10")
@cli.command()
@click.argument("host", metavar="HOST", type=_HOST)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, writable=True, path_type=Path))
@click.option("--for", "duration", type=_DURATION, metavar="TIME", help="90s, 10m, 2h. Without it: until interrupted.")
def record(host: Any, file: Path, duration: float | None) -> int:
    """Write a host's journal to a file, without a screen.

    A journal holds all that the dashboard shows and can be replayed. Secrets are masked. A file that is there already
    is not overwritten. HOST as in snapshot: demo is the demo that runs in another terminal, or one of its own.
    """
    from tuner.cli import headless

    return headless.record(host, file, duration)


@_example("gputuner doctor root@gpu-box-1", "gputuner doctor local --json")
@cli.command()
@click.argument("host", metavar="HOST", type=_HOST)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def doctor(host: Any, as_json: bool) -> int:
    """Say what works on a host, what is missing, and what each missing thing costs.

    HOST is user@host[:port], a host alias of your ~/.ssh/config, local, or demo: the demo that runs in another
    terminal, or one of its own. The exit code is 1 when something that is needed is missing.
    """
    from tuner.cli import headless

    return headless.doctor(host, as_json=as_json)


@_example(
    "gputuner diagnose server.log",
    "gputuner diagnose failed.log --baseline worked.log",
    "kubectl logs my-server | gputuner diagnose - --json | jq '.findings[].cause'",
)
@cli.command()
@click.argument("logs", metavar="LOG...", type=_LOG, nargs=-1, required=True)
@click.option("--baseline", type=_LOG, metavar="GOOD.log", help="The log of a start that worked: what changed since.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_with_noise
def diagnose(logs: tuple[str, ...], baseline: str | None, as_json: bool, with_noise: bool) -> int:
    """Say why a server's start failed, or is slow, from its log.

    Several LOGs are parts of one, in order; - is the standard input. Packed logs and those of containers, systemd,
    Kubernetes and Ray are read as they are. The last start in a log is judged, earlier ones are listed.
    """
    from tuner.cli import explain

    return explain.diagnose(logs, baseline, as_json=as_json, with_noise=with_noise)


@_example("gputuner compare worked.log failed.log", "gputuner compare monday.log today.log --json --all")
@cli.command()
@click.argument("first", metavar="A.log", type=_LOG)
@click.argument("second", metavar="B.log", type=_LOG)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_with_noise
def compare(first: str, second: str, as_json: bool, with_noise: bool) -> int:
    """Say what differed between two starts, from their logs.

    What explains the outcome comes first: arguments, environment, versions; then the time and memory of each phase, the
    KV pool and the CUDA graphs, side by side. A is the baseline.
    """
    from tuner.cli import explain

    return explain.compare(first, second, as_json=as_json, with_noise=with_noise)


@_example(
    "gputuner plan --from worked.log --set mem_fraction_static=0.9",
    "gputuner plan --from worked.log --from other.log --set cuda_graph_max_bs=512 --set kv_cache_dtype=fp8_e4m3",
    "gputuner plan --host root@gpu-box-1 --set tp_size=4",
    "gputuner plan --knobs",
)
@cli.command()
@click.option("--from", "logs", type=_LOG, metavar="GOOD.log", multiple=True, help="The log of a start that worked.")
@click.option("--host", metavar="HOST", help="Use what starts measured that were watched on this host.")
@click.option("--set", "changes", metavar="KNOB=VALUE", multiple=True, help="What is to change; auto lets it choose.")
@click.option("--knobs", is_flag=True, help="List what can be set, and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def plan(logs: tuple[str, ...], host: str | None, changes: tuple[str, ...], knobs: bool, as_json: bool) -> int:
    """Say whether a start will fit before it happens: its memory, rank by rank.

    It is made from the log of a start that worked, with some knobs at other values. More logs of the same LLM on the
    same host make it better, and so do the starts that were watched there: --host names it as connect did, and without
    --from the newest of them is the one that is planned from. Each number says where it comes from: measured, the
    engine's own formula, or an estimate with its error. The exit code is 0 when the start surely fits and its KV pool
    holds one request of the full context length (32,768 tokens where no log tells that length), and 1 when it does not,
    or that is not certain.
    """
    from tuner.cli import plan as command

    if knobs:
        return command.list_knobs(as_json=as_json)
    if not logs and host is None:
        raise click.UsageError("Missing option '--from' or '--host'.", click.get_current_context())
    return command.plan(logs, changes, host=host, as_json=as_json)


@_example(
    "gputuner recipe read root@gpu-box-1 --save",
    "gputuner recipe show gpu-box-1-30000",
    "gputuner recipe check my-recipe.toml",
)
@cli.group(context_settings=_SETTINGS)
def recipe() -> None:
    """Recipes: how a server is started on a host.

    A recipe is read off a running server or written by hand, and presets are laid over it.
    """


@_example(
    "gputuner recipe read root@gpu-box-1",
    "gputuner recipe read root@gpu-box-1 --save llama --server 48211",
    "gputuner recipe read local --json | jq .recipe.args",
)
@recipe.command("read")
@click.argument("host", metavar="HOST", type=_HOST)
@click.option(
    "--save",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Keep it; without a name, one is made of host and port.",
)
@click.option("--replace", is_flag=True, help="Replace a recipe of that name; its comments stay.")
@click.option("--server", metavar="KEY|PID", help="The server that is meant, where several run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def recipe_read(host: Any, save: str | None, replace: bool, server: str | None, as_json: bool) -> int:
    """Read off a running server how it is started.

    Interpreter, arguments, environment, folders, port, and who started it; secrets are masked. It also says what of the
    server is not as it was asked for: settings that the engine changed, and variables that files set behind the scenes.
    HOST is user@host[:port], a host alias of your ~/.ssh/config, local, or demo.
    """
    from tuner.cli import recipe as command

    if replace and save is None:
        raise click.UsageError("--replace belongs to --save.", click.get_current_context())
    return command.read(host, server=server, save=save, replace=replace, as_json=as_json)


@_example("gputuner recipe list", "gputuner recipe list --json | jq '.[].name'")
@recipe.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def recipe_list(as_json: bool) -> int:
    """List your recipes."""
    from tuner.cli import recipe as command

    return command.list_all(as_json=as_json)


@_example("gputuner recipe show gpu-box-1-30000")
@recipe.command("show")
@click.argument("name", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def recipe_show(name: str, as_json: bool) -> int:
    """Show one of your recipes."""
    from tuner.cli import recipe as command

    return command.show(name, as_json=as_json)


@_example("gputuner recipe check my-recipe.toml")
@recipe.command("check")
@click.argument("files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True)
def recipe_check(files: tuple[Path, ...]) -> int:
    """Say what is wrong with recipes that were written by hand, each problem with its file, line and way out.

    The exit code is 1 if any has a problem, and 2 if a FILE cannot be read.
    """
    from tuner.cli import recipe as command

    return command.check(files)


@_example("gputuner completion bash > ~/.local/share/bash-completion/completions/gputuner", "gputuner completion zsh")
@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "gputuner", COMPLETION).source())
