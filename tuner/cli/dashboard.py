"""The commands with a screen: each makes sessions and passes them to the terminal application."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from tuner import paths
from tuner.cli import FINE
from tuner.cli.demo import DemoHost, at_home
from tuner.domain.link import Target
from tuner.domain.starts import Start
from tuner.store import settings as stored
from tuner.transports import Ask

_PATIENCE_S = 5.0
"""Seconds that the dashboard has to end by itself after a signal, before the process is ended at once."""


def connect(targets: Sequence[Target], *, read_only: bool = False) -> int:
    """Show hosts, one tab each; a host that is named twice gets one tab."""
    with ExitStack() as stack:
        hosts = [stack.enter_context(at_home(target)) for target in {t.name: t for t in targets}.values()]
        return _show(hosts, read_only=read_only)


def demo(scenario: str, version: str, speed: float) -> int:
    """Show a simulated host, started for this dashboard."""
    with DemoHost(scenario=scenario, version=version, speed=speed) as host:
        # This imports the heavy modules while the simulated host starts.
        import tuner.app
        import tuner.session.session
        import tuner.transports.ssh  # noqa: F401

        return _show([host.target()])


def replay(file: Path, speed: float) -> int:
    """Replay a journal on the screen."""
    return _show([Target(name=file.name, scheme="replay", host=str(file))], speed)


def _show(targets: Sequence[Target], speed: float = 1.0, *, read_only: bool = False) -> int:
    from tuner.app import TunerApp
    from tuner.cli.library import FileLibrary
    from tuner.screens.ahead import collect_by_hand
    from tuner.session.session import Session, open_session

    settings = stored.load(paths.settings_file())
    for problem in settings.problems:
        click.echo(f"gputuner: {problem}", err=True)

    def sessions(ask: Ask) -> list[Session]:
        return [open_session(target, ask=ask, speed=speed, read_only=read_only) for target in targets]

    app = TunerApp(
        sessions,
        ascii=settings.ascii or not _draws_unicode(os.environ),
        theme=settings.theme,
        keymap=settings.keymap,
        read_starts=_starts_in,
        library=FileLibrary(),
        ahead_s=1.0,
    )
    collect_by_hand()

    async def shown() -> int:
        loop = asyncio.get_running_loop()
        ended_by: list[int] = []

        def end(number: int) -> Callable[[], None]:
            def leave() -> None:
                # Leaving through the application restores the terminal.
                ended_by.append(number)
                app.exit()

            return leave

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end(number))
            # A terminal that nobody reads from blocks the event loop, and with it the handler above; this handler still
            # runs.
            signal.signal(number, _end_at_last)
        await app.run_async()
        return 128 + ended_by[0] if ended_by else app.return_code or FINE

    return asyncio.run(shown())


def _end_at_last(number: int, _frame: object) -> None:
    """End the process after `_PATIENCE_S` seconds, unless it ends by itself first."""
    timer = threading.Timer(_PATIENCE_S, os._exit, (128 + number,))
    timer.daemon = True
    timer.start()


def _starts_in(path: str) -> Sequence[Start]:
    """Return the starts in a log file of this machine."""
    from tuner.core.reading import starts_of
    from tuner.engines import load_engines
    from tuner.store import logfiles

    engines = load_engines()
    # An absolute path, since `-` would be read as the standard input, which is the terminal here.
    file = str(Path(path).expanduser().absolute())
    log = logfiles.read([file], [engine.routine() for engine in engines.values()])
    return [msgspec.structs.replace(start, files=log.files) for start in starts_of(log, engines)]


def _draws_unicode(environment: dict[str, str] | os._Environ[str]) -> bool:
    """Return whether the terminal's character set has the box-drawing characters."""
    locale = next((environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), "")
    return environment.get("TERM") != "linux" and ("utf" in locale.lower() or locale == "")
