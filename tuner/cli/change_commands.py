"""The commands that change a host; `tuner.cli.commands` has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tuner.cli.commands import cli
from tuner.cli.parameters import DRAIN, HOST, example
from tuner.errors import TunerError

_yes = click.option("--yes", is_flag=True, help="Do it without being asked. Without it, a terminal is needed.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object at the end.")
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
_take_over = click.option(
    "--take-over", is_flag=True, help="Take the right to change the host from an operator who has it. They are told."
)
_server = click.option("--server", "pid", type=int, metavar="PID", help="The server that is meant, if several run.")
_drain = click.option(
    "--drain",
    type=DRAIN,
    metavar="TIME",
    help="Wait so long for the requests in flight before it is stopped; 1h at most.",
)


@example(
    "gputuner apply root@gpu-box-1 nccl-two-channels",
    "gputuner apply root@gpu-box-1 sglang-fraction-88 --set max_running_requests=64 --yes --auto-rollback --json",
    "gputuner apply root@gpu-box-1 --set mem_fraction_static=0.9 --dry-run",
    "gputuner apply root@gpu-box-1 --back",
)
@cli.command()
@click.argument("host", metavar="HOST", type=HOST)
@click.argument("preset", metavar="[PRESET]", default="")
@click.option("--set", "overrides", metavar="KNOB=VALUE", multiple=True, help="Over the preset; auto lets it choose.")
@click.option("--recipe", default="", metavar="NAME|FILE", help="How the server is started; default: as it runs now.")
@_server
@click.option("--back", is_flag=True, help="Start again what ran well before.")
@click.option("--restart", is_flag=True, help="Start it again as it runs now, or ran last.")
@click.option("--bare", is_flag=True, help="Take its preset away: only the recipe, and what --set says.")
@click.option("--auto-rollback", is_flag=True, help="Go back by itself if the start fails: once, never in a loop.")
@_drain
@click.option("--ignore-forecast", is_flag=True, help="Try it even if the memory forecast says that it does not fit.")
@_yes
@_dry_run
@_take_over
@_json
def apply(
    host: Any,
    preset: str,
    overrides: tuple[str, ...],
    recipe: str,
    pid: int | None,
    back: bool,
    restart: bool,
    bare: bool,
    auto_rollback: bool,
    drain: float | None,
    ignore_forecast: bool,
    yes: bool,
    dry_run: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Stop a server and start it again with a preset, safely.

    First it shows what would change, whether it fits, what was checked, and the exact command; then it asks. The switch
    is carried out on the host and goes on without this machine. The exit code is 0 when the new server serves, and 1
    when a check refuses it, the start fails, or it is cancelled. An interrupt asks whether to cancel; with --yes it
    cancels and goes back. HOST is user@host[:port], a host alias of your ~/.ssh/config, local, or demo.
    """
    from tuner.cli import apply as command
    from tuner.cli.wishes import Options

    context = click.get_current_context()
    if back and (preset or overrides or recipe):
        raise click.UsageError("--back stands alone: what ran before is started exactly as it was.", context)
    if bare and (back or restart or preset):
        raise click.UsageError("--bare is without a PRESET, --back and --restart.", context)
    if restart and (back or preset or overrides or recipe):
        raise click.UsageError("--restart stands alone: it changes nothing.", context)
    if not (back or restart or bare or preset or overrides or recipe):
        raise click.UsageError("Name a PRESET, or give --set, --recipe, --bare, --back or --restart.", context)
    options = Options(
        preset=preset,
        overrides=overrides,
        recipe=recipe,
        pid=pid,
        back=back,
        bare=bare,
        yes=yes,
        auto_back=auto_rollback,
        drain_s=drain or 0.0,
        dry_run=dry_run,
        as_json=as_json,
        take_over=take_over,
        ignore_forecast=ignore_forecast,
    )
    return _reported(host, as_json, lambda: command.apply(host, options))


@example("gputuner stop root@gpu-box-1 --drain 60s", "gputuner stop local --server 48211 --yes")
@cli.command()
@click.argument("host", metavar="HOST", type=HOST)
@_server
@_drain
@_yes
@_dry_run
@_take_over
@_json
def stop(
    host: Any, pid: int | None, drain: float | None, yes: bool, dry_run: bool, take_over: bool, as_json: bool
) -> int:
    """Stop a server, and prove that its GPUs gave the memory back.

    What it leaves behind is listed with its owner; nothing is signalled that is not proven to be the server's.
    """
    from tuner.cli import apply as command
    from tuner.cli.wishes import Options

    options = Options(
        pid=pid, start=False, drain_s=drain or 0.0, yes=yes, dry_run=dry_run, take_over=take_over, as_json=as_json
    )
    return _reported(host, as_json, lambda: command.apply(host, options))


@example("gputuner resume root@gpu-box-1", "gputuner resume root@gpu-box-1 --back --yes")
@cli.command()
@click.argument("host", metavar="HOST", type=HOST)
@click.option("--back", is_flag=True, help="Do not finish it, but start again what ran before.")
@_yes
@_take_over
@_json
def resume(host: Any, back: bool, yes: bool, take_over: bool, as_json: bool) -> int:
    """Finish a switch that was interrupted on the host, or go back from it.

    A switch goes on without this machine; it is interrupted only where the host killed what carries it out.
    """
    from tuner.cli import apply as command
    from tuner.cli.wishes import Options

    options = Options(yes=yes, take_over=take_over, as_json=as_json)
    return _reported(host, as_json, lambda: command.resume(host, back=back, options=options))


@example("gputuner clean root@gpu-box-1", "gputuner clean root@gpu-box-1 --yes")
@cli.command()
@click.argument("host", metavar="HOST", type=HOST)
@_yes
@_dry_run
@_take_over
@_json
def clean(host: Any, yes: bool, dry_run: bool, take_over: bool, as_json: bool) -> int:
    """Empty gputuner's folder on a host, ~/.gputuner: records and logs of runs, and the lease.

    The audit stays: ~/.gputuner/audit.ndjson. It is refused while a run goes on, or a server that gputuner started
    writes its log there.
    """
    from tuner.cli import apply as command
    from tuner.cli.wishes import Options

    options = Options(yes=yes, dry_run=dry_run, take_over=take_over, as_json=as_json)
    return _reported(host, as_json, lambda: command.clean(host, options))


def _reported(host: Any, as_json: bool, work: Callable[[], int]) -> int:
    """Do the work; where it raises, `--json` prints its object all the same. The line on stderr and the exit code stay.

    Raises:
        TunerError, KeyboardInterrupt: What the work raised.
    """
    try:
        return work()
    except (TunerError, KeyboardInterrupt) as error:
        if as_json:
            from tuner.cli.change_report import failed

            click.echo(failed(host.name, error))
        raise
