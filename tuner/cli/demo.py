"""The demo's host: started beside us, connected to as any other, ended with us.

A demo that runs already is written down in the state folder, so that `snapshot demo` reads what the dashboard in the
next terminal shows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner import paths, simhost
from tuner.domain.link import Target
from tuner.errors import ConnectionFailed
from tuner.simhost import Address


class DemoHost:
    """A simulated host. It starts at once and is waited for when it is asked where it is.

    Args:
        scenario: A name of `simhost.scenarios.SCENARIOS`.
        version: SGLang's.
        speed: Pace of its starts and waits.
    """

    def __init__(self, *, scenario: str, version: str, speed: float = 1.0) -> None:
        self._process: subprocess.Popen[bytes] = simhost.launch(
            scenario, version=version, speed=speed, runtime=runtime_folder()
        )

    def __enter__(self) -> DemoHost:
        return self

    def __exit__(self, *exception: object) -> None:
        """End it, whether it ever said where it is or not: it goes when its stdin ends."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()
        simhost.running(runtime_folder())  # removes the entries of those that were killed
        for folder in (runtime_folder(), paths.state_dir()):
            with suppress(OSError):  # there is more in it: another demo, or what is worth keeping
                folder.rmdir()

    def target(self) -> Target:
        """How to connect to it.

        Raises:
            ConnectionFailed: it did not start; what it said stands above, on stderr.
        """
        try:
            return target_of(simhost.finish(self._process).address)
        except RuntimeError as error:
            raise ConnectionFailed("The simulated host did not start", str(error), final=True) from error


def runtime_folder() -> Path:
    """Where running demos are written down."""
    return paths.state_dir() / "demo"


def target_of(address: Address) -> Target:
    """A simulated host as a target: its own key is known, nothing of the operator's is used or added to."""
    return Target(
        name="demo",
        host=address.host,
        port=address.port,
        user=address.user,
        options={
            "known_hosts": str(address.known_hosts),
            "identity": str(address.identity),
            "config": "none",
            "history": str(address.dir / "history.sqlite3"),
        },
    )


@contextmanager
def at_home(target: Target, say: Callable[[str], None] = lambda _: None) -> Iterator[Target]:
    """The target itself; where it is `demo`, the demo that runs, or one that lives as long as the context.

    Args:
        target: As it was named.
        say: Is told when it is a demo that somebody else started.
    """
    if target.scheme != "demo":
        yield target
        return
    address = simhost.running(runtime_folder())
    if address is not None:
        say(f"reading the demo that runs already, scenario {address.scenario}, SGLang {address.version}")
        yield target_of(address)
        return
    with DemoHost(scenario="healthy", version="0.5.23") as host:
        yield host.target()
